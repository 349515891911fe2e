//! Several runs from one command line, one after another: which jobs there are, how each ended, what is left to do.
//!
//! [`Sweep`] is the bookkeeping, `kept` puts it on disk and takes it up again, `table` shows it as text, CSV and JSON,
//! `cooldown` decides how long to rest, and [`Runner`] takes one job after another.

mod cooldown;
mod error;
mod jobs;
mod kept;
mod runner;
mod table;

pub use cooldown::{Cooling, Heat, Rest, Turn as RestTurn};
pub use error::SweepError;
pub use jobs::{Job, JobResult, Sweep, Turn};
pub use runner::Runner;
pub use table::{Column, csv_rows, sweep_json, table_text};
