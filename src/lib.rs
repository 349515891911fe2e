//! llmprof: a live profiler for LLM inference.

pub mod config;
pub mod engine;
pub mod event;
pub mod noise;
pub mod reasons;
pub mod scenario;
pub mod telemetry;
