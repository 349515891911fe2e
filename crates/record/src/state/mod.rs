//! The state of a run for screens and reports: a pure fold over events.

mod account;
mod billing;
mod by_context;
mod course;
mod diagnosis;
mod efficiency;
mod gpus;
mod idle;
mod incidents;
mod kernels;
mod kind;
mod launches;
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
mod servers;
mod speculation;
mod stacks;
mod telemetry;
mod tokens;
mod trail;
mod vision;

use std::{collections::VecDeque, sync::Arc};

pub use account::Accounts;
pub use by_context::{AtContext, ByContext};
pub use efficiency::Utilisation;
pub use incidents::{FlightRecorder, Incident, IncidentKind, KeptSample};
pub use kernels::{KEPT_REPORTS, KernelState, LiveKernels, StepTable, WindowKernels};
pub use launches::{LaunchGroup, LaunchPlace, Launched, Launches};
pub use llmprof_analysis::roofline::OperatorBasis;
pub use loading::Loading;
pub use log::{Log, LogLine};
pub use operators::{AllocatorState, HostOperators, OperatorState};
pub use programs::{FollowedProcess, Programs};
pub use ranks::RanksState;
pub use recording::{Measured, RecordedSpan, Recording, Split};
pub use requests::{ActiveRequest, ActiveRequests};
use serde::{Deserialize, Serialize};
pub use series::{Bucket, Series};
pub use server::{Lane, MeanOf, PartTimes, ServerState, TtftPart};
pub use speculation::SpeculationTally;
pub use stacks::{HostLine, Stacks};
pub use telemetry::{GpuState, HostState};
pub use trail::{TokenMark, TokenTrail};
pub use vision::VisionTally;

use idle::Idle;
use llmprof_analysis::{
    bill::Bill,
    compare::{RequestTrace, Sample, Thinned},
    distribution::Distribution,
    metrics::{Metrics, MetricsSummary},
    startup::{Stage, Startup},
};
use llmprof_event::{
    AlertChanged, Device, Envelope, Event, ExpertUse, GpuAbsent, ObserverSample, Outcome, Phase, RunFinished,
    RunStarted, SamplerCost, Stamp, readings::Reading,
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
    /// Measured time without any request.
    idle: Idle,
    /// The GPU's time and energy by request.
    pub bill: Bill,
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
    /// The lines of the host's threads.
    pub stacks: Stacks,
    pub launches: Launches,
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
        let Envelope { t, event } = envelope;
        self.now = self.now.max(*t);
        self.events += 1;
        self.phase = self.phase.after(event);
        self.phase_of_gpus(*t, event);
        self.fold(*t, event);
        let now = self.now;
        self.metrics().for_each(|metrics| metrics.to = now);
    }

    /// Each event has one fold, in the file of its subject, with the signature `(time, event)`.
    fn fold(&mut self, t: Stamp, event: &Event) {
        match event {
            Event::RunStarted(run) => self.run_started(t, run),
            Event::Preparing(preparing) => self.preparing(t, preparing),
            Event::Ready(ready) => self.ready(t, ready),
            Event::WorkloadPaused => self.workload_paused(t),
            Event::WorkloadResumed => self.workload_resumed(t),
            Event::ProcessStopped(stop) => self.process_stopped(t, stop),
            Event::Notice(notice) => self.notice(t, notice),
            Event::Snapshot(taken) => self.snapshot_taken(t, taken),
            Event::RunFinished(finished) => self.run_finished(t, finished),

            Event::RequestStarted(started) => self.request_started(t, started),
            Event::ImagesEncoded(encoded) => self.images_encoded(t, encoded),
            Event::PrefillProgress(progress) => self.active.prefill_progress(t, progress),
            Event::Token(token) => self.token(t, token),
            Event::RequestFinished(finished) => self.request_finished(t, finished),
            // Predictions are only recorded.
            Event::Prediction(_) => {}

            Event::GpuFound(info) => self.gpu_found(t, info),
            Event::GpuAbsent(absent) => self.gpu_absent(t, absent),
            Event::GpuSample(sample) => self.gpu_sample(t, sample),
            Event::GpuProcesses(listed) => self.gpu_processes(t, listed),
            Event::GpuLost(lost) => self.gpu_lost(t, lost),
            Event::SamplerCost(cost) => self.sampler_cost(t, cost),
            Event::HostFound(info) => self.host.found(t, info),
            Event::HostSample(sample) => self.host.record(t, sample),
            Event::Observer(sample) => self.observer(t, sample),

            Event::ProcessJoined(process) => self.process_joined(t, process),
            Event::ProcessLeft(left) => self.programs.process_left(t, left),
            Event::StepsFound(finding) => self.programs.steps_found(t, finding),
            Event::Ranks(window) => self.ranks.window(t, window),
            Event::HostStacks(window) => self.stacks.window(t, window),
            Event::LaunchLines(lines) => self.launches.lines(t, lines),

            Event::ServerFound(found) => self.server_found(t, found),
            Event::ServerSample(sample) => self.server_sample(t, sample),
            Event::ServerSilent(silent) => self.server_silent(t, silent),
            Event::ClientSample(sample) => self.server.client(t, sample),
            Event::AlertChanged(alert) => self.alert_changed(t, alert),

            Event::KernelTrace(trace) => self.kernels.switched(t, trace),
            Event::Kernels(window) => self.kernels.window(t, window),
            Event::StepTimeline(timeline) => self.kernels.timeline(t, timeline),
            Event::ToolRun(run) => self.kernels.tool_run(t, run),
            Event::KernelReport(report) => self.kernels.report(t, report),
            Event::Operators(window) => self.operators.window(t, window),
            Event::HostTimeline(timeline) => self.operators.timeline(t, timeline),
            Event::Allocator(sample) => self.allocators.record(t, sample),
            Event::Experts(experts) => self.experts(t, experts),
        }
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

    /// Decode tokens per second; `None` for a server whose answers are not streamed.
    pub fn decode_tok_s(&self) -> Option<f64> {
        self.total.decode_tok_s().filter(|_| !self.server.is_held_back())
    }

    /// The metrics of the run as numbers, of which the decode rate is that of [`decode_tok_s`](Self::decode_tok_s).
    pub fn summary(&self) -> MetricsSummary {
        self.summary_of(&self.total)
    }

    /// The same for other metrics of the run.
    pub(crate) fn summary_of(&self, metrics: &Metrics) -> MetricsSummary {
        let summary = metrics.summary();
        let decode_tok_s = summary.decode_tok_s.filter(|_| !self.server.is_held_back());
        MetricsSummary { decode_tok_s, ..summary }
    }

    /// The latencies of `metrics` by name.
    pub fn latencies<'a>(&self, metrics: &'a Metrics) -> Vec<(&'static str, &'a Distribution)> {
        metrics.latencies(self.gap_name())
    }

    /// All metrics of the run and of the window.
    fn metrics(&mut self) -> impl Iterator<Item = &mut Metrics> {
        self.total.both_mut().into_iter().chain(self.window.both_mut())
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
            metrics: self.summary_of(&self.window),
            power_w: mean(Reading::Power),
            sm_clock_mhz: mean(Reading::SmClock),
            temp_c: mean(Reading::Temp),
            sample: self.window_sample(name).map(Arc::new),
            kernels: Arc::new(self.window_kernels()),
        }
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
