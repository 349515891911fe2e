//! The state of a run for screens and reports: a pure fold over events.

mod by_context;
mod diagnosis;
mod efficiency;
mod incidents;
mod kernels;
mod loading;
mod operators;
mod requests;
mod sample;
mod series;
mod telemetry;
mod trail;

use std::{collections::VecDeque, sync::Arc};

pub use crate::analysis::roofline::OperatorBasis;
pub use by_context::{AtContext, ByContext};
pub use efficiency::Used;
pub use incidents::{FlightRecorder, Incident, IncidentKind, KeptSample};
pub use kernels::{KEPT_REPORTS, KernelState, LiveKernels};
pub use loading::Loading;
pub use operators::{AllocatorState, HostOperators, OperatorState};
pub use requests::ActiveRequest;
use serde::{Deserialize, Serialize};
pub use series::{Bucket, Series};
pub use telemetry::{GpuState, HostState};
pub use trail::{TokenMark, TokenTrail};

use crate::{
    analysis::{
        compare::{RequestTrace, Sample, Thinned},
        metrics::{Metrics, MetricsSummary},
        throttle::Work,
    },
    event::{
        EngineKind, Envelope, Event, GpuAbsent, Notice, ObserverSample, Phase, RunFinished, RunStarted,
        SamplerCost, Stamp, readings::Reading,
    },
};

const LOG_LINES: usize = 1000;
const KEPT_SNAPSHOTS: usize = 64;

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
    pub active: Option<ActiveRequest>,
    /// Without pauses since.
    first_request_at: Option<Stamp>,
    pub warmup_done: u32,
    pub requests_done: u32,
    /// The run so far.
    pub total: Metrics,
    /// Since the last snapshot.
    pub window: Metrics,
    /// The requests since the last snapshot, one by one.
    trace: RequestTrace,
    /// All requests, with the gaps between tokens, where they are needed.
    full_trace: Option<Box<RequestTrace>>,
    pub trail: TokenTrail,
    /// ITL in milliseconds over the run, warm-up included.
    pub itl_ms: Series,
    /// TTFT in milliseconds over the run, warm-up included, at the time of the first token.
    pub ttft_ms: Series,
    /// Measured ITL by the length of the context.
    pub by_context: ByContext,
    /// The seconds around incidents.
    pub flight: FlightRecorder,
    /// TPOT of the measured requests in order of time.
    tpots_ns: Thinned<f64>,
    pub gpus: Vec<GpuState>,
    pub gpu_absent: Option<GpuAbsent>,
    pub host: HostState,
    pub observer: Option<ObserverSample>,
    /// Overhead of sampling the GPUs.
    pub sampler: Option<SamplerCost>,
    pub kernels: KernelState,
    pub operators: OperatorState,
    pub allocators: AllocatorState,
    pub log: VecDeque<(Stamp, Notice)>,
    pub snapshots: VecDeque<Snapshot>,
    pub finished: Option<RunFinished>,
    pub events: u64,
    /// Lines of the recording that could not be read, set by whatever reads it.
    pub unreadable_lines: u64,
}

/// A named window of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    pub name: String,
    pub model: String,
    pub overrides: Vec<String>,
    pub metrics: MetricsSummary,
    /// Means over the window, where they were read.
    pub power_w: Option<f32>,
    pub sm_clock_mhz: Option<f32>,
    pub temp_c: Option<f32>,
    /// The data for comparisons. Not saved with the snapshot: the recording has it.
    #[serde(skip)]
    pub sample: Option<Arc<Sample>>,
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
        for gpu in self.gpus.iter_mut().filter(|gpu| gpu.info.profiled) {
            gpu.ledger.phase(t, phase);
        }
        match &envelope.event {
            Event::Token(token) => self.token(t, *token),
            Event::GpuSample(sample) => {
                let main = self.main_gpu().map(|gpu| gpu.info.index);
                if main == Some(sample.gpu) {
                    self.flight.gpu_sample(t, sample, self.trail.seen());
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
                    gpu.record_processes(t, &listed.processes);
                }
            }
            Event::GpuLost(lost) => {
                if let Some(gpu) = self.gpus.iter_mut().find(|g| g.info.index == lost.gpu) {
                    gpu.lost = Some((t, lost.clone()));
                    self.flight.lost(t, lost.gpu, self.trail.seen());
                }
            }
            Event::SamplerCost(cost) => self.sampler = Some((**cost).clone()),
            Event::KernelTrace(trace) => self.kernels.trace = Some(trace.clone()),
            Event::Kernels(window) => self.kernels.window(window),
            Event::StepTimeline(timeline) => self.kernels.timeline(timeline),
            Event::Operators(window) => self.operators.window(window),
            Event::HostTimeline(timeline) => self.operators.timeline(timeline),
            Event::Allocator(sample) => self.allocators.record(t, *sample),
            Event::ToolRun(run) => self.kernels.tool_run = Some((**run).clone()),
            Event::KernelReport(report) => self.kernels.report(report),
            Event::HostSample(sample) => self.host.record(t, sample),
            Event::Observer(sample) => self.observer = Some(*sample),
            Event::RequestStarted(started) => {
                self.first_request_at.get_or_insert(t);
                self.active = Some(ActiveRequest::new(t, started.clone()));
                if !started.warmup && self.total.ttft.n() == 0 && self.requests_done == 0 {
                    // Measurement starts here; earlier time belongs to no window.
                    (self.total.from, self.window.from) = (t, t);
                }
            }
            Event::RequestFinished(finished) => self.request_finished(finished.complete),
            Event::PrefillProgress(progress) => {
                if let Some(active) = &mut self.active {
                    active.prefill = Some(*progress);
                }
            }
            // Predictions are only recorded.
            Event::Prediction(_) => {}
            Event::WorkloadPaused => self.workload_paused_at = Some(t),
            Event::WorkloadResumed => {
                let pause =
                    self.workload_paused_at.take().map(|paused_at| t.since(paused_at)).unwrap_or_default();
                self.first_request_at = self.first_request_at.map(|start| start + pause);
                if let Some(active) = self.active.as_mut().filter(|_| !pause.is_zero()) {
                    active.leave_out(pause);
                    self.traces().for_each(RequestTrace::paused);
                }
            }
            Event::RunStarted(run) => self.run = Some((**run).clone()),
            Event::Preparing(preparing) => {
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
                push_bounded(&mut self.log, LOG_LINES, (t, notice.clone()));
            }
            Event::RunFinished(finished) => {
                self.active = None;
                self.loading = None;
                self.workload_paused_at = None;
                self.finished = Some(finished.clone());
            }
        }
        (self.total.to, self.window.to) = (self.now, self.now);
    }

    fn token(&mut self, t: Stamp, token: crate::event::Token) {
        let Some(active) = self.active.as_mut().filter(|a| a.started.request == token.request) else {
            return;
        };
        let first = active.first_token.is_none();
        let gap_ns = active.token(t);
        let context = u64::from(active.started.prompt_tokens) + u64::from(active.tokens) - 1;
        let (warmup, batch) = (active.started.warmup, u64::from(active.started.batch));
        let prompt = u64::from(active.started.prompt_tokens);
        for gpu in self.gpus.iter_mut().filter(|gpu| gpu.info.profiled) {
            if !first {
                gpu.heat.token(t, gap_ns);
            }
            gpu.ledger.token(t, first, gap_ns, if first { prompt * batch } else { batch }, warmup);
        }
        let mark = TokenMark { t, gap_ns, id: token.id, request: token.request, first, warmup };
        self.flight.token(mark, self.trail.seen());
        self.trail.push(mark);
        match first {
            true => self.ttft_ms.push(t, gap_ns as f32 / 1e6),
            false => self.itl_ms.push(t, gap_ns as f32 / 1e6),
        }
        if !warmup {
            self.traces().for_each(|trace| trace.token(t, first, gap_ns));
            if !first {
                self.by_context.token(context, gap_ns);
            }
            for metrics in [&mut self.total, &mut self.window] {
                match first {
                    true => metrics.first_token(gap_ns, prompt, batch),
                    false => metrics.next_token(gap_ns, batch),
                }
                if let Some(ns) = token.device_ns {
                    metrics.on_device(first, ns);
                }
            }
        }
    }

    fn request_finished(&mut self, complete: bool) {
        let Some(active) = self.active.take() else { return };
        if active.started.warmup {
            self.warmup_done += 1;
            return;
        }
        let sample = active.sample().filter(|_| complete);
        self.traces().for_each(|trace| trace.request_ended(sample));
        if complete {
            self.requests_done += 1;
            let tpot_ns = active.tpot_ns();
            sample.and_then(|sample| sample.tpot_ns()).into_iter().for_each(|ns| self.tpots_ns.push(ns));
            for metrics in [&mut self.total, &mut self.window] {
                metrics.requests += 1;
                if let Some(tpot_ns) = tpot_ns {
                    metrics.tpot.record(tpot_ns);
                }
            }
        }
    }

    fn take_snapshot(&mut self, name: &str) {
        let snapshot = self.window_snapshot(name);
        push_bounded(&mut self.snapshots, KEPT_SNAPSHOTS, snapshot);
        self.window.restart(self.now);
        self.trace.restart();
    }

    fn traces(&mut self) -> impl Iterator<Item = &mut RequestTrace> {
        self.full_trace.as_deref_mut().into_iter().chain([&mut self.trace])
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
        }
    }

    /// The GPU the workload runs on, if it runs on one.
    pub fn profiled_gpu(&self) -> Option<&GpuState> {
        self.gpus.iter().find(|g| g.info.profiled)
    }

    /// The GPU to show first: the workload's, else the one with the most load.
    pub fn main_gpu(&self) -> Option<&GpuState> {
        let busy = |gpu: &GpuState| gpu.ledger.of(Work::Busy).time_ns;
        // The first of several with the same load.
        let busiest = || self.gpus.iter().rev().max_by(|a, b| busy(a).total_cmp(&busy(b)));
        self.profiled_gpu().or_else(busiest)
    }

    /// There is no run, only reports that were opened from files.
    pub fn is_of_files(&self) -> bool {
        self.run.is_none() && !self.kernels.reports.is_empty()
    }

    /// The GPU is monitored without running a workload.
    pub fn watches(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.engine == EngineKind::None)
    }

    /// Sequences per request.
    pub fn batch(&self) -> u32 {
        self.run.as_ref().map_or(1, |r| r.batch)
    }

    /// Decode tokens per second over the last `span_s` seconds, or of the last token when that took longer; `None` when
    /// nothing is being decoded.
    pub fn recent_decode_tok_s(&self, span_s: f64) -> Option<f64> {
        let active = self.active.as_ref()?;
        let from = Stamp(self.now.0.saturating_sub((span_s * 1e9) as u64));
        let mut recent = self.trail.since(from).filter(|mark| !mark.first).peekable();
        let batch = u64::from(self.batch());
        let (tokens, ns) = match recent.peek() {
            Some(_) => recent.fold((0, 0), |(n, ns), mark| (n + batch, ns + mark.gap_ns)),
            None => {
                let last = self.trail.last().filter(|m| !m.first && m.request == active.started.request)?;
                (batch, last.gap_ns)
            }
        };
        (ns > 0).then(|| tokens as f64 * 1e9 / ns as f64)
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
        let active = self
            .active
            .as_ref()
            .map_or(0.0, |a| f64::from(a.tokens) / f64::from(a.started.output_tokens.max(1)));
        ((f64::from(self.requests_done + self.warmup_done) + active) / planned.max(1.0)).min(1.0)
    }
}

#[cfg(test)]
mod tests;
