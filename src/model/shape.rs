//! The sizes of a model that determine its cost. They are recorded with a run, to compute costs from the recording.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{ModelSpec, SpecError};
use crate::config::Dtype;

/// Sizes and storage types. Unlike a [`ModelSpec`] it can have experts, and it does not define the computation.
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
    #[serde(default)]
    pub tied_embeddings: bool,
    #[serde(default)]
    pub qkv_bias: bool,
    #[serde(default)]
    pub output_bias: bool,
    #[serde(default)]
    pub qk_norm: bool,
    #[serde(default)]
    pub post_norms: bool,
    /// Type of activations, KV cache and arithmetic: "f32", "f16" or "bf16".
    pub dtype: String,
    /// Bytes of one number of that type.
    pub number_bytes: u64,
    /// Bytes of all weights as stored; less than `number_bytes` for each if quantised.
    pub weight_bytes: u64,
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
}

/// The mixture of experts of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Experts {
    pub count: u64,
    /// Experts per token.
    pub active: u64,
    /// Intermediate size of each expert.
    pub intermediate: u64,
    /// Intermediate size of the shared expert, which has a gate; 0 if there is none.
    #[serde(default)]
    pub shared_intermediate: u64,
}

/// Families with experts, and the dense family that is otherwise equal.
const WITH_EXPERTS: [(&str, &str); 3] =
    [("mixtral", "mistral"), ("qwen2_moe", "qwen2"), ("qwen3_moe", "qwen3")];

impl Shape {
    pub fn new(spec: &ModelSpec, dtype: Dtype, weight_bytes: u64) -> Shape {
        let mut layers: Vec<LayerGroup> = Vec::new();
        for layer in 0..spec.layers {
            let window = spec.window_of_layer(layer).map(|window| window as u64);
            add_layer(&mut layers, LayerGroup { count: 1, window, has_experts: false });
        }
        Shape {
            vocab: spec.vocab as u64,
            hidden: spec.hidden as u64,
            intermediate: spec.intermediate as u64,
            heads: spec.heads as u64,
            kv_heads: spec.kv_heads as u64,
            head_dim: spec.head_dim as u64,
            max_positions: spec.max_positions as u64,
            layers,
            experts: None,
            tied_embeddings: spec.tied_embeddings,
            qkv_bias: spec.qkv_bias,
            output_bias: spec.output_bias,
            qk_norm: spec.qk_norm,
            post_norms: spec.post_norms,
            dtype: dtype.name().to_owned(),
            number_bytes: dtype.bytes(),
            weight_bytes,
        }
    }

    /// The shape in a parsed `config.json`, for the families of [`ModelSpec`] and those with experts.
    pub fn from_hf(config: &Value, dtype: Dtype) -> Result<Shape, SpecError> {
        let model_type = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
        let mut shape = match WITH_EXPERTS.iter().find(|(name, _)| *name == model_type) {
            Some((_, dense)) => Self::with_experts(config, dense, dtype)?,
            None => Self::new(&ModelSpec::from_hf(config)?, dtype, 0),
        };
        shape.weight_bytes = shape.parameters().saturating_mul(shape.number_bytes);
        Ok(shape)
    }

    fn with_experts(config: &Value, dense: &str, dtype: Dtype) -> Result<Shape, SpecError> {
        let mut as_dense = config.clone();
        as_dense["model_type"] = json!(dense);
        let spec = ModelSpec::from_hf(&as_dense)?;
        let size = |keys: &[&str]| match keys.iter().find_map(|key| Some((key, config.get(key)?))) {
            None => Ok(None),
            Some((_, Value::Null)) => Ok(None),
            Some((key, value)) => match value.as_u64().filter(|n| *n <= u64::from(u32::MAX)) {
                Some(n) => Ok(Some(n)),
                None => Err(SpecError::WrongType {
                    key: (*key).to_owned(),
                    expected: "an integer below 2^32",
                    found: value.to_string(),
                }),
            },
        };
        let required = |keys: &[&'static str]| {
            size(keys)?.filter(|n| *n > 0).ok_or_else(|| SpecError::MissingKey { key: keys[0].to_owned() })
        };
        let count = required(&["num_experts", "num_local_experts"])?;
        let experts = Experts {
            count,
            active: required(&["num_experts_per_tok"])?.min(count),
            intermediate: size(&["moe_intermediate_size"])?.unwrap_or(spec.intermediate as u64),
            shared_intermediate: size(&["shared_expert_intermediate_size"])?
                .filter(|_| dense == "qwen2")
                .unwrap_or(0),
        };
        let every = size(&["decoder_sparse_step"])?.unwrap_or(1).max(1);
        let dense_layers: Vec<u64> = config
            .get("mlp_only_layers")
            .and_then(Value::as_array)
            .map(|list| list.iter().filter_map(Value::as_u64).collect())
            .unwrap_or_default();
        let mut layers = Vec::new();
        for layer in 0..spec.layers {
            let number = layer as u64;
            let has_experts = !dense_layers.contains(&number) && (number + 1).is_multiple_of(every);
            let window = spec.window_of_layer(layer).map(|window| window as u64);
            add_layer(&mut layers, LayerGroup { count: 1, window, has_experts });
        }
        Ok(Shape { layers, experts: Some(experts), ..Self::new(&spec, dtype, 0) })
    }

    /// The shape with weights of `bits` bits each.
    pub fn quantised(mut self, bits: f64) -> Shape {
        self.weight_bytes = (self.parameters() as f64 * bits / 8.0).round() as u64;
        self
    }

    pub fn layer_count(&self) -> u64 {
        self.layers.iter().map(|group| group.count).sum()
    }

    /// Sizes of a query row and of a key or value row.
    pub fn row_widths(&self) -> (u64, u64) {
        (self.heads.saturating_mul(self.head_dim), self.kv_heads.saturating_mul(self.head_dim))
    }

    /// Parameters of all tensors; tied embeddings count once.
    pub fn parameters(&self) -> u64 {
        self.count_parameters(|experts| experts.count)
    }

    /// Parameters used for one token: only the active experts, but complete embedding tables.
    pub fn active_parameters(&self) -> u64 {
        self.count_parameters(|experts| experts.active)
    }

    fn count_parameters(&self, expert_count: impl Fn(&Experts) -> u64) -> u64 {
        let (q, kv) = self.row_widths();
        let (h, matrix) = (u128::from(self.hidden), |a: u64, b: u64| u128::from(a) * u128::from(b));
        let mut layer = matrix(q + 2 * kv, self.hidden) + matrix(q, self.hidden) + 2 * h;
        layer += if self.qkv_bias { u128::from(q + 2 * kv) } else { 0 };
        layer += if self.output_bias { h } else { 0 };
        layer += if self.qk_norm { 2 * u128::from(self.head_dim) } else { 0 };
        layer += if self.post_norms { 2 * h } else { 0 };
        let mut all = matrix(self.vocab, self.hidden) * if self.tied_embeddings { 1 } else { 2 } + h;
        for group in &self.layers {
            let mlp = match self.experts.filter(|_| group.has_experts) {
                None => 3 * matrix(self.intermediate, self.hidden),
                Some(experts) => {
                    let shared = 3 * matrix(experts.shared_intermediate, self.hidden);
                    let gate = if experts.shared_intermediate > 0 { h } else { 0 };
                    matrix(experts.count, self.hidden)
                        + 3 * matrix(experts.intermediate, self.hidden) * u128::from(expert_count(&experts))
                        + shared
                        + gate
                }
            };
            all += (layer + mlp) * u128::from(group.count);
        }
        u64::try_from(all).unwrap_or(u64::MAX)
    }

    /// KV cache bytes per position of one sequence, over all layers.
    pub fn kv_bytes_per_position(&self) -> u64 {
        let (_, kv) = self.row_widths();
        2 * kv * self.layer_count() * self.number_bytes
    }

    /// Mean bytes per weight as stored.
    pub fn bytes_per_weight(&self) -> f64 {
        self.weight_bytes as f64 / self.parameters().max(1) as f64
    }
}

fn add_layer(groups: &mut Vec<LayerGroup>, layer: LayerGroup) {
    let same =
        |group: &&mut LayerGroup| (group.window, group.has_experts) == (layer.window, layer.has_experts);
    match groups.iter_mut().find(same) {
        Some(group) => group.count += layer.count,
        None => groups.push(layer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(model_type: &str) -> Value {
        json!({
            "model_type": model_type, "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "max_position_embeddings": 32768, "sliding_window": null
        })
    }

    fn with(mut base: Value, changes: Value) -> Value {
        for (key, value) in changes.as_object().unwrap() {
            base[key] = value.clone();
        }
        base
    }

    #[test]
    fn parameter_counts_of_models_with_experts() {
        let mixtral = with(base("mixtral"), json!({"num_local_experts": 8, "num_experts_per_tok": 2}));
        let qwen3 = json!({
            "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
            "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32,
            "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
            "max_position_embeddings": 40960, "decoder_sparse_step": 1, "mlp_only_layers": []
        });
        let qwen2 = json!({
            "model_type": "qwen2_moe", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632,
            "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_hidden_layers": 24,
            "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 60, "num_experts_per_tok": 4,
            "max_position_embeddings": 8192, "decoder_sparse_step": 1
        });
        // Counts of the checkpoints of Mixtral-8x7B-v0.1, Qwen3-30B-A3B and Qwen1.5-MoE-A2.7B.
        for (name, config, all, active) in [
            ("mixtral", mixtral, 46_702_792_704, 12_879_925_248),
            ("qwen3_moe", qwen3, 30_532_122_624, 3_353_032_704),
            ("qwen2_moe", qwen2, 14_315_784_192, 2_689_173_504),
        ] {
            let shape = Shape::from_hf(&config, Dtype::Bf16).unwrap();
            assert_eq!(shape.parameters(), all, "{name}");
            assert_eq!(shape.active_parameters(), active, "{name}");
            assert_eq!(shape.weight_bytes, 2 * all, "{name}");
        }
    }

    #[test]
    fn layers_are_grouped_by_cost() {
        let gemma = json!({
            "model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 1152, "intermediate_size": 6912,
            "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
            "sliding_window": 512, "sliding_window_pattern": 6
        });
        let shape = Shape::from_hf(&gemma, Dtype::F32).unwrap();
        let counts: Vec<_> = shape.layers.iter().map(|group| (group.count, group.window)).collect();
        assert_eq!(counts, [(22, Some(512)), (4, None)]);
        let sparse = json!({"num_local_experts": 8, "num_experts_per_tok": 2, "decoder_sparse_step": 2});
        let shape = Shape::from_hf(&with(base("mixtral"), sparse), Dtype::F32).unwrap();
        assert_eq!(shape.layers.iter().filter(|group| group.has_experts).map(|g| g.count).sum::<u64>(), 16);
    }

    #[test]
    fn shapes_are_serialised_and_parsed_back() {
        let shape = Shape::from_hf(&base("mistral"), Dtype::Bf16).unwrap().quantised(4.5);
        let text = serde_json::to_string(&shape).unwrap();
        assert_eq!(serde_json::from_str::<Shape>(&text).unwrap(), shape);
        assert!((shape.bytes_per_weight() - 4.5 / 8.0).abs() < 1e-9);
    }

    #[test]
    fn errors_name_the_key() {
        for (changes, expected) in [
            (json!({}), "num_experts is missing"),
            (json!({"num_local_experts": 8}), "num_experts_per_tok is missing"),
            (json!({"num_local_experts": "8"}), "num_local_experts must be an integer"),
        ] {
            let error = Shape::from_hf(&with(base("mixtral"), changes), Dtype::F32).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(Shape::from_hf(&json!([]), Dtype::F32).is_err());
        assert!(Shape::from_hf(&base("falcon"), Dtype::F32).is_err());
    }
}
