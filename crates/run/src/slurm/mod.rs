//! Slurm: the script of a job array, its commands with time limits, and their output.

mod answers;
mod commands;
mod error;
mod script;
mod state;

pub use answers::{
    QueuedTask, TaskEnd, parse_accounting, parse_commands, parse_control, parse_max_array_size, parse_queue,
    parse_submitted,
};
pub use commands::Slurm;
pub use error::SlurmError;
pub use script::{Script, ScriptError, folder_of};
pub use state::{ExitCode, TaskState, waiting_reason};
