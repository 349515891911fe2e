//! The shape of a decoder-only model, read from a Hugging Face `config.json` and checked.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use thiserror::Error;

use crate::config::Dtype;

#[cfg(test)]
mod tests;

/// Most parameters taken for a real model; a thousand times the largest of today.
const MAX_PARAMETERS: u64 = 1_000_000_000_000_000;
const MAX_LAYERS: u64 = 4096;
/// Keeps every product of two sizes inside `u64`.
const MAX_SIZE: u64 = u32::MAX as u64;

/// The model families this program can build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Phi3,
}

impl Family {
    pub const ALL: [Family; 5] = [Family::Llama, Family::Mistral, Family::Qwen2, Family::Qwen3, Family::Phi3];

    /// The `model_type` of a `config.json`.
    pub fn name(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Mistral => "mistral",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
            Family::Phi3 => "phi3",
        }
    }
}

/// How rotary frequencies are stretched beyond the context a model was trained on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// By wavelength: long waves are stretched, short ones stay.
    Llama3 { factor: f64, low_freq_factor: f64, high_freq_factor: f64, original_max_positions: usize },
    /// By the number of turns over the original context, and with sharper scores.
    Yarn {
        factor: f64,
        /// Frequencies that turn more often than this stay.
        beta_fast: f64,
        /// Frequencies that turn less often than this are stretched whole.
        beta_slow: f64,
        original_max_positions: usize,
        /// What cosines and sines are multiplied with.
        attention_factor: f64,
    },
}

/// A checked shape: sizes are positive, heads divide, and the parameter count fits.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    pub family: Family,
    pub vocab: usize,
    pub hidden: usize,
    pub intermediate: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub rms_eps: f64,
    pub rope_theta: f64,
    pub rope_scaling: Option<RopeScaling>,
    /// The output projection is the embedding.
    pub tied_embeddings: bool,
    pub qkv_bias: bool,
    /// Bias of the attention's output projection.
    pub output_bias: bool,
    /// RMS norm over each query and key head.
    pub qk_norm: bool,
    pub max_positions: usize,
    /// A position sees this many positions, itself included.
    pub sliding_window: Option<usize>,
    /// The first layers that see everything in spite of `sliding_window`.
    pub full_attention_layers: usize,
}

/// A tensor as Hugging Face checkpoints name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorShape {
    pub name: String,
    pub shape: Vec<usize>,
}

#[derive(Debug, Error)]
pub enum SpecError {
    #[error("cannot read {}: {cause}", path.display())]
    Unreadable { path: PathBuf, cause: std::io::Error },
    #[error("{} is not JSON: line {line}, column {column}: {cause}", path.display())]
    Corrupt { path: PathBuf, line: usize, column: usize, cause: String },
    #[error("{}: {cause}", path.display())]
    InFile { path: PathBuf, cause: Box<SpecError> },
    #[error("a model's config must be an object, this is {found}")]
    NotAnObject { found: &'static str },
    #[error("{key} is missing")]
    MissingKey { key: String },
    #[error("{key} must be {expected}, this is {found}")]
    WrongType { key: String, expected: &'static str, found: String },
    #[error("{key} is zero")]
    Zero { key: &'static str },
    #[error("{key} {value} is not divisible by {divisor_key} {divisor}")]
    NotDivisible { key: &'static str, value: u64, divisor_key: &'static str, divisor: u64 },
    #[error("head_dim {0} is odd; rotary embedding turns pairs")]
    OddHeadDim(u64),
    #[error("{key} {value} is beyond any model this program can build (at most {limit})")]
    TooLarge { key: &'static str, value: u64, limit: u64 },
    #[error("these sizes make more than {MAX_PARAMETERS} parameters; one of them must be wrong")]
    TooManyParameters,
    #[error("unknown model_type {found:?}; known are {}", known_families())]
    UnknownFamily { found: String },
    #[error("{key} {found:?} is not supported; {supported} is")]
    Unsupported { key: &'static str, found: String, supported: &'static str },
}

fn known_families() -> String {
    Family::ALL.map(Family::name).join(", ")
}

/// A `config.json`, whatever it holds.
pub fn read_config_json(path: &Path) -> Result<Value, SpecError> {
    let text = std::fs::read_to_string(path)
        .map_err(|cause| SpecError::Unreadable { path: path.to_owned(), cause })?;
    serde_json::from_str(&text).map_err(|e| SpecError::Corrupt {
        path: path.to_owned(),
        line: e.line(),
        column: e.column(),
        cause: e.to_string(),
    })
}

impl ModelSpec {
    /// Reads and checks the file at `path`.
    pub fn from_config_json(path: impl AsRef<Path>) -> Result<Self, SpecError> {
        let path = path.as_ref();
        Self::from_hf(&read_config_json(path)?)
            .map_err(|cause| SpecError::InFile { path: path.to_owned(), cause: Box::new(cause) })
    }

    /// Takes the shape out of a parsed `config.json`. Keys that do not bear on the shape are ignored.
    pub fn from_hf(config: &Value) -> Result<Self, SpecError> {
        let keys = Keys(config.as_object().ok_or(SpecError::NotAnObject { found: kind_of(config) })?);
        let name = keys.text("model_type")?.ok_or(missing("model_type"))?;
        let family = Family::ALL
            .into_iter()
            .find(|f| f.name() == name)
            .ok_or_else(|| SpecError::UnknownFamily { found: name.to_owned() })?;
        keys.refuse_unbuilt()?;

        let hidden = keys.size("hidden_size")?;
        let heads = keys.size("num_attention_heads")?;
        let kv_heads = keys.optional_size("num_key_value_heads")?.unwrap_or(heads);
        if heads % kv_heads != 0 {
            return Err(not_divisible("num_attention_heads", heads, "num_key_value_heads", kv_heads));
        }
        let head_dim = match keys.optional_size("head_dim")? {
            Some(head_dim) => head_dim,
            None if hidden % heads != 0 => {
                return Err(not_divisible("hidden_size", hidden, "num_attention_heads", heads));
            }
            None => hidden / heads,
        };
        if head_dim % 2 != 0 {
            return Err(SpecError::OddHeadDim(head_dim));
        }
        let layers = keys.size("num_hidden_layers")?;
        if layers > MAX_LAYERS {
            return Err(SpecError::TooLarge { key: "num_hidden_layers", value: layers, limit: MAX_LAYERS });
        }
        let attention_bias = keys.flag("attention_bias")?.unwrap_or(false);
        let (sliding_window, full_attention_layers) = keys.window(family, layers)?;
        let rope = keys.rope()?;
        let spec = ModelSpec {
            family,
            vocab: keys.size("vocab_size")? as usize,
            hidden: hidden as usize,
            intermediate: keys.size("intermediate_size")? as usize,
            layers: layers as usize,
            heads: heads as usize,
            kv_heads: kv_heads as usize,
            head_dim: head_dim as usize,
            rms_eps: keys.positive("rms_norm_eps")?.unwrap_or(1e-6),
            rope_theta: rope.0,
            rope_scaling: rope.1,
            tied_embeddings: keys.flag("tie_word_embeddings")?.unwrap_or(false),
            qkv_bias: match family {
                Family::Qwen2 => true,
                Family::Llama | Family::Qwen3 => attention_bias,
                Family::Mistral | Family::Phi3 => false,
            },
            output_bias: matches!(family, Family::Llama | Family::Qwen3) && attention_bias,
            qk_norm: family == Family::Qwen3,
            max_positions: keys.size("max_position_embeddings")? as usize,
            sliding_window,
            full_attention_layers,
        };
        match spec.checked_parameters() {
            Some(n) if n <= MAX_PARAMETERS => Ok(spec),
            _ => Err(SpecError::TooManyParameters),
        }
    }

    /// Parameters of all tensors; tied embeddings count once.
    pub fn parameters(&self) -> u64 {
        self.checked_parameters().unwrap_or(u64::MAX)
    }

    fn checked_parameters(&self) -> Option<u64> {
        let size = |t: &TensorShape| t.shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d as u64));
        let sum =
            |tensors: &[TensorShape]| tensors.iter().try_fold(0u64, |total, t| total.checked_add(size(t)?));
        // All layers are alike: one is counted, so that an absurd depth costs nothing.
        let layers = sum(&self.layer_tensors(0))?.checked_mul(self.layers as u64)?;
        layers.checked_add(sum(&self.outer_tensors())?)
    }

    pub fn weight_bytes(&self, dtype: Dtype) -> u64 {
        self.parameters().saturating_mul(dtype.bytes())
    }

    /// The weights a decode step reads: an embedding table of its own is looked up, not read through.
    pub fn step_weight_bytes(&self, dtype: Dtype) -> u64 {
        let table =
            if self.tied_embeddings { 0 } else { self.vocab as u64 * self.hidden as u64 * dtype.bytes() };
        self.weight_bytes(dtype) - table
    }

    /// Bytes of keys and values that one position of one sequence takes, over all layers.
    pub fn kv_bytes_per_position(&self, dtype: Dtype) -> u64 {
        [2, self.layers, self.kv_heads, self.head_dim]
            .iter()
            .fold(dtype.bytes(), |bytes, &n| bytes.saturating_mul(n as u64))
    }

    /// Query heads that share one key/value head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// How far back layer `layer` sees, itself included; `None` sees everything.
    pub fn window_of_layer(&self, layer: usize) -> Option<usize> {
        self.sliding_window.filter(|_| layer >= self.full_attention_layers)
    }

    /// Whether a checkpoint has queries, keys and values in one matrix, and gate and up in another.
    fn is_fused(&self) -> bool {
        self.family == Family::Phi3
    }

    /// Names of what makes queries, keys and values of a layer, to be stacked: `weight`s or `bias`es.
    pub fn qkv_names(&self, layer: usize, kind: &str) -> Vec<String> {
        let parts: &[&str] = if self.is_fused() { &["qkv_proj"] } else { &["q_proj", "k_proj", "v_proj"] };
        parts.iter().map(|part| format!("model.layers.{layer}.self_attn.{part}.{kind}")).collect()
    }

    /// Names of what makes gate and up of a layer, to be stacked.
    pub fn gate_up_names(&self, layer: usize) -> Vec<String> {
        let parts: &[&str] = if self.is_fused() { &["gate_up_proj"] } else { &["gate_proj", "up_proj"] };
        parts.iter().map(|part| format!("model.layers.{layer}.mlp.{part}.weight")).collect()
    }

    /// Every tensor of a checkpoint, embedding first.
    pub fn tensors(&self) -> Vec<TensorShape> {
        let mut outer = self.outer_tensors().into_iter();
        let mut all: Vec<_> = outer.next().into_iter().collect();
        all.extend((0..self.layers).flat_map(|layer| self.layer_tensors(layer)));
        all.extend(outer);
        all
    }

    fn outer_tensors(&self) -> Vec<TensorShape> {
        let tensor =
            |name: &str, shape: &[usize]| TensorShape { name: name.to_owned(), shape: shape.to_vec() };
        let mut tensors = vec![
            tensor("model.embed_tokens.weight", &[self.vocab, self.hidden]),
            tensor("model.norm.weight", &[self.hidden]),
        ];
        if !self.tied_embeddings {
            tensors.push(tensor("lm_head.weight", &[self.vocab, self.hidden]));
        }
        tensors
    }

    fn layer_tensors(&self, layer: usize) -> Vec<TensorShape> {
        // Sizes are at most u32::MAX each, so these products cannot overflow 64 bits.
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let (hidden, intermediate) = (self.hidden, self.intermediate);
        let mut tensors = Vec::with_capacity(16);
        let mut push = |name: &str, shape: &[usize]| {
            tensors.push(TensorShape { name: format!("model.layers.{layer}.{name}"), shape: shape.to_vec() });
        };
        push("input_layernorm.weight", &[hidden]);
        if self.is_fused() {
            push("self_attn.qkv_proj.weight", &[q + 2 * kv, hidden]);
        } else {
            for (name, rows) in [("q_proj", q), ("k_proj", kv), ("v_proj", kv)] {
                push(&format!("self_attn.{name}.weight"), &[rows, hidden]);
                if self.qkv_bias {
                    push(&format!("self_attn.{name}.bias"), &[rows]);
                }
            }
        }
        push("self_attn.o_proj.weight", &[hidden, q]);
        if self.output_bias {
            push("self_attn.o_proj.bias", &[hidden]);
        }
        if self.qk_norm {
            push("self_attn.q_norm.weight", &[self.head_dim]);
            push("self_attn.k_norm.weight", &[self.head_dim]);
        }
        push("post_attention_layernorm.weight", &[hidden]);
        if self.is_fused() {
            push("mlp.gate_up_proj.weight", &[2 * intermediate, hidden]);
        } else {
            push("mlp.gate_proj.weight", &[intermediate, hidden]);
            push("mlp.up_proj.weight", &[intermediate, hidden]);
        }
        push("mlp.down_proj.weight", &[hidden, intermediate]);
        tensors
    }
}

/// The keys of a config, or of an object inside it. A key that is null counts as absent.
struct Keys<'a>(&'a Map<String, Value>);

impl<'a> Keys<'a> {
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|v| !v.is_null())
    }

    fn optional_size(&self, key: &'static str) -> Result<Option<u64>, SpecError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_u64().ok_or_else(|| wrong(key, "a positive integer", value))? {
            0 => Err(SpecError::Zero { key }),
            n if n > MAX_SIZE => Err(SpecError::TooLarge { key, value: n, limit: MAX_SIZE }),
            n => Ok(Some(n)),
        }
    }

    fn size(&self, key: &'static str) -> Result<u64, SpecError> {
        self.optional_size(key)?.ok_or(missing(key))
    }

    fn positive(&self, key: &str) -> Result<Option<f64>, SpecError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64() {
            Some(x) if x.is_finite() && x > 0.0 => Ok(Some(x)),
            _ => Err(wrong(key, "a positive number", value)),
        }
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, SpecError> {
        self.get(key).map(|v| v.as_bool().ok_or_else(|| wrong(key, "true or false", v))).transpose()
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>, SpecError> {
        self.get(key).map(|v| v.as_str().ok_or_else(|| wrong(key, "a string", v))).transpose()
    }

    /// Parts that some checkpoints of these families have and the decoder does not.
    fn refuse_unbuilt(&self) -> Result<(), SpecError> {
        match self.text("hidden_act")? {
            None | Some("silu") => {}
            Some(other) => return Err(unsupported("hidden_act", other, "silu")),
        }
        match self.positive("partial_rotary_factor")? {
            None | Some(1.0) => {}
            Some(part) => return Err(unsupported("partial_rotary_factor", &part.to_string(), "1")),
        }
        if self.flag("mlp_bias")? == Some(true) {
            return Err(unsupported("mlp_bias", "true", "false"));
        }
        Ok(())
    }

    /// The window and the number of first layers without it.
    fn window(&self, family: Family, layers: u64) -> Result<(Option<usize>, usize), SpecError> {
        match family {
            Family::Llama => Ok((None, 0)),
            Family::Mistral | Family::Phi3 => {
                Ok((self.optional_size("sliding_window")?.map(|w| w as usize), 0))
            }
            Family::Qwen2 | Family::Qwen3 if self.flag("use_sliding_window")? == Some(true) => {
                let window = self.optional_size("sliding_window")?.map(|w| w as usize);
                let full = match self.get("max_window_layers") {
                    Some(v) => v.as_u64().ok_or_else(|| wrong("max_window_layers", "an integer", v))?,
                    None => 0,
                };
                Ok((window, full.min(layers) as usize))
            }
            Family::Qwen2 | Family::Qwen3 => Ok((None, 0)),
        }
    }

    /// Rotary base and scaling. Newer configs hold both under `rope_parameters`.
    fn rope(&self) -> Result<(f64, Option<RopeScaling>), SpecError> {
        let object = |key: &str| match self.get(key) {
            None => Ok(None),
            Some(v) => v.as_object().map(|map| Some(Keys(map))).ok_or_else(|| wrong(key, "an object", v)),
        };
        let parameters = object("rope_parameters")?;
        let theta = match (self.positive("rope_theta")?, &parameters) {
            (Some(theta), _) => theta,
            (None, Some(p)) => p.positive("rope_theta")?.unwrap_or(10_000.0),
            (None, None) => 10_000.0,
        };
        let scaling = match object("rope_scaling")?.or(parameters) {
            Some(scaling) => scaling.rope_scaling(self.optional_size("max_position_embeddings")?)?,
            None => None,
        };
        Ok((theta, scaling))
    }

    /// `positions` are the model's, where the scaling does not say how many there were before.
    fn rope_scaling(&self, positions: Option<u64>) -> Result<Option<RopeScaling>, SpecError> {
        let kind = match self.text("rope_type")? {
            Some(kind) => kind,
            None => self.text("type")?.unwrap_or("default"),
        };
        let number = |key| self.positive(key)?.ok_or(missing(key));
        match kind {
            "default" => Ok(None),
            "llama3" => Ok(Some(RopeScaling::Llama3 {
                factor: number("factor")?,
                low_freq_factor: number("low_freq_factor")?,
                high_freq_factor: number("high_freq_factor")?,
                original_max_positions: self.size("original_max_position_embeddings")? as usize,
            })),
            "yarn" => {
                let factor = number("factor")?;
                let original = self.optional_size("original_max_position_embeddings")?.or(positions);
                let sharper = |by: f64| if factor <= 1.0 { 1.0 } else { 0.1 * by * factor.ln() + 1.0 };
                let attention_factor = match (self.positive("attention_factor")?, self.positive("mscale")?) {
                    (Some(given), _) => given,
                    (None, Some(by)) => sharper(by) / self.positive("mscale_all_dim")?.map_or(1.0, sharper),
                    (None, None) => sharper(1.0),
                };
                Ok(Some(RopeScaling::Yarn {
                    factor,
                    beta_fast: self.positive("beta_fast")?.unwrap_or(32.0),
                    beta_slow: self.positive("beta_slow")?.unwrap_or(1.0),
                    original_max_positions: original.ok_or(missing("original_max_position_embeddings"))?
                        as usize,
                    attention_factor,
                }))
            }
            other => Err(unsupported("rope_scaling", other, "llama3 or yarn")),
        }
    }
}

fn missing(key: &str) -> SpecError {
    SpecError::MissingKey { key: key.to_owned() }
}

fn wrong(key: &str, expected: &'static str, found: &Value) -> SpecError {
    let found = match found {
        Value::Number(_) | Value::Bool(_) | Value::String(_) => found.to_string(),
        other => kind_of(other).to_owned(),
    };
    SpecError::WrongType { key: key.to_owned(), expected, found }
}

fn unsupported(key: &'static str, found: &str, supported: &'static str) -> SpecError {
    SpecError::Unsupported { key, found: found.to_owned(), supported }
}

fn not_divisible(key: &'static str, value: u64, divisor_key: &'static str, divisor: u64) -> SpecError {
    SpecError::NotDivisible { key, value, divisor_key, divisor }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
