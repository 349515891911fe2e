//! llmprof: a live profiler for LLM inference.
//!
//! ```text
//! engine (own thread)    ┐
//! telemetry (own thread) ┴─ EventTx ─► run::session ─► rundir::Recorder ─► events.ndjson, nvml.csv
//!                                                  └─► state::RunState ─► tui panes, reports
//! rundir::Player: events.ndjson ──────────────────────► state::RunState ─► the same panes
//! ```
//!
//! The program is [`cli`]. Everything else is in the crates below `crates/`, which this library names by their rooms;
//! `ARCHITECTURE.md` lists what each may use.

pub mod cli;

pub use gpu_traces as kernels;
pub use llm_cost as model;
pub use llmprof_analysis as analysis;
pub use llmprof_app as app;
pub use llmprof_base as base;
pub use llmprof_base::{process, tools};
pub use llmprof_config as config;
pub use llmprof_engine as engine;
pub use llmprof_engine::profile;
pub use llmprof_event as event;
pub use llmprof_record::{chrome_trace, report, rundir, state, sweep};
pub use llmprof_run as run;
pub use llmprof_run::{assets, compare, doctor, remote, slurm};
pub use llmprof_screen as tui;
pub use llmprof_sources::{attach, fleet, pytorch, server, sim, telemetry};
pub use llmprof_workload as workload;
