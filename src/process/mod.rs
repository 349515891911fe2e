//! The process around the work: signals, panics, the log file and stderr.

pub mod crash;
pub mod logfile;
pub mod shutdown;

use std::{
    fmt::Display,
    io::{self, Write},
};

use crate::base::foreign::{Lines, message};

/// Prints one line to stderr, whatever is in it: paths and messages may be of others. Unlike `eprintln!` it does not panic
/// when stderr is closed: a run goes on without a reader.
pub fn eprint_line(text: impl Display) {
    eprint_lines(message(&text.to_string()));
}

/// Prints a text of several lines to stderr.
pub fn eprint_lines(text: impl Display) {
    // One write: lines of several threads do not mix.
    let _ = io::stderr().write_all(format!("{}\n", Lines(text)).as_bytes());
}
