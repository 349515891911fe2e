//! Work that overlaps computation, and waits.

use serde::{Deserialize, Serialize};

/// Work of one kind: its time, and the part that no computation overlaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Exposed {
    pub count: u64,
    pub bytes: u64,
    pub total_ns: u64,
    pub exposed_ns: u64,
}

impl Exposed {
    fn plus(&mut self, other: &Exposed) {
        self.count += other.count;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.total_ns += other.total_ns;
        self.exposed_ns += other.exposed_ns;
    }
}

/// Copies, communication and waits of some steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Overlaps {
    pub to_device: Exposed,
    pub to_host: Exposed,
    /// NCCL and all-reduces of the engine.
    pub communication: Exposed,
    /// Waits of the host, by the host's clock.
    pub waits: u64,
    pub wait_ns: u64,
    pub kernels: u64,
    pub kernel_ns: u64,
    /// Kernels shorter than 5 µs.
    pub small_kernels: u64,
    pub small_ns: u64,
}

impl Overlaps {
    pub fn plus(&mut self, other: &Overlaps) {
        self.to_device.plus(&other.to_device);
        self.to_host.plus(&other.to_host);
        self.communication.plus(&other.communication);
        self.waits += other.waits;
        self.wait_ns += other.wait_ns;
        self.kernels += other.kernels;
        self.kernel_ns += other.kernel_ns;
        self.small_kernels += other.small_kernels;
        self.small_ns += other.small_ns;
    }
}
