//! What every room may use: units, plain-text tables, CSV, markup, untrusted text, files without links,
//! limited reading, gzip, shell words, secrets, seeded noise, CPU time of a thread. Uses no other room.

pub mod build;
pub mod cpu_time;
pub mod csv;
pub mod dir;
pub mod foreign;
pub mod gz;
pub mod markup;
pub mod own_children;
pub mod png;
pub mod process;
pub mod read;
pub mod secret;
pub mod shell;
pub mod table;
pub mod tools;
pub mod units;
pub mod user_data;

pub use llmprof_statistics::noise;
