//! Which operators make the difference, and which kernels came and went.

use serde::Serialize;

use super::sample::{KernelProfile, Sample};

/// One step of the fall from A to B, a decode step each.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Part {
    pub what: String,
    pub a_us: f64,
    pub b_us: f64,
}

impl Part {
    pub fn delta_us(&self) -> f64 {
        self.b_us - self.a_us
    }
}

/// Where a step's time went on both sides.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Waterfall {
    /// The greatest difference first.
    pub parts: Vec<Part>,
    /// Families that only B has, and those that only A has; with their launches a step.
    pub appeared: Vec<(String, f64)>,
    pub vanished: Vec<(String, f64)>,
}

/// A part that changes less than this is left out.
const LEAST_US: f64 = 0.05;

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
    let mut parts: Vec<Part> = names
        .into_iter()
        .map(|what| Part { what: what.clone(), a_us: of(x, what), b_us: of(y, what) })
        .collect();
    let gaps = |profile: &KernelProfile| {
        per_step(profile, (profile.span_ns - profile.busy_ns).max(0.0) + profile.between_ns)
    };
    parts.push(Part { what: "between kernels".to_owned(), a_us: gaps(x), b_us: gaps(y) });
    parts.retain(|part| part.delta_us().abs() >= LEAST_US);
    parts.sort_by(|l, r| r.delta_us().abs().total_cmp(&l.delta_us().abs()));
    let only = |here: &KernelProfile, there: &KernelProfile| {
        let gone = here.families.iter().filter(|(family, _)| !there.families.contains_key(*family));
        gone.map(|(family, n)| (family.clone(), *n as f64 / here.steps.max(1) as f64)).collect()
    };
    Some(Waterfall { parts, appeared: only(y, x), vanished: only(x, y) })
}
