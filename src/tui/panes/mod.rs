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
mod stretch;
mod tokens;
mod verdict;

pub use compare::{ComparePane, ROWS as SNAPSHOT_ROWS, besides, side_by_side};
pub use evidence::evidence;
pub use gpu::{GpuPane, rows as gpu_rows};
pub use kernels::{KernelsPane, extent as kernels_extent, rows as kernel_rows};
pub use log::{LogPane, matching as log_lines};
pub use overview::{OverviewPane, headline, verdict_words};
pub use roofline::RooflinePane;
pub use runs::{RunsPane, first_row as first_run_row};
pub use stretch::Stretch;
pub use tokens::TokensPane;
