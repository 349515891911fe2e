//! Observes an engine while it runs: its operators, the process heap, and kernels recorded by CUPTI.

pub mod heap;
pub mod listener;
pub mod live;
pub mod operator_clock;
