//! The resolved configuration of one run, typed.

use std::{fmt, num::NonZeroU32, path::PathBuf};

use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::{Deserialize, Serialize};

use super::tool_config::{NcuConfig, NsysConfig};

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
    /// `synthetic` draws random ones of the true shape; a path is loaded, and brings its own shape.
    pub weights: Weights,
    /// Make plain numbers of `dtype` from a GGUF file's quantised blocks.
    #[serde(default)]
    pub dequantize: bool,
    /// A `config.json` to read the shape from instead of `arch` or what lies beside the weights.
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

/// Where weights come from, written as `synthetic` or as a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Weights {
    Synthetic,
    /// A directory with safetensors, a safetensors file or a GGUF file.
    Path(PathBuf),
}

impl TryFrom<String> for Weights {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match text.as_str() {
            "synthetic" => Ok(Weights::Synthetic),
            text if text.trim().is_empty() => Err("expected synthetic or a path"),
            text => Ok(Weights::Path(text.into())),
        }
    }
}

impl From<Weights> for String {
    fn from(weights: Weights) -> String {
        match weights {
            Weights::Synthetic => "synthetic".to_owned(),
            Weights::Path(path) => path.to_string_lossy().into_owned(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetConfig {
    #[serde(deserialize_with = "text_or_scalar")]
    pub name: String,
    /// Random prompts of this many tokens; of given prompts, the most one may have.
    pub prompt_tokens: u32,
    /// Texts rather than random tokens.
    #[serde(default)]
    pub prompts: Option<PromptsConfig>,
    /// Which of the texts are taken, in which order; null takes all as they come.
    #[serde(default)]
    pub sampling: Option<DatasetSampling>,
}

/// A choice among the texts of a dataset, drawn by `runtime.seed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetSampling {
    /// Passes through the texts.
    pub num_epochs: u32,
    /// Texts of each pass; null takes all.
    pub num_samples_per_epoch: Option<u64>,
    /// Whether each pass has an order of its own; else all have the file's.
    pub randomize: bool,
    /// A file that names the samples to choose from, one a line; null chooses from all.
    pub subset_filelist: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptsConfig {
    /// One JSON object a line, or a `.json` file with a list of them; `text::prompts` tells which.
    pub file: String,
    /// Wrap each prompt in the model's chat template, where it has one.
    pub chat: bool,
    /// Shorten a prompt of more than `prompt_tokens` tokens; otherwise it is refused.
    #[serde(default)]
    pub truncate: bool,
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
    /// On a GPU, a decode step is launched as one CUDA graph rather than kernel by kernel.
    #[serde(default = "yes")]
    pub cuda_graphs: bool,
    /// Requests before measuring begins.
    pub warmup: u32,
    /// Measured requests; null makes one of each text that `dataset.sampling` takes.
    pub requests: Option<u32>,
    pub seed: u64,
    /// Go on after the last request until this holds.
    #[serde(default)]
    pub until: Option<Until>,
    /// But no longer than this.
    #[serde(default = "until_max_s", deserialize_with = "seconds")]
    pub until_max_s: f64,
    pub sim: SimConfig,
}

/// What a run may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Until {
    /// Temperature and clock of the GPU have come to rest.
    Steady,
}

fn until_max_s() -> f64 {
    900.0
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Runtime {
    /// Our own decoder.
    Candle,
    /// candle-transformers' models as they are.
    CandleStock,
    Sim,
    /// Nothing of ours: the GPU is looked at while others use it.
    Watch,
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
    /// Tokens generated for each sequence, at most.
    pub max_new_tokens: u32,
    /// Go on past the end-of-text token, so that lengths are what was asked.
    #[serde(default = "yes")]
    pub ignore_eos: bool,
    /// Draw the next token; otherwise the likeliest is taken.
    #[serde(default)]
    pub do_sample: bool,
    /// Above one evens the odds of a draw out, below one sharpens them.
    #[serde(default = "one", deserialize_with = "above_zero")]
    pub temperature: f64,
    /// Draw among this many of the likeliest tokens; null draws among all.
    #[serde(default)]
    pub top_k: Option<NonZeroU32>,
    /// Draw among the fewest likeliest tokens that together have this probability.
    #[serde(default = "one", deserialize_with = "share")]
    pub top_p: f64,
    /// No sequence of this many tokens comes twice; 0 lets them.
    #[serde(default)]
    pub no_repeat_ngram_size: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HardwareConfig {
    pub device_index: u32,
    /// Rest between two jobs of a sweep, at least.
    #[serde(deserialize_with = "seconds")]
    pub cooldown_s: f64,
    /// The rest lasts until the GPU is below this; null looks at the time alone.
    pub cooldown_until_c: Option<f64>,
    /// A GPU that does not get there in this time is worked with as it is.
    #[serde(deserialize_with = "seconds")]
    pub cooldown_max_s: f64,
    /// The power limit that the GPU should have. It is compared, never set.
    pub expected_power_limit_w: Option<f64>,
    pub isolation: IsolationConfig,
    pub peaks: PeaksConfig,
}

impl Default for HardwareConfig {
    fn default() -> HardwareConfig {
        HardwareConfig {
            device_index: 0,
            cooldown_s: 0.0,
            cooldown_until_c: None,
            cooldown_max_s: 300.0,
            expected_power_limit_w: None,
            isolation: IsolationConfig::default(),
            peaks: PeaksConfig::default(),
        }
    }
}

/// What the device can do at most, for MFU, MBU and the roofline; null takes what is known of the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PeaksConfig {
    /// Dense operations a second of `model.dtype`.
    pub flops: Option<f64>,
    /// Bytes a second of its memory.
    pub bytes_per_s: Option<f64>,
}

/// Whether others use the machine when a run begins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IsolationConfig {
    pub check: bool,
    /// More than this share of all cores in other processes is told.
    pub max_other_cpu_pct: f64,
}

impl Default for IsolationConfig {
    fn default() -> IsolationConfig {
        IsolationConfig { check: true, max_other_cpu_pct: 20.0 }
    }
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
    pub nvml: NvmlConfig,
    pub host: SamplerConfig,
    /// Operators timed on the host.
    #[serde(default)]
    pub operators: ToolConfig,
    /// Kernels as they run.
    #[serde(default)]
    pub cupti: ToolConfig,
    #[serde(default)]
    pub nvtx: NvtxConfig,
    /// The run under Nsight Systems.
    #[serde(default)]
    pub nsys: NsysConfig,
    /// The run under Nsight Compute.
    #[serde(default)]
    pub ncu: NcuConfig,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolConfig {
    pub enable: bool,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvtxConfig {
    pub detail: NvtxDetail,
}

/// What gets an NVTX range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NvtxDetail {
    /// Requests, prefill, decode and its steps.
    #[default]
    Phase,
    /// Layers too.
    Layer,
    /// Layers and their operators too.
    Op,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplerConfig {
    pub enable: bool,
    pub interval_ms: u32,
}

/// How often GPUs are looked at. What is dear is read less often.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmlConfig {
    pub enable: bool,
    /// Clocks, power, use, temperature, memory, clock event reasons.
    pub interval_ms: u32,
    /// Activity of SMs, tensor pipe and memory, on Hopper and newer; they cannot be read more often than every 100 ms.
    #[serde(default = "gpm_interval_ms")]
    pub gpm_interval_ms: u32,
    /// Throttle and energy counters, processes, fan, PCIe, ECC, limits.
    #[serde(default = "slow_interval_ms")]
    pub slow_interval_ms: u32,
}

fn gpm_interval_ms() -> u32 {
    200
}

fn slow_interval_ms() -> u32 {
    2000
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputConfig {
    /// Keep the run on disk.
    pub record: bool,
    /// Longest time an event waits in memory before it is on its way to disk.
    pub flush_ms: u32,
    /// Write the run as a trace for Chrome and Perfetto too.
    #[serde(default = "yes")]
    pub trace: bool,
    #[serde(default)]
    pub predictions: PredictionsConfig,
    pub tui: TuiConfig,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PredictionsConfig {
    /// Keep what the model answered, as text.
    pub enable: bool,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThemeName {
    #[default]
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

fn yes() -> bool {
    true
}

fn one() -> f64 {
    1.0
}

pub(super) fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    checked(deserializer, |x| (0.0..=1e9).contains(&x), "a number of seconds, 0 or more")
}

fn above_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    checked(deserializer, |x| x > 0.0, "a number above 0")
}

fn share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    checked(deserializer, |x| x > 0.0 && x <= 1.0, "a number above 0, at most 1")
}

fn checked<'de, D: Deserializer<'de>>(
    deserializer: D,
    holds: fn(f64) -> bool,
    wanted: &'static str,
) -> Result<f64, D::Error> {
    let x = f64::deserialize(deserializer)?;
    match x.is_finite() && holds(x) {
        true => Ok(x),
        false => Err(D::Error::invalid_value(Unexpected::Float(x), &wanted)),
    }
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
