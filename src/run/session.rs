//! One live run: the only place that starts and stops work, and the one consumer of its events.

mod tool_work;

use std::{
    collections::VecDeque,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde::Serialize;
use tempfile::TempDir;

use self::tool_work::ToolWork;
use crate::{
    analysis::metrics::MetricsSummary,
    base::units::millis,
    config::{Runtime, Until},
    engine::{
        Engine, EngineError, PrepareStep,
        driver::{Control, Driver},
    },
    event::{
        self, Clock, Envelope, Event, EventRx, EventTx, KernelTrace, Level, Notice, Outcome, Phase,
        Preparing, Ready, RunFinished, SnapshotTaken, TraceState,
    },
    process::{crash, logfile},
    profile::{listener::Listeners, live::Tracer, nvtx_ranges, operator_clock::OperatorClock},
    report::documents,
    run::{inputs::Inputs, observer::Observer, plan::Plan, probes, rerun::Tool},
    rundir::{Environment, Loss, Recorder, RunDir},
    sim::{SimEngine, SimKernels},
    state::RunState,
    telemetry::Sampler,
};

/// A run under way, or ended and still looked at. Dropped early, it is closed as interrupted.
pub struct Session {
    pub state: RunState,
    pub control: Control,
    /// Records kernels, where there are any.
    tracer: Option<Arc<Tracer>>,
    plan: Plan,
    rx: EventRx,
    tx: EventTx,
    batch: Vec<Envelope>,
    record: Record,
    observer: Observer,
    threads: Vec<JoinHandle<()>>,
    /// The run under a tool that is under way, and those that come after the workload.
    tool_work: Option<ToolWork>,
    tools_left: VecDeque<Tool>,
    /// What went wrong under tools.
    tool_troubles: Vec<String>,
    /// Where tools work when the run is not recorded.
    scratch: Option<TempDir>,
    loss_told: bool,
    /// A file beside the recording that could not be written.
    unwritten: Option<String>,
    closed: bool,
}

/// Where the run goes on disk.
enum Record {
    To(RunDir, Box<Recorder>),
    /// It was asked for and could not be had.
    Refused(String),
    /// It was not asked for.
    Off,
}

/// How a run ended, for exit codes and last words.
#[derive(Debug, Clone)]
pub struct Ended {
    pub finished: RunFinished,
    pub metrics: MetricsSummary,
    pub dir: Option<PathBuf>,
    /// What is missing from the recording.
    pub loss: Option<Loss>,
    /// Which tools gave nothing, and why.
    pub tool_troubles: Vec<String>,
}

/// Longest wait for threads that were asked to stop; a long prefill can't be interrupted.
const PATIENCE: Duration = Duration::from_millis(1500);
/// A GPU that has told no temperature by then will tell none.
const HEAT_PATIENCE_S: f64 = 30.0;
const EVENTS_AT_ONCE: usize = 4096;
const BETWEEN_PROGRESS: Duration = Duration::from_millis(50);

impl Session {
    pub fn start(plan: Plan) -> Session {
        Self::launch(plan, None)
    }

    /// As [`start`](Self::start), with an engine that is ready already rather than the one `plan` would make.
    pub fn start_on(plan: Plan, engine: Box<dyn Engine + Send>) -> Session {
        Self::launch(plan, Some(engine))
    }

    fn launch(plan: Plan, engine: Option<Box<dyn Engine + Send>>) -> Session {
        let clock = if plan.simulated() { Clock::virtual_clock() } else { Clock::wall() };
        let (tx, rx) = event::channel(clock);
        let started = plan.started();
        let record = Record::open(&plan, started.started_unix_ms);
        tx.send(Event::RunStarted(Box::new(started)));
        for remark in &plan.remarks {
            tx.notice(Level::Warn, "profiling", remark.clone());
        }
        if let Record::Refused(reason) = &record {
            tx.notice(Level::Error, "recorder", format!("this run is not recorded: {reason}"));
        }
        let tracer = plan.device.is_cuda().then(|| {
            let wanted = plan.composed.config.profiling.cupti.enable;
            Arc::new(Tracer::new(tx.clone(), wanted))
        });
        let mut session = Session {
            state: RunState::default(),
            control: Control::default(),
            tracer,
            plan,
            rx,
            tx,
            batch: Vec::with_capacity(EVENTS_AT_ONCE),
            record,
            observer: Observer::default(),
            threads: Vec::new(),
            tool_work: None,
            tools_left: VecDeque::new(),
            tool_troubles: Vec::new(),
            scratch: None,
            loss_told: false,
            unwritten: None,
            closed: false,
        };
        session.write_inputs();
        session.tools_left = session.plan.tools().into();
        if !session.plan.is_for_tools_alone() {
            session.spawn(engine);
        }
        session
    }

    fn spawn(&mut self, ready: Option<Box<dyn Engine + Send>>) {
        if self.plan.watches() {
            // The load on a simulated GPU is a decode.
            self.tx.activity().set(Phase::Decode);
        }
        let (control, tx, plan) = (self.control.clone(), self.tx.clone(), self.plan.clone());
        let sampler = probes::sampler_for(&plan, tx.activity());
        // A simulated run takes its samples within its own steps, so that it is the same every time.
        let mut inline = None;
        match sampler {
            Err(unknown) => tx.notice(Level::Error, "telemetry", unknown.to_string()),
            Ok(sampler) if plan.simulated() => {
                sampler.announce(&tx);
                inline = Some(sampler);
            }
            Ok(mut sampler) => {
                let (tx, stop) = (tx.clone(), control.cancel_flag());
                self.threads.push(named("llmprof-sampler", move || {
                    crash::fault_point("sampler");
                    sampler.announce(&tx);
                    sampler.run(&tx, &stop);
                }));
            }
        }
        if plan.watches() {
            return;
        }
        let tracer = self.tracer.clone();
        self.threads.push(named("llmprof-engine", move || {
            crash::fault_point("engine");
            if let Some(tracer) = &tracer {
                tracer.begin();
            }
            let engine = match ready {
                Some(engine) => Ok(engine as Box<dyn Engine>),
                None => prepare(&plan, &control, &tx, inline),
            };
            work(engine, &plan, tracer, &control, &tx);
        }));
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Takes in what has happened: records it, then folds it. Waits for something to happen, but not much
    /// longer than a flush. Gives the number of events.
    pub async fn pump(&mut self) -> usize {
        crash::fault_point("consumer");
        if self.closed && !self.has_tools() {
            // Nothing more comes by itself.
            std::future::pending::<()>().await;
        }
        let wait =
            Duration::from_millis(u64::from(self.plan.composed.config.output.flush_ms).clamp(10, 1000));
        let n =
            tokio::time::timeout(wait, self.rx.recv_many(&mut self.batch, EVENTS_AT_ONCE)).await.unwrap_or(0);
        self.take_in();
        self.tick();
        n
    }

    fn take_in(&mut self) {
        for mut envelope in std::mem::take(&mut self.batch).drain(..) {
            if self.state.finished.is_some() {
                // What tools add after the end does not make the run any longer.
                envelope.t = self.state.now;
            }
            if matches!(envelope.event, Event::Ready(_)) {
                self.write_environment();
            }
            self.add(&envelope);
        }
        if self.state.finished.is_some() {
            self.close();
        }
    }

    /// Takes in what has been sent so far.
    fn drain(&mut self) {
        while let Ok(envelope) = self.rx.try_recv() {
            self.batch.push(envelope);
        }
        self.take_in();
    }

    /// Records an event, then folds it.
    fn add(&mut self, envelope: &Envelope) {
        if let Record::To(_, recorder) = &mut self.record {
            recorder.record(envelope);
        }
        if let Event::Notice(notice) = &envelope.event {
            tracing::info!(source = notice.source, level = ?notice.level, "{}", notice.text);
        }
        self.state.apply(envelope);
    }

    /// Adds an event of the consumer's own.
    fn add_now(&mut self, event: Event) {
        // What is added after the end does not make the run any longer.
        let ended = self.state.finished.is_some();
        let t = if ended { self.state.now } else { self.state.now.max(self.tx.clock().now()) };
        self.add(&Envelope { t, event });
        self.flush();
    }

    fn note_trouble(&mut self, text: String) {
        self.add_now(Event::Notice(Notice { level: Level::Error, source: "recorder".into(), text }));
    }

    fn tick(&mut self) {
        if let Record::To(_, recorder) = &mut self.record {
            recorder.tick();
        }
        if let Some(loss) = self.loss().filter(|_| self.lost() > 0 || self.unwritten.is_some())
            && !std::mem::replace(&mut self.loss_told, true)
        {
            self.note_trouble(loss.to_string());
        }
        self.follow_tool();
        if self.closed {
            return;
        }
        self.wait_for_rest();
        if let Some(sample) = self.observer.due(self.rx.len() as u64, self.lost()) {
            self.tx.send(Event::Observer(sample));
        }
    }

    /// Lets a run that waits for the card's rest come to its end.
    fn wait_for_rest(&mut self) {
        let runtime = &self.plan.composed.config.runtime;
        if runtime.until != Some(Until::Steady) || self.control.is_finishing() {
            return;
        }
        let heat = self.state.profiled_gpu().and_then(|gpu| gpu.heat());
        let ready = self.state.prepare_ms.is_some();
        let text = match heat {
            Some(heat) if heat.steady => heat.describe().unwrap_or_default(),
            _ if self.state.now.secs() >= runtime.until_max_s => {
                format!("the card has not come to rest within runtime.until_max_s={}", runtime.until_max_s)
            }
            None if ready && self.state.now.secs() > HEAT_PATIENCE_S => {
                "runtime.until=steady needs a GPU that tells its temperature; there is none".to_owned()
            }
            _ => return,
        };
        self.control.finish();
        self.tx.notice(Level::Info, "gpu", format!("{text}: the run ends with this request"));
    }

    fn lost(&self) -> u64 {
        match &self.record {
            Record::To(_, recorder) => recorder.lost(),
            _ => 0,
        }
    }

    /// A frame took so long to draw.
    pub fn drew(&mut self, took: Duration) {
        self.observer.frame(took);
    }

    /// Pauses the workload or lets it go on. Not while a tool is at work, for which it waits.
    pub fn toggle_pause(&mut self) {
        self.control.set_paused(!self.control.is_paused());
    }

    /// Has kernels recorded as they run, or no longer. Gives what to tell the user; whether it could be done is an event.
    pub fn toggle_kernels(&mut self) -> String {
        if self.state.finished.is_some() {
            return "the run has ended; r starts it again".to_owned();
        }
        if self.plan.simulated() {
            return "a simulated run has simulated kernels with profiling.cupti.enable=true, from its beginning".to_owned();
        }
        let Some(tracer) = &self.tracer else {
            let (reason, remedy) =
                ("this run has no kernels on a GPU", "run it on an NVIDIA GPU, in a build with CUDA");
            let state = TraceState::Refused { reason: reason.to_owned(), remedy: remedy.to_owned() };
            self.add_now(Event::KernelTrace(KernelTrace { tool: "CUPTI".to_owned(), state }));
            return format!("{reason}; {remedy}");
        };
        let wanted = !tracer.is_requested();
        tracer.request(wanted);
        let words =
            if wanted { "kernels are recorded from now on" } else { "kernels are no longer recorded" };
        words.to_owned()
    }

    /// Names the current window and starts the next; the snapshot is kept under the run. Gives what to tell the
    /// user.
    pub fn snapshot(&mut self, name: &str) -> String {
        let taken = |name: &str| self.state.snapshots.iter().any(|s| s.name == name);
        let mut free = name.to_owned();
        let mut n = 2;
        while taken(&free) {
            free = format!("{name}-{n}");
            n += 1;
        }
        let empty = self.state.window.output_tokens == 0;
        self.add_now(Event::Snapshot(SnapshotTaken { name: free.clone() }));
        if let Record::To(dir, _) = &self.record {
            let path = dir.snapshot(&free);
            if let Some(parent) = path.parent() {
                // Whatever is wrong with the directory is wrong with the file too, and said there.
                let _ = fs::create_dir_all(parent);
            }
            self.keep(&path, |state| state.snapshots.back().map_or_else(Vec::new, json));
        }
        if self.closed {
            self.write_reports();
        }
        match (empty, self.loss(), &self.record) {
            (true, ..) => format!("snapshot {free}: nothing was measured since the last one"),
            (_, Some(loss), _) => format!("snapshot {free} is on the screen only: {loss}"),
            (_, None, Record::Off) => {
                format!("snapshot {free} is on the screen only: output.record is false")
            }
            _ => format!("snapshot {free} is kept; d compares"),
        }
    }

    /// The directory of the run, when it is recorded.
    pub fn dir(&self) -> Option<&Path> {
        match &self.record {
            Record::To(dir, _) => Some(dir.path()),
            _ => None,
        }
    }

    /// What is missing from the recording.
    pub fn loss(&self) -> Option<Loss> {
        match &self.record {
            Record::Refused(reason) => Some(Loss::NotRecorded(reason.clone())),
            Record::To(_, recorder) if recorder.lost() > 0 => {
                let cause = recorder.trouble().unwrap_or("unknown cause").to_owned();
                Some(Loss::Lines { lines: recorder.lost(), cause })
            }
            _ => self.unwritten.clone().map(Loss::File),
        }
    }

    /// Stops the work, closes the recording, and says how it went. `cause` is why it ends early, if it does.
    pub fn end(&mut self, outcome: Outcome, cause: Option<String>) -> Ended {
        self.stop(outcome, cause);
        Ended {
            finished: self.state.finished.clone().unwrap_or(RunFinished { outcome, cause: None }),
            metrics: self.state.total.summary(),
            dir: self.dir().map(Path::to_owned),
            loss: self.loss(),
            tool_troubles: self.tool_troubles.clone(),
        }
    }

    /// Asks the work to stop, without waiting for it.
    pub fn cancel(&mut self) {
        self.control.cancel();
        self.tool_work.iter().for_each(ToolWork::cancel);
        self.tools_left.clear();
    }

    /// Nothing of this run computes any more.
    pub fn is_idle(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
            && self.tool_work.as_ref().is_none_or(ToolWork::is_idle)
    }

    fn stop(&mut self, outcome: Outcome, cause: Option<String>) {
        self.cancel();
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline && !self.is_idle() {
            thread::sleep(Duration::from_millis(2));
        }
        self.drain();
        if self.state.finished.is_none() {
            self.add_now(Event::RunFinished(RunFinished { outcome, cause }));
        }
        self.close();
    }

    /// The run has its last event: let the sampler go, and leave everything readable on disk.
    fn close(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        self.control.cancel();
        self.write_environment();
        self.write_reports();
        self.flush();
    }

    fn flush(&mut self) {
        if let Record::To(_, recorder) = &mut self.record {
            recorder.flush();
        }
    }

    fn write_reports(&mut self) {
        let Record::To(dir, _) = &self.record else { return };
        let dir = dir.path().to_owned();
        for document in documents(&self.state) {
            self.keep(&dir.join(document.name), |_| document.content.into_bytes());
        }
    }

    fn write_inputs(&mut self) {
        let Record::To(dir, _) = &self.record else { return };
        let (config, overrides, log, hydra) = (dir.config(), dir.overrides(), dir.log(), dir.hydra());
        let (resolved, typed) = (self.plan.composed.to_yaml(), self.plan.composed.overrides_yaml());
        self.keep(&config, |_| resolved.into_bytes());
        self.keep(&overrides, |_| typed.into_bytes());
        // What is wrong with the directory is said of the files in it.
        let _ = fs::create_dir_all(&hydra);
        for (name, content) in self.plan.composed.hydra_files() {
            self.keep(&hydra.join(name), |_| content.into_bytes());
        }
        if let Err(e) = logfile::redirect(&log) {
            self.unwritten = Some(format!("{}: {e}", log.display()));
        }
    }

    fn write_environment(&mut self) {
        let Record::To(dir, _) = &self.record else { return };
        let path = dir.environment();
        self.keep(&path, |state| {
            json(&Environment {
                host: state.host.info.clone(),
                gpus: state.gpus.iter().map(|g| g.info.clone()).collect(),
                gpu_absent: state.gpu_absent.as_ref().map(|a| a.reason.clone()),
                ..Environment::here()
            })
        });
    }

    /// Writes a file that is made from the state; a failure is part of the run's loss.
    fn keep(&mut self, path: &Path, content: impl FnOnce(&RunState) -> Vec<u8>) {
        if let Err(e) = fs::write(path, content(&self.state)) {
            tracing::error!("{}: {e}", path.display());
            self.unwritten = Some(format!("{}: {e}", path.display()));
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.closed || self.tool_work.is_some() {
            self.stop(Outcome::Interrupted, crash::first_panic());
        }
    }
}

impl Record {
    fn open(plan: &Plan, started_unix_ms: u64) -> Record {
        let config = &plan.composed.config;
        if !config.output.record {
            return Record::Off;
        }
        let wanted = plan.dir.clone();
        let flush_every = Duration::from_millis(u64::from(config.output.flush_ms));
        let opened = RunDir::create(&wanted).and_then(|dir| {
            let mut recorder = Recorder::create(&dir, started_unix_ms, flush_every)?;
            if config.output.trace {
                recorder = recorder.with_trace()?;
            }
            Ok(Record::To(dir, Box::new(recorder)))
        });
        opened.unwrap_or_else(|e| Record::Refused(format!("{}: {e}", wanted.display())))
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).unwrap_or_default();
    text.push(b'\n');
    text
}

fn named(name: &str, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    thread::Builder::new().name(name.to_owned()).spawn(work).expect("the system refuses a thread")
}

/// The engine's thread: runs the workload, says how it ended. A cancelled run says nothing; whoever cancelled
/// it knows why.
fn work(
    engine: Result<Box<dyn Engine>, EngineError>,
    plan: &Plan,
    tracer: Option<Arc<Tracer>>,
    control: &Control,
    tx: &EventTx,
) {
    let Inputs { workload, tokenizer, .. } = &plan.inputs;
    let predictions = tokenizer.as_deref().filter(|_| plan.composed.config.output.predictions.enable);
    let done = engine.and_then(|mut engine| {
        let nvtx = nvtx_ranges::listener(plan.composed.config.profiling.nvtx.detail);
        let mut listeners: Listeners = nvtx.into_iter().collect();
        if let Some(tracer) = &tracer {
            listeners.add(tracer.clone());
        }
        let clock = plan.composed.config.profiling.operators.enable.then(|| {
            let clock = Arc::new(OperatorClock::new(tx.clone(), workload.warmup));
            // The last that hears of a beginning and the first of an end: what others do is not an operator's time.
            listeners.add(clock.clone());
            clock
        });
        engine.set_listeners(listeners.clone());
        let listeners = &listeners;
        let done = Driver { workload, control, listeners, tx, predictions }.run(engine.as_mut());
        if let Some(clock) = &clock {
            clock.finish();
        }
        if let Some(tracer) = &tracer {
            tracer.finish();
        }
        done
    });
    let finished = match done {
        Ok(()) => RunFinished { outcome: Outcome::Completed, cause: None },
        Err(EngineError::Cancelled) => return,
        Err(e) => {
            tx.notice(Level::Error, "engine", e.to_string());
            RunFinished { outcome: Outcome::Failed, cause: Some(e.to_string()) }
        }
    };
    tx.send(Event::RunFinished(finished));
}

fn prepare(
    plan: &Plan,
    control: &Control,
    tx: &EventTx,
    sampler: Option<Sampler>,
) -> Result<Box<dyn Engine>, EngineError> {
    let begun = Instant::now();
    let config = &plan.composed.config;
    let engine: Box<dyn Engine> = match config.runtime.name {
        Runtime::Sim => Box::new(simulated(plan, control, tx, sampler)?),
        Runtime::Watch => return Err(EngineError::Cancelled),
        Runtime::Candle | Runtime::CandleStock => {
            let mut shown: Option<Instant> = None;
            let mut progress = |step: PrepareStep<'_>, done: u64, total: u64| {
                if step == PrepareStep::Kernels
                    || shown.is_none_or(|shown| shown.elapsed() > BETWEEN_PROGRESS)
                {
                    shown = Some(Instant::now());
                    tracing::debug!("{step:?}");
                    tx.send(Event::Preparing(Preparing { step: step.to_string(), done, total }));
                }
                !control.is_cancelled()
            };
            plan.make_engine(&mut progress)?
        }
    };
    // Simulated weights take no time; what the machine took would differ from run to run.
    // In whole microseconds: a number with few digits comes back from the recording as it was.
    let prepare_ms = if plan.simulated() { 0.0 } else { begun.elapsed().as_micros() as f64 / 1e3 };
    tx.send(Event::Ready(Ready { prepare_ms }));
    tx.notice(Level::Info, "engine", format!("ready after {}", millis(prepare_ms)));
    Ok(engine)
}

fn simulated(
    plan: &Plan,
    control: &Control,
    tx: &EventTx,
    sampler: Option<Sampler>,
) -> Result<SimEngine, EngineError> {
    let config = &plan.composed.config;
    let runtime = &config.runtime;
    let vocab = plan.inputs.model.vocab() as u32;
    let engine = SimEngine::new(&runtime.sim, runtime.seed, vocab, tx.clock().clone(), control.cancel_flag())
        .map_err(|e| EngineError::Backend(e.to_string()))?;
    let shape = plan.inputs.model.shape(config.model.dtype).filter(|_| config.profiling.cupti.enable);
    let engine = match shape {
        Some(shape) => {
            engine.with_kernels(SimKernels::new(shape, tx.clone(), runtime.cuda_graphs, runtime.seed))
        }
        None => engine,
    };
    Ok(match sampler {
        Some(mut sampler) => {
            let tx = tx.clone();
            engine.with_tick(Box::new(move |now| sampler.sample_due(now, &tx)))
        }
        None => engine,
    })
}

#[cfg(all(test, feature = "cuda"))]
mod cuda_tests;
