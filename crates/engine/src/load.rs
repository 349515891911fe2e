//! Loads that saturate a device, to measure its peaks.

use std::{fmt, time::Duration};

use llmprof_config::Dtype;
use llmprof_workload::EngineError;

/// A kind of load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// A GEMM of two large matrices of random values: limited by compute.
    Product(Dtype),
    /// A large matrix times one vector, as in a decode step: limited by memory bandwidth.
    Read,
    /// A large buffer copied to another.
    Copy,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Load::Product(dtype) => write!(f, "GEMM, {}", dtype.name()),
            Load::Read => f.write_str("read"),
            Load::Copy => f.write_str("copy"),
        }
    }
}

/// One run of a load, timed by the device's own clock if it has one. `amount` is operations for a GEMM and bytes for
/// other loads; a copy reads and writes each byte.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadDone {
    pub amount: f64,
    pub took: Duration,
}

impl LoadDone {
    /// Operations or bytes per second.
    pub fn per_s(self) -> Option<f64> {
        (!self.took.is_zero()).then(|| self.amount / self.took.as_secs_f64())
    }
}

/// A device that can run loads.
pub trait Loadable {
    /// The device's own name.
    fn name(&self) -> String;

    /// The loads it can run.
    fn loads(&self) -> Vec<Load>;

    /// Allocates the operands of `load`, and frees those of the previous load.
    fn prepare(&mut self, load: Load) -> Result<(), EngineError>;

    /// Runs the prepared load once.
    fn once(&mut self) -> Result<LoadDone, EngineError>;
}
