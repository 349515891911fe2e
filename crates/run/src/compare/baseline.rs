//! Baselines: runs to compare others with, in one small file each, `baselines/NAME.json` in the working directory, to
//! be committed with the code.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{
    error::CompareError,
    samples::{MAX_FILE_BYTES, read_run},
};
use llmprof_analysis::compare::{
    Facts, HEADLINE, RunSpread, RunValues, SAMPLE_SCHEMA, Sample, same_workload,
};
use llmprof_base::{
    dir::{Dir, read_file},
    table::{Column, Table},
    units::{millis, percent},
};
use llmprof_record::rundir::{RunEntry, list_runs};

const DIR: &str = "baselines";
/// Maximum number of earlier runs under one name whose values are kept.
const MAX_EARLIER: usize = 50;

/// A saved baseline.
pub struct Baseline {
    pub name: String,
    /// Its content, or why it cannot be read.
    pub saved: Result<Saved, CompareError>,
}

/// The content of a baseline.
pub struct Saved {
    pub sample: Sample,
    /// Runs of the same workload that were saved under this name before.
    pub earlier: Vec<RunValues>,
}

impl Saved {
    /// All of its runs, the latest last.
    fn runs(&self) -> impl Iterator<Item = RunValues> {
        self.earlier.iter().cloned().chain([RunValues::from_sample(&self.sample)])
    }
}

/// The result of saving a baseline.
pub struct Written {
    pub path: PathBuf,
    pub sample: Sample,
    /// The number of runs of the workload saved under this name.
    pub runs: usize,
}

fn path_of(name: &str) -> Result<PathBuf, CompareError> {
    let fits = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    match !name.is_empty() && name.chars().all(fits) && !name.starts_with('.') {
        true => Ok(Path::new(DIR).join(format!("{name}.json"))),
        false => Err(CompareError::BadName { name: name.to_owned() }),
    }
}

/// The newest run below `runs`, unless the user probably means another one.
pub fn newest(runs: &Path) -> Result<PathBuf, CompareError> {
    let listed = list_runs(runs);
    let Some(newest) = listed.first() else {
        return Err(CompareError::NoRuns { root: runs.to_owned() });
    };
    match objection(newest, runs) {
        None => Ok(newest.dir.path().to_owned()),
        Some(objection) => {
            let other = listed.iter().find(|run| self::objection(run, runs).is_none());
            Err(CompareError::PassARun {
                newest: newest.dir.path().to_owned(),
                objection,
                other: other.map_or_else(String::new, |run| {
                    format!("; the newest other one is {}", run.dir.path().display())
                }),
            })
        }
    }
}

/// Why a run is not selected by default.
fn objection(run: &RunEntry, runs: &Path) -> Option<&'static str> {
    let mut above = run.dir.path().ancestors().skip(1).take_while(|dir| *dir != runs);
    if !run.answers {
        Some("does not answer")
    } else if run.simulated() {
        Some("is simulated")
    } else if above.any(|dir| dir.join("sweep.json").is_file()) {
        Some("is a job of a sweep")
    } else if run.pairs.is_some() {
        Some("belongs to a repeated comparison")
    } else {
        None
    }
}

/// Saves the sample of `run` as `name`. The values of earlier runs of the same workload under this name are kept: they
/// show the variation from run to run.
pub fn save(name: &str, run: &Path) -> Result<Written, CompareError> {
    let path = path_of(name)?;
    let sample = read_run(run)?;
    if sample.measured == 0 {
        return Err(CompareError::NothingMeasured { path: run.to_owned() });
    }
    let before = read(&path).ok().filter(|saved| same_workload(&saved.sample.facts, &sample.facts));
    let mut earlier: Vec<RunValues> = before.iter().flat_map(Saved::runs).collect();
    earlier.retain(|run| run.started_unix_ms != sample.facts.run.started_unix_ms);
    earlier.drain(..earlier.len().saturating_sub(MAX_EARLIER));
    let io_error = |source| CompareError::Io { path: path.clone(), source };
    let document = || {
        let mut document = serde_json::to_value(&sample)?;
        document["earlier"] = serde_json::to_value(&earlier)?;
        serde_json::to_vec(&document)
    };
    let text = document().map_err(|e| io_error(e.into()))?;
    let file = path.file_name().unwrap_or_default();
    Dir::open_or_create(Path::new(DIR)).and_then(|dir| dir.write(file, text)).map_err(io_error)?;
    Ok(Written { path, sample, runs: earlier.len() + 1 })
}

/// The variation from run to run of a workload, from all baselines of it.
pub fn run_spread(baselines: &[Baseline], facts: &Facts) -> RunSpread {
    let saved = baselines.iter().filter_map(|baseline| baseline.saved.as_ref().ok());
    RunSpread::from_runs(
        saved.filter(|saved| same_workload(&saved.sample.facts, facts)).flat_map(Saved::runs),
    )
}

/// The names of the baselines in `dir`, sorted.
pub fn baseline_names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir.join(DIR)).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut names: Vec<String> = entries
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
        .collect();
    names.sort();
    names
}

/// All baselines of this directory, sorted by name.
pub fn baselines() -> Vec<Baseline> {
    let read = |name: String| {
        let saved = read(&Path::new(DIR).join(format!("{name}.json")));
        Baseline { name, saved }
    };
    baseline_names(Path::new("")).into_iter().map(read).collect()
}

/// The baseline of that name; `None` if there is none.
pub fn named(name: &str) -> Result<Option<Sample>, CompareError> {
    match path_of(name) {
        Ok(path) if path.is_file() => read(&path).map(|saved| Some(saved.sample)),
        // A name that no baseline can have may be the path of a missing run.
        _ => Ok(None),
    }
}

/// Reads a baseline from its file.
pub fn read(path: &Path) -> Result<Saved, CompareError> {
    let text = read_file(path, MAX_FILE_BYTES)
        .map_err(|source| CompareError::Unreadable { path: path.to_owned(), source })?;
    let bad = |reason: String| CompareError::BadBaseline { path: path.to_owned(), reason };
    let mut found: serde_json::Value = serde_json::from_slice(&text).map_err(|e| bad(e.to_string()))?;
    match found.get("schema").and_then(serde_json::Value::as_u64) {
        Some(schema) if schema > u64::from(SAMPLE_SCHEMA) => {
            return Err(bad(format!(
                "it was saved by a newer version (schema {schema}, this program reads {SAMPLE_SCHEMA})"
            )));
        }
        _ => {}
    }
    let earlier = found.get_mut("earlier").map(serde_json::Value::take);
    let earlier = earlier.map(serde_json::from_value).transpose().map_err(|e| bad(e.to_string()))?;
    let mut sample: Sample = serde_json::from_value(found).map_err(|e| bad(e.to_string()))?;
    sample.name = format!("{} ({})", path.file_stem().unwrap_or_default().to_string_lossy(), sample.name);
    Ok(Saved { sample, earlier: earlier.unwrap_or_default() })
}

/// One line per baseline.
pub fn baselines_text(found: &[Baseline]) -> String {
    if found.is_empty() {
        return format!("no baseline in {DIR}/; save one with llmprof-tui baseline save NAME [RUN]");
    }
    let row = |baseline: &Baseline| {
        let description = match &baseline.saved {
            Ok(saved) => {
                let sample = &saved.sample;
                let run = &sample.facts.run;
                let gpu = sample.facts.gpu.as_ref().map(|gpu| gpu.name.clone());
                let device = gpu.unwrap_or_else(|| run.device.to_string());
                let tpot = HEADLINE.value(sample).map_or_else(|| "–".to_owned(), millis);
                let spread = RunSpread::from_runs(saved.runs()).deviation(HEADLINE);
                let runs = match (spread, saved.earlier.len() + 1) {
                    (_, 1) => String::new(),
                    (None, runs) => format!(", {runs} saved runs"),
                    (Some(deviation), runs) => {
                        format!(", {} from run to run in {runs} saved runs", percent(100.0 * deviation.share))
                    }
                };
                let simulated = if run.simulated { ", simulated" } else { "" };
                format!(
                    "{} as {} on {device}, mean TPOT {tpot}, {} requests{runs}{simulated}",
                    run.model, run.dtype, sample.measured
                )
            }
            Err(e) => e.to_string(),
        };
        [baseline.name.clone(), description]
    };
    let mut table = Table::new([Column::text(""), Column::text("")]);
    found.iter().for_each(|baseline| table.push(row(baseline)));
    table.text()
}
