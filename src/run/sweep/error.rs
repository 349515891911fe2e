//! What can be wrong with a sweep.

use std::{io, path::PathBuf};

use thiserror::Error;

use crate::{config::ConfigError, run::plan::PlanError};

#[derive(Debug, Error)]
pub enum SweepError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("job {job} ({overrides}): {source}")]
    JobConfig { job: usize, overrides: String, source: Box<ConfigError> },
    #[error("job {job} ({overrides}): {source}")]
    JobPlan { job: usize, overrides: String, source: Box<PlanError> },
    #[error("these overrides make no job: one of them has no values")]
    NoJobs,
    #[error(
        "hydra.sweep.dir is {first:?} for the first job and {other:?} for job {job}; it is one directory for all, and \
         what differs belongs into hydra.sweep.subdir"
    )]
    SeveralDirs { job: usize, first: String, other: String },
    #[error(
        "hydra.sweep.subdir is {subdir:?} for job {job}, which is not a directory below the sweep's; \
         ${{hydra:job.num}} always is"
    )]
    BadSubdir { job: usize, subdir: String },
    #[error(
        "hydra.sweep.subdir gives job {job} the directory {subdir:?} of job {first}; ${{hydra:job.num}} tells them apart"
    )]
    SameSubdir { first: usize, job: usize, subdir: String },
    #[error("{}: {reason}; a sweep is a directory that --multirun made, with a sweep.json in it", .dir.display())]
    NotASweep { dir: PathBuf, reason: String },
    #[error("{}: another process is at work on this sweep", .dir.display())]
    InUse { dir: PathBuf },
    #[error(
        "job {job} would not run as it was planned: conf/, the environment or the program has changed since the sweep \
         began; start a new sweep"
    )]
    Changed { job: usize },
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl SweepError {
    /// The caller's words are at fault, not the machine.
    pub fn is_usage(&self) -> bool {
        !matches!(self, SweepError::Io { .. } | SweepError::InUse { .. })
    }
}
