//! What a model is: its shape, its tensors, its size, its operators.

pub mod operator;
pub mod spec;

pub use operator::{Operator, OperatorKind};
pub use spec::{ModelSpec, SpecError};
