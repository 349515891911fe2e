//! What is kept of a run: its state, which is a fold of its events, its directory, traces and reports.

pub mod chrome_trace;
pub mod report;
pub mod rundir;
pub mod state;
