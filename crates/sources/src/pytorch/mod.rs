//! Models in PyTorch: a Python process of the user's environment runs requests and reports them, and this room turns
//! its reports into events.
//!
//! The process runs `worker.py`, a file of this program. Times are those of the worker's clock, which both processes
//! share (`CLOCK_MONOTONIC`), so communication between them is not part of a latency.

mod environment;
mod operators;
mod protocol;
mod trouble;
mod worker;

pub use environment::{Interpreter, command};
pub use protocol::{ProfileOrder, Setup};
pub use trouble::WorkerError;
pub use worker::{Worker, WorkerPlan};

/// Parsers of the worker's reports, for fuzzing.
pub mod parts {
    pub use super::protocol::parse;
}
