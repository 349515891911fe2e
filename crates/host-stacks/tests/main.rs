//! Real Python programs, sampled from outside.

mod common;
mod faults;
mod processes;
