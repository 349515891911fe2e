//! The decoders that are known, and how they differ: a row for each.

use serde_json::{Value, json};

mod reader;

pub(super) use reader::{bounded, decoder, numbers};
#[cfg(test)]
mod tests;

/// A decoder, by what distinguishes it from Llama's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Architecture {
    pub(super) model_type: &'static str,
    /// Whether the engine runs it. The cost of the others is known.
    pub(super) runs: bool,
    /// `general.architecture` of its GGUF files, if the engine reads them.
    gguf: Option<&'static str>,
    /// The defaults of Hugging Face for keys that a `config.json` may omit.
    defaults: fn() -> Value,
    /// The key of the activation function, and what it is without that key.
    pub(super) activation: Gate,
    /// Whether embeddings are scaled, and the weights of norms are stored centred at zero.
    pub(super) is_centred: bool,
    /// Whether checkpoints store queries, keys and values in one matrix, and gate and up in another.
    pub(super) is_fused: bool,
    /// Whether windowed layers have a RoPE base of their own.
    pub(super) has_local_rope: bool,
    bias: Bias,
    norms: Norms,
    qk_norm: QkNorm,
    windows: Windows,
    pub(super) experts: ExpertStyle,
    attention: Attention,
    mlp: Mlp,
    positions: Positions,
    /// Whether the head is the embedding, if `tie_word_embeddings` is missing.
    is_tied: bool,
}

/// Biases of attention, and of the MLP and the norms in older decoders.
#[derive(Debug, Clone, Copy)]
enum Bias {
    None,
    /// Queries, keys and values have biases.
    Qkv,
    /// Queries, keys and values have biases if `attention_bias` is set.
    QkvIfSet,
    /// All attention matrices have biases if `attention_bias` is set.
    AllIfSet,
    /// All matrices of the layers have biases, and so do the norms, which are layer norms.
    Everywhere,
    /// The norms have biases; the matrices have them if this key, or else this default, is true.
    EverywhereIf(&'static str, bool),
}

/// The gate of the MLP.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Gate {
    /// In `hidden_act`; SiLU without it.
    HiddenAct,
    /// In `hidden_activation`: Gemma's older key `hidden_act` has "gelu" for the tanh form.
    HiddenActivation,
    /// gpt-oss's.
    SwigluOai,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Norms {
    Before,
    After,
    Both,
    /// One norm before attention and MLP, which run side by side.
    Shared,
    /// One or two before, depending on Falcon's keys.
    Falcon,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mlp {
    /// Gate, up and down.
    Gated,
    /// Up and down.
    Plain,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Positions {
    Computed,
    /// A table with so many more rows than positions.
    Learned(u64),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum QkNorm {
    None,
    Heads,
    Rows,
    /// If `use_qk_norm` is set.
    IfSet,
    RowsIfSet,
}

#[derive(Debug, Clone, Copy)]
enum Windows {
    None,
    /// In all layers, unless `layer_types` names some.
    All,
    /// As `All`, but for the first `max_window_layers`, if `use_sliding_window` is set.
    IfUsed,
    /// In the layers that `layer_types` names, or all but every `sliding_window_pattern`-th.
    Alternating,
    /// Chunks of `attention_chunk_size` in all but every fourth layer.
    Chunks,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ExpertStyle {
    None,
    /// In every layer, as large as the MLP.
    Mixtral,
    Qwen,
    /// With a shared expert that has a gate.
    QwenShared,
    /// With shared experts; the first layers are dense.
    DeepSeek,
    /// With biases.
    GptOss,
    /// One shared expert, in every n-th layer.
    Llama4,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Attention {
    Grouped,
    Latent,
    /// Linear in most layers; the others have an output gate.
    Hybrid,
    /// With a learned score for no position.
    Sinks,
}

const NO_DEFAULTS: fn() -> Value = || json!({});

const LLAMA: Architecture = Architecture {
    model_type: "llama",
    runs: true,
    gguf: Some("llama"),
    defaults: NO_DEFAULTS,
    activation: Gate::HiddenAct,
    is_centred: false,
    is_fused: false,
    has_local_rope: false,
    bias: Bias::AllIfSet,
    norms: Norms::Before,
    qk_norm: QkNorm::None,
    windows: Windows::None,
    experts: ExpertStyle::None,
    attention: Attention::Grouped,
    mlp: Mlp::Gated,
    positions: Positions::Computed,
    is_tied: false,
};

/// As Llama's, but the engine does not run it.
const fn like_llama(model_type: &'static str) -> Architecture {
    Architecture { model_type, ..LLAMA.cost_only() }
}

/// As GPT-2's: layer norms, biases, an MLP without a gate.
const fn like_gpt2(model_type: &'static str) -> Architecture {
    Architecture { bias: Bias::Everywhere, mlp: Mlp::Plain, is_tied: true, ..like_llama(model_type) }
}

impl Architecture {
    const fn cost_only(self) -> Architecture {
        Architecture { runs: false, gguf: None, ..self }
    }
}

const MISTRAL: Architecture = Architecture {
    model_type: "mistral",
    // GGUF files have `llama`, whose tensors are the same.
    gguf: None,
    bias: Bias::None,
    windows: Windows::All,
    ..LLAMA
};
const QWEN2: Architecture = Architecture {
    model_type: "qwen2",
    gguf: Some("qwen2"),
    bias: Bias::Qkv,
    windows: Windows::IfUsed,
    ..LLAMA
};
const QWEN3: Architecture = Architecture {
    model_type: "qwen3",
    gguf: Some("qwen3"),
    qk_norm: QkNorm::Heads,
    windows: Windows::IfUsed,
    ..LLAMA
};
const PHI3: Architecture = Architecture {
    model_type: "phi3",
    gguf: Some("phi3"),
    is_fused: true,
    bias: Bias::None,
    windows: Windows::All,
    ..LLAMA
};
const SEED_OSS: Architecture = Architecture {
    model_type: "seed_oss",
    gguf: None,
    defaults: || json!({"head_dim": 128, "attention_bias": true}),
    bias: Bias::QkvIfSet,
    ..LLAMA
};
const GEMMA2: Architecture = Architecture {
    model_type: "gemma2",
    gguf: Some("gemma2"),
    defaults: || {
        json!({
            "vocab_size": 256_000, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 8192,
            "query_pre_attn_scalar": 256, "sliding_window": 4096, "sliding_window_pattern": 2,
            "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0
        })
    },
    activation: Gate::HiddenActivation,
    is_centred: true,
    norms: Norms::Both,
    windows: Windows::Alternating,
    is_tied: true,
    ..LLAMA
};
const GEMMA3: Architecture = Architecture {
    model_type: "gemma3_text",
    gguf: Some("gemma3"),
    defaults: || {
        json!({
            "vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 131_072,
            "query_pre_attn_scalar": 256, "sliding_window": 4096, "sliding_window_pattern": 6,
            "rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0
        })
    },
    has_local_rope: true,
    qk_norm: QkNorm::Heads,
    ..GEMMA2
};
const GPT_OSS: Architecture = Architecture {
    model_type: "gpt_oss",
    gguf: Some("gpt-oss"),
    defaults: || {
        json!({
            "vocab_size": 201_088, "head_dim": 64, "sliding_window": 128, "sliding_window_pattern": 2,
            "rope_theta": 150_000.0, "attention_bias": true
        })
    },
    activation: Gate::SwigluOai,
    windows: Windows::Alternating,
    experts: ExpertStyle::GptOss,
    attention: Attention::Sinks,
    ..LLAMA
};
const OLMO2: Architecture =
    Architecture { norms: Norms::After, qk_norm: QkNorm::Rows, ..like_llama("olmo2") };
const GLM: Architecture = Architecture { bias: Bias::QkvIfSet, ..like_llama("glm") };
const DEEPSEEK: Architecture = Architecture {
    experts: ExpertStyle::DeepSeek,
    attention: Attention::Latent,
    ..like_llama("deepseek_v2")
};
const COHERE: Architecture =
    Architecture { norms: Norms::Shared, qk_norm: QkNorm::RowsIfSet, is_tied: true, ..like_llama("cohere") };

/// Every decoder that is known.
const ARCHITECTURES: &[Architecture] = &[
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    PHI3,
    SEED_OSS,
    GEMMA2,
    GEMMA3,
    Architecture { model_type: "mixtral", gguf: Some("llama"), experts: ExpertStyle::Mixtral, ..MISTRAL },
    Architecture {
        model_type: "qwen2_moe",
        gguf: Some("qwen2moe"),
        experts: ExpertStyle::QwenShared,
        ..QWEN2
    },
    Architecture { model_type: "qwen3_moe", gguf: Some("qwen3moe"), experts: ExpertStyle::Qwen, ..QWEN3 },
    GPT_OSS,
    Architecture {
        experts: ExpertStyle::QwenShared,
        attention: Attention::Hybrid,
        qk_norm: QkNorm::Heads,
        ..like_llama("qwen3_next")
    },
    DEEPSEEK,
    Architecture { model_type: "deepseek_v3", ..DEEPSEEK },
    Architecture { model_type: "kimi_k2", ..DEEPSEEK },
    Architecture { model_type: "deepseek_ocr2_text", attention: Attention::Grouped, ..DEEPSEEK },
    Architecture { windows: Windows::Chunks, experts: ExpertStyle::Llama4, ..like_llama("llama4_text") },
    Architecture { model_type: "phi4", ..PHI3.cost_only() },
    Architecture { model_type: "qwen2_vl_text", ..QWEN2.cost_only() },
    Architecture { model_type: "qwen2_5_vl_text", ..QWEN2.cost_only() },
    Architecture { model_type: "qwen3_vl_text", ..QWEN3.cost_only() },
    Architecture { model_type: "qwen3_vl_moe_text", experts: ExpertStyle::Qwen, ..QWEN3.cost_only() },
    Architecture { is_tied: true, ..like_llama("gemma") },
    OLMO2,
    Architecture { model_type: "olmo3", windows: Windows::Alternating, ..OLMO2 },
    like_llama("granite"),
    Architecture { experts: ExpertStyle::Mixtral, ..like_llama("granitemoe") },
    like_llama("smollm3"),
    GLM,
    Architecture { model_type: "glm4", norms: Norms::Both, ..GLM },
    Architecture { model_type: "glm4_moe", experts: ExpertStyle::DeepSeek, qk_norm: QkNorm::IfSet, ..GLM },
    COHERE,
    Architecture { model_type: "cohere2", windows: Windows::Alternating, qk_norm: QkNorm::None, ..COHERE },
    Architecture { bias: Bias::EverywhereIf("bias", false), norms: Norms::Falcon, ..like_gpt2("falcon") },
    Architecture { positions: Positions::Learned(0), ..like_gpt2("gpt2") },
    Architecture { positions: Positions::Learned(0), ..like_gpt2("gpt_bigcode") },
    Architecture { is_tied: false, ..like_gpt2("gpt_neox") },
    Architecture { positions: Positions::Learned(2), ..like_gpt2("opt") },
    Architecture { is_tied: false, norms: Norms::Shared, ..like_gpt2("phi") },
    Architecture {
        bias: Bias::EverywhereIf("use_bias", true),
        windows: Windows::All,
        ..like_gpt2("starcoder2")
    },
];

/// Older names of keys.
const RENAMED: &[(&str, &str)] = &[
    ("n_embd", "hidden_size"),
    ("n_inner", "intermediate_size"),
    ("ffn_dim", "intermediate_size"),
    ("ffn_hidden_size", "intermediate_size"),
    ("n_layer", "num_hidden_layers"),
    ("n_head", "num_attention_heads"),
    ("n_positions", "max_position_embeddings"),
];

/// A model whose text decoder is one of its parts.
struct WithText {
    model_type: &'static str,
    /// The decoder's `model_type` if `text_config` or `language_config` does not have it.
    text: &'static str,
    /// Whether the engine runs the decoder from the files of such a model.
    runs: bool,
}

const fn with_text(model_type: &'static str, text: &'static str) -> WithText {
    WithText { model_type, text, runs: false }
}

const WITH_TEXT: [WithText; 12] = [
    WithText { runs: true, ..with_text("gemma3", "gemma3_text") },
    with_text("mistral3", "mistral"),
    with_text("llama4", "llama4_text"),
    with_text("qwen2_vl", "qwen2_vl_text"),
    with_text("qwen2_5_vl", "qwen2_5_vl_text"),
    with_text("qwen3_vl", "qwen3_vl_text"),
    with_text("qwen3_vl_moe", "qwen3_vl_moe_text"),
    with_text("got_ocr2", "qwen2"),
    with_text("deepseek_ocr2", "deepseek_ocr2_text"),
    with_text("deepseek_vl_v2", "deepseek_v2"),
    with_text("deepseek_vl", "llama"),
    with_text("deepseek_vl_hybrid", "llama"),
];

fn models(wanted: impl Fn(bool) -> bool) -> impl Iterator<Item = &'static str> {
    let decoders = ARCHITECTURES.iter().map(|one| (one.model_type, one.runs));
    let all = decoders.chain(WITH_TEXT.iter().map(|one| (one.model_type, one.runs)));
    all.filter(move |(_, runs)| wanted(*runs)).map(|(name, _)| name)
}

/// Every `model_type` that the engine runs.
pub fn runnable() -> impl Iterator<Item = &'static str> {
    models(|runs| runs)
}

/// Every other `model_type` whose cost is known.
pub fn cost_only() -> impl Iterator<Item = &'static str> {
    models(|runs| !runs)
}

/// `general.architecture` of the GGUF files that the engine reads.
pub fn gguf_names() -> Vec<&'static str> {
    let mut names = Vec::new();
    for name in ARCHITECTURES.iter().filter_map(|one| one.gguf) {
        // Some have the same name with experts as without.
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// The `model_type` of a GGUF file, by its `general.architecture` and whether it has experts: `None` if the
/// architecture is not known, an error if it is not known with them, or without.
pub fn model_type_of_gguf(name: &str, has_experts: bool) -> Option<Result<&'static str, ()>> {
    let mut named = ARCHITECTURES.iter().filter(|one| one.gguf == Some(name)).peekable();
    named.peek()?;
    let found = named.find(|one| (one.experts != ExpertStyle::None) == has_experts);
    Some(found.map(|one| one.model_type).ok_or(()))
}

/// The lists as a table.
pub fn markdown() -> String {
    let list = |names: &mut dyn Iterator<Item = &str>| names.collect::<Vec<_>>().join(", ");
    format!(
        "| | `model_type` |\n|---|---|\n| `runtime=candle` runs | {} |\n| GGUF files with `general.architecture` | {} \
         |\n| `cost` also knows | {} |\n",
        list(&mut runnable()),
        list(&mut gguf_names().into_iter()),
        list(&mut cost_only())
    )
}
