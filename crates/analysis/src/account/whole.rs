//! TTFT, throughput, programs without steps, and the start of a server.

use super::{
    Account, Basis, Bound, ClockLoss, Division, Figure, Owner, StepFacts,
    step::{GAPS, KERNELS, WALL},
};
use crate::startup::Startup;
use llm_cost::Operator;
use llmprof_event::KernelWindow;

/// The prefill of a mean prompt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PrefillFacts {
    /// Its time as the server or the GPU's clock measured it.
    pub ns: Option<f64>,
    pub bound: Option<Bound>,
    /// The share of the prompts in its steps that are its own, if other requests' are in them.
    pub own_share: Option<f64>,
    pub clock: Option<ClockLoss>,
    pub step: Option<StepFacts>,
}

/// The parts of a mean TTFT.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TtftFacts {
    pub mean_ns: f64,
    pub n: u64,
    pub connect_ns: Option<f64>,
    pub send_ns: Option<f64>,
    pub queue_ns: Option<f64>,
    pub vision_ns: Option<f64>,
    pub prefill: PrefillFacts,
    /// Whether the request was processed in this process: TTFT is the prefill and what the host does around it.
    pub is_local: bool,
    pub operators: Vec<(Operator, f64)>,
}

const CLIENT: Basis = Basis::Measured("the client's clock");
const SERVER: Basis = Basis::Measured("the server's clock");
const BEYOND: Basis = Basis::Measured("the prefill's time beyond its bound");
const TOGETHER: Basis = Basis::Estimated("prompts whose first tokens arrived together shared the steps");
const AROUND: Basis = Basis::Measured("TTFT minus the prefill by the GPU's own clock");

/// Divides the mean TTFT.
pub fn ttft(facts: &TtftFacts) -> Account {
    let mut division = Division::new(Figure::Ttft, facts.mean_ns, facts.n);
    let parts = [
        (Owner::Connect, facts.connect_ns, CLIENT),
        (Owner::Send, facts.send_ns, CLIENT),
        (Owner::Queue, facts.queue_ns, SERVER),
        (Owner::Vision, facts.vision_ns, CLIENT),
    ];
    for (owner, ns, basis) in parts {
        division.take(owner, ns.unwrap_or(0.0), basis);
    }
    let before_ns = division.left_ns();
    let prefill = &facts.prefill;
    match (&prefill.step, prefill.ns) {
        (Some(step), _) if facts.is_local => step.divide(&mut division, prefill.clock),
        (_, ns) => {
            let whole_ns = ns.unwrap_or(before_ns).min(before_ns);
            let own_share = prefill.own_share.filter(|_| ns.is_some()).unwrap_or(1.0).clamp(0.0, 1.0);
            let bound_ns = prefill.bound.unwrap_or_default().at_most(whole_ns).take(&mut division);
            let others_ns = (whole_ns * (1.0 - own_share)).min(whole_ns - bound_ns);
            let others_ns = division.take(Owner::OtherPrefills, others_ns, TOGETHER);
            let whole_ns = whole_ns - others_ns;
            let clock_ns = prefill.clock.map_or(0.0, |clock| {
                let most_ns = (clock.share * whole_ns).min(whole_ns - bound_ns);
                division.take(Owner::Clock(clock.limit), most_ns, clock.basis())
            });
            if let Some(ns) = ns {
                division.take(Owner::Prefill, ns.min(before_ns) - others_ns - bound_ns - clock_ns, BEYOND);
            }
        }
    }
    // The remainder of a local TTFT is the host's if the GPU has timed the prefill.
    if let Some(ns) = prefill.ns.filter(|_| facts.is_local) {
        division.take(Owner::StepGaps, before_ns - ns, AROUND);
    }
    division.take_in_proportion(
        facts.operators.iter().map(|(operator, ns)| (Owner::Operator(*operator), *ns, WALL)),
    );
    division.close()
}

/// The requests of a measured span.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    /// The elapsed time.
    pub wall_ns: f64,
    pub output_tokens: u64,
    /// Sums over all requests: from start to first token, and between tokens.
    pub ttft_ns: f64,
    pub decode_ns: f64,
    /// The time without any request.
    pub idle_ns: f64,
}

const REQUESTS: Basis = Basis::Estimated("its share of the time of requests in progress");
const NO_REQUEST: Basis = Basis::Measured("time without any request");

/// Divides the elapsed time per output token. All requests in progress have the same share of a moment, so an owner has
/// the share that it has of the requests' time.
pub fn throughput(load: &Load, ttft: Option<&Account>, decode: Option<&Account>) -> Option<Account> {
    let requests_ns = load.ttft_ns + load.decode_ns;
    if load.wall_ns <= 0.0 || requests_ns <= 0.0 || load.output_tokens == 0 {
        return None;
    }
    let per_token = |ns: f64| ns / load.output_tokens as f64;
    let idle_ns = load.idle_ns.clamp(0.0, load.wall_ns);
    let mut division = Division::new(Figure::Throughput, per_token(load.wall_ns), load.output_tokens);
    division.take(Owner::NoRequests, per_token(idle_ns), NO_REQUEST);
    for (account, ns) in [(ttft, load.ttft_ns), (decode, load.decode_ns)] {
        let Some(account) = account.filter(|account| account.total_ns > 0.0) else { continue };
        let scale = per_token((load.wall_ns - idle_ns) * ns / requests_ns) / account.total_ns;
        for entry in account.entries.iter().filter(|entry| entry.owner != Owner::Unexplained) {
            division.take(entry.owner, entry.ns * scale, REQUESTS);
        }
    }
    Some(division.close())
}

/// Divides the recorded time of a program without known steps; `None` if nothing was recorded.
pub fn program(window: &KernelWindow) -> Option<Account> {
    if window.span_ns == 0 {
        return None;
    }
    let one = KernelWindow { steps: 1, ..window.clone() };
    let step = StepFacts::from_window(&one, None, None)?;
    let mut division = Division::new(Figure::Program, window.span_ns as f64, 1);
    division.take_in_proportion(step.parts.iter().map(|part| (part.owner, part.ns, KERNELS)));
    division.take(Owner::GpuIdle, step.launches.gaps_ns, GAPS);
    Some(division.close())
}

/// Divides the start of a server; `None` until it answers, or if its stages are not known.
pub fn cold_start(startup: &Startup) -> Option<Account> {
    let seconds = startup.seconds()?;
    let mut division = Division::new(Figure::ColdStart, seconds * 1e9, 1);
    for (stage, seconds) in startup.stages() {
        division.take(Owner::Stage(stage), seconds * 1e9, Basis::Measured("lines that the server prints"));
    }
    Some(division.close())
}
