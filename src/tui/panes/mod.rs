//! The panes, each a pure function of the view.

mod compare;
mod evidence;
mod gpu;
mod host;
mod jobs;
mod kernels;
mod lanes;
mod log;
mod overview;
mod roofline;
mod runs;
mod tokens;
mod verdict;

pub use compare::ComparePane;
pub use evidence::evidence;
pub use gpu::{GpuPane, rows as gpu_rows};
pub use kernels::{KernelsPane, extent as kernels_extent};
pub use log::LogPane;
pub use overview::OverviewPane;
pub use roofline::RooflinePane;
pub use runs::{RunsPane, first_row as first_run_row};
pub use tokens::TokensPane;
