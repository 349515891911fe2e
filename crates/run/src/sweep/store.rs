//! A sweep on disk: Hydra's `multirun.yaml`, `sweep.json` with the jobs, and their results.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Component, Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    error::SweepError,
    jobs::{CUT_OFF, Job, JobResult, Sweep},
    table::ended_jobs,
};
use llmprof_base::dir::{Dir, open_file, read_file};
use llmprof_event::Outcome;
use llmprof_record::rundir::{RunDir, RunResult};

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
    /// As they were typed.
    pub(super) overrides: Vec<String>,
    pub(super) jobs: Vec<StoredJob>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct StoredJob {
    pub(super) overrides: Vec<String>,
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

impl Sweep {
    /// A sweep that is not running, with the results of its jobs.
    pub fn open(dir: &Path) -> Result<Sweep, SweepError> {
        let (stored, _lock) = StoredSweep::read(dir)?;
        let mut sweep = stored.sweep(dir.to_owned());
        sweep.read_results();
        Ok(sweep)
    }

    /// Whether there is a sweep in `dir` rather than a run.
    pub fn is_in(dir: &Path) -> bool {
        dir.join(PLAN).is_file() && !RunDir::open(dir).events().exists()
    }

    /// Writes `sweep.csv` into `dir`, and returns its path.
    pub fn write_csv(&self, dir: &Path) -> Result<PathBuf, SweepError> {
        write_in(dir, TABLE, ended_jobs(self).csv().as_bytes())
    }

    /// The directory of the recording of `job`.
    pub fn job_dir(&self, job: usize) -> PathBuf {
        self.dir.join(&self.jobs[job].subdir)
    }

    /// Reads the results from the directories of all jobs.
    pub(super) fn read_results(&mut self) {
        for index in 0..self.jobs.len() {
            let result = result_in(&self.job_dir(index));
            self.jobs[index] = self.jobs[index].clone().with_earlier(result);
        }
    }

    /// Moves the recording of a job away so that the job can run again. Returns the new path.
    pub(super) fn set_aside(&self, job: usize) -> io::Result<Option<PathBuf>> {
        let dir = self.job_dir(job);
        if !dir.try_exists()? {
            return Ok(None);
        }
        let suffix = match result_in(&dir) {
            Some(JobResult { outcome: Outcome::Failed, .. }) => "failed",
            _ => "interrupted",
        };
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let numbered = (1..).map(|n| match n {
            1 => dir.with_file_name(format!("{name}-{suffix}")),
            n => dir.with_file_name(format!("{name}-{suffix}-{n}")),
        });
        for aside in numbered {
            if !aside.try_exists()? {
                fs::rename(&dir, &aside)?;
                return Ok(Some(aside));
            }
        }
        Ok(None)
    }
}

/// The result of the job in `dir`; `None` if it was not started.
pub(super) fn result_in(dir: &Path) -> Option<JobResult> {
    let run = RunDir::open(dir);
    if !dir.is_dir() {
        return None;
    }
    Some(match run.result() {
        Some(RunResult { outcome, cause, metrics, .. }) => JobResult {
            outcome,
            reason: cause,
            lossy: false,
            metrics: Some(metrics).filter(|metrics| metrics.output_tokens > 0),
            dir: Some(dir.to_owned()),
        },
        None => JobResult {
            outcome: Outcome::Interrupted,
            reason: Some(CUT_OFF.into()),
            lossy: false,
            metrics: None,
            dir: Some(dir.to_owned()),
        },
    })
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

    #[test]
    fn earlier_recordings_are_never_overwritten() {
        let root = tempfile::tempdir().unwrap();
        let sweep = Sweep { dir: root.path().to_owned(), jobs: vec![Job::new(Vec::new(), "0".into())] };
        assert_eq!(sweep.set_aside(0).unwrap(), None);
        for name in ["0-interrupted", "0-interrupted-2"] {
            fs::create_dir(root.path().join("0")).unwrap();
            fs::write(root.path().join("0/events.ndjson"), name).unwrap();
            assert_eq!(sweep.set_aside(0).unwrap(), Some(root.path().join(name)));
        }
        for name in ["0-interrupted", "0-interrupted-2"] {
            assert_eq!(fs::read_to_string(root.path().join(name).join("events.ndjson")).unwrap(), name);
        }
    }
}
