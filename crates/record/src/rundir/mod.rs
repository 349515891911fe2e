//! Run directories: their layout, and how runs are recorded, read and replayed.

mod age;
mod environment;
mod find;
mod following;
mod layout;
mod listing;
mod loss;
mod player;
mod reader;
mod recorded;
mod recorder;
mod timed_file;
mod token_line;

pub use age::LATEST;
pub use environment::Environment;
pub use find::{FindError, find_run};
pub use following::Following;
pub use layout::{
    Judged, JudgedCause, MAX_SNAPSHOT_NAME, NoNewDir, RunDir, RunEntry, RunKind, RunResult, TrustScore,
    Verdict, comparisons_dir, snapshot_file,
};
pub use listing::{Listing, list_runs};
pub use loss::Loss;
pub use player::{Player, Position, SPEEDS};
pub use reader::{DISK_TIMEOUT, EventReader, Next, ReadError};
pub use recorded::{Recorded, RecordedError, RecordedKind, RunName, RunNameError};
pub use recorder::Recorder;
