//! The variation from run to run, from runs of one workload that were saved on this machine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    metric::{DEFAULT_METRICS, Metric, Statistic},
    sample::Sample,
};
use crate::interval::{Estimate, SamplingDistribution};

/// Fewer runs do not show their variation.
pub const MIN_RUNS: usize = 3;

/// The metrics of one saved run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunValues {
    pub run: String,
    pub started_unix_ms: u64,
    /// By the name of the metric.
    pub values: BTreeMap<String, f64>,
}

impl RunValues {
    pub fn from_sample(sample: &Sample) -> RunValues {
        let medians = [Metric::Ttft, Metric::Tpot].map(|of| of(Statistic::Percentile(50.0)));
        let metrics = DEFAULT_METRICS.into_iter().chain(medians);
        RunValues {
            run: sample.name.clone(),
            started_unix_ms: sample.facts.run.started_unix_ms,
            values: metrics.filter_map(|m| Some((m.to_string(), m.value(sample)?))).collect(),
        }
    }
}

/// The variation of a metric from run to run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RunDeviation {
    /// The standard deviation of its logarithm: nearly its relative standard deviation.
    pub share: f64,
    /// The number of runs.
    pub runs: usize,
}

/// Several runs of one workload.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RunSpread {
    runs: Vec<RunValues>,
}

impl RunSpread {
    /// Each run counts once.
    pub fn from_runs(runs: impl IntoIterator<Item = RunValues>) -> RunSpread {
        let mut spread = RunSpread::default();
        for run in runs {
            if spread.runs.iter().all(|known| known.started_unix_ms != run.started_unix_ms) {
                spread.runs.push(run);
            }
        }
        spread
    }

    /// The variation of a metric; `None` for too few runs.
    pub fn deviation(&self, metric: Metric) -> Option<RunDeviation> {
        let name = metric.to_string();
        let logs: Vec<f64> = self.runs.iter().filter_map(|run| Some(run.values.get(&name)?.ln())).collect();
        let n = logs.len();
        if n < MIN_RUNS || logs.iter().any(|log| !log.is_finite()) {
            return None;
        }
        let mean = logs.iter().sum::<f64>() / n as f64;
        let squares: f64 = logs.iter().map(|log| (log - mean).powi(2)).sum();
        Some(RunDeviation { share: (squares / (n - 1) as f64).sqrt(), runs: n })
    }

    /// The ratio of one run to another: at least as uncertain as that of two of these runs.
    pub fn widened(&self, metric: Metric, log_ratio: SamplingDistribution) -> SamplingDistribution {
        let Some(RunDeviation { share, runs }) = self.deviation(metric).filter(|_| !metric.is_count()) else {
            return log_ratio;
        };
        let estimate =
            Estimate { value: log_ratio.estimate(), standard_error: std::f64::consts::SQRT_2 * share };
        let of_runs = SamplingDistribution::StudentT { estimate, degrees_of_freedom: runs as f64 - 1.0 };
        SamplingDistribution::Wider(Box::new([log_ratio, of_runs]))
    }
}
