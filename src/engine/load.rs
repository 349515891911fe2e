//! Work that asks of a device as much as it can give: how peaks are measured.

use std::{fmt, time::Duration};

use super::EngineError;
use crate::config::Dtype;

/// One kind of such work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// A product of two large matrices of random values: nothing but operations.
    Product(Dtype),
    /// A large matrix times one vector, as a decode step does: nothing but reading.
    Read,
    /// A large buffer copied to another.
    Copy,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Load::Product(dtype) => write!(f, "product, {}", dtype.name()),
            Load::Read => f.write_str("read"),
            Load::Copy => f.write_str("copy"),
        }
    }
}

/// What was done, by the device's own clock where it has one. `amount` is operations of a product, bytes of the others; a copy
/// reads and writes each byte.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadDone {
    pub amount: f64,
    pub took: Duration,
}

impl LoadDone {
    /// Operations or bytes a second.
    pub fn per_s(self) -> Option<f64> {
        (!self.took.is_zero()).then(|| self.amount / self.took.as_secs_f64())
    }
}

/// A device that can be put under load.
pub trait Loadable {
    /// What it calls itself.
    fn name(&self) -> String;

    /// What can be asked of it.
    fn loads(&self) -> Vec<Load>;

    /// Makes what `load` works on, in place of what was there for another.
    fn prepare(&mut self, load: Load) -> Result<(), EngineError>;

    /// Does what was prepared once.
    fn once(&mut self) -> Result<LoadDone, EngineError>;
}
