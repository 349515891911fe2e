//! The inputs of a composition besides files and overrides.

use std::path::PathBuf;

/// The time, directory and job number that interpolations can refer to.
#[derive(Debug, Clone)]
pub struct ComposeContext {
    pub now: jiff::Zoned,
    pub cwd: PathBuf,
    /// `hydra.job.name` if no file sets it.
    pub job_name: String,
    /// The index of the job in its sweep, from 0; `None` for a single run.
    pub job: Option<usize>,
}

impl ComposeContext {
    /// The current time and the working directory of this process.
    pub fn current(job_name: impl Into<String>) -> ComposeContext {
        let cwd = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
        ComposeContext { now: jiff::Zoned::now(), cwd, job_name: job_name.into(), job: None }
    }
}
