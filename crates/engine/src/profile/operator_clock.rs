//! Times operators on the engine's thread, and reports them about once per second.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use llm_cost::Operator;
use llmprof_event::{
    Event, EventTx, HeapGrowth, HostSpan, HostTimeline, OperatorTime, OperatorWindow, Phase, Stamp,
};
use llmprof_workload::{
    heap,
    listener::{Listener, OperatorInstance, Span},
};

const WINDOW: Duration = Duration::from_secs(1);
const TIMELINE_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum operators of one timeline.
const MAX_SPANS: usize = 20_000;
/// The minimum time between the starts of two timed decode steps, per operator of the first. Timing an operator takes
/// 0.15 µs, so the overhead is at most 0.5 % of the thread's time, however short the steps are.
const INTERVAL_PER_OPERATOR: Duration = Duration::from_micros(30);
const PHASES: [Phase; 2] = [Phase::Prefill, Phase::Decode];

/// A [`Listener`] that times operators. For each operator it reads the clock twice, adds to a few counters and
/// allocates nothing. If decode steps are so short that this would matter, it times only some of them.
pub struct OperatorClock {
    tx: EventTx,
    /// The number of warm-up requests; each begins with one prefill.
    warmup: u32,
    /// Whether the current step is timed. Accessed only by the engine's thread.
    timing: AtomicBool,
    /// Locked only by the engine's thread, so the lock is never contended.
    timings: Mutex<Timings>,
}

#[derive(Default)]
struct Timings {
    requests: u32,
    step: Option<OpenStep>,
    operator: Option<OpenOperator>,
    sums: [Sums; PHASES.len()],
    reported_at: Stamp,
    /// Decode steps are not timed before this.
    next_step_at: Stamp,
    timeline_at: [Option<Stamp>; PHASES.len()],
    /// The operators of the current step, if it becomes a timeline.
    spans: Vec<HostSpan>,
}

struct OpenStep {
    phase: usize,
    start: Stamp,
    operators: u64,
    is_timeline: bool,
    heap: Option<heap::Checkpoint>,
}

struct OpenOperator {
    instance: OperatorInstance,
    start: Stamp,
    heap: Option<heap::Checkpoint>,
}

/// The steps of a phase since the last window.
#[derive(Default)]
struct Sums {
    steps: u64,
    host_ns: u64,
    untold_steps: u64,
    untold_ns: u64,
    heap: Option<HeapGrowth>,
    operators: [Option<OperatorTime>; Operator::ALL.len()],
}

fn add_growth(sum: Option<HeapGrowth>, checkpoint: Option<heap::Checkpoint>) -> Option<HeapGrowth> {
    match (sum, checkpoint.map(heap::Checkpoint::growth)) {
        (Some(sum), Some(growth)) => Some(sum.and(growth)),
        (sum, growth) => sum.or(growth),
    }
}

impl Sums {
    fn add(&mut self, operator: Operator, ns: u64, heap: Option<heap::Checkpoint>) {
        let time = self.operators[operator as usize].get_or_insert(OperatorTime {
            operator,
            calls: 0,
            ns: 0,
            min_ns: u64::MAX,
            max_ns: 0,
            heap: None,
        });
        time.calls += 1;
        time.ns += ns;
        time.min_ns = time.min_ns.min(ns);
        time.max_ns = time.max_ns.max(ns);
        time.heap = add_growth(time.heap, heap);
    }

    fn into_window(self, phase: Phase, warmup: bool) -> OperatorWindow {
        OperatorWindow {
            phase,
            warmup,
            steps: self.steps,
            host_ns: self.host_ns,
            unattributed_steps: self.untold_steps,
            unattributed_ns: self.untold_ns,
            heap: self.heap,
            operators: self.operators.into_iter().flatten().collect(),
        }
    }
}

impl OperatorClock {
    /// The first `warmup` requests are reported separately.
    pub fn new(tx: EventTx, warmup: u32) -> OperatorClock {
        let timings = Timings { reported_at: tx.clock().now(), ..Timings::default() };
        OperatorClock { tx, warmup, timing: AtomicBool::new(false), timings: Mutex::new(timings) }
    }

    /// Reports the remaining steps. Call it after the engine's last step.
    pub fn finish(&self) {
        self.report(&mut self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, Timings> {
        self.timings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, timings: &mut Timings) {
        let warmup = timings.requests <= self.warmup;
        for (phase, sums) in PHASES.into_iter().zip(std::mem::take(&mut timings.sums)) {
            if sums.steps > 0 {
                self.tx.send(Event::Operators(Box::new(sums.into_window(phase, warmup))));
            }
        }
        timings.reported_at = self.tx.clock().now();
    }

    fn begin_step(&self, phase: Phase) {
        let Some(phase) = PHASES.iter().position(|known| *known == phase) else { return };
        let timings = &mut *self.lock();
        if PHASES[phase] == Phase::Prefill {
            if timings.requests == self.warmup {
                // The first measured request: warm-up has a separate window.
                self.report(timings);
            }
            timings.requests = timings.requests.saturating_add(1);
        }
        if PHASES[phase] == Phase::Decode && self.tx.clock().now() < timings.next_step_at {
            return;
        }
        self.timing.store(true, Ordering::Relaxed);
        timings.spans.clear();
        let heap = heap::checkpoint();
        let start = self.tx.clock().now();
        let due = |last: Stamp| start.since(last) >= TIMELINE_INTERVAL;
        let is_timeline = timings.requests > self.warmup && timings.timeline_at[phase].is_none_or(due);
        timings.step = Some(OpenStep { phase, start, operators: 0, is_timeline, heap });
    }

    fn end_step(&self) {
        if !self.timing.swap(false, Ordering::Relaxed) {
            return;
        }
        let now = self.tx.clock().now();
        let timings = &mut *self.lock();
        let Some(step) = timings.step.take() else { return };
        timings.operator = None;
        let operators = u32::try_from(step.operators).unwrap_or(u32::MAX);
        timings.next_step_at = step.start + INTERVAL_PER_OPERATOR * operators;
        let ns = now.0.saturating_sub(step.start.0);
        let sums = &mut timings.sums[step.phase];
        sums.steps += 1;
        sums.host_ns += ns;
        sums.heap = add_growth(sums.heap, step.heap);
        if step.operators == 0 {
            sums.untold_steps += 1;
            sums.untold_ns += ns;
        } else if step.is_timeline {
            timings.timeline_at[step.phase] = Some(now);
            let spans = timings.spans.clone();
            let timeline = HostTimeline { phase: PHASES[step.phase], at: step.start, ns, spans };
            self.tx.send(Event::HostTimeline(Box::new(timeline)));
        }
        if now.since(timings.reported_at) >= WINDOW {
            self.report(timings);
        }
    }

    fn begin_operator(&self, instance: OperatorInstance) {
        if !self.timing.load(Ordering::Relaxed) {
            return;
        }
        let timings = &mut *self.lock();
        let heap = heap::checkpoint();
        timings.operator = Some(OpenOperator { instance, start: self.tx.clock().now(), heap });
    }

    fn end_operator(&self) {
        if !self.timing.load(Ordering::Relaxed) {
            return;
        }
        let now = self.tx.clock().now();
        let timings = &mut *self.lock();
        // Operators outside a step are not counted.
        let (Some(OpenOperator { instance, start, heap }), Some(step)) =
            (timings.operator.take(), &mut timings.step)
        else {
            return;
        };
        let ns = now.0.saturating_sub(start.0);
        step.operators += 1;
        timings.sums[step.phase].add(instance.operator, ns, heap);
        if step.is_timeline && timings.spans.len() < MAX_SPANS {
            let start_ns = start.0.saturating_sub(step.start.0);
            let OperatorInstance { operator, layer } = instance;
            timings.spans.push(HostSpan { operator, layer, start_ns, ns });
        }
    }
}

impl Listener for OperatorClock {
    fn begins(&self, span: Span) {
        match span {
            Span::Operator(instance) => self.begin_operator(instance),
            Span::Step(phase) => self.begin_step(phase),
            _ => {}
        }
    }

    fn ends(&self, span: Span) {
        match span {
            Span::Operator(_) => self.end_operator(),
            Span::Step(_) => self.end_step(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_event::{self, Clock, EventRx};

    /// A clock with virtual time.
    fn clock(warmup: u32) -> (OperatorClock, Clock, EventRx) {
        let (tx, rx) = llmprof_event::channel(Clock::virtual_clock());
        let time = tx.clock().clone();
        (OperatorClock::new(tx, warmup), time, rx)
    }

    fn step(clock: &OperatorClock, time: &Clock, phase: Phase, operators: &[(Operator, u64)], rest_ns: u64) {
        clock.begins(Span::Step(phase));
        for (layer, (operator, ns)) in operators.iter().enumerate() {
            let span = Span::Operator(OperatorInstance { operator: *operator, layer: Some(layer as u16) });
            clock.begins(span);
            time.advance(Duration::from_nanos(*ns));
            clock.ends(span);
        }
        time.advance(Duration::from_nanos(rest_ns));
        clock.ends(Span::Step(phase));
    }

    /// Long enough that the next step is timed.
    fn rest(time: &Clock) {
        time.advance(Duration::from_millis(1));
    }

    fn reported(rx: &mut EventRx) -> (Vec<OperatorWindow>, Vec<HostTimeline>) {
        let (mut windows, mut timelines) = (Vec::new(), Vec::new());
        while let Ok(envelope) = rx.try_recv() {
            match envelope.event {
                Event::Operators(window) => windows.push(*window),
                Event::HostTimeline(timeline) => timelines.push(*timeline),
                other => panic!("{other:?}"),
            }
        }
        (windows, timelines)
    }

    #[test]
    fn operators_are_summed_within_their_steps() {
        let (clock, time, mut rx) = clock(0);
        time.advance(Duration::from_nanos(7));
        step(&clock, &time, Phase::Prefill, &[(Operator::Qkv, 100), (Operator::Qkv, 300)], 50);
        rest(&time);
        step(&clock, &time, Phase::Decode, &[(Operator::Qkv, 10), (Operator::Attention, 20)], 5);
        rest(&time);
        step(&clock, &time, Phase::Decode, &[(Operator::Qkv, 14), (Operator::Attention, 30)], 6);
        clock.finish();
        let (windows, timelines) = reported(&mut rx);
        let [prefill, decode] = &windows[..] else { panic!("{windows:?}") };
        assert_eq!((prefill.phase, prefill.steps, prefill.host_ns), (Phase::Prefill, 1, 450));
        let OperatorTime { calls, ns, min_ns, max_ns, .. } = prefill.operators[0];
        assert_eq!((calls, ns, min_ns, max_ns), (2, 400, 100, 300));
        assert_eq!((decode.steps, decode.host_ns, decode.unattributed_steps), (2, 85, 0));
        let sums: Vec<(Operator, u64)> =
            decode.operators.iter().map(|time| (time.operator, time.ns)).collect();
        assert_eq!(sums, [(Operator::Qkv, 24), (Operator::Attention, 50)]);
        // The first step of each phase becomes a timeline, and no other for a while.
        assert_eq!(timelines.len(), 2);
        assert_eq!((timelines[0].at, timelines[0].ns), (Stamp(7), 450));
        let spans: Vec<(u64, u64)> = timelines[0].spans.iter().map(|span| (span.start_ns, span.ns)).collect();
        assert_eq!(spans, [(0, 100), (100, 300)]);
        clock.finish();
        assert!(reported(&mut rx).0.is_empty(), "nothing is reported twice");
    }

    #[test]
    fn warm_up_has_a_separate_window() {
        let (clock, time, mut rx) = clock(2);
        for _ in 0..3 {
            step(&clock, &time, Phase::Prefill, &[(Operator::Qkv, 100)], 0);
            rest(&time);
            step(&clock, &time, Phase::Decode, &[(Operator::Qkv, 10)], 0);
        }
        clock.finish();
        let (windows, timelines) = reported(&mut rx);
        let steps: Vec<(bool, Phase, u64)> = windows.iter().map(|w| (w.warmup, w.phase, w.steps)).collect();
        let of = |warmup, n| [(warmup, Phase::Prefill, n), (warmup, Phase::Decode, n)];
        assert_eq!(steps, [of(true, 2), of(false, 1)].concat());
        assert_eq!(timelines.len(), 2, "warm-up steps are no timelines");
    }

    #[test]
    fn a_step_without_operators_is_counted_as_such() {
        let (clock, time, mut rx) = clock(0);
        step(&clock, &time, Phase::Prefill, &[(Operator::Qkv, 100)], 0);
        rest(&time);
        for _ in 0..3 {
            step(&clock, &time, Phase::Decode, &[], 8);
        }
        // Operators without a step and ends without a beginning are not counted.
        let operator = Span::Operator(OperatorInstance { operator: Operator::Down, layer: None });
        clock.begins(operator);
        clock.ends(operator);
        clock.ends(operator);
        clock.ends(Span::Step(Phase::Decode));
        clock.finish();
        let (windows, timelines) = reported(&mut rx);
        let decode = &windows[1];
        assert_eq!(
            (decode.steps, decode.unattributed_steps, decode.unattributed_ns, decode.host_ns),
            (3, 3, 24, 24)
        );
        assert!(decode.operators.is_empty());
        assert_eq!(timelines.len(), 1);
    }

    #[test]
    fn only_some_of_many_short_steps_are_timed() {
        let operators = [(Operator::Qkv, 1_000); 10];
        for (step_us, wanted) in [(20, 1), (100, 2), (400, 4), (2_000, 4)] {
            let (clock, time, mut rx) = clock(0);
            for _ in 0..4 {
                step(&clock, &time, Phase::Decode, &operators, step_us * 1_000 - 10_000);
            }
            clock.finish();
            let (windows, _) = reported(&mut rx);
            assert_eq!(windows[0].steps, wanted, "of four steps of {step_us} µs");
            let calls: u64 = windows[0].operators.iter().map(|time| time.calls).sum();
            assert_eq!(calls, 10 * wanted, "all operators of a timed step are timed");
        }
    }

    #[test]
    fn windows_are_reported_once_per_second_and_timelines_every_five_seconds() {
        let (clock, time, mut rx) = clock(0);
        step(&clock, &time, Phase::Prefill, &[(Operator::Qkv, 100)], 0);
        for _ in 0..100 {
            step(&clock, &time, Phase::Decode, &[(Operator::Qkv, 100_000_000)], 1);
        }
        let (windows, timelines) = reported(&mut rx);
        assert!((9..=10).contains(&windows.iter().filter(|w| w.phase == Phase::Decode).count()));
        assert!((2..=3).contains(&timelines.iter().filter(|t| t.phase == Phase::Decode).count()));
    }
}
