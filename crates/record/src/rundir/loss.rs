//! Losses of the recording of a run.

use std::{fmt, path::PathBuf};

/// A loss of the recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loss {
    /// The directory or the files could not be created.
    NotRecorded { reason: String },
    /// Lines could not be written.
    Lines { lost: u64, reason: String },
    /// The directory was moved or deleted while the run was recorded.
    Displaced { dir: PathBuf },
    /// Events arrived faster than they could be processed.
    Events { lost: u64 },
    /// A loss that a remote host reported for its run, with its message.
    There { words: String },
    /// A file other than the events could not be written.
    File { reason: String },
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::NotRecorded { reason } => write!(f, "the run was not recorded: {reason}"),
            Loss::Lines { lost, reason } => write!(f, "{lost} lines of the recording were lost: {reason}"),
            Loss::Displaced { dir } => {
                write!(
                    f,
                    "{} was moved or deleted during the run: it does not contain the recording",
                    dir.display()
                )
            }
            Loss::Events { lost } => write!(
                f,
                "{lost} events were lost: they came faster than they could be recorded; the disk or the machine is too slow"
            ),
            Loss::There { words } => f.write_str(words),
            Loss::File { reason } => write!(f, "could not be written: {reason}"),
        }
    }
}
