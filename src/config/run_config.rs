//! The resolved configuration of one run, typed.

use std::fmt;

use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize};

/// Everything a run needs to know. `conf/` and the overrides compose to exactly this.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    #[serde(deserialize_with = "text_or_scalar")]
    pub experiment: String,
    pub model: ModelConfig,
    pub dataset: DatasetConfig,
    pub runtime: RuntimeConfig,
    pub infer: InferConfig,
    pub hardware: HardwareConfig,
    pub telemetry: TelemetryConfig,
    pub profiling: ProfilingConfig,
    pub output: OutputConfig,
    /// Hydra's own configuration: it is not part of the job's, and not written with it.
    #[serde(skip_serializing)]
    pub hydra: HydraConfig,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    #[serde(deserialize_with = "text_or_scalar")]
    pub name: String,
    /// Repository on the Hugging Face hub the shape was taken from.
    pub hub: Option<String>,
    pub dtype: Dtype,
    /// Where weights come from; `synthetic` draws random ones of the true shape.
    pub weights: Weights,
    /// A `config.json` to read the shape from instead of `arch`.
    pub config_json: Option<String>,
    /// The shape, in the words of a Hugging Face `config.json`.
    pub arch: serde_json::Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    F32,
    F16,
    Bf16,
}

impl Dtype {
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Weights {
    Synthetic,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetConfig {
    #[serde(deserialize_with = "text_or_scalar")]
    pub name: String,
    /// Random prompts of this many tokens.
    pub prompt_tokens: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuntimeConfig {
    pub name: Runtime,
    /// `auto`, `cpu`, `cuda:0`, …
    pub device: String,
    /// Worker threads of the CPU engine; null takes one for each core.
    pub threads: Option<u32>,
    pub batch_size: u32,
    /// Requests before measuring begins.
    pub warmup: u32,
    /// Measured requests.
    pub requests: u32,
    pub seed: u64,
    pub sim: SimConfig,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Runtime {
    Candle,
    Sim,
}

/// The simulated engine: seeded, with a clock of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimConfig {
    pub prefill_tok_s: f64,
    pub itl_ms: f64,
    /// Relative spread of ITL.
    pub jitter: f64,
    /// Simulated seconds per real second; 0 runs as fast as it can.
    pub speed: f64,
    /// The script of things that go wrong; see `llmprof::scenario`.
    pub scenario: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InferConfig {
    /// Tokens generated for each sequence; EOS is ignored so that lengths are what was asked.
    pub max_new_tokens: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HardwareConfig {
    pub device_index: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TelemetryConfig {
    pub probe: Probe,
    /// Script for the simulated probe; null follows `runtime.sim.scenario`.
    pub scenario: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Probe {
    /// NVML where there is a driver; simulated beside a simulated engine.
    Auto,
    Nvml,
    Sim,
    None,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfilingConfig {
    pub nvml: SamplerConfig,
    pub host: SamplerConfig,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplerConfig {
    pub enable: bool,
    pub interval_ms: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputConfig {
    /// Keep the run on disk.
    pub record: bool,
    /// Longest time an event waits in memory before it is on its way to disk.
    pub flush_ms: u32,
    pub tui: TuiConfig,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TuiConfig {
    pub fps: u32,
    pub theme: ThemeName,
    /// Draw with ASCII alone; null asks the locale.
    pub ascii: Option<bool>,
    pub mouse: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThemeName {
    Dark,
    Light,
    HighContrast,
    NoColour,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HydraConfig {
    pub run: HydraRun,
    pub job: HydraJob,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HydraRun {
    pub dir: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HydraJob {
    #[serde(deserialize_with = "text_or_scalar")]
    pub name: String,
}

/// Reads a name that may look like a number or a flag, as in `experiment=42`.
fn text_or_scalar<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    struct TextOrScalar;

    impl Visitor<'_> for TextOrScalar {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
            f.write_str("a string")
        }

        fn visit_str<E: Error>(self, value: &str) -> Result<String, E> {
            Ok(value.to_owned())
        }

        fn visit_bool<E: Error>(self, value: bool) -> Result<String, E> {
            Ok(value.to_string())
        }

        fn visit_i64<E: Error>(self, value: i64) -> Result<String, E> {
            Ok(value.to_string())
        }

        fn visit_u64<E: Error>(self, value: u64) -> Result<String, E> {
            Ok(value.to_string())
        }

        fn visit_f64<E: Error>(self, value: f64) -> Result<String, E> {
            Ok(value.to_string())
        }
    }

    deserializer.deserialize_any(TextOrScalar)
}
