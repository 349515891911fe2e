//! What limits the clock of a GPU, and what that costs.

mod account;
mod advice;
mod basis;
mod cost;
mod counter;
mod diagnosis;
mod findings;
mod ledger;
pub mod table;

pub use account::{Account, COUNTERS, Limit, LimitTime, TimeSource, Unlimited, WeightedMean, Work};
pub use basis::{Basis, ClockSensitivity, ReferenceClock};
pub use cost::{Workload, clock_sensitivity};
pub use diagnosis::{Cause, Diagnosis, Evidence, MissingReasons, Tone, diagnose};
pub use ledger::Ledger;
