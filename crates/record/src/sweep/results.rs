//! The results of jobs, read from the directories of their recordings.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::jobs::{CUT_OFF, JobResult, Sweep};
use crate::rundir::{RunDir, RunResult};
use llmprof_event::Outcome;

impl Sweep {
    /// The directory of the recording of `job`.
    pub fn job_dir(&self, job: usize) -> PathBuf {
        self.dir.join(&self.jobs[job].subdir)
    }

    /// Reads the results from the directories of all jobs.
    pub fn read_results(&mut self) {
        for index in 0..self.jobs.len() {
            let result = result_in(&self.job_dir(index));
            self.jobs[index] = self.jobs[index].clone().with_earlier(result);
        }
    }

    /// Moves the recording of a job away so that the job can run again. Returns the new path.
    pub fn set_aside(&self, job: usize) -> io::Result<Option<PathBuf>> {
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
pub fn result_in(dir: &Path) -> Option<JobResult> {
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
    use crate::sweep::Job;

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
