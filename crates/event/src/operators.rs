//! Operators of the model, timed on the engine's thread.

use serde::{Deserialize, Serialize};

use super::{Phase, Stamp, is_zero};
use llm_cost::Operator;

/// Times of the steps of one phase on the engine's thread since the last window, operator by operator. On the CPU this
/// is the work itself; with a GPU it is the launch time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct OperatorWindow {
    pub phase: Phase,
    /// The steps belong to warm-up requests.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub warmup: bool,
    pub steps: u64,
    /// Sum of the durations of the steps.
    pub host_ns: u64,
    /// Steps without operators, and their time: one CUDA graph, or a model that reports no operators.
    #[serde(rename = "untold_steps", default, skip_serializing_if = "is_zero")]
    pub unattributed_steps: u64,
    #[serde(rename = "untold_ns", default, skip_serializing_if = "is_zero")]
    pub unattributed_ns: u64,
    /// Heap allocations of the steps, inside of operators and between them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heap: Option<HeapGrowth>,
    /// In the order of a step. Operators do not nest, so their times add up.
    pub operators: Vec<OperatorTime>,
}

/// All calls of an operator in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorTime {
    pub operator: Operator,
    pub calls: u64,
    pub ns: u64,
    /// The shortest call and the longest.
    pub min_ns: u64,
    pub max_ns: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heap: Option<HeapGrowth>,
}

/// Heap allocations of a thread; absent if the heap is not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HeapGrowth {
    /// In total, freed or not.
    pub allocated_bytes: u64,
    /// Peak of one call above the level at its start.
    pub peak_bytes: u64,
}

impl HeapGrowth {
    /// The sum of several calls: bytes add up, peaks do not.
    pub fn and(self, other: HeapGrowth) -> HeapGrowth {
        HeapGrowth {
            allocated_bytes: self.allocated_bytes.saturating_add(other.allocated_bytes),
            peak_bytes: self.peak_bytes.max(other.peak_bytes),
        }
    }
}

/// One step on the engine's thread, operator by operator, every few seconds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HostTimeline {
    pub phase: Phase,
    /// The start of the step.
    pub at: Stamp,
    /// The duration of the step.
    pub ns: u64,
    pub spans: Vec<HostSpan>,
}

/// An operator's time in a step. Keys are short: a step has hundreds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSpan {
    #[serde(rename = "o")]
    pub operator: Operator,
    #[serde(rename = "l", default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<u16>,
    /// Since the start of the step.
    #[serde(rename = "t")]
    pub start_ns: u64,
    #[serde(rename = "d")]
    pub ns: u64,
}
