//! Finds what a name means, and reads it into samples.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

use serde::Deserialize;

use super::{Judged, baseline, error::CompareError};
use crate::{
    analysis::compare::{Gate, Options, Sample, compare},
    event::{Envelope, Event, Outcome},
    rundir::{EventReader, Next, RunDir},
    state::RunState,
};

/// What stands on one side.
#[derive(Debug)]
pub enum Subject {
    One(Box<Sample>),
    /// The jobs of a sweep that were recorded, each with the overrides it was given.
    Sweep {
        name: String,
        jobs: Vec<(Vec<String>, Sample)>,
    },
}

/// Reads a run's directory, its events.ndjson, a snapshot below a run, a sweep's directory, or a baseline by name.
pub fn subject(name: &str) -> Result<Subject, CompareError> {
    let path = Path::new(name);
    if let Some((run, snapshot)) = snapshot_of(path) {
        return Ok(Subject::One(Box::new(read_snapshot(&run, &snapshot)?)));
    }
    if path.is_dir() {
        return match (RunDir::open(path).events().exists(), path.join("sweep.json").exists()) {
            (true, _) => Ok(Subject::One(Box::new(read_run(path)?))),
            (false, true) => read_sweep(path),
            (false, false) => Err(CompareError::NoRun { path: path.to_owned() }),
        };
    }
    if path.extension().is_some_and(|extension| extension == "json") && path.is_file() {
        return Ok(Subject::One(Box::new(baseline::read(path)?)));
    }
    if path.is_file() {
        return Ok(Subject::One(Box::new(read_run(path)?)));
    }
    if let Some(baseline) = baseline::named(name)? {
        return Ok(Subject::One(Box::new(baseline)));
    }
    let known: Vec<String> = baseline::baselines().into_iter().map(|baseline| baseline.name).collect();
    let known = if known.is_empty() { String::new() } else { format!("; baselines: {}", known.join(", ")) };
    Err(CompareError::Nothing { name: name.to_owned(), known })
}

/// Both sides, read at the same time, job by job where they are sweeps.
pub fn compared(a: &str, b: &str, options: &Options, gates: &[Gate]) -> Result<Vec<Judged>, CompareError> {
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(|| subject(a));
        let second = subject(b);
        (first.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), second)
    });
    let (first, second) = (first?, second?);
    let one =
        |label: Option<String>, a: &Sample, b: &Sample| Judged::new(label, compare(a, b, options), gates);
    let label = |overrides: &[String]| Some(overrides.join(" ")).filter(|text| !text.is_empty());
    Ok(match (first, second) {
        (Subject::One(a), Subject::One(b)) => vec![one(None, &a, &b)],
        (Subject::One(a), Subject::Sweep { jobs, .. }) => {
            jobs.iter().map(|(overrides, b)| one(label(overrides), &a, b)).collect()
        }
        (Subject::Sweep { jobs, .. }, Subject::One(b)) => {
            jobs.iter().map(|(overrides, a)| one(label(overrides), a, &b)).collect()
        }
        (Subject::Sweep { name: a, jobs: left }, Subject::Sweep { name: b, jobs: right }) => {
            // By what their overrides say, else by their places where there are as many.
            let mut pairs: Vec<Judged> = Vec::new();
            for (overrides, x) in &left {
                if let Some((_, y)) = right.iter().find(|(other, _)| other == overrides) {
                    pairs.push(one(label(overrides), x, y));
                }
            }
            if pairs.is_empty() && left.len() == right.len() {
                pairs = left.iter().zip(&right).map(|((x, a), (_, b))| one(label(x), a, b)).collect();
            }
            if pairs.is_empty() {
                return Err(CompareError::NoPairs { a, b });
            }
            pairs
        }
    })
}

/// `RUN/snapshots/NAME.json`, as a run and a name.
fn snapshot_of(path: &Path) -> Option<(PathBuf, String)> {
    let parent = path.parent().filter(|parent| parent.file_name().is_some_and(|name| name == "snapshots"))?;
    let run = parent.parent()?;
    RunDir::open(run)
        .events()
        .exists()
        .then(|| (run.to_owned(), path.file_stem().unwrap_or_default().to_string_lossy().into_owned()))
}

/// A whole run.
pub fn read_run(path: &Path) -> Result<Sample, CompareError> {
    let dir = RunDir::open(path);
    let fold = fold(&dir, |_, _| true)?;
    fold.sample(&dir.path().display().to_string(), &dir)
}

/// The stretch of a run that a snapshot names.
fn read_snapshot(run: &Path, wanted: &str) -> Result<Sample, CompareError> {
    let dir = RunDir::open(run);
    let mut names: Vec<String> = Vec::new();
    let mut found = false;
    let fold = fold(&dir, |state, envelope| {
        if let Event::Snapshot(taken) = &envelope.event {
            // The file's name is the snapshot's with odd characters replaced.
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
        let known =
            if names.is_empty() { String::new() } else { format!("; there are {}", names.join(", ")) };
        return Err(CompareError::NoSnapshot { run: run.to_owned(), snapshot: wanted.to_owned(), known });
    }
    let mut sample = fold.sample(&format!("{} of {}", wanted, run.display()), &dir)?;
    // A stretch is complete, whatever became of the run.
    sample.facts.outcome = Some(Outcome::Completed);
    Ok(sample)
}

struct Folded {
    state: RunState,
    skipped: u64,
}

/// Goes through a recording once, until `go_on` says no.
fn fold(
    dir: &RunDir,
    mut go_on: impl FnMut(&mut RunState, &Envelope) -> bool,
) -> Result<Folded, CompareError> {
    let mut reader = EventReader::open(&dir.events())?;
    let mut state = RunState::for_comparison();
    while let Next::Event(envelope) = reader.read_next()? {
        if !go_on(&mut state, &envelope) {
            break;
        }
        state.apply(&envelope);
    }
    Ok(Folded { state, skipped: reader.skipped() })
}

impl Folded {
    fn sample(self, name: &str, dir: &RunDir) -> Result<Sample, CompareError> {
        let sample = self.state.run_sample(name);
        let mut sample = sample.ok_or_else(|| CompareError::NoRun { path: dir.path().to_owned() })?;
        sample.events_lost += self.skipped;
        Ok(sample)
    }
}

/// What is needed of a sweep's plan.
#[derive(Deserialize)]
struct Plan {
    jobs: Vec<PlannedJob>,
}

#[derive(Deserialize)]
struct PlannedJob {
    overrides: Vec<String>,
    subdir: String,
}

fn read_sweep(dir: &Path) -> Result<Subject, CompareError> {
    let path = dir.join("sweep.json");
    let io_error = |source| CompareError::Io { path: path.clone(), source };
    let plan: Plan = serde_json::from_slice(&fs::read(&path).map_err(io_error)?)
        .map_err(|e| CompareError::Io { path: path.clone(), source: e.into() })?;
    let mut jobs = Vec::new();
    for job in plan.jobs {
        let run = dir.join(&job.subdir);
        if RunDir::open(&run).events().exists() {
            jobs.push((job.overrides, read_run(&run)?));
        }
    }
    match jobs.is_empty() {
        true => Err(CompareError::NoRun { path: dir.to_owned() }),
        false => Ok(Subject::Sweep { name: dir.display().to_string(), jobs }),
    }
}
