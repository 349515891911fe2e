//! Runs to hold others against, kept small: `baselines/NAME.json` in the working directory, to be committed beside what
//! it is a baseline of.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{error::CompareError, read};
use crate::{
    analysis::compare::{HEADLINE, SAMPLE_SCHEMA, Sample},
    base::table::aligned,
    base::units::millis,
    rundir::list_runs,
};

const DIR: &str = "baselines";

/// One that can be named.
pub struct Baseline {
    pub name: String,
    /// What is in it, or why it can't be read.
    pub sample: Result<Sample, CompareError>,
}

fn path_of(name: &str) -> Result<PathBuf, CompareError> {
    let fits = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    match !name.is_empty() && name.chars().all(fits) && !name.starts_with('.') {
        true => Ok(Path::new(DIR).join(format!("{name}.json"))),
        false => Err(CompareError::BadName { name: name.to_owned() }),
    }
}

/// Keeps the sample of `run`, or of the newest run below `runs`, under `name`; gives where, and what it is.
pub fn save(name: &str, run: Option<&Path>, runs: &Path) -> Result<(PathBuf, Sample), CompareError> {
    let path = path_of(name)?;
    let newest = || list_runs(runs).first().map(|run| run.dir.path().to_owned());
    let run = run.map(Path::to_owned).or_else(newest);
    let run = run.ok_or_else(|| CompareError::NoRuns { root: runs.to_owned() })?;
    let sample = read::read_run(&run)?;
    if sample.measured == 0 {
        return Err(CompareError::NothingMeasured { path: run });
    }
    let io_error = |source| CompareError::Io { path: path.clone(), source };
    fs::create_dir_all(DIR).map_err(io_error)?;
    let text = serde_json::to_vec(&sample).map_err(|e| io_error(e.into()))?;
    let beside = path.with_extension("json.new");
    fs::write(&beside, text).and_then(|()| fs::rename(&beside, &path)).map_err(io_error)?;
    Ok((path, sample))
}

/// All of them, by name.
pub fn baselines() -> Vec<Baseline> {
    let entries = fs::read_dir(DIR).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<Baseline> = entries
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .filter_map(|path| {
            let name = path.file_stem()?.to_string_lossy().into_owned();
            Some(Baseline { name, sample: read(&path) })
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// The baseline of that name; `None` where there is none.
pub fn named(name: &str) -> Result<Option<Sample>, CompareError> {
    match path_of(name) {
        Ok(path) if path.is_file() => read(&path).map(Some),
        // What can't be a baseline's name may be a path that is not there.
        _ => Ok(None),
    }
}

/// Reads one from its file.
pub fn read(path: &Path) -> Result<Sample, CompareError> {
    let text = fs::read(path).map_err(|source| CompareError::Io { path: path.to_owned(), source })?;
    let bad = |reason: String| CompareError::BadBaseline { path: path.to_owned(), reason };
    let found: serde_json::Value = serde_json::from_slice(&text).map_err(|e| bad(e.to_string()))?;
    match found.get("schema").and_then(serde_json::Value::as_u64) {
        Some(schema) if schema > u64::from(SAMPLE_SCHEMA) => {
            return Err(bad(format!(
                "it was made by a newer version (schema {schema}, this program reads {SAMPLE_SCHEMA})"
            )));
        }
        _ => {}
    }
    let mut sample: Sample = serde_json::from_value(found).map_err(|e| bad(e.to_string()))?;
    sample.name = format!("{} ({})", path.file_stem().unwrap_or_default().to_string_lossy(), sample.name);
    Ok(sample)
}

/// A line for each.
pub fn baselines_text(found: &[Baseline]) -> String {
    if found.is_empty() {
        return format!("no baseline in {DIR}/; llmprof-tui baseline save NAME [RUN] keeps one");
    }
    let row = |baseline: &Baseline| {
        let what = match &baseline.sample {
            Ok(sample) => {
                let run = &sample.facts.run;
                let on =
                    sample.facts.gpu.as_ref().map_or_else(|| run.device.to_string(), |gpu| gpu.name.clone());
                let tpot = HEADLINE.value(sample).map_or_else(|| "–".to_owned(), millis);
                format!(
                    "{} as {} on {on}, TPOT p50 {tpot}, {} requests",
                    run.model, run.dtype, sample.measured
                )
            }
            Err(e) => e.to_string(),
        };
        [baseline.name.clone(), what]
    };
    aligned(&found.iter().map(row).collect::<Vec<_>>(), |_| false)
}
