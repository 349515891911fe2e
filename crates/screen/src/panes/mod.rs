//! The panes, each a pure function of the view.

pub(crate) mod compare;
mod evidence;
pub(crate) mod gpu;
mod headlines;
mod histogram;
mod host;
mod jobs;
pub(crate) mod kernels;
mod lanes;
pub(crate) mod lines;
pub(crate) mod log;
pub(crate) mod overview;
pub(crate) mod ranks;
pub(crate) mod roofline;
pub(crate) mod runs;
pub(crate) mod server;
mod streams;
mod tiles;
mod token_window;
pub(crate) mod tokens;
pub(crate) mod why;

pub use compare::{ComparePane, ROWS as SNAPSHOT_ROWS, side_by_side, unjudged_rows};
pub use evidence::evidence;
pub use gpu::{GpuPane, rows as gpu_rows};
pub use headlines::{Rate, headline};
pub use kernels::{KernelsPane, extent as kernels_extent, rows as kernel_rows};
pub use log::{LogPane, matching as log_lines};
pub use overview::{OverviewPane, shows_trust as overview_shows_trust, verdict_text};
pub use ranks::RanksPane;
pub use roofline::RooflinePane;
pub use runs::{RunsPane, list as runs_list};
pub use server::ServerPane;
pub use token_window::TokenWindow;
pub use tokens::TokensPane;
pub use why::{WhyPane, extent as why_extent};
