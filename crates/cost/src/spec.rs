//! The validated shape of a decoder-only model, from a Hugging Face `config.json`.

use std::path::{Path, PathBuf};

use half::{bf16, f16};
use serde_json::Value;
use thiserror::Error;

use crate::{Dtype, KvCacheDtype};
use llmprof_base::read::{self, MAX_DOCUMENT};

pub(super) mod keys;
#[cfg(test)]
mod tests;

use super::architectures::{self, ExpertStyle};
use keys::{Keys, Sizes, kind_of};

/// Maximum parameter count, far above that of real models.
pub(super) const MAX_PARAMETERS: u64 = 1_000_000_000_000_000;
pub(super) const MAX_LAYERS: u64 = 4096;
/// Experts of all layers that the engine reads; published models have up to 23,424.
const MAX_EXPERTS: u64 = 1 << 16;

const EMBEDDING: &str = "model.embed_tokens.weight";

/// The activation function of the MLP gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    Silu,
    /// GELU with the tanh approximation.
    GeluTanh,
    /// GELU with the error function.
    Gelu,
    /// gpt-oss's: limited, with one added to what the gate scales.
    SwigluOai,
}

/// Scaling of the rotary frequencies for contexts longer than in training.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// All frequencies by one factor.
    Linear { factor: f64 },
    /// By wavelength: low frequencies are scaled, high ones are not.
    Llama3 { factor: f64, low_freq_factor: f64, high_freq_factor: f64, original_max_positions: usize },
    /// By the number of rotations over the original context, with scaled attention scores.
    Yarn {
        factor: f64,
        /// Frequencies with more rotations than this are not scaled.
        beta_fast: f64,
        /// Frequencies with fewer rotations than this are scaled by the full factor.
        beta_slow: f64,
        original_max_positions: usize,
        /// Whether the first and the last frequency between those are rounded to whole ones.
        truncate: bool,
        /// Factor of the cosines and sines.
        attention_factor: f64,
    },
    /// Each frequency by its own divisor, from one of two lists.
    LongRope {
        /// For sequences within the original context.
        short: Vec<f64>,
        /// For longer sequences.
        long: Vec<f64>,
        original_max_positions: usize,
        /// Factor of the cosines and sines.
        attention_factor: f64,
    },
}

/// A validated shape: sizes are positive and divisible, and the parameter count is below the maximum.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
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
    /// RoPE base of windowed layers, which have no scaling; `None` if it is the same as that of the other layers.
    pub local_rope_theta: Option<f64>,
    pub activation: Activation,
    /// Whether embeddings are multiplied by the square root of `hidden`.
    pub scaled_embeddings: bool,
    /// Offset of the norm weights: some checkpoints store them centred at zero.
    pub norm_offset: f32,
    /// Whether the outputs of attention and MLP are normalised before the residual addition.
    pub post_norms: bool,
    /// Scores are divided by the square root of this; `head_dim` by default.
    pub score_scalar: f64,
    /// Soft cap of the attention scores.
    pub score_softcap: Option<f64>,
    /// Soft cap of the logits.
    pub logit_softcap: Option<f64>,
    /// Whether the output projection is the embedding table.
    pub tied_embeddings: bool,
    /// Whether checkpoints store queries, keys and values in one matrix, and gate and up in another.
    pub is_fused: bool,
    pub qkv_bias: bool,
    /// Bias of the attention's output projection.
    pub output_bias: bool,
    /// RMS norm over each query and key head.
    pub qk_norm: bool,
    /// A learned score for no position, of each head.
    pub sinks: bool,
    pub max_positions: usize,
    /// Attention window in positions, including the current one.
    pub sliding_window: Option<usize>,
    /// The layers with `sliding_window`; the others have full attention.
    pub windowed_layers: Vec<bool>,
    pub experts: Option<Experts>,
    /// The layers with `experts` in place of the MLP.
    pub expert_layers: Vec<bool>,
}

/// A mixture of experts: gated MLPs of which a router chooses a few for each token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Experts {
    pub count: usize,
    /// Chosen for each token.
    pub active: usize,
    /// Intermediate size of each.
    pub intermediate: usize,
    /// Intermediate size of the expert of all tokens, whose result a gate scales; 0 without one.
    pub shared_intermediate: usize,
    /// Whether the weights of the chosen ones are scaled to a sum of one.
    pub normalised: bool,
    /// Whether the router and all matrices of the experts have biases.
    pub biased: bool,
    pub naming: ExpertNaming,
}

/// How checkpoints name the tensors of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertNaming {
    Mixtral,
    Qwen,
    GptOss,
}

impl ExpertNaming {
    fn block(self) -> &'static str {
        match self {
            ExpertNaming::Mixtral => "block_sparse_moe",
            ExpertNaming::Qwen | ExpertNaming::GptOss => "mlp",
        }
    }

    fn router(self) -> &'static str {
        match self {
            ExpertNaming::Mixtral | ExpertNaming::Qwen => "gate",
            ExpertNaming::GptOss => "router",
        }
    }

    /// Gate, up and down.
    fn parts(self) -> [&'static str; 3] {
        match self {
            ExpertNaming::Mixtral => ["w1", "w3", "w2"],
            ExpertNaming::Qwen | ExpertNaming::GptOss => ["gate_proj", "up_proj", "down_proj"],
        }
    }
}

/// A tensor as Hugging Face checkpoints name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorShape {
    pub name: String,
    pub shape: Vec<usize>,
}

impl TensorShape {
    /// Whether it is the router's matrix, or the gate's of a shared expert.
    pub fn is_router(&self) -> bool {
        [".gate.weight", ".router.weight", "_gate.weight"].iter().any(|end| self.name.ends_with(end))
    }

    /// The number of its values.
    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|&size| size as u64).product()
    }
}

#[derive(Debug, Error)]
pub enum SpecError {
    #[error("cannot read {}: {cause}", path.display())]
    Unreadable { path: PathBuf, cause: std::io::Error },
    #[error("{} is not JSON: line {line}, column {column}: {cause}", path.display())]
    Corrupt { path: PathBuf, line: usize, column: usize, cause: String },
    #[error("{}: {cause}", path.display())]
    InFile { path: PathBuf, cause: Box<SpecError> },
    #[error("a model config must be an object, not {found}")]
    NotAnObject { found: &'static str },
    #[error("{key} is missing")]
    MissingKey { key: String },
    #[error("{key} must be {expected}, not {found}")]
    WrongType { key: String, expected: &'static str, found: String },
    #[error("{key} must have {expected} items, not {found}")]
    WrongLength { key: String, expected: u64, found: usize },
    #[error("{key} is zero")]
    Zero { key: &'static str },
    #[error("{key} {value} is not divisible by {divisor_key} {divisor}")]
    NotDivisible { key: &'static str, value: u64, divisor_key: &'static str, divisor: u64 },
    #[error("head_dim {0} is odd; rotary embedding needs an even size")]
    OddHeadDim(u64),
    #[error("{key} {value} is too large; the maximum is {limit}")]
    TooLarge { key: &'static str, value: u64, limit: u64 },
    #[error("the model has more than {MAX_PARAMETERS} parameters; check its sizes")]
    TooManyParameters,
    #[error(
        "unknown model_type {found:?}; the engine runs {}; cost also knows {}",
        engine_list(),
        cost_list()
    )]
    UnknownFamily { found: String },
    #[error(
        "the engine cannot run model_type {found:?}: it runs {}; `llmprof-tui cost` estimates it",
        engine_list()
    )]
    CostOnly { found: String },
    #[error("{key} {found:?} is not supported; supported: {supported}")]
    Unsupported { key: &'static str, found: String, supported: &'static str },
}

fn engine_list() -> String {
    architectures::runnable().collect::<Vec<_>>().join(", ")
}

fn cost_list() -> String {
    architectures::cost_only().collect::<Vec<_>>().join(", ")
}

/// Parses a `config.json` without validation.
pub fn read_config_json(path: &Path) -> Result<Value, SpecError> {
    let text = read::text(path, MAX_DOCUMENT)
        .map_err(|cause| SpecError::Unreadable { path: path.to_owned(), cause })?;
    serde_json::from_str(&text).map_err(|e| SpecError::Corrupt {
        path: path.to_owned(),
        line: e.line(),
        column: e.column(),
        cause: e.to_string(),
    })
}

impl ModelSpec {
    /// Whether the engine runs decoders of this `model_type`.
    pub fn runs(model_type: &str) -> bool {
        architectures::runnable().any(|known| known == model_type)
    }

    /// Reads and validates the file at `path`.
    pub fn from_config_json(path: impl AsRef<Path>) -> Result<Self, SpecError> {
        let path = path.as_ref();
        Self::from_hf(&read_config_json(path)?)
            .map_err(|cause| SpecError::InFile { path: path.to_owned(), cause: Box::new(cause) })
    }

    /// The shape in a parsed `config.json`. Other keys are ignored.
    pub fn from_hf(config: &Value) -> Result<Self, SpecError> {
        let config = config.as_object().ok_or(SpecError::NotAnObject { found: kind_of(config) })?;
        let decoder = architectures::decoder(config)?;
        let architecture = decoder.architecture;
        if !decoder.runs {
            let found = Keys(config).text("model_type")?.unwrap_or(architecture.model_type).to_owned();
            return Err(SpecError::CostOnly { found });
        }
        let keys = Keys(&decoder.keys);
        keys.refuse_unsupported()?;

        let sizes = keys.sizes()?;
        let head_dim = keys.head_dim(&sizes)?;
        if head_dim % 2 != 0 {
            return Err(SpecError::OddHeadDim(head_dim));
        }
        let Sizes { hidden, heads, kv_heads, layers } = sizes;
        let bias = architecture.bias(&keys)?;
        let (window, windowed_layers) = architecture.windows(&keys, layers)?;
        let rope = keys.rope(architecture.has_local_rope, head_dim)?;
        let spec = ModelSpec {
            vocab: keys.size("vocab_size")? as usize,
            hidden: hidden as usize,
            intermediate: keys.size("intermediate_size")? as usize,
            layers: layers as usize,
            heads: heads as usize,
            kv_heads: kv_heads as usize,
            head_dim: head_dim as usize,
            rms_eps: keys.positive("rms_norm_eps")?.unwrap_or(1e-6),
            rope_theta: rope.theta,
            rope_scaling: rope.scaling,
            local_rope_theta: rope.local_theta,
            activation: keys.activation(architecture.activation)?,
            scaled_embeddings: architecture.is_centred,
            norm_offset: if architecture.is_centred { 1.0 } else { 0.0 },
            post_norms: architecture.has_post_norms(),
            score_scalar: keys.positive("query_pre_attn_scalar")?.unwrap_or(head_dim as f64),
            score_softcap: keys.positive("attn_logit_softcapping")?,
            logit_softcap: keys.positive("final_logit_softcapping")?,
            tied_embeddings: architecture.ties_embeddings(&keys)?,
            is_fused: architecture.is_fused,
            qkv_bias: bias.qkv,
            output_bias: bias.output,
            qk_norm: architecture.has_head_norms(),
            sinks: architecture.has_sinks(),
            max_positions: keys.size("max_position_embeddings")? as usize,
            sliding_window: window.map(|window| window as usize),
            windowed_layers,
            experts: None,
            expert_layers: vec![false; layers as usize],
        };
        let spec = match architecture.experts(&keys)? {
            Some(experts) => {
                // Each has tensors of its own, which are listed by name.
                let value = experts.count.saturating_mul(layers);
                if value > MAX_EXPERTS {
                    return Err(SpecError::TooLarge {
                        key: "num_experts × layers",
                        value,
                        limit: MAX_EXPERTS,
                    });
                }
                let naming = match architecture.experts {
                    ExpertStyle::Mixtral => ExpertNaming::Mixtral,
                    ExpertStyle::GptOss => ExpertNaming::GptOss,
                    _ => ExpertNaming::Qwen,
                };
                let experts = Experts {
                    count: experts.count as usize,
                    active: experts.active as usize,
                    intermediate: experts.intermediate as usize,
                    shared_intermediate: experts.shared_intermediate as usize,
                    normalised: naming != ExpertNaming::Qwen || keys.flag("norm_topk_prob")?.unwrap_or(false),
                    biased: naming == ExpertNaming::GptOss,
                    naming,
                };
                let expert_layers = architecture.expert_layers(&keys, layers)?;
                ModelSpec { experts: Some(experts), expert_layers, ..spec }
            }
            None => spec,
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
        // Layers of one kind are equal, so one of each is counted: a huge depth costs no time.
        let of_kind = |has_experts: bool| {
            let count = self.expert_layers.iter().filter(|&&has| has == has_experts).count();
            match self.expert_layers.iter().position(|&has| has == has_experts) {
                Some(first) => sum(&self.layer_tensors(first))?.checked_mul(count as u64),
                None => Some(0),
            }
        };
        of_kind(false)?.checked_add(of_kind(true)?)?.checked_add(sum(&self.outer_tensors())?)
    }

    pub fn weight_bytes(&self, dtype: Dtype) -> u64 {
        self.parameters().saturating_mul(dtype.bytes())
    }

    /// Weight bytes read by a decode step of `batch` sequences, where `bytes` gives those of a tensor. A separate embedding table is not counted: only one row
    /// is read. Of the experts, the expected number of those that are chosen counts, if all are equally likely.
    pub fn step_bytes(&self, batch: usize, bytes: impl Fn(&TensorShape) -> u64) -> u64 {
        let touched = self.experts.map_or(1.0, |all| all.touched(batch as f64) / all.count as f64);
        let share = |tensor: &TensorShape| match tensor.name.as_str() {
            EMBEDDING if !self.tied_embeddings => 0.0,
            name if name.contains(".experts.") => touched,
            _ => 1.0,
        };
        self.tensors().iter().map(|tensor| bytes(tensor) as f64 * share(tensor)).sum::<f64>().round() as u64
    }

    /// KV cache bytes per position of one sequence, over all layers.
    pub fn kv_bytes_per_position(&self, dtype: Dtype, kv_cache: KvCacheDtype) -> u64 {
        let numbers = [2, self.layers, self.kv_heads, self.head_dim]
            .iter()
            .fold(1u64, |numbers, &n| numbers.saturating_mul(n as u64));
        numbers.saturating_mul(kv_cache.bits_of_32(dtype)) / (8 * 32)
    }

    /// Query heads per key/value head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Attention window of a layer, including the current position; `None` for full attention.
    pub fn window_of_layer(&self, layer: usize) -> Option<usize> {
        self.sliding_window.filter(|_| self.windowed_layers[layer])
    }

    /// Whether a layer uses `local_rope_theta`.
    pub fn is_local(&self, layer: usize) -> bool {
        self.local_rope_theta.is_some() && self.windowed_layers[layer]
    }

    /// The factor of the embeddings, rounded to `dtype` as in training.
    pub fn embedding_scale(&self, dtype: Dtype) -> f32 {
        let scale = if self.scaled_embeddings { (self.hidden as f32).sqrt() } else { 1.0 };
        match dtype {
            Dtype::F32 => scale,
            Dtype::F16 => f16::from_f32(scale).to_f32(),
            Dtype::Bf16 => bf16::from_f32(scale).to_f32(),
        }
    }

    /// The checkpoint name of the norm before the MLP.
    pub fn mlp_norm_name(&self) -> &'static str {
        if self.post_norms { "pre_feedforward_layernorm.weight" } else { "post_attention_layernorm.weight" }
    }

    /// The checkpoint names of the norms after attention and after the MLP, if the model has them.
    pub fn post_norm_names(&self) -> Option<[&'static str; 2]> {
        self.post_norms.then_some(["post_attention_layernorm.weight", "post_feedforward_layernorm.weight"])
    }

    /// Names of the query, key and value tensors of a layer, to be stacked; `kind` is `weight` or `bias`.
    pub fn qkv_names(&self, layer: usize, kind: &str) -> Vec<String> {
        let parts: &[&str] = if self.is_fused { &["qkv_proj"] } else { &["q_proj", "k_proj", "v_proj"] };
        parts.iter().map(|part| format!("model.layers.{layer}.self_attn.{part}.{kind}")).collect()
    }

    /// Names of the gate and up tensors of a layer, to be stacked.
    pub fn gate_up_names(&self, layer: usize) -> Vec<String> {
        let parts: &[&str] = if self.is_fused { &["gate_up_proj"] } else { &["gate_proj", "up_proj"] };
        parts.iter().map(|part| format!("model.layers.{layer}.mlp.{part}.weight")).collect()
    }

    /// The experts of a layer that has them.
    pub fn experts_of_layer(&self, layer: usize) -> Option<Experts> {
        self.experts.filter(|_| self.expert_layers[layer])
    }

    /// What one row is between the GEMMs of an MLP: of all chosen experts together, where there are some.
    pub fn mlp_row_width(&self) -> usize {
        let of_experts = |experts: Experts| {
            experts.active.saturating_mul(experts.intermediate).saturating_add(experts.shared_intermediate)
        };
        self.widest_mlp().max(self.experts.map_or(0, of_experts))
    }

    /// The widest row between the GEMMs of an MLP.
    pub fn widest_mlp(&self) -> usize {
        let dense = if self.expert_layers.contains(&false) { self.intermediate } else { 0 };
        dense.max(self.experts.map_or(0, |experts| experts.intermediate.max(experts.shared_intermediate)))
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
        let mut tensors =
            vec![tensor(EMBEDDING, &[self.vocab, self.hidden]), tensor("model.norm.weight", &[self.hidden])];
        if !self.tied_embeddings {
            tensors.push(tensor("lm_head.weight", &[self.vocab, self.hidden]));
        }
        tensors
    }

    fn layer_tensors(&self, layer: usize) -> Vec<TensorShape> {
        // Sizes are at most u32::MAX, so these products cannot overflow 64 bits.
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let (hidden, intermediate) = (self.hidden, self.intermediate);
        let mut tensors = Vec::with_capacity(16);
        let mut push = |name: &str, shape: &[usize]| {
            tensors.push(TensorShape { name: format!("model.layers.{layer}.{name}"), shape: shape.to_vec() });
        };
        push("input_layernorm.weight", &[hidden]);
        if self.is_fused {
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
        if self.sinks {
            push("self_attn.sinks", &[self.heads]);
        }
        push(self.mlp_norm_name(), &[hidden]);
        for name in self.post_norm_names().into_iter().flatten() {
            push(name, &[hidden]);
        }
        if let Some(experts) = self.experts_of_layer(layer) {
            for (name, shape) in experts.tensors(hidden) {
                push(&name, &shape);
            }
            return tensors;
        }
        if self.is_fused {
            push("mlp.gate_up_proj.weight", &[2 * intermediate, hidden]);
        } else {
            push("mlp.gate_proj.weight", &[intermediate, hidden]);
            push("mlp.up_proj.weight", &[intermediate, hidden]);
        }
        push("mlp.down_proj.weight", &[hidden, intermediate]);
        tensors
    }
}

impl Experts {
    /// The number of experts that `rows` tokens are expected to use, if all are equally likely.
    pub fn touched(&self, rows: f64) -> f64 {
        touched(self.count as f64, self.active as f64, rows)
    }

    /// `kind` is `weight` or, of experts that are biased, `bias`; below too.
    pub fn router_name(&self, layer: usize, kind: &str) -> String {
        format!("model.layers.{layer}.{}.{}.{kind}", self.naming.block(), self.naming.router())
    }

    /// Names of the tensors of an expert: gate and up, to be stacked, and down.
    pub fn names(&self, layer: usize, expert: usize, kind: &str) -> ([String; 2], String) {
        let [gate, up, down] = self.naming.parts().map(|part| {
            format!("model.layers.{layer}.{}.experts.{expert}.{part}.{kind}", self.naming.block())
        });
        ([gate, up], down)
    }

    /// The same for the expert of all tokens, and the name of its gate.
    pub fn shared_names(&self, layer: usize) -> ([String; 2], String, String) {
        let [gate, up, down] = self
            .naming
            .parts()
            .map(|part| format!("model.layers.{layer}.{}.shared_expert.{part}.weight", self.naming.block()));
        ([gate, up], down, format!("model.layers.{layer}.{}.shared_expert_gate.weight", self.naming.block()))
    }

    /// Names without the layer, and shapes.
    fn tensors(&self, hidden: usize) -> Vec<(String, Vec<usize>)> {
        let (block, [gate, up, down]) = (self.naming.block(), self.naming.parts());
        let router = self.naming.router();
        let mut tensors = vec![(format!("{block}.{router}.weight"), vec![self.count, hidden])];
        if self.biased {
            tensors.push((format!("{block}.{router}.bias"), vec![self.count]));
        }
        let mut mlp = |owner: &str, intermediate: usize| {
            for (part, shape) in
                [(gate, [intermediate, hidden]), (up, [intermediate, hidden]), (down, [hidden, intermediate])]
            {
                tensors.push((format!("{block}.{owner}.{part}.weight"), shape.to_vec()));
                if self.biased {
                    tensors.push((format!("{block}.{owner}.{part}.bias"), vec![shape[0]]));
                }
            }
        };
        (0..self.count).for_each(|expert| mlp(&format!("experts.{expert}"), self.intermediate));
        if self.shared_intermediate > 0 {
            mlp("shared_expert", self.shared_intermediate);
            tensors.push((format!("{block}.shared_expert_gate.weight"), vec![1, hidden]));
        }
        tensors
    }
}

/// The number of `count` experts that `rows` tokens are expected to use with `active` each, if all are equally likely.
pub(super) fn touched(count: f64, active: f64, rows: f64) -> f64 {
    count * (1.0 - (1.0 - active / count).powf(rows))
}
