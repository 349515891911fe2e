//! llmprof: a live profiler for LLM inference.

pub mod event;
