#![doc = include_str!("../README.md")]

mod busy;
mod cells;
pub mod change;
mod convert;
pub mod cublas;
mod dialect;
mod error;
mod format;
mod gpu;
mod nccl;
pub mod ncu;
pub mod nsys;
mod open;
mod quantity;
pub mod ranks;
pub mod rocprof;
pub mod show;
pub mod tally;
pub mod tensorrt;
pub mod top;
pub mod torch;

pub use error::KernelsError;
pub use format::formats_markdown;
pub use open::{Opened, open, open_all, open_on};
