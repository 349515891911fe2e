//! What the machine does meanwhile: readings of the GPUs and of the host, taken at intervals.

pub mod absent;
pub mod host;
pub mod isolation;
pub mod nvml;
pub mod sampler;
pub mod sim;
pub mod thermometer;

use thiserror::Error;

use crate::event::{GpuInfo, GpuSample, HostInfo, HostSample, Stamp};
pub use crate::reasons;
use isolation::OtherProcess;
pub use sampler::Sampler;
pub use thermometer::Thermometer;

/// Looks at GPUs.
pub trait GpuProbe: Send {
    /// The GPUs it can look at, with whatever they have refused to tell so far.
    fn gpus(&self) -> Vec<GpuInfo>;

    /// One look at the GPU whose [`GpuInfo::index`] is `gpu`. A reading that is not there is `None`.
    fn sample(&mut self, gpu: u32, now: Stamp) -> Result<GpuSample, ProbeError>;

    /// Processes that compute on that GPU, this one left out; `None` where they cannot be listed.
    fn other_processes(&self, _gpu: u32) -> Option<Vec<OtherProcess>> {
        None
    }
}

/// Looks at the machine around the GPUs.
pub trait HostProbe: Send {
    fn info(&self) -> HostInfo;

    /// Rates are over the time since the sample before.
    fn sample(&mut self, now: Stamp) -> HostSample;
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
