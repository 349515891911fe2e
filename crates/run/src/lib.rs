#![doc = include_str!("../README.md")]

pub mod assets;
pub mod child;
pub mod compare;
pub mod doctor;
pub mod dtype;
mod engine_settings;
pub mod headless;
pub mod inputs;
mod metrics_endpoint;
pub mod observer;
pub mod plan;
pub mod probes;
mod progress;
pub mod progress_line;
pub mod pytorch_plan;
pub mod remote;
pub mod rerun;
mod server_plan;
pub mod session;
pub mod slurm;
pub mod speculation;
pub mod support;
pub mod sweep;
pub mod time_left;
pub mod work;
