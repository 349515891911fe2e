//! What is missing from a recording.

use thiserror::Error;

/// Why a run is not on disk, or not completely.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Loss {
    #[error("the run was not recorded: {0}")]
    NotRecorded(String),
    #[error("{lines} lines of the recording were lost: {cause}")]
    Lines { lines: u64, cause: String },
    /// A file next to the recording.
    #[error("could not be written: {0}")]
    File(String),
}
