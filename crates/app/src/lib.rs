#![doc = include_str!("../README.md")]

mod app;
mod bounded;
pub mod fleet;
mod input;
pub mod terminal;

pub use app::{App, Live, Replan, Stopped, Workload};
pub use input::Input;
