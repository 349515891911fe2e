//! Samples of recorded runs and of their snapshots.

use std::path::Path;

use super::error::CompareError;
use llmprof_analysis::compare::Sample;
use llmprof_event::{Envelope, Event, Outcome};
use llmprof_record::{
    rundir::{EventReader, Next, RunDir},
    state::RunState,
};

/// Maximum size of a sweep's plan or a baseline, in bytes.
pub(super) const MAX_FILE_BYTES: u64 = 64 << 20;

/// A complete run.
pub fn read_run(path: &Path) -> Result<Sample, CompareError> {
    let dir = RunDir::open(path);
    let state = fold(&dir, |_, _| true)?;
    sample(&state, &dir.path().display().to_string(), &dir)
}

/// The window of a run that ends with a snapshot.
pub(super) fn read_snapshot(run: &Path, wanted: &str) -> Result<Sample, CompareError> {
    let dir = RunDir::open(run);
    let mut names: Vec<String> = Vec::new();
    let mut found = false;
    let state = fold(&dir, |state, envelope| {
        if let Event::Snapshot(taken) = &envelope.event {
            // In the file name, special characters of the snapshot's name are replaced.
            found = dir.snapshot(&taken.name) == dir.snapshot(wanted);
            if found {
                return false;
            }
            names.push(taken.name.clone());
            state.forget_requests();
        }
        true
    })?;
    if !found {
        let known = if names.is_empty() { String::new() } else { format!("; it has {}", names.join(", ")) };
        return Err(CompareError::NoSnapshot { run: run.to_owned(), snapshot: wanted.to_owned(), known });
    }
    let mut sample = sample(&state, &format!("{} of {}", wanted, run.display()), &dir)?;
    // The window is complete, whatever the outcome of the run.
    sample.facts.outcome = Some(Outcome::Completed);
    Ok(sample)
}

/// Reads a recording until `go_on` returns false.
fn fold(
    dir: &RunDir,
    mut go_on: impl FnMut(&mut RunState, &Envelope) -> bool,
) -> Result<RunState, CompareError> {
    let mut reader = EventReader::open(&dir.events())?;
    let mut state = RunState::for_comparison();
    while let Next::Event(envelope) = reader.read_next()? {
        if !go_on(&mut state, &envelope) {
            break;
        }
        state.apply(&envelope);
    }
    state.unreadable_lines = reader.skipped();
    Ok(state)
}

fn sample(state: &RunState, name: &str, dir: &RunDir) -> Result<Sample, CompareError> {
    state.run_sample(name).ok_or_else(|| CompareError::NotARun { path: dir.path().to_owned() })
}
