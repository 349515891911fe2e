//! Classes of real kernel names.
