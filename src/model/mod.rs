//! What a model is: its shape, its tensors, its size.

pub mod spec;

pub use spec::{ModelSpec, SpecError};
