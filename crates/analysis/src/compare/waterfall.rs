//! The operators that cause the difference, and the kernels that appeared and disappeared.

use serde::Serialize;

use super::sample::{KernelProfile, Sample};
use llmprof_event::WorkKind;

/// The time of an operator in one decode step.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct OperatorChange {
    pub what: String,
    pub a_us: f64,
    pub b_us: f64,
}

impl OperatorChange {
    pub fn delta_us(&self) -> f64 {
        self.b_us - self.a_us
    }
}

/// The clock of operator times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OperatorClock {
    /// Kernels on the GPU.
    #[default]
    Kernels,
    /// Wall time on the CPU.
    WallTime,
}

impl OperatorClock {
    /// The part of a step outside of operators.
    fn rest(self) -> &'static str {
        match self {
            OperatorClock::Kernels => "between kernels",
            OperatorClock::WallTime => "outside operators",
        }
    }
}

/// The decode steps of both sides, operator by operator.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Waterfall {
    pub clock: OperatorClock,
    /// A whole step, with the time between kernels.
    pub step: OperatorChange,
    /// The largest change first.
    pub parts: Vec<OperatorChange>,
    /// Kernel families that only B has, and those that only A has, with their launches per step.
    pub appeared: Vec<(String, f64)>,
    pub vanished: Vec<(String, f64)>,
}

impl Waterfall {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.appeared.is_empty() && self.vanished.is_empty()
    }

    /// The first `n` parts, and the number of the others with the sum of their changes.
    pub fn largest(&self, n: usize) -> (&[OperatorChange], usize, f64) {
        let (shown, rest) = self.parts.split_at(self.parts.len().min(n));
        (shown, rest.len(), rest.iter().map(OperatorChange::delta_us).sum())
    }
}

/// Smaller changes are left out.
const MIN_CHANGE_US: f64 = 0.05;

/// `None` if the operators of a side were not recorded, or both sides by different clocks.
pub fn waterfall(a: &Sample, b: &Sample) -> Option<Waterfall> {
    let on_gpu = a.decode.as_ref().zip(b.decode.as_ref());
    let on_cpu = || a.decode_on_cpu.as_ref().zip(b.decode_on_cpu.as_ref());
    let (clock, (x, y)) = match on_gpu {
        Some(both) => (OperatorClock::Kernels, both),
        None => (OperatorClock::WallTime, on_cpu()?),
    };
    let per_step = |profile: &KernelProfile, ns: f64| ns / profile.steps.max(1) as f64 / 1e3;
    let of = |profile: &KernelProfile, what: &str| {
        per_step(profile, profile.operators.get(what).copied().unwrap_or(0.0))
    };
    let mut names: Vec<&String> = x.operators.keys().chain(y.operators.keys()).collect();
    names.sort();
    names.dedup();
    let mut parts: Vec<OperatorChange> = names
        .into_iter()
        .map(|what| OperatorChange { what: what.clone(), a_us: of(x, what), b_us: of(y, what) })
        .collect();
    // torch.profiler makes the steps that it records longer: for it, the gaps are the remainder of a measured step.
    let gaps = |sample: &Sample, profile: &KernelProfile| {
        let tpots = sample.tpots_ns();
        match (clock, &sample.facts.run.kind) {
            (OperatorClock::Kernels, WorkKind::Python) if !tpots.is_empty() => {
                let mean_us = tpots.iter().sum::<f64>() / tpots.len() as f64 / 1e3;
                (mean_us - per_step(profile, profile.busy_ns)).max(0.0)
            }
            _ => per_step(profile, (profile.span_ns - profile.busy_ns).max(0.0) + profile.between_ns),
        }
    };
    parts.push(OperatorChange { what: clock.rest().to_owned(), a_us: gaps(a, x), b_us: gaps(b, y) });
    let sum = |of: fn(&OperatorChange) -> f64| parts.iter().map(of).sum();
    let step =
        OperatorChange { what: "step".to_owned(), a_us: sum(|part| part.a_us), b_us: sum(|part| part.b_us) };
    parts.retain(|part| part.delta_us().abs() >= MIN_CHANGE_US);
    parts.sort_by(|l, r| r.delta_us().abs().total_cmp(&l.delta_us().abs()));
    let only = |here: &KernelProfile, there: &KernelProfile| {
        let gone = here.families.iter().filter(|(family, _)| !there.families.contains_key(*family));
        gone.map(|(family, n)| (family.clone(), *n as f64 / here.steps.max(1) as f64)).collect()
    };
    Some(Waterfall { clock, step, parts, appeared: only(y, x), vanished: only(x, y) })
}
