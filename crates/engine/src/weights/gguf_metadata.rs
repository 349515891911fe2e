//! The metadata of a GGUF file: the shape with the keys of a `config.json`, and the vocabulary.

use std::{collections::HashMap, path::Path};

use candle_core::quantized::gguf_file::Value;
use serde_json::json;

use llm_cost::architectures;

use super::{CheckpointError, gguf_header::TensorInfo};
use llmprof_workload::text::Vocabulary;

/// The key/value part of a GGUF header.
pub(crate) struct Metadata<'a> {
    pub file: &'a Path,
    pub entries: &'a HashMap<String, Value>,
}

impl Metadata<'_> {
    /// The shape in the form of the same model's `config.json`. Values without a key come from the tensors.
    pub fn hf_config(
        &self,
        tensors: &HashMap<String, TensorInfo>,
    ) -> Result<serde_json::Value, CheckpointError> {
        let arch = self.text("general.architecture").ok_or_else(|| self.missing("general.architecture"))?;
        let key = |name: &str| format!("{arch}.{name}");
        let size = |name: &str| self.number(&key(name)).ok_or_else(|| self.missing(&key(name)));
        let real = |name: &str| self.real(&key(name)).ok_or_else(|| self.missing(&key(name)));
        let experts = self.number(&key("expert_count")).filter(|&n| n > 0);
        let model_type = match (architectures::model_type_of_gguf(arch, experts.is_some()), experts) {
            (Some(Ok(model_type)), _) => model_type,
            (Some(Err(())), Some(experts)) => {
                let experts = experts.to_string();
                return Err(self.unsupported(
                    &key("expert_count"),
                    &experts,
                    "dense models of this kind are",
                ));
            }
            (Some(Err(())), None) => return Err(self.missing(&key("expert_count"))),
            (None, _) => {
                let supported = format!("{} are", architectures::gguf_names().join(", "));
                return Err(self.unsupported("general.architecture", arch, &supported));
            }
        };
        let (hidden, heads) = (size("embedding_length")?, size("attention.head_count")?);
        let head_dim = self.number(&key("attention.key_length")).or(hidden.checked_div(heads));
        let turned = self.number(&key("rope.dimension_count"));
        if let Some(turned) = turned.filter(|&turned| Some(turned) != head_dim) {
            let whole = "RoPE on whole heads is";
            return Err(self.unsupported(&key("rope.dimension_count"), &turned.to_string(), whole));
        }
        let scaling = self.text(&key("rope.scaling.type")).filter(|&kind| kind != "none");
        let vocab = tensors.get("token_embd.weight").and_then(|info| info.shape.first().copied());
        let layers = size("block_count")?;
        let mut config = json!({
            "model_type": model_type,
            "hidden_size": hidden,
            "intermediate_size": size("feed_forward_length")?,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": self.number(&key("attention.head_count_kv")),
            "head_dim": head_dim,
            "vocab_size": vocab.ok_or_else(|| CheckpointError::MissingTensor {
                file: self.file.to_owned(),
                tensor: "token_embd.weight".to_owned(),
            })?,
            "rms_norm_eps": real("attention.layer_norm_rms_epsilon")?,
            "rope_theta": self.real(&key("rope.freq_base")),
            "rope_scaling": scaling.map(|kind| json!({
                "rope_type": kind,
                "factor": self.real(&key("rope.scaling.factor")),
                "original_max_position_embeddings": self.number(&key("rope.scaling.original_context_length")),
                // The file does not have it.
                "truncate": arch != "gpt-oss",
            })),
            "tie_word_embeddings": !tensors.contains_key("output.weight"),
            "max_position_embeddings": size("context_length")?,
            "attention_bias": tensors.contains_key("blk.0.attn_q.bias"),
        });
        // Absent keys have the defaults of the family; null would mean none.
        let number = |name: &str| self.number(&key(name)).map(|n| json!(n));
        let float = |name: &str| self.real(&key(name)).map(|x| json!(x));
        let scalar = arch.starts_with("gemma").then(|| {
            // The file does not have it; only the largest models divide by the share of a head in the hidden size.
            let is_largest = matches!((arch, layers), ("gemma2", 46) | ("gemma3", 62));
            if is_largest { hidden.checked_div(heads) } else { head_dim }
        });
        for (name, value) in [
            ("sliding_window", number("attention.sliding_window").filter(|_| !arch.starts_with("qwen"))),
            ("attn_logit_softcapping", float("attn_logit_softcapping")),
            ("final_logit_softcapping", float("final_logit_softcapping")),
            ("rope_local_base_freq", float("rope.freq_base_swa").or(float("rope.local_freq_base"))),
            ("query_pre_attn_scalar", scalar.flatten().map(|n| json!(n))),
            ("original_max_position_embeddings", number("rope.scaling.original_context_length")),
            ("num_experts", experts.map(|n| json!(n))),
            ("num_experts_per_tok", number("expert_used_count").filter(|_| experts.is_some())),
            ("moe_intermediate_size", number("expert_feed_forward_length")),
            ("shared_expert_intermediate_size", number("expert_shared_feed_forward_length")),
            // The file does not have it.
            ("norm_topk_prob", (arch == "qwen3moe").then_some(json!(true))),
        ] {
            if let Some(value) = value {
                config[name] = value;
            }
        }
        Ok(config)
    }

    /// The factor of queries and keys if factors of the rotary frequencies are tensors.
    pub fn attention_factor(&self) -> Option<f64> {
        let arch = self.text("general.architecture")?;
        self.real(&format!("{arch}.rope.scaling.attn_factor"))
    }

    /// `None` when the file has no tokenizer.
    pub fn vocabulary(&self) -> Option<Vocabulary> {
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let id = |name: &str| self.number(&key(name)).and_then(|id| u32::try_from(id).ok());
        let texts = |name: &str| self.list(&key(name)).iter().map(|v| v.to_string().cloned()).collect();
        let tokens: Result<Vec<String>, _> = texts("tokens");
        Some(Vocabulary {
            kind: self.text(&key("model"))?.to_owned(),
            pre: self.text(&key("pre")).map(str::to_owned),
            tokens: tokens.ok().filter(|tokens| !tokens.is_empty())?,
            merges: texts("merges").unwrap_or_default(),
            scores: self.list(&key("scores")).iter().filter_map(|v| v.to_f32().ok()).collect(),
            types: self.list(&key("token_type")).iter().filter_map(integer).map(|n| n as u32).collect(),
            bos: id("bos_token_id"),
            unknown: id("unknown_token_id"),
            stop_ids: ["eos_token_id", "eot_token_id"].into_iter().filter_map(id).collect(),
            add_bos: self.flag(&key("add_bos_token")),
            add_space_prefix: self.flag(&key("add_space_prefix")),
            chat_template: self.text("tokenizer.chat_template").map(str::to_owned),
        })
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        self.entries.get(key)?.to_string().ok().map(String::as_str)
    }

    pub fn number(&self, key: &str) -> Option<u64> {
        self.entries.get(key).and_then(integer)
    }

    fn real(&self, key: &str) -> Option<f64> {
        match self.entries.get(key)? {
            Value::F32(x) => Some(f64::from(*x)),
            Value::F64(x) => Some(*x),
            _ => None,
        }
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.entries.get(key)?.to_bool().ok()
    }

    fn list(&self, key: &str) -> &[Value] {
        match self.entries.get(key) {
            Some(Value::Array(values)) => values,
            _ => &[],
        }
    }

    fn missing(&self, key: &str) -> CheckpointError {
        CheckpointError::MissingKey { file: self.file.to_owned(), key: key.to_owned() }
    }

    fn unsupported(&self, key: &str, found: &str, supported: &str) -> CheckpointError {
        let (file, key, found) = (self.file.to_owned(), key.to_owned(), found.to_owned());
        CheckpointError::Unsupported { file, key, found, supported: supported.to_owned() }
    }
}

/// Writers disagree about the width of integers.
fn integer(value: &Value) -> Option<u64> {
    match *value {
        Value::I8(n) => u64::try_from(n).ok(),
        Value::I16(n) => u64::try_from(n).ok(),
        Value::I32(n) => u64::try_from(n).ok(),
        Value::I64(n) => u64::try_from(n).ok(),
        Value::Bool(_) => None,
        ref other => other.to_u64().ok(),
    }
}
