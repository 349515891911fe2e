#![doc = include_str!("../README.md")]

pub mod attach;
pub mod fleet;
pub mod pytorch;
pub mod server;
pub mod sim;
pub mod telemetry;
