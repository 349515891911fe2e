//! A run as a trace for Chrome and Perfetto: `trace.json`, written line by line during the run.
//!
//! The format is the array of Chrome's trace events. It is closed at the end of the run. After a kill it stays open,
//! which both programs accept. Events after the end of a run are not part of it.

mod lines;
mod served;
mod track;

use std::collections::HashMap;

use self::{
    lines::{Arg, Args, Lines, TrackId},
    served::ServedLanes,
    track::Track,
};
use llmprof_event::{
    Allocator, AllocatorSample, Envelope, Event, GpuSample, HostSample, HostTimeline, Level, Notice, Phase,
    RequestStarted, Stamp, StepTimeline, ToolState, TraceState, readings::Reading, reasons,
};

const REQUESTS: TrackId = TrackId { process: 1, thread: 1 };
const OPERATORS: TrackId = TrackId { process: 1, thread: 2 };
const RANGES: TrackId = TrackId { process: 1, thread: 3 };
const MARKS: TrackId = TrackId { process: 1, thread: 4 };
const RECORDING: TrackId = TrackId { process: 1, thread: 5 };
const STEPS: TrackId = TrackId { process: 2, thread: 1 };
const KERNELS: TrackId = TrackId { process: 2, thread: 2 };
const DEVICE: u64 = 2;
const HOST: u64 = 3;
/// The process id of the first GPU's readings. The other GPUs follow.
const FIRST_GPU: u64 = 10;

/// The readings of a GPU that are drawn.
const READINGS: [Reading; 13] = [
    Reading::Power,
    Reading::SmClock,
    Reading::MemClock,
    Reading::Temp,
    Reading::GpuUtil,
    Reading::MemUtil,
    Reading::MemUsed,
    Reading::PowerLimit,
    Reading::SmActive,
    Reading::Occupancy,
    Reading::Tensor,
    Reading::Dram,
    Reading::Fan,
];

/// Maximum steps that are drawn one by one. An hour of a small model has millions, more than the viewers can open.
const MAX_STEPS: u64 = 100_000;

/// Converts events into lines of `trace.json`.
pub struct ChromeTrace {
    lines: Lines,
    drawn_steps: u64,
    requests: Track,
    ranges: Track,
    operators: Track,
    steps: Track,
    kernels: Track,
    recording: Track,
    request: Option<Request>,
    /// The lanes of a run on a server, whose requests overlap.
    served: Option<ServedLanes>,
    /// The last clock event reasons of each GPU, as NVML's bits.
    reasons: HashMap<u32, u64>,
}

impl Default for ChromeTrace {
    fn default() -> ChromeTrace {
        ChromeTrace {
            drawn_steps: 0,
            lines: Lines::default(),
            requests: Track::new(REQUESTS),
            ranges: Track::new(RANGES),
            operators: Track::new(OPERATORS),
            steps: Track::new(STEPS),
            kernels: Track::new(KERNELS),
            recording: Track::new(RECORDING),
            request: None,
            served: None,
            reasons: HashMap::new(),
        }
    }
}

struct Request {
    warmup: bool,
    tokens: u64,
    /// The time of the previous token, or when the workload resumed.
    since: Stamp,
}

impl ChromeTrace {
    /// The lines of `envelope`.
    pub fn lines_of(&mut self, envelope: &Envelope) -> String {
        if !self.lines.closed() {
            self.draw(envelope);
        }
        std::mem::take(&mut self.lines.text)
    }

    fn draw(&mut self, envelope: &Envelope) {
        let t = envelope.t;
        match &envelope.event {
            Event::RunStarted(run) => {
                self.served = run.kind.has_concurrent_requests().then(ServedLanes::default);
                let name = format!("{} on {}", run.model, run.device);
                self.lines.instant(MARKS, t, &name, &[("engine", Arg::Text(&run.kind.to_string()))]);
            }
            Event::Preparing(_) if !self.requests.is_open() => self.begin(t, "preparing", &[]),
            Event::Ready(_) => self.end_all(t),
            Event::RequestStarted(started) => match &mut self.served {
                Some(served) => served.started(t, started, &mut self.lines),
                None => self.request_started(t, started),
            },
            Event::ImagesEncoded(_) if self.served.is_none() => self.images_encoded(t),
            Event::ImagesEncoded(_) => {}
            Event::Token(token) => match &mut self.served {
                Some(served) => served.token(t, token.request),
                None => self.token(t, token.request, token.device_ns),
            },
            Event::RequestFinished(finished) => match &mut self.served {
                Some(served) => served.finished(t, finished, &mut self.lines),
                None => self.end_all(t),
            },
            Event::WorkloadPaused => self.begin(t, "paused", &[]),
            Event::WorkloadResumed => {
                self.requests.end(&mut self.lines, t);
                self.request.iter_mut().for_each(|request| request.since = t);
            }
            Event::ProcessStopped(_) => self.mark(t, "continues after a stop", ""),
            Event::HostTimeline(timeline) => self.host_timeline(timeline),
            Event::StepTimeline(timeline) => self.step_timeline(timeline),
            Event::GpuFound(info) => {
                let name = format!("GPU {} · {}", info.index, info.name);
                self.lines.name_process(FIRST_GPU + u64::from(info.index), &name);
            }
            Event::GpuSample(sample) => self.gpu_sample(t, sample),
            Event::HostSample(sample) => self.host_sample(t, sample),
            Event::Allocator(sample) => self.allocator(t, sample),
            Event::Snapshot(taken) => self.mark(t, &format!("snapshot {}", taken.name), ""),
            Event::Notice(Notice { level, source, text }) => {
                let level = match level {
                    Level::Info => "note",
                    Level::Warn => "warning",
                    Level::Error => "error",
                };
                self.mark(t, &format!("{level} of {source}"), text);
            }
            Event::GpuLost(lost) => self.mark(t, &format!("GPU {} is lost", lost.gpu), &lost.reason),
            Event::KernelTrace(trace) => {
                let state = match &trace.state {
                    TraceState::Starting => "starts to record kernels",
                    TraceState::On => "records kernels",
                    TraceState::Off => "no longer records kernels",
                    TraceState::Refused { .. } => "cannot record kernels",
                };
                self.mark(t, &format!("{} {state}", trace.tool), "");
                match trace.state {
                    TraceState::Starting | TraceState::On if self.recording.is_open() => {}
                    TraceState::Starting | TraceState::On => {
                        self.recording.begin(&mut self.lines, t, "kernels recorded", &[])
                    }
                    TraceState::Off | TraceState::Refused { .. } => {
                        self.recording.end(&mut self.lines, t);
                    }
                }
            }
            Event::ToolRun(run) => {
                let state = match &run.state {
                    ToolState::Working { .. } => return,
                    ToolState::Done => "has finished",
                    ToolState::Failed { .. } => "failed",
                    ToolState::Cancelled => "was cancelled",
                };
                self.mark(t, &format!("{} {state}", run.tool), "");
            }
            Event::RunFinished(finished) => {
                self.end_all(t);
                self.recording.end_all(&mut self.lines, t);
                self.mark(t, &finished.outcome.to_string(), finished.cause.as_deref().unwrap_or(""));
                self.lines.close();
            }
            Event::Preparing(_)
            | Event::PrefillProgress(_)
            | Event::Prediction(_)
            | Event::GpuAbsent(_)
            | Event::GpuProcesses(_)
            | Event::SamplerCost(_)
            | Event::Kernels(_)
            | Event::Ranks(_)
            | Event::Operators(_)
            | Event::KernelReport(_)
            | Event::HostFound(_)
            | Event::HostStacks(_)
            | Event::LaunchLines(_)
            | Event::ProcessJoined(_)
            | Event::ProcessLeft(_)
            | Event::StepsFound(_)
            | Event::ServerFound(_)
            | Event::ServerSample(_)
            | Event::ServerSilent(_)
            | Event::AlertChanged(_)
            | Event::ClientSample(_)
            | Event::Experts(_)
            | Event::Observer(_) => {}
        }
    }

    fn mark(&mut self, t: Stamp, name: &str, text: &str) {
        let args = [("text", Arg::Text(text))];
        self.lines.instant(MARKS, t, name, if text.is_empty() { &[] } else { &args });
    }

    fn begin(&mut self, t: Stamp, name: &str, args: Args<'_>) {
        self.requests.begin(&mut self.lines, t, name, args);
    }

    fn begin_range(&mut self, t: Stamp, name: &str) {
        self.ranges.begin(&mut self.lines, t, name, &[]);
    }

    /// Ends all open slices.
    fn end_all(&mut self, t: Stamp) {
        self.request = None;
        self.requests.end_all(&mut self.lines, t);
        self.ranges.end_all(&mut self.lines, t);
    }

    fn request_started(&mut self, t: Stamp, started: &RequestStarted) {
        self.end_all(t);
        let name = if started.warmup { "warm-up" } else { "request" };
        let args = [
            ("batch", Arg::Number(u64::from(started.batch))),
            ("prompt_tokens", Arg::Number(u64::from(started.prompt_tokens))),
            ("output_tokens", Arg::Number(u64::from(started.output_tokens))),
        ];
        self.begin(t, &format!("{name} {}", started.request), &args);
        let phase = if started.images > 0 { "vision" } else { "prefill" };
        self.begin(t, phase, &[]);
        // Like the NVTX ranges: phases of a warm-up have none.
        self.begin_range(t, if started.warmup { "warmup" } else { "request" });
        if !started.warmup {
            self.begin_range(t, phase);
        }
        self.request = Some(Request { warmup: started.warmup, tokens: 0, since: t });
    }

    fn images_encoded(&mut self, t: Stamp) {
        let Some(Request { warmup, tokens: 0, .. }) = self.request else { return };
        self.requests.end(&mut self.lines, t);
        self.begin(t, "prefill", &[]);
        if !warmup {
            self.ranges.end(&mut self.lines, t);
            self.begin_range(t, "prefill");
        }
    }

    fn token(&mut self, t: Stamp, number: u32, device_ns: Option<u64>) {
        let Some(Request { warmup, tokens, since }) = self.request.as_mut() else { return };
        let (warmup, first, from) = (*warmup, *tokens == 0, *since);
        (*tokens, *since) = (*tokens + 1, t);
        if first {
            self.requests.end(&mut self.lines, t);
            self.begin(t, "decode", &[]);
        }
        match (warmup, first) {
            (true, _) => {}
            (false, true) => {
                self.ranges.end(&mut self.lines, t);
                self.begin_range(t, "decode");
            }
            (false, false) if self.drawn_steps < MAX_STEPS => {
                self.begin_range(from, "decode_step");
                self.ranges.end(&mut self.lines, t);
            }
            (false, false) => return,
        }
        self.drawn_steps += 1;
        if self.drawn_steps == MAX_STEPS {
            let text = "requests, prefills, recorded timelines and counters continue";
            self.mark(t, "steps are not drawn individually from this point on", text);
        }
        // The step ended at an unknown time before its token arrived.
        if let Some(device_ns) = device_ns {
            let name = if first { "prefill" } else { "decode step" };
            let args = [("request", Arg::Number(u64::from(number))), ("device_ns", Arg::Number(device_ns))];
            let from = Stamp(t.0.saturating_sub(device_ns));
            self.steps.slice(&mut self.lines, (from, t), name, &args);
        }
    }

    fn host_timeline(&mut self, timeline: &HostTimeline) {
        let when = |ns: u64| Stamp(timeline.at.0.saturating_add(ns.min(timeline.ns)));
        let (name, all) = (step_name(timeline.phase), (timeline.at, when(timeline.ns)));
        let Some(step) = self.operators.slice(&mut self.lines, all, name, &[]) else { return };
        let mut within = self.operators.within(step);
        for span in &timeline.spans {
            let stretch = (when(span.start_ns), when(span.start_ns.saturating_add(span.ns)));
            let layer = span.layer.map(|layer| ("layer", Arg::Number(u64::from(layer))));
            within.slice(&mut self.lines, stretch, span.operator.name(), layer.as_slice());
        }
    }

    /// A step without a time is left out.
    fn step_timeline(&mut self, timeline: &StepTimeline) {
        let last = timeline.spans.iter().map(|span| span.start_ns.saturating_add(span.ns)).max();
        let (Some(at), Some(last)) = (timeline.at, last) else { return };
        let when = |ns: u64| Stamp(at.0.saturating_add(ns));
        let (name, all) = (step_name(timeline.phase), (at, when(last)));
        let Some(step) = self.kernels.slice(&mut self.lines, all, name, &[]) else { return };
        let mut within = self.kernels.within(step);
        for span in &timeline.spans {
            let stretch = (when(span.start_ns), when(span.start_ns.saturating_add(span.ns)));
            let name = timeline.names.get(usize::from(span.name)).map_or("(unnamed)", String::as_str);
            let mut args = Vec::with_capacity(2);
            args.extend(span.operator.map(|operator| ("operator", Arg::Text(operator.name()))));
            args.extend(span.layer.map(|layer| ("layer", Arg::Number(u64::from(layer)))));
            within.slice(&mut self.lines, stretch, name, &args);
        }
    }

    fn gpu_sample(&mut self, t: Stamp, sample: &GpuSample) {
        let process = FIRST_GPU + u64::from(sample.gpu);
        for reading in READINGS {
            let Some(value) = sample.get(reading) else { continue };
            let about = reading.about();
            let (value, unit) = if about.unit == "B" { (mib(value), "MiB") } else { (value, about.unit) };
            self.lines.counter(process, t, about.label, unit, value);
        }
        let Some(bits) = sample.reasons else { return };
        let before = self.reasons.insert(sample.gpu, bits);
        if before == Some(bits) {
            return;
        }
        let names: Vec<String> = reasons::active(bits).map(|found| found.name().into_owned()).collect();
        let name = if names.is_empty() { "no clock event reasons".to_owned() } else { names.join(", ") };
        self.lines.instant(TrackId { process, thread: 1 }, t, &name, &[("bits", Arg::Number(bits))]);
    }

    fn host_sample(&mut self, t: Stamp, sample: &HostSample) {
        let cores = sample.core_pct.len();
        let busy = (cores > 0).then(|| f64::from(sample.core_pct.iter().sum::<f32>()) / cores as f64);
        let mib_of = |bytes: Option<u64>| bytes.map(|bytes| mib(bytes as f64));
        for (name, unit, value) in [
            ("CPU", "%", busy),
            ("own CPU", "% of a core", sample.process_pct.map(f64::from)),
            ("CPU clock", "MHz", sample.freq_mhz.map(f64::from)),
            ("memory", "MiB", mib_of(sample.mem_used_bytes)),
            ("own memory", "MiB", mib_of(sample.process_rss_bytes)),
            ("package power", "W", sample.package_power_w.map(f64::from)),
        ] {
            if let Some(value) = value {
                self.lines.counter(HOST, t, name, unit, value);
            }
        }
    }

    fn allocator(&mut self, t: Stamp, sample: &AllocatorSample) {
        let (process, live, reserved) = match sample.allocator {
            Allocator::Heap => (HOST, "heap, live", "heap, reserved"),
            Allocator::Gpu => (DEVICE, "buffers, live", "buffers, reserved"),
        };
        self.lines.counter(process, t, live, "MiB", mib(sample.live_bytes as f64));
        if let Some(bytes) = sample.reserved_bytes {
            self.lines.counter(process, t, reserved, "MiB", mib(bytes as f64));
        }
    }
}

fn step_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Prefill => "prefill",
        Phase::Decode => "decode step",
        Phase::Vision => "vision",
        Phase::Mixed => "mixed step",
        Phase::Idle | Phase::Preparing => "step",
    }
}

fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}

#[cfg(test)]
mod tests;
