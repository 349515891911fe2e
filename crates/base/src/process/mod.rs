//! The process around the work: signals, panics, the log file, stdout and stderr.

pub mod abort;
pub mod browser;
pub mod crash;
pub mod logfile;
pub mod outlet;
pub mod output;
pub mod shutdown;
pub mod stops;

pub use self::{
    outlet::Outlet,
    output::{BELL, eprint_line, eprint_lines, ring_stderr},
};
