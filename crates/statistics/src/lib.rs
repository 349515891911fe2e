//! Confidence intervals of means, rates and percentiles. The same seed gives the same draws on every machine.

pub mod binomial;
pub mod blocks;
pub mod bootstrap;
pub mod interval;
pub mod noise;
pub mod percentile;
pub mod ratio;
