//! The library that is put into other CUDA programs, and what it says.
//!
//! A program that is started with the library's path in `CUDA_INJECTION64_PATH` loads it when it initialises CUDA, and with
//! `NVTX_INJECTION64_PATH` at its first NVTX range. The library connects to the profiler's socket, receives shared memory of the
//! profiler's, and writes [`wire::Record`]s into it.

pub mod layout;
pub mod wire;

/// The library, as a file for the dynamic loader.
pub static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libllmprof_inject.so"));
