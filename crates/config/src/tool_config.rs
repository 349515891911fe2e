//! The settings of runs under Nsight Systems and Nsight Compute.

use serde::{Deserialize, Serialize};

use super::{
    numbers::seconds,
    tool_options::{NCU_OPTIONS, NSYS_OPTIONS, expected_option, is_metric, is_name},
};

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
    /// Additional options of `nsys profile`, each one of [`NSYS_OPTIONS`].
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

/// Runs under Nsight Compute, one per kernel.
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
    /// Additional options of `ncu`, each one of [`NCU_OPTIONS`].
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

/// A word that must not be part of a tool's command line.
pub(super) struct BadWord {
    pub(super) key: &'static str,
    pub(super) word: String,
    pub(super) expected: String,
}

impl BadWord {
    /// The first invalid word of `words`, with the expectation.
    fn first(
        key: &'static str,
        words: &[String],
        expected: impl Fn(&str) -> Option<String>,
    ) -> Option<BadWord> {
        let refused = |word: &String| Some(BadWord { key, expected: expected(word)?, word: word.clone() });
        words.iter().find_map(refused)
    }
}

impl NsysConfig {
    pub(super) fn bad_word(&self) -> Option<BadWord> {
        let api = |word: &str| (!is_name(word)).then(|| "the name of an API, such as cuda".to_owned());
        BadWord::first("profiling.nsys.trace", &self.trace, api).or_else(|| {
            BadWord::first("profiling.nsys.extra", &self.extra, |word| expected_option(NSYS_OPTIONS, word))
        })
    }
}

impl NcuConfig {
    pub(super) fn bad_word(&self) -> Option<BadWord> {
        let metric = |word: &str| (!is_metric(word)).then(|| "the name of a metric".to_owned());
        let set = |word: &str| (!is_name(word)).then(|| "the name of a set, such as full".to_owned());
        BadWord::first("profiling.ncu.metrics", self.metrics.as_deref().unwrap_or_default(), metric)
            .or_else(|| BadWord::first("profiling.ncu.set", self.set.as_slice(), set))
            .or_else(|| {
                BadWord::first("profiling.ncu.extra", &self.extra, |word| expected_option(NCU_OPTIONS, word))
            })
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
