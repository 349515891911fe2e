//! Errors of `compare` and `baseline`.

use std::{io, path::PathBuf};

use thiserror::Error;

use llmprof_record::rundir::{FindError, ReadError};

#[derive(Debug, Error)]
pub enum CompareError {
    #[error(transparent)]
    Run(#[from] ReadError),
    #[error(
        "{name}: no run, snapshot, sweep or baseline has this name, nor is it a part of a run's path{known}"
    )]
    NotFound { name: String, known: String },
    #[error("{path} is not a run: it contains neither events.ndjson nor sweep.json; runs are below runs/")]
    NotARun { path: PathBuf },
    #[error("nothing was measured in {path}: no request was completed; save another run")]
    NothingMeasured { path: PathBuf },
    #[error("{run} has no snapshot {snapshot:?}{known}")]
    NoSnapshot { run: PathBuf, snapshot: String, known: String },
    #[error("{path} is not a baseline: {reason}; create one with llmprof-tui baseline save NAME RUN")]
    BadBaseline { path: PathBuf, reason: String },
    #[error("{name:?} is not a valid baseline name: use letters, digits, '-', '_' and '.'")]
    BadName { name: String },
    #[error("there is no run below {root}; pass one: llmprof-tui baseline save NAME RUN")]
    NoRuns { root: PathBuf },
    #[error(
        "the newest run, {newest}, {objection}; pass the one to save: llmprof-tui baseline save NAME RUN{other}"
    )]
    PassARun { newest: PathBuf, objection: &'static str, other: String },
    #[error(transparent)]
    Ambiguous(#[from] FindError),
    #[error("{path} cannot be read: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("no job of {a} has the same overrides as a job of {b}; compare single runs")]
    NoPairs { a: String, b: String },
    #[error(
        "--repeat needs both sides: -- A-OVERRIDES vs B-OVERRIDES, for example -- runtime.cuda_graphs=true vs runtime.cuda_graphs=false"
    )]
    MissingSides,
    #[error("both sides are the same: {overrides}; they have to differ")]
    SameSides { overrides: String },
    #[error("{side} was not recorded; --repeat needs output.record=true")]
    NotRecorded { side: &'static str },
    #[error("{side} failed: {reason}")]
    Failed { side: &'static str, reason: String },
}
