//! Which operators cause the difference, and which kernels appeared and disappeared.

use serde::Serialize;

use super::sample::{KernelProfile, Sample};

/// The time of an operator in one decode step.
#[derive(Debug, Clone, PartialEq, Serialize)]
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

/// The decode steps of both sides, operator by operator.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Waterfall {
    /// The largest change first.
    pub parts: Vec<OperatorChange>,
    /// Kernel families that only B has, and those that only A has, with their launches per step.
    pub appeared: Vec<(String, f64)>,
    pub vanished: Vec<(String, f64)>,
}

/// Smaller changes are left out.
const MIN_CHANGE_US: f64 = 0.05;

/// `None` where the kernels of a side were not recorded.
pub fn waterfall(a: &Sample, b: &Sample) -> Option<Waterfall> {
    let (x, y) = (a.decode.as_ref()?, b.decode.as_ref()?);
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
    let gaps = |profile: &KernelProfile| {
        per_step(profile, (profile.span_ns - profile.busy_ns).max(0.0) + profile.between_ns)
    };
    parts.push(OperatorChange { what: "between kernels".to_owned(), a_us: gaps(x), b_us: gaps(y) });
    parts.retain(|part| part.delta_us().abs() >= MIN_CHANGE_US);
    parts.sort_by(|l, r| r.delta_us().abs().total_cmp(&l.delta_us().abs()));
    let only = |here: &KernelProfile, there: &KernelProfile| {
        let gone = here.families.iter().filter(|(family, _)| !there.families.contains_key(*family));
        gone.map(|(family, n)| (family.clone(), *n as f64 / here.steps.max(1) as f64)).collect()
    };
    Some(Waterfall { parts, appeared: only(y, x), vanished: only(x, y) })
}
