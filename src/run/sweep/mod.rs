//! Sweeps: several runs from one command line, one after another.
//!
//! [`Sweep`] has the jobs and their results, `store` writes and reads them, `table` prints them as text, CSV and JSON,
//! `consent` has what the user must agree to, `cooldown` decides how long to wait between jobs, and [`Runner`] runs the jobs.

mod consent;
mod cooldown;
mod error;
mod jobs;
mod runner;
mod store;
mod table;

pub use consent::Consent;
pub use cooldown::{CooldownRule, CooldownStatus, CooldownStep, Temperature};
pub use error::SweepError;
pub use jobs::{Job, JobResult, JobState, Sweep};
pub use runner::Runner;
pub use table::{Column, csv_rows, sweep_json, table_text};
