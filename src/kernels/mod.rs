//! Kernels as they run, by CUPTI, and as profilers have written them down: summaries and recordings of Nsight Systems,
//! counters of Nsight Compute, shapes from the logs of cuBLAS.
//!
//! Every source becomes a [`table::KernelTable`]. Files are read as streams, and what is kept of them is bounded: a row for
//! each kernel, grid and range, not for each launch.

mod cells;
mod convert;
pub mod cublas;
mod error;
pub mod ncu;
pub mod nsys;
mod open;
mod quantity;
pub mod show;
pub mod tally;
pub mod top;

pub use error::KernelsError;
pub use open::{open, open_on};
