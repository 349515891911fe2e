//! Why the clock is held down, and what that costs.

mod ledger;

pub use ledger::{Account, COUNTERS, Held, Ledger, Limit, Mean, Tokens, Work};
