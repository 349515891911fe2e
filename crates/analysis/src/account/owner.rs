//! The owners of time.

use std::fmt;

use llm_cost::Operator;

use crate::{startup::Stage, steps::Class, throttle::Limit};

/// The activity on which time was spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The bytes of operators that memory bounds, at the peak bandwidth.
    Bytes,
    /// The FLOPs of operators that compute bounds, at the peak rate.
    Flops,
    /// A clock below the free one.
    Clock(Limit),
    /// A matrix product or attention beyond its bound; the whole operator if its bound is not known.
    Operator(Operator),
    /// Norms, rotary embedding, activations, sampling.
    SmallKernels,
    /// Kernels whose operator is not known.
    Kernels(Class),
    /// Work of the GPU that was not recorded kernel by kernel.
    Work,
    Communication,
    Copies,
    /// Nothing runs on the GPU within a step.
    KernelGaps,
    /// Nothing runs on the GPU between two steps.
    StepGaps,
    /// The prefill of other requests in the same steps.
    OtherPrefills,
    BatchGrowth,
    Preemption,
    KvPressure,
    Recording,
    /// The delay of the client that measures.
    Client,
    Connect,
    Send,
    Queue,
    Vision,
    /// The request's own prefill beyond its bound.
    Prefill,
    /// No request was being processed.
    NoRequests,
    /// Nothing ran on the GPU of a program.
    GpuIdle,
    Stage(Stage),
    Unexplained,
}

/// Owners with the same colour in a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    Bound,
    Gpu,
    Clock,
    Gaps,
    /// Other requests, and the server's limits.
    Others,
    /// The client, the network, and recording.
    Outside,
    /// The start of a server: its weights and kernels, and everything around them.
    ModelStart,
    ProcessStart,
    Unexplained,
}

impl Group {
    pub const ALL: [Group; 9] = [
        Group::Bound,
        Group::Gpu,
        Group::Clock,
        Group::Gaps,
        Group::Others,
        Group::Outside,
        Group::ModelStart,
        Group::ProcessStart,
        Group::Unexplained,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Group::Bound => "bound",
            Group::Gpu => "GPU work",
            Group::Clock => "clock",
            Group::Gaps => "gaps",
            Group::Others => "other requests",
            Group::Outside => "outside",
            Group::ModelStart => "model start",
            Group::ProcessStart => "process start",
            Group::Unexplained => "unexplained",
        }
    }

    pub fn key(self) -> &'static str {
        match self {
            Group::Bound => "bound",
            Group::Gpu => "gpu",
            Group::Clock => "clock",
            Group::Gaps => "gaps",
            Group::Others => "others",
            Group::Outside => "outside",
            Group::ModelStart => "model_start",
            Group::ProcessStart => "process_start",
            Group::Unexplained => "unexplained",
        }
    }
}

impl Owner {
    pub fn group(self) -> Group {
        match self {
            Owner::Bytes | Owner::Flops => Group::Bound,
            Owner::Operator(_) | Owner::SmallKernels | Owner::Kernels(_) | Owner::Work => Group::Gpu,
            Owner::Communication | Owner::Copies | Owner::Prefill | Owner::Vision => Group::Gpu,
            Owner::Stage(Stage::Compile | Stage::Capture | Stage::Weights | Stage::Memory) => {
                Group::ModelStart
            }
            Owner::Stage(Stage::Imports | Stage::Engine | Stage::Api) => Group::ProcessStart,
            Owner::Clock(_) => Group::Clock,
            Owner::KernelGaps | Owner::StepGaps | Owner::GpuIdle => Group::Gaps,
            Owner::OtherPrefills | Owner::BatchGrowth | Owner::Preemption => Group::Others,
            Owner::KvPressure | Owner::Queue => Group::Others,
            Owner::Recording | Owner::Client | Owner::Connect | Owner::Send => Group::Outside,
            Owner::NoRequests => Group::Outside,
            Owner::Unexplained => Group::Unexplained,
        }
    }

    /// The name in JSON.
    pub fn key(self) -> String {
        match self {
            Owner::Bytes => "bytes".to_owned(),
            Owner::Flops => "flops".to_owned(),
            Owner::Clock(limit) => format!("clock:{}", limit.name()),
            Owner::Operator(operator) => format!("operator:{operator}"),
            Owner::SmallKernels => "small_kernels".to_owned(),
            Owner::Kernels(class) => format!("kernels:{class}"),
            Owner::Work => "gpu_work".to_owned(),
            Owner::Communication => "communication".to_owned(),
            Owner::Copies => "copies".to_owned(),
            Owner::KernelGaps => "kernel_gaps".to_owned(),
            Owner::StepGaps => "step_gaps".to_owned(),
            Owner::OtherPrefills => "other_prefills".to_owned(),
            Owner::BatchGrowth => "batch_growth".to_owned(),
            Owner::Preemption => "preemption".to_owned(),
            Owner::KvPressure => "kv_pressure".to_owned(),
            Owner::Recording => "recording".to_owned(),
            Owner::Client => "client".to_owned(),
            Owner::Connect => "connect".to_owned(),
            Owner::Send => "send".to_owned(),
            Owner::Queue => "queue".to_owned(),
            Owner::Vision => "vision".to_owned(),
            Owner::Prefill => "prefill".to_owned(),
            Owner::NoRequests => "no_requests".to_owned(),
            Owner::GpuIdle => "gpu_idle".to_owned(),
            Owner::Stage(stage) => format!("stage:{stage}"),
            Owner::Unexplained => "unexplained".to_owned(),
        }
    }

    /// The pane with the numbers behind it.
    pub fn evidence(self) -> Evidence {
        match self {
            Owner::Bytes | Owner::Flops => Evidence::Roofline,
            Owner::Clock(_) => Evidence::Gpu,
            Owner::Operator(_) | Owner::SmallKernels | Owner::Kernels(_) | Owner::Work => Evidence::Kernels,
            Owner::Communication => Evidence::Ranks,
            Owner::Copies | Owner::KernelGaps | Owner::StepGaps | Owner::GpuIdle => Evidence::Kernels,
            Owner::OtherPrefills | Owner::BatchGrowth | Owner::Preemption | Owner::KvPressure => {
                Evidence::Server
            }
            Owner::Client | Owner::Connect | Owner::Send | Owner::Queue | Owner::NoRequests => {
                Evidence::Server
            }
            Owner::Stage(_) => Evidence::Log,
            Owner::Recording | Owner::Vision | Owner::Prefill | Owner::Unexplained => Evidence::Tokens,
        }
    }
}

/// The pane that shows the evidence of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    Gpu,
    Kernels,
    Log,
    Ranks,
    Roofline,
    Server,
    Tokens,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&match self {
            Owner::Bytes => "bytes at peak bandwidth".to_owned(),
            Owner::Flops => "FLOPs at peak rate".to_owned(),
            Owner::Clock(limit) => format!("clock: {}", limit.name()),
            Owner::Operator(operator) => operator.to_string(),
            Owner::SmallKernels => "small kernels".to_owned(),
            Owner::Kernels(class) => format!("kernels: {class}"),
            Owner::Work => "steps beyond the bound".to_owned(),
            Owner::Communication => "communication".to_owned(),
            Owner::Copies => "copies".to_owned(),
            Owner::KernelGaps => "gaps between kernels".to_owned(),
            Owner::StepGaps => "gaps between steps".to_owned(),
            Owner::OtherPrefills => "prefill of other requests".to_owned(),
            Owner::BatchGrowth => "larger batch".to_owned(),
            Owner::Preemption => "preemption".to_owned(),
            Owner::KvPressure => "full KV cache".to_owned(),
            Owner::Recording => "recording kernels".to_owned(),
            Owner::Client => "client delay".to_owned(),
            Owner::Connect => "connect".to_owned(),
            Owner::Send => "send".to_owned(),
            Owner::Queue => "server queue".to_owned(),
            Owner::Vision => "images to embeddings".to_owned(),
            Owner::Prefill => "own prefill".to_owned(),
            Owner::NoRequests => "no requests".to_owned(),
            Owner::GpuIdle => "GPU idle".to_owned(),
            Owner::Stage(stage) => stage.to_string(),
            Owner::Unexplained => "unexplained".to_owned(),
        })
    }
}
