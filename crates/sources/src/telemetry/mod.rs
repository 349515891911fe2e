//! Telemetry: samples of the GPUs and of the host at regular intervals.

pub mod absent;
pub mod host;
pub mod isolation;
pub mod log;
pub mod nvml;
pub mod sampler;
pub mod thermometer;
mod users;
pub mod visible;

use std::time::Duration;

use thiserror::Error;

use llmprof_event::{
    AllocatorSample, CallCost, GpuInfo, GpuProcess, GpuSample, HostInfo, HostSample, Refused, Stamp,
};
pub use sampler::Sampler;
pub use thermometer::Thermometer;

/// How often a reading is taken. Expensive readings are taken less often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    Fast,
    /// Activity counters, which need a minimum time between two samples.
    Gpm,
    Slow,
    /// Readings that turned out to take too long.
    Rare,
}

impl Tier {
    pub fn name(self) -> &'static str {
        match self {
            Tier::Fast => "fast",
            Tier::Gpm => "gpm",
            Tier::Slow => "slow",
            Tier::Rare => "rare",
        }
    }

    fn slower(self) -> Tier {
        match self {
            Tier::Fast | Tier::Gpm => Tier::Slow,
            Tier::Slow | Tier::Rare => Tier::Rare,
        }
    }
}

/// The readings of one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// All of a tier.
    Tier(Tier),
    /// One call of the slow tier, by its index: between two fast samples there is time for only one.
    SlowCall(usize),
}

/// Samples GPUs.
pub trait GpuProbe: Send {
    /// The GPUs it can sample, with their refusals so far.
    fn gpus(&self) -> Vec<GpuInfo>;

    /// Samples the GPU whose [`GpuInfo::index`] is `gpu`. Absent readings are `None`.
    fn sample(&mut self, gpu: u32, selection: Selection, now: Stamp) -> Result<GpuSample, ProbeError>;

    /// The number of calls in the slow tier.
    fn slow_calls(&self, _gpu: u32) -> usize {
        0
    }

    /// The refusals of that GPU so far.
    fn refused(&self, _gpu: u32) -> &[Refused] {
        &[]
    }

    /// The processes that use that GPU; `None` if they cannot be listed.
    fn processes(&mut self, _gpu: u32) -> Option<Vec<GpuProcess>> {
        None
    }

    /// The processes that do not belong to this run.
    fn other_processes(&mut self, gpu: u32) -> Option<Vec<GpuProcess>> {
        let mut processes = self.processes(gpu)?;
        processes.retain(|process| !process.own);
        Some(processes)
    }

    /// The overhead of each kind of call so far.
    fn costs(&self, _gpu: u32) -> Vec<CallCost> {
        Vec::new()
    }

    /// Time spent in calls since the last request.
    fn take_spent(&mut self) -> Duration {
        Duration::ZERO
    }

    /// Remarks of the probe since the last request.
    fn take_remarks(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// Samples the host.
pub trait HostProbe: Send {
    fn info(&self) -> HostInfo;

    /// Rates cover the time since the last sample.
    fn sample(&mut self, now: Stamp) -> HostSample;

    /// The heap of this process; `None` if it is not counted.
    fn heap(&mut self) -> Option<AllocatorSample> {
        None
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProbeError {
    /// The GPU will not return in this run.
    #[error("GPU {gpu} is lost: {reason}")]
    Lost { gpu: u32, reason: String },
    /// The next sample may succeed.
    #[error("GPU {gpu} could not be read: {reason}")]
    Unreadable { gpu: u32, reason: String },
}
