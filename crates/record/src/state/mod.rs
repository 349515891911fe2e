//! The state of a run for screens and reports: a pure fold over events.

mod by_context;
mod diagnosis;
mod efficiency;
mod incidents;
mod kernels;
mod kind;
mod loading;
mod log;
mod operators;
mod programs;
mod ranks;
mod recording;
mod requests;
mod sample;
mod series;
mod server;
mod speculation;
mod telemetry;
mod trail;
mod vision;

use std::{collections::VecDeque, sync::Arc, time::Duration};

pub use by_context::{AtContext, ByContext};
pub use efficiency::Used;
pub use incidents::{FlightRecorder, Incident, IncidentKind, KeptSample};
pub use kernels::{KEPT_REPORTS, KernelState, LiveKernels, StepTable, WindowKernels};
pub use llmprof_analysis::roofline::OperatorBasis;
pub use loading::Loading;
pub use log::{Log, LogLine};
pub use operators::{AllocatorState, HostOperators, OperatorState};
pub use programs::{FollowedProcess, Programs};
pub use ranks::RanksState;
pub use recording::{Measured, RecordedSpan, Recording, Split};
use requests::Gap;
pub use requests::{ActiveRequest, ActiveRequests};
use serde::{Deserialize, Serialize};
pub use series::{Bucket, Series};
pub use server::{Lane, MeanOf, PartTimes, ServerState, TtftPart};
pub use speculation::SpeculationTally;
pub use telemetry::{GpuState, HostState};
pub use trail::{TokenMark, TokenTrail};
pub use vision::VisionTally;

use llmprof_analysis::{
    compare::{RequestTrace, Sample, Thinned},
    distribution::Distribution,
    energy::{Energy, energy},
    metrics::{Metrics, MetricsSummary},
    startup::{Stage, Startup},
    throttle::Work,
};
use llmprof_event::{
    AlertChanged, Device, Envelope, Event, ExpertUse, GpuAbsent, GpuSource, ImagesEncoded, Level, Notice,
    ObserverSample, Outcome, Phase, RequestFinished, RunFinished, RunStarted, SamplerCost, Stamp, WorkKind,
    readings::Reading, reasons,
};

/// A rate covers at least this many tokens.
const RATE_TOKENS: usize = 8;
const KEPT_SNAPSHOTS: usize = 64;
const KEPT_ALERTS: usize = 64;
/// Maximum number of monitored servers.
pub const MAX_WATCHED: usize = 16;

/// Appends `item`; the oldest item is dropped once there are `max`.
fn push_bounded<T>(items: &mut VecDeque<T>, max: usize, item: T) {
    if items.len() >= max {
        items.pop_front();
    }
    items.push_back(item);
}

/// The state of a run at its latest event. Time comes from the envelopes, never from a clock, and memory
/// does not grow with the length of the run.
#[derive(Debug, Clone, Default)]
pub struct RunState {
    pub now: Stamp,
    pub run: Option<RunStarted>,
    pub phase: Phase,
    pub loading: Option<Loading>,
    pub prepare_ms: Option<f64>,
    pub workload_paused_at: Option<Stamp>,
    pub active: ActiveRequests,
    /// Excludes the pauses since then.
    first_request_at: Option<Stamp>,
    pub warmup_done: u32,
    pub requests_done: u32,
    /// The run so far.
    pub total: Split<Metrics>,
    /// Since the last snapshot.
    pub window: Split<Metrics>,
    /// Measured time has been added to the metrics up to here.
    counted_to: Option<Stamp>,
    /// The requests since the last snapshot, one by one.
    trace: Split<RequestTrace>,
    /// All requests with the gaps between tokens, if they are kept.
    full_trace: Option<Box<Split<RequestTrace>>>,
    pub trail: TokenTrail,
    /// ITL in milliseconds over the run, warm-up included.
    pub itl_ms: Series,
    /// TTFT in milliseconds over the run, warm-up included, at the time of the first token.
    pub ttft_ms: Series,
    /// Measured ITL by the length of the context.
    pub by_context: Split<ByContext>,
    /// The seconds around incidents.
    pub flight: FlightRecorder,
    /// TPOT of the measured requests in order of time.
    tpots_ns: Split<Thinned<f64>>,
    pub gpus: Vec<GpuState>,
    pub gpu_absent: Option<GpuAbsent>,
    pub host: HostState,
    pub observer: Option<ObserverSample>,
    /// Overhead of sampling the GPUs.
    pub sampler: Option<SamplerCost>,
    /// Processes of another program.
    pub programs: Programs,
    /// Several GPUs of a program, side by side.
    pub ranks: RanksState,
    /// A load-tested server, or the first monitored one.
    pub server: ServerState,
    /// The other monitored servers.
    pub more_servers: Vec<ServerState>,
    /// How often an alert became true, how often any changed, and the last changes.
    pub alerts_crossed: u64,
    pub alerts_changed: u64,
    pub alerts: VecDeque<(Stamp, AlertChanged)>,
    pub kernels: KernelState,
    pub operators: OperatorState,
    pub allocators: AllocatorState,
    pub experts: Option<ExpertUse>,
    pub speculation: Option<SpeculationTally>,
    /// The images that a vision-language model has encoded.
    pub vision: Option<VisionTally>,
    pub log: Log,
    /// The start of a server or of a followed program.
    pub startup: Startup,
    pub snapshots: VecDeque<Snapshot>,
    pub finished: Option<RunFinished>,
    pub events: u64,
    /// Unreadable lines of the recording, set by its reader.
    pub unreadable_lines: u64,
}

/// A named window of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    pub name: String,
    pub model: String,
    pub overrides: Vec<String>,
    pub metrics: MetricsSummary,
    /// Means over the window, if they were read.
    pub power_w: Option<f32>,
    pub sm_clock_mhz: Option<f32>,
    pub temp_c: Option<f32>,
    /// The data for comparisons. Not saved with the snapshot: the recording has it.
    #[serde(skip)]
    pub sample: Option<Arc<Sample>>,
    /// Not saved either.
    #[serde(skip)]
    pub kernels: Arc<WindowKernels>,
}

impl RunState {
    pub fn apply(&mut self, envelope: &Envelope) {
        let t = envelope.t;
        self.now = self.now.max(t);
        self.events += 1;
        self.phase = self.phase.after(&envelope.event);
        // While a tool runs, the workload waits and the GPU runs the tool's child process.
        let under_tool = self.kernels.working().is_some();
        let phase = if under_tool { Phase::Idle } else { self.phase };
        // In another program, only the steps that were recognised have a phase.
        let infers_steps = self.kind().infers_steps();
        for gpu in self.gpus.iter_mut().filter(|gpu| gpu.info.profiled) {
            if let Event::ProcessStopped(stop) = &envelope.event {
                gpu.ledger.phase(stop.since, Phase::Idle);
            }
            gpu.ledger.works_outside_phases = infers_steps;
            gpu.ledger.phase(t, phase);
        }
        match &envelope.event {
            Event::Token(token) => self.token(t, *token),
            Event::GpuSample(sample) => {
                let main = self.main_gpu().map(|gpu| (gpu.info.index, gpu.info.sm_clock_max_mhz));
                if let Some((_, max_mhz)) = main.filter(|(index, _)| *index == sample.gpu) {
                    if self.server.is_there() {
                        let is_slowed = reasons::faults(sample.reasons.unwrap_or(0)) != 0;
                        let clocks = max_mhz.map(f64::from).zip(sample.get(Reading::SmClock));
                        let slower =
                            clocks.filter(|(_, mhz)| is_slowed && *mhz > 0.0).map(|(max, mhz)| max / mhz);
                        self.server.late.gpu(t, slower);
                    }
                    self.flight.gpu_sample(t, sample, self.trail.count());
                }
                if let Some(gpu) = self.gpus.iter_mut().find(|g| g.info.index == sample.gpu) {
                    gpu.record(t, sample);
                    if gpu.info.profiled {
                        let phase = self.phase;
                        self.traces().for_each(|trace| trace.gpu_sample(t, phase, sample));
                    }
                }
            }
            Event::GpuProcesses(_) if under_tool => {}
            Event::GpuProcesses(listed) => {
                if let Some(gpu) = self.gpus.iter_mut().find(|g| g.info.index == listed.gpu) {
                    gpu.record_processes(t, &self.programs.mark_own(&listed.processes));
                }
            }
            Event::GpuLost(lost) => {
                if let Some(gpu) = self.gpus.iter_mut().find(|g| g.info.index == lost.gpu) {
                    gpu.lost = Some((t, lost.clone()));
                    self.flight.lost(t, lost.gpu, self.trail.count());
                }
            }
            Event::SamplerCost(cost) => self.sampler = Some((**cost).clone()),
            Event::ProcessJoined(process) => {
                self.programs.joined(t, process);
                // The process may have been on the GPU before it was known.
                let forget =
                    |gpu: &mut GpuState| gpu.processes_seen.retain(|(_, seen)| seen.pid != process.pid);
                self.gpus.iter_mut().for_each(forget);
            }
            Event::ServerFound(found) => {
                if self.startup.end(t) {
                    self.forget_start();
                }
                if let Some(server) = self.server_at(found.server) {
                    server.found(found);
                }
            }
            Event::ServerSample(sample) => {
                let measures = self.counted_to.is_some() || self.load_tested().is_none();
                if let Some(server) = self.server_at(sample.server) {
                    server.sample(t, sample, measures);
                }
            }
            Event::ServerSilent(silent) => {
                if let Some(server) = self.server_at(silent.server) {
                    server.silent(t, silent);
                }
            }
            Event::AlertChanged(alert) => self.alert(t, alert),
            Event::ClientSample(sample) => self.server.client(t, *sample),
            Event::StepsFound(finding) => self.programs.finding = Some(*finding),
            Event::ProcessLeft(left) => self.programs.left(t, left.pid),
            Event::KernelTrace(trace) => self.kernels.switched(t, trace),
            Event::Kernels(window) => self.kernels.window(window),
            Event::StepTimeline(timeline) => self.kernels.timeline(timeline),
            Event::Ranks(window) => self.ranks.window(t, window),
            Event::Operators(window) => self.operators.window(window),
            Event::HostTimeline(timeline) => self.operators.timeline(timeline),
            Event::Allocator(sample) => self.allocators.record(t, *sample),
            Event::Experts(experts) => self.experts = Some(*experts),
            Event::ToolRun(run) => self.kernels.tool_run = Some((**run).clone()),
            Event::KernelReport(report) => self.kernels.report(report),
            Event::HostSample(sample) => self.host.record(t, sample),
            Event::Observer(sample) => self.observer = Some(*sample),
            Event::RequestStarted(started) => {
                self.first_request_at.get_or_insert(t);
                if !self.kind().has_concurrent_requests() {
                    self.active.clear();
                }
                self.active.start(ActiveRequest::new(t, started.clone()));
                let measured = self.active.iter().filter(|active| active.started.is_measured()).count();
                self.server.most_at_a_time = self.server.most_at_a_time.max(measured);
                if started.is_measured() && self.counted_to.is_none() {
                    // Measurement starts here; earlier time belongs to no window.
                    self.metrics().for_each(|metrics| metrics.from = t);
                    self.counted_to = Some(t);
                }
            }
            Event::ImagesEncoded(encoded) => self.images_encoded(t, encoded),
            Event::RequestFinished(finished) => self.request_finished(t, finished),
            Event::PrefillProgress(progress) => {
                self.active.all().for_each(|active| active.prefill = Some(*progress));
            }
            // Predictions are only recorded.
            Event::Prediction(_) => {}
            Event::WorkloadPaused => self.workload_paused_at = Some(t),
            Event::WorkloadResumed => {
                match self.workload_paused_at.take() {
                    // Earlier requests to a server continue during a pause: only the time without any token is left
                    // out.
                    Some(paused_at) if self.kind().has_concurrent_requests() => {
                        self.counted_to = self.counted_to.map(|to| to + t.since(to.max(paused_at)));
                    }
                    Some(paused_at) => self.leave_out(t.since(paused_at), ActiveRequest::leave_out),
                    None => {}
                }
            }
            Event::ProcessStopped(stop) => {
                self.operators.stopped();
                // A pause of the workload is left out as a whole.
                if self.workload_paused_at.is_none() {
                    self.leave_out(t.since(stop.since), ActiveRequest::stopped);
                }
            }
            Event::RunStarted(run) => {
                self.server.set_slo(run.slo.unwrap_or_default());
                self.run = Some((**run).clone());
            }
            Event::Preparing(preparing) => {
                match self.kind() {
                    WorkKind::Program | WorkKind::Server => self.startup.begin(t),
                    WorkKind::Model(_) | WorkKind::Sim | WorkKind::Python | WorkKind::Watch => {}
                }
                Loading::update(&mut self.loading, t, preparing);
            }
            Event::Ready(ready) => {
                self.loading = None;
                self.prepare_ms = Some(ready.prepare_ms);
            }
            Event::GpuFound(info) => {
                self.gpu_absent = None;
                match self.gpus.iter_mut().find(|g| g.info.index == info.index) {
                    Some(known) => known.info = (**info).clone(),
                    None => self.gpus.push(GpuState::new((**info).clone())),
                }
            }
            Event::GpuAbsent(absent) => self.gpu_absent = Some(absent.clone()),
            Event::HostFound(info) => self.host.info = Some((**info).clone()),
            Event::Snapshot(taken) => self.take_snapshot(&taken.name),
            Event::Notice(notice) => {
                self.ranks.printed(notice);
                self.log.add(t, notice);
                if notice.is_output() {
                    let is_ready = self.startup.line(t, &notice.text);
                    if is_ready {
                        self.forget_start();
                    }
                }
            }
            Event::RunFinished(finished) => {
                self.active.clear();
                self.loading = None;
                self.workload_paused_at = None;
                self.kernels.recording.end(t);
                self.server.late.end();
                self.finished = Some(finished.clone());
            }
        }
        let now = self.now;
        self.metrics().for_each(|metrics| metrics.to = now);
    }

    /// Steps of a server's own warm-up do not belong to its requests.
    fn forget_start(&mut self) {
        self.forget_requests();
        self.active.clear();
        self.by_context = Split::default();
        self.flight = FlightRecorder::default();
    }

    /// The server with this index; `None` if it is not monitored.
    fn server_at(&mut self, number: u32) -> Option<&mut ServerState> {
        let Some(index) = (number as usize).checked_sub(1) else { return Some(&mut self.server) };
        if number as usize >= MAX_WATCHED {
            return None;
        }
        if index >= self.more_servers.len() {
            self.more_servers.resize_with(index + 1, ServerState::default);
        }
        self.more_servers.get_mut(index)
    }

    /// All servers, in the configured order.
    pub fn servers(&self) -> impl Iterator<Item = &ServerState> {
        std::iter::once(&self.server).chain(&self.more_servers)
    }

    /// The server that does not answer, or the number of several that do not.
    pub fn silence(&self) -> Option<String> {
        match self.servers().filter(|server| server.silent.is_some()).count() {
            0 => None,
            _ if self.more_servers.is_empty() => self.server.silence(self.now),
            silent => Some(format!("{silent} of {} servers do not answer", self.servers().count())),
        }
    }

    fn alert(&mut self, t: Stamp, alert: &AlertChanged) {
        self.alerts_crossed += u64::from(alert.crossed);
        self.alerts_changed += 1;
        push_bounded(&mut self.alerts, KEPT_ALERTS, (t, alert.clone()));
        let level = if alert.crossed { Level::Warn } else { Level::Info };
        self.log.add(t, &Notice { level, source: "alert".to_owned(), text: alert.to_string() });
    }

    /// Why the run failed, if it did.
    pub fn failure(&self) -> Option<&str> {
        let finished = self.finished.as_ref().filter(|finished| finished.outcome == Outcome::Failed)?;
        Some(finished.cause.as_deref().unwrap_or("no cause was given"))
    }

    /// Whether nothing was measured.
    pub fn has_no_tokens(&self) -> bool {
        self.total.ttft.n() == 0 && self.total.itl.n() == 0 && self.total.left_out().is_none()
    }

    /// The name of the time between tokens. If the chunks of a server have several tokens, the gaps between chunks are
    /// measured; if a step of the built-in engine gives several tokens, the time between steps.
    pub fn gap_name(&self) -> &'static str {
        match self.speculation {
            Some(_) => "step",
            None if self.server.gaps_are_itl() => "ITL",
            None => "chunk gap",
        }
    }

    /// The same within five columns.
    pub fn short_gap_name(&self) -> &'static str {
        match self.speculation {
            Some(_) => "step",
            None if self.server.gaps_are_itl() => "ITL",
            None => "gap",
        }
    }

    /// The latencies of `metrics` by name.
    pub fn latencies<'a>(&self, metrics: &'a Metrics) -> Vec<(&'static str, &'a Distribution)> {
        metrics.latencies(self.gap_name())
    }

    /// All metrics of the run and of the window.
    fn metrics(&mut self) -> impl Iterator<Item = &mut Metrics> {
        self.total.both_mut().into_iter().chain(self.window.both_mut())
    }

    /// Excludes `time` from measurements; `leave_out` does so for the active request.
    fn leave_out(&mut self, time: Duration, leave_out: impl Fn(&mut ActiveRequest, Duration)) {
        self.counted_to = self.counted_to.map(|to| to + time);
        self.first_request_at = self.first_request_at.map(|start| start + time);
        if self.active.count() > 0 {
            self.active.all().for_each(|active| leave_out(active, time));
            self.traces().for_each(RequestTrace::paused);
        }
    }

    fn token(&mut self, t: Stamp, token: llmprof_event::Token) {
        let serves = self.kind().has_concurrent_requests();
        let follows = self.kind().infers_steps();
        let Some(active) = self.active.of(token.request) else { return };
        let first = active.first_token.is_none();
        let Gap { ns: gap_ns, tokens, is_latency } =
            active.token(t, token.index, token.speculation.is_some());
        // The first token that was seen is not the first of a request that began earlier. A server may send several
        // tokens at first.
        let is_latency = match first {
            true if serves => !active.stopped,
            true => is_latency && !active.started.joined,
            false => is_latency,
        };
        let from = Stamp(t.0.saturating_sub(gap_ns));
        let recorded = match serves {
            true => self.kernels.recording.dominates(from, t),
            false => self.kernels.recording.overlaps(from, t),
        };
        active.recorded |= recorded;
        let stream = active.stream;
        let context = u64::from(active.started.prompt_tokens) + u64::from(active.tokens) - 1;
        let (warmup, batch) = (!active.started.is_measured(), u64::from(active.started.batch));
        let prompt = u64::from(active.started.prompt_tokens);
        let vision = active.vision_ns.map(|ns| (ns.min(gap_ns), active.vision_device_ns));
        if first {
            self.active.is_answered();
        }
        if serves && !warmup {
            self.server.tokens_per_s.add(t, u64::from(tokens));
        }
        if serves && is_latency {
            match first {
                true => self.server.late.first_chunk(t, token.request),
                false if warmup || recorded => {}
                false => self.server.late.chunk(from, t, token.request, self.active.answered()),
            }
        }
        if !first && is_latency {
            self.kernels.recording.step(from, t);
        }
        // Slow because of recording or of a stop, not because of the GPU.
        let left_out = !is_latency || (recorded && !self.total.without.is_empty());
        for gpu in self.gpus.iter_mut().filter(|gpu| gpu.info.profiled) {
            if !first && !left_out {
                gpu.heat.token(t, gap_ns);
            }
            // Tokens that arrived together are of one step; lost ones are of other steps.
            let of_step = if token.speculation.is_some() { batch * u64::from(tokens) } else { batch };
            let processed = if first { prompt * batch } else { of_step };
            // The steps of other programs and servers depend on other requests.
            let is_comparable = !warmup && !left_out && !follows;
            gpu.ledger.token(t, first, gap_ns, processed, is_comparable.then_some(context));
            gpu.ledger.generated(of_step);
        }
        let together = if token.speculation.is_some() { tokens } else { 1 };
        let mark = TokenMark {
            t,
            gap_ns,
            id: token.id,
            request: token.request,
            stream,
            tokens: together,
            first,
            warmup,
            recorded,
        };
        self.flight.token(mark, self.trail.count());
        self.trail.push(mark);
        match first {
            _ if !is_latency => {}
            true => self.ttft_ms.push(t, gap_ns as f32 / 1e6),
            false => self.itl_ms.push(t, gap_ns as f32 / 1e6),
        }
        if !warmup {
            for trace in self.traces() {
                if is_latency {
                    trace.token(t, first, gap_ns);
                }
                // Overlapping requests share the energy of the GPU.
                if !is_latency || serves {
                    trace.paused();
                }
            }
            if !first && is_latency {
                self.by_context.of(recorded).token(context, gap_ns / u64::from(together.max(1)));
            }
            if let Some(speculation) = token.speculation.filter(|_| !first) {
                self.speculation.get_or_insert_default().add(speculation, tokens);
            }
            let wall_ns = self.counted_to.replace(t).map_or(0, |to| t.since(to).as_nanos() as u64);
            for metrics in [&mut self.total, &mut self.window].map(|metrics| metrics.of(recorded)) {
                metrics.wall_ns += wall_ns;
                if !is_latency {
                    metrics.unmeasured_tokens(batch * u64::from(tokens));
                    continue;
                }
                match first {
                    true => {
                        vision.into_iter().for_each(|(ns, device_ns)| metrics.images_encoded(ns, device_ns));
                        // TTFT of a server includes the queue.
                        let prefilled = if serves { 0 } else { prompt };
                        metrics.first_token(gap_ns, prefilled, batch);
                        metrics.unmeasured_tokens(batch * u64::from(tokens - 1));
                    }
                    false => metrics.next_token(gap_ns, batch * u64::from(together)),
                }
                if let Some(ns) = token.device_ns {
                    metrics.on_device(first, ns, gap_ns);
                }
            }
        }
    }

    fn images_encoded(&mut self, t: Stamp, encoded: &ImagesEncoded) {
        let Some(active) = self.active.of(encoded.request) else { return };
        if active.vision_ns.is_some() || active.tokens > 0 {
            return;
        }
        let ns = t.since(active.start()).as_nanos() as u64;
        active.vision_ns = Some(ns);
        active.vision_device_ns = encoded.device_ns;
        if active.started.is_measured() {
            let (batch, shape) =
                (active.started.batch, self.run.as_ref().and_then(|run| run.shape.as_deref()));
            self.vision.get_or_insert_default().add(encoded, batch, shape);
        }
    }

    fn request_finished(&mut self, t: Stamp, finished: &RequestFinished) {
        let RequestFinished { request, complete, served } = finished;
        let Some(mut active) = self.active.end(*request) else { return };
        let complete = *complete;
        let uncounted = served.as_deref().map_or(0, |served| active.counted(served));
        if let Some(served) = served.as_deref() {
            self.server.served(t, &active, served);
        }
        if !active.started.is_measured() {
            self.warmup_done += u32::from(active.started.warmup);
            return;
        }
        let measured = complete && !active.stopped;
        let sample = active.sample().filter(|_| measured);
        let recorded = match served {
            Some(_) => self.kernels.recording.dominates(active.start, t),
            None => active.recorded,
        };
        // Requests of another program are inferred in parts, so the duration of a whole request is not known.
        let e2e_ns = active.e2e_ns().filter(|_| !self.kind().infers_steps());
        for trace in self.full_trace.as_deref_mut().into_iter().chain([&mut self.trace]) {
            trace.of(recorded).request_ended(sample);
            trace.of(!recorded).request_ended(None);
        }
        if complete {
            self.requests_done += 1;
            let tpots_ns = self.tpots_ns.of(recorded);
            sample.and_then(|sample| sample.tpot_ns()).into_iter().for_each(|ns| tpots_ns.push(ns));
            for metrics in [&mut self.total, &mut self.window].map(|metrics| metrics.of(recorded)) {
                metrics.requests += 1;
                metrics.unmeasured_tokens(u64::from(uncounted));
                if !measured {
                    continue;
                }
                active.tpot_ns().into_iter().for_each(|ns| metrics.tpot.record(ns));
                e2e_ns.into_iter().for_each(|ns| metrics.e2e.record(ns));
            }
        }
    }

    fn take_snapshot(&mut self, name: &str) {
        let snapshot = self.window_snapshot(name);
        push_bounded(&mut self.snapshots, KEPT_SNAPSHOTS, snapshot);
        let now = self.now;
        self.window.both_mut().into_iter().for_each(|metrics| metrics.restart(now));
        self.trace.both_mut().into_iter().for_each(RequestTrace::restart);
        self.kernels.restart();
        self.operators.restart();
    }

    fn traces(&mut self) -> impl Iterator<Item = &mut RequestTrace> {
        let full = self.full_trace.as_deref_mut();
        full.into_iter().chain([&mut self.trace]).flat_map(Split::both_mut)
    }

    /// The current window as a snapshot would keep it.
    pub fn window_snapshot(&self, name: &str) -> Snapshot {
        let mean = |reading: Reading| {
            self.profiled_gpu()
                .and_then(|gpu| gpu.series(reading).columns(self.window.from, self.now, 1)[0])
                .map(|b| b.mean())
        };
        Snapshot {
            name: name.to_owned(),
            model: self.run.as_ref().map_or_else(String::new, |r| r.model.clone()),
            overrides: self.run.as_ref().map_or_else(Vec::new, |r| r.overrides.clone()),
            metrics: self.window.summary(),
            power_w: mean(Reading::Power),
            sm_clock_mhz: mean(Reading::SmClock),
            temp_c: mean(Reading::Temp),
            sample: self.window_sample(name).map(Arc::new),
            kernels: Arc::new(self.window_kernels()),
        }
    }

    /// The GPU the workload runs on, if it runs on one.
    pub fn profiled_gpu(&self) -> Option<&GpuState> {
        self.gpus.iter().find(|g| g.info.profiled)
    }

    /// The energy by phase, per token if tokens are counted.
    pub fn energy(&self, gpu: &GpuState) -> Option<Energy> {
        let energy = energy(&gpu.ledger)?;
        Some(if self.kind().infers_steps() { energy.without_tokens() } else { energy })
    }

    /// Whether the workload runs on it, or may: without a workload of this program any GPU does, and a server's GPUs
    /// are those of its machine.
    pub fn is_of_workload(&self, gpu: &GpuState) -> bool {
        gpu.info.profiled
            || match self.kind() {
                WorkKind::Watch => true,
                WorkKind::Server => self.server.is_local() || gpu.info.source == GpuSource::Dcgm,
                WorkKind::Model(_) | WorkKind::Sim | WorkKind::Python | WorkKind::Program => false,
            }
    }

    /// The GPU to show first: the workload's, else the one with the highest load.
    pub fn main_gpu(&self) -> Option<&GpuState> {
        let busy = |gpu: &GpuState| gpu.ledger.of(Work::Busy).time_ns;
        // The first of several with the same load.
        let busiest = || self.gpus.iter().rev().max_by(|a, b| busy(a).total_cmp(&busy(b)));
        self.profiled_gpu().or_else(busiest)
    }

    /// There is no run, only reports that were opened from files.
    pub fn is_of_files(&self) -> bool {
        self.run.is_none() && (!self.kernels.reports.is_empty() || self.ranks.is_there())
    }

    /// The device of the workload; `None` if it is unknown: of a program, until one of its processes has started CUDA.
    pub fn device(&self) -> Option<&Device> {
        let uses_it = self.followed().is_none_or(Programs::has_cuda);
        self.run.as_ref().map(|run| &run.device).filter(|device| uses_it && **device != Device::None)
    }

    /// The same by the name of the GPU, if that was read.
    pub fn device_name(&self) -> Option<String> {
        let device = self.device()?;
        Some(self.profiled_gpu().map_or_else(|| device.to_string(), |gpu| gpu.info.name.clone()))
    }

    /// Sequences per request.
    pub fn batch(&self) -> u32 {
        self.run.as_ref().map_or(1, |r| r.batch)
    }

    /// ITL in `columns` equal parts of `from..to`, each of at least [`RATE_TOKENS`] tokens, for a chart of the decode
    /// rate. A single gap is not a rate: the token after a late one may be early.
    pub fn itl_columns(&self, from: Stamp, to: Stamp, columns: usize) -> Vec<Option<Bucket>> {
        let mut columns = self.itl_ms.columns(from, to, columns);
        Bucket::pool(&mut columns, RATE_TOKENS as u32);
        columns
    }

    /// Decode tokens per second over the last `span_s` seconds, or over the last [`RATE_TOKENS`] steps of the request
    /// if they took longer; `None` if nothing is being decoded.
    pub fn recent_decode_tok_s(&self, span_s: f64) -> Option<f64> {
        let active = self.active.latest()?;
        let from = Stamp(self.now.0.saturating_sub((span_s * 1e9) as u64));
        let recent = self.trail.since(from).count().max(RATE_TOKENS);
        let counted =
            |mark: &&TokenMark| !mark.first && (mark.t >= from || mark.request == active.started.request);
        let (tokens, ns) = self
            .trail
            .window(0, recent)
            .filter(counted)
            .fold((0u64, 0), |(n, ns), mark| (n + u64::from(mark.tokens), ns + mark.gap_ns));
        (ns > 0).then(|| f64::from(self.batch()) * tokens as f64 * 1e9 / ns as f64)
    }

    /// Tokens of all streams of a server in the last `span_s`, per second.
    pub fn recent_output_tok_s(&self, span_s: f64) -> Option<f64> {
        let from = Stamp(self.now.0.saturating_sub((span_s * 1e9) as u64));
        // With very many streams, the trail covers fewer seconds; and a run may have just begun.
        let first = self.trail.since(Stamp::default()).next()?.t.max(from);
        let tokens: u64 = self.trail.since(from).map(|mark| u64::from(mark.tokens)).sum();
        let seconds = self.now.since(first).as_secs_f64();
        (seconds > 0.1 * span_s).then(|| tokens as f64 / seconds)
    }

    /// The stage of a starting server, its duration in seconds, and the last line that the server printed. For a
    /// followed program only once its output shows that it is a server.
    pub fn starting(&self) -> Option<(Stage, f64, &str)> {
        let (stage, seconds) = self.startup.current(self.now).filter(|_| self.finished.is_none())?;
        let is_server = self.load_tested().is_some() || stage > Stage::Imports;
        self.startup.last_line().filter(|_| is_server).map(|line| (stage, seconds, line))
    }

    /// Tokens of a sequence in a decode step: more than one only with draft tokens.
    pub fn tokens_per_step(&self) -> f64 {
        self.speculation.and_then(|tally| tally.tokens_per_step()).unwrap_or(1.0)
    }

    /// Bytes that a decode step reads in the middle of a request: the weights once, and the cache of every sequence.
    pub fn decode_step_bytes(&self) -> Option<u64> {
        let run = self.run.as_ref()?;
        let context = u64::from(run.prompt_tokens) + u64::from(run.output_tokens) / 2;
        Some(run.step_weight_bytes? + run.kv_bytes_per_position * context * u64::from(run.batch))
    }

    pub fn request_share_done(&self) -> f64 {
        let Some(run) = &self.run else { return 0.0 };
        let planned = f64::from(run.requests) + f64::from(run.warmup);
        let share = |a: &ActiveRequest| f64::from(a.tokens) / f64::from(a.started.output_tokens.max(1));
        let active: f64 = self.active.iter().map(|a| share(a).min(1.0)).sum();
        ((f64::from(self.requests_done + self.warmup_done) + active) / planned.max(1.0)).min(1.0)
    }
}

#[cfg(test)]
mod tests;
