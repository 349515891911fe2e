//! What runs under Nsight Systems and Nsight Compute are asked to do.

use serde::{Deserialize, Serialize};

use super::run_config::seconds;

/// What of a run a tool looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolPhase {
    #[default]
    Decode,
    Prefill,
    Both,
}

/// The run under Nsight Systems.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NsysConfig {
    pub enable: bool,
    pub phase: ToolPhase,
    /// Measured requests of that run; the phase of each is captured.
    pub requests: u32,
    /// What nsys traces.
    pub trace: Vec<String>,
    /// It is ended when it takes longer.
    #[serde(deserialize_with = "seconds")]
    pub timeout_s: f64,
    /// More options of `nsys profile`.
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

/// The runs under Nsight Compute, one for each kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NcuConfig {
    pub enable: bool,
    pub phase: ToolPhase,
    /// A list that `kernels top` wrote; null takes the longest kernels of the last table.
    pub kernels: Option<String>,
    /// So many of them.
    pub top_k: u32,
    /// Launches of a kernel that are let pass, and that are looked at then.
    pub launch_skip: u32,
    pub launch_count: u32,
    /// Null asks for what suits the chip.
    pub metrics: Option<Vec<String>>,
    /// A set of ncu's own in place of metrics.
    pub set: Option<String>,
    pub replay: Replay,
    pub clock_control: ClockControl,
    /// All runs together are ended when they take longer.
    #[serde(deserialize_with = "seconds")]
    pub timeout_s: f64,
    /// More options of `ncu`.
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

/// What is done again for the next counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Replay {
    Kernel,
    Application,
}

/// Whether ncu holds the clocks.
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
