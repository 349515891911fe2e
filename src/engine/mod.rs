//! What runs the model: the [`Engine`] trait, its implementations, and the driver that feeds them requests.

pub mod candle;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod device;
pub mod driver;
pub mod load;
#[cfg(feature = "nvtx")]
mod nvtx_ranges;
pub mod ranges;
pub mod sampling;
pub mod workload;

use std::time::Duration;

use thiserror::Error;

use crate::event::AllocatorSample;
pub use crate::profile::listener::{Listener, Listeners, Part};

/// A batch of prompts of equal length, row after row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompts {
    pub ids: Vec<u32>,
    pub batch: usize,
}

impl Prompts {
    pub fn len(&self) -> usize {
        self.ids.len() / self.batch
    }

    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Tokens of each sequence, when these prompts can fill `batch` equal rows.
    pub fn checked_length(&self, batch: usize) -> Result<usize, EngineError> {
        if self.batch != batch {
            return Err(EngineError::Backend(format!("a batch of {} for an engine of {batch}", self.batch)));
        }
        if self.is_empty() || !self.ids.len().is_multiple_of(batch) {
            let n = self.ids.len();
            return Err(EngineError::Backend(format!("{n} prompt tokens cannot fill {batch} equal rows")));
        }
        Ok(self.len())
    }
}

/// Runs one batch at a time. Both steps return once the new token ids are on the host, one for each sequence.
pub trait Engine {
    /// Reads the prompts into the cache and gives the first token of each sequence.
    fn prefill(&mut self, prompts: &Prompts) -> Result<Vec<u32>, EngineError>;

    /// Extends every sequence by one token, starting from the ids given last.
    fn decode(&mut self) -> Result<Vec<u32>, EngineError>;

    /// Waits until the device has nothing left to do.
    fn synchronize(&mut self) -> Result<(), EngineError>;

    /// Forgets the sequences; weights and buffers stay.
    fn reset(&mut self) -> Result<(), EngineError>;

    /// How long the last step took by the device's own clock, where it has one.
    fn device_time(&self) -> Option<Duration> {
        None
    }

    /// What the device's allocator holds, where it is counted.
    fn allocator(&self) -> Option<AllocatorSample> {
        None
    }

    /// Tells `listeners` of every operator from now on, as far as the engine knows its own.
    fn tell(&mut self, _listeners: Listeners) {}
}

#[derive(Debug, Error)]
pub enum EngineError {
    #[error("{what} needs {need} as {dtype}, {free} free; try {remedy}")]
    OutOfMemory { what: String, need: String, dtype: String, free: String, remedy: String },
    #[error(
        "the cache holds {capacity} positions, {asked} were asked for; raise neither prompt nor output length past the model's limit"
    )]
    ContextTooLong { capacity: usize, asked: usize },
    #[error("no device {asked:?} in this build; {remedy}")]
    NoDevice { asked: String, remedy: String },
    #[error("cancelled")]
    Cancelled,
    #[error("{0}")]
    Backend(String),
}

/// The step of preparing in which a device loads and warms up its code; all others make weights.
pub const KERNELS: &str = "kernels";

/// Reports how far preparing has come; answers false when the work should stop.
pub type Progress<'a> = &'a mut (dyn FnMut(&str, u64, u64) -> bool + Send);
