//! What can be wrong with what is to be compared.

use std::{io, path::PathBuf};

use thiserror::Error;

use crate::rundir::ReadError;

#[derive(Debug, Error)]
pub enum CompareError {
    #[error(transparent)]
    Run(#[from] ReadError),
    #[error("{name}: no run, snapshot, sweep or baseline is called that{known}")]
    Nothing { name: String, known: String },
    #[error("{path} is no run: there is no events.ndjson in it, and no sweep.json; runs are below runs/")]
    NoRun { path: PathBuf },
    #[error("nothing was measured in {path}: no request of it was completed; save a run that has some")]
    NothingMeasured { path: PathBuf },
    #[error("{run} has no snapshot {snapshot:?}{known}")]
    NoSnapshot { run: PathBuf, snapshot: String, known: String },
    #[error("{path} is no baseline: {reason}; llmprof-tui baseline save NAME RUN makes one")]
    BadBaseline { path: PathBuf, reason: String },
    #[error("{name:?} can't be the name of a baseline: letters, digits, '-', '_' and '.' can")]
    BadName { name: String },
    #[error("there is no run below {root}; name one: llmprof-tui baseline save NAME RUN")]
    NoRuns { root: PathBuf },
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("no job of {a} has the overrides of a job of {b}; compare single runs of them")]
    NoPairs { a: String, b: String },
    #[error(
        "--repeat wants both sides: -- A-OVERRIDES vs B-OVERRIDES, as -- runtime.cuda_graphs=true vs runtime.cuda_graphs=false"
    )]
    Sides,
    #[error("both sides are the same: {overrides}; what is to be compared has to differ")]
    SameSides { overrides: String },
    #[error("{side} was not recorded; --repeat needs output.record=true")]
    NotRecorded { side: &'static str },
    #[error("{side} failed: {reason}")]
    Failed { side: &'static str, reason: String },
}
