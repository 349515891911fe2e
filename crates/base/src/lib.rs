#![doc = include_str!("../README.md")]

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
