//! Compares two runs: whether they are comparable and can be trusted, how they differ, and whether the code or the
//! clock is the cause. Pure functions from [`Sample`]s to a [`Comparison`].

mod clock;
mod comparer;
mod comparison;
mod difference;
mod estimate;
mod gate;
mod holm;
mod metric;
mod owners;
mod rows;
mod sample;
mod sentence;
#[cfg(test)]
mod simulation;
mod spread;
#[cfg(test)]
mod statistics_tests;
mod text;
mod thinned;
mod token_blocks;
mod trace;
mod verdict;
#[cfg(test)]
mod verdict_tests;
mod waterfall;

use llmprof_statistics::blocks;
pub use llmprof_statistics::ratio;

pub use blocks::BlockHistogram;
pub use comparison::{Cause, Comparison, MetricComparison, Options, RowTest, Side, Subject};
pub use difference::{Difference, OVERRIDE, fact_names, same_workload};
pub use estimate::SampleSize;
pub use gate::{Gate, GateError, GateOutcome};
pub use metric::{DEFAULT_METRICS, HEADLINE, Metric, Statistic, UnknownMetric};
pub use owners::{OwnerChange, owner_changes};
pub use rows::{compare, compare_pairs};
pub use sample::{
    BROKEN_SLO, Clocks, Facts, GpuFacts, KEPT_SLO, KernelProfile, LimitShare, RequestSample, SAMPLE_SCHEMA,
    SLO_LIMIT, Sample,
};
pub use spread::{MIN_RUNS, RunDeviation, RunSpread, RunValues};
pub use text::{
    changed_families, comparison_table, describe_difference, describe_method, describe_side,
    undecided_reasons, visible_rows,
};
pub use thinned::Thinned;
pub use trace::RequestTrace;
pub use verdict::Verdict;
pub use waterfall::{OperatorChange, OperatorClock, Waterfall, waterfall};
