//! A run on disk: its layout, how it is recorded, read back, played, and reported.

mod environment;
mod layout;
mod player;
mod reader;
mod recorder;
mod report;
mod roofline_svg;

pub use environment::Environment;
pub use layout::{RunDir, RunEntry, RunResult, list_runs};
pub use player::{Player, Position};
pub use reader::{EventReader, Next, ReadError};
pub use recorder::Recorder;
pub use report::{kernels_text, metrics_json, report_md, run_json, verdict_of};
pub use roofline_svg::roofline_svg;
