//! Models: shape, tensors, parameter count, operators and their cost.

pub mod cost;
mod operand_shapes;
pub mod operator;
pub mod shape;
pub mod spec;

pub use cost::Step;
pub use operator::{Operator, OperatorKind};
pub use shape::Shape;
pub use spec::{ModelSpec, SpecError};
