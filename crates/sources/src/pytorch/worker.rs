//! The thread that communicates with the worker: sends it requests one after another, and turns its reports into events
//! of the run.

use std::{
    io::{self, BufRead, BufReader, Write},
    path::PathBuf,
    process::{ChildStdin, ChildStdout},
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    operators::{self, MeanStep},
    protocol::{self, Facts, Failure, Hello, Order, ProfileOrder, Report, RunOrder, Setup},
    trouble::WorkerError,
};
use crate::attach::{Pipes, ProgramControl, RunClock};
use gpu_traces as kernels;
use llmprof_base::{foreign, units::millis};
use llmprof_event::{
    Allocator, AllocatorSample, Ending, Event, EventTx, ImagesEncoded, KernelReport, Level, Phase,
    Prediction, Preparing, Ready, RequestFinished, RequestStarted, Stamp, Token, ToolRun, ToolState,
};
use llmprof_workload::{Control, Workload, text::Tokenizer};

/// The interval at which the controls are read.
const TICK: Duration = Duration::from_millis(20);
/// Maximum lines that wait for this thread; beyond that the worker's pipe fills.
const WAITING_LINES: usize = 1 << 14;
/// Time for the process to start.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Time for the exit code of a process that has closed its pipe. Another thread reaps it, and may be late.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum texts of the worker in the log.
const MAX_LOGGED: u32 = 200;
/// Maximum bytes of each.
const MAX_STRANGE: usize = 4096;
/// Maximum images of a request whose sizes are recorded.
const MAX_PICTURES: usize = 64;
/// Maximum rows of a table in the recording.
const MAX_ROWS: usize = 1000;
const TOOL: &str = "torch.profiler";

/// The work of the worker.
#[derive(Debug, Clone)]
pub struct WorkerPlan {
    pub setup: Setup,
    /// The interpreter, for messages.
    pub python: String,
    pub command: Vec<std::ffi::OsString>,
    pub workload: Workload,
    /// The images of each request, starting with the first measured one and repeating after the last; empty without
    /// images.
    pub images: Arc<[Vec<PathBuf>]>,
    /// The prompt text for images.
    pub question: String,
    pub profile: Option<ProfileOrder>,
    pub timeout: Duration,
    pub answers: bool,
}

impl WorkerPlan {
    /// The images of a request, counted from the first warm-up request.
    fn pictures(&self, request: u32) -> &[PathBuf] {
        let at = request.checked_sub(self.workload.warmup).unwrap_or(request) as usize;
        match self.images.len() {
            0 => &[],
            n => &self.images[at % n],
        }
    }

    /// Whether decode steps are compiled.
    pub fn is_compiled(&self) -> bool {
        self.setup.compile != "none"
    }
}

/// The communication with one worker.
pub struct Worker {
    pub plan: WorkerPlan,
    pub tx: EventTx,
    pub control: Control,
    pub program: Arc<ProgramControl>,
    pub pipes: Receiver<Pipes>,
    /// Turns answers into text.
    pub tokenizer: Option<Arc<Tokenizer>>,
}

/// The reader's report about the worker's output.
enum WorkerOutput {
    Report(Report),
    /// A line that is not a report.
    Strange(String),
}

/// The request in progress.
struct Running {
    request: u32,
    started: Stamp,
    /// Whether its start was sent, which needs the length of its prompt.
    announced: bool,
    prompt_tokens: u32,
    images: u32,
    tokens: u32,
}

struct Conversation<'a> {
    worker: &'a Worker,
    orders: Sender<Vec<u8>>,
    clock: RunClock,
    hello: Hello,
    ready: bool,
    paused: bool,
    running: Option<Running>,
    next: u32,
    profiled: bool,
    ending: bool,
    logged: u32,
    last: Stamp,
    memory: Option<AllocatorSample>,
    measured: MeasuredSteps,
}

/// The times of measured steps, for the kernels of profiled ones.
#[derive(Debug, Default)]
struct MeasuredSteps {
    vision: Sums,
    prefill: Sums,
    decode: Sums,
}

#[derive(Debug, Default)]
struct Sums {
    steps: u64,
    host_ns: f64,
    /// Set if the device has a clock.
    device_ns: Option<f64>,
}

impl Sums {
    fn add(&mut self, host_ns: f64, device_ns: Option<u64>) {
        self.steps += 1;
        self.host_ns += host_ns;
        if let Some(ns) = device_ns {
            *self.device_ns.get_or_insert(0.0) += ns as f64;
        }
    }

    fn mean(&self) -> Option<MeanStep> {
        let steps = self.steps as f64;
        let host_ns = self.host_ns / steps;
        let step_ns = self.device_ns.map_or(host_ns, |ns| (ns / steps).min(host_ns));
        (self.steps > 0).then_some(MeanStep { step_ns, between_ns: host_ns - step_ns })
    }
}

impl MeasuredSteps {
    fn add(&mut self, first: bool, host_ns: f64, device_ns: Option<u64>) {
        if first { self.prefill.add(host_ns, device_ns) } else { self.decode.add(host_ns, device_ns) }
    }

    fn phase(&self, phase: Phase) -> Option<MeanStep> {
        match phase {
            // The next step of this kind begins with another request.
            Phase::Vision => self.vision.mean().map(|mean| MeanStep { between_ns: 0.0, ..mean }),
            Phase::Prefill => self.prefill.mean().map(|mean| MeanStep { between_ns: 0.0, ..mean }),
            Phase::Decode => self.decode.mean(),
            _ => None,
        }
    }
}

impl Worker {
    /// Runs the workload to its end.
    pub fn run(self) -> Result<(), WorkerError> {
        self.tx.send(Event::Preparing(Preparing { step: "starting Python".to_owned(), done: 0, total: 1 }));
        let pipes = self.receive_pipes()?;
        let (orders, lines) = self.start_threads(pipes)?;
        let mut conversation = Conversation {
            worker: &self,
            clock: RunClock::now(self.tx.clock().now()),
            orders,
            hello: Hello::default(),
            ready: false,
            paused: false,
            running: None,
            next: 0,
            profiled: false,
            ending: false,
            logged: 0,
            last: Stamp::default(),
            memory: None,
            measured: MeasuredSteps::default(),
        };
        conversation.send(&Order::Config(&self.plan.setup));
        let done = conversation.receive(&lines);
        conversation.end_request();
        done
    }

    fn receive_pipes(&self) -> Result<Pipes, WorkerError> {
        let started = Instant::now();
        loop {
            match self.pipes.recv_timeout(TICK) {
                Ok(pipes) => return Ok(pipes),
                Err(RecvTimeoutError::Disconnected) => {
                    // The starting thread has reported the reason.
                    return Err(WorkerError::Cancelled);
                }
                Err(RecvTimeoutError::Timeout) if self.control.is_cancelled() => {
                    return Err(WorkerError::Cancelled);
                }
                Err(RecvTimeoutError::Timeout) if started.elapsed() > START_TIMEOUT => {
                    return Err(WorkerError::NotStarted("the process did not begin".to_owned()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// One thread per direction: neither a worker that does not read nor one that does not write blocks this thread.
    fn start_threads(&self, pipes: Pipes) -> Result<(Sender<Vec<u8>>, Receiver<WorkerOutput>), WorkerError> {
        let (orders, to_write) = mpsc::channel::<Vec<u8>>();
        let (heard, lines) = mpsc::sync_channel(WAITING_LINES);
        let refused = |e: std::io::Error| WorkerError::NotStarted(e.to_string());
        let Pipes { to, from } = pipes;
        let start = |name: &str, work: Box<dyn FnOnce() + Send>| {
            thread::Builder::new().name(name.to_owned()).spawn(work).map_err(refused)
        };
        start("llmprof-orders", Box::new(move || write_orders(to, &to_write)))?;
        start("llmprof-reports", Box::new(move || read_reports(from, &heard)))?;
        Ok((orders, lines))
    }
}

fn write_orders(mut to: ChildStdin, orders: &Receiver<Vec<u8>>) {
    for line in orders {
        if to.write_all(&line).and_then(|()| to.flush()).is_err() {
            return;
        }
    }
}

fn read_reports(from: ChildStdout, heard: &SyncSender<WorkerOutput>) {
    let mut from = BufReader::with_capacity(1 << 16, from);
    let mut line = Vec::new();
    while let Ok(Some(skipped)) = next_line(&mut from, protocol::MAX_LINE, &mut line) {
        let said = match protocol::parse(&line).filter(|_| skipped == 0) {
            Some(report) => WorkerOutput::Report(report),
            None => WorkerOutput::Strange(strange(&line, skipped)),
        };
        if heard.send(said).is_err() {
            return;
        }
    }
}

/// A line that is not a report, for the log.
fn strange(line: &[u8], skipped: u64) -> String {
    let text = foreign::message(&String::from_utf8_lossy(&line[..line.len().min(MAX_STRANGE)]));
    match skipped {
        0 => text,
        _ => format!("a line of {} bytes was skipped: {text}…", line.len() as u64 + skipped),
    }
}

/// Reads the next line without its end into `line`, at most `limit` bytes of it. Returns the number of skipped bytes;
/// `None` at the end.
fn next_line(from: &mut impl BufRead, limit: usize, line: &mut Vec<u8>) -> io::Result<Option<u64>> {
    line.clear();
    let (mut skipped, mut is_there) = (0, false);
    loop {
        let bytes = match from.fill_buf() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            bytes => bytes?,
        };
        if bytes.is_empty() {
            return Ok(is_there.then_some(skipped));
        }
        is_there = true;
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let part = &bytes[..end.unwrap_or(bytes.len())];
        let kept = part.len().min(limit - line.len());
        line.extend_from_slice(&part[..kept]);
        skipped += (part.len() - kept) as u64;
        let used = part.len() + usize::from(end.is_some());
        from.consume(used);
        if end.is_some() {
            return Ok(Some(skipped));
        }
    }
}

impl Conversation<'_> {
    fn send(&self, order: &Order<'_>) {
        // A worker that has ended is detected by its silence.
        let _ = self.orders.send(order.line());
    }

    fn receive(&mut self, lines: &Receiver<WorkerOutput>) -> Result<(), WorkerError> {
        let mut last_heard = Instant::now();
        loop {
            if self.worker.control.is_cancelled() {
                return Err(WorkerError::Cancelled);
            }
            self.pass_on_pause();
            match lines.recv_timeout(TICK) {
                Ok(WorkerOutput::Report(report)) => {
                    last_heard = Instant::now();
                    if let Some(end) = self.take(report) {
                        return end;
                    }
                }
                Ok(WorkerOutput::Strange(text)) => {
                    last_heard = Instant::now();
                    self.log(Level::Info, &text);
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
                Err(RecvTimeoutError::Timeout) => {
                    if self.paused {
                        last_heard = Instant::now();
                    }
                    let limit = self.worker.plan.timeout;
                    if last_heard.elapsed() > limit {
                        return Err(self.silent(limit));
                    }
                }
            }
        }
    }

    fn pass_on_pause(&mut self) {
        let paused = self.worker.control.is_paused();
        if paused != self.paused {
            self.paused = paused;
            self.send(if paused { &Order::Pause } else { &Order::Resume });
        }
    }

    fn silent(&self, limit: Duration) -> WorkerError {
        let doing = match &self.running {
            _ if !self.ready => "loading the model",
            Some(_) => "running a request",
            None => "profiling operators",
        };
        let pid = if self.hello.pid > 0 { self.hello.pid.to_string() } else { "PID".to_owned() };
        WorkerError::Silent { seconds: limit.as_secs(), doing, pid }
    }

    /// The pipe is closed: the process has ended, or will soon.
    fn ended(&self) -> WorkerError {
        let since = Instant::now();
        while since.elapsed() < EXIT_TIMEOUT && !self.worker.control.is_cancelled() {
            if let Some(code) = self.worker.program.exit_code() {
                let how = match code {
                    0 => String::new(),
                    137 => {
                        ", killed by signal 9 (the host was out of memory, or a user killed it)".to_owned()
                    }
                    139 => ", with a segmentation fault".to_owned(),
                    code @ 129.. => format!(", killed by signal {}", code - 128),
                    code => format!(" with exit code {code}"),
                };
                return WorkerError::Ended { how };
            }
            thread::sleep(TICK);
        }
        WorkerError::Ended { how: String::new() }
    }

    /// A text of the worker, which may write any number.
    fn log(&mut self, level: Level, text: &str) {
        self.logged = self.logged.saturating_add(1);
        match self.logged {
            n if n < MAX_LOGGED => self.notice(level, text),
            MAX_LOGGED => self.notice(Level::Warn, "the worker prints more than the Log keeps"),
            _ => {}
        }
    }

    fn notice(&self, level: Level, text: &str) {
        if !text.trim().is_empty() {
            self.worker.tx.notice(level, "pytorch", foreign::message(text));
        }
    }

    /// A time of the worker: not before the previous one, and not in the future.
    fn at(&mut self, monotonic_ns: u64) -> Stamp {
        let now = self.worker.tx.clock().now();
        let t = Stamp(self.clock.stamp(monotonic_ns)).max(self.last).min(now);
        self.last = t;
        t
    }

    fn take(&mut self, report: Report) -> Option<Result<(), WorkerError>> {
        let out_of_order = |what| Some(Err(WorkerError::OutOfOrder { what }));
        match report {
            // Loading is reported only once.
            Report::Progress { .. } if self.ready => {}
            Report::Progress { step, done, total } => {
                let step = foreign::line(&step, 80);
                self.worker.tx.send(Event::Preparing(Preparing { step, done, total: total.max(1) }));
            }
            Report::Hello(hello) => self.greet(hello),
            Report::Ready(facts) if !self.ready => {
                self.ready = true;
                self.announce(&facts);
                return self.go_on();
            }
            Report::Ready(_) => return out_of_order("it was ready twice"),
            Report::Request { t, r } => {
                if r.checked_add(1) != Some(self.next) || self.running.is_some() {
                    return out_of_order("a request that was not sent");
                }
                let started = self.at(t);
                self.begin(r, started);
            }
            Report::Length { r, tokens } => {
                if let Some(running) = self.running.as_mut().filter(|running| running.request == r) {
                    running.prompt_tokens = tokens;
                }
                self.announce_request();
            }
            Report::Vision { t, r, images, tokens, mut sizes, patches, d } => {
                self.announce_request();
                if self.running.as_ref().is_some_and(|running| running.request == r && running.tokens == 0) {
                    let before = self.last;
                    let t = self.at(t);
                    if r >= self.worker.plan.workload.warmup {
                        self.measured.vision.add(t.since(before).as_nanos() as f64, d);
                    }
                    sizes.truncate(MAX_PICTURES);
                    let encoded = ImagesEncoded { request: r, images, tokens, sizes, patches, device_ns: d };
                    self.worker.tx.send_at(t, Event::ImagesEncoded(encoded));
                }
            }
            Report::Token { t, r, i, id, d } => {
                self.announce_request();
                let Some(running) = self.running.as_mut().filter(|running| running.request == r) else {
                    return out_of_order("a token of another request");
                };
                if i != running.tokens {
                    return out_of_order("a token twice, or one too few");
                }
                running.tokens += 1;
                let (first, warmup) = (i == 0, r < self.worker.plan.workload.warmup);
                let before = self.last;
                let t = self.at(t);
                if !warmup {
                    self.measured.add(first, t.since(before).as_nanos() as f64, d);
                }
                let token = Token { request: r, index: i, id, device_ns: d, speculation: None };
                self.worker.tx.send_at(t, Event::Token(token));
            }
            Report::Finished { t, r, complete, ids, texts } => {
                if self.running.as_ref().is_none_or(|running| running.request != r) {
                    return out_of_order("the end of another request");
                }
                let t = self.at(t);
                self.finish(t, complete, &ids, &texts);
                return self.go_on();
            }
            Report::Paused { t } => {
                let t = self.at(t);
                self.worker.tx.send_at(t, Event::WorkloadPaused);
            }
            Report::Resumed { t } => {
                let t = self.at(t);
                self.worker.tx.send_at(t, Event::WorkloadResumed);
            }
            Report::Memory { live, peak, reserved } => {
                let sample = AllocatorSample {
                    allocator: Allocator::Gpu,
                    live_bytes: live,
                    peak_bytes: peak.max(live),
                    reserved_bytes: Some(reserved.max(live)),
                };
                if self.memory != Some(sample) {
                    self.memory = Some(sample);
                    self.worker.tx.send(Event::Allocator(sample));
                }
            }
            Report::Operators(timed) => {
                if let Some(window) = operators::host_window(&timed) {
                    self.worker.tx.send(Event::Operators(Box::new(window)));
                }
            }
            Report::Profiling { doing, share } => {
                let doing = foreign::line(&doing, 80);
                let share = Some(share).filter(|share| (0.0..=1.0).contains(share));
                self.tool(ToolState::Working { doing, share });
            }
            Report::Profiled { file } => {
                self.read_trace(&file);
                return self.go_on();
            }
            Report::NotProfiled(failure) => {
                self.log_trace(&failure);
                let reason = WorkerError::from_failure(&failure, &self.worker.plan.python).to_string();
                self.notice(Level::Error, &format!("{TOOL}: {reason}"));
                let remedy = "profiling.torch.enable=false skips it".to_owned();
                self.tool(ToolState::Failed { reason, remedy });
                return self.go_on();
            }
            Report::Log { level, text } => {
                let level = if level == "warn" { Level::Warn } else { Level::Info };
                self.log(level, &text);
            }
            Report::Failed(failure) => {
                self.log_trace(&failure);
                return Some(Err(WorkerError::from_failure(&failure, &self.worker.plan.python)));
            }
            Report::Done => {
                return Some(if self.ending {
                    Ok(())
                } else {
                    Err(WorkerError::OutOfOrder { what: "its end" })
                });
            }
        }
        None
    }

    fn greet(&mut self, hello: Hello) {
        let transformers = hello
            .transformers
            .as_ref()
            .map(|version| format!(", transformers {version}"))
            .unwrap_or_default();
        let cuda = match (&hello.gpu, &hello.cuda) {
            (Some(gpu), Some(cuda)) => format!(", CUDA {cuda}, {gpu}"),
            _ => String::new(),
        };
        let text = format!(
            "Python {} ({}), torch {}{transformers}{cuda}",
            hello.python, hello.executable, hello.torch
        );
        self.notice(Level::Info, &text);
        self.hello = hello;
    }

    fn announce(&self, facts: &Facts) {
        let Worker { tx, .. } = self.worker;
        let prepare_ms = if facts.ms.is_finite() { (facts.ms.max(0.0) * 1e3).round() / 1e3 } else { 0.0 };
        tx.send(Event::Ready(Ready { prepare_ms }));
        let attention =
            facts.attention.as_ref().map(|name| format!(", attention {name}")).unwrap_or_default();
        let compiled = match facts.compile.as_deref() {
            None | Some("none") => ", eager".to_owned(),
            Some(mode) => format!(", decode steps compiled ({mode})"),
        };
        let cache = match facts.static_cache {
            Some(true) => ", KV cache of fixed size",
            _ => "",
        };
        self.notice(
            Level::Info,
            &format!("{} is ready after {}{attention}{compiled}{cache}", facts.model, millis(prepare_ms)),
        );
    }

    /// Sends the next request or the profile order, or ends.
    fn go_on(&mut self) -> Option<Result<(), WorkerError>> {
        let Worker { plan, control, .. } = self.worker;
        let w = &plan.workload;
        let planned = w.warmup.saturating_add(w.requests);
        if self.next < planned || (w.open_ended && !control.is_finishing()) {
            let order = self.order(self.next);
            self.next += 1;
            self.send(&Order::Run(&order));
            return None;
        }
        match plan.profile.as_ref().filter(|_| !self.profiled) {
            Some(profile) => {
                self.profiled = true;
                let prompt = Some(RunOrder { answers: false, ..self.order(w.warmup) });
                self.send(&Order::Profile(&ProfileOrder { prompt, ..profile.clone() }));
            }
            None => {
                self.ending = true;
                self.send(&Order::End);
            }
        }
        None
    }

    fn order(&self, request: u32) -> RunOrder {
        let plan = &self.worker.plan;
        let w = &plan.workload;
        let prompts = w.prompts(request);
        let images: Vec<String> =
            plan.pictures(request).iter().map(|path| path.display().to_string()).collect();
        let text = match images.is_empty() {
            true => w.text(request).unwrap_or_default().to_owned(),
            false => plan.question.clone(),
        };
        RunOrder {
            request,
            warmup: request < w.warmup,
            ids: prompts.ids.chunks(prompts.len().max(1)).map(<[u32]>::to_vec).collect(),
            text,
            images,
            output: w.output_tokens,
            stops: w.stop_ids.clone(),
            ignore_eos: w.stop_ids.is_empty(),
            answers: plan.answers && request >= w.warmup,
        }
    }

    fn begin(&mut self, request: u32, started: Stamp) {
        let plan = &self.worker.plan;
        let images = plan.pictures(request).len() as u32;
        let prompt_tokens = plan.workload.prompts(request).len() as u32;
        self.running = Some(Running { request, started, announced: false, prompt_tokens, images, tokens: 0 });
        if images == 0 {
            self.announce_request();
        }
    }

    /// Sends the start of the request, once.
    fn announce_request(&mut self) {
        let Some(running) = self.running.as_mut().filter(|running| !running.announced) else { return };
        running.announced = true;
        let Worker { plan, tx, .. } = self.worker;
        let w = &plan.workload;
        let started = RequestStarted {
            request: running.request,
            warmup: running.request < w.warmup,
            batch: w.batch,
            prompt_tokens: running.prompt_tokens,
            output_tokens: w.output_tokens,
            cooldown: false,
            joined: false,
            images: running.images.saturating_mul(w.batch),
        };
        tx.send_at(running.started, Event::RequestStarted(started));
    }

    fn finish(&mut self, t: Stamp, complete: bool, ids: &[Vec<u32>], texts: &[String]) {
        self.announce_request();
        let Some(running) = self.running.take() else { return };
        let Worker { plan, tx, .. } = self.worker;
        let complete = complete && running.tokens > 0;
        tx.send_at(
            t,
            Event::RequestFinished(RequestFinished { request: running.request, complete, served: None }),
        );
        if !complete || !plan.answers || running.request < plan.workload.warmup {
            return;
        }
        if let Err(e) = self.report_predictions(&running, ids, texts) {
            self.notice(Level::Error, &format!("request {}: {e}", running.request));
        }
    }

    fn report_predictions(
        &self,
        running: &Running,
        ids: &[Vec<u32>],
        texts: &[String],
    ) -> Result<(), llmprof_workload::text::TextError> {
        let Worker { plan, tx, tokenizer, .. } = self.worker;
        let w = &plan.workload;
        let order = self.order(running.request);
        for (sequence, answer) in ids.iter().enumerate().take(w.batch as usize) {
            let text = match (texts.get(sequence), tokenizer) {
                (Some(text), _) => text.clone(),
                (None, Some(tokenizer)) => tokenizer.text(answer)?,
                (None, None) => answer.iter().map(u32::to_string).collect::<Vec<_>>().join(" "),
            };
            let prompt = match (order.text.is_empty(), tokenizer, order.ids.get(sequence)) {
                (true, Some(tokenizer), Some(ids)) => tokenizer.text(ids)?,
                _ => order.text.clone(),
            };
            let ended = answer.last().is_some_and(|id| w.stop_ids.contains(id));
            tx.send(Event::Prediction(Box::new(Prediction {
                request: running.request - w.warmup,
                sequence: sequence as u32,
                prompt,
                text,
                prompt_tokens: running.prompt_tokens,
                output_tokens: answer.len() as u32,
                ending: if ended { Ending::Stop } else { Ending::Length },
            })));
        }
        Ok(())
    }

    /// A request that the worker did not end.
    fn end_request(&mut self) {
        if self.running.is_some() {
            let now = self.worker.tx.clock().now();
            self.finish(now, false, &[], &[]);
        }
    }

    fn log_trace(&self, failure: &Failure) {
        for line in failure.trace.lines() {
            self.notice(Level::Info, line);
        }
    }

    fn tool(&self, state: ToolState) {
        let run = ToolRun { tool: TOOL.to_owned(), phase: Phase::Idle, state };
        self.worker.tx.send(Event::ToolRun(Box::new(run)));
    }

    /// Turns the trace into tables, and kernels by operator.
    fn read_trace(&self, file: &str) {
        let Worker { plan, tx, program, .. } = self.worker;
        // The path was set by this program: the worker only repeats it.
        let Some(expected) = plan.profile.as_ref().map(|profile| &profile.file) else { return };
        if file != expected {
            return;
        }
        self.tool(ToolState::Working { doing: "reading the trace".to_owned(), share: Some(0.8) });
        let mut tables = match kernels::open(std::path::Path::new(expected)) {
            Ok(tables) => tables,
            Err(e) => {
                self.notice(Level::Error, &e.to_string());
                let remedy = "profiling.torch.enable=false skips it".to_owned();
                return self.tool(ToolState::Failed { reason: e.to_string(), remedy });
            }
        };
        operators::assign(&mut tables);
        for window in operators::kernel_windows(&tables, |phase| self.measured.phase(phase)) {
            // Steps that were recorded live have no overhead of this profiler. They do not identify the encoding of
            // images.
            if window.phase == Phase::Vision || !program.has_recorded() {
                tx.send(Event::Kernels(Box::new(window)));
            }
        }
        if let Some(table) = tables.first_mut() {
            table.notes.push(
                "torch.profiler delays each launch: the time between kernels is longer than in measured steps"
                    .to_owned(),
            );
        }
        for table in &mut tables {
            table.sort(Default::default());
            table.top(MAX_ROWS);
        }
        let name = std::path::Path::new(expected).file_name();
        let name = name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        self.tool(ToolState::Done);
        tx.send(Event::KernelReport(Box::new(KernelReport {
            tool: format!("{TOOL} {}", foreign::line(&self.hello.torch, 40)),
            phase: None,
            file: format!("torch_profiler/{name}"),
            tables,
        })));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn an_endless_line_is_skipped_in_bounded_memory() {
        let text = [b"{\"a\":1}\n".to_vec(), vec![b'{'; 5000], b"\nrest".to_vec()].concat();
        let mut from = BufReader::with_capacity(64, &text[..]);
        let mut line = Vec::new();
        let mut lines = Vec::new();
        while let Some(skipped) = next_line(&mut from, 100, &mut line).unwrap() {
            lines.push((line.len(), skipped));
            assert!(line.capacity() < 1000);
        }
        // The end of a long line does not count as a separate line.
        assert_eq!(lines, [(7, 0), (100, 4900), (4, 0)]);
        assert!(strange(b"{{{", 9).starts_with("a line of 12 bytes was skipped: {{{"));
        let endless = io::repeat(b'x').take(1 << 26);
        assert_eq!(next_line(&mut BufReader::new(endless), 10, &mut line).unwrap(), Some((1 << 26) - 10));
    }
}
