//! The connection to a remote run.

use std::time::Duration;

/// The connection, for the screen.
#[derive(Debug, Clone, PartialEq)]
pub enum Link {
    /// With the lag, once it was measured.
    Up {
        behind_ms: Option<f64>,
    },
    /// There is no answer.
    Silent {
        since: Duration,
    },
    Lost {
        since: Duration,
        next: Option<Duration>,
        reason: String,
    },
    /// Nothing more arrives.
    Closed,
}
