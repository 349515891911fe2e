//! Did it help? Two runs held against each other: may they be compared, can they be believed, what differs, and is it
//! the code or the clock. Pure functions from [`Sample`]s to a [`Comparison`].

mod blocks;
mod clock;
mod difference;
mod doubts;
mod gate;
mod metric;
mod ratio;
mod rows;
mod sample;
#[cfg(test)]
mod simulation;
mod trace;
mod verdict;
mod waterfall;

pub use blocks::Blocks;
pub use clock::Heat;
pub use difference::{Difference, names as fact_names};
pub use doubts::variation;
pub use gate::{Gate, GateError, Held};
pub use metric::{HEADLINE, Metric, Of, USUAL, UnknownMetric};
pub use rows::{Cause, Comparison, Options, Row, Side, compare, compare_pairs};
pub use sample::{Clocks, Facts, GpuFacts, KernelProfile, LimitShare, RequestSample, SAMPLE_SCHEMA, Sample};
pub use trace::Trace;
pub use verdict::Verdict;
pub use waterfall::{Part, Waterfall};
