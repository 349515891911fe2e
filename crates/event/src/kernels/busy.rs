//! Busy time of a GPU.

use serde::{Deserialize, Serialize};

/// The time in which at least one kernel ran, and the span from the start of the first to the end of the last.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Busy {
    pub busy_ns: f64,
    pub span_ns: f64,
}

impl Busy {
    /// From 0 to 1; `None` without a span.
    pub fn share(&self) -> Option<f64> {
        (self.span_ns > 0.0).then(|| self.busy_ns / self.span_ns)
    }

    /// The sum of two separate recordings.
    pub fn plus(self, other: Busy) -> Busy {
        Busy { busy_ns: self.busy_ns + other.busy_ns, span_ns: self.span_ns + other.span_ns }
    }
}
