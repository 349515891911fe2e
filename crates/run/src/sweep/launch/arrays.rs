//! The arrays of a sweep: the submitted jobs with their ids. Stored in `slurm.json`, so that the jobs can be found
//! again.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::sweep::error::SweepError;
use llmprof_base::dir::{read_file, write};

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
    /// Written before the submission: an array without an id may have been submitted.
    pub(super) script: PathBuf,
    pub(super) id: Option<u64>,
    pub(super) cluster: Option<String>,
    /// Indexes of jobs, from 0; the position in this list is the index of the task.
    pub(super) jobs: Vec<usize>,
}

impl Arrays {
    /// Reads the arrays of the sweep in `dir`; none if nothing was submitted.
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

    /// The array and the task index of each submitted job; of the last array, if there are several.
    pub(super) fn tasks(&self) -> HashMap<usize, (u64, u32)> {
        let numbered = |array: &StoredArray| {
            let id = array.id?;
            Some(array.jobs.iter().copied().zip((0..).map(move |task| (id, task))).collect::<Vec<_>>())
        };
        self.arrays.iter().filter_map(numbered).flatten().collect()
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
        let found = |job| arrays.tasks().get(&job).copied();
        assert_eq!(
            [found(0), found(1), found(2), found(3)],
            [Some((7, 0)), Some((7, 1)), Some((9, 0)), None]
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
