//! Pure functions from measurements to meaning.

pub mod compare;
pub mod distribution;
pub mod energy;
pub mod heat;
pub mod interval;
pub mod metrics;
pub mod throttle;
pub mod trust;
pub mod units;
pub mod verdict;
