//! Switches CUPTI on and off, tags the engine's launches, and reports what CUPTI records.

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
    external_id::ExternalId,
    library::{Cupti, Refusal},
    records::Record,
    steps::{RecordedStep, Steps},
};
use llmprof_event::{Event, EventTx, KernelTrace, Phase, Stamp, TraceState};
use llmprof_workload::listener::{Listener, OperatorInstance, Span};

/// The interval at which CUPTI's buffers are read.
const READ_INTERVAL: Duration = Duration::from_millis(250);
const WINDOW: Duration = Duration::from_secs(1);
const TIMELINE_INTERVAL: Duration = Duration::from_secs(5);
/// Launches that are remembered until their kernels are reported: a few seconds of the fastest steps.
const MAX_LAUNCHES: usize = 1 << 13;

/// Records kernels while that is requested. Called on the engine's thread; reads on a separate thread.
pub struct Tracer {
    shared: Arc<Shared>,
    tx: EventTx,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Shared by the engine's thread, the reader thread and the thread that switches recording.
#[derive(Default)]
struct Shared {
    requested: AtomicBool,
    recording: AtomicBool,
    /// Whether recording has stopped while CUPTI is still in the process. Only the engine's thread may remove CUPTI.
    idle: AtomicBool,
    /// Held while CUPTI is added to the process or removed from it.
    attaching: Mutex<()>,
    finished: AtomicBool,
    changed: (Mutex<()>, Condvar),
    /// The number of the next step.
    step: AtomicU32,
    /// External ids that the engine's thread has pushed and not yet popped.
    depth: AtomicU32,
    phase: Mutex<Phase>,
    graphs: Mutex<Vec<Vec<OperatorInstance>>>,
    /// The number of captured graphs.
    known_graphs: AtomicU32,
    /// When steps began on the host, the newest last.
    launches: Mutex<VecDeque<(u32, Stamp)>>,
}

impl Tracer {
    /// Recording starts with [`begin`](Self::begin) if it is `requested`, otherwise with [`request`](Self::request).
    pub fn new(tx: EventTx, requested: bool) -> Tracer {
        let shared = Arc::new(Shared::default());
        shared.requested.store(requested, Ordering::Release);
        Tracer { shared, tx, thread: Mutex::new(None) }
    }

    /// Call it before the engine is created: if recording is requested and possible, it has started when this returns.
    pub fn begin(&self) {
        let mut reader = Reader::new(self.tx.clone(), Arc::clone(&self.shared));
        reader.switch();
        let thread = std::thread::Builder::new().name("llmprof-cupti".to_owned()).spawn(move || reader.run());
        // Without a thread no kernels are recorded; the run continues.
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = thread.ok();
    }

    pub fn is_requested(&self) -> bool {
        self.shared.requested.load(Ordering::Acquire)
    }

    pub fn request(&self, requested: bool) {
        self.shared.requested.store(requested, Ordering::Release);
        self.shared.wake();
    }

    /// Reports the remaining records and stops. Call it before the engine is dropped: names of kernels belong to its
    /// modules.
    pub fn finish(&self) {
        self.shared.finished.store(true, Ordering::Release);
        self.shared.wake();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic of the reader is reported by the panic hook.
            let _ = thread.join();
        }
    }

    fn begin_step(&self, phase: Phase) {
        let shared = &self.shared;
        let step = shared.step.fetch_add(1, Ordering::Relaxed);
        // If CUPTI is removed from a process with several graphs, the next launch fails.
        if shared.idle.load(Ordering::Relaxed)
            && shared.known_graphs.load(Ordering::Relaxed) < 2
            && let Some(tool) = shared.detach()
        {
            self.tx.send(Event::KernelTrace(KernelTrace { tool, state: TraceState::Off }));
        }
        if shared.recording.load(Ordering::Acquire) {
            *shared.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
            shared.add_launch(step, self.tx.clock().now());
            shared.push_id(ExternalId { phase, step, operator: None });
        }
    }

    /// The draft's launches belong to the next step, as one operator.
    fn begin_draft(&self) {
        let shared = &self.shared;
        if shared.recording.load(Ordering::Acquire) {
            let operator = Some(OperatorInstance { operator: llm_cost::Operator::Draft, layer: None });
            let step = shared.step.load(Ordering::Relaxed);
            shared.push_id(ExternalId { phase: Phase::Decode, step, operator });
        }
    }

    fn begin_operator(&self, operator: OperatorInstance) {
        let shared = &self.shared;
        // Only inside a step that has an id.
        if shared.depth.load(Ordering::Relaxed) == 1 {
            let phase = *shared.phase.lock().unwrap_or_else(PoisonError::into_inner);
            let step = shared.step.load(Ordering::Relaxed).wrapping_sub(1);
            shared.push_id(ExternalId { phase, step, operator: Some(operator) });
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Shared {
    fn wake(&self) {
        let _guard = self.changed.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.changed.1.notify_all();
    }

    /// Removes CUPTI unless it has been started again; returns its name if it was removed. Called between two steps.
    fn detach(&self) -> Option<String> {
        let _guard = self.attaching.lock().unwrap_or_else(PoisonError::into_inner);
        let cupti = self.idle.swap(false, Ordering::Relaxed).then(Cupti::get)?.ok()?;
        cupti.detach();
        Some(cupti.name())
    }

    fn start(&self) -> Result<&'static Cupti, Refusal> {
        let _guard = self.attaching.lock().unwrap_or_else(PoisonError::into_inner);
        let cupti = Cupti::get()?;
        cupti.start()?;
        self.idle.store(false, Ordering::Relaxed);
        Ok(cupti)
    }

    fn add_launch(&self, step: u32, at: Stamp) {
        let mut launches = self.launches.lock().unwrap_or_else(PoisonError::into_inner);
        if launches.len() == MAX_LAUNCHES {
            launches.pop_front();
        }
        launches.push_back((step, at));
    }

    fn launch_of(&self, step: u32) -> Option<Stamp> {
        let launches = self.launches.lock().unwrap_or_else(PoisonError::into_inner);
        launches.iter().rev().find(|(known, _)| *known == step).map(|(_, at)| *at)
    }

    fn push_id(&self, id: ExternalId) {
        if let Ok(cupti) = Cupti::get() {
            cupti.push_id(id.encode());
            self.depth.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Pops the last external id, also when recording has stopped in the meantime.
    fn pop_id(&self) {
        if self.depth.load(Ordering::Relaxed) > 0
            && let Ok(cupti) = Cupti::get()
        {
            cupti.pop_id();
            self.depth.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Listener for Tracer {
    fn begins(&self, span: Span) {
        match span {
            Span::Step(phase) => self.begin_step(phase),
            Span::Draft => self.begin_draft(),
            Span::Operator(instance) => self.begin_operator(instance),
            _ => {}
        }
    }

    fn ends(&self, span: Span) {
        match span {
            Span::Step(_) | Span::Draft => self.shared.pop_id(),
            // The step's own id stays until the step ends.
            Span::Operator(_) if self.shared.depth.load(Ordering::Relaxed) > 1 => self.shared.pop_id(),
            _ => {}
        }
    }

    fn graph_captured(&self, nodes: &[OperatorInstance]) {
        self.shared.known_graphs.fetch_add(1, Ordering::Relaxed);
        self.shared.graphs.lock().unwrap_or_else(PoisonError::into_inner).push(nodes.to_vec());
    }
}

/// The reader thread.
struct Reader {
    tx: EventTx,
    shared: Arc<Shared>,
    steps: Steps,
    cupti: Option<&'static Cupti>,
    window_at: Instant,
    timeline_at: Option<Instant>,
}

impl Reader {
    fn new(tx: EventTx, shared: Arc<Shared>) -> Reader {
        Reader {
            tx,
            shared,
            steps: Steps::default(),
            cupti: None,
            window_at: Instant::now(),
            timeline_at: None,
        }
    }

    fn run(mut self) {
        loop {
            let finished = self.shared.finished.load(Ordering::Acquire);
            self.switch();
            if self.cupti.is_some() {
                self.read(finished);
            }
            if finished {
                break;
            }
            let (lock, changed) = &self.shared.changed;
            let guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
            // Sleeps until recording is requested; a refusal withdraws the request.
            if self.cupti.is_some() {
                drop(changed.wait_timeout(guard, READ_INTERVAL));
            } else if !self.shared.requested.load(Ordering::Acquire)
                && !self.shared.finished.load(Ordering::Acquire)
            {
                drop(changed.wait(guard));
            }
        }
        if let Some(cupti) = self.cupti.take() {
            self.shared.recording.store(false, Ordering::Release);
            cupti.stop();
        }
    }

    /// Starts or stops recording as requested, and reports it.
    fn switch(&mut self) {
        match (self.shared.requested.load(Ordering::Acquire), self.cupti) {
            (true, None) => match self.start() {
                Ok(cupti) => {
                    self.cupti = Some(cupti);
                    self.timeline_at = None;
                    self.shared.recording.store(true, Ordering::Release);
                    self.report(cupti.name(), TraceState::On);
                }
                Err(refusal) => self.refuse(&refusal),
            },
            (false, Some(cupti)) => {
                self.shared.recording.store(false, Ordering::Release);
                self.read(true);
                cupti.stop();
                self.cupti = None;
                self.shared.idle.store(true, Ordering::Relaxed);
                self.report(cupti.name(), TraceState::Off);
            }
            _ => {}
        }
    }

    /// Steps wait while CUPTI starts: a delayed step must be marked as recorded before it arrives.
    fn start(&self) -> Result<&'static Cupti, Refusal> {
        let cupti = Cupti::get()?;
        self.report(cupti.name(), TraceState::Starting);
        self.shared.start()
    }

    fn refuse(&self, refusal: &Refusal) {
        self.shared.requested.store(false, Ordering::Release);
        let state = TraceState::Refused { reason: refusal.to_string(), remedy: refusal.remedy() };
        self.report("CUPTI".to_owned(), state);
    }

    fn report(&self, tool: String, state: TraceState) {
        self.tx.send(Event::KernelTrace(KernelTrace { tool, state }));
    }

    /// Reads CUPTI's records, and reports windows and timelines when they are due or at the `end`.
    fn read(&mut self, end: bool) {
        let Some(cupti) = self.cupti else { return };
        for nodes in std::mem::take(&mut *self.shared.graphs.lock().unwrap_or_else(PoisonError::into_inner)) {
            self.steps.add_graph(nodes);
        }
        if self.timeline_at.is_none_or(|at| at.elapsed() >= TIMELINE_INTERVAL) {
            self.steps.request_timelines();
        }
        cupti.flush(end);
        let steps = &mut self.steps;
        let dropped = cupti.drain(|record, name| match record {
            Record::ExternalId { correlation, id } => {
                if let Some(id) = ExternalId::decode(id) {
                    steps.add_id(correlation, id);
                }
            }
            Record::Work(work) => steps.add_work(&work, name),
        });
        steps.add_dropped(dropped);
        steps.end_batch(end);
        if end || self.window_at.elapsed() >= WINDOW {
            self.window_at = Instant::now();
            for window in self.steps.windows() {
                self.tx.send(Event::Kernels(Box::new(window)));
            }
            let timelines = self.steps.timelines();
            // Both clocks are read at once: the GPU lags behind the host, so the time of the launch would be too early.
            let both_now = cupti.now_ns().map(|by_records| (by_records, self.tx.clock().now()));
            for RecordedStep { step, first_ns, mut timeline } in timelines {
                self.timeline_at = Some(Instant::now());
                timeline.at = both_now.map(|now| run_time(first_ns, now, self.shared.launch_of(step)));
                self.tx.send(Event::StepTimeline(Box::new(timeline)));
            }
        }
    }
}

/// The time of a record by the run's clock; `now` is the same moment by both clocks. Never before the record's launch,
/// which a difference between the clocks could cause.
fn run_time(ns: u64, now: (u64, Stamp), launch: Option<Stamp>) -> Stamp {
    let (by_records, by_run) = now;
    let at = Stamp(by_run.0.saturating_sub(by_records.saturating_sub(ns)));
    at.max(launch.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_event::{self, Clock};

    #[test]
    fn kernels_start_after_their_launch() {
        let now = (1_000_000, Stamp(5_000));
        for (ns, launch, expected) in [
            (999_000, None, 4_000),
            (999_000, Some(3_990), 4_000),
            (999_000, Some(4_010), 4_010),
            (1_000_007, Some(10), 5_000),
            (0, None, 0),
        ] {
            assert_eq!(run_time(ns, now, launch.map(Stamp)), Stamp(expected), "{ns}");
        }
    }

    /// Without CUPTI every request is refused once, with the reason, and withdrawn; with CUPTI recording starts.
    #[test]
    fn a_request_is_answered() {
        let (tx, mut rx) = llmprof_event::channel(Clock::wall());
        let tracer = Tracer::new(tx, true);
        tracer.begin();
        let step = Span::Step(Phase::Decode);
        let operator = Span::Operator(OperatorInstance { operator: llm_cost::Operator::Qkv, layer: Some(0) });
        tracer.begins(step);
        tracer.begins(operator);
        tracer.ends(operator);
        tracer.ends(step);
        let refused = !tracer.is_requested();
        tracer.request(true);
        tracer.finish();
        let mut events = Vec::new();
        while let Ok(envelope) = rx.try_recv() {
            events.push(envelope.event);
        }
        assert!((1..=4).contains(&events.len()), "{events:?}");
        for event in events {
            let Event::KernelTrace(KernelTrace { tool, state }) = event else { panic!("{event:?}") };
            assert!(tool.starts_with("CUPTI"), "{tool}");
            match state {
                TraceState::Refused { reason, remedy } => {
                    assert!(refused && !reason.is_empty() && !remedy.is_empty(), "{reason} {remedy}");
                }
                TraceState::Starting => {}
                state => assert!(!refused && state == TraceState::On, "{state:?}"),
            }
        }
    }
}
