//! Did it help? Compares two runs: whether they are comparable and can be trusted, what differs, and whether the code or the
//! clock is the cause. Pure functions from [`Sample`]s to a [`Comparison`].

mod blocks;
mod clock;
mod difference;
mod gate;
mod metric;
mod ratio;
mod rows;
mod sample;
#[cfg(test)]
mod simulation;
mod thinned;
mod trace;
mod verdict;
mod waterfall;

pub use blocks::BlockHistogram;
pub use difference::{Difference, OVERRIDE, fact_names};
pub use gate::{Gate, GateError, GateOutcome};
pub use metric::{DEFAULT_METRICS, HEADLINE, Metric, Statistic, UnknownMetric};
pub use rows::{Cause, Comparison, Options, Row, Side, compare, compare_pairs};
pub use sample::{Clocks, Facts, GpuFacts, KernelProfile, LimitShare, RequestSample, SAMPLE_SCHEMA, Sample};
pub use thinned::Thinned;
pub use trace::RequestTrace;
pub use verdict::Verdict;
pub use waterfall::{OperatorChange, Waterfall};
