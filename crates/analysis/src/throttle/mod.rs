//! What limits the clock of a GPU, and the cost.

mod account;
mod advice;
mod basis;
mod counter;
mod diagnosis;
mod episodes;
mod evidence;
mod findings;
mod ledger;
mod observation;
mod slowdown;
pub mod table;

pub use account::{Account, COUNTERS, GpuActivity, Limit, LimitTime, TimeSource, Unlimited, WeightedMean};
pub use basis::{Basis, ClockSensitivity, Cost, FreeClock};
pub use diagnosis::diagnose;
pub use episodes::{Episode, Episodes};
pub use evidence::{Cause, Diagnosis, Evidence, Tone};
pub use ledger::Ledger;
pub use slowdown::{Workload, clock_sensitivity};
