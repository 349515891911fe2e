//! llmprof: a live profiler for LLM inference.
//!
//! ```text
//! engine (own thread)    ┐
//! telemetry (own thread) ┴─ EventTx ─► run::session ─► rundir::Recorder ─► events.ndjson, nvml.csv
//!                                                  └─► state::RunState ─► tui panes, reports
//! rundir::Player: events.ndjson ──────────────────────► state::RunState ─► the same panes
//! ```
//!
//! - [`base`], [`process`], [`tools`]: units and tables; signals, panics, log file; other programs
//! - [`config`]: `conf/` and overrides become one [`config::RunConfig`]
//! - [`model`]: the shape of a model and its cost; [`text`]: prompts to token ids and back
//! - [`event`]: the vocabulary all rooms share; [`state`] folds it; [`rundir`] records and replays it
//! - [`engine`] runs a model; [`profile`] observes it; [`telemetry`] samples the GPU and the host; [`sim`] simulates both
//! - [`pytorch`] runs models in a Python process; [`attach`] follows other programs; [`server`] puts load on servers and reads their metrics
//! - [`analysis`]: from numbers to meaning, pure; [`kernels`]: files of other profilers
//! - [`run`]: plans, sessions, sweeps and re-runs under tools: the only place that starts and stops work; [`slurm`]: its commands
//! - [`report`], [`chrome_trace`]: documents and traces of a run; [`compare`]: verdicts on two runs
//! - [`assets`]: models and datasets on disk; [`doctor`]: checks of this machine
//! - [`fleet`]: many GPUs, read from Prometheus: which are slow among peers, since when, why
//! - [`tui`]: the screen; [`cli`]: the commands
//!
//! `ARCHITECTURE.md` lists what each room may use.

pub mod analysis;
pub mod assets;
pub mod attach;
pub mod base;
pub mod chrome_trace;
pub mod cli;
pub mod compare;
pub mod config;
pub mod doctor;
pub mod engine;
pub mod event;
pub mod fleet;
pub mod kernels;
pub mod model;
pub mod process;
pub mod profile;
pub mod pytorch;
pub mod remote;
pub mod report;
pub mod run;
pub mod rundir;
pub mod server;
pub mod sim;
pub mod slurm;
pub mod state;
pub mod telemetry;
pub mod text;
pub mod tools;
pub mod tui;
