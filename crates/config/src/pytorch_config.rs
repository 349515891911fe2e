//! Configuration of models that run in PyTorch.

use serde::{Deserialize, Serialize};

use super::numbers::above_zero;

/// How a Python process runs the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PytorchConfig {
    /// The interpreter; null for that of the active virtual environment, else `python3`.
    pub python: Option<String>,
    /// Your own code: a file with `load(config)` and `generate(model, prompt, on_token)`; null for a model of transformers.
    pub script: Option<String>,
    /// How decode steps are compiled.
    pub compile: Compile,
    /// `auto`, `eager`, `sdpa`, `flash_attention_2`, …
    pub attention: String,
    /// A KV cache of fixed size; null: if steps are compiled.
    pub static_cache: Option<bool>,
    /// The placement of the weights by transformers; null for all on `runtime.device`.
    pub device_map: Option<String>,
    /// Run the code that a checkpoint contains.
    pub trust_remote_code: bool,
    /// Maximum silence of the worker.
    #[serde(deserialize_with = "above_zero")]
    pub timeout_s: f64,
}

/// Modes of `torch.compile`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compile {
    /// Eager: operator by operator.
    None,
    Default,
    /// With CUDA graphs.
    ReduceOverhead,
    MaxAutotune,
}

/// The operator profile of a model in PyTorch, taken after the measured requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TorchConfig {
    pub enable: bool,
    /// Decode steps.
    pub steps: u32,
    /// Record the shapes of operands.
    pub shapes: bool,
    /// Record allocations.
    pub memory: bool,
    /// Record the lines of Python that called an operator.
    pub stack: bool,
}

impl Default for TorchConfig {
    fn default() -> TorchConfig {
        TorchConfig { enable: false, steps: 8, shapes: true, memory: true, stack: false }
    }
}

/// Images of requests, for vision-language models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImagesConfig {
    /// The directory of the images that the samples name; null for synthetic pages.
    pub dir: Option<String>,
    /// The question about an image.
    pub prompt: String,
    /// Images per request.
    pub per_request: u32,
    /// Width and height of a synthetic page.
    pub width: u32,
    pub height: u32,
}
