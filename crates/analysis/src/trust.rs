//! Whether the times of a run can be trusted: one rule for the header, the evidence, the reports and `compare`.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

use llmprof_base::units::{millis, percent, percent_change};
use llmprof_event::Outcome;

/// The score of a run without an issue.
pub const MAX_SCORE: u32 = 5;

/// Fewer requests give no interval of the median of TPOT.
pub const MIN_REQUESTS: usize = 10;
/// A larger coefficient of variation of TPOT is an issue.
const MAX_EVEN_VARIATION: f64 = 0.05;
/// With a larger one TPOT has no typical value.
const MAX_STABLE_VARIATION: f64 = 0.25;
/// The maximum difference in TPOT between the first and the last third of a run, as a share and in standard errors.
const MAX_DRIFT: f64 = 0.03;
const MAX_DRIFT_STANDARD_ERRORS: f64 = 3.0;
/// The same for a server, whose batch changes from second to second.
const MAX_SERVED_DRIFT: f64 = 0.1;
/// The maximum share of failed requests to a server.
const MAX_FAILED: f64 = 0.01;
/// The maximum share of the CPU that other processes may use.
const MAX_EXTERNAL_CPU_SHARE: f32 = 0.2;

/// How far the times of a run can be trusted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trust {
    /// [`MAX_SCORE`] less one for each issue; 0 if one blocks a comparison.
    pub score: u32,
    pub of: u32,
    /// The worst of all issues; `None` for a run that is fully trusted.
    pub severity: Option<Severity>,
    /// Those that block a comparison come first.
    #[serde(rename = "doubts")]
    pub issues: Vec<TrustIssue>,
}

impl Trust {
    fn from_issues(issues: Vec<TrustIssue>) -> Trust {
        let severity = issues.iter().map(TrustIssue::severity).max();
        let score = match severity {
            Some(Severity::BlocksComparison) => 0,
            _ => MAX_SCORE.saturating_sub(issues.len() as u32),
        };
        Trust { score, of: MAX_SCORE, severity, issues }
    }

    pub fn blocks_comparison(&self) -> bool {
        self.severity == Some(Severity::BlocksComparison)
    }
}

/// The effect of an issue on the use of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The run can be compared, with caution.
    LowersTrust,
    /// `compare` refuses the run.
    BlocksComparison,
}

/// A reason not to trust a run.
#[derive(Debug, Clone, PartialEq)]
pub enum TrustIssue {
    RanUnderTool(String),
    RunFailed,
    SharedGpu(u32),
    /// The share of the CPU that other processes used.
    ExternalCpuLoad(f32),
    LostEvents(u64),
    /// The relative change of TPOT from the first third of the requests to the last.
    Drift(f64),
    /// The coefficient of variation of a TPOT without a typical value.
    UnstableTpot(f64),
    /// The coefficient of variation of TPOT.
    UnevenTpot(f64),
    FewRequests(usize),
    Throttled,
    /// The share of the decode time in which kernels were recorded, if no request is without it.
    KernelsRecorded(f64),
    /// Failed requests to a server.
    FailedRequests {
        failed: u64,
        of: u64,
    },
    /// The client's own delay, in milliseconds.
    LateClient(f64),
    /// The server does not report token counts.
    ChunksForTokens,
    /// Like `Drift`, for a load-tested server.
    ServedDrift(f64),
}

/// From this share on, kernels were recorded throughout.
const RECORDED_THROUGHOUT: f64 = 0.999;

impl TrustIssue {
    pub fn severity(&self) -> Severity {
        match self {
            TrustIssue::UnevenTpot(_)
            | TrustIssue::FewRequests(_)
            | TrustIssue::Throttled
            | TrustIssue::ChunksForTokens
            | TrustIssue::ServedDrift(_) => Severity::LowersTrust,
            // All requests have the same overhead.
            TrustIssue::KernelsRecorded(share) if *share >= RECORDED_THROUGHOUT => Severity::LowersTrust,
            _ => Severity::BlocksComparison,
        }
    }
}

impl fmt::Display for TrustIssue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TrustIssue::RanUnderTool(tool) => write!(f, "it ran under {tool}, which changes its times"),
            TrustIssue::RunFailed => f.write_str("the run failed"),
            TrustIssue::SharedGpu(1) => f.write_str("another process used the GPU"),
            TrustIssue::SharedGpu(processes) => write!(f, "{processes} other processes used the GPU"),
            TrustIssue::ExternalCpuLoad(share) => {
                write!(f, "external load: other processes used {} of the CPU", percent(100.0 * share))
            }
            TrustIssue::LostEvents(1) => f.write_str("1 event was lost"),
            TrustIssue::LostEvents(events) => write!(f, "{events} events were lost"),
            TrustIssue::Drift(change) => write!(
                f,
                "TPOT drifts: {} from the first third of the requests to the last; increase runtime.warmup or set runtime.until=steady",
                percent_change(100.0 * change)
            ),
            TrustIssue::FailedRequests { failed, of } => write!(f, "{failed} of {of} requests failed"),
            TrustIssue::LateClient(ms) => {
                write!(
                    f,
                    "the client itself is {} late: its latencies do not describe the server",
                    millis(*ms)
                )
            }
            TrustIssue::ChunksForTokens => {
                f.write_str("the server reports no token counts: each chunk counts as a token")
            }
            TrustIssue::ServedDrift(change) => write!(
                f,
                "TPOT changes by {} from the first third of the requests to the last: the load is not steady yet",
                percent_change(100.0 * change)
            ),
            TrustIssue::UnstableTpot(variation) => Evenness::Unstable(*variation).fmt(f),
            TrustIssue::UnevenTpot(variation) => Evenness::Uneven(*variation).fmt(f),
            TrustIssue::FewRequests(n) => {
                write!(f, "too few requests with a TPOT: {n} of at least {MIN_REQUESTS}")
            }
            TrustIssue::Throttled => f.write_str("the GPU was throttled"),
            TrustIssue::KernelsRecorded(share) if *share >= RECORDED_THROUGHOUT => {
                f.write_str("kernels were recorded throughout, which makes steps longer")
            }
            TrustIssue::KernelsRecorded(share) => write!(
                f,
                "kernels were recorded in {} of the decode time, in every request, so TPOT has no typical value; measure \
                 requests without recording (key K)",
                percent(100.0 * share)
            ),
        }
    }
}

impl Serialize for TrustIssue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The conditions of a run.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Conditions {
    #[serde(rename = "others")]
    pub other_gpu_processes: u32,
    /// The share of the CPU that other processes used, if the workload runs on the CPU.
    #[serde(rename = "cpu_taken")]
    pub external_cpu_share: Option<f32>,
    /// Lost events, or unreadable lines of the recording.
    pub events_lost: u64,
    #[serde(default)]
    pub throttled: bool,
    /// The share of the decode time in which kernels were recorded, if no request is without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded_share: Option<f64>,
    /// The requests to a server; `None` without a server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served: Option<Served>,
}

/// The outcome of the requests to a server.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Served {
    pub ended: u64,
    pub failed: u64,
    /// The client's own delay, if it is large compared with the measured latencies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_ms: Option<f64>,
    /// Whether chunks count as tokens.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub chunks_for_tokens: bool,
}

impl Served {
    fn with(self, other: Served) -> Served {
        Served {
            ended: self.ended + other.ended,
            failed: self.failed + other.failed,
            late_ms: [self.late_ms, other.late_ms].into_iter().flatten().reduce(f64::max),
            chunks_for_tokens: self.chunks_for_tokens || other.chunks_for_tokens,
        }
    }
}

impl Conditions {
    /// The conditions of two runs as one.
    pub fn worst(self, other: Conditions) -> Conditions {
        let shares = [self.external_cpu_share, other.external_cpu_share];
        Conditions {
            other_gpu_processes: self.other_gpu_processes.max(other.other_gpu_processes),
            external_cpu_share: shares.into_iter().flatten().reduce(f32::max),
            events_lost: self.events_lost + other.events_lost,
            throttled: self.throttled || other.throttled,
            recorded_share: [self.recorded_share, other.recorded_share]
                .into_iter()
                .flatten()
                .reduce(f64::max),
            served: [self.served, other.served].into_iter().flatten().reduce(Served::with),
        }
    }
}

/// Everything that decides the trust of a run.
#[derive(Debug, Clone, Copy)]
pub struct TrustInput<'a> {
    pub conditions: Conditions,
    /// The profiler under which the run was made.
    pub tool: Option<&'a str>,
    /// `None` while the run is in progress.
    pub outcome: Option<Outcome>,
    /// TPOT of the completed requests in order of time; if there are very many, of every n-th.
    pub tpots_ns: &'a [f64],
    /// Whether the runs of both sides were interleaved, so that drift affects both alike.
    pub interleaved: bool,
}

/// Judges a run.
pub fn trust(input: &TrustInput<'_>) -> Trust {
    let Conditions {
        other_gpu_processes,
        external_cpu_share,
        events_lost,
        throttled,
        recorded_share,
        served,
    } = input.conditions;
    let mut issues = Vec::new();
    if let Some(tool) = input.tool {
        issues.push(TrustIssue::RanUnderTool(tool.to_owned()));
    }
    if input.outcome == Some(Outcome::Failed) {
        issues.push(TrustIssue::RunFailed);
    }
    if other_gpu_processes > 0 {
        issues.push(TrustIssue::SharedGpu(other_gpu_processes));
    }
    if let Some(share) = external_cpu_share.filter(|share| *share > MAX_EXTERNAL_CPU_SHARE) {
        issues.push(TrustIssue::ExternalCpuLoad(share));
    }
    if events_lost > 0 {
        issues.push(TrustIssue::LostEvents(events_lost));
    }
    // Switching recording on or off explains any drift and variation.
    let switched = recorded_share.filter(|share| *share < RECORDED_THROUGHOUT);
    issues.extend(switched.map(TrustIssue::KernelsRecorded));
    let drift = drift(input.tpots_ns).filter(|_| !input.interleaved && switched.is_none());
    if let Some(Served { ended, failed, late_ms, chunks_for_tokens }) = served {
        issues.extend(chunks_for_tokens.then_some(TrustIssue::ChunksForTokens));
        if failed as f64 > MAX_FAILED * ended as f64 {
            issues.push(TrustIssue::FailedRequests { failed, of: ended });
        }
        issues.extend(late_ms.map(TrustIssue::LateClient));
        issues.extend(drift.filter(|change| change.abs() > MAX_SERVED_DRIFT).map(TrustIssue::ServedDrift));
    } else {
        issues.extend(drift.map(TrustIssue::Drift));
    }
    // TPOT of a server depends on its other requests.
    match evenness(input.tpots_ns).filter(|_| switched.is_none() && served.is_none()) {
        Some(Evenness::Unstable(variation)) => issues.push(TrustIssue::UnstableTpot(variation)),
        Some(Evenness::Uneven(variation)) => issues.push(TrustIssue::UnevenTpot(variation)),
        Some(Evenness::Even(_)) | None => {}
    }
    if input.tpots_ns.len() < MIN_REQUESTS {
        issues.push(TrustIssue::FewRequests(input.tpots_ns.len()));
    }
    if throttled {
        issues.push(TrustIssue::Throttled);
    }
    if switched.is_none() {
        issues.extend(recorded_share.map(TrustIssue::KernelsRecorded));
    }
    Trust::from_issues(issues)
}

/// Whether TPOT is even between requests, with its coefficient of variation: the rule for both the summary and trust.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Evenness {
    Even(f64),
    Uneven(f64),
    /// TPOT has no typical value.
    Unstable(f64),
}

/// `None` for fewer than two requests.
pub fn evenness(tpots_ns: &[f64]) -> Option<Evenness> {
    coefficient_of_variation(tpots_ns).map(|variation| match variation {
        variation if variation > MAX_STABLE_VARIATION => Evenness::Unstable(variation),
        variation if variation > MAX_EVEN_VARIATION => Evenness::Uneven(variation),
        variation => Evenness::Even(variation),
    })
}

impl fmt::Display for Evenness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, variation) = match self {
            Evenness::Even(variation) => ("even", variation),
            Evenness::Uneven(variation) => ("uneven", variation),
            Evenness::Unstable(variation) => ("unstable", variation),
        };
        write!(f, "TPOT is {word}: its coefficient of variation is {}", percent(100.0 * variation))
    }
}

/// The standard deviation over the mean; `None` for fewer than two values.
pub fn coefficient_of_variation(values: &[f64]) -> Option<f64> {
    let (mean, variance) = mean_and_variance(values)?;
    (mean > 0.0).then(|| variance.sqrt() / mean)
}

fn mean_and_variance(values: &[f64]) -> Option<(f64, f64)> {
    if values.len() < 2 {
        return None;
    }
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    Some((mean, values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0)))
}

/// The relative change from the first third to the last, if it is both large and significant.
fn drift(values: &[f64]) -> Option<f64> {
    let third = values.len() / 3;
    if third < 3 {
        return None;
    }
    let (first, first_variance) = mean_and_variance(&values[..third])?;
    let (last, last_variance) = mean_and_variance(&values[values.len() - third..])?;
    let standard_error = ((first_variance + last_variance) / third as f64).sqrt();
    let change = last / first - 1.0;
    let significant = (last - first).abs() > MAX_DRIFT_STANDARD_ERRORS * standard_error;
    (change.abs() > MAX_DRIFT && significant).then_some(change)
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_base::noise;

    fn judged(tpots_ns: &[f64], conditions: Conditions, tool: Option<&str>) -> Trust {
        trust(&TrustInput { conditions, tool, outcome: None, tpots_ns, interleaved: false })
    }

    /// TPOT of a healthy server varies with its batch, which is not an issue.
    #[test]
    fn a_server_is_judged_by_its_requests() {
        let tpots: Vec<f64> =
            (0..40).map(|i| 5e6 * (1.0 + 0.07 * f64::from(i % 3) + 0.001 * f64::from(i))).collect();
        let judge = |served: Served| {
            let conditions = Conditions { served: Some(served), ..Conditions::default() };
            trust(&TrustInput { conditions, tool: None, outcome: None, tpots_ns: &tpots, interleaved: false })
        };
        let healthy = Served { ended: 40, failed: 0, late_ms: None, chunks_for_tokens: false };
        assert_eq!(judge(Served { chunks_for_tokens: true, ..healthy }).score, 4);
        assert_eq!(judge(healthy).score, MAX_SCORE, "{:?}", judge(healthy));
        let failing = judge(Served { failed: 3, ..healthy });
        assert_eq!((failing.score, failing.issues[0].to_string().as_str()), (0, "3 of 40 requests failed"));
        assert!(judge(Served { late_ms: Some(30.0), ..healthy }).blocks_comparison());
    }

    #[test]
    fn an_issue_costs_a_point_or_all_of_them() {
        let (steady, none) = ([1e6; 20], Conditions::default());
        let trusted = judged(&steady, none, None);
        assert_eq!((trusted.score, trusted.severity, trusted.issues.len()), (5, None, 0));
        let few = judged(&steady[..4], Conditions { throttled: true, ..none }, None);
        assert_eq!((few.score, few.severity), (3, Some(Severity::LowersTrust)));
        assert!(!few.blocks_comparison());
        let loaded = judged(&steady, Conditions { external_cpu_share: Some(0.7), ..none }, None);
        assert_eq!((loaded.score, loaded.severity), (0, Some(Severity::BlocksComparison)));
        let under_tool = judged(&steady, Conditions { other_gpu_processes: 2, ..none }, Some("ncu"));
        assert_eq!(
            serde_json::json!(under_tool),
            serde_json::json!({
                "score": 0,
                "of": 5,
                "severity": "blocks_comparison",
                "doubts": ["it ran under ncu, which changes its times", "2 other processes used the GPU"],
            })
        );
    }

    #[test]
    fn variation_lowers_trust_and_then_blocks() {
        let spread = |share: f64| -> Vec<f64> {
            (0..40).map(|i| 1e6 * if i % 2 == 0 { 1.0 + share } else { 1.0 - share }).collect()
        };
        let none = Conditions::default();
        for (share, severity) in
            [(0.02, None), (0.1, Some(Severity::LowersTrust)), (0.3, Some(Severity::BlocksComparison))]
        {
            assert_eq!(judged(&spread(share), none, None).severity, severity, "{share}");
        }
    }

    #[test]
    fn recording_is_named_as_the_cause() {
        let jump: Vec<f64> = (0..30).map(|i| if i < 15 { 0.8e6 } else { 1.1e6 }).collect();
        let none = Conditions::default();
        let drifts = judged(&jump, none, None);
        assert!(drifts.issues.iter().any(|issue| matches!(issue, TrustIssue::Drift(_))), "{drifts:?}");
        let partly = judged(&jump, Conditions { recorded_share: Some(0.4), ..none }, None);
        assert_eq!(partly.issues, [TrustIssue::KernelsRecorded(0.4)]);
        assert!(partly.blocks_comparison());
        assert!(partly.issues[0].to_string().contains("40 % of the decode time"));
        let throughout = judged(&[1e6; 20], Conditions { recorded_share: Some(1.0), ..none }, None);
        assert_eq!((throughout.score, throughout.severity), (4, Some(Severity::LowersTrust)));
    }

    #[test]
    fn noise_is_no_drift_and_warming_up_is() {
        let steady = |seed| (0..30).map(|i| 10.0 + 0.3 * noise::bell(seed, i)).collect::<Vec<f64>>();
        let alarms = (0..500).filter(|seed| drift(&steady(*seed)).is_some()).count();
        assert!(alarms < 5, "{alarms} of 500");
        let warming: Vec<f64> =
            steady(1).iter().enumerate().map(|(i, v)| v * (1.2 - 0.2 * i as f64 / 30.0)).collect();
        assert!(drift(&warming).unwrap() < -0.05);
        assert_eq!(drift(&[1.0, 2.0, 3.0]), None);
        assert_eq!(
            (coefficient_of_variation(&[1.0]), coefficient_of_variation(&[2.0, 2.0])),
            (None, Some(0.0))
        );
    }
}
