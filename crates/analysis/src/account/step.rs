//! A mean step by its recorded kernels: busy time by owner, and gaps.

use std::collections::BTreeMap;

use super::{Basis, Division, Owner};
use crate::{launches::LaunchMeter, roofline::Roof, steps::Class, throttle::Limit};
use llm_cost::{
    Operator, OperatorKind,
    cost::{Amounts, StepCost},
};
use llmprof_event::{
    KernelWindow,
    kernels::{KernelRow, work::MEMSET},
};

/// The busy time of one owner in a mean step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Part {
    pub owner: Owner,
    pub ns: f64,
    /// The minimum time of this work on the GPU; 0 if it is not known.
    pub bound: Bound,
}

/// The minimum time of some work at the GPU's peaks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Bound {
    /// The bounds of the operators that are limited by memory, and of those limited by compute.
    pub bytes_ns: f64,
    pub flops_ns: f64,
}

impl Bound {
    /// The bound of one operator.
    pub fn new(amounts: &Amounts, roof: &Roof) -> Bound {
        // Activations may stay in a cache.
        let bytes_ns = amounts.certain_bytes() / roof.bytes_per_s * 1e9;
        let flops_ns = amounts.flops() / roof.flops * 1e9;
        match bytes_ns >= flops_ns {
            true => Bound { bytes_ns, flops_ns: 0.0 },
            false => Bound { bytes_ns: 0.0, flops_ns },
        }
    }

    pub fn ns(&self) -> f64 {
        self.bytes_ns + self.flops_ns
    }

    /// Not more than `most_ns`.
    pub fn at_most(self, most_ns: f64) -> Bound {
        let ns = self.ns();
        let scale = if ns > most_ns { most_ns.max(0.0) / ns } else { 1.0 };
        let part = |ns: f64| if ns.is_finite() { ns * scale } else { 0.0 };
        Bound { bytes_ns: part(self.bytes_ns), flops_ns: part(self.flops_ns) }
    }

    pub(super) fn take(&self, division: &mut Division) -> f64 {
        division.take(Owner::Bytes, self.bytes_ns, BOUND) + division.take(Owner::Flops, self.flops_ns, BOUND)
    }
}

impl std::iter::Sum for Bound {
    fn sum<I: Iterator<Item = Bound>>(all: I) -> Bound {
        all.fold(Bound::default(), |sum, one| Bound {
            bytes_ns: sum.bytes_ns + one.bytes_ns,
            flops_ns: sum.flops_ns + one.flops_ns,
        })
    }
}

/// A mean step of one phase.
#[derive(Debug, Clone, PartialEq)]
pub struct StepFacts {
    pub parts: Vec<Part>,
    pub launches: LaunchMeter,
    /// Recorded steps.
    pub steps: u64,
}

/// The loss by a clock below the free one, as a share of the step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClockLoss {
    pub limit: Limit,
    pub share: f64,
    /// Whether steps with and without the limit were compared.
    pub is_measured: bool,
}

pub(super) const KERNELS: Basis = Basis::Measured("times of recorded kernels");
pub(super) const GAPS: Basis = Basis::Measured("gaps between recorded kernels");
pub(super) const WALL: Basis = Basis::Measured("wall time of operators");
const BEYOND_BOUND: Basis = Basis::Measured("times of recorded kernels minus their bound");
pub(super) const BOUND: Basis = Basis::Bounded("the model's shape and the GPU's peaks");

impl StepFacts {
    /// The mean step of `window`; `None` without one. Rows add up to the busy time.
    pub fn from_window(
        window: &KernelWindow,
        cost: Option<&StepCost>,
        roof: Option<&Roof>,
    ) -> Option<StepFacts> {
        let launches = LaunchMeter::from_window(window)?;
        let steps = window.steps as f64;
        let mut by_owner: BTreeMap<String, (Owner, Option<Operator>, f64)> = BTreeMap::new();
        for row in &window.rows {
            let (owner, operator) = owner(row);
            // Small kernels are bounded one by one, and shown as one owner.
            let key = operator.map_or_else(|| owner.key(), |operator| operator.name().to_owned());
            let sum = by_owner.entry(key).or_insert((owner, operator, 0.0));
            sum.2 += row.total_ns.unwrap_or(0.0) / steps;
        }
        let parts = by_owner.into_values().map(|(owner, operator, ns)| {
            let bound = || Some(Bound::new(&cost?.operator(operator?)?.all, roof?));
            Part { owner, ns, bound: bound().unwrap_or_default().at_most(ns) }
        });
        Some(StepFacts { parts: parts.collect(), launches, steps: window.steps })
    }

    pub fn bound(&self) -> Bound {
        self.parts.iter().map(|part| part.bound).sum()
    }

    /// Divides up to the whole time that is left among the work of a step and its gaps. A lower clock makes the work
    /// longer than its bound, so its loss is a part of that excess.
    pub(super) fn divide(&self, division: &mut Division, clock: Option<ClockLoss>) {
        self.bound().take(division);
        let excess: f64 = self.parts.iter().map(|part| part.ns - part.bound.ns()).sum();
        let step_ns = self.launches.step_ns();
        let clock_ns = clock.map_or(0.0, |clock| (clock.share * step_ns).min(excess));
        if let Some(clock) = clock {
            division.take(Owner::Clock(clock.limit), clock_ns, clock.basis());
        }
        let rest = if excess > 0.0 { 1.0 - clock_ns / excess } else { 0.0 };
        division.take_in_proportion(self.parts.iter().map(|part| {
            let basis = if part.bound.ns() > 0.0 { BEYOND_BOUND } else { KERNELS };
            (part.owner, (part.ns - part.bound.ns()) * rest, basis)
        }));
        // Recording makes gaps longer: together they get at most the time without recording.
        division.take_in_proportion([
            (Owner::KernelGaps, self.launches.gaps_ns, GAPS),
            (Owner::StepGaps, self.launches.between_ns, GAPS),
        ]);
    }
}

impl ClockLoss {
    pub(super) fn basis(&self) -> Basis {
        match self.is_measured {
            true => Basis::Measured("steps with and without the limit, at most the ratio of the clocks"),
            false => Basis::Estimated("the ratio of the clocks and how much of the work follows it"),
        }
    }
}

/// The owner of a row, and its operator if that has a cost of its own.
fn owner(row: &KernelRow) -> (Owner, Option<Operator>) {
    if row.grid.is_none() && (row.bytes.is_some() || row.name == MEMSET) {
        return (Owner::Copies, None);
    }
    let class = Class::from_name(&row.name);
    if matches!(class, Class::Collective(_) | Class::CustomAllReduce) {
        return (Owner::Communication, None);
    }
    match row.operator {
        Some(operator) => match operator.kind() {
            OperatorKind::Matmul | OperatorKind::Attention => (Owner::Operator(operator), Some(operator)),
            OperatorKind::Pointwise | OperatorKind::Ends => (Owner::SmallKernels, Some(operator)),
        },
        None => (Owner::Kernels(class), None),
    }
}
