//! The simulated GPUs. Their peaks are those of the table of GPUs.

use llmprof_analysis::{
    peaks::{Basis, GpuPeaks, Peaks, peaks},
    roofline::Roof,
};
use llmprof_event::GivenPeaks;

/// A GPU as its driver describes it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SimCard {
    /// Its name in the table of GPUs.
    pub name: &'static str,
    pub architecture: &'static str,
    pub mem_bytes: u64,
    pub sm_clock_max_mhz: u32,
    pub mem_clock_mhz: u32,
    pub power_limit_w: f64,
    pub idle_power_w: f64,
    pub slowdown_temp_c: u32,
    pub pcie_gen: u32,
}

/// The GPU of all scenarios but one.
pub const H200: SimCard = SimCard {
    name: "NVIDIA H200",
    architecture: "Hopper",
    mem_bytes: 143_771 << 20,
    sm_clock_max_mhz: 1980,
    mem_clock_mhz: 3201,
    power_limit_w: 700.0,
    idle_power_w: 122.0,
    slowdown_temp_c: 92,
    pcie_gen: 5,
};

/// The consumer GPU.
pub const RTX_4090: SimCard = SimCard {
    name: "NVIDIA GeForce RTX 4090",
    architecture: "Ada",
    mem_bytes: 24_564 << 20,
    sm_clock_max_mhz: 2520,
    mem_clock_mhz: 10_501,
    power_limit_w: 450.0,
    idle_power_w: 22.0,
    slowdown_temp_c: 92,
    pcie_gen: 4,
};

impl SimCard {
    /// The roof for a type; for a type without figures, that of f32.
    pub(super) fn roof(&self, dtype: &str) -> Roof {
        let known = |dtype: &str| peaks(Some(self.name), dtype, GivenPeaks::default()).ok();
        let none = || Peaks {
            flops: 1e12,
            bytes_per_s: GpuPeaks::named(self.name).map_or(1e12, |gpu| gpu.bytes_per_s),
            clock_mhz: None,
            basis: Basis::Estimated,
            source: String::new(),
            measured: None,
        };
        Roof::stated(&known(dtype).or_else(|| known("f32")).unwrap_or_else(none))
    }
}
