//! Runs to compare others with, in one small file each: `baselines/NAME.json` in the working directory, to be committed with the
//! code.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{error::CompareError, read};
use crate::{
    analysis::compare::{HEADLINE, SAMPLE_SCHEMA, Sample},
    base::{table::aligned, units::millis},
    rundir::list_runs,
};

const DIR: &str = "baselines";

/// A saved baseline.
pub struct Baseline {
    pub name: String,
    /// Its content, or why it cannot be read.
    pub sample: Result<Sample, CompareError>,
}

fn path_of(name: &str) -> Result<PathBuf, CompareError> {
    let fits = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    match !name.is_empty() && name.chars().all(fits) && !name.starts_with('.') {
        true => Ok(Path::new(DIR).join(format!("{name}.json"))),
        false => Err(CompareError::BadName { name: name.to_owned() }),
    }
}

/// Saves the sample of `run`, or of the newest run below `runs`, as `name`; returns the path and the sample.
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
    let temporary = path.with_extension("json.new");
    fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, &path)).map_err(io_error)?;
    Ok((path, sample))
}

/// All baselines, sorted by name.
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
        // A name that no baseline can have may be the path of a missing run.
        _ => Ok(None),
    }
}

/// Reads a baseline from its file.
pub fn read(path: &Path) -> Result<Sample, CompareError> {
    let text = fs::read(path).map_err(|source| CompareError::Io { path: path.to_owned(), source })?;
    let bad = |reason: String| CompareError::BadBaseline { path: path.to_owned(), reason };
    let found: serde_json::Value = serde_json::from_slice(&text).map_err(|e| bad(e.to_string()))?;
    match found.get("schema").and_then(serde_json::Value::as_u64) {
        Some(schema) if schema > u64::from(SAMPLE_SCHEMA) => {
            return Err(bad(format!(
                "it was saved by a newer version (schema {schema}, this program reads {SAMPLE_SCHEMA})"
            )));
        }
        _ => {}
    }
    let mut sample: Sample = serde_json::from_value(found).map_err(|e| bad(e.to_string()))?;
    sample.name = format!("{} ({})", path.file_stem().unwrap_or_default().to_string_lossy(), sample.name);
    Ok(sample)
}

/// One line for each baseline.
pub fn baselines_text(found: &[Baseline]) -> String {
    if found.is_empty() {
        return format!("no baseline in {DIR}/; save one with llmprof-tui baseline save NAME [RUN]");
    }
    let row = |baseline: &Baseline| {
        let description = match &baseline.sample {
            Ok(sample) => {
                let run = &sample.facts.run;
                let gpu = sample.facts.gpu.as_ref().map(|gpu| gpu.name.clone());
                let device = gpu.unwrap_or_else(|| run.device.to_string());
                let tpot = HEADLINE.value(sample).map_or_else(|| "–".to_owned(), millis);
                format!(
                    "{} as {} on {device}, TPOT p50 {tpot}, {} requests",
                    run.model, run.dtype, sample.measured
                )
            }
            Err(e) => e.to_string(),
        };
        [baseline.name.clone(), description]
    };
    aligned(&found.iter().map(row).collect::<Vec<_>>(), |_| false)
}
