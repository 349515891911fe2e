//! Pure functions from measurements to meaning.

pub mod bootstrap;
pub mod classify;
pub mod compare;
pub mod distribution;
pub mod energy;
pub mod heat;
pub mod interval;
pub mod kernel_hints;
pub mod launches;
pub mod metrics;
pub mod operators;
pub mod peaks;
pub mod roofline;
pub mod throttle;
pub mod trust;
pub mod verdict;
