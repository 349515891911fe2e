#![doc = include_str!("../README.md")]

pub mod chrome_trace;
pub mod report;
pub mod rundir;
pub mod state;
pub mod sweep;
