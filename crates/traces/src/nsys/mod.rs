//! Files of Nsight Systems: reports as text, CSV and JSON, and recordings as SQLite.

pub mod database;
mod header;
mod layout;
pub mod ranges;
mod report;
pub mod summary;
mod trace;

pub use database::{read_database, read_ranks};
pub use header::is_graph_launch;
pub use layout::{is_layout, read_layout};
pub use summary::{is_report, read_csv, read_json};
