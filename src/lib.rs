//! llmprof: a live profiler for LLM inference.
//!
//! ```text
//! engine (own thread)    ┐
//! telemetry (own thread) ┴─ EventTx ─► session ─► rundir::Recorder ─► events.ndjson, nvml.csv
//!                                             └─► state::RunState ─► tui panes, reports
//! rundir::Player: events.ndjson ─────────────────► state::RunState ─► the same panes
//! ```
//!
//! - [`event`]: the vocabulary all parts share; [`state`] folds it, [`rundir`] keeps and replays it
//! - [`readings`], [`reasons`]: what can be read of a GPU, and what its clock event bits mean
//! - [`config`]: `conf/` and overrides become one [`config::RunConfig`]; [`model`]: what a model is
//! - [`text`]: prompts become token ids, token ids text; [`inputs`]: a run's weights, tokenizer and prompts, checked
//! - [`engine`]: runs the model; [`telemetry`]: reads the GPU and the host; [`scenario`]: scripts both in simulation
//! - [`analysis`]: from numbers to meaning, pure
//! - [`assets`]: models, datasets and reference sources on disk: links, downloads, pins, variants
//! - [`plan`]: a run that was looked at and can be started; [`support`]: what of it this version does not do
//! - [`session`]: one live run, the only place that starts and stops work; [`headless`] and [`tui`] show it
//! - [`sweep`]: several runs from one command line, one after another
//! - [`cost`]: what a model would do on a card, from its shape alone
//! - [`diagnose`]: ledger and verdict of what was recorded; [`compare`]: whether one run is better than another
//! - [`report`]: a run in documents, pictures and numbers, from its state alone
//! - [`kernels`]: kernels as they run, and as nsys, ncu and cuBLAS wrote them; [`listener`]: what the engine tells of itself
//! - [`operator_clock`]: operators timed on the host; [`heap`]: what memory they take; [`chrome_trace`]: a run over time, for
//!   Perfetto and Chrome
//! - [`rerun`]: a run done again under nsys or ncu, by a child of this program; [`tools`]: where such programs are, and how they
//!   are run
//! - [`doctor`]: what works on this machine, and what looking at it costs
//! - [`cli`]: the commands; [`completion`]: what a shell offers at TAB; [`crash`], [`shutdown`], [`logfile`],
//!   [`observer`]: what a program needs around its work

pub mod analysis;
pub mod assets;
pub mod base;
pub mod chrome_trace;
pub mod cli;
pub mod compare;
pub mod config;
pub mod doctor;
pub mod engine;
pub mod event;
pub mod kernels;
pub mod model;
pub mod process;
pub mod profile;
pub mod report;
pub mod run;
pub mod rundir;
pub mod sim;
pub mod state;
pub mod telemetry;
pub mod text;
pub mod tools;
pub mod tui;
