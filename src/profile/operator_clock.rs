//! Times operators on the engine's thread, and tells of them about once a second.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{
    event::{Event, EventTx, HeapGrowth, HostSpan, HostTimeline, OperatorTime, OperatorWindow, Phase, Stamp},
    model::Operator,
    profile::{
        heap,
        listener::{Listener, Part},
    },
};

const BETWEEN_WINDOWS: Duration = Duration::from_secs(1);
const BETWEEN_TIMELINES: Duration = Duration::from_secs(5);
/// Parts of one timeline.
const MOST_SPANS: usize = 20_000;
/// From the beginning of a step that is timed to that of the next, for each of its parts. A part takes 0.15 µs, so timing takes no more than
/// 0.5 % of the thread's time, however short steps are.
const REST_FOR_A_PART: Duration = Duration::from_micros(30);
const PHASES: [Phase; 2] = [Phase::Prefill, Phase::Decode];

/// A [`Listener`] with a watch. For a part it looks twice at the clock, adds to a few numbers and allocates nothing. Where
/// decode steps are so short that this would matter, it times only some of them.
pub struct OperatorClock {
    tx: EventTx,
    /// Requests that come before measuring begins; each begins with one prefill.
    warmup: u32,
    /// The step under way is timed. Set and read by the engine's thread alone.
    timing: AtomicBool,
    /// Locked by the engine's thread alone, so there is nobody to wait for.
    at_work: Mutex<AtWork>,
}

#[derive(Default)]
struct AtWork {
    requests: u32,
    step: Option<OpenStep>,
    part: Option<OpenPart>,
    sums: [Sums; PHASES.len()],
    told_at: Stamp,
    /// Until then no decode step is timed.
    rests_until: Stamp,
    drawn_at: [Option<Stamp>; PHASES.len()],
    /// Of the step under way, where it is drawn.
    spans: Vec<HostSpan>,
}

struct OpenStep {
    phase: usize,
    from: Stamp,
    parts: u64,
    drawn: bool,
    heap: Option<heap::Mark>,
}

struct OpenPart {
    part: Part,
    from: Stamp,
    heap: Option<heap::Mark>,
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

fn with_growth(known: Option<HeapGrowth>, mark: Option<heap::Mark>) -> Option<HeapGrowth> {
    match (known, mark.map(heap::Mark::growth)) {
        (Some(known), Some(more)) => Some(known.and(more)),
        (known, more) => known.or(more),
    }
}

impl Sums {
    fn part(&mut self, operator: Operator, ns: u64, heap: Option<heap::Mark>) {
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
        time.heap = with_growth(time.heap, heap);
    }

    fn told(self, phase: Phase, warmup: bool) -> OperatorWindow {
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
    /// The first `warmup` requests are told apart.
    pub fn new(tx: EventTx, warmup: u32) -> OperatorClock {
        let at_work = AtWork { told_at: tx.clock().now(), ..AtWork::default() };
        OperatorClock { tx, warmup, timing: AtomicBool::new(false), at_work: Mutex::new(at_work) }
    }

    /// Tells what is left. To be called when the engine has done its last step.
    pub fn finish(&self) {
        self.tell(&mut self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, AtWork> {
        self.at_work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, at_work: &mut AtWork) {
        let warmup = at_work.requests <= self.warmup;
        for (phase, sums) in PHASES.into_iter().zip(std::mem::take(&mut at_work.sums)) {
            if sums.steps > 0 {
                self.tx.send(Event::Operators(Box::new(sums.told(phase, warmup))));
            }
        }
        at_work.told_at = self.tx.clock().now();
    }
}

impl Listener for OperatorClock {
    fn step_begins(&self, phase: Phase) {
        let Some(phase) = PHASES.iter().position(|known| *known == phase) else { return };
        let at_work = &mut *self.lock();
        if PHASES[phase] == Phase::Prefill {
            if at_work.requests == self.warmup {
                // Measuring begins: what came before is a window of its own.
                self.tell(at_work);
            }
            at_work.requests = at_work.requests.saturating_add(1);
        }
        if PHASES[phase] == Phase::Decode && self.tx.clock().now() < at_work.rests_until {
            return;
        }
        self.timing.store(true, Ordering::Relaxed);
        at_work.spans.clear();
        let heap = heap::mark();
        let from = self.tx.clock().now();
        let due = |drawn: Stamp| from.since(drawn) >= BETWEEN_TIMELINES;
        let drawn = at_work.requests > self.warmup && at_work.drawn_at[phase].is_none_or(due);
        at_work.step = Some(OpenStep { phase, from, parts: 0, drawn, heap });
    }

    fn step_ends(&self) {
        if !self.timing.swap(false, Ordering::Relaxed) {
            return;
        }
        let now = self.tx.clock().now();
        let at_work = &mut *self.lock();
        let Some(step) = at_work.step.take() else { return };
        at_work.part = None;
        at_work.rests_until = step.from + REST_FOR_A_PART * u32::try_from(step.parts).unwrap_or(u32::MAX);
        let ns = now.0.saturating_sub(step.from.0);
        let sums = &mut at_work.sums[step.phase];
        sums.steps += 1;
        sums.host_ns += ns;
        sums.heap = with_growth(sums.heap, step.heap);
        if step.parts == 0 {
            sums.untold_steps += 1;
            sums.untold_ns += ns;
        } else if step.drawn {
            at_work.drawn_at[step.phase] = Some(now);
            let spans = at_work.spans.clone();
            let timeline = HostTimeline { phase: PHASES[step.phase], at: step.from, ns, spans };
            self.tx.send(Event::HostTimeline(Box::new(timeline)));
        }
        if now.since(at_work.told_at) >= BETWEEN_WINDOWS {
            self.tell(at_work);
        }
    }

    fn begins(&self, part: Part) {
        if !self.timing.load(Ordering::Relaxed) {
            return;
        }
        let at_work = &mut *self.lock();
        let heap = heap::mark();
        at_work.part = Some(OpenPart { part, from: self.tx.clock().now(), heap });
    }

    fn ends(&self) {
        if !self.timing.load(Ordering::Relaxed) {
            return;
        }
        let now = self.tx.clock().now();
        let at_work = &mut *self.lock();
        // What is no part of a step is nobody's time.
        let (Some(OpenPart { part, from, heap }), Some(step)) = (at_work.part.take(), &mut at_work.step)
        else {
            return;
        };
        let ns = now.0.saturating_sub(from.0);
        step.parts += 1;
        at_work.sums[step.phase].part(part.operator, ns, heap);
        if step.drawn && at_work.spans.len() < MOST_SPANS {
            let start_ns = from.0.saturating_sub(step.from.0);
            at_work.spans.push(HostSpan { operator: part.operator, layer: part.layer, start_ns, ns });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{self, Clock, EventRx};

    /// A clock whose time is moved by hand.
    fn clock(warmup: u32) -> (OperatorClock, Clock, EventRx) {
        let (tx, rx) = event::channel(Clock::virtual_clock());
        let time = tx.clock().clone();
        (OperatorClock::new(tx, warmup), time, rx)
    }

    fn step(clock: &OperatorClock, time: &Clock, phase: Phase, parts: &[(Operator, u64)], rest_ns: u64) {
        clock.step_begins(phase);
        for (layer, (operator, ns)) in parts.iter().enumerate() {
            clock.begins(Part { operator: *operator, layer: Some(layer as u16) });
            time.advance(Duration::from_nanos(*ns));
            clock.ends();
        }
        time.advance(Duration::from_nanos(rest_ns));
        clock.step_ends();
    }

    /// Long enough that the next step is timed whatever came before.
    fn rest(time: &Clock) {
        time.advance(Duration::from_millis(1));
    }

    fn told(rx: &mut EventRx) -> (Vec<OperatorWindow>, Vec<HostTimeline>) {
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
    fn parts_are_added_up_within_their_steps() {
        let (clock, time, mut rx) = clock(0);
        time.advance(Duration::from_nanos(7));
        step(&clock, &time, Phase::Prefill, &[(Operator::Qkv, 100), (Operator::Qkv, 300)], 50);
        rest(&time);
        step(&clock, &time, Phase::Decode, &[(Operator::Qkv, 10), (Operator::Attention, 20)], 5);
        rest(&time);
        step(&clock, &time, Phase::Decode, &[(Operator::Qkv, 14), (Operator::Attention, 30)], 6);
        clock.finish();
        let (windows, timelines) = told(&mut rx);
        let [prefill, decode] = &windows[..] else { panic!("{windows:?}") };
        assert_eq!((prefill.phase, prefill.steps, prefill.host_ns), (Phase::Prefill, 1, 450));
        let OperatorTime { calls, ns, min_ns, max_ns, .. } = prefill.operators[0];
        assert_eq!((calls, ns, min_ns, max_ns), (2, 400, 100, 300));
        assert_eq!((decode.steps, decode.host_ns, decode.unattributed_steps), (2, 85, 0));
        let sums: Vec<(Operator, u64)> =
            decode.operators.iter().map(|time| (time.operator, time.ns)).collect();
        assert_eq!(sums, [(Operator::Qkv, 24), (Operator::Attention, 50)]);
        // The first step of each phase is drawn, and no other for a while.
        assert_eq!(timelines.len(), 2);
        assert_eq!((timelines[0].at, timelines[0].ns), (Stamp(7), 450));
        let spans: Vec<(u64, u64)> = timelines[0].spans.iter().map(|span| (span.start_ns, span.ns)).collect();
        assert_eq!(spans, [(0, 100), (100, 300)]);
        clock.finish();
        assert!(told(&mut rx).0.is_empty(), "nothing is told twice");
    }

    #[test]
    fn warm_up_is_a_window_of_its_own() {
        let (clock, time, mut rx) = clock(2);
        for _ in 0..3 {
            step(&clock, &time, Phase::Prefill, &[(Operator::Qkv, 100)], 0);
            rest(&time);
            step(&clock, &time, Phase::Decode, &[(Operator::Qkv, 10)], 0);
        }
        clock.finish();
        let (windows, timelines) = told(&mut rx);
        let steps: Vec<(bool, Phase, u64)> = windows.iter().map(|w| (w.warmup, w.phase, w.steps)).collect();
        let of = |warmup, n| [(warmup, Phase::Prefill, n), (warmup, Phase::Decode, n)];
        assert_eq!(steps, [of(true, 2), of(false, 1)].concat());
        assert_eq!(timelines.len(), 2, "of measured steps");
    }

    #[test]
    fn a_step_that_tells_nothing_is_counted_as_such() {
        let (clock, time, mut rx) = clock(0);
        step(&clock, &time, Phase::Prefill, &[(Operator::Qkv, 100)], 0);
        rest(&time);
        for _ in 0..3 {
            step(&clock, &time, Phase::Decode, &[], 8);
        }
        // Parts without a step, ends without a beginning: nobody's time.
        clock.begins(Part { operator: Operator::Down, layer: None });
        clock.ends();
        clock.ends();
        clock.step_ends();
        clock.finish();
        let (windows, timelines) = told(&mut rx);
        let decode = &windows[1];
        assert_eq!(
            (decode.steps, decode.unattributed_steps, decode.unattributed_ns, decode.host_ns),
            (3, 3, 24, 24)
        );
        assert!(decode.operators.is_empty());
        assert_eq!(timelines.len(), 1);
    }

    #[test]
    fn of_short_steps_only_some_are_timed() {
        let parts = [(Operator::Qkv, 1_000); 10];
        for (step_us, wanted) in [(20, 1), (100, 2), (400, 4), (2_000, 4)] {
            let (clock, time, mut rx) = clock(0);
            for _ in 0..4 {
                step(&clock, &time, Phase::Decode, &parts, step_us * 1_000 - 10_000);
            }
            clock.finish();
            let (windows, _) = told(&mut rx);
            assert_eq!(windows[0].steps, wanted, "of four steps of {step_us} µs");
            let calls: u64 = windows[0].operators.iter().map(|time| time.calls).sum();
            assert_eq!(calls, 10 * wanted, "those that are timed are timed whole");
        }
    }

    #[test]
    fn windows_come_once_a_second_and_timelines_more_rarely() {
        let (clock, time, mut rx) = clock(0);
        step(&clock, &time, Phase::Prefill, &[(Operator::Qkv, 100)], 0);
        for _ in 0..100 {
            step(&clock, &time, Phase::Decode, &[(Operator::Qkv, 100_000_000)], 1);
        }
        let (windows, timelines) = told(&mut rx);
        assert!((9..=10).contains(&windows.iter().filter(|w| w.phase == Phase::Decode).count()));
        assert!((2..=3).contains(&timelines.iter().filter(|t| t.phase == Phase::Decode).count()));
    }
}
