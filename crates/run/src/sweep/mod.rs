//! Sweeps: several runs from one command line, one after another.
//!
//! `store` writes and reads a [`Sweep`](llmprof_record::sweep::Sweep), `consent` has what the user must agree to,
//! `cooldown` decides the pause between jobs, and [`Runner`] runs the jobs in this process. [`Launch`] runs them in other
//! processes, each of which is a [`Task`].

mod consent;
mod cooldown;
mod error;
mod launch;
mod runner;
mod store;
mod task;

pub use consent::Consent;
pub use cooldown::{CooldownRule, CooldownStep};
pub use error::SweepError;
pub use launch::{Launch, LaunchError, Machine};
pub use runner::Runner;
pub use store::{is_sweep, open_sweep, write_csv};
pub use task::{Task, TaskThere};
