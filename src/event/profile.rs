//! What operators take on the host, and what memory allocators hold.

use serde::{Deserialize, Serialize};

use super::{Phase, Stamp, is_zero};
use crate::model::Operator;

/// What the steps of one phase took on the engine's thread since the window before, operator by operator. On the CPU that
/// is the time of the work itself; where a GPU works, it is what launching takes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct OperatorWindow {
    pub phase: Phase,
    /// The steps are of warm-up requests.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub warmup: bool,
    pub steps: u64,
    /// From each step's beginning to its end, added up.
    pub host_ns: u64,
    /// Steps of which no operator was told, and their time: one CUDA graph, or a model that does not tell.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub untold_steps: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub untold_ns: u64,
    /// What the steps asked the heap for, whatever part of them did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heap: Option<HeapGrowth>,
    /// In the order in which a step does them. Parts do not lie within each other, so their times add up.
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

/// What a thread asked the heap for; not there where the heap is not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HeapGrowth {
    /// In all, given back or not.
    pub allocated_bytes: u64,
    /// The most that one call held at a time beyond what was held when it began.
    pub peak_bytes: u64,
}

impl HeapGrowth {
    /// Of several calls: bytes add up, peaks do not.
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
    /// When the step began.
    pub at: Stamp,
    /// Of the whole step.
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
    /// Since the step began.
    #[serde(rename = "t")]
    pub start_ns: u64,
    #[serde(rename = "d")]
    pub ns: u64,
}

/// What an allocator holds. Told when it has changed, about once a second at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatorSample {
    pub allocator: Allocator,
    /// Asked for and not given back.
    pub live_bytes: u64,
    /// The most of that so far.
    pub peak_bytes: u64,
    /// What the allocator has taken from the system to serve it, where it tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_bytes: Option<u64>,
}

impl AllocatorSample {
    /// The share of what is reserved that holds nothing; `None` where it is not told.
    pub fn fragmentation(&self) -> Option<f64> {
        let reserved = self.reserved_bytes.filter(|bytes| *bytes > 0)?;
        Some((1.0 - self.live_bytes as f64 / reserved as f64).max(0.0))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Allocator {
    /// Of this process, on the host.
    Heap,
    /// The engine's own buffers on the GPU.
    Gpu,
}

impl Allocator {
    pub const ALL: [Allocator; 2] = [Allocator::Heap, Allocator::Gpu];

    pub fn name(self) -> &'static str {
        match self {
            Allocator::Heap => "heap",
            Allocator::Gpu => "GPU buffers",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_told_is_no_fragmentation() {
        let sample = |live_bytes, reserved_bytes| AllocatorSample {
            allocator: Allocator::Heap,
            live_bytes,
            peak_bytes: live_bytes,
            reserved_bytes,
        };
        for (live, reserved, wanted) in
            [(75, Some(100), Some(0.25)), (100, None, None), (0, Some(0), None), (110, Some(100), Some(0.0))]
        {
            assert_eq!(sample(live, reserved).fragmentation(), wanted, "{live} of {reserved:?}");
        }
    }
}
