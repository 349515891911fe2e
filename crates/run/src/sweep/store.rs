//! A sweep on disk: Hydra's `multirun.yaml`, `sweep.json` with the jobs, and their results.

use std::{
    fs::{File, TryLockError},
    io,
    path::{Component, Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::error::SweepError;
use llmprof_base::dir::{Dir, open_file, read_file};
use llmprof_config::Override;
use llmprof_record::{
    rundir::RunDir,
    sweep::{Job, Sweep, sweep_csv},
};

/// The version of the format of `sweep.json`.
pub(super) const SCHEMA: u32 = 1;
const PLAN: &str = "sweep.json";
const TABLE: &str = "sweep.csv";
/// Maximum size of `sweep.json` in bytes: enough for any realistic number of jobs.
const MAX_PLAN_BYTES: u64 = 64 << 20;

/// The content of `sweep.json`: written when a sweep starts, read when it is resumed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct StoredSweep {
    pub(super) schema: u32,
    /// The time of `${now:…}` for all jobs.
    pub(super) started: String,
    /// As given to `--conf-dir`.
    pub(super) conf_dir: Option<PathBuf>,
    /// The remote host of the jobs, as given to `--host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) host: Option<String>,
    pub(super) overrides: Vec<Override>,
    pub(super) jobs: Vec<StoredJob>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct StoredJob {
    pub(super) overrides: Vec<Override>,
    pub(super) subdir: String,
    /// The hash of the resolved configuration, to detect changes.
    pub(super) config_sha256: String,
}

impl StoredSweep {
    pub(super) fn sweep(&self, dir: PathBuf) -> Sweep {
        let job = |job: &StoredJob| Job::new(job.overrides.clone(), job.subdir.clone());
        Sweep { dir, jobs: self.jobs.iter().map(job).collect() }
    }

    /// Writes the sweep into `dir`, and locks it while the returned file is open.
    pub(super) fn write(&self, dir: &Path, multirun_yaml: &str) -> Result<File, SweepError> {
        write_in(dir, "multirun.yaml", multirun_yaml.as_bytes())?;
        let path = dir.join(PLAN);
        let text = serde_json::to_vec_pretty(self)
            .map_err(|e| SweepError::Io { path: path.clone(), source: e.into() })?;
        write_in(dir, PLAN, &text)?;
        let file = open_file(&path).map_err(|source| SweepError::Io { path, source })?;
        lock(file, dir)
    }

    /// Reads and locks the sweep in `dir`.
    pub(super) fn read(dir: &Path) -> Result<(StoredSweep, File), SweepError> {
        let stored = StoredSweep::read_unlocked(dir)?;
        let path = dir.join(PLAN);
        let file = open_file(&path).map_err(|source| SweepError::Io { path, source })?;
        Ok((stored, lock(file, dir)?))
    }

    /// Reads the sweep in `dir`, which another process may be running.
    pub(super) fn read_unlocked(dir: &Path) -> Result<StoredSweep, SweepError> {
        let not_a_sweep = |reason: String| SweepError::NotASweep { dir: dir.to_owned(), reason };
        if !dir.is_dir() {
            return Err(not_a_sweep("there is no such directory".into()));
        }
        let path = dir.join(PLAN);
        let text = read_file(&path, MAX_PLAN_BYTES).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => not_a_sweep("this is not a sweep".into()),
            _ => not_a_sweep(format!("{PLAN} cannot be read: {e}")),
        })?;
        let stored: StoredSweep =
            serde_json::from_slice(&text).map_err(|e| not_a_sweep(format!("{PLAN} is invalid: {e}")))?;
        if stored.schema > SCHEMA {
            return Err(not_a_sweep("it was created by a newer version of this program".into()));
        }
        for (index, job) in stored.jobs.iter().enumerate() {
            check_subdir(index, &job.subdir)?;
            check_unlinked(index, dir, &job.subdir)?;
        }
        Ok(stored)
    }
}

/// Locks the sweep in `dir` for this process.
fn lock(file: File, dir: &Path) -> Result<File, SweepError> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(SweepError::InUse { dir: dir.to_owned() }),
        // Not every file system has locks.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
    }
}

/// Refuses a directory that is not inside the sweep's.
pub(super) fn check_subdir(job: usize, subdir: &str) -> Result<(), SweepError> {
    let path = Path::new(subdir);
    let below = path.components().all(|part| matches!(part, Component::Normal(_)));
    match below && path.components().next().is_some() {
        true => Ok(()),
        false => Err(SweepError::BadSubdir { job: job + 1, subdir: subdir.to_owned() }),
    }
}

/// Refuses a directory behind a link: its job would be recorded elsewhere.
fn check_unlinked(job: usize, sweep: &Path, subdir: &str) -> Result<(), SweepError> {
    let mut path = sweep.to_owned();
    for part in Path::new(subdir) {
        path.push(part);
        if path.is_symlink() {
            return Err(SweepError::LinkedJob { job: job + 1, path });
        }
    }
    Ok(())
}

/// Replaces the file `name` in `dir`.
fn write_in(dir: &Path, name: &str, content: &[u8]) -> Result<PathBuf, SweepError> {
    let path = dir.join(name);
    match Dir::open(dir).and_then(|dir| dir.write(name, content)) {
        Ok(()) => Ok(path),
        Err(source) => Err(SweepError::Io { path, source }),
    }
}

/// A sweep that is not running, with the results of its jobs.
pub fn open_sweep(dir: &Path) -> Result<Sweep, SweepError> {
    let (stored, _lock) = StoredSweep::read(dir)?;
    let mut sweep = stored.sweep(dir.to_owned());
    sweep.read_results();
    Ok(sweep)
}

/// Whether there is a sweep in `dir` rather than a run.
pub fn is_sweep(dir: &Path) -> bool {
    dir.join(PLAN).is_file() && !RunDir::open(dir).events().exists()
}

/// Writes `sweep.csv` into `dir`, and returns its path.
pub fn write_csv(sweep: &Sweep, dir: &Path) -> Result<PathBuf, SweepError> {
    write_in(dir, TABLE, sweep_csv(sweep).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subdir_stays_inside_the_sweep() {
        for good in ["0", "a=1,b=2", "a/b", "model=x"] {
            check_subdir(0, good).unwrap();
        }
        for bad in ["", ".", "..", "../x", "a/../../b", "/tmp/x"] {
            assert!(matches!(check_subdir(0, bad), Err(SweepError::BadSubdir { job: 1, .. })), "{bad}");
        }
    }
}
