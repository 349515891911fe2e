//! Switches CUPTI on and off, marks what the engine does, and tells what CUPTI saw.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::{
    library::{Cupti, Refusal},
    mark::Mark,
    records::Record,
    steps::{Drawn, Steps},
};
use crate::{
    event::{Event, EventTx, KernelTrace, Phase, Stamp, TraceState},
    profile::listener::{Listener, Part},
};

/// How often CUPTI is asked for what it has.
const BETWEEN_LOOKS: Duration = Duration::from_millis(250);
const BETWEEN_WINDOWS: Duration = Duration::from_secs(1);
const BETWEEN_TIMELINES: Duration = Duration::from_secs(5);
/// Launches that are remembered until their kernels are told: some seconds of the fastest steps.
const MOST_LAUNCHES: usize = 1 << 13;

/// Records kernels while it is wanted. Listens to the engine, on the engine's thread; reads on a thread of its own.
pub struct Tracer {
    switches: Arc<Switches>,
    tx: EventTx,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Switches {
    /// Somebody wants kernels to be recorded.
    wanted: AtomicBool,
    /// They are.
    on: AtomicBool,
    over: AtomicBool,
    changed: (Mutex<()>, Condvar),
    /// The number of the next step, and the marks that the engine's thread has set and not yet taken back.
    step: AtomicU32,
    depth: AtomicU32,
    phase: Mutex<Phase>,
    graph: Mutex<Option<Vec<Part>>>,
    /// When steps began on the host, the newest last.
    launched: Mutex<VecDeque<(u32, Stamp)>>,
}

impl Tracer {
    /// Nothing happens before [`begin`](Self::begin). Kernels are recorded from then on where `wanted`, else when
    /// [`want`](Self::want) says so.
    pub fn new(tx: EventTx, wanted: bool) -> Tracer {
        let switches = Arc::new(Switches::default());
        switches.wanted.store(wanted, Ordering::Release);
        Tracer { switches, tx, thread: Mutex::new(None) }
    }

    /// To be called before the engine is made: CUPTI is on when this returns, where it is wanted and can be.
    pub fn begin(&self) {
        let mut reader = Reader::new(self.tx.clone(), Arc::clone(&self.switches));
        reader.switch();
        let thread = std::thread::Builder::new().name("llmprof-cupti".to_owned()).spawn(move || reader.run());
        // Without a thread there are no kernels, and nothing else is lost.
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = thread.ok();
    }

    pub fn wanted(&self) -> bool {
        self.switches.wanted.load(Ordering::Acquire)
    }

    pub fn want(&self, wanted: bool) {
        self.switches.wanted.store(wanted, Ordering::Release);
        self.switches.wake();
    }

    /// Tells what is left and stops. To be called while the engine is still there: names of kernels belong to its modules.
    pub fn finish(&self) {
        self.switches.over.store(true, Ordering::Release);
        self.switches.wake();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A reader that panicked has told so by itself.
            let _ = thread.join();
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Switches {
    fn wake(&self) {
        let _guard = self.changed.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.changed.1.notify_all();
    }

    fn launched(&self, step: u32, at: Stamp) {
        let mut launched = self.launched.lock().unwrap_or_else(PoisonError::into_inner);
        if launched.len() == MOST_LAUNCHES {
            launched.pop_front();
        }
        launched.push_back((step, at));
    }

    fn launch_of(&self, step: u32) -> Option<Stamp> {
        let launched = self.launched.lock().unwrap_or_else(PoisonError::into_inner);
        launched.iter().rev().find(|(known, _)| *known == step).map(|(_, at)| *at)
    }

    fn mark(&self, mark: Mark) {
        if let Ok(cupti) = Cupti::get() {
            cupti.mark(mark.encode());
            self.depth.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes back the last mark, also when recording has ended meanwhile.
    fn unmark(&self) {
        if self.depth.load(Ordering::Relaxed) > 0
            && let Ok(cupti) = Cupti::get()
        {
            cupti.unmark();
            self.depth.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Listener for Tracer {
    fn step_begins(&self, phase: Phase) {
        let switches = &self.switches;
        let step = switches.step.fetch_add(1, Ordering::Relaxed);
        if switches.on.load(Ordering::Acquire) {
            *switches.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
            switches.launched(step, self.tx.clock().now());
            switches.mark(Mark { phase, step, part: None });
        }
    }

    fn step_ends(&self) {
        self.switches.unmark();
    }

    fn begins(&self, part: Part) {
        let switches = &self.switches;
        // Inside of a marked step only.
        if switches.depth.load(Ordering::Relaxed) == 1 {
            let phase = *switches.phase.lock().unwrap_or_else(PoisonError::into_inner);
            let step = switches.step.load(Ordering::Relaxed).wrapping_sub(1);
            switches.mark(Mark { phase, step, part: Some(part) });
        }
    }

    fn ends(&self) {
        // The step's own mark stays until the step ends.
        if self.switches.depth.load(Ordering::Relaxed) > 1 {
            self.switches.unmark();
        }
    }

    fn captured(&self, nodes: &[Part]) {
        *self.switches.graph.lock().unwrap_or_else(PoisonError::into_inner) = Some(nodes.to_vec());
    }
}

/// The thread's side.
struct Reader {
    tx: EventTx,
    switches: Arc<Switches>,
    steps: Steps,
    cupti: Option<&'static Cupti>,
    window_at: Instant,
    timeline_at: Option<Instant>,
}

impl Reader {
    fn new(tx: EventTx, switches: Arc<Switches>) -> Reader {
        Reader {
            tx,
            switches,
            steps: Steps::default(),
            cupti: None,
            window_at: Instant::now(),
            timeline_at: None,
        }
    }

    fn run(mut self) {
        loop {
            let over = self.switches.over.load(Ordering::Acquire);
            self.switch();
            if self.cupti.is_some() {
                self.look(over);
            }
            if over {
                break;
            }
            let (lock, changed) = &self.switches.changed;
            let guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
            let switched = || self.switches.wanted.load(Ordering::Acquire) != self.cupti.is_some();
            // Asleep until somebody wants something; a refusal takes the wish back.
            if self.cupti.is_some() {
                drop(changed.wait_timeout(guard, BETWEEN_LOOKS));
            } else if !switched() && !self.switches.over.load(Ordering::Acquire) {
                drop(changed.wait(guard));
            }
        }
        if let Some(cupti) = self.cupti.take() {
            self.switches.on.store(false, Ordering::Release);
            cupti.stop();
        }
    }

    /// Does what is wanted, and says so.
    fn switch(&mut self) {
        match (self.switches.wanted.load(Ordering::Acquire), self.cupti) {
            (true, None) => match Cupti::get().and_then(|cupti| cupti.start().map(|()| cupti)) {
                Ok(cupti) => {
                    self.cupti = Some(cupti);
                    self.timeline_at = None;
                    self.switches.on.store(true, Ordering::Release);
                    self.tell(cupti.name(), TraceState::On);
                }
                Err(refusal) => self.refuse(&refusal),
            },
            (false, Some(cupti)) => {
                self.switches.on.store(false, Ordering::Release);
                self.look(true);
                cupti.stop();
                self.cupti = None;
                self.tell(cupti.name(), TraceState::Off);
            }
            _ => {}
        }
    }

    fn refuse(&self, refusal: &Refusal) {
        self.switches.wanted.store(false, Ordering::Release);
        let state = TraceState::Refused { reason: refusal.to_string(), remedy: refusal.remedy() };
        self.tell("CUPTI".to_owned(), state);
    }

    fn tell(&self, tool: String, state: TraceState) {
        self.tx.send(Event::KernelTrace(KernelTrace { tool, state }));
    }

    /// Reads what CUPTI has; tells of it when it is time, or at the `end`.
    fn look(&mut self, end: bool) {
        let Some(cupti) = self.cupti else { return };
        if let Some(nodes) = self.switches.graph.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.steps.graph(nodes);
        }
        if self.timeline_at.is_none_or(|at| at.elapsed() >= BETWEEN_TIMELINES) {
            self.steps.want_timeline();
        }
        cupti.flush(end);
        let steps = &mut self.steps;
        let dropped = cupti.drain(|record, name| match record {
            Record::Mark { correlation, id } => {
                if let Some(mark) = Mark::decode(id) {
                    steps.mark(correlation, mark);
                }
            }
            Record::Work(work) => steps.work(&work, name),
        });
        steps.dropped(dropped);
        steps.settle(end);
        if end || self.window_at.elapsed() >= BETWEEN_WINDOWS {
            self.window_at = Instant::now();
            for window in self.steps.windows() {
                self.tx.send(Event::Kernels(Box::new(window)));
            }
            let drawn = self.steps.timelines();
            // Both clocks at once: the GPU runs behind the host, so the time of a launch would be too early.
            let both_now = cupti.now_ns().map(|by_records| (by_records, self.tx.clock().now()));
            for Drawn { step, first_ns, mut timeline } in drawn {
                self.timeline_at = Some(Instant::now());
                timeline.at = both_now.map(|now| placed(first_ns, now, self.switches.launch_of(step)));
                self.tx.send(Event::StepTimeline(Box::new(timeline)));
            }
        }
    }
}

/// When a record of `ns` happened by the run's clock, if both clocks show `now`. Never before its launch: where it comes
/// out so, the clocks are that far apart.
fn placed(ns: u64, now: (u64, Stamp), launch: Option<Stamp>) -> Stamp {
    let (by_records, by_run) = now;
    let at = Stamp(by_run.0.saturating_sub(by_records.saturating_sub(ns)));
    at.max(launch.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{self, Clock};

    #[test]
    fn kernels_are_placed_after_their_launch() {
        let now = (1_000_000, Stamp(5_000));
        for (ns, launch, wanted) in [
            (999_000, None, 4_000),
            (999_000, Some(3_990), 4_000),
            (999_000, Some(4_010), 4_010),
            (1_000_007, Some(10), 5_000),
            (0, None, 0),
        ] {
            assert_eq!(placed(ns, now, launch.map(Stamp)), Stamp(wanted), "{ns}");
        }
    }

    /// Where CUPTI can't be had, the reason is told once for each wish, and the wish is taken back; where it can, that is told.
    #[test]
    fn a_wish_is_answered() {
        let (tx, mut rx) = event::channel(Clock::wall());
        let tracer = Tracer::new(tx, true);
        tracer.begin();
        tracer.step_begins(Phase::Decode);
        tracer.begins(Part { operator: crate::model::Operator::Qkv, layer: Some(0) });
        tracer.ends();
        tracer.step_ends();
        let refused = !tracer.wanted();
        tracer.want(true);
        tracer.finish();
        let mut told = Vec::new();
        while let Ok(envelope) = rx.try_recv() {
            told.push(envelope.event);
        }
        assert!((1..=2).contains(&told.len()), "{told:?}");
        for event in told {
            let Event::KernelTrace(KernelTrace { tool, state }) = event else { panic!("{event:?}") };
            assert!(tool.starts_with("CUPTI"), "{tool}");
            match state {
                TraceState::Refused { reason, remedy } => {
                    assert!(refused && !reason.is_empty() && !remedy.is_empty(), "{reason} {remedy}");
                }
                state => assert!(!refused && state == TraceState::On, "{state:?}"),
            }
        }
    }
}
