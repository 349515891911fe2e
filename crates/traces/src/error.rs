//! Errors of reading kernel files.

use std::io;

use thiserror::Error;

use super::format;

/// Each names the file and the remedy.
#[derive(Debug, Error)]
pub enum KernelsError {
    #[error("cannot read {file}: {source}")]
    Read { file: String, source: io::Error },
    #[error("{file} is empty: the profiler reported nothing; {remedy}")]
    Empty { file: String, remedy: &'static str },
    #[error("{file} has no data: nsys reports \"{message}\"; {remedy}")]
    Skipped { file: String, message: String, remedy: &'static str },
    #[error("{file} has {what}, but no readable row; {remedy}")]
    NoRows { file: String, what: String, remedy: &'static str },
    #[error("{file} is not read: it has {metric} at {percent:.0} %, which no metric reaches; {remedy}")]
    Implausible { file: String, metric: String, percent: f64, remedy: &'static str },
    #[error("unknown format of {file}: {seen}. Known formats: {}", format::known())]
    Unknown { file: String, seen: String },
    #[error("cannot read {file} as a database: {source}; export it again with nsys export --type sqlite")]
    Database { file: String, source: rusqlite::Error },
    #[error("{file} has neither kernels nor ranges nor calls ({missing}); {remedy}")]
    NothingRecorded { file: String, missing: &'static str, remedy: &'static str },
    #[error("reading {file} requires {tool}: {what}; {remedy}")]
    Tool { file: String, tool: &'static str, what: String, remedy: String },
}

/// The remedy for reports that nsys skipped or left empty.
pub const RECORD_KERNELS: &str = "record with nsys profile -t cuda,nvtx and a version of nsys that matches the driver (llmprof-tui doctor \
     checks it); if the capture is limited to a range, check that the range is reached";

impl KernelsError {
    /// The same error for the file that the user named, instead of one converted from it.
    pub(super) fn of_file(self, name: &str) -> KernelsError {
        let name = name.to_owned();
        match self {
            KernelsError::Database { source, .. } => KernelsError::Database { file: name, source },
            KernelsError::NothingRecorded { missing, remedy, .. } => {
                KernelsError::NothingRecorded { file: name, missing, remedy }
            }
            other => other,
        }
    }

    pub fn read(file: &str) -> impl FnOnce(io::Error) -> KernelsError + '_ {
        move |source| KernelsError::Read { file: file.to_owned(), source }
    }
}
