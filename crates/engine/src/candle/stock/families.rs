//! The one table from a `model_type` to candle-transformers' model of it.

use std::collections::HashMap;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{
    deepseek2, falcon, gemma, gemma2, gemma3, glm4_new, granite, helium, llama, mamba, mamba2, mistral,
    mixtral, olmo, olmo2, phi, phi3, qwen2, qwen2_moe, qwen3, qwen3_moe, stable_lm, starcoder2,
};
use serde_json::json;

use super::config::Config;
use llm_cost::spec::TensorShape;

/// A model of candle-transformers, of any family.
pub trait CausalLm: Send {
    /// Processes `ids` (batch, length) after the `position` tokens so far. Returns the logits after the last of
    /// them: one row per sequence, possibly with dimensions of size one between.
    fn forward(&mut self, ids: &Tensor, position: usize) -> Result<Tensor>;

    /// Forgets the sequences; the weights stay.
    fn reset(&mut self) -> Result<()>;
}

/// The inputs of a model's constructor.
pub(super) struct Parts<'a> {
    pub config: &'a Config,
    pub builder: VarBuilder<'a>,
    /// Every tensor of the model; empty while they are being counted.
    pub tensors: &'a [TensorShape],
    pub batch: usize,
}

impl Parts<'_> {
    fn dtype(&self) -> DType {
        self.builder.dtype()
    }

    fn device(&self) -> &Device {
        self.builder.device()
    }
}

/// One row of the table.
pub(super) struct Family {
    /// The value of `model_type` in a `config.json`.
    pub model_type: &'static str,
    pub make: fn(Parts) -> Result<Box<dyn CausalLm>>,
    /// Whether it supports a batch of more than one sequence.
    pub batches: bool,
    /// Values per position of one sequence in the caches of all layers.
    pub cached_numbers: fn(&Config) -> u64,
    /// The maximum number of positions besides that of its config.
    pub most_positions: Option<usize>,
    /// Every layer has its own rotary tables.
    pub rotary_tables_per_layer: bool,
    /// The head dimension is `hidden_size / num_attention_heads`, whatever `head_dim` is.
    pub ignores_head_dim: bool,
}

const PLAIN: Family = Family {
    model_type: "",
    make: |_| candle_core::bail!("no family"),
    batches: true,
    cached_numbers: keys_and_values,
    most_positions: None,
    rotary_tables_per_layer: false,
    ignores_head_dim: false,
};

/// Every family that can be built from a `config.json`.
pub(super) static FAMILIES: [Family; 23] = [
    Family { model_type: "llama", make: make_llama, ignores_head_dim: true, ..PLAIN },
    Family { model_type: "mistral", make: make_mistral, ..PLAIN },
    Family { model_type: "mixtral", make: make_mixtral, ignores_head_dim: true, ..PLAIN },
    Family { model_type: "qwen2", make: make_qwen2, ignores_head_dim: true, ..PLAIN },
    Family { model_type: "qwen2_moe", make: make_qwen2_moe, ignores_head_dim: true, ..PLAIN },
    Family { model_type: "qwen3", make: make_qwen3, ..PLAIN },
    Family { model_type: "qwen3_moe", make: make_qwen3_moe, ..PLAIN },
    Family { model_type: "gemma", make: make_gemma, ..PLAIN },
    Family { model_type: "gemma2", make: make_gemma2, ..PLAIN },
    Family { model_type: "gemma3_text", make: make_gemma3, rotary_tables_per_layer: true, ..PLAIN },
    Family {
        model_type: "phi",
        make: make_phi,
        rotary_tables_per_layer: true,
        ignores_head_dim: true,
        ..PLAIN
    },
    Family { model_type: "phi3", make: make_phi3, ignores_head_dim: true, ..PLAIN },
    Family {
        model_type: "falcon",
        make: make_falcon,
        // Its one key head is broadcast over the query heads of a single sequence.
        batches: false,
        cached_numbers: |config| 2 * config.layers() * (config.hidden() / config.heads()),
        most_positions: Some(5000),
        ignores_head_dim: true,
        ..PLAIN
    },
    Family { model_type: "starcoder2", make: make_starcoder2, ignores_head_dim: true, ..PLAIN },
    Family { model_type: "stablelm", make: make_stablelm, ignores_head_dim: true, ..PLAIN },
    Family { model_type: "olmo", make: make_olmo, ignores_head_dim: true, ..PLAIN },
    Family { model_type: "olmo2", make: make_olmo2, ignores_head_dim: true, ..PLAIN },
    Family { model_type: "granite", make: make_granite, ignores_head_dim: true, ..PLAIN },
    // Its rotary embedding is applied to the first sequence only.
    Family { model_type: "glm4", make: make_glm4, batches: false, ..PLAIN },
    Family { model_type: "helium", make: make_helium, ..PLAIN },
    Family { model_type: "deepseek_v2", make: make_deepseek2, cached_numbers: expanded_latents, ..PLAIN },
    // Its state has no dimension for a second sequence: B is broadcast over the channels.
    Family { model_type: "mamba", make: make_mamba, batches: false, cached_numbers: |_| 0, ..PLAIN },
    Family { model_type: "mamba2", make: make_mamba2, cached_numbers: |_| 0, ..PLAIN },
];

/// The row of `model_type`.
pub(super) fn family(model_type: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.model_type == model_type)
}

fn keys_and_values(config: &Config) -> u64 {
    2 * config.layers() * config.kv_heads() * config.head_dim()
}

/// DeepSeek's keys and values are cached per head, expanded from the latents.
fn expanded_latents(config: &Config) -> u64 {
    let width = |key| config.number(&[key]).unwrap_or(0);
    config.layers()
        * config.heads()
        * (width("qk_nope_head_dim") + width("qk_rope_head_dim") + width("v_head_dim"))
}

/// Models that receive the position and clear their caches themselves.
macro_rules! told_the_position {
    ($($model:ty),+) => {$(
        impl CausalLm for $model {
            fn forward(&mut self, ids: &Tensor, position: usize) -> Result<Tensor> {
                <$model>::forward(self, ids, position)
            }

            fn reset(&mut self) -> Result<()> {
                self.clear_kv_cache();
                Ok(())
            }
        }
    )+};
}
pub(super) use told_the_position;

told_the_position!(
    mistral::Model,
    qwen2::ModelForCausalLM,
    qwen2_moe::Model,
    qwen3::ModelForCausalLM,
    qwen3_moe::ModelForCausalLM,
    gemma::Model,
    gemma2::Model,
    gemma3::Model,
    phi3::Model,
    starcoder2::Model,
    olmo::Model,
    olmo2::Model,
    glm4_new::ModelForCausalLM,
    helium::Model,
    deepseek2::DeepSeekV2
);

/// Models that count positions by their caches.
macro_rules! counts_positions_itself {
    ($($model:ty),+) => {$(
        impl CausalLm for $model {
            fn forward(&mut self, ids: &Tensor, _position: usize) -> Result<Tensor> {
                <$model>::forward(self, ids)
            }

            fn reset(&mut self) -> Result<()> {
                self.clear_kv_cache();
                Ok(())
            }
        }
    )+};
}

counts_positions_itself!(phi::Model, falcon::Falcon);

/// A model with a separate cache.
struct Beside<M, C> {
    model: M,
    cache: C,
    empty: C,
}

macro_rules! cache_beside {
    ($($family:ident::$model:ident),+) => {$(
        impl CausalLm for Beside<$family::$model, $family::Cache> {
            fn forward(&mut self, ids: &Tensor, position: usize) -> Result<Tensor> {
                self.model.forward(ids, position, &mut self.cache)
            }

            fn reset(&mut self) -> Result<()> {
                self.cache = self.empty.clone();
                Ok(())
            }
        }
    )+};
}

cache_beside!(llama::Llama, granite::Granite);

/// A model that cannot clear its state: an unused copy replaces it. Copies share their weights.
pub(super) struct Renewed<M> {
    pub model: M,
    pub unread: M,
}

impl<M: Clone> Renewed<M> {
    pub fn new(model: M) -> Renewed<M> {
        Renewed { model: model.clone(), unread: model }
    }
}

impl CausalLm for Renewed<mixtral::Model> {
    fn forward(&mut self, ids: &Tensor, position: usize) -> Result<Tensor> {
        self.model.forward(ids, position)
    }

    fn reset(&mut self) -> Result<()> {
        self.model = self.unread.clone();
        Ok(())
    }
}

/// A model that can neither clear its state nor be copied: it is built again from the same tensors.
struct StableLm {
    config: stable_lm::Config,
    weights: VarBuilder<'static>,
    model: stable_lm::Model,
}

impl CausalLm for StableLm {
    fn forward(&mut self, ids: &Tensor, position: usize) -> Result<Tensor> {
        self.model.forward(ids, position)
    }

    fn reset(&mut self) -> Result<()> {
        self.model = stable_lm::Model::new(&self.config, self.weights.clone())?;
        Ok(())
    }
}

struct Mamba {
    model: mamba::Model,
    config: mamba::Config,
    state: mamba::State,
    batch: usize,
}

impl CausalLm for Mamba {
    fn forward(&mut self, ids: &Tensor, _position: usize) -> Result<Tensor> {
        let mut logits = None;
        for token in columns(ids)? {
            logits = Some(self.model.forward(&token, &mut self.state)?);
        }
        logits.ok_or_else(nothing_to_read)
    }

    fn reset(&mut self) -> Result<()> {
        let (dtype, device) = (self.model.dtype(), self.state.hs[0].device().clone());
        self.state = mamba::State::new(self.batch, &self.config, dtype, &device)?;
        Ok(())
    }
}

struct Mamba2 {
    model: mamba2::Model,
    config: mamba2::Config,
    state: mamba2::State,
    batch: usize,
    /// Tokens of a prompt that are processed together.
    chunk: usize,
}

impl CausalLm for Mamba2 {
    /// A prompt is processed in parallel chunks; later tokens one by one.
    fn forward(&mut self, ids: &Tensor, position: usize) -> Result<Tensor> {
        let length = ids.dim(1)?;
        if position == 0 && length > 1 {
            return self.model.forward_prefill(ids, &mut self.state, self.chunk)?.narrow(1, length - 1, 1);
        }
        let mut logits = None;
        for token in columns(ids)? {
            logits = Some(self.model.forward(&token, &mut self.state)?);
        }
        logits.ok_or_else(nothing_to_read)
    }

    fn reset(&mut self) -> Result<()> {
        let (dtype, device) = (self.model.dtype(), self.state.hs[0].device().clone());
        self.state = mamba2::State::new(self.batch, &self.config, dtype, &device)?;
        Ok(())
    }
}

/// The tokens of one position after the other, each for all sequences.
fn columns(ids: &Tensor) -> Result<Vec<Tensor>> {
    (0..ids.dim(1)?).map(|i| ids.narrow(1, i, 1)?.squeeze(1)?.contiguous()).collect()
}

fn nothing_to_read() -> candle_core::Error {
    candle_core::Error::Msg("the input has no token".to_owned())
}

type Made = Result<Box<dyn CausalLm>>;

fn boxed(model: impl CausalLm + 'static) -> Made {
    Ok(Box::new(model))
}

/// The window if a config has none: all positions.
fn whole_window(config: &Config) -> u64 {
    config.number(&["max_position_embeddings"]).unwrap_or(1)
}

fn make_llama(parts: Parts) -> Made {
    let config: llama::LlamaConfig = parts.config.parse(json!({"rms_norm_eps": 1e-6}))?;
    let config = config.into_config(false);
    let empty = llama::Cache::new(true, parts.dtype(), &config, parts.device())?;
    boxed(Beside { model: llama::Llama::load(parts.builder, &config)?, cache: empty.clone(), empty })
}

fn make_granite(parts: Parts) -> Made {
    let config: granite::GraniteConfig = parts.config.parse(json!({"rms_norm_eps": 1e-6}))?;
    let config = config.into_config(false);
    let empty = granite::Cache::new(true, parts.dtype(), &config, parts.device())?;
    boxed(Beside { model: granite::Granite::load(parts.builder, &config)?, cache: empty.clone(), empty })
}

fn make_mistral(parts: Parts) -> Made {
    let defaults = json!({
        "num_key_value_heads": parts.config.kv_heads(), "rms_norm_eps": 1e-6, "rope_theta": 10_000.0
    });
    boxed(mistral::Model::new(&parts.config.parse(defaults)?, parts.builder)?)
}

fn make_mixtral(parts: Parts) -> Made {
    let defaults = json!({
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 1e6, "use_flash_attn": false,
        "sliding_window": whole_window(parts.config)
    });
    boxed(Renewed::new(mixtral::Model::new(&parts.config.parse(defaults)?, parts.builder)?))
}

/// Defaults of keys that configs of the qwen families omit.
fn qwen_defaults(config: &Config) -> serde_json::Value {
    json!({
        "num_key_value_heads": config.kv_heads(), "head_dim": config.head_dim(), "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "attention_bias": false, "tie_word_embeddings": false,
        "use_sliding_window": false, "sliding_window": whole_window(config),
        "max_window_layers": config.layers(), "decoder_sparse_step": 1, "norm_topk_prob": false
    })
}

fn make_qwen2(parts: Parts) -> Made {
    let config = parts.config.parse(qwen_defaults(parts.config))?;
    boxed(qwen2::ModelForCausalLM::new(&config, parts.builder)?)
}

fn make_qwen2_moe(parts: Parts) -> Made {
    boxed(qwen2_moe::Model::new(&parts.config.parse(qwen_defaults(parts.config))?, parts.builder)?)
}

fn make_qwen3(parts: Parts) -> Made {
    let config = parts.config.parse(qwen_defaults(parts.config))?;
    boxed(qwen3::ModelForCausalLM::new(&config, parts.builder)?)
}

fn make_qwen3_moe(parts: Parts) -> Made {
    let config = parts.config.parse(qwen_defaults(parts.config))?;
    boxed(qwen3_moe::ModelForCausalLM::new(&config, parts.builder)?)
}

/// Defaults of keys that configs of the gemma families omit.
fn gemma_defaults() -> serde_json::Value {
    json!({
        "attention_bias": false, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0,
        "rope_local_base_freq": 10_000.0, "sliding_window_pattern": 6
    })
}

fn make_gemma(parts: Parts) -> Made {
    // If both are present, the newer key takes precedence.
    let config = match parts.config.has("hidden_activation") {
        true => parts.config.clone().without("hidden_act"),
        false => parts.config.clone(),
    };
    boxed(gemma::Model::new(false, &config.parse(gemma_defaults())?, parts.builder)?)
}

fn make_gemma2(parts: Parts) -> Made {
    boxed(gemma2::Model::new(false, &parts.config.parse(gemma_defaults())?, parts.builder)?)
}

fn make_gemma3(parts: Parts) -> Made {
    boxed(gemma3::Model::new(false, &parts.config.parse(gemma_defaults())?, parts.builder)?)
}

fn make_phi(parts: Parts) -> Made {
    let defaults = json!({"tie_word_embeddings": false, "qk_layernorm": false, "rope_theta": 10_000.0});
    boxed(phi::Model::new(&parts.config.parse(defaults)?, parts.builder)?)
}

fn make_phi3(parts: Parts) -> Made {
    let defaults = json!({"num_key_value_heads": parts.config.kv_heads(), "rope_theta": 10_000.0});
    boxed(phi3::Model::new(&parts.config.parse(defaults)?, parts.builder)?)
}

fn make_falcon(parts: Parts) -> Made {
    let defaults = json!({
        "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "use_cache": true, "bos_token_id": 11,
        "eos_token_id": 11, "hidden_dropout": 0.0, "attention_dropout": 0.0, "alibi": false,
        "new_decoder_architecture": false, "multi_query": true, "parallel_attn": true, "bias": false
    });
    let config: falcon::Config = parts.config.parse(defaults)?;
    config.validate()?;
    if !config.multi_query {
        candle_core::bail!("multi_query false is not supported");
    }
    boxed(falcon::Falcon::load(parts.builder, config)?)
}

fn make_starcoder2(parts: Parts) -> Made {
    let defaults = json!({"norm_epsilon": 1e-5, "rope_theta": 10_000.0, "use_bias": true});
    boxed(starcoder2::Model::new(&parts.config.parse(defaults)?, parts.builder)?)
}

fn make_stablelm(parts: Parts) -> Made {
    let defaults = json!({
        "num_key_value_heads": parts.config.kv_heads(), "hidden_act": "silu", "partial_rotary_factor": 0.25,
        "rope_theta": 10_000.0, "layer_norm_eps": 1e-5, "use_cache": true
    });
    let config: stable_lm::Config = parts.config.parse(defaults)?;
    if parts.tensors.is_empty() {
        // A model that is only counted has no tensors to keep.
        let model = stable_lm::Model::new(&config, parts.builder)?;
        let weights = VarBuilder::from_tensors(HashMap::new(), DType::F32, &Device::Cpu);
        return boxed(StableLm { config, weights, model });
    }
    let mut tensors = HashMap::with_capacity(parts.tensors.len());
    for TensorShape { name, shape } in parts.tensors {
        tensors.insert(name.clone(), parts.builder.get(shape.as_slice(), name)?);
    }
    let weights = VarBuilder::from_tensors(tensors, parts.dtype(), parts.device());
    let model = stable_lm::Model::new(&config, weights.clone())?;
    boxed(StableLm { config, weights, model })
}

fn make_olmo(parts: Parts) -> Made {
    let defaults = json!({
        "num_key_value_heads": parts.config.kv_heads(), "attention_bias": false, "hidden_act": "silu",
        "rope_theta": 10_000.0, "tie_word_embeddings": false, "rms_norm_eps": 1e-5
    });
    boxed(olmo::Model::new(&parts.config.parse(defaults)?, parts.builder)?)
}

fn make_olmo2(parts: Parts) -> Made {
    let defaults = json!({
        "num_key_value_heads": parts.config.kv_heads(), "attention_bias": false, "hidden_act": "silu",
        "rope_theta": 500_000.0, "tie_word_embeddings": false, "rms_norm_eps": 1e-5
    });
    boxed(olmo2::Model::new(&parts.config.parse(defaults)?, parts.builder)?)
}

fn make_glm4(parts: Parts) -> Made {
    let defaults = json!({"hidden_act": "silu", "rope_theta": 10_000.0, "tie_word_embeddings": false});
    boxed(glm4_new::ModelForCausalLM::new(&parts.config.parse(defaults)?, parts.builder)?)
}

fn make_helium(parts: Parts) -> Made {
    let defaults = json!({
        "attention_bias": false, "mlp_bias": false, "bos_token_id": 1, "eos_token_id": 2,
        "head_dim": parts.config.head_dim(), "hidden_act": "silu", "tie_word_embeddings": false
    });
    boxed(helium::Model::new(&parts.config.parse(defaults)?, parts.builder)?)
}

fn make_deepseek2(parts: Parts) -> Made {
    let defaults = json!({"attention_bias": false, "n_group": 1, "topk_group": 1, "rope_theta": 10_000.0});
    boxed(deepseek2::DeepSeekV2::new(&parts.config.parse(defaults)?, parts.builder)?)
}

fn make_mamba(parts: Parts) -> Made {
    let defaults = json!({
        "d_model": parts.config.hidden(), "n_layer": parts.config.layers(), "pad_vocab_size_multiple": 8
    });
    let config: mamba::Config = parts.config.parse(defaults)?;
    let state = mamba::State::new(parts.batch, &config, parts.dtype(), parts.device())?;
    let builder = parts.builder.rename_f(|name: &str| name.replace("embedding.", "embeddings."));
    let model = mamba::Model::new(&config, builder.pp("backbone"))?;
    boxed(Mamba { model, config, state, batch: parts.batch })
}

fn make_mamba2(parts: Parts) -> Made {
    // One key of each pair: candle accepts both names for the same key and refuses duplicates.
    let config = parts.config.clone().without("d_model").without("n_layer");
    let config: mamba2::Config = config.parse(json!({}))?;
    let state = mamba2::State::new(parts.batch, &config, parts.dtype(), parts.device())?;
    let model = mamba2::Model::new(&config, parts.builder.pp("backbone"))?;
    let chunk = parts.config.number(&["chunk_size"]).unwrap_or(256) as usize;
    boxed(Mamba2 { model, config, state, batch: parts.batch, chunk })
}
