//! The arrays of a sweep: which jobs were submitted under which id. Kept in `slurm.json`, so that the jobs are found again.

use std::{
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    base::dir::{read_file, write},
    run::sweep::error::SweepError,
};

const FILE: &str = "slurm.json";
const SCHEMA: u32 = 1;
const MAX_BYTES: u64 = 64 << 20;

/// The content of `slurm.json`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Arrays {
    schema: u32,
    pub(super) arrays: Vec<StoredArray>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct StoredArray {
    /// Written before it is submitted: an array without an id may have been.
    pub(super) script: PathBuf,
    pub(super) id: Option<u64>,
    pub(super) cluster: Option<String>,
    /// Numbers of jobs, from 0; the place in this list is the number of the task.
    pub(super) jobs: Vec<usize>,
}

impl Arrays {
    /// Of the sweep in `dir`; empty where nothing was submitted.
    pub(super) fn read(dir: &Path, jobs: usize) -> Result<Arrays, SweepError> {
        let bad = |reason: String| SweepError::NotASweep { dir: dir.to_owned(), reason };
        let text = match read_file(&dir.join(FILE), MAX_BYTES) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Ok(Arrays { schema: SCHEMA, ..Arrays::default() });
            }
            text => text.map_err(|e| bad(format!("{FILE} cannot be read: {e}")))?,
        };
        let stored: Arrays =
            serde_json::from_slice(&text).map_err(|e| bad(format!("{FILE} is invalid: {e}")))?;
        if stored.schema > SCHEMA {
            return Err(bad("it was created by a newer version of this program".into()));
        }
        match stored.arrays.iter().flat_map(|array| &array.jobs).any(|job| *job >= jobs) {
            true => Err(bad(format!("{FILE} names jobs that the sweep does not have"))),
            false => Ok(stored),
        }
    }

    pub(super) fn write(&self, dir: &Path) -> Result<(), SweepError> {
        let path = dir.join(FILE);
        let written =
            serde_json::to_vec_pretty(self).map_err(io::Error::from).and_then(|text| write(&path, text));
        written.map_err(|source| SweepError::Io { path, source })
    }

    /// The last array that `job` was submitted with, and its number there.
    pub(super) fn task_of(&self, job: usize) -> Option<(&StoredArray, u32)> {
        self.arrays.iter().rev().filter(|array| array.id.is_some()).find_map(|array| {
            let task = array.jobs.iter().position(|other| *other == job)?;
            Some((array, u32::try_from(task).ok()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_submission_of_a_job_counts() {
        let array = |id, jobs: &[usize]| StoredArray {
            script: "a.sh".into(),
            id,
            cluster: None,
            jobs: jobs.to_vec(),
        };
        let arrays = Arrays {
            schema: 1,
            arrays: vec![array(Some(7), &[0, 1, 2]), array(Some(9), &[2]), array(None, &[1])],
        };
        let found = |job| arrays.task_of(job).map(|(array, task)| (array.id, task));
        assert_eq!(
            [found(0), found(1), found(2), found(3)],
            [Some((Some(7), 0)), Some((Some(7), 1)), Some((Some(9), 0)), None]
        );
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Arrays::read(dir.path(), 3).unwrap().arrays, []);
        arrays.write(dir.path()).unwrap();
        assert_eq!(Arrays::read(dir.path(), 3).unwrap(), arrays);
        assert!(
            Arrays::read(dir.path(), 2)
                .unwrap_err()
                .to_string()
                .contains("jobs that the sweep does not have")
        );
    }
}
