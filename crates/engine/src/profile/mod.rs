//! Observes an engine while it runs: its operators, NVTX ranges, and kernels recorded by CUPTI.

pub mod live;
mod nvtx_client;
pub mod nvtx_ranges;
pub mod operator_clock;
pub mod prefill_progress;
