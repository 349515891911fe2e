//! Kernels as they run, by CUPTI: loaded at run time, read on a thread of its own, told as windows and timelines.
//!
//! The engine marks what it puts on the device (a step, an operator of a layer); CUPTI hands those marks back beside the
//! launches. The nodes of a CUDA graph share one launch: they are told apart by the order in which they run.

mod library;
mod mark;
mod records;
mod steps;
mod tracer;

pub use tracer::Tracer;
