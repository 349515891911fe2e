//! Resolves the names that `compare` gets, and reads the samples.

use std::{
    path::{Path, PathBuf},
    thread,
};

use serde::Deserialize;

use super::{
    GatedComparison, baseline,
    error::CompareError,
    samples::{MAX_FILE_BYTES, read_run, read_snapshot},
};
use llmprof_analysis::compare::{Gate, Options, Sample, compare};
use llmprof_base::dir::read_file;
use llmprof_record::rundir::{RunDir, find_run};

/// One side of a comparison.
enum Subject {
    One(Box<Sample>),
    /// The recorded jobs of a sweep, each with its overrides.
    Sweep {
        name: String,
        jobs: Vec<(Vec<String>, Sample)>,
    },
}

/// Reads the directory of a run, its events.ndjson, a snapshot below a run, the directory of a sweep, a baseline by name, or a
/// run below `runs` by its age or a part of its path.
fn read_subject(name: &str, runs: &Path) -> Result<Subject, CompareError> {
    let path = Path::new(name);
    if path.exists() || snapshot_of(path).is_some() {
        return read_path(path);
    }
    if let Some(baseline) = baseline::named(name)? {
        return Ok(Subject::One(Box::new(baseline)));
    }
    if let Some(found) = find_run(runs, name)? {
        return read_path(&found);
    }
    let known = baseline::baseline_names(Path::new(""));
    let known = if known.is_empty() { String::new() } else { format!("; baselines: {}", known.join(", ")) };
    Err(CompareError::NotFound { name: name.to_owned(), known })
}

fn read_path(path: &Path) -> Result<Subject, CompareError> {
    if let Some((run, snapshot)) = snapshot_of(path) {
        return Ok(Subject::One(Box::new(read_snapshot(&run, &snapshot)?)));
    }
    if path.is_dir() {
        return match (RunDir::open(path).events().exists(), path.join("sweep.json").exists()) {
            (true, _) => Ok(Subject::One(Box::new(read_run(path)?))),
            (false, true) => read_sweep(path),
            (false, false) => Err(CompareError::NotARun { path: path.to_owned() }),
        };
    }
    Ok(Subject::One(Box::new(match path.extension().is_some_and(|extension| extension == "json") {
        true => baseline::read(path)?.sample,
        false => read_run(path)?,
    })))
}

/// Compares two recordings, job by job if they are sweeps. Both are read at the same time.
pub fn compare_recordings(
    a: &str,
    b: &str,
    runs: &Path,
    options: &Options,
    gates: &[Gate],
) -> Result<Vec<GatedComparison>, CompareError> {
    let (first, second) = thread::scope(|scope| {
        let first = thread::Builder::new().spawn_scoped(scope, || read_subject(a, runs));
        let second = read_subject(b, runs);
        let first = match first {
            Ok(first) => first.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            // Without another thread, they are read one after the other.
            Err(_) => read_subject(a, runs),
        };
        (first, second)
    });
    let (first, second) = (first?, second?);
    let baselines = baseline::baselines();
    let gated = |label: &[String], a: &Sample, b: &Sample| {
        let label = Some(label.join(" ")).filter(|label| !label.is_empty());
        let spread = baseline::run_spread(&baselines, &a.facts);
        GatedComparison::new(label, compare(a, b, &Options { spread, ..options.clone() }), gates)
    };
    Ok(match (first, second) {
        (Subject::One(a), Subject::One(b)) => vec![gated(&[], &a, &b)],
        (Subject::One(a), Subject::Sweep { jobs, .. }) => {
            jobs.iter().map(|(overrides, b)| gated(overrides, &a, b)).collect()
        }
        (Subject::Sweep { jobs, .. }, Subject::One(b)) => {
            jobs.iter().map(|(overrides, a)| gated(overrides, a, &b)).collect()
        }
        (Subject::Sweep { name: a, jobs: left }, Subject::Sweep { name: b, jobs: right }) => {
            // Jobs are matched by their overrides, or else by their order if there are as many.
            let same_overrides = |(overrides, a): &(Vec<String>, Sample)| {
                let (_, b) = right.iter().find(|(other, _)| other == overrides)?;
                Some(gated(overrides, a, b))
            };
            let mut pairs: Vec<GatedComparison> = left.iter().filter_map(same_overrides).collect();
            if pairs.is_empty() && left.len() == right.len() {
                let in_order = left.iter().zip(&right);
                pairs = in_order.map(|((overrides, a), (_, b))| gated(overrides, a, b)).collect();
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

/// The part of a sweep's plan that a comparison needs.
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
    let io_error = |source| CompareError::Unreadable { path: path.clone(), source };
    let plan: Plan = serde_json::from_slice(&read_file(&path, MAX_FILE_BYTES).map_err(io_error)?)
        .map_err(|e| CompareError::Unreadable { path: path.clone(), source: e.into() })?;
    let mut jobs = Vec::new();
    for job in plan.jobs {
        let run = dir.join(&job.subdir);
        if RunDir::open(&run).events().exists() {
            jobs.push((job.overrides, read_run(&run)?));
        }
    }
    match jobs.is_empty() {
        true => Err(CompareError::NotARun { path: dir.to_owned() }),
        false => Ok(Subject::Sweep { name: dir.display().to_string(), jobs }),
    }
}
