//! Runs by short names: their age, or a part of their path.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use thiserror::Error;

use super::{age::age, listing::list_runs, recorded::is_sweep};

/// Maximum number of runs in an error.
const MAX_LISTED: usize = 5;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FindError {
    #[error("{name}: no run is below {root}; record one with `llmprof-tui run`, or give the path of a run")]
    NoRuns { name: String, root: PathBuf },
    #[error("{name}: only {runs} runs are below {root}")]
    TooOld { name: String, runs: usize, root: PathBuf },
    #[error("{name}: {dir} does not answer, and may have a newer run; give the path of the run")]
    Silent { name: String, dir: PathBuf },
    #[error("{name:?} is a part of {n} paths: {listed}; give a longer part")]
    Ambiguous { name: String, n: usize, listed: String },
}

/// The run below `root` that `name` means: `latest`, `latest~1` for the one before it, or a part of the path of exactly one run
/// or sweep. `None` if no path has it.
pub fn find_run(root: &Path, name: &str) -> Result<Option<PathBuf>, FindError> {
    let (answering, silent): (Vec<_>, Vec<_>) = list_runs(root).into_iter().partition(|run| run.answers);
    let runs: Vec<PathBuf> = answering.into_iter().map(|run| run.dir.path().to_owned()).collect();
    if let (Some(run), Some(_)) = (silent.first(), age(name)) {
        return Err(FindError::Silent { name: name.to_owned(), dir: run.dir.path().to_owned() });
    }
    if let Some(age) = age(name) {
        let (name, root) = (name.to_owned(), root.to_owned());
        return match runs.get(age) {
            Some(run) => Ok(Some(run.clone())),
            None if runs.is_empty() => Err(FindError::NoRuns { name, root }),
            None => Err(FindError::TooOld { name, runs: runs.len(), root }),
        };
    }
    if name.is_empty() {
        return Ok(None);
    }
    let has_name = |path: &Path| path.strip_prefix(root).unwrap_or(path).to_string_lossy().contains(name);
    let mut found: BTreeSet<&Path> = BTreeSet::new();
    for run in runs.iter().filter(|run| has_name(run)) {
        // The sweep is selected if its own path already contains the name.
        let sweep = run.ancestors().skip(1).take_while(|dir| *dir != root).find(|dir| is_sweep(dir));
        found.insert(sweep.filter(|sweep| has_name(sweep)).unwrap_or(run));
    }
    match found.len() {
        0 => Ok(None),
        1 => Ok(found.first().map(|path| path.to_path_buf())),
        n => {
            let mut listed: Vec<String> =
                found.iter().take(MAX_LISTED).map(|path| path.display().to_string()).collect();
            if n > MAX_LISTED {
                listed.push("…".to_owned());
            }
            Err(FindError::Ambiguous { name: name.to_owned(), n, listed: listed.join(", ") })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        time::{Duration, SystemTime},
    };

    use super::*;

    #[test]
    fn a_run_is_found_by_its_age_or_a_part_of_its_path() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let paths =
            ["base/tiny/01-01_12", "base/tiny/01-02_12", "base/multirun/01-03/0", "base/multirun/01-03/1"];
        for (age, path) in paths.iter().rev().enumerate() {
            let events = root.join(path).join("events.ndjson");
            fs::create_dir_all(events.parent().unwrap()).unwrap();
            fs::write(&events, "").unwrap();
            let modified = SystemTime::now() - Duration::from_secs(60 * age as u64);
            fs::File::options().write(true).open(&events).unwrap().set_modified(modified).unwrap();
        }
        fs::write(root.join("base/multirun/01-03/sweep.json"), "{}").unwrap();
        let found = |name: &str| {
            let found = find_run(root, name).unwrap();
            found.map(|path| path.strip_prefix(root).unwrap().display().to_string())
        };
        for (name, path) in [
            ("latest", Some("base/multirun/01-03/1")),
            ("latest~3", Some("base/tiny/01-01_12")),
            ("01-02", Some("base/tiny/01-02_12")),
            ("tiny/01-01", Some("base/tiny/01-01_12")),
            ("01-03", Some("base/multirun/01-03")),
            ("01-03/0", Some("base/multirun/01-03/0")),
            ("nothing", None),
            ("", None),
        ] {
            assert_eq!(found(name).as_deref(), path, "{name}");
        }
        let error = |name: &str| find_run(root, name).unwrap_err().to_string();
        assert!(error("latest~4").contains("only 4 runs are below"), "{}", error("latest~4"));
        let empty = find_run(&root.join("none"), "latest").unwrap_err().to_string();
        assert!(empty.contains("no run is below") && empty.contains("`llmprof-tui run`"), "{empty}");
        assert!(error("tiny").starts_with("\"tiny\" is a part of 2 paths: "), "{}", error("tiny"));
    }
}
