//! Why the clock is held down, and what that costs.

mod cost;
mod diagnosis;
mod ledger;
pub mod table;

pub use cost::{Bound, Workload, bound};
pub use diagnosis::{Cause, Diagnosis, Evidence, Tone, diagnose};
pub use ledger::{Account, COUNTERS, Free, Held, Ledger, Limit, Mean, Tokens, Work};
