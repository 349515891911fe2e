//! The time between tokens.

use super::{Account, Basis, Bound, ClockLoss, Division, Figure, Owner, StepFacts, step::WALL};
use crate::late::LateCause;

/// The loss of late tokens by cause, per token of all.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interference {
    pub cause: LateCause,
    pub ns: f64,
}

/// The known facts about the time between tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DecodeFacts {
    /// Whether a token is a step.
    pub is_tpot: bool,
    pub mean_ns: f64,
    pub n: u64,
    /// Late tokens of a server.
    pub late: Vec<Interference>,
    /// How much longer a step takes while kernels are recorded, if all steps were measured so.
    pub recording_ns: Option<f64>,
    pub step: Option<StepFacts>,
    /// The minimum time of a step, by the model's shape.
    pub bound: Option<Bound>,
    /// The mean time of a step by the GPU's own clock.
    pub device_ns: Option<f64>,
    pub clock: Option<ClockLoss>,
    /// Wall time of operators on the CPU.
    pub operators: Vec<(llm_cost::Operator, f64)>,
}

const LATE: Basis = Basis::Measured("late tokens beyond the median, by what happened at the same time");
const CLOCK_OF_STEPS: Basis = Basis::Measured("time outside of steps by the GPU's own clock");
const STEPS: Basis = Basis::Measured("time of steps by the GPU's own clock, beyond their bound");

/// Divides the mean time between tokens.
pub fn decode(facts: &DecodeFacts) -> Account {
    let figure = if facts.is_tpot { Figure::Tpot } else { Figure::Step };
    let mut division = Division::new(figure, facts.mean_ns, facts.n);
    division.take_in_proportion(
        facts.late.iter().filter_map(|late| Some((owner(late.cause, facts.clock)?, late.ns, LATE))),
    );
    if let Some(ns) = facts.recording_ns {
        division.take(Owner::Recording, ns, Basis::Measured("medians of steps with and without recording"));
    }
    match (&facts.step, facts.device_ns) {
        (Some(step), _) => step.divide(&mut division, facts.clock),
        (None, device_ns) => {
            let bound = facts.bound.unwrap_or_default().at_most(device_ns.unwrap_or(f64::INFINITY));
            let taken_ns = bound.take(&mut division);
            let most_ns = device_ns.map_or(division.left_ns(), |device_ns| device_ns - taken_ns);
            let clock_ns = facts.clock.map_or(0.0, |clock| {
                let ns = (clock.share * facts.mean_ns).min(most_ns);
                division.take(Owner::Clock(clock.limit), ns, clock.basis())
            });
            if let Some(device_ns) = device_ns {
                division.take(Owner::Work, device_ns - taken_ns - clock_ns, STEPS);
                division.take(Owner::StepGaps, facts.mean_ns - device_ns, CLOCK_OF_STEPS);
            }
        }
    }
    division.take_in_proportion(
        facts.operators.iter().map(|(operator, ns)| (Owner::Operator(*operator), *ns, WALL)),
    );
    division.close()
}

/// `None` for a loss that has no known cause: it remains unexplained.
fn owner(cause: LateCause, clock: Option<ClockLoss>) -> Option<Owner> {
    match cause {
        LateCause::ClientLag => Some(Owner::Client),
        LateCause::Preemption => Some(Owner::Preemption),
        LateCause::Prefill => Some(Owner::OtherPrefills),
        LateCause::BatchGrowth => Some(Owner::BatchGrowth),
        LateCause::KvPressure => Some(Owner::KvPressure),
        LateCause::Throttling => clock.map(|clock| Owner::Clock(clock.limit)),
        LateCause::Unknown => None,
    }
}
