//! llmprof: a live profiler for LLM inference.

pub mod config;
pub mod event;
