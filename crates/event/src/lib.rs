#![doc = include_str!("../README.md")]

mod channel;
mod device;
mod experts;
mod gpu;
mod host;
pub mod kernels;
mod launches;
mod link;
mod operators;
mod phase;
mod process;
pub mod ranks;
pub mod readings;
pub mod reasons;
mod request;
mod run;
mod server;
mod stacks;
mod text_enum;
mod time;
mod work_kind;

use serde::{Deserialize, Serialize};

pub use self::{
    channel::{EventRx, EventTx, channel, patient_channel},
    device::Device,
    experts::{ExpertUse, HottestExpert},
    gpu::{
        CallCost, GpuAbsent, GpuInfo, GpuLost, GpuProcess, GpuProcesses, GpuSource, Query, Refusal, Refused,
        SamplerCost,
    },
    host::{Allocator, AllocatorSample, HostInfo, HostSample},
    kernels::{
        live::{KernelSpan, KernelTrace, KernelWindow, StepTimeline, TraceState},
        tools::{KernelReport, Tool, ToolRun, ToolState},
    },
    launches::{LaunchFrame, LaunchLines, LaunchRow, LaunchStack},
    link::Link,
    operators::{HeapGrowth, HostSpan, HostTimeline, OperatorTime, OperatorWindow},
    phase::{Activity, Phase},
    process::{ProcessJoined, ProcessLeft},
    readings::GpuSample,
    request::{Ending, ImagesEncoded, Prediction, RequestFinished, RequestStarted, Speculation, Token},
    run::{
        GivenPeaks, Level, Notice, ObserverSample, Outcome, PrefillProgress, Preparing, ProcessStopped,
        Ready, RunFinished, RunStarted, SnapshotTaken,
    },
    server::{
        AlertChanged, ClientSample, Connecting, HttpStep, OfferedLoad, RequestFailure, Served, ServerFound,
        ServerKind, ServerSample, ServerSilent, ServerTimes, Slo,
    },
    stacks::{HostActivity, HostRow, HostStacks},
    time::{Clock, Stamp},
    work_kind::{ModelEngine, WorkKind},
};

/// Version of the recorded form. It is raised when an old reader would misread a new recording.
pub const SCHEMA: u32 = 1;

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
    /// Weights are being made or loaded. Part of no latency.
    Preparing(Preparing),
    Ready(Ready),
    RequestStarted(RequestStarted),
    ImagesEncoded(ImagesEncoded),
    /// The current layer of a long prefill.
    PrefillProgress(PrefillProgress),
    Token(Token),
    RequestFinished(RequestFinished),
    /// Prompt and answer of a sequence, if they are recorded.
    Prediction(Box<Prediction>),
    WorkloadPaused,
    WorkloadResumed,
    /// The process continues after it was stopped, by Ctrl-Z or SIGSTOP.
    ProcessStopped(ProcessStopped),
    GpuFound(Box<GpuInfo>),
    GpuAbsent(GpuAbsent),
    GpuSample(Box<GpuSample>),
    GpuProcesses(Box<GpuProcesses>),
    GpuLost(GpuLost),
    SamplerCost(Box<SamplerCost>),
    /// A process of another program is followed from now on.
    ProcessJoined(Box<ProcessJoined>),
    ProcessLeft(ProcessLeft),
    /// A server answers.
    ServerFound(Box<ServerFound>),
    /// The server's own metrics.
    ServerSample(Box<ServerSample>),
    /// The server's metrics can no longer be read.
    ServerSilent(ServerSilent),
    /// An alert became true, or is no longer true.
    AlertChanged(AlertChanged),
    /// The delay of the load-test client.
    ClientSample(ClientSample),
    /// The finding about the steps of a program has changed.
    StepsFound(kernels::Finding),
    /// Whether single kernels are recorded as they run.
    KernelTrace(KernelTrace),
    /// The kernels of some steps, about once per second while they are recorded.
    Kernels(Box<KernelWindow>),
    /// The kernels of one step, individually, every few seconds while they are recorded.
    StepTimeline(Box<StepTimeline>),
    /// Operator times on the host, about once per second.
    Operators(Box<OperatorWindow>),
    /// The activity of the ranks of a program, about once per second while they are recorded.
    Ranks(Box<ranks::RanksWindow>),
    /// One step on the host, operator by operator, every few seconds.
    HostTimeline(Box<HostTimeline>),
    Allocator(AllocatorSample),
    /// Expert assignments, after each request.
    Experts(ExpertUse),
    /// A child process repeats the run under a tool.
    ToolRun(Box<ToolRun>),
    /// The report of a tool.
    KernelReport(Box<KernelReport>),
    /// What the host threads of a followed process do, about once per second.
    HostStacks(Box<HostStacks>),
    LaunchLines(Box<LaunchLines>),
    HostFound(Box<HostInfo>),
    HostSample(Box<HostSample>),
    /// Overhead of the profiler itself, once per second.
    Observer(ObserverSample),
    /// The metrics since the last snapshot are saved under a name.
    Snapshot(SnapshotTaken),
    Notice(Notice),
    RunFinished(RunFinished),
}

impl Event {
    /// A reading of the machine, a server or the profiler itself, which belongs to the run only while it is in progress.
    pub fn is_telemetry(&self) -> bool {
        matches!(
            self,
            Event::GpuFound(_)
                | Event::GpuAbsent(_)
                | Event::GpuSample(_)
                | Event::GpuProcesses(_)
                | Event::GpuLost(_)
                | Event::SamplerCost(_)
                | Event::ServerSample(_)
                | Event::ServerSilent(_)
                | Event::ClientSample(_)
                | Event::Allocator(_)
                | Event::HostFound(_)
                | Event::HostSample(_)
                | Event::Observer(_)
        )
    }
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}
