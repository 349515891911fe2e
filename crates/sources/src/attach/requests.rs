//! The steps of a program as requests and tokens of a run, and the overhead of recording.

use std::time::Duration;

use super::followed::FollowedProcess;
use llmprof_analysis::steps::{Step, StepPhase, Tokens};
use llmprof_event::{Event, EventTx, RequestFinished, RequestStarted, Stamp, Token};

/// A longer gap between two steps is a pause: the next step begins another request.
const PAUSE: Duration = Duration::from_millis(250);
/// Maximum tokens of a request: a program may decode for hours without a pause.
const MAX_TOKENS: u32 = 65;
/// The share of time in bursts until enough steps were recorded, and its maximum afterwards.
const FIRST_DUTY: f64 = 0.1;
/// The share of time in bursts if no step between bursts shows the overhead of recording.
const UNKNOWN_DUTY: f64 = 0.04;
/// The maximum overhead of recording on an average step.
const MAX_COST: f64 = 0.01;
/// The number of steps after which the overhead of recording is known.
const MIN_STEPS: u32 = 32;

/// Turns steps into events. A step counts as one token, because its number of sequences is not known.
pub struct Requests {
    tx: EventTx,
    /// Otherwise only the overhead of recording is measured.
    reports: bool,
    next: u32,
    active: Option<Active>,
    /// Mean times of decode steps with and without recording.
    recorded: Mean,
    bare: Mean,
}

struct Active {
    request: u32,
    tokens: u32,
    end_ns: u64,
    part: Segment,
}

/// Parts of a program's time whose latencies are kept separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Segment {
    Recorded,
    Bare,
    /// A burst begins or ends in it, or its end is not known exactly: its latency does not count.
    Edge,
}

impl Segment {
    fn from_step(step: &Step) -> Segment {
        match (step.is_recorded(), step.is_cut) {
            (true, _) => Segment::Recorded,
            (false, false) => Segment::Bare,
            (false, true) => Segment::Edge,
        }
    }
}

/// An exponentially weighted mean.
#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    ns: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, ns: u64) {
        self.count = self.count.saturating_add(1);
        let weight = 1.0 / f64::from(self.count.min(1000));
        self.ns += (ns as f64 - self.ns) * weight;
    }
}

impl Requests {
    pub fn new(tx: EventTx, reports: bool) -> Requests {
        Requests { tx, reports, next: 0, active: None, recorded: Mean::default(), bare: Mean::default() }
    }

    /// Processes the steps of a process. The first process with steps leads: workers of one model have the same steps.
    pub(super) fn take(&mut self, leading: &mut Option<u32>, followed: &mut FollowedProcess) {
        let pid = followed.pid();
        let steps = followed.fold().steps();
        followed.ranks().steps(&steps);
        if steps.is_empty() || *leading.get_or_insert(pid) != pid {
            return;
        }
        steps.iter().for_each(|step| self.step(step));
    }

    fn step(&mut self, step: &Step) {
        let has_prompt = matches!(step.phase, StepPhase::Prefill | StepPhase::Mixed);
        // Work outside of steps; but the mark of steps between bursts indicates a step of any phase.
        if step.phase == StepPhase::Other && step.is_recorded() {
            return;
        }
        // A request ends when recording is switched, and before it is so long that it hides the variation of times.
        let pause = PAUSE.as_nanos() as u64;
        let goes_on = self.active.as_ref().is_some_and(|active| {
            step.start_ns.saturating_sub(active.end_ns) < pause
                && active.part == Segment::from_step(step)
                && active.part != Segment::Edge
                && active.tokens < MAX_TOKENS
        });
        // A step with prompts begins a request: its time does not count as decode, even if other sequences decode in
        // it.
        if has_prompt || !goes_on {
            self.finish();
            self.start(step, has_prompt);
        }
        let Some(active) = &mut self.active else { return };
        let (request, index) = (active.request, active.tokens);
        if index > 0 && step.phase == StepPhase::Decode {
            let gap = step.end_ns.saturating_sub(active.end_ns);
            match active.part {
                Segment::Recorded => self.recorded.add(gap),
                Segment::Bare => self.bare.add(gap),
                Segment::Edge => {}
            }
        }
        active.tokens += 1;
        active.end_ns = step.end_ns;
        // Between bursts only its end is known.
        let device_ns = step.is_recorded().then(|| step.end_ns.saturating_sub(step.start_ns));
        let token = Token { request, index, id: 0, device_ns, speculation: None };
        self.send(step.end_ns, Event::Token(token));
    }

    fn send(&self, t_ns: u64, event: Event) {
        if self.reports {
            self.tx.send_at(Stamp(t_ns), event);
        }
    }

    fn start(&mut self, step: &Step, has_prompt: bool) {
        let request = self.next;
        self.next += 1;
        let prompt_tokens = match step.tokens {
            Some(Tokens::Reported(tokens) | Tokens::Estimated(tokens)) if has_prompt => tokens,
            _ => 0,
        };
        let started = RequestStarted {
            request,
            warmup: false,
            batch: 1,
            prompt_tokens,
            output_tokens: 0,
            cooldown: false,
            joined: !has_prompt,
            images: 0,
        };
        self.send(step.start_ns, Event::RequestStarted(started));
        self.active =
            Some(Active { request, tokens: 0, end_ns: step.start_ns, part: Segment::from_step(step) });
    }

    /// Ends the active request.
    pub fn finish(&mut self) {
        if let Some(active) = self.active.take() {
            let finished = RequestFinished { request: active.request, complete: true, served: None };
            self.send(active.end_ns, Event::RequestFinished(finished));
        }
    }

    /// The share of time in which kernels may be recorded so that an average step takes 1 % longer.
    pub fn affordable_duty(&self) -> f64 {
        if self.recorded.count < MIN_STEPS {
            return FIRST_DUTY;
        }
        if self.bare.count < MIN_STEPS {
            return UNKNOWN_DUTY;
        }
        let cost = self.recorded.ns / self.bare.ns - 1.0;
        // In coarse steps, so that a small change of the estimate does not change the period.
        let affordable = (MAX_COST / cost.max(0.001)).clamp(0.01, FIRST_DUTY);
        [0.1, 0.05, 0.04, 0.025, 0.02, 0.0125].into_iter().find(|duty| *duty <= affordable).unwrap_or(0.01)
    }
}
