//! The possible effect of different clocks on a difference in time.

use super::{metric::Metric, sample::Sample};
use crate::interval::ConfidenceInterval;
use llmprof_base::units::percent;
use llmprof_event::Phase;

/// The factors by which the clocks alone may have changed B's times, from no effect to a proportional one.
/// Compute-bound work follows the SM clock and memory-bound work does not; the range covers both.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClockEffect {
    pub min: f64,
    pub max: f64,
}

impl ClockEffect {
    pub const NONE: ClockEffect = ClockEffect { min: 1.0, max: 1.0 };

    /// The range of the factors, as a ratio.
    pub fn range(self) -> f64 {
        self.max / self.min
    }

    /// The part of a ratio of times that the clocks cannot explain. For a ratio of rates the effect is inverted.
    ///
    /// If the clocks differ by more than half the margin, the interval is first doubled and the margin is added:
    /// attributing heat to the code in one of twenty comparisons would be too often.
    pub fn remove_from(self, ratio: ConfidenceInterval, of_rates: bool, margin: f64) -> ConfidenceInterval {
        let (min, max) = if of_rates { (1.0 / self.max, 1.0 / self.min) } else { (self.min, self.max) };
        let (low, high) = match self.range() > 1.0 + margin / 2.0 {
            true => {
                let twice_as_far = |end: f64| end * end / ratio.estimate;
                (twice_as_far(ratio.low) / (1.0 + margin), twice_as_far(ratio.high) * (1.0 + margin))
            }
            false => (ratio.low, ratio.high),
        };
        ConfidenceInterval { estimate: ratio.estimate, low: low / max, high: high / min }
    }
}

/// The clocks in the phase that a metric measures, as far as they are known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ClockComparison {
    /// No clock changes the metric, or there is no GPU.
    Irrelevant,
    Known {
        a_mhz: f64,
        b_mhz: f64,
        effect: ClockEffect,
    },
    /// The GPU was not sampled at all.
    NotSampled,
    /// Too few samples fell into the phase.
    Unknown {
        phase: Phase,
        doubt: Option<Doubt>,
    },
}

/// Why an unknown clock may have differed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Doubt {
    /// The limits of this side are not known either.
    LimitsUnknown { side: &'static str },
    /// The clocks differed in the other phase.
    OtherPhase { phase: Phase, a_mhz: f64, b_mhz: f64 },
}

/// Clocks that differ by less count as equal.
const MAX_CLOCK_DIFFERENCE: f64 = 0.01;

/// Whether cycles are comparable: only between GPUs of one kind.
pub fn same_gpu(a: &Sample, b: &Sample) -> bool {
    let name = |sample: &Sample| sample.facts.gpu.as_ref().map(|gpu| gpu.name.clone());
    name(a) == name(b)
}

pub fn compare_clocks(a: &Sample, b: &Sample, metric: Metric) -> ClockComparison {
    let Some(phase) = metric.phase().filter(|_| same_gpu(a, b) && a.facts.gpu.is_some()) else {
        return ClockComparison::Irrelevant;
    };
    // The clock of one phase does not give that of another: a power cap may lower it in prefill only.
    let prefill = a.clocks.prefill_sm_mhz.zip(b.clocks.prefill_sm_mhz);
    let decode = a.clocks.decode_sm_mhz.zip(b.clocks.decode_sm_mhz);
    let (sm_mhz, other, in_other) = match phase {
        Phase::Prefill => (prefill, Phase::Decode, decode),
        _ => (decode, Phase::Prefill, prefill),
    };
    let Some((a_mhz, b_mhz)) = sm_mhz else {
        if !a.has_telemetry() && !b.has_telemetry() {
            return ClockComparison::NotSampled;
        }
        let unknown = [("A", a), ("B", b)].into_iter().find(|(_, sample)| !sample.knows_limits_in(phase));
        let unknown = unknown.map(|(side, _)| Doubt::LimitsUnknown { side });
        let other = in_other
            .filter(|(a_mhz, b_mhz)| (b_mhz / a_mhz).ln().abs() > MAX_CLOCK_DIFFERENCE)
            .map(|(a_mhz, b_mhz)| Doubt::OtherPhase { phase: other, a_mhz, b_mhz });
        return ClockComparison::Unknown { phase, doubt: unknown.or(other) };
    };
    let memory = match phase {
        Phase::Prefill => 1.0,
        _ => a.clocks.decode_mem_mhz.zip(b.clocks.decode_mem_mhz).map_or(1.0, |(a, b)| a / b),
    };
    let sm = a_mhz / b_mhz;
    let effect = ClockEffect { min: sm.min(memory).min(1.0), max: sm.max(memory).max(1.0) };
    ClockComparison::Known { a_mhz, b_mhz, effect }
}

/// A limit that was active for this much more of one run's time than of the other's is a reason by itself.
const MIN_LIMIT_DIFFERENCE: f64 = 0.1;

/// "power cap 41 % vs 3.0 %": the limit whose shares of the phase differ most, B's first.
pub fn limit_difference(a: &Sample, b: &Sample, metric: Metric) -> Option<String> {
    let phase = metric.phase()?;
    let share = |sample: &Sample, name: &str| {
        sample.limits_in(phase).find(|limit| limit.limit == name).map_or(0.0, |limit| limit.share)
    };
    let names = a.limits_in(phase).chain(b.limits_in(phase)).map(|limit| &limit.limit);
    let shares = names.map(|name| (name, share(a, name), share(b, name)));
    let (name, a, b) = shares.max_by(|l, r| (l.1 - l.2).abs().total_cmp(&(r.1 - r.2).abs()))?;
    ((a - b).abs() > MIN_LIMIT_DIFFERENCE)
        .then(|| format!("{name} {} vs {}", percent(100.0 * b), percent(100.0 * a)))
}
