//! Live kernels, recorded step by step.

use serde::{Deserialize, Serialize};

use super::{KernelRow, Overlaps};
use crate::{Phase, Stamp, is_zero};
use llm_cost::Operator;

/// The tool that records kernels, and whether it is recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelTrace {
    /// With its version, if that is known: "CUPTI 13.0".
    pub tool: String,
    pub state: TraceState,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceState {
    /// Being switched on, which delays the workload.
    Starting,
    On,
    /// Switched off by the user.
    Off,
    /// Not available; the workload runs without it.
    Refused {
        reason: String,
        remedy: String,
    },
}

/// The kernels of the steps of one phase that ended since the last window. Times are by the GPU's own clock.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct KernelWindow {
    pub phase: Phase,
    /// A prefill counts as one step, and so does a decode step of a batch.
    pub steps: u64,
    /// Sum over the steps, from the start of the first kernel to the end of the last.
    pub span_ns: u64,
    /// The part of `span_ns` in which a kernel, a copy or a memset ran.
    pub busy_ns: u64,
    /// Sum of the gaps between consecutive steps of a request.
    pub between_ns: u64,
    /// Tokens of prompts in these steps, if the program reports them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    /// Tokens of all sequences in these steps, as the program reports them or by the rows of its kernels; absent if
    /// they are not known for every step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Kernels, copies and memsets.
    pub launches: u64,
    /// The number of `launches` that were nodes of CUDA graphs.
    pub graph_launches: u64,
    /// Records that the tool dropped.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped: u64,
    /// Records without a measured duration.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unmeasured: u64,
    /// Work that overlaps computation, if another program was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlaps: Option<Overlaps>,
    /// By kernel, operator and grid; copies and memsets are rows too, with their bytes. A kernel that overlaps the
    /// previous one counts from the end of that, so that rows add up to `busy_ns`.
    pub rows: Vec<KernelRow>,
}

/// One step, kernel by kernel, in the order of their starts.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct StepTimeline {
    pub phase: Phase,
    /// The start of its first kernel, if the GPU's clock could be related to the run's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Stamp>,
    /// Names that the spans refer to.
    pub names: Vec<String>,
    pub spans: Vec<KernelSpan>,
}

/// A kernel in the timeline of a step. Keys are short: a step may have hundreds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelSpan {
    /// Index into the names.
    #[serde(rename = "n")]
    pub name: u16,
    #[serde(rename = "o", default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<Operator>,
    #[serde(rename = "l", default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<u16>,
    /// Since the start of the step's first kernel.
    #[serde(rename = "t")]
    pub start_ns: u64,
    #[serde(rename = "d")]
    pub ns: u64,
}
