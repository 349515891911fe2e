//! The process around the work: signals, panics, the log file and stderr.

pub mod crash;
pub mod logfile;
pub mod shutdown;

use std::{
    fmt::Display,
    io::{self, Write},
};

use crate::base::foreign::Lines;

/// Prints a line to stderr. Unlike `eprintln!` it does not panic when stderr is closed: a run goes on without a reader.
pub fn eprint_line(line: impl Display) {
    // One write: lines of several threads do not mix.
    let _ = io::stderr().write_all(format!("{}\n", Lines(line)).as_bytes());
}
