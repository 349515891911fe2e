//! Kernels recorded by CUPTI while they run: CUPTI is loaded at run time, its records are read on a separate thread and
//! reported as windows and timelines.
//!
//! The engine's steps and operators become external correlation ids of their launches, which CUPTI returns with its
//! records. The nodes of a CUDA graph share one launch: they are distinguished by the order in which they run.

mod buffers;
mod external_id;
mod library;
mod records;
mod steps;
mod tracer;

pub use tracer::Tracer;
