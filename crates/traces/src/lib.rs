//! Readers for the files of other profilers: reports and recordings of Nsight Systems, counters of Nsight Compute, traces of
//! PyTorch, layers of TensorRT, shapes from the logs of cuBLAS.
//!
//! Every source becomes a [`KernelTable`](llmprof_event::kernels::KernelTable). Files are read as streams in bounded
//! memory: a row for each kernel, grid and range, not for each launch.

mod busy;
mod cells;
pub mod change;
mod convert;
pub mod cublas;
mod dialect;
mod error;
mod gpu;
pub mod ncu;
pub mod nsys;
mod open;
mod quantity;
pub mod ranks;
pub mod show;
pub mod tally;
pub mod tensorrt;
pub mod top;
pub mod torch;

pub use error::KernelsError;
pub use open::{Opened, open, open_all, open_on};
