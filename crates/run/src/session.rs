//! One live run: starts and stops its threads, and is the only consumer of its events.

mod engine_thread;
mod inbox;
mod kernels;
mod monitors;
mod recording;
mod stopped;
mod tool_work;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tempfile::TempDir;

use self::{
    engine_thread::EngineThread,
    inbox::Inbox,
    kernels::KernelSwitches,
    monitors::Monitors,
    recording::Recording,
    tool_work::{ToolWork, Tools},
};
use crate::{plan::Plan, probes, work::Work};
use llmprof_analysis::metrics::MetricsSummary;
use llmprof_base::{process::crash, tools::under};
use llmprof_event::{
    Envelope, Event, Level, Notice, Outcome, Phase, ProcessStopped, RunFinished, SnapshotTaken, Stamp,
};
use llmprof_record::{
    rundir::{Loss, RunDir, snapshot_file},
    state::RunState,
};
use llmprof_sources::{
    attach::{Follower, OutputTo, ProgramControl, Role, Target},
    pytorch::{Worker, WorkerError, WorkerPlan},
    server::{self, LoadError, LoadPlan},
};
use llmprof_workload::{Control, Engine};

/// A run in progress, or a finished one that is still shown. Dropped early, it is closed as interrupted.
pub struct Session {
    pub state: RunState,
    pub control: Control,
    plan: Plan,
    inbox: Inbox,
    recording: Recording,
    /// For the files of tools if the run is not recorded.
    scratch: Option<TempDir>,
    threads: Vec<JoinHandle<()>>,
    kernels: KernelSwitches,
    tools: Tools,
    monitors: Monitors,
    closed: bool,
}

/// The end of a session.
#[derive(Debug, Clone)]
pub struct SessionSummary {
    pub finished: RunFinished,
    pub metrics: MetricsSummary,
    pub dir: Option<PathBuf>,
    pub loss: Option<Loss>,
    /// Failures of tools that the configuration requests.
    pub tool_failures: Vec<String>,
    /// False for a load test whose server never answered: the recording contains only the reason.
    pub began: bool,
}

impl SessionSummary {
    /// Removes the directory of a run that never began, and parents of it below a relative `root` that become empty.
    pub fn discard_unbegun(&mut self, root: &Path) {
        let Some(dir) = self.dir.take_if(|_| !self.began) else { return };
        if let Err(e) = fs::remove_dir_all(&dir) {
            tracing::warn!("{} cannot be removed: {e}", dir.display());
        }
        // The user chose an absolute path, with the directories above it.
        let made = |parent: &&Path| root.is_relative() && parent.starts_with(root);
        for parent in dir.ancestors().skip(1).take_while(made) {
            // Other runs keep it.
            if fs::remove_dir(parent).is_err() {
                break;
            }
        }
    }
}

/// The longest wait for threads that were asked to stop. A long prefill cannot be interrupted.
const STOP_TIMEOUT: Duration = Duration::from_millis(1500);
/// The time that a program may take to end, and a margin.
const STOP_PROGRAM_TIMEOUT: Duration = Duration::from_secs(5);

impl Session {
    pub fn start(plan: Plan) -> Session {
        Self::launch(plan, None)
    }

    /// Like [`start`](Self::start), with a ready engine instead of that of the plan.
    pub fn start_on(plan: Plan, engine: Box<dyn Engine + Send>) -> Session {
        Self::launch(plan, Some(engine))
    }

    fn launch(plan: Plan, engine: Option<Box<dyn Engine + Send>>) -> Session {
        let inbox = Inbox::new(plan.simulated());
        let started = plan.started();
        let mut session = Session {
            state: RunState::default(),
            control: Control::default(),
            recording: Recording::open(&plan, started.started_unix_ms),
            scratch: None,
            threads: Vec::new(),
            kernels: KernelSwitches::new(&plan, &inbox.tx),
            tools: Tools::new(&plan),
            monitors: Monitors::new(&plan),
            plan,
            inbox,
            closed: false,
        };
        session.emit(Event::RunStarted(Box::new(started)));
        for remark in session.plan.remarks.clone() {
            session.notice(Level::Warn, "profiling", remark);
        }
        let source = if matches!(session.plan.work(), Work::Program(_)) { "program" } else { "model" };
        for choice in session.plan.choices.clone() {
            session.notice(Level::Info, source, choice);
        }
        session.serve_metrics();
        session.flush();
        session.recording.write_inputs(&session.plan.composed);
        if !session.plan.is_for_tools_alone() {
            session.spawn(engine);
        }
        session
    }

    fn spawn(&mut self, ready: Option<Box<dyn Engine + Send>>) {
        if matches!(self.plan.work, Work::Watch) {
            // The load on a simulated GPU is a decode.
            self.inbox.tx.activity().set(Phase::Decode);
        }
        let plan = self.plan.clone();
        let sampler = probes::sampler_for(&plan, self.inbox.tx.activity());
        let mut inline = None;
        match sampler {
            Err(unknown) => self.notice(Level::Error, "telemetry", unknown.to_string()),
            Ok(sampler) if plan.simulated() => {
                sampler.announce(&self.inbox.tx);
                inline = Some(sampler);
            }
            Ok(mut sampler) => {
                let (tx, stop) = (self.inbox.tx.clone(), self.control.cancel_flag());
                self.start_beside("llmprof-sampler", "telemetry", move || {
                    crash::fault_point("sampler");
                    sampler.announce(&tx);
                    sampler.run(&tx, &stop);
                });
            }
        }
        if !plan.watched_servers.is_empty() {
            let (tx, stop, pages) =
                (self.inbox.tx.clone(), self.control.cancel_flag(), plan.watched_servers.clone());
            self.start_beside("llmprof-metrics", "server", move || server::watch(pages, tx, stop));
        }
        if let Some(at) = plan.watched_gpus.clone() {
            let (tx, stop) = (self.inbox.tx.clone(), self.control.cancel_flag());
            self.start_beside("llmprof-dcgm", "telemetry", move || server::watch_gpus(at, tx, stop));
        }
        match plan.work.clone() {
            Work::Watch => return,
            Work::Server(server) => {
                if let Some(target) = server.program {
                    self.follow(target, Role::Server);
                }
                return self.put_load(server.load);
            }
            Work::Program(program) => return self.follow(program.target, Role::Observed),
            Work::Python(worker) => return self.start_worker(*worker),
            Work::Model(_) | Work::Sim => {}
        }
        let engine = EngineThread {
            plan,
            control: self.control.clone(),
            tx: self.inbox.tx.clone(),
            tracer: self.kernels.tracer.clone(),
            sim_kernels: self.kernels.simulated.clone(),
            sampler: inline,
        };
        self.start_work("llmprof-engine", move || engine.run(ready));
    }

    fn put_load(&mut self, load: LoadPlan) {
        let (tx, control) = (self.inbox.tx.clone(), self.control.clone());
        self.start_work("llmprof-load", move || {
            let finished = match server::run(load, tx.clone(), control) {
                Ok(()) => RunFinished { outcome: Outcome::Completed, cause: None },
                Err(LoadError::Cancelled) => return,
                Err(e) => {
                    tx.notice(Level::Error, "server", e.to_string());
                    RunFinished { outcome: Outcome::Failed, cause: Some(e.to_string()) }
                }
            };
            tx.send(Event::RunFinished(finished));
        });
    }

    /// Starts the Python process, and the thread that communicates with it.
    fn start_worker(&mut self, mut worker: WorkerPlan) {
        let (send, pipes) = mpsc::channel();
        let target = Target::Start { command: worker.command.clone(), output: OutputTo::Pipes };
        if let Some(profile) = &mut worker.profile {
            match self.trace_file() {
                Ok(file) => profile.file = file.display().to_string(),
                Err(e) => {
                    worker.profile = None;
                    self.notice(
                        Level::Error,
                        "pytorch",
                        format!("operators are not profiled: no file for the trace: {e}"),
                    );
                }
            }
        }
        if let Some(pictures) = self.plan.inputs.pictures.clone() {
            let files = self.work_dir().and_then(|dir| pictures.files(&dir.join("pages")));
            match files {
                Ok(files) => worker.images = files.into(),
                Err(e) => {
                    let cause = format!("the synthetic pages could not be written: {e}");
                    return self.emit(Event::RunFinished(RunFinished {
                        outcome: Outcome::Failed,
                        cause: Some(cause),
                    }));
                }
            }
        }
        if worker.answers
            && let Some(dir) = self.dir().and_then(|dir| std::path::absolute(dir).ok())
        {
            worker.setup.visualizations = Some(dir.join("predictions/visualizations").display().to_string());
        }
        self.follow(target, Role::Worker { pipes: send });
        let worker = Worker {
            plan: worker,
            tx: self.inbox.tx.clone(),
            control: self.control.clone(),
            program: Arc::clone(&self.kernels.program),
            pipes,
            tokenizer: self.plan.inputs.tokenizer.clone(),
        };
        let tx = self.inbox.tx.clone();
        self.start_work("llmprof-pytorch", move || {
            let finished = match worker.run() {
                Ok(()) => RunFinished { outcome: Outcome::Completed, cause: None },
                Err(WorkerError::Cancelled) => return,
                Err(e) => {
                    tx.notice(Level::Error, "pytorch", e.to_string());
                    RunFinished { outcome: Outcome::Failed, cause: Some(e.to_string()) }
                }
            };
            tx.send(Event::RunFinished(finished));
        });
    }

    /// The directory for files of a worker: that of the run, if it has one.
    fn work_dir(&mut self) -> io::Result<PathBuf> {
        if let Some(dir) = self.dir() {
            return std::path::absolute(dir);
        }
        let scratch = match self.scratch.take() {
            Some(scratch) => scratch,
            None => TempDir::new()?,
        };
        let path = scratch.path().to_owned();
        self.scratch = Some(scratch);
        Ok(path)
    }

    /// The path of PyTorch's trace.
    fn trace_file(&mut self) -> io::Result<PathBuf> {
        let dir = self.work_dir()?.join("torch_profiler");
        std::fs::create_dir(&dir)?;
        Ok(dir.join("trace.json.gz"))
    }

    /// Starts a thread that the run does not depend on.
    fn start_beside(&mut self, name: &str, source: &str, work: impl FnOnce() + Send + 'static) {
        match spawn_thread(name, work) {
            Ok(thread) => self.threads.push(thread),
            Err(refused) => self.notice(Level::Error, source, refused),
        }
    }

    /// Starts the thread of the workload; without it the run fails.
    fn start_work(&mut self, name: &str, work: impl FnOnce() + Send + 'static) {
        match spawn_thread(name, work) {
            Ok(thread) => self.threads.push(thread),
            Err(refused) => {
                let finished = RunFinished { outcome: Outcome::Failed, cause: Some(refused) };
                self.emit(Event::RunFinished(finished));
            }
        }
    }

    fn follow(&mut self, target: Target, role: Role) {
        let follower = Follower {
            tx: self.inbox.tx.clone(),
            target,
            control: Arc::clone(&self.kernels.program),
            duty: self.duty(),
            records: self
                .dir()
                .filter(|_| self.plan.composed.config.profiling.cupti.records)
                .map(Path::to_owned),
            stop: self.control.cancel_flag(),
            // The latencies of a server that is load-tested are the result.
            stacks: self.plan.composed.config.profiling.stacks && matches!(role, Role::Observed),
            role,
            log: self.recording.create_program_log(),
            secret: self.plan.work.load().and_then(|load| load.key.clone()),
        };
        self.start_work("llmprof-attach", move || follower.run());
    }

    /// The share of time in which kernels of another program are recorded. A worker reports its tokens itself; its
    /// kernels are recorded only on request.
    fn duty(&self) -> Option<f64> {
        let cupti = &self.plan.composed.config.profiling.cupti;
        // torch.profiler finds the operators of eager steps; those of compiled ones are inferred from their kernels.
        let rests = self.plan.work.worker().is_some_and(|worker| !worker.is_compiled()) && !cupti.enable;
        cupti.duty.or(rests.then_some(0.0))
    }

    /// Requests the end of the started program.
    pub fn end_program(&self) {
        self.kernels.program.end.store(true, Ordering::Relaxed);
    }

    /// The control of the program, with its exit code once it has ended.
    pub fn program_control(&self) -> Arc<ProgramControl> {
        Arc::clone(&self.kernels.program)
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Processes events: records them, then applies them to the state. Waits for events, but not much longer than the
    /// flush interval. Returns the number of events received.
    pub async fn pump(&mut self) -> usize {
        crash::fault_point("consumer");
        if self.closed && !self.has_tools() {
            // There will be no more events.
            std::future::pending::<()>().await;
        }
        // Signals and keys are processed between two batches, however many events wait.
        tokio::task::yield_now().await;
        let flush_ms = u64::from(self.plan.composed.config.output.flush_ms);
        let wait = Duration::from_millis(flush_ms.clamp(10, 1000));
        let received = self.inbox.receive(wait).await;
        self.take_in();
        self.tick();
        received
    }

    /// Adds an event of the session itself, after all earlier ones.
    fn emit(&mut self, event: Event) {
        self.inbox.tx.send_as_consumer(event);
        self.drain();
    }

    /// Stores a message of the screen while the run is in progress.
    pub fn keep_message(&mut self, text: &str) {
        if self.state.finished.is_none() && !self.closed {
            self.notice(Level::Info, "screen", text.to_owned());
        }
    }

    fn notice(&mut self, level: Level, source: &str, text: String) {
        self.emit(Event::Notice(Notice { level, source: source.to_owned(), text }));
    }

    /// Processes all events that have been sent so far.
    fn drain(&mut self) {
        self.inbox.rx.take_waiting(&mut self.inbox.batch);
        self.take_in();
        if self.closed {
            // Ticks may have stopped.
            self.flush();
        }
    }

    fn take_in(&mut self) {
        self.mark_stop();
        for mut envelope in std::mem::take(&mut self.inbox.batch).drain(..) {
            if self.state.finished.is_some() {
                // A thread that is stopping may still send its last reading.
                if envelope.event.is_telemetry() {
                    continue;
                }
                // Later events, e.g. reports of tools, do not prolong the run.
                envelope.t = self.state.now;
            }
            if matches!(envelope.event, Event::Ready(_)) {
                self.recording.write_environment(&self.state);
            }
            if let Some(recorder) = self.recording.recorder() {
                recorder.record(&envelope);
            }
            if let Event::Notice(notice) = &envelope.event {
                tracing::info!(source = notice.source, level = ?notice.level, "{}", notice.text);
            }
            self.state.apply(&envelope);
        }
        if self.state.finished.is_some() {
            self.close();
        }
    }

    /// Inserts a stop of the process between the last event before it and the first one after it. Simulated time did
    /// not advance.
    fn mark_stop(&mut self) {
        if self.closed || self.plan.simulated() {
            return;
        }
        let Some(ago) = self.monitors.stops.unreported() else { return };
        let continued = Stamp(self.inbox.tx.clock().now().0.saturating_sub(ago.as_nanos() as u64));
        let times: Vec<Stamp> = self.inbox.batch.iter().map(|envelope| envelope.t).collect();
        let (at, since, t) = stopped::between(self.state.now, &times, continued);
        let text = format!(
            "the process was stopped for {:.1} s; the tokens of that time are left out of all latencies",
            t.since(since).as_secs_f64()
        );
        let events = [
            Event::ProcessStopped(ProcessStopped { since }),
            Event::Notice(Notice { level: Level::Warn, source: "process".to_owned(), text }),
        ];
        self.inbox.batch.splice(at..at, events.map(|event| Envelope { t, event }));
    }

    /// Adds the time of a frame to the overhead.
    pub fn drew(&mut self, elapsed: Duration) {
        self.monitors.observer.frame(elapsed);
    }

    /// Pauses or resumes the workload.
    pub fn toggle_pause(&mut self) {
        self.control.set_paused(!self.control.is_paused());
    }

    /// Names the current window and starts the next one. The snapshot is written to the run directory. Returns a
    /// message for the user.
    pub fn snapshot(&mut self, name: &str) -> String {
        let taken = |name: &str| {
            let file = snapshot_file(name);
            self.state.snapshots.iter().any(|snapshot| snapshot_file(&snapshot.name) == file)
        };
        let mut free = name.to_owned();
        let mut n = 2;
        while taken(&free) {
            free = format!("{name}-{n}");
            n += 1;
        }
        let empty = self.state.window.output_tokens == 0;
        self.emit(Event::Snapshot(SnapshotTaken { name: free.clone() }));
        self.recording.write_snapshot(&self.state);
        if self.closed {
            self.recording.write_reports(&self.state);
        }
        match self.loss() {
            _ if empty => format!("snapshot {free}: nothing was measured since the last one"),
            Some(loss) => format!("snapshot {free} is on the screen only: {loss}"),
            None if self.dir().is_none() => {
                format!("snapshot {free} is on the screen only: output.record is false")
            }
            None => format!("snapshot {free} saved; d compares"),
        }
    }

    /// The directory of the run, if it is recorded.
    pub fn dir(&self) -> Option<&Path> {
        self.recording.dir().map(RunDir::path)
    }

    /// The losses of the recording.
    pub fn loss(&self) -> Option<Loss> {
        let dropped = || match self.inbox.rx.lost() {
            0 => None,
            lost => Some(Loss::Events { lost }),
        };
        self.recording.loss().or_else(dropped)
    }

    /// Stops the work and closes the recording. `outcome` and `cause` apply to a run that has not ended by itself.
    pub fn end(&mut self, outcome: Outcome, cause: Option<String>) -> SessionSummary {
        self.stop(outcome, cause);
        let loss = self.loss();
        SessionSummary {
            finished: self.state.finished.clone().unwrap_or(RunFinished { outcome, cause: None }),
            metrics: self.state.summary(),
            dir: self.dir().filter(|_| !matches!(loss, Some(Loss::Displaced { .. }))).map(Path::to_owned),
            loss,
            tool_failures: self.tools.failures.clone(),
            began: self.began(),
        }
    }

    /// A server that this run started has a transcript, which shows why it did not answer.
    fn began(&self) -> bool {
        let waits = matches!(&self.plan.work, Work::Server(server) if server.program.is_none());
        !waits || self.state.server.found.is_some() || self.state.has_begun()
    }

    /// Failures of tools that the configuration requests.
    pub fn tool_failures(&self) -> &[String] {
        &self.tools.failures
    }

    /// Requests the end of the work, without waiting for it.
    pub fn cancel(&mut self) {
        self.control.cancel();
        self.tools.work.iter().for_each(ToolWork::cancel);
        self.tools.left.clear();
    }

    /// Whether no thread of this run is working.
    pub fn is_idle(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
            && self.tools.work.as_ref().is_none_or(ToolWork::is_idle)
    }

    fn stop(&mut self, outcome: Outcome, cause: Option<String>) {
        self.cancel();
        let timeout = if self.plan.work.has_program() { STOP_PROGRAM_TIMEOUT } else { STOP_TIMEOUT };
        let deadline = Instant::now() + timeout;
        while Instant::now() < deadline && !self.is_idle() {
            // A simulated engine may be waiting for room.
            self.drain();
            thread::sleep(Duration::from_millis(2));
        }
        // The thread of a tool kills its processes, which may be late on a busy machine. The rest of its work is
        // waiting for them.
        if let Some(tool) = self.tool().filter(|_| !self.is_idle()) {
            under::kill_runs(tool.name());
        }
        self.tools.work = None;
        self.drain();
        if self.state.finished.is_none() {
            self.emit(Event::RunFinished(RunFinished { outcome, cause }));
        }
        self.close();
    }

    /// Stops the sampler and writes the documents, after the last event of the run.
    fn close(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        self.control.cancel();
        self.monitors.endpoint = None;
        // Before the documents, so that the recording is complete once they exist.
        self.flush();
        self.recording.write_environment(&self.state);
        self.recording.write_reports(&self.state);
    }

    /// Writes the recording so far, for a reader of the file.
    pub fn flush(&mut self) {
        if let Some(recorder) = self.recording.recorder() {
            recorder.flush();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.closed || self.tools.work.is_some() {
            self.stop(Outcome::Interrupted, crash::first_panic());
        }
    }
}

/// Starts a thread, or reports why the system refuses it.
fn spawn_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, String> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map_err(|e| {
        format!(
            "cannot start the thread {name}: {e}; end other programs, or raise the limits on processes (ulimit -u) and memory \
             (ulimit -v)"
        )
    })
}

#[cfg(test)]
mod cuda_tests;
