//! The host: its CPU, its memory, and its allocators.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HostInfo {
    pub cpu: String,
    pub cores: u32,
    pub os: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_total_bytes: Option<u64>,
    /// The source of package power, or the reason for its absence.
    pub power_source: String,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostSample {
    /// Utilisation of each core, 0–100.
    pub core_pct: Vec<f32>,
    /// Mean clock of the cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub freq_mhz: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_used_bytes: Option<u64>,
    /// CPU time of this process, in percent of one core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_pct: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_rss_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub package_power_w: Option<f32>,
}

/// The memory of an allocator. Sent on changes, at most about once per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatorSample {
    pub allocator: Allocator,
    /// Allocated and not freed.
    pub live_bytes: u64,
    /// The peak of `live_bytes` so far.
    pub peak_bytes: u64,
    /// The bytes that the allocator has reserved from the system, if it reports them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_bytes: Option<u64>,
}

impl AllocatorSample {
    /// The unused share of the reserved memory; `None` if that is not reported.
    pub fn fragmentation(&self) -> Option<f64> {
        let reserved = self.reserved_bytes.filter(|bytes| *bytes > 0)?;
        Some((1.0 - self.live_bytes as f64 / reserved as f64).max(0.0))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Allocator {
    /// This process's heap on the host.
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
    fn fragmentation_needs_reserved_bytes() {
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
