//! All end-to-end tests as one program: most of the build time of tests is linking.

mod common;
#[path = "../benches/support/mod.rs"]
mod support;
mod test_hub;

mod architecture;
mod assets;
mod attach;
mod bad_input;
mod chaos;
mod checkpoint;
mod cli;
mod compare;
mod completion;
mod config;
mod config_command;
mod decoder_oracle;
mod diagnose;
mod docs;
mod doctor;
mod driver;
mod fetch;
mod fleet;
mod foreign;
mod heap;
mod hostile;
mod images;
mod inputs;
mod kernels;
mod kernels_memory;
mod knee;
mod memory;
mod nsys;
mod nvml;
mod nvtx;
mod operators;
mod prometheus;
mod pty;
mod pytorch;
mod ranks;
mod real_model;
mod record_replay;
mod remote;
mod reports;
mod rerun;
mod resilience;
mod screens;
mod seek;
mod servers;
mod simulation;
mod slurm;
mod stock;
mod sweep;

/// As in the program: tests of memory count what their own thread allocates.
#[global_allocator]
static HEAP: llmprof::workload::heap::CountingHeap = llmprof::workload::heap::CountingHeap;
