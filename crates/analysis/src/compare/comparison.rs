//! The options and the result of a comparison.

use serde::Serialize;

use super::{
    difference::{BATCH, Difference},
    estimate::SampleSize,
    metric::{DEFAULT_METRICS, HEADLINE, Metric},
    owners::OwnerChange,
    sample::Sample,
    spread::{RunDeviation, RunSpread},
    verdict::Verdict,
    waterfall::Waterfall,
};
use crate::{
    distribution::Counts,
    interval::ConfidenceInterval,
    trust::{Severity, TrustIssue, coefficient_of_variation},
};
use llmprof_event::{Outcome, Phase, WorkKind};

/// The metrics to compare, and the strictness.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    pub metrics: Vec<Metric>,
    /// The metric that decides the verdict; `None` for TPOT, or the throughput if the batch differs.
    pub headline: Option<Metric>,
    /// Differences up to this share of A count as none.
    pub margin: f64,
    /// Facts that are intended to differ without an override.
    pub meant: Vec<String>,
    pub seed: u64,
    /// The variation from run to run, if runs of this workload were saved.
    pub spread: RunSpread,
    pub subject: Subject,
}

/// The kind of the samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Subject {
    #[default]
    Runs,
    Snapshots,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            metrics: DEFAULT_METRICS.to_vec(),
            headline: None,
            margin: 0.01,
            meant: Vec::new(),
            seed: 0,
            spread: RunSpread::default(),
            subject: Subject::default(),
        }
    }
}

/// The cause of a difference in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The difference is larger than the clocks explain.
    Code,
    /// In GPU cycles the difference disappears or has the opposite sign.
    Clock,
    /// The clocks may explain all or some of it.
    Unclear,
}

/// The statistical test of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RowTest {
    /// It decides the comparison, or is its reciprocal: at 5 %.
    Headline,
    /// Together with the other rows, by Holm's procedure at 5 %.
    Corrected,
    /// It is counted, or has no interval.
    None,
}

/// One metric of both sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MetricComparison {
    pub metric: Metric,
    pub label: String,
    /// The estimate of the ratio is `b / a`.
    pub a: Option<f64>,
    pub b: Option<f64>,
    /// B over A.
    pub ratio: Option<ConfidenceInterval>,
    /// The sample size behind the interval.
    pub n: Option<SampleSize>,
    pub test: RowTest,
    /// The same in GPU cycles.
    pub in_cycles: Option<ConfidenceInterval>,
    /// The ratio without the possible effect of the clocks. Verdicts and gates are based on it.
    pub code: Option<ConfidenceInterval>,
    pub verdict: Verdict,
    /// The verdict as a word for this metric.
    pub word: &'static str,
    pub cause: Option<Cause>,
    /// The reason why it is undecided and what would decide it; or a reservation.
    pub reason: Option<String>,
    /// The sides cannot be compared, or one of them cannot be trusted.
    pub blocked: bool,
}

/// A summary of one side.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Side {
    pub name: String,
    pub what: String,
    pub requests: u64,
    /// The coefficient of variation of TPOT.
    pub tpot_cv: Option<f64>,
    /// The issues that block a comparison of times.
    #[serde(rename = "doubts")]
    pub blocking_issues: Vec<TrustIssue>,
    pub remarks: Vec<String>,
    #[serde(rename = "held_back_prefill")]
    pub throttled_prefill: f64,
    #[serde(rename = "held_back_decode")]
    pub throttled_decode: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    pub verdict: Verdict,
    /// The metric that decides the verdict.
    #[serde(skip)]
    pub headline: Option<Metric>,
    /// The verdict of the headline as a word.
    pub word: &'static str,
    pub sentence: String,
    pub margin: f64,
    /// The number of interleaved runs of each side; `None` for a comparison of one run with another.
    pub pairs: Option<usize>,
    /// The variation of the headline from run to run, if it is known from saved runs.
    pub run_spread: Option<RunDeviation>,
    /// The number of rows that are corrected together.
    pub corrected_rows: usize,
    pub a: Side,
    pub b: Side,
    pub differences: Vec<Difference>,
    pub rows: Vec<MetricComparison>,
    /// The change of each owner of the time between tokens.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<OwnerChange>,
    pub waterfall: Option<Waterfall>,
    /// Limitations that do not follow from the rows, if the sides have different engines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub caveats: Vec<String>,
    /// The gaps between tokens of A and of B, if both are known.
    #[serde(skip)]
    pub itl: Option<[Counts; 2]>,
    pub advice: Vec<String>,
}

impl Comparison {
    pub fn row(&self, metric: Metric) -> Option<&MetricComparison> {
        self.rows.iter().find(|row| row.metric == metric)
    }

    /// The row that decides the verdict.
    pub fn headline(&self) -> Option<&MetricComparison> {
        self.row(self.headline?)
    }

    /// Intended differences between the workloads, which explain more than the code does.
    pub fn changed_workload(&self) -> impl Iterator<Item = &Difference> {
        self.differences.iter().filter(|difference| difference.changes_workload())
    }
}

/// The metric that decides the verdict, among the compared ones.
pub(super) fn headline(options: &Options, differences: &[Difference]) -> Option<Metric> {
    // A larger batch takes longer and yields more: TPOT shows only half of it.
    let other_batch =
        differences.iter().any(|difference| difference.what == BATCH && difference.meant.is_some());
    let usual = if other_batch { Metric::DecodeTokS } else { HEADLINE };
    let wanted = options.headline.into_iter().chain([usual, HEADLINE]);
    let compared = |metric: &Metric| options.metrics.contains(metric);
    wanted.filter(compared).chain(options.metrics.first().copied()).next()
}

impl Side {
    pub(super) fn new(sample: &Sample, interleaved: bool) -> Side {
        let run = &sample.facts.run;
        let device = sample.facts.gpu.as_ref().map_or_else(|| run.device.to_string(), |gpu| gpu.name.clone());
        let mut issues = sample.trust(interleaved).issues;
        issues.retain(|issue| issue.severity() == Severity::BlocksComparison);
        Side {
            name: sample.name.clone(),
            what: match &run.command {
                Some(command) => format!("{command} on {device}; its steps are inferred"),
                None if run.kind == WorkKind::Server => {
                    format!(
                        "load test of a server, {} prompt and {} output tokens",
                        run.prompt_tokens, run.output_tokens
                    )
                }
                None => format!(
                    "{} as {} on {device} ({}), batch {}, {} prompt and {} output tokens",
                    run.model, run.dtype, run.kind, run.batch, run.prompt_tokens, run.output_tokens
                ),
            },
            requests: sample.measured,
            tpot_cv: coefficient_of_variation(&sample.tpots_ns()),
            blocking_issues: issues,
            remarks: remarks(sample),
            throttled_prefill: sample.throttled_share(Phase::Prefill),
            throttled_decode: sample.throttled_share(Phase::Decode),
        }
    }
}

/// Limitations of a comparison of two engines, one of them PyTorch.
pub(super) fn caveats(a: &Sample, b: &Sample) -> Vec<String> {
    let [x, y] = [a, b].map(|sample| &sample.facts.run);
    let is_python = |kind: &WorkKind| *kind == WorkKind::Python;
    let name = match (is_python(&x.kind), is_python(&y.kind)) {
        (true, false) => "A",
        (false, true) => "B",
        _ => return Vec::new(),
    };
    let mut caveats = Vec::new();
    if x.device.is_cuda() || y.device.is_cuda() {
        caveats.push(format!(
            "operators of {name} are the kernels of its profiled steps; the rest of TPOT, mostly for launching them, is the time between kernels"
        ));
        caveats.push(format!(
            "memory of {name} is that of PyTorch's allocator; on the other side it is that of the engine's buffers"
        ));
    } else {
        caveats.push(format!(
            "operators of {name} were timed in steps of their own, after the measured requests"
        ));
    }
    if x.synthetic_weights || y.synthetic_weights {
        caveats.push("answers: both have random weights, and not the same ones".to_owned());
    }
    caveats
}

/// Notes on a run that do not affect its trust.
fn remarks(sample: &Sample) -> Vec<String> {
    let mut remarks = Vec::new();
    match sample.facts.outcome {
        None => remarks.push("the run has no end: it is still being written, or was killed".to_owned()),
        Some(Outcome::Interrupted) => remarks.push("the run was interrupted".to_owned()),
        _ => {}
    }
    if sample.facts.run.simulated {
        remarks.push("simulated, not measured".to_owned());
    }
    if (sample.requests.len() as u64) < sample.measured {
        remarks.push(format!("{} of its requests were kept", sample.requests.len()));
    }
    remarks
}
