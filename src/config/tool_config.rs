//! The settings of runs under Nsight Systems and Nsight Compute.

use serde::{Deserialize, Serialize};

use super::run_config::seconds;

/// The phase that a tool captures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolPhase {
    #[default]
    Decode,
    Prefill,
    Both,
}

/// A run under Nsight Systems.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NsysConfig {
    pub enable: bool,
    pub phase: ToolPhase,
    /// Measured requests; the phase of each is captured.
    pub requests: u32,
    /// APIs to trace (`nsys profile --trace`).
    pub trace: Vec<String>,
    /// Time limit of the run.
    #[serde(deserialize_with = "seconds")]
    pub timeout_s: f64,
    /// Additional options of `nsys profile`.
    pub extra: Vec<String>,
}

impl Default for NsysConfig {
    fn default() -> NsysConfig {
        NsysConfig {
            enable: false,
            phase: ToolPhase::Decode,
            requests: 1,
            trace: vec!["cuda".to_owned(), "nvtx".to_owned()],
            timeout_s: 600.0,
            extra: Vec::new(),
        }
    }
}

/// Runs under Nsight Compute, one for each kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NcuConfig {
    pub enable: bool,
    pub phase: ToolPhase,
    /// A file written by `kernels top`; null selects the kernels with the most time in the last table.
    pub kernels: Option<String>,
    /// Number of kernels.
    pub top_k: u32,
    /// Launches of a kernel to skip.
    pub launch_skip: u32,
    /// Launches of a kernel to profile after that.
    pub launch_count: u32,
    /// Null selects the metrics that the GPU supports.
    pub metrics: Option<Vec<String>>,
    /// A predefined set of ncu, used instead of `metrics`.
    pub set: Option<String>,
    pub replay: Replay,
    pub clock_control: ClockControl,
    /// Time limit of all runs together.
    #[serde(deserialize_with = "seconds")]
    pub timeout_s: f64,
    /// Additional options of `ncu`.
    pub extra: Vec<String>,
}

impl Default for NcuConfig {
    fn default() -> NcuConfig {
        NcuConfig {
            enable: false,
            phase: ToolPhase::Decode,
            kernels: None,
            top_k: 5,
            launch_skip: 0,
            launch_count: 3,
            metrics: None,
            set: None,
            replay: Replay::Kernel,
            clock_control: ClockControl::None,
            timeout_s: 900.0,
            extra: Vec::new(),
        }
    }
}

/// What ncu replays to collect further counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Replay {
    Kernel,
    Application,
}

/// Whether ncu locks the GPU clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClockControl {
    None,
    Base,
}

impl Replay {
    pub fn name(self) -> &'static str {
        match self {
            Replay::Kernel => "kernel",
            Replay::Application => "application",
        }
    }
}

impl ClockControl {
    pub fn name(self) -> &'static str {
        match self {
            ClockControl::None => "none",
            ClockControl::Base => "base",
        }
    }
}
