//! A sweep on disk: `multirun.yaml` as Hydra keeps it, `sweep.json` with the jobs, and what became of each.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Component, Path, PathBuf},
};

use jiff::Zoned;
use serde::{Deserialize, Serialize};

use super::{
    error::SweepError,
    jobs::{Job, JobResult, Sweep},
    table::csv_text,
};
use crate::{
    event::Outcome,
    rundir::{RunDir, RunResult},
};

const SCHEMA: u32 = 1;
const PLAN: &str = "sweep.json";

/// What is written once, when a sweep begins, and read when it is taken up again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct KeptSweep {
    pub(super) schema: u32,
    /// What `${now:…}` means to all jobs.
    pub(super) started: String,
    /// As `--conf-dir` named it.
    pub(super) conf_dir: Option<PathBuf>,
    /// As they were typed.
    pub(super) overrides: Vec<String>,
    pub(super) jobs: Vec<KeptJob>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct KeptJob {
    pub(super) overrides: Vec<String>,
    pub(super) subdir: String,
    /// Of the resolved configuration, to see whether the job would still be the same.
    pub(super) config_sha256: String,
}

impl KeptSweep {
    pub(super) fn new(
        now: &Zoned,
        conf_dir: Option<PathBuf>,
        overrides: Vec<String>,
        jobs: Vec<KeptJob>,
    ) -> Self {
        KeptSweep { schema: SCHEMA, started: now.to_string(), conf_dir, overrides, jobs }
    }

    pub(super) fn sweep(&self, dir: PathBuf) -> Sweep {
        let job = |job: &KeptJob| Job::new(job.overrides.clone(), job.subdir.clone());
        Sweep { dir, jobs: self.jobs.iter().map(job).collect() }
    }

    /// Writes what is needed to take the sweep up again into `dir`, and marks the sweep as worked on while the file
    /// that comes back is open.
    pub(super) fn keep(&self, dir: &Path, multirun_yaml: &str) -> Result<File, SweepError> {
        let yaml = dir.join("multirun.yaml");
        fs::write(&yaml, multirun_yaml).map_err(|source| SweepError::Io { path: yaml, source })?;
        let path = dir.join(PLAN);
        let text = serde_json::to_vec_pretty(self).map_err(io::Error::from);
        let written = text.and_then(|text| write_whole(&path, &text));
        written.map_err(|source| SweepError::Io { path: path.clone(), source })?;
        let file = File::open(&path).map_err(|source| SweepError::Io { path, source })?;
        claimed(file, dir)
    }

    /// Reads what [`keep`](Self::keep) wrote.
    pub(super) fn read(dir: &Path) -> Result<(KeptSweep, File), SweepError> {
        let not_a_sweep = |reason: String| SweepError::NotASweep { dir: dir.to_owned(), reason };
        if !dir.is_dir() {
            return Err(not_a_sweep("there is no such directory".into()));
        }
        let path = dir.join(PLAN);
        let text = fs::read(&path).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => not_a_sweep("this is not a sweep".into()),
            _ => not_a_sweep(format!("{PLAN} can't be read: {e}")),
        })?;
        let kept: KeptSweep =
            serde_json::from_slice(&text).map_err(|e| not_a_sweep(format!("{PLAN} is not in order: {e}")))?;
        if kept.schema > SCHEMA {
            return Err(not_a_sweep("it was made by a newer version of this program".into()));
        }
        for (at, job) in kept.jobs.iter().enumerate() {
            check_subdir(at, &job.subdir)?;
        }
        let file = File::open(&path).map_err(|source| SweepError::Io { path, source })?;
        Ok((kept, claimed(file, dir)?))
    }
}

/// Holds the sweep in `dir` for this process.
fn claimed(file: File, dir: &Path) -> Result<File, SweepError> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(SweepError::InUse { dir: dir.to_owned() }),
        // Not every file system has locks; the claim is a courtesy.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
    }
}

/// Refuses a directory that is not below the sweep's.
pub(super) fn check_subdir(job: usize, subdir: &str) -> Result<(), SweepError> {
    let path = Path::new(subdir);
    let below = path.components().all(|part| matches!(part, Component::Normal(_)));
    match below && path.components().next().is_some() {
        true => Ok(()),
        false => Err(SweepError::BadSubdir { job: job + 1, subdir: subdir.to_owned() }),
    }
}

/// Replaces the file at `path` by `content`, all of it or nothing.
pub(super) fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let beside = path.with_file_name(name);
    fs::write(&beside, content)?;
    fs::rename(&beside, path)
}

impl Sweep {
    /// A sweep that nobody works on, with what became of its jobs.
    pub fn open(dir: &Path) -> Result<Sweep, SweepError> {
        let (kept, _claim) = KeptSweep::read(dir)?;
        let mut sweep = kept.sweep(dir.to_owned());
        sweep.find_results();
        Ok(sweep)
    }

    /// Whether there is a sweep in `dir` rather than a run.
    pub fn is_in(dir: &Path) -> bool {
        dir.join(PLAN).is_file() && !RunDir::open(dir).events().exists()
    }

    /// Writes `sweep.csv` into `dir`; gives where.
    pub fn write_csv(&self, dir: &Path) -> Result<PathBuf, SweepError> {
        let path = dir.join("sweep.csv");
        let text = csv_text(self).map_err(io::Error::from);
        match text.and_then(|text| write_whole(&path, &text)) {
            Ok(()) => Ok(path),
            Err(source) => Err(SweepError::Io { path, source }),
        }
    }

    /// Where `job` is, or would be, recorded.
    pub fn job_dir(&self, job: usize) -> PathBuf {
        self.dir.join(&self.jobs[job].subdir)
    }

    /// Looks in the directories of all jobs for what became of them.
    pub(super) fn find_results(&mut self) {
        for at in 0..self.jobs.len() {
            let result = result_in(&self.job_dir(at));
            self.jobs[at] = self.jobs[at].clone().with_earlier(result);
        }
    }

    /// Moves what a job left behind out of the way of doing it again; gives where it is now.
    pub(super) fn set_aside(&self, job: usize) -> io::Result<Option<PathBuf>> {
        let dir = self.job_dir(job);
        if !dir.try_exists()? {
            return Ok(None);
        }
        let word = match result_in(&dir) {
            Some(JobResult { outcome: Outcome::Failed, .. }) => "failed",
            _ => "interrupted",
        };
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let numbered = (1..).map(|n| match n {
            1 => dir.with_file_name(format!("{name}-{word}")),
            n => dir.with_file_name(format!("{name}-{word}-{n}")),
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

/// What became of the job in `dir`; `None` where it was not begun.
fn result_in(dir: &Path) -> Option<JobResult> {
    let run = RunDir::open(dir);
    if !dir.is_dir() {
        return None;
    }
    Some(match run.result() {
        Some(RunResult { outcome, cause, metrics, .. }) => JobResult {
            outcome: match outcome.as_str() {
                "completed" => Outcome::Completed,
                "failed" => Outcome::Failed,
                _ => Outcome::Interrupted,
            },
            reason: cause,
            lossy: false,
            metrics: Some(metrics).filter(|metrics| metrics.output_tokens > 0),
            dir: Some(dir.to_owned()),
        },
        None => JobResult {
            outcome: Outcome::Interrupted,
            reason: Some("cut off: no end is recorded".into()),
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
    fn a_subdir_stays_below_the_sweep() {
        for good in ["0", "a=1,b=2", "a/b", "model=x"] {
            check_subdir(0, good).unwrap();
        }
        for bad in ["", ".", "..", "../x", "a/../../b", "/tmp/x"] {
            assert!(matches!(check_subdir(0, bad), Err(SweepError::BadSubdir { job: 1, .. })), "{bad}");
        }
    }

    #[test]
    fn what_a_job_left_is_never_written_over() {
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
