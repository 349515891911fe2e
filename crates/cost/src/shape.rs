//! The sizes of a model that determine its cost. They are recorded with a run, to compute costs from the recording.

use serde::{Deserialize, Serialize};

use super::defaults::{is_false, is_true, is_zero, yes};
use super::{
    ModelSpec,
    quantisation::{Part, Quantisation},
    spec::{ExpertNaming, TensorShape},
    vision::VisionShape,
};
use crate::{Dtype, KvCacheDtype};

/// Sizes and storage types. Unlike a [`ModelSpec`] it can have experts, latent and linear attention, and it does not define
/// the computation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    pub vocab: u64,
    pub hidden: u64,
    /// Intermediate size of the dense MLP.
    pub intermediate: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub head_dim: u64,
    pub max_positions: u64,
    /// The layers, grouped by equal cost.
    pub layers: Vec<LayerGroup>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<Experts>,
    /// Attention with compressed keys and values (MLA).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latent: Option<Latent>,
    /// The attention of layers without a KV cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub linear: Option<Linear>,
    #[serde(default)]
    pub tied_embeddings: bool,
    #[serde(default)]
    pub qkv_bias: bool,
    #[serde(default)]
    pub output_bias: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    pub mlp_bias: bool,
    /// Whether the MLP has no gate: up and down only.
    #[serde(default, skip_serializing_if = "is_false")]
    pub plain_mlp: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    pub head_bias: bool,
    /// Rows of the table of learned positions; 0 without one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub position_table: u64,
    #[serde(default)]
    pub qk_norm: bool,
    /// Whether that norm has a weight for each number of a row, not of a head.
    #[serde(default, skip_serializing_if = "is_false")]
    pub qk_norm_by_row: bool,
    /// Whether the query projection also makes a gate of the output.
    #[serde(default, skip_serializing_if = "is_false")]
    pub output_gate: bool,
    /// Whether each head has a learned score that no position has.
    #[serde(default, skip_serializing_if = "is_false")]
    pub sinks: bool,
    /// Norms before attention and MLP.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub pre_norms: bool,
    /// Whether attention and MLP have one norm before them, not two.
    #[serde(default, skip_serializing_if = "is_false")]
    pub shared_norm: bool,
    /// Norms after attention and MLP.
    #[serde(default)]
    pub post_norms: bool,
    /// Whether norms have a bias too.
    #[serde(default, skip_serializing_if = "is_false")]
    pub norm_bias: bool,
    /// Type of activations, KV cache and arithmetic: "f32", "f16" or "bf16".
    pub dtype: String,
    /// Bytes of one number of that type.
    pub number_bytes: u64,
    /// Bytes of all weights as stored; less than `number_bytes` for each if quantised.
    pub weight_bytes: u64,
    /// How the matrices are stored, if the model states it; else all weights have equal size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantisation: Option<Quantisation>,
    /// The parts of `weight_bytes`, if the tensors show them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part_bytes: Option<PartBytes>,
    /// Bits of 32 numbers of the KV cache, where they are not of the model's type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_bits_of_32: Option<u64>,
    /// The encoder that turns images into embeddings, if it is known. It is not part of `weight_bytes` and
    /// [`parameters`](Shape::parameters), which are the decoder's: a decode step does not read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vision: Option<VisionShape>,
}

/// Bytes of all weights of attention, of the MLP or the experts, of the head, and of the rest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartBytes {
    attention: u64,
    mlp: u64,
    head: u64,
    other: u64,
}

impl PartBytes {
    fn part_mut(&mut self, part: Part) -> &mut u64 {
        match part {
            Part::Attention => &mut self.attention,
            Part::Mlp => &mut self.mlp,
            Part::Head => &mut self.head,
            Part::Other => &mut self.other,
        }
    }
}

/// The part that a tensor belongs to.
fn part_of(tensor: &TensorShape) -> Part {
    let is_in = |block: &str| tensor.name.contains(block);
    match tensor.shape.len() {
        2 if tensor.name == "lm_head.weight" => Part::Head,
        2 if is_in(".self_attn.") => Part::Attention,
        2 if (is_in(".mlp.") || is_in(".block_sparse_moe.")) && !tensor.is_router() => Part::Mlp,
        _ => Part::Other,
    }
}

/// Layers with equal cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerGroup {
    pub count: u64,
    /// Attention window in positions, including the current one; `None` for full attention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// Whether the MLP is a mixture of experts.
    #[serde(default)]
    pub has_experts: bool,
    /// Whether the attention is linear.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_linear: bool,
}

/// The mixture of experts of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Experts {
    pub count: u64,
    /// Experts per token.
    pub active: u64,
    /// Intermediate size of each expert.
    pub intermediate: u64,
    /// Intermediate size of the shared experts together; 0 if there are none.
    #[serde(default)]
    pub shared_intermediate: u64,
    /// Whether the shared expert has a gate.
    #[serde(default = "yes")]
    pub shared_gate: bool,
    /// Whether the router has a bias for each expert.
    #[serde(default, skip_serializing_if = "is_false")]
    pub router_bias: bool,
    /// Whether the matrices of experts have biases.
    #[serde(default, skip_serializing_if = "is_false")]
    pub bias: bool,
}

impl Experts {
    pub(super) fn has_shared_gate(&self) -> bool {
        self.shared_gate && self.shared_intermediate > 0
    }
}

/// Attention whose keys and values are made of one short row for each position; only that row is cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latent {
    /// Width of compressed queries; `None` if queries are not compressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub q_rank: Option<u64>,
    pub kv_rank: u64,
    /// Part of a head without rotary embedding.
    pub nope_dim: u64,
    /// Part with it; the heads share one key of this width.
    pub rope_dim: u64,
    pub value_dim: u64,
}

/// Attention with a state of constant size for each sequence (gated delta rule).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Linear {
    pub key_heads: u64,
    pub key_dim: u64,
    pub value_heads: u64,
    pub value_dim: u64,
    /// Positions that the convolution before it covers.
    pub convolution: u64,
}

impl Linear {
    /// Widths of a key row and of a value row.
    pub(super) fn row_widths(&self) -> (u64, u64) {
        (self.key_heads * self.key_dim, self.value_heads * self.value_dim)
    }

    /// Numbers of the state of one sequence in one layer.
    pub(super) fn state(&self) -> u64 {
        let (key, value) = self.row_widths();
        self.value_heads * self.key_dim * self.value_dim
            + (2 * key + value) * self.convolution.saturating_sub(1)
    }
}

/// The tensors of a layer's attention.
pub(super) struct AttentionTensors {
    /// Matrices before attention, as (inputs, outputs).
    pub projections: Vec<(u64, u64)>,
    /// Weights of biases, norms and convolutions.
    pub small: u64,
    /// The matrix after attention.
    pub output: (u64, u64),
}

impl Shape {
    pub fn new(spec: &ModelSpec, dtype: Dtype, weight_bytes: u64) -> Shape {
        let mut layers: Vec<LayerGroup> = Vec::new();
        for layer in 0..spec.layers {
            let window = spec.window_of_layer(layer).map(|window| window as u64);
            let has_experts = spec.expert_layers[layer];
            add_layer(&mut layers, LayerGroup { count: 1, window, has_experts, is_linear: false });
        }
        Shape {
            kv_bits_of_32: None,
            vocab: spec.vocab as u64,
            hidden: spec.hidden as u64,
            intermediate: spec.intermediate as u64,
            heads: spec.heads as u64,
            kv_heads: spec.kv_heads as u64,
            head_dim: spec.head_dim as u64,
            max_positions: spec.max_positions as u64,
            layers,
            experts: spec.experts.map(|experts| Experts {
                count: experts.count as u64,
                active: experts.active as u64,
                intermediate: experts.intermediate as u64,
                shared_intermediate: experts.shared_intermediate as u64,
                shared_gate: experts.naming == ExpertNaming::Qwen,
                router_bias: experts.biased,
                bias: experts.biased,
            }),
            latent: None,
            linear: None,
            tied_embeddings: spec.tied_embeddings,
            qkv_bias: spec.qkv_bias,
            output_bias: spec.output_bias,
            mlp_bias: false,
            plain_mlp: false,
            head_bias: false,
            position_table: 0,
            qk_norm: spec.qk_norm,
            qk_norm_by_row: false,
            output_gate: false,
            sinks: spec.sinks,
            pre_norms: true,
            shared_norm: false,
            post_norms: spec.post_norms,
            norm_bias: false,
            dtype: dtype.name().to_owned(),
            number_bytes: dtype.bytes(),
            weight_bytes,
            quantisation: None,
            part_bytes: None,
            vision: None,
        }
    }

    /// The same model with tensors of these bytes.
    pub fn stored_as(self, tensors: &[TensorShape], bytes: impl Fn(&TensorShape) -> u64) -> Shape {
        let mut parts = PartBytes::default();
        for tensor in tensors {
            *parts.part_mut(part_of(tensor)) += bytes(tensor);
        }
        let weight_bytes = [parts.attention, parts.mlp, parts.head, parts.other].iter().sum();
        Shape { weight_bytes, part_bytes: Some(parts), ..self }
    }

    /// The shape with weights of `bits` bits each.
    pub fn quantised(mut self, bits: f64) -> Shape {
        let bytes = |parameters: u64| (parameters as f64 * bits / 8.0).round() as u64;
        self.quantisation = None;
        self.part_bytes = None;
        self.weight_bytes = bytes(self.parameters());
        if let Some(vision) = &mut self.vision {
            vision.weight_bytes = bytes(vision.parameters());
        }
        self
    }

    pub fn layer_count(&self) -> u64 {
        self.layers.iter().map(|group| group.count).sum()
    }

    /// Sizes of a query row and of a key or value row.
    pub fn row_widths(&self) -> (u64, u64) {
        (self.heads.saturating_mul(self.head_dim), self.kv_heads.saturating_mul(self.head_dim))
    }

    /// Outputs of the first GEMM of an MLP.
    pub(super) fn up_width(&self, intermediate: u64) -> u64 {
        if self.plain_mlp { intermediate } else { intermediate.saturating_mul(2) }
    }

    /// Weights of a norm of a row.
    pub(super) fn norm_numbers(&self) -> u64 {
        if self.norm_bias { 2 * self.hidden } else { self.hidden }
    }

    /// Numbers in the KV cache per position and sequence, in one layer of `group`.
    pub(super) fn cached_numbers(&self, group: &LayerGroup) -> u64 {
        match self.latent {
            _ if group.is_linear => 0,
            Some(latent) => latent.kv_rank + latent.rope_dim,
            None => 2 * self.row_widths().1,
        }
    }

    pub(super) fn attention_tensors(&self, group: &LayerGroup) -> AttentionTensors {
        let (h, (q, kv)) = (self.hidden, self.row_widths());
        if let Some(linear) = self.linear.filter(|_| group.is_linear) {
            let (key, value) = linear.row_widths();
            return AttentionTensors {
                // Queries, keys, values and the gate; two numbers per head for decay and update.
                projections: vec![(h, 2 * key + 2 * value + 2 * linear.value_heads)],
                small: linear.convolution * (2 * key + value) + 2 * linear.value_heads + linear.value_dim,
                output: (value, h),
            };
        }
        if let Some(Latent { q_rank, kv_rank, nope_dim, rope_dim, value_dim }) = self.latent {
            let mut projections = match q_rank {
                Some(rank) => vec![(h, rank), (rank, q)],
                None => vec![(h, q)],
            };
            projections.push((h, kv_rank + rope_dim));
            projections.push((kv_rank, self.heads * (nope_dim + value_dim)));
            let small = q_rank.unwrap_or(0) + kv_rank;
            return AttentionTensors { projections, small, output: (self.heads * value_dim, h) };
        }
        let outputs = q + 2 * kv;
        let norm = if self.qk_norm_by_row { q + kv } else { 2 * self.head_dim };
        AttentionTensors {
            projections: vec![(h, outputs + if self.output_gate { q } else { 0 })],
            small: if self.qkv_bias { outputs } else { 0 }
                + if self.qk_norm { norm } else { 0 }
                + if self.sinks { self.heads } else { 0 },
            output: (q, h),
        }
    }

    /// Parameters of all tensors of the decoder; tied embeddings count once.
    pub fn parameters(&self) -> u64 {
        self.count_parameters(|experts| experts.count)
    }

    /// Parameters used for one token: only the active experts, but complete embedding tables.
    pub fn active_parameters(&self) -> u64 {
        self.count_parameters(|experts| experts.active)
    }

    fn count_parameters(&self, expert_count: impl Fn(&Experts) -> u64) -> u64 {
        let all: u128 = self.parameters_by_part(expert_count).iter().map(|(_, n)| n).sum();
        u64::try_from(all).unwrap_or(u64::MAX)
    }

    /// Parameters by the part of the model that they are stored with.
    fn parameters_by_part(&self, expert_count: impl Fn(&Experts) -> u64) -> [(Part, u128); 4] {
        let (h, matrix) = (u128::from(self.hidden), |a: u64, b: u64| u128::from(a) * u128::from(b));
        let table = matrix(self.vocab, self.hidden);
        let norm = u128::from(self.norm_numbers());
        let before = if !self.pre_norms { 0 } else { 2 - u128::from(self.shared_norm) };
        let norms = norm * (before + if self.post_norms { 2 } else { 0 });
        let small_of_all = norms + if self.output_bias { h } else { 0 };
        let (mut attention, mut mlp, mut other) = (0, 0, table + norm);
        other += matrix(self.position_table, self.hidden);
        other += if self.head_bias { u128::from(self.vocab) } else { 0 };
        for group in &self.layers {
            let count = u128::from(group.count);
            let AttentionTensors { projections, small, output } = self.attention_tensors(group);
            let matrices: u128 = projections.iter().map(|(a, b)| matrix(*a, *b)).sum();
            attention += count * (matrices + matrix(output.0, output.1));
            other += count * (u128::from(small) + small_of_all);
            let gated = |intermediate: u64| matrix(self.up_width(intermediate) + intermediate, self.hidden);
            let bias = |intermediate: u64| h + u128::from(self.up_width(intermediate));
            match self.experts.filter(|_| group.has_experts) {
                None => {
                    mlp += count * gated(self.intermediate);
                    other += if self.mlp_bias { count * bias(self.intermediate) } else { 0 };
                }
                Some(experts) => {
                    let used = u128::from(expert_count(&experts));
                    mlp += count * (used * gated(experts.intermediate) + gated(experts.shared_intermediate));
                    let mut small = matrix(experts.count, self.hidden);
                    small += if experts.router_bias { u128::from(experts.count) } else { 0 };
                    small += if experts.bias { used * bias(experts.intermediate) } else { 0 };
                    small += if experts.has_shared_gate() { h } else { 0 };
                    other += count * small;
                }
            }
        }
        let head = if self.tied_embeddings { 0 } else { table };
        [(Part::Attention, attention), (Part::Mlp, mlp), (Part::Head, head), (Part::Other, other)]
    }

    /// Mean bytes of a weight of `part`.
    pub(super) fn weight_size(&self, part: Part) -> f64 {
        match (&self.quantisation, self.part_bytes) {
            (Some(quantisation), _) => quantisation.bytes(part, self.number_bytes as f64),
            (None, Some(mut bytes)) => {
                let all = self.parameters_by_part(|experts| experts.count);
                let weights = all.iter().find(|(of, _)| *of == part).map_or(0, |(_, n)| *n);
                *bytes.part_mut(part) as f64 / weights.max(1) as f64
            }
            (None, None) => self.bytes_per_weight(),
        }
    }

    /// Bytes of all weights, each part as `quantisation` stores it.
    pub(super) fn stored_bytes(&self) -> f64 {
        let parts = self.parameters_by_part(|experts| experts.count);
        parts.iter().map(|(part, n)| *n as f64 * self.weight_size(*part)).sum()
    }

    /// KV cache bytes per position of one sequence, over all layers.
    pub fn kv_bytes_per_position(&self) -> u64 {
        let numbers = |group: &LayerGroup| self.cached_numbers(group).saturating_mul(group.count);
        let numbers = self.layers.iter().map(numbers).fold(0, u64::saturating_add);
        numbers.saturating_mul(self.kv_bits_of_32()) / (8 * 32)
    }

    /// The same model with another KV cache.
    pub fn with_kv_cache(self, kv_cache: KvCacheDtype) -> Shape {
        match kv_cache {
            KvCacheDtype::Auto => self,
            // The same in every type.
            _ => Shape { kv_bits_of_32: Some(kv_cache.bits_of_32(Dtype::Bf16)), ..self },
        }
    }

    fn kv_bits_of_32(&self) -> u64 {
        let quantised = self.quantisation.as_ref().and_then(|quantisation| quantisation.kv_bits);
        let of_32 = |bits: u64| bits.saturating_mul(32);
        self.kv_bits_of_32.unwrap_or_else(|| of_32(quantised.unwrap_or(8 * self.number_bytes)))
    }

    /// Bytes of a number in the KV cache.
    pub(super) fn kv_number_bytes(&self) -> f64 {
        self.kv_bits_of_32() as f64 / (8.0 * 32.0)
    }

    /// Bytes of the states of linear attention of one sequence, over all layers.
    pub fn state_bytes(&self) -> u64 {
        let layers: u64 = self.layers.iter().filter(|group| group.is_linear).map(|group| group.count).sum();
        self.linear.map_or(0, |linear| linear.state().saturating_mul(layers).saturating_mul(STATE_BYTES))
    }

    /// Mean bytes per weight as stored.
    pub fn bytes_per_weight(&self) -> f64 {
        self.weight_bytes as f64 / self.parameters().max(1) as f64
    }
}

/// The states of linear attention are f32.
pub(super) const STATE_BYTES: u64 = 4;

pub(super) fn add_layer(groups: &mut Vec<LayerGroup>, layer: LayerGroup) {
    let same = |group: &&mut LayerGroup| LayerGroup { count: layer.count, ..**group } == layer;
    match groups.iter_mut().find(same) {
        Some(group) => group.count += layer.count,
        None => groups.push(layer),
    }
}

#[cfg(test)]
mod tests;
