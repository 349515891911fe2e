//! The sizes of a decoder in a `config.json`.

use serde_json::{Map, Value};

use super::{
    ARCHITECTURES, Architecture, Attention, Bias, ExpertStyle, Mlp, Norms, Positions, QkNorm, RENAMED,
    WITH_TEXT, Windows,
};
use crate::{
    Dtype, Shape, SpecError,
    quantisation::Quantisation,
    shape::{Experts, Latent, LayerGroup, Linear, add_layer},
    spec::{
        MAX_PARAMETERS,
        keys::{Keys, kind_of, missing, wrong},
    },
    vision::VisionShape,
};

/// Sizes above this are refused, so that products of them fit.
const MAX_SIZE: u64 = 1 << 24;
/// The same for counts and sizes of heads.
const MAX_HEAD_SIZE: u64 = 1 << 16;

fn number(keys: &Keys<'_>, key: &str, default: u64) -> Result<u64, SpecError> {
    match keys.get(key) {
        None => Ok(default),
        Some(value) => value.as_u64().ok_or_else(|| wrong(key, "an integer", value)),
    }
}

/// The decoder of a model.
pub(crate) struct Decoder {
    pub architecture: &'static Architecture,
    /// Its keys, with defaults.
    pub keys: Map<String, Value>,
    /// Whether the engine runs it from the files of the model.
    pub runs: bool,
}

pub(crate) fn decoder(config: &Map<String, Value>) -> Result<Decoder, SpecError> {
    let keys = Keys(config);
    let outer = keys.text("model_type")?.ok_or(missing("model_type"))?;
    let whole = WITH_TEXT.iter().find(|one| one.model_type == outer);
    let (name, inner) = match whole {
        None => (outer, config),
        Some(whole) => {
            let inner = match keys.object("text_config")? {
                Some(inner) => Some(inner),
                None => keys.object("language_config")?,
            };
            match inner {
                Some(inner) => (inner.text("model_type")?.unwrap_or(whole.text), inner.0),
                None => (whole.text, config),
            }
        }
    };
    let found = ARCHITECTURES.iter().find(|one| one.model_type == name);
    let architecture = found.ok_or_else(|| SpecError::UnknownFamily { found: name.to_owned() })?;
    let mut inner = inner.clone();
    if let Some(tied) = keys.get("tie_word_embeddings") {
        // Newer configs have it beside the parts.
        inner.entry("tie_word_embeddings").or_insert_with(|| tied.clone());
    }
    let mut keys = with_defaults(inner, (architecture.defaults)());
    if architecture.mlp == Mlp::Plain {
        modernise(&mut keys, architecture.model_type);
    }
    Ok(Decoder { architecture, keys, runs: architecture.runs && whole.is_none_or(|whole| whole.runs) })
}

/// Keys for which null means "none", while an absent key means the default.
const NULL_IS_NONE: [&str; 3] = ["attn_logit_softcapping", "final_logit_softcapping", "sliding_window"];

fn with_defaults(mut keys: Map<String, Value>, defaults: Value) -> Map<String, Value> {
    for (key, default) in defaults.as_object().into_iter().flatten() {
        let is_set = keys.get(key).is_some_and(|v| !v.is_null() || NULL_IS_NONE.contains(&key.as_str()));
        if !is_set {
            keys.insert(key.clone(), default.clone());
        }
    }
    keys
}

/// Gives the keys of an older decoder their present names, and sizes that follow from others.
fn modernise(keys: &mut Map<String, Value>, model_type: &str) {
    for (old, new) in RENAMED {
        if let Some(value) = keys.get(*old).filter(|value| !value.is_null()).cloned() {
            keys.entry(*new).or_insert(value);
        }
    }
    let hidden = keys.get("hidden_size").and_then(Value::as_u64);
    if let Some(hidden) = hidden.filter(|_| keys.get("intermediate_size").is_none_or(Value::is_null)) {
        keys.insert("intermediate_size".into(), hidden.saturating_mul(4).into());
    }
    let is_set = |key: &str, default: bool| keys.get(key).and_then(Value::as_bool).unwrap_or(default);
    let kv_heads = match model_type {
        "falcon" if is_set("new_decoder_architecture", false) => keys.get("num_kv_heads").cloned(),
        "falcon" | "gpt_bigcode" if is_set("multi_query", true) => Some(1.into()),
        "falcon" | "gpt_bigcode" => None,
        _ => return,
    };
    match kv_heads {
        Some(count) => keys.insert("num_key_value_heads".into(), count),
        None => keys.remove("num_key_value_heads"),
    };
    if model_type == "falcon" {
        keys.entry("max_position_embeddings").or_insert(2048.into());
    }
}

impl Shape {
    /// The shape in a parsed `config.json`.
    pub fn from_hf(config: &Value, dtype: Dtype) -> Result<Shape, SpecError> {
        let config = config.as_object().ok_or(SpecError::NotAnObject { found: kind_of(config) })?;
        let decoder = decoder(config)?;
        let mut shape = decoder.architecture.shape(&Keys(&decoder.keys), dtype)?;
        shape.vision = VisionShape::from_hf(&Keys(config), shape.hidden, dtype)?;
        let parameters = shape.parameters();
        let in_vision = shape.vision.as_ref().map_or(0, VisionShape::parameters);
        if parameters.saturating_add(in_vision) > MAX_PARAMETERS {
            return Err(SpecError::TooManyParameters);
        }
        shape.quantisation = Quantisation::from_hf(config, shape.layer_count())?;
        shape.weight_bytes = match shape.quantisation {
            None => parameters.saturating_mul(shape.number_bytes),
            Some(_) => shape.stored_bytes().round() as u64,
        };
        Ok(shape)
    }
}

/// The matrices with biases.
pub(crate) struct AttentionBias {
    pub qkv: bool,
    pub output: bool,
    everywhere: bool,
}

impl Architecture {
    fn shape(&self, keys: &Keys<'_>, dtype: Dtype) -> Result<Shape, SpecError> {
        let size = |key| bounded(key, keys.size(key)?, MAX_SIZE);
        let sizes = keys.sizes()?;
        let latent = self.latent(keys)?;
        let head_dim = match latent {
            Some(latent) => latent.nope_dim + latent.rope_dim,
            None => bounded("head_dim", keys.head_dim(&sizes)?, MAX_HEAD_SIZE)?,
        };
        let bias = self.bias(keys)?;
        let max_positions = keys.size("max_position_embeddings")?;
        let experts = self.experts(keys)?;
        let linear = self.linear(keys)?;
        let dense = match self.experts {
            ExpertStyle::Llama4 => keys.optional_size("intermediate_size_mlp")?,
            _ => None,
        };
        Ok(Shape {
            kv_bits_of_32: None,
            vocab: size("vocab_size")?,
            hidden: bounded("hidden_size", sizes.hidden, MAX_SIZE)?,
            intermediate: match dense {
                Some(dense) => bounded("intermediate_size_mlp", dense, MAX_SIZE)?,
                None => size("intermediate_size")?,
            },
            heads: bounded("num_attention_heads", sizes.heads, MAX_HEAD_SIZE)?,
            kv_heads: if latent.is_some() { sizes.heads } else { sizes.kv_heads },
            head_dim,
            max_positions,
            layers: self.layers(keys, sizes.layers)?,
            experts,
            latent,
            linear,
            tied_embeddings: self.ties_embeddings(keys)?,
            qkv_bias: bias.qkv,
            output_bias: bias.output,
            mlp_bias: bias.everywhere || keys.flag("mlp_bias")?.unwrap_or(false),
            plain_mlp: self.mlp == Mlp::Plain,
            norm_bias: matches!(self.bias, Bias::Everywhere | Bias::EverywhereIf(..)),
            shared_norm: match self.norms {
                Norms::Shared => true,
                Norms::Falcon => falcon_shares_its_norm(keys)?,
                _ => false,
            },
            position_table: match self.positions {
                Positions::Computed => 0,
                Positions::Learned(more) => max_positions.saturating_add(more),
            },
            head_bias: self.model_type == "phi",
            qk_norm: match self.qk_norm {
                QkNorm::None => false,
                QkNorm::Heads | QkNorm::Rows => true,
                QkNorm::IfSet | QkNorm::RowsIfSet => keys.flag("use_qk_norm")?.unwrap_or(false),
            },
            qk_norm_by_row: matches!(self.qk_norm, QkNorm::Rows | QkNorm::RowsIfSet),
            output_gate: matches!(self.attention, Attention::Hybrid),
            sinks: self.has_sinks(),
            pre_norms: self.norms != Norms::After,
            post_norms: self.has_post_norms(),
            dtype: dtype.name().to_owned(),
            number_bytes: dtype.bytes(),
            weight_bytes: 0,
            quantisation: None,
            part_bytes: None,
            vision: None,
        })
    }

    pub(crate) fn bias(&self, keys: &Keys<'_>) -> Result<AttentionBias, SpecError> {
        let is_set = keys.flag("attention_bias")?.unwrap_or(false);
        let everywhere = match self.bias {
            Bias::Everywhere => true,
            Bias::EverywhereIf(key, default) => keys.flag(key)?.unwrap_or(default),
            _ => false,
        };
        let (qkv, output) = match self.bias {
            Bias::None => (false, false),
            Bias::Qkv => (true, false),
            Bias::QkvIfSet => (is_set, false),
            Bias::AllIfSet => (is_set, is_set),
            Bias::Everywhere | Bias::EverywhereIf(..) => (everywhere, everywhere),
        };
        Ok(AttentionBias { qkv, output, everywhere })
    }

    pub(crate) fn ties_embeddings(&self, keys: &Keys<'_>) -> Result<bool, SpecError> {
        Ok(keys.flag("tie_word_embeddings")?.unwrap_or(self.is_tied))
    }

    pub(crate) fn has_sinks(&self) -> bool {
        self.attention == Attention::Sinks
    }

    pub(crate) fn has_post_norms(&self) -> bool {
        matches!(self.norms, Norms::After | Norms::Both)
    }

    /// Whether each head of queries and keys has a norm.
    pub(crate) fn has_head_norms(&self) -> bool {
        self.qk_norm == QkNorm::Heads
    }

    fn latent(&self, keys: &Keys<'_>) -> Result<Option<Latent>, SpecError> {
        if !matches!(self.attention, Attention::Latent) || keys.flag("use_mla")? == Some(false) {
            return Ok(None);
        }
        let size = |key| bounded(key, keys.size(key)?, MAX_HEAD_SIZE);
        Ok(Some(Latent {
            q_rank: match keys.optional_size("q_lora_rank")? {
                Some(rank) => Some(bounded("q_lora_rank", rank, MAX_SIZE)?),
                None => None,
            },
            kv_rank: size("kv_lora_rank")?,
            nope_dim: size("qk_nope_head_dim")?,
            rope_dim: size("qk_rope_head_dim")?,
            value_dim: size("v_head_dim")?,
        }))
    }

    fn linear(&self, keys: &Keys<'_>) -> Result<Option<Linear>, SpecError> {
        if !matches!(self.attention, Attention::Hybrid) {
            return Ok(None);
        }
        let size = |key| bounded(key, keys.size(key)?, 1 << 12);
        Ok(Some(Linear {
            key_heads: size("linear_num_key_heads")?,
            key_dim: size("linear_key_head_dim")?,
            value_heads: size("linear_num_value_heads")?,
            value_dim: size("linear_value_head_dim")?,
            convolution: size("linear_conv_kernel_dim")?,
        }))
    }

    pub(crate) fn experts(&self, keys: &Keys<'_>) -> Result<Option<Experts>, SpecError> {
        let first = |names: &[&'static str]| -> Result<Option<u64>, SpecError> {
            for name in names {
                if keys.get(name).is_some_and(|value| value.as_u64() == Some(0)) {
                    continue;
                }
                if let Some(size) = keys.optional_size(name)? {
                    return Ok(Some(bounded(name, size, MAX_SIZE)?));
                }
            }
            Ok(None)
        };
        let required = |names: &[&'static str]| first(names)?.ok_or(missing(names[0]));
        if self.experts == ExpertStyle::None {
            return Ok(None);
        }
        let count = required(&["num_experts", "num_local_experts", "n_routed_experts"])?;
        let intermediate = match self.experts {
            ExpertStyle::Qwen | ExpertStyle::QwenShared | ExpertStyle::DeepSeek => {
                required(&["moe_intermediate_size", "intermediate_size"])?
            }
            _ => required(&["intermediate_size"])?,
        };
        let shared_intermediate = match self.experts {
            ExpertStyle::QwenShared => first(&["shared_expert_intermediate_size"])?.unwrap_or(0),
            ExpertStyle::DeepSeek => first(&["n_shared_experts"])?.unwrap_or(0).saturating_mul(intermediate),
            ExpertStyle::Llama4 => intermediate,
            _ => 0,
        };
        Ok(Some(Experts {
            count,
            active: required(&["num_experts_per_tok", "experts_per_token"])?.min(count),
            intermediate,
            shared_intermediate: bounded("n_shared_experts", shared_intermediate, MAX_SIZE)?,
            shared_gate: matches!(self.experts, ExpertStyle::Qwen | ExpertStyle::QwenShared),
            router_bias: match self.experts {
                ExpertStyle::GptOss => true,
                // The correction of the scores.
                ExpertStyle::DeepSeek => !matches!(self.model_type, "deepseek_v2" | "deepseek_ocr2_text"),
                _ => false,
            },
            bias: self.experts == ExpertStyle::GptOss,
        }))
    }

    /// The layers with experts.
    pub(crate) fn expert_layers(&self, keys: &Keys<'_>, count: u64) -> Result<Vec<bool>, SpecError> {
        let every = |key: &str| Ok::<u64, SpecError>(number(keys, key, 1)?.max(1));
        let (dense_first, frequency) = (number(keys, "first_k_dense_replace", 0)?, every("moe_layer_freq")?);
        let (sparse_step, interleave) = (every("decoder_sparse_step")?, every("interleave_moe_layer_step")?);
        let dense_layers = numbers(keys, "mlp_only_layers")?;
        if let (ExpertStyle::DeepSeek, Some(types)) = (self.experts, keys.get("mlp_layer_types")) {
            return sparse_layers(types, count);
        }
        let has_experts = |layer: u64| match self.experts {
            ExpertStyle::None => false,
            ExpertStyle::DeepSeek => layer >= dense_first && layer.is_multiple_of(frequency),
            ExpertStyle::Llama4 => (layer + 1).is_multiple_of(interleave),
            _ => !dense_layers.contains(&layer) && (layer + 1).is_multiple_of(sparse_step),
        };
        Ok((0..count).map(has_experts).collect())
    }

    fn layers(&self, keys: &Keys<'_>, count: u64) -> Result<Vec<LayerGroup>, SpecError> {
        let expert_layers = self.expert_layers(keys, count)?;
        let full_every = number(keys, "full_attention_interval", 4)?.max(1);
        let linear_types = keys.layers_of_type("linear_attention", count)?;
        let is_linear = |layer: u64| {
            let by_interval = || !(layer + 1).is_multiple_of(full_every);
            matches!(self.attention, Attention::Hybrid)
                && linear_types.as_ref().map_or_else(by_interval, |list| list[layer as usize])
        };
        let (window, windowed) = self.windows(keys, count)?;
        let mut layers = Vec::new();
        for layer in 0..count {
            let group = LayerGroup {
                count: 1,
                window: window.filter(|_| windowed[layer as usize]),
                has_experts: expert_layers[layer as usize],
                is_linear: is_linear(layer),
            };
            add_layer(&mut layers, group);
        }
        Ok(layers)
    }

    /// The window, and the layers that have it.
    pub(crate) fn windows(&self, keys: &Keys<'_>, count: u64) -> Result<(Option<u64>, Vec<bool>), SpecError> {
        let full_every = |n: u64| (0..count).map(|layer| !(layer + 1).is_multiple_of(n)).collect();
        let listed = keys.windowed_layers(count);
        let window = keys.optional_size("sliding_window");
        Ok(match self.windows {
            Windows::None => (None, vec![false; count as usize]),
            Windows::IfUsed if keys.flag("use_sliding_window")? != Some(true) => {
                (None, vec![false; count as usize])
            }
            Windows::All => (window?, listed?.unwrap_or_else(|| vec![true; count as usize])),
            Windows::IfUsed => {
                let full = number(keys, "max_window_layers", 0)?;
                (window?, listed?.unwrap_or_else(|| (0..count).map(|layer| layer >= full).collect()))
            }
            Windows::Alternating => {
                let pattern = keys.optional_size("sliding_window_pattern")?.unwrap_or(2);
                (window?, listed?.unwrap_or_else(|| full_every(pattern)))
            }
            Windows::Chunks => {
                let chunked = keys.layers_of_type("chunked_attention", count)?;
                (keys.optional_size("attention_chunk_size")?, chunked.unwrap_or_else(|| full_every(4)))
            }
        })
    }
}

/// The layers that `mlp_layer_types` calls sparse.
fn sparse_layers(types: &Value, count: u64) -> Result<Vec<bool>, SpecError> {
    let key = "mlp_layer_types";
    let list = types.as_array().ok_or_else(|| wrong(key, "a list", types))?;
    if list.len() as u64 != count {
        return Err(SpecError::WrongLength { key: key.to_owned(), expected: count, found: list.len() });
    }
    Ok(list.iter().map(|kind| kind.as_str() == Some("sparse")).collect())
}

/// Falcon runs attention and MLP side by side; the newer ones may have a norm for each.
fn falcon_shares_its_norm(keys: &Keys<'_>) -> Result<bool, SpecError> {
    if keys.flag("new_decoder_architecture")? == Some(true) {
        return Ok(keys.optional_size("num_ln_in_parallel_attn")? == Some(1));
    }
    Ok(keys.flag("parallel_attn")?.unwrap_or(true))
}

pub(crate) fn bounded(key: &'static str, value: u64, limit: u64) -> Result<u64, SpecError> {
    if value > limit { Err(SpecError::TooLarge { key, value, limit }) } else { Ok(value) }
}

/// A list of integers, empty where the key is missing.
pub(crate) fn numbers(keys: &Keys<'_>, key: &str) -> Result<Vec<u64>, SpecError> {
    let Some(value) = keys.get(key) else { return Ok(Vec::new()) };
    let list = value.as_array().ok_or_else(|| wrong(key, "a list", value))?;
    Ok(list.iter().filter_map(Value::as_u64).collect())
}
