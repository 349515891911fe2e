//! The result as text: the sentence, the reasons, the advice.

use super::{
    clock::{ClockComparison, Doubt},
    comparer::Comparer,
    comparison::{Cause, MetricComparison, Subject},
    difference::Difference,
    estimate::SampleSize,
    metric::Metric,
    spread::RunDeviation,
    verdict::{Verdict, required_sample_size},
};
use crate::interval::ConfidenceInterval;
use llmprof_base::units::{grouped, percent, ratio_change, three_digits};
use llmprof_event::Phase;

/// Why an unknown clock may explain a difference; `None` if nothing suggests that.
pub(super) fn unknown_clock(phase: Phase, limits: Option<&str>, doubt: Option<Doubt>) -> Option<String> {
    let phase = phase.name();
    Some(match (limits, doubt) {
        (Some(limits), _) => {
            format!("the GPU was throttled ({limits}), and its clock in {phase} is not known")
        }
        (None, None) => return None,
        (None, Some(Doubt::OtherPhase { phase: other, a_mhz, b_mhz })) => format!(
            "the clock in {phase} is not known, and in {} it differed (SM {a_mhz:.0} → {b_mhz:.0} MHz)",
            other.name()
        ),
        (None, Some(Doubt::LimitsUnknown { side })) => format!(
            "the clock of {side} in {phase} is not known: too few GPU samples fell into it; use more or longer requests, or a shorter profiling.nvml.interval_ms"
        ),
    })
}

/// The absolute change.
fn change_size(ratio: f64) -> String {
    percent(100.0 * (ratio - 1.0).abs())
}

/// From this factor on, the factor is printed too: few readers would derive 4.4 from "77 % lower".
const MIN_FACTOR: f64 = 1.2;

/// "TPOT of B is 77 % lower, 4.3× as fast".
fn changed(metric: Metric, ratio: f64) -> String {
    let direction = if ratio < 1.0 { "lower" } else { "higher" };
    let text = format!("{} of B is {} {direction}", metric.noun(), change_size(ratio));
    let factor = ratio.max(1.0 / ratio);
    let meaning = match (metric.is_speed(), (ratio > 1.0) == metric.more_is_better()) {
        (true, true) => "as fast",
        (true, false) if !metric.more_is_better() => "as long",
        _ => return text,
    };
    if factor < MIN_FACTOR { text } else { format!("{text}, {}× {meaning}", three_digits(factor)) }
}

impl Subject {
    fn plural(self) -> &'static str {
        match self {
            Subject::Runs => "runs",
            Subject::Snapshots => "snapshots",
        }
    }
}

impl Comparer<'_> {
    /// The interval, and the sample size that would decide.
    pub(super) fn too_wide(&self, row: &MetricComparison, ratio: ConfidenceInterval) -> String {
        let of = row.n.map_or_else(String::new, |n| format!(" (n = {n})"));
        let between =
            format!("the change is between {} and {}{of}", ratio_change(ratio.low), ratio_change(ratio.high));
        if matches!(row.n, Some(SampleSize::Tokens { .. })) && !row.metric.is_percentile() {
            return format!("{between}; more requests would decide");
        }
        // More requests do not reduce the variation from run to run.
        let n = row.n.filter(|_| self.run_spread(row.metric).is_none());
        let needed =
            n.and_then(|n| Some((required_sample_size(ratio, self.options.margin, n.smaller())?, n.unit())));
        match needed {
            Some((needed, unit)) => {
                format!("{between}; about {} {unit} would decide", grouped(needed as i64))
            }
            None => between,
        }
    }

    /// Why values without any spread are undecided.
    pub(super) fn no_spread(&self) -> String {
        match self.pairs {
            Some(pairs) => {
                format!(
                    "all {pairs} pairs are identical: copies of one pair show no variation from run to run"
                )
            }
            None => "all values of a side are identical: they show no variation".to_owned(),
        }
    }

    /// "the clock was lower (power cap 41 % vs 3.0 %, SM 1980 → 1720 MHz)"
    pub(super) fn describe_clocks(&self, clocks: ClockComparison, limits: Option<&str>) -> String {
        let ClockComparison::Known { a_mhz, b_mhz, .. } = clocks else {
            return "the clock is not known".to_owned();
        };
        let direction = |a: f64, b: f64| if b < a { "lower" } else { "higher" };
        // The clock with the larger difference is named.
        if let Some((a, b)) = self.a.clocks.decode_mem_mhz.zip(self.b.clocks.decode_mem_mhz)
            && (a / b).ln().abs() > (a_mhz / b_mhz).ln().abs()
        {
            return format!("the memory clock was {} ({a:.0} → {b:.0} MHz)", direction(a, b));
        }
        let limits = limits.map_or_else(String::new, |limits| format!("{limits}, "));
        format!("the clock was {} ({limits}SM {a_mhz:.0} → {b_mhz:.0} MHz)", direction(a_mhz, b_mhz))
    }

    /// Intended differences make the runs two workloads.
    fn changes_workload(&self) -> bool {
        self.differences.iter().any(Difference::changes_workload)
    }

    /// The result: the differences between the workloads, if any, and one sentence.
    pub(super) fn sentence(&self, row: &MetricComparison) -> String {
        let changes = self.differences.iter().filter(|difference| difference.changes_workload());
        let changes: Vec<String> =
            changes.map(|Difference { what, a, b, .. }| format!("{what} ({a} → {b})")).collect();
        match changes.is_empty() {
            true => self.result(row),
            false => format!("A and B differ in {}. {}", changes.join(", "), self.result(row)),
        }
    }

    fn result(&self, row: &MetricComparison) -> String {
        let noun = row.metric.noun();
        let reason = row.reason.as_deref();
        let (Some(ratio), true) = (row.ratio, row.verdict != Verdict::Undecided || row.cause.is_some())
        else {
            return format!("Cannot compare {noun}: {}.", reason.unwrap_or("too little was measured"));
        };
        let interval = self.describe_interval(row, ratio);
        let scope = self.scope(row.metric);
        let change = changed(row.metric, ratio.estimate);
        let cycles = row.in_cycles.map(|cycles| ratio_change(cycles.estimate));
        match (row.verdict, row.cause) {
            (Verdict::Same, _) => {
                let reservation = reason.map_or_else(String::new, |reason| format!("; {reason}"));
                format!(
                    "{noun} is the same{scope}: {} ({interval}), within the margin of {}{reservation}.",
                    ratio_change(ratio.estimate),
                    change_size(1.0 + self.options.margin)
                )
            }
            (Verdict::Better | Verdict::Worse, cause) => {
                let why = match (cause, cycles, reason) {
                    (Some(Cause::Code), Some(cycles), _) if !self.changes_workload() => {
                        format!("; not because of the clocks: {cycles} in GPU cycles")
                    }
                    (Some(Cause::Unclear), _, Some(reason)) => format!("; the cause is unknown: {reason}"),
                    _ => String::new(),
                };
                format!("{change}{scope} ({interval}){why}.")
            }
            (Verdict::Undecided, Some(Cause::Clock)) => {
                let cycles = cycles.unwrap_or_else(|| "unknown".to_owned());
                let reason = reason.unwrap_or("the clocks differ");
                format!("{change}, but {cycles} in GPU cycles: {reason}, not the code.")
            }
            (Verdict::Undecided, _) => format!(
                "{noun} changed by {} ({interval}), but {}, which may be the cause.",
                ratio_change(ratio.estimate),
                reason.unwrap_or("the clocks differ")
            ),
        }
    }

    /// "95 % CI: +1.0 % to +1.4 %, n = 20 and 20 requests"
    fn describe_interval(&self, row: &MetricComparison, ratio: ConfidenceInterval) -> String {
        let mut text = format!("95 % CI: {} to {}", ratio_change(ratio.low), ratio_change(ratio.high));
        if let Some(n) = row.n {
            text += &format!(", n = {n}");
        }
        if let Some(RunDeviation { share, runs }) = self.run_spread(row.metric) {
            text += &format!(", {} from run to run in {runs} saved runs", percent(100.0 * share));
        }
        text
    }

    /// The scope of a statement that does not apply to the workload in general.
    fn scope(&self, metric: Metric) -> String {
        match self.pairs.is_none() && !metric.is_count() && self.run_spread(metric).is_none() {
            true => format!(" in these two {}", self.options.subject.plural()),
            false => String::new(),
        }
    }

    /// The advice.
    pub(super) fn advice(&self, row: &MetricComparison) -> Vec<String> {
        let blocking = self.differences.iter().filter(|difference| difference.blocks());
        let blocking: Vec<&str> = blocking.map(|difference| difference.what).collect();
        let decided = row.verdict != Verdict::Undecided;
        const REPEAT: &str = "llmprof-tui compare --repeat 10 -- A-OVERRIDES vs B-OVERRIDES";
        if !blocking.is_empty() {
            return vec![format!("if the difference is intended, pass --meant '{}'", blocking.join(","))];
        }
        match (decided, self.pairs) {
            (false, None) => vec![format!(
                "run both sides interleaved, so that heat and external load affect both alike: {REPEAT}"
            )],
            (false, Some(_)) => vec!["increase --repeat, or reduce the external load".to_owned()],
            (true, None) if !self.scope(row.metric).is_empty() => vec![format!(
                "the interval does not include the variation from run to run. To compare the workloads and not two {}, run both sides interleaved: {REPEAT}",
                self.options.subject.plural()
            )],
            (true, _) => Vec::new(),
        }
    }
}

/// The verdict as a word for this metric.
pub(super) fn verdict_word(metric: Metric, verdict: Verdict) -> &'static str {
    match (verdict, metric.is_speed()) {
        (Verdict::Same, _) => "SAME",
        (Verdict::Undecided, _) => "UNDECIDED",
        (Verdict::Better, true) => "FASTER",
        (Verdict::Worse, true) => "SLOWER",
        (Verdict::Better, false) => "LESS",
        (Verdict::Worse, false) => "MORE",
    }
}
