//! The panes, each a pure function of the view.

pub(crate) mod compare;
pub(crate) mod evidence;
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
