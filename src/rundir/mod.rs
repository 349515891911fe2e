//! A run on disk: its layout, how it is recorded, read back and played.

mod environment;
mod layout;
mod player;
mod reader;
mod recorder;
mod token_line;

pub use environment::Environment;
pub use layout::{RunDir, RunEntry, RunResult, list_runs};
pub use player::{Player, Position};
pub use reader::{EventReader, Next, ReadError};
pub use recorder::Recorder;
