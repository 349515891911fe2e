//! The decoders whose cost is known, and how they differ.

use super::spec::Family;

mod reader;

pub(super) use reader::{bounded, experts, numbers};
#[cfg(test)]
mod tests;

/// A decoder: what it has in common with a family of the engine, and how it differs.
#[derive(Debug, Clone, Copy)]
struct Architecture {
    model_type: &'static str,
    /// Its windows and defaults are those of this family.
    like: Family,
    /// Whether the engine runs it.
    runs: bool,
    bias: Bias,
    norms: Norms,
    qk_norm: QkNorm,
    windows: Windows,
    experts: ExpertStyle,
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

#[derive(Debug, Clone, Copy)]
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

#[derive(Debug, Clone, Copy)]
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
    OfFamily,
    /// In the layers that `layer_types` names.
    LayerTypes,
    /// Chunks of `attention_chunk_size` in all but every fourth layer.
    Chunks,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum ExpertStyle {
    None,
    /// In every layer, as large as the MLP.
    Mixtral,
    /// With a shared expert that has a gate, where there is one.
    Qwen,
    /// With shared experts; the first layers are dense.
    DeepSeek,
    /// With biases.
    GptOss,
    /// One shared expert, in every n-th layer.
    Llama4,
}

#[derive(Debug, Clone, Copy)]
enum Attention {
    Grouped,
    Latent,
    /// Linear in most layers; the others have an output gate.
    Hybrid,
    /// With a learned score for no position.
    Sinks,
}

/// As in Llama.
const fn like(like: Family, model_type: &'static str) -> Architecture {
    Architecture {
        model_type,
        like,
        runs: false,
        bias: Bias::AllIfSet,
        norms: Norms::Before,
        qk_norm: QkNorm::None,
        windows: Windows::None,
        experts: ExpertStyle::None,
        attention: Attention::Grouped,
        mlp: Mlp::Gated,
        positions: Positions::Computed,
        is_tied: false,
    }
}

/// As in GPT-2: layer norms, biases, an MLP without a gate.
const fn older(model_type: &'static str) -> Architecture {
    Architecture { bias: Bias::Everywhere, mlp: Mlp::Plain, is_tied: true, ..like(Family::Llama, model_type) }
}

const LLAMA: Architecture = Architecture { runs: true, ..like(Family::Llama, "llama") };
const MISTRAL: Architecture = Architecture {
    runs: true,
    bias: Bias::None,
    windows: Windows::OfFamily,
    ..like(Family::Mistral, "mistral")
};
const QWEN2: Architecture =
    Architecture { runs: true, bias: Bias::Qkv, windows: Windows::OfFamily, ..like(Family::Qwen2, "qwen2") };
const QWEN3: Architecture = Architecture {
    runs: true,
    qk_norm: QkNorm::Heads,
    windows: Windows::OfFamily,
    ..like(Family::Qwen3, "qwen3")
};
const PHI3: Architecture =
    Architecture { runs: true, bias: Bias::None, windows: Windows::OfFamily, ..like(Family::Phi3, "phi3") };
const GEMMA2: Architecture = Architecture {
    runs: true,
    norms: Norms::Both,
    windows: Windows::OfFamily,
    ..like(Family::Gemma2, "gemma2")
};
const GEMMA3: Architecture = Architecture {
    runs: true,
    norms: Norms::Both,
    qk_norm: QkNorm::Heads,
    windows: Windows::OfFamily,
    ..like(Family::Gemma3, "gemma3_text")
};
const OLMO2: Architecture =
    Architecture { norms: Norms::After, qk_norm: QkNorm::Rows, ..like(Family::Llama, "olmo2") };
const GLM: Architecture = Architecture { bias: Bias::QkvIfSet, ..like(Family::Llama, "glm") };
const DEEPSEEK: Architecture = Architecture {
    experts: ExpertStyle::DeepSeek,
    attention: Attention::Latent,
    ..like(Family::Llama, "deepseek_v2")
};
const COHERE: Architecture = Architecture {
    norms: Norms::Shared,
    qk_norm: QkNorm::RowsIfSet,
    is_tied: true,
    ..like(Family::Llama, "cohere")
};

/// Every decoder whose cost is known.
const ARCHITECTURES: &[Architecture] = &[
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    PHI3,
    GEMMA2,
    GEMMA3,
    Architecture { model_type: "mixtral", experts: ExpertStyle::Mixtral, ..MISTRAL },
    Architecture { model_type: "qwen2_moe", experts: ExpertStyle::Qwen, ..QWEN2 },
    Architecture { model_type: "qwen3_moe", experts: ExpertStyle::Qwen, ..QWEN3 },
    Architecture {
        experts: ExpertStyle::Qwen,
        attention: Attention::Hybrid,
        qk_norm: QkNorm::Heads,
        ..like(Family::Llama, "qwen3_next")
    },
    DEEPSEEK,
    Architecture { model_type: "deepseek_v3", ..DEEPSEEK },
    Architecture { model_type: "kimi_k2", ..DEEPSEEK },
    Architecture { model_type: "deepseek_ocr2_text", attention: Attention::Grouped, ..DEEPSEEK },
    Architecture {
        runs: true,
        windows: Windows::LayerTypes,
        experts: ExpertStyle::GptOss,
        attention: Attention::Sinks,
        ..like(Family::GptOss, "gpt_oss")
    },
    Architecture {
        windows: Windows::Chunks,
        experts: ExpertStyle::Llama4,
        ..like(Family::Llama, "llama4_text")
    },
    Architecture { runs: false, model_type: "phi4", ..PHI3 },
    Architecture { runs: false, model_type: "qwen2_vl_text", ..QWEN2 },
    Architecture { runs: false, model_type: "qwen2_5_vl_text", ..QWEN2 },
    Architecture { runs: false, model_type: "qwen3_vl_text", ..QWEN3 },
    Architecture { runs: false, model_type: "qwen3_vl_moe_text", experts: ExpertStyle::Qwen, ..QWEN3 },
    Architecture { is_tied: true, ..like(Family::Llama, "gemma") },
    OLMO2,
    Architecture { model_type: "olmo3", windows: Windows::LayerTypes, ..OLMO2 },
    like(Family::Llama, "granite"),
    Architecture { experts: ExpertStyle::Mixtral, ..like(Family::Llama, "granitemoe") },
    like(Family::Llama, "smollm3"),
    GLM,
    Architecture { model_type: "glm4", norms: Norms::Both, ..GLM },
    Architecture { model_type: "glm4_moe", experts: ExpertStyle::DeepSeek, qk_norm: QkNorm::IfSet, ..GLM },
    COHERE,
    Architecture { model_type: "cohere2", windows: Windows::LayerTypes, qk_norm: QkNorm::None, ..COHERE },
    Architecture { bias: Bias::EverywhereIf("bias", false), norms: Norms::Falcon, ..older("falcon") },
    Architecture { positions: Positions::Learned(0), ..older("gpt2") },
    Architecture { positions: Positions::Learned(0), ..older("gpt_bigcode") },
    Architecture { is_tied: false, ..older("gpt_neox") },
    Architecture { positions: Positions::Learned(2), ..older("opt") },
    Architecture { is_tied: false, norms: Norms::Shared, ..older("phi") },
    Architecture {
        bias: Bias::EverywhereIf("use_bias", true),
        windows: Windows::OfFamily,
        like: Family::Mistral,
        ..older("starcoder2")
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

/// Models with a text decoder in `text_config` or `language_config`, and the decoder's `model_type` where that is not given.
const WITH_TEXT_PART: [(&str, &str); 12] = [
    ("gemma3", "gemma3_text"),
    ("mistral3", "mistral"),
    ("llama4", "llama4_text"),
    ("qwen2_vl", "qwen2_vl_text"),
    ("qwen2_5_vl", "qwen2_5_vl_text"),
    ("qwen3_vl", "qwen3_vl_text"),
    ("qwen3_vl_moe", "qwen3_vl_moe_text"),
    ("got_ocr2", "qwen2"),
    ("deepseek_ocr2", "deepseek_ocr2_text"),
    ("deepseek_vl_v2", "deepseek_v2"),
    ("deepseek_vl", "llama"),
    ("deepseek_vl_hybrid", "llama"),
];

/// Every `model_type` whose cost is known.
pub(super) fn known() -> impl Iterator<Item = &'static str> {
    let decoders = ARCHITECTURES.iter().map(|architecture| architecture.model_type);
    decoders.chain(WITH_TEXT_PART.iter().map(|(outer, _)| *outer))
}

/// Those that the engine runs.
pub(super) fn runnable() -> impl Iterator<Item = &'static str> {
    ARCHITECTURES.iter().filter(|one| one.runs).map(|one| one.model_type).chain(["gemma3"])
}

/// The family of a decoder that the engine runs.
pub(super) fn family(model_type: &str) -> Option<Family> {
    ARCHITECTURES.iter().find(|one| one.runs && one.model_type == model_type).map(|one| one.like)
}
