//! The files of a run directory, and the list of runs.

use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde::{Deserialize, Deserializer};
use thiserror::Error;

use crate::{analysis::metrics::MetricsSummary, base::dir::read_file, event::Outcome};

/// Of a `metrics.json`: many times what a run writes.
const MAX_RESULT_BYTES: u64 = 64 << 20;

/// Characters of a snapshot's name: with a number after it, it is a valid name of a file in every script.
pub const MAX_SNAPSHOT_NAME: usize = 60;

/// A path at which no directory can be created.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{} is not the path of a new directory; give one, such as runs/mine", .path.display())]
pub struct NoNewDir {
    path: PathBuf,
}

/// The directory of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDir(PathBuf);

impl RunDir {
    /// Creates a new directory at `path`, or one with a number where it exists already.
    pub fn create(path: &Path) -> io::Result<RunDir> {
        let name = RunDir::name_in(path).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let name = name.to_string_lossy();
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        for n in 1..1000 {
            let candidate = if n == 1 { path.to_owned() } else { path.with_file_name(format!("{name}-{n}")) };
            match fs::create_dir(&candidate) {
                Ok(()) => return Ok(RunDir(candidate)),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::Error::new(io::ErrorKind::AlreadyExists, "a thousand runs have this name"))
    }

    /// The name of a directory that can be created at `path`. `.` and `..` have none: they exist, and a number would make
    /// another name of them.
    pub fn name_in(path: &Path) -> Result<&OsStr, NoNewDir> {
        path.file_name().ok_or_else(|| NoNewDir { path: path.to_owned() })
    }

    /// An existing run, from its directory or its `events.ndjson`.
    pub fn open(path: &Path) -> RunDir {
        match path.file_name() {
            Some(name) if name == "events.ndjson" => {
                RunDir(path.parent().unwrap_or(Path::new(".")).to_owned())
            }
            _ => RunDir(path.to_owned()),
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// `path`, which is in this directory, as seen from it.
    pub fn below<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(&self.0).unwrap_or(path)
    }

    pub fn events(&self) -> PathBuf {
        self.0.join("events.ndjson")
    }

    pub fn nvml_csv(&self) -> PathBuf {
        self.0.join("nvml.csv")
    }

    /// For Chrome and Perfetto.
    pub fn trace(&self) -> PathBuf {
        self.0.join("trace.json")
    }

    pub fn config(&self) -> PathBuf {
        self.0.join("config.yaml")
    }

    pub fn overrides(&self) -> PathBuf {
        self.0.join("overrides.yaml")
    }

    /// Hydra's files: the configuration as written, Hydra's settings, the overrides.
    pub fn hydra(&self) -> PathBuf {
        self.0.join(".hydra")
    }

    pub fn environment(&self) -> PathBuf {
        self.0.join("env.json")
    }

    pub fn metrics(&self) -> PathBuf {
        self.0.join("metrics.json")
    }

    pub fn predictions(&self) -> PathBuf {
        self.0.join("predictions").join("predictions.jsonl")
    }

    /// The result in `metrics.json`; `None` while the run is being recorded, or when it was killed.
    pub fn result(&self) -> Option<RunResult> {
        read_file(&self.metrics(), MAX_RESULT_BYTES).ok().and_then(|text| serde_json::from_slice(&text).ok())
    }

    pub fn log(&self) -> PathBuf {
        self.0.join("llmprof.log")
    }

    pub fn snapshot(&self, name: &str) -> PathBuf {
        self.0.join("snapshots").join(snapshot_file(name))
    }
}

/// The name of the file of a snapshot. Different snapshots may have the same.
pub fn snapshot_file(name: &str) -> String {
    let safe = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let name: String = name.chars().map(safe).collect();
    format!("{}.json", name.trim_start_matches('.'))
}

/// A run in the list of runs.
#[derive(Debug, Clone)]
pub struct RunEntry {
    pub dir: RunDir,
    pub experiment: String,
    pub model: String,
    pub name: String,
    pub modified: SystemTime,
    pub simulated: bool,
    /// `None` while the run is being recorded, or when it was killed.
    pub result: Option<RunResult>,
    /// False where the directory did not answer in time; nothing else is known of it.
    pub answers: bool,
}

/// The part of `metrics.json` that the list shows.
#[derive(Debug, Clone, Deserialize)]
pub struct RunResult {
    #[serde(deserialize_with = "outcome")]
    pub outcome: Outcome,
    #[serde(default)]
    pub cause: Option<String>,
    #[serde(default)]
    pub run: Option<RunKind>,
    pub metrics: MetricsSummary,
}

/// An unknown outcome is none that completed.
fn outcome<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Outcome, D::Error> {
    let known = serde_json::from_value(serde_json::Value::deserialize(deserializer)?);
    Ok(known.unwrap_or(Outcome::Interrupted))
}

#[derive(Debug, Clone, Deserialize)]
pub struct RunKind {
    pub simulated: bool,
    pub experiment: Option<String>,
    pub model: Option<String>,
}

impl RunEntry {
    /// A directory that does not answer.
    pub(super) fn silent(root: &Path, dir: &Path) -> RunEntry {
        let name = dir.strip_prefix(root).ok().filter(|below| !below.as_os_str().is_empty()).unwrap_or(dir);
        RunEntry {
            dir: RunDir(dir.to_owned()),
            experiment: String::new(),
            model: String::new(),
            name: name.display().to_string(),
            modified: SystemTime::UNIX_EPOCH,
            simulated: false,
            result: None,
            answers: false,
        }
    }

    /// Nothing in it was measured.
    pub fn simulated(&self) -> bool {
        self.simulated
    }
}

#[cfg(test)]
mod tests {
    use super::{super::list_runs, *};

    #[test]
    fn two_runs_in_one_second_get_two_directories() {
        let root = tempfile::tempdir().unwrap();
        let wanted = root.path().join("baseline/tiny/2026-01-01");
        let (a, b) = (RunDir::create(&wanted).unwrap(), RunDir::create(&wanted).unwrap());
        assert_eq!(a.path(), wanted);
        assert_eq!(b.path().file_name().unwrap(), "2026-01-01-2");
        fs::write(a.events(), "").unwrap();
        let runs = list_runs(root.path());
        assert_eq!(runs.len(), 1);
        assert_eq!((runs[0].experiment.as_str(), runs[0].model.as_str()), ("baseline", "tiny"));
        assert!(runs[0].result.is_none());
    }

    #[test]
    fn a_directory_without_a_name_is_refused() {
        for path in [".", "..", "/", "a/.."] {
            let error = RunDir::create(Path::new(path)).unwrap_err().to_string();
            assert!(error.starts_with(path) && error.contains("such as runs/mine"), "{error}");
        }
        assert_eq!(RunDir::name_in(Path::new("./a/.")).unwrap(), "a");
    }

    #[test]
    fn a_snapshot_stays_inside_its_run() {
        let dir = RunDir(PathBuf::from("/runs/x"));
        for name in ["../../etc/passwd", "a b", "..", "/"] {
            assert_eq!(dir.snapshot(name).parent().unwrap(), Path::new("/runs/x/snapshots"), "{name}");
        }
    }
}
