//! Errors of a sweep.

use std::{error::Error, io, path::PathBuf};

use llmprof_config::{ConfigError, Override};
use llmprof_record::rundir::NoNewDir;

#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("job {job} ({overrides}): {source}")]
    Job { job: usize, overrides: String, source: Box<dyn Error + Send + Sync> },
    #[error("no jobs: one of the overrides has no values")]
    NoJobs,
    #[error(
        "with --host the jobs run one after another on {host}, without hydra/launcher and --cancel: log in to {host} \
         to use Slurm or several GPUs at once"
    )]
    OneByOne { host: String },
    #[error(
        "hydra.sweep.dir is {first:?} for the first job and {other:?} for job {job}; all jobs share one directory, put \
         what differs into hydra.sweep.subdir"
    )]
    SeveralDirs { job: usize, first: String, other: String },
    #[error(
        "hydra.sweep.subdir is {subdir:?} for job {job}, which is not inside the sweep's directory; use ${{hydra:job.num}}"
    )]
    BadSubdir { job: usize, subdir: String },
    #[error(
        "hydra.sweep.subdir gives job {job} the same directory {subdir:?} as job {first}; add ${{hydra:job.num}}"
    )]
    SameSubdir { first: usize, job: usize, subdir: String },
    #[error("hydra.sweep.dir: {0}")]
    SweepDir(#[from] NoNewDir),
    #[error("{}: {reason}; expected a directory that --multirun created, with a sweep.json", .dir.display())]
    NotASweep { dir: PathBuf, reason: String },
    #[error("the directory of job {job} is a link: {}; remove it, or start a new sweep", .path.display())]
    LinkedJob { job: usize, path: PathBuf },
    #[error("{}: another process is running this sweep", .dir.display())]
    InUse { dir: PathBuf },
    #[error(
        "job {job} has changed since the sweep was started: conf/, the environment or the program is different; start a \
         new sweep"
    )]
    Changed { job: usize },
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl SweepError {
    /// For an error of one job, counted from 0.
    pub(super) fn of_job<E: Error + Send + Sync + 'static>(
        job: usize,
        overrides: &[Override],
    ) -> impl FnOnce(E) -> SweepError {
        move |source| SweepError::Job {
            job: job + 1,
            overrides: Override::texts(overrides).join(" "),
            source: source.into(),
        }
    }

    /// Whether the error is in the command, not on the machine.
    pub fn is_usage(&self) -> bool {
        !matches!(self, SweepError::Io { .. } | SweepError::InUse { .. })
    }
}
