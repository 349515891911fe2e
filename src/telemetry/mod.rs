//! What the machine does meanwhile: readings of the GPUs and of the host, taken at intervals.

pub mod absent;
pub mod host;
pub mod isolation;
pub mod log;
pub mod nvml;
pub mod sampler;
pub mod thermometer;
pub mod visible;

use std::time::Duration;

use thiserror::Error;

pub use crate::event::reasons;
use crate::event::{
    AllocatorSample, CallCost, GpuInfo, GpuProcess, GpuSample, HostInfo, HostSample, Refused, Stamp,
};
pub use sampler::Sampler;
pub use thermometer::Thermometer;

/// How often a reading is taken. What is dear is taken less often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    Fast,
    /// Activity counters, which need some time between two looks.
    Gpm,
    Slow,
    /// What turned out to take too long.
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

/// What to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Everything in this tier.
    All(Tier),
    /// One of the calls of the slow tier, by its place in the round: between two fast looks there is time for
    /// one, not for all.
    Turn(usize),
}

/// Looks at GPUs.
pub trait GpuProbe: Send {
    /// The GPUs it can look at, with whatever they have refused to tell so far.
    fn gpus(&self) -> Vec<GpuInfo>;

    /// One look at the GPU whose [`GpuInfo::index`] is `gpu`. A reading that is not there is left out.
    fn look(&mut self, gpu: u32, look: Look, now: Stamp) -> Result<GpuSample, ProbeError>;

    /// How many turns make a round of the slow tier.
    fn turns(&self, _gpu: u32) -> usize {
        0
    }

    /// What that GPU has refused to tell so far.
    fn refused(&self, _gpu: u32) -> &[Refused] {
        &[]
    }

    /// Processes that compute on that GPU, this one left out; `None` where they cannot be listed.
    fn other_processes(&mut self, _gpu: u32) -> Option<Vec<GpuProcess>> {
        None
    }

    /// What each kind of call has taken so far.
    fn costs(&self, _gpu: u32) -> Vec<CallCost> {
        Vec::new()
    }

    /// Time spent in calls since it was asked last.
    fn take_spent(&mut self) -> Duration {
        Duration::ZERO
    }

    /// What the probe has to say since it was asked last.
    fn take_remarks(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// Looks at the machine around the GPUs.
pub trait HostProbe: Send {
    fn info(&self) -> HostInfo;

    /// Rates are over the time since the sample before.
    fn sample(&mut self, now: Stamp) -> HostSample;

    /// What this process holds on its heap; `None` where that is not counted.
    fn heap(&mut self) -> Option<AllocatorSample> {
        None
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProbeError {
    /// It will not come back in this run.
    #[error("GPU {gpu} has gone: {reason}")]
    Lost { gpu: u32, reason: String },
    /// The next look may succeed.
    #[error("GPU {gpu} could not be read: {reason}")]
    Unreadable { gpu: u32, reason: String },
}
