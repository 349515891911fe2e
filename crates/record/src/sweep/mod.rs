//! Sweeps: several runs from one command line. [`Sweep`] has the jobs and their results, `results` reads those from
//! their directories, `table` prints them as text, CSV and JSON, and [`CooldownStatus`] is the pause between two jobs.

mod cooldown;
mod jobs;
mod results;
mod table;

pub use cooldown::{CooldownStatus, Temperature};
pub use jobs::{Job, JobResult, JobState, LiveFigures, Placement, Sweep};
pub use results::result_in;
pub use table::{Measured, PLACEMENT, ended_jobs, sweep_csv, sweep_json, sweep_table, table_text};
