//! The process around the work: signals, panics and the log file.

pub mod crash;
pub mod logfile;
pub mod shutdown;
