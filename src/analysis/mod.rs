//! Pure functions from measurements to meaning.

pub mod distribution;
pub mod metrics;
pub mod throttle;
pub mod units;
pub mod verdict;
