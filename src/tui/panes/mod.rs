//! The panes, each a pure function of the view.

mod compare;
mod gpu;
mod jobs;
mod log;
mod overview;
mod runs;
mod tokens;

pub use compare::ComparePane;
pub use gpu::GpuPane;
pub use log::LogPane;
pub use overview::OverviewPane;
pub use runs::{RunsPane, first_row as first_run_row};
pub use tokens::TokensPane;
