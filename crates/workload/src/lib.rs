#![doc = include_str!("../README.md")]

mod control;
mod driver;
mod engine;
pub mod heap;
pub mod listener;
pub mod text;
mod workload;

pub use control::Control;
pub use driver::Driver;
pub use engine::{Engine, EngineError, PrepareStep, Progress, Prompts};
pub use workload::{Prompt, PromptSet, Workload};
