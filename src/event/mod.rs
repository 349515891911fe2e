//! The one shared vocabulary: whatever happens in a run is an [`Event`] with a time.
//!
//! Events are sent by the engine and the probes, recorded line by line in `events.ndjson`, and folded
//! into [`crate::state::RunState`]. A screen or a report is a pure function of them.

mod device;
pub mod kernels;
mod profile;
pub mod readings;
pub mod reasons;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

pub use self::device::{Device, EngineKind};
pub use self::profile::{
    Allocator, AllocatorSample, HeapGrowth, HostSpan, HostTimeline, OperatorTime, OperatorWindow,
};
use crate::{
    event::kernels::{KernelRow, KernelTable},
    model::{Operator, Shape},
};
pub use readings::GpuSample;

/// Version of the recorded form. It grows when an old reader would misread a new recording.
pub const SCHEMA: u32 = 1;

/// Nanoseconds since the run's clock started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stamp(pub u64);

impl Stamp {
    pub fn from_secs_f64(secs: f64) -> Self {
        Stamp((secs * 1e9) as u64)
    }

    pub fn secs(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Time passed since `earlier`; zero when `earlier` lies later.
    pub fn since(self, earlier: Stamp) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Stamp {
    type Output = Stamp;

    fn add(self, rhs: Duration) -> Stamp {
        Stamp(self.0.saturating_add(rhs.as_nanos() as u64))
    }
}

/// An event and when it happened. One line of `events.ndjson`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    pub t: Stamp,
    #[serde(rename = "e")]
    pub event: Event,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    RunStarted(Box<RunStarted>),
    /// Weights are being made or loaded; not counted into any latency.
    Preparing(Preparing),
    Ready(Ready),
    RequestStarted(RequestStarted),
    Token(Token),
    RequestFinished(RequestFinished),
    /// What a sequence was asked and answered, where that is to be kept.
    Prediction(Box<Prediction>),
    WorkloadPaused,
    WorkloadResumed,
    GpuFound(Box<GpuInfo>),
    GpuAbsent(GpuAbsent),
    GpuSample(Box<GpuSample>),
    GpuProcesses(Box<GpuProcesses>),
    GpuLost(GpuLost),
    SamplerCost(Box<SamplerCost>),
    /// Whether single kernels are recorded as they run.
    KernelTrace(KernelTrace),
    /// The kernels of some steps, about once a second while they are recorded.
    Kernels(Box<KernelWindow>),
    /// The kernels of one step, one by one, every few seconds while they are recorded.
    StepTimeline(Box<StepTimeline>),
    /// What operators took on the host, about once a second.
    Operators(Box<OperatorWindow>),
    /// One step on the host, operator by operator, every few seconds.
    HostTimeline(Box<HostTimeline>),
    /// What an allocator holds.
    Allocator(AllocatorSample),
    /// The run is done again under a tool, by a child.
    ToolRun(Box<ToolRun>),
    /// What a tool wrote of a run under it.
    KernelReport(Box<KernelReport>),
    HostFound(Box<HostInfo>),
    HostSample(Box<HostSample>),
    /// What profiling itself costs, once a second.
    Observer(ObserverSample),
    /// The metrics since the last snapshot get a name.
    Snapshot(SnapshotTaken),
    Notice(Notice),
    RunFinished(RunFinished),
}

/// The first event of every recording: what was asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunStarted {
    pub schema: u32,
    pub program: String,
    pub started_unix_ms: u64,
    pub experiment: String,
    pub model: String,
    pub dtype: String,
    pub engine: EngineKind,
    pub device: Device,
    /// Random weights of the model's true shape rather than trained ones.
    pub synthetic_weights: bool,
    /// Time is simulated; nothing here was measured.
    pub simulated: bool,
    pub parameters: u64,
    pub weight_bytes: u64,
    /// The part of them a decode step reads: all but an embedding table that is only looked up, and of experts
    /// those that are chosen. Not there where that depends on the tokens.
    pub step_weight_bytes: Option<u64>,
    /// Bytes a decode step reads once per sequence and position of context.
    pub kv_bytes_per_position: u64,
    /// Measured requests; warm-up comes on top.
    pub requests: u32,
    pub warmup: u32,
    pub batch: u32,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    pub seed: u64,
    pub overrides: Vec<String>,
    /// What its cost follows from, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Box<Shape>>,
    /// What the user says the device can do at most.
    #[serde(default, skip_serializing_if = "GivenPeaks::is_empty")]
    pub peaks: GivenPeaks,
    /// The tool that the run was under: what it measures is not what the workload takes by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perturbed: Option<String>,
}

/// Greatest rates that the user gave. They win over what is known of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct GivenPeaks {
    /// Operations a second of the type that is run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flops: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<f64>,
}

impl GivenPeaks {
    pub fn is_empty(&self) -> bool {
        self.flops.is_none() && self.bytes_per_s.is_none()
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Preparing {
    pub step: String,
    pub done: u64,
    pub total: u64,
}

/// The engine can take requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    pub prepare_ms: f64,
}

/// A request is one batch of sequences of equal length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RequestStarted {
    pub request: u32,
    pub warmup: bool,
    pub batch: u32,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
}

/// One decode step's token ids have reached the host. `id` is the first sequence's;
/// the other `batch - 1` arrived with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    #[serde(rename = "r")]
    pub request: u32,
    #[serde(rename = "i")]
    pub index: u32,
    pub id: u32,
    /// What the step took by the device's own clock, in nanoseconds, where it has one.
    #[serde(rename = "d", default, skip_serializing_if = "Option::is_none")]
    pub device_ns: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestFinished {
    pub request: u32,
    /// False when it was cancelled on the way.
    pub complete: bool,
}

/// One sequence of a measured request, as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prediction {
    /// Counted without warm-up.
    pub request: u32,
    pub sequence: u32,
    pub prompt: String,
    pub text: String,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    pub ending: Ending,
}

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The model said so.
    Stop,
    /// It was as long as it may be.
    Length,
}

/// A GPU that the probe will sample. Told again when more is known of it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuInfo {
    pub index: u32,
    pub name: String,
    pub uuid: String,
    pub driver: String,
    /// "nvml", "sim", "log"
    pub source: String,
    /// The workload runs on it.
    pub profiled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_capability: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_total_bytes: Option<u64>,
    /// The one in force; the others are what it may be set to, and what it is without anyone's doing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_w: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_default_w: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_max_w: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_clock_max_mhz: Option<u32>,
    /// The clock that applications were given, where someone has set one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_clock_application_mhz: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_clock_max_mhz: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowdown_temp_c: Option<u32>,
    /// What card and slot could do together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_gen_max: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_width_max: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistence: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig: Option<bool>,
    /// The kind of virtual GPU, where it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virtualization: Option<String>,
    /// Readings this device refuses, each with its reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refused>,
}

/// A reading that is not there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// A reading's label, or what else was asked.
    pub reading: String,
    pub reason: String,
    /// What would change that, where something would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// Why there is no GPU to look at, and what would change that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuAbsent {
    pub reason: String,
    pub remedy: String,
}

/// The processes that compute on a GPU, this program left out. Sent when they change.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GpuProcesses {
    pub gpu: u32,
    pub processes: Vec<GpuProcess>,
}

/// Someone else on the card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    pub pid: u32,
    /// Where the system tells it: a process outside of this container has no name here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where the driver tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_bytes: Option<u64>,
}

impl std::fmt::Display for GpuProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mem = self.mem_bytes.map_or_else(String::new, |bytes| format!(", {} MiB", bytes >> 20));
        match (&self.name, self.mem_bytes) {
            (Some(name), _) => write!(f, "{name} (pid {}{mem})", self.pid),
            (None, Some(bytes)) => write!(f, "pid {} ({} MiB)", self.pid, bytes >> 20),
            (None, None) => write!(f, "pid {}", self.pid),
        }
    }
}

/// A GPU that answered before does so no more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuLost {
    pub gpu: u32,
    pub reason: String,
    pub remedy: String,
}

/// What looking at the GPUs has cost so far.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SamplerCost {
    /// Part of the time in which a call was under way, since the message before.
    pub duty_pct: f32,
    /// CPU time of the sampler's thread in percent of one core, since the message before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_pct: Option<f32>,
    pub calls: Vec<CallCost>,
}

/// One kind of call over the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallCost {
    pub call: String,
    /// How often it is made: "fast", "gpm", "slow", "rare".
    pub tier: String,
    pub n: u64,
    /// Not there while there are too few calls to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<f32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f32>,
}

/// Who records kernels, and whether it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelTrace {
    /// With its version, where that is known: "CUPTI 13.0".
    pub tool: String,
    pub state: TraceState,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceState {
    On,
    /// Someone switched it off.
    Off,
    /// It can't be had here; the workload goes on without.
    Refused {
        reason: String,
        remedy: String,
    },
}

/// The kernels of the steps of one phase that ended since the window before. Times are by the GPU's own clock.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct KernelWindow {
    pub phase: Phase,
    /// A prefill is one step, a token of a batch is one.
    pub steps: u64,
    /// From each step's first kernel to the end of its last, added up.
    pub span_ns: u64,
    /// The part of that in which a kernel, a copy or a memset was at work.
    pub busy_ns: u64,
    /// Between the end of a step and the beginning of the next of the same request, added up.
    pub between_ns: u64,
    /// Kernels, copies and memsets.
    pub launches: u64,
    /// How many of them were nodes of CUDA graphs.
    pub graph_launches: u64,
    /// Records that the tool could not keep.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped: u64,
    /// By kernel, operator and grid; copies and memsets are rows too, with their bytes. A kernel that was let in before the
    /// one before it had ended counts from that end on, so that rows add up to `busy_ns`.
    pub rows: Vec<KernelRow>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// One step, kernel by kernel, in the order in which they began.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct StepTimeline {
    pub phase: Phase,
    /// When its first kernel began, where the GPU's clock could be held against the run's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Stamp>,
    /// Names that the spans refer to.
    pub names: Vec<String>,
    pub spans: Vec<KernelSpan>,
}

/// A kernel's time in a step. Keys are short: a step may have hundreds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelSpan {
    /// Which of the names.
    #[serde(rename = "n")]
    pub name: u16,
    #[serde(rename = "o", default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<Operator>,
    #[serde(rename = "l", default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<u16>,
    /// Since the step's first kernel began.
    #[serde(rename = "t")]
    pub start_ns: u64,
    #[serde(rename = "d")]
    pub ns: u64,
}

/// A run under nsys or ncu, as far as it has come.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolRun {
    /// "nsys", "ncu"
    pub tool: String,
    /// Idle where it is of all phases.
    pub phase: Phase,
    pub state: ToolState,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolState {
    /// What it does now, in words; how much of it, where that is known.
    Working {
        doing: String,
        share: Option<f64>,
    },
    /// The report follows.
    Done,
    Failed {
        reason: String,
        remedy: String,
    },
    Cancelled,
}

/// What nsys or ncu wrote of a run under them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KernelReport {
    /// With its version: "ncu 2025.3.1".
    pub tool: String,
    /// The phase it was gated to; `None` where it is of everything, or nobody knows.
    pub phase: Option<Phase>,
    /// Where the report lies, relative to the run, or as it was named.
    pub file: String,
    pub tables: Vec<KernelTable>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HostInfo {
    pub cpu: String,
    pub cores: u32,
    pub os: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_total_bytes: Option<u64>,
    /// Where package power is read, or why it is not.
    pub power_source: String,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostSample {
    /// Busy share of each core, 0–100.
    pub core_pct: Vec<f32>,
    /// Mean clock over the cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub freq_mhz: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_used_bytes: Option<u64>,
    /// This process, in percent of one core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_pct: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_rss_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub package_power_w: Option<f32>,
}

/// What the profiler itself costs, measured over the last second or so.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ObserverSample {
    /// CPU time of the consumer (recording, folding, drawing) in percent of one core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer_pct: Option<f32>,
    /// Mean time of a frame, when any was drawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frame_ms: Option<f32>,
    /// Events waiting in the channel.
    pub backlog: u64,
    /// Events that could not be written to disk, in all.
    pub lost: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotTaken {
    pub name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Info,
    Warn,
    Error,
}

/// A line for the Log pane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    pub level: Level,
    /// The part of the program that speaks: "engine", "gpu", "recorder", …
    pub source: String,
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Completed,
    Interrupted,
    Failed,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Outcome::Completed => "completed",
            Outcome::Interrupted => "interrupted",
            Outcome::Failed => "failed",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFinished {
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

/// What the workload is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Phase {
    #[default]
    Idle = 0,
    Preparing = 1,
    Prefill = 2,
    Decode = 3,
}

impl Phase {
    /// The phase once `event` has happened.
    pub fn after(self, event: &Event) -> Phase {
        match event {
            Event::Preparing(_) => Phase::Preparing,
            Event::RequestStarted(_) => Phase::Prefill,
            Event::Token(_) if self == Phase::Prefill => Phase::Decode,
            Event::Ready(_) | Event::RequestFinished(_) | Event::RunFinished(_) => Phase::Idle,
            _ => self,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Phase::Idle => "idle",
            Phase::Preparing => "preparing",
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
        }
    }
}

/// The workload's current phase, written by the driver and readable from any thread.
#[derive(Debug, Clone, Default)]
pub struct Activity(Arc<AtomicU8>);

impl Activity {
    pub fn set(&self, phase: Phase) {
        self.0.store(phase as u8, Ordering::Relaxed);
    }

    pub fn get(&self) -> Phase {
        match self.0.load(Ordering::Relaxed) {
            1 => Phase::Preparing,
            2 => Phase::Prefill,
            3 => Phase::Decode,
            _ => Phase::Idle,
        }
    }
}

/// Where stamps come from: the machine's monotonic clock, or a simulation that moves it by hand.
#[derive(Debug, Clone)]
pub enum Clock {
    Wall(Instant),
    Virtual(Arc<AtomicU64>),
}

impl Clock {
    pub fn wall() -> Self {
        Clock::Wall(Instant::now())
    }

    pub fn virtual_clock() -> Self {
        Clock::Virtual(Arc::default())
    }

    pub fn now(&self) -> Stamp {
        match self {
            Clock::Wall(start) => Stamp(start.elapsed().as_nanos() as u64),
            Clock::Virtual(ns) => Stamp(ns.load(Ordering::Acquire)),
        }
    }

    /// Moves a virtual clock on; a wall clock moves by itself.
    pub fn advance(&self, by: Duration) {
        if let Clock::Virtual(ns) = self {
            ns.fetch_add(by.as_nanos() as u64, Ordering::AcqRel);
        }
    }
}

/// The sending end of the one channel. Sending never blocks; after the consumer has gone it does nothing.
#[derive(Debug, Clone)]
pub struct EventTx {
    clock: Clock,
    tx: mpsc::UnboundedSender<Envelope>,
}

pub type EventRx = mpsc::UnboundedReceiver<Envelope>;

/// The channel between whoever produces events and the one consumer.
pub fn channel(clock: Clock) -> (EventTx, EventRx) {
    let (tx, rx) = mpsc::unbounded_channel();
    (EventTx { clock, tx }, rx)
}

impl EventTx {
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Sends `event` stamped with the current time, which is returned.
    pub fn send(&self, event: Event) -> Stamp {
        let t = self.clock.now();
        let _ = self.tx.send(Envelope { t, event });
        t
    }

    pub fn notice(&self, level: Level, source: &str, text: impl Into<String>) {
        self.send(Event::Notice(Notice { level, source: source.to_owned(), text: text.into() }));
    }
}
