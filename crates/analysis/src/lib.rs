#![doc = include_str!("../README.md")]

pub mod account;
pub mod alert;
pub mod bill;
pub mod classify;
pub mod compare;
pub mod distribution;
pub mod energy;
pub mod fleet;
pub mod gpu_idle;
pub mod heat;
pub mod kernel_hints;
pub mod knee;
pub mod late;
pub mod launches;

pub mod metrics;
pub mod operators;
pub mod peaks;
pub mod program;
pub mod ranks;
pub mod recording_cost;
pub mod roofline;
pub mod server;
pub mod startup;
pub mod steps;
pub mod throttle;
pub mod trust;
pub mod verdict;

pub use llmprof_statistics::interval;

/// Serialises a value as the text of its `Display`.
fn as_text<T: std::fmt::Display, S: serde::Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}
