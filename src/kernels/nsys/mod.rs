//! Files of Nsight Systems: summaries as CSV and JSON, and recordings as SQLite.

pub mod database;
pub mod ranges;
pub mod summary;

pub use database::read_database;
pub use summary::{is_header, read_csv, read_json};
