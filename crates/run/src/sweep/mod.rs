//! Sweeps: several runs from one command line, one after another.
//!
//! [`Sweep`] has the jobs and their results, `store` writes and reads them, `table` prints them as text, CSV and
//! JSON, `consent` has what the user must agree to, `cooldown` decides the pause between jobs, and [`Runner`] runs the
//! jobs in this process. [`Launch`] runs them in other processes, each of which is a [`Task`].

mod consent;
mod cooldown;
mod error;
mod jobs;
mod launch;
mod runner;
mod store;
mod table;
mod task;

pub use consent::Consent;
pub use cooldown::{CooldownRule, CooldownStatus, CooldownStep, Temperature};
pub use error::SweepError;
pub use jobs::{Job, JobResult, JobState, LiveFigures, Placement, Sweep};
pub use launch::{Launch, LaunchError, Machine};
pub use runner::Runner;
pub use table::{Measured, PLACEMENT, ended_jobs, sweep_json, sweep_table, table_text};
pub use task::{Task, TaskThere};
