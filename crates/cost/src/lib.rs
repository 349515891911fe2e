#![doc = include_str!("../README.md")]

pub mod architectures;
#[cfg(test)]
mod built_in;
pub mod cost;
mod defaults;
mod dtype;
mod operand_shapes;
pub mod operator;
pub mod quantisation;
pub mod shape;
pub mod spec;
pub mod vision;

pub use cost::Step;
pub use dtype::{Dtype, KvCacheDtype, Scheme};
pub use operator::{Operator, OperatorInstance, OperatorKind};
pub use quantisation::Quantisation;
pub use shape::Shape;
pub use spec::{ModelSpec, SpecError};
pub use vision::{PreprocessConfig, VisionShape};
