//! The typed, resolved configuration of one run.

use std::{num::NonZeroU32, path::PathBuf};

use hydra_config::{HydraConfig, json_value, text_or_scalar};
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize, Serializer};

use llm_cost::{Dtype, KvCacheDtype, PreprocessConfig};

use super::{
    dtype_choice::DtypeChoice,
    numbers::{above_zero, optional_seconds, probability, seconds},
    pytorch_config::{ImagesConfig, PytorchConfig, TorchConfig},
    server_config::{LoadConfig, ServerConfig, SloConfig},
    tool_config::{NcuConfig, NsysConfig},
};

/// The configuration of a run, composed from `conf/` and the overrides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    #[serde(deserialize_with = "text_or_scalar")]
    pub experiment: String,
    pub model: ModelConfig,
    /// The draft model: `+model@draft=NAME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft: Option<ModelConfig>,
    pub dataset: DatasetConfig,
    pub runtime: RuntimeConfig,
    pub infer: InferConfig,
    pub hardware: HardwareConfig,
    pub telemetry: TelemetryConfig,
    pub profiling: ProfilingConfig,
    pub output: OutputConfig,
    /// The latencies that a service must keep.
    #[serde(default)]
    pub slo: SloConfig,
    /// Prices, for the cost of requests.
    #[serde(default)]
    pub cost: CostConfig,
    /// Hydra's own configuration, which is not part of the job's and is not written with it.
    #[serde(skip_serializing)]
    pub hydra: HydraConfig,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostConfig {
    /// The price of an hour of the GPU, in any currency.
    pub gpu_hour: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    #[serde(deserialize_with = "text_or_scalar")]
    pub name: String,
    /// The Hugging Face repository whose `config.json` has the shape.
    pub hub: Option<String>,
    pub dtype: DtypeChoice,
    /// `synthetic` for random weights of the model's shape, or a path; a checkpoint has its own shape. `auto` is
    /// `models/<name>` if it holds the weights of this model, else `synthetic`.
    pub weights: Weights,
    /// Convert the quantised blocks of a GGUF file to `dtype`.
    #[serde(default)]
    pub dequantize: bool,
    /// A `config.json` with the shape, used instead of `arch` or the file next to the weights.
    pub config_json: Option<String>,
    /// The shape, with the keys of a Hugging Face `config.json`.
    #[serde(default = "default_arch", deserialize_with = "json_value")]
    pub arch: serde_json::Value,
    /// How images are prepared for a model that reads them; null for the model's own way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preprocess: Option<PreprocessConfig>,
}

impl ModelConfig {
    /// The type in which the weights are published, from `torch_dtype` or `dtype` of the shape; without either bf16,
    /// the type of nearly all recent decoders.
    pub fn published_dtype(&self) -> Dtype {
        let named = ["torch_dtype", "dtype"].iter().find_map(|key| self.arch.get(key)?.as_str());
        match named {
            Some("float32") => Dtype::F32,
            Some("float16") => Dtype::F16,
            _ => Dtype::Bf16,
        }
    }

    /// The type without regard to a device: as given, else as published.
    pub fn nominal_dtype(&self) -> Dtype {
        self.dtype.given().unwrap_or_else(|| self.published_dtype())
    }
}

/// The source of the weights, written as `auto`, `synthetic` or a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Weights {
    /// `models/<name>` if it holds the weights of the model, else synthetic ones.
    Auto,
    Synthetic,
    /// A directory with safetensors, a safetensors file or a GGUF file.
    Path(PathBuf),
}

impl TryFrom<String> for Weights {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match text.as_str() {
            "auto" => Ok(Weights::Auto),
            "synthetic" => Ok(Weights::Synthetic),
            text if text.trim().is_empty() => Err("expected auto, synthetic or a path"),
            text => Ok(Weights::Path(text.into())),
        }
    }
}

impl From<Weights> for String {
    fn from(weights: Weights) -> String {
        match weights {
            Weights::Auto => "auto".to_owned(),
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
    /// Length of a random prompt in tokens, or maximum length of a prompt from a file.
    pub prompt_tokens: u32,
    /// Prompts from a file; null for random tokens.
    #[serde(default)]
    pub prompts: Option<PromptsConfig>,
    /// Selection and order of the prompts; null for all in file order.
    #[serde(default)]
    pub sampling: Option<DatasetSampling>,
    /// Images, for vision-language models; null for text only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<ImagesConfig>,
}

/// A selection of the samples of a dataset, seeded by `runtime.seed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetSampling {
    /// Passes over the samples.
    pub num_epochs: u32,
    /// Samples per pass; null for all.
    pub num_samples_per_epoch: Option<u64>,
    /// Shuffle each pass; otherwise file order.
    pub randomize: bool,
    /// A file with the names of the samples to use, one per line; null for all.
    pub subset_filelist: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptsConfig {
    /// One JSON object per line, or a `.json` file with a list of objects; see `text::prompts`.
    pub file: String,
    /// Apply the model's chat template, if it has one.
    pub chat: bool,
    /// Truncate prompts to `prompt_tokens` tokens; otherwise longer ones are an error.
    #[serde(default)]
    pub truncate: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuntimeConfig {
    pub name: Runtime,
    /// `auto`, `cpu`, `cuda:0`, …
    pub device: String,
    /// Worker threads of the CPU engine; null for one per core.
    pub threads: Option<u32>,
    pub batch_size: u32,
    /// Positions of the KV cache per sequence; null for those of prompt and output.
    #[serde(default)]
    pub max_context: Option<u32>,
    /// The type of the values in the KV cache.
    #[serde(default)]
    pub kv_cache_dtype: KvCacheDtype,
    /// Launch a decode step on a GPU as one CUDA graph.
    #[serde(default = "default_true")]
    pub cuda_graphs: bool,
    /// Use cuBLAS on a GPU if it is found.
    #[serde(default = "default_true")]
    pub cublas: bool,
    /// Run all layers of a decode step on a GPU as one kernel, if the model has such a kernel.
    #[serde(default = "default_true")]
    pub fused_step: bool,
    /// Unmeasured requests before the measured ones.
    pub warmup: u32,
    /// Measured requests; null for one per sample of `dataset.sampling`.
    pub requests: Option<u32>,
    pub seed: u64,
    /// Continue after the last request until this condition holds.
    #[serde(default)]
    pub until: Option<Until>,
    /// Maximum duration of that.
    #[serde(default = "default_until_max_s", deserialize_with = "seconds")]
    pub until_max_s: f64,
    pub sim: SimConfig,
    /// Speculative decoding, in which the model verifies several draft tokens per step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speculative: Option<SpeculativeConfig>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pytorch: Option<PytorchConfig>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    server: Option<ServerConfig>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    load: Option<LoadConfig>,
}

/// The settings that only one kind of runtime has; those of another kind are not used.
impl RuntimeConfig {
    /// PyTorch in a process of its own.
    pub fn pytorch(&self) -> Option<&PytorchConfig> {
        match self.name {
            Runtime::Pytorch => self.pytorch.as_ref(),
            Runtime::Candle
            | Runtime::CandleStock
            | Runtime::Sim
            | Runtime::Watch
            | Runtime::Program
            | Runtime::Server(_) => None,
        }
    }

    /// The server to load-test.
    pub fn server(&self) -> Option<&ServerConfig> {
        self.name.server().and(self.server.as_ref())
    }

    /// The load on it.
    pub fn load(&self) -> Option<&LoadConfig> {
        self.name.server().and(self.load.as_ref())
    }
}

/// Speculative decoding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpeculativeConfig {
    /// The source of draft tokens; null for one token per step.
    pub method: Option<SpeculativeMethod>,
    /// Draft tokens per step.
    pub tokens: u32,
    /// The maximum number of newest tokens that `ngram` searches for.
    pub ngram: u32,
    /// The acceptance rate that is assumed for random weights; null for the model's own choices.
    pub acceptance: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpeculativeMethod {
    /// A smaller model, `model@draft`.
    Draft,
    /// The tokens that followed the newest ones before, in prompt and answer.
    Ngram,
}

/// A condition that ends a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Until {
    /// GPU temperature and clock have reached steady state.
    Steady,
}

fn default_until_max_s() -> f64 {
    900.0
}

/// What a run does, by the name of its option in `conf/runtime`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    /// The decoder of this program.
    Candle,
    /// The unmodified models of candle-transformers.
    CandleStock,
    /// A model of transformers, or a script, in a Python process.
    Pytorch,
    Sim,
    /// No workload: the GPU is monitored while other processes use it.
    Watch,
    /// Another program, started by `exec` or joined by `attach`.
    Program,
    /// A load test of a server with the OpenAI protocol.
    Server(ServerRuntime),
}

/// A server: any with the OpenAI protocol, or one whose metrics and options are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerRuntime {
    OpenAi,
    Vllm,
    Sglang,
    TensorRtLlm,
    LlamaCpp,
}

impl Runtime {
    const NAMES: [(Runtime, &'static str); 11] = [
        (Runtime::Candle, "candle"),
        (Runtime::CandleStock, "candle_stock"),
        (Runtime::Pytorch, "pytorch"),
        (Runtime::Sim, "sim"),
        (Runtime::Watch, "watch"),
        (Runtime::Program, "program"),
        (Runtime::Server(ServerRuntime::OpenAi), "openai"),
        (Runtime::Server(ServerRuntime::Vllm), "vllm"),
        (Runtime::Server(ServerRuntime::Sglang), "sglang"),
        (Runtime::Server(ServerRuntime::TensorRtLlm), "tensorrtllm"),
        (Runtime::Server(ServerRuntime::LlamaCpp), "llamacpp"),
    ];

    pub fn server(self) -> Option<ServerRuntime> {
        match self {
            Runtime::Server(server) => Some(server),
            _ => None,
        }
    }
}

impl Serialize for Runtime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let name = Runtime::NAMES.iter().find(|(runtime, _)| runtime == self).map_or("", |(_, name)| name);
        serializer.serialize_str(name)
    }
}

impl<'de> Deserialize<'de> for Runtime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Runtime, D::Error> {
        const EXPECTED: [&str; 11] = {
            let mut names = [""; 11];
            let mut i = 0;
            while i < 11 {
                names[i] = Runtime::NAMES[i].1;
                i += 1;
            }
            names
        };
        let text = String::deserialize(deserializer)?;
        let known = Runtime::NAMES.iter().find(|(_, name)| *name == text);
        known.map(|(runtime, _)| *runtime).ok_or_else(|| D::Error::unknown_variant(&text, &EXPECTED))
    }
}

/// The simulated engine, with a seed and a virtual clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimConfig {
    /// Prompt tokens per second; null for what follows from the model's cost on the simulated GPU.
    #[serde(default)]
    pub prefill_tok_s: Option<f64>,
    /// Time between tokens; null as above.
    #[serde(default)]
    pub itl_ms: Option<f64>,
    /// Relative standard deviation of the ITL.
    pub jitter: f64,
    /// Simulated seconds per real second; 0 for as fast as possible.
    pub speed: f64,
    /// The script of simulated faults; see `sim` in `llmprof-sources`.
    pub scenario: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InferConfig {
    /// Maximum number of generated tokens per sequence.
    pub max_new_tokens: u32,
    /// Continue after the end-of-text token, so that every output has the maximum length.
    #[serde(default = "default_true")]
    pub ignore_eos: bool,
    /// Sample the next token; otherwise greedy decoding.
    #[serde(default)]
    pub do_sample: bool,
    /// Sampling temperature: above 1 flattens the distribution, below 1 sharpens it.
    #[serde(default = "default_one", deserialize_with = "above_zero")]
    pub temperature: f64,
    /// Sample from this many of the most likely tokens; null for all.
    #[serde(default)]
    pub top_k: Option<NonZeroU32>,
    /// Sample from the smallest set of tokens with at least this total probability.
    #[serde(default = "default_one", deserialize_with = "probability")]
    pub top_p: f64,
    /// Length of token sequences that must not repeat; 0 for no limit.
    #[serde(default)]
    pub no_repeat_ngram_size: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HardwareConfig {
    pub device_index: u32,
    /// Minimum pause between two jobs of a sweep; null for a few seconds after a job on a GPU, and none after others.
    #[serde(deserialize_with = "optional_seconds")]
    pub cooldown_s: Option<f64>,
    /// The pause also lasts until the GPU is below this temperature; null for `cooldown_s` only.
    pub cooldown_until_c: Option<f64>,
    /// Maximum pause; the next job starts even if the GPU is warmer.
    #[serde(deserialize_with = "seconds")]
    pub cooldown_max_s: f64,
    /// The expected power limit of the GPU. It is checked and never changed.
    pub expected_power_limit_w: Option<f64>,
    pub isolation: IsolationConfig,
    pub peaks: PeaksConfig,
}

impl Default for HardwareConfig {
    fn default() -> HardwareConfig {
        HardwareConfig {
            device_index: 0,
            cooldown_s: None,
            cooldown_until_c: None,
            cooldown_max_s: 300.0,
            expected_power_limit_w: None,
            isolation: IsolationConfig::default(),
            peaks: PeaksConfig::default(),
        }
    }
}

/// Peak rates of the device for MFU, MBU and the roofline; null for the known values of the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PeaksConfig {
    /// Dense FLOP/s in `model.dtype`.
    pub flops: Option<f64>,
    /// Memory bandwidth in bytes per second.
    pub bytes_per_s: Option<f64>,
}

/// The check for external load at the start of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IsolationConfig {
    pub check: bool,
    /// Report a higher CPU utilisation by other processes than this percentage of all cores.
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
    /// Script of the simulated probe; null for `runtime.sim.scenario`.
    pub scenario: Option<String>,
    /// A server whose own metrics are read during the run, or several; null for none.
    #[serde(default)]
    pub server: Option<Urls>,
    /// Conditions on the figures of servers and GPUs, e.g. ttft_ms>500.
    #[serde(default)]
    pub alerts: Vec<String>,
    /// A DCGM exporter to read GPUs from, instead of NVML; null for none.
    #[serde(default)]
    pub dcgm: Option<String>,
}

/// One URL or several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Urls {
    One(String),
    Several(Vec<String>),
}

impl Urls {
    pub fn all(&self) -> &[String] {
        match self {
            Urls::One(url) => std::slice::from_ref(url),
            Urls::Several(urls) => urls,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Probe {
    /// NVML if there is a driver; simulated with a simulated engine.
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
    /// Host times of operators.
    #[serde(default)]
    pub operators: ToolConfig,
    /// Live kernel activity.
    #[serde(default)]
    pub cupti: CuptiConfig,
    /// Sample the Python lines of another program's threads.
    #[serde(default = "default_true")]
    pub stacks: bool,
    #[serde(default)]
    pub nvtx: NvtxConfig,
    /// The operator profile of a model in PyTorch.
    #[serde(default)]
    pub torch: TorchConfig,
    /// Re-run under Nsight Systems.
    #[serde(default)]
    pub nsys: NsysConfig,
    /// Re-run under Nsight Compute.
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
pub struct CuptiConfig {
    pub enable: bool,
    /// The share of time in which kernels of another program are recorded; null for as much as adds 1 %.
    #[serde(default)]
    pub duty: Option<f64>,
    /// Also write every record of another program to a file of the run.
    #[serde(default)]
    pub records: bool,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvtxConfig {
    pub detail: NvtxDetail,
}

/// The level of detail of NVTX ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NvtxDetail {
    /// Requests, prefill, decode and decode steps.
    #[default]
    Phase,
    /// Also layers.
    Layer,
    /// Also layers and their operators.
    Op,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplerConfig {
    pub enable: bool,
    pub interval_ms: u32,
}

/// Sampling intervals of the GPU. Readings with a high overhead are sampled less often.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmlConfig {
    pub enable: bool,
    /// Clocks, power, utilisation, temperature, memory, clock event reasons.
    pub interval_ms: u32,
    /// SM, tensor pipe and memory activity on Hopper and newer; minimum 100 ms.
    #[serde(default = "default_gpm_interval_ms")]
    pub gpm_interval_ms: u32,
    /// Throttle and energy counters, processes, fan, PCIe, ECC, limits.
    #[serde(default = "default_slow_interval_ms")]
    pub slow_interval_ms: u32,
}

fn default_gpm_interval_ms() -> u32 {
    200
}

fn default_slow_interval_ms() -> u32 {
    2000
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputConfig {
    /// Record the run on disk.
    pub record: bool,
    /// Maximum time before an event is written to disk.
    pub flush_ms: u32,
    /// Also write a trace for Chrome and Perfetto.
    #[serde(default = "default_true")]
    pub trace: bool,
    /// The address at which the metrics of the run are served to Prometheus, e.g. `127.0.0.1:9464`; null for none.
    #[serde(default)]
    pub metrics: Option<String>,
    #[serde(default)]
    pub predictions: PredictionsConfig,
    pub tui: TuiConfig,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PredictionsConfig {
    /// Record the generated text.
    pub enable: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TuiConfig {
    pub fps: u32,
    pub theme: ThemeName,
    /// Use ASCII characters only; null to follow the locale.
    pub ascii: Option<bool>,
    #[serde(default)]
    pub charts: ChartStyle,
    pub mouse: bool,
}

/// The resolution of charts, unless the terminal has only ASCII.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChartStyle {
    /// One column and eight steps per cell.
    #[default]
    Block,
    /// Two columns and two steps.
    Quadrant,
    /// Two columns and four steps.
    Braille,
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

fn default_true() -> bool {
    true
}

fn default_arch() -> serde_json::Value {
    serde_json::Value::Object(Default::default())
}

fn default_one() -> f64 {
    1.0
}
