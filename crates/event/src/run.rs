//! A run from its configuration to its outcome, and its log.

use serde::{Deserialize, Serialize};

use super::{Device, Stamp, WorkKind};
use llm_cost::Shape;
use llmprof_base::table::Tone;

/// The first event of every recording: the configuration of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunStarted {
    pub schema: u32,
    pub program: String,
    pub started_unix_ms: u64,
    pub experiment: String,
    pub model: String,
    pub dtype: String,
    #[serde(rename = "engine")]
    pub kind: WorkKind,
    pub device: Device,
    /// The weights are random numbers in the model's shape, not trained ones.
    pub synthetic_weights: bool,
    /// Time is simulated; nothing was measured.
    pub simulated: bool,
    pub parameters: u64,
    pub weight_bytes: u64,
    /// The part of the weights that a decode step reads: without an embedding table that is only indexed, and without
    /// experts that are not selected. Absent if that depends on the tokens.
    pub step_weight_bytes: Option<u64>,
    /// Bytes a decode step reads per sequence and position of context.
    pub kv_bytes_per_position: u64,
    /// Measured requests, without warm-up.
    pub requests: u32,
    pub warmup: u32,
    pub batch: u32,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    pub seed: u64,
    pub overrides: Vec<String>,
    /// The model's shape, from which its cost is computed, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Box<Shape>>,
    /// Peak rates of the device that the user configured.
    #[serde(default, skip_serializing_if = "GivenPeaks::is_empty")]
    pub peaks: GivenPeaks,
    /// The command of another program that is followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The SLOs, if the run load-tests a server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo: Option<super::Slo>,
    /// The price of an hour of the GPU, in the user's currency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_hour: Option<f64>,
    /// The tool under which the run was made, whose overhead is part of every measured time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perturbed: Option<String>,
}

/// Peak rates that the user configured. They take precedence over the table of known GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct GivenPeaks {
    /// FLOP/s of the type in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flops: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<f64>,
}

impl GivenPeaks {
    pub fn is_empty(&self) -> bool {
        self.flops.is_none() && self.bytes_per_s.is_none()
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Preparing {
    pub step: String,
    pub done: u64,
    pub total: u64,
}

/// The progress of a long prefill, if the engine reports its layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefillProgress {
    /// The layer that is being computed, from 0.
    pub layer: u16,
    pub layers: u16,
}

/// The engine can take requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    pub prepare_ms: f64,
}

/// The process was stopped for a part of the time from `since` to this event, and did nothing else in that time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStopped {
    pub since: Stamp,
}

/// Overhead of the profiler itself over the last second or so.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ObserverSample {
    /// CPU time of the consumer (recording, folding, drawing) in percent of one core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer_pct: Option<f32>,
    /// Mean time per frame, if any was drawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frame_ms: Option<f32>,
    /// Events waiting in the channel.
    pub backlog: u64,
    /// Total number of events that are missing on disk.
    pub lost: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotTaken {
    pub name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Info,
    Warn,
    Error,
}

/// A line for the Log pane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    pub level: Level,
    /// The part of the program that reports it: "engine", "gpu", "recorder", …
    pub source: String,
    pub text: String,
}

/// The sources of a program's output.
pub const OUTPUT: [&str; 2] = ["stdout", "stderr"];

impl Notice {
    /// Whether another program printed it.
    pub fn is_output(&self) -> bool {
        OUTPUT.contains(&self.source.as_str())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Completed,
    Interrupted,
    Failed,
}

impl Outcome {
    pub fn tone(self) -> Tone {
        match self {
            Outcome::Completed => Tone::Good,
            Outcome::Interrupted => Tone::Warn,
            Outcome::Failed => Tone::Bad,
        }
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Outcome::Completed => "completed",
            Outcome::Interrupted => "interrupted",
            Outcome::Failed => "failed",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFinished {
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}
