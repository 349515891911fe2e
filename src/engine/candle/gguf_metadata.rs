//! The metadata of a GGUF file: the shape with the keys of a `config.json`, and the vocabulary.

use std::{collections::HashMap, path::Path};

use candle_core::quantized::gguf_file::{TensorInfo, Value};
use serde_json::json;

use super::checkpoint::CheckpointError;
use crate::text::Vocabulary;

const ARCHITECTURES: [&str; 3] = ["llama", "qwen2", "qwen3"];

/// The key/value part of a GGUF header.
pub(super) struct Metadata<'a> {
    pub file: &'a Path,
    pub entries: &'a HashMap<String, Value>,
}

impl Metadata<'_> {
    /// The shape as the `config.json` of the same model has it. Values without a key come from the tensors.
    pub fn hf_config(
        &self,
        tensors: &HashMap<String, TensorInfo>,
    ) -> Result<serde_json::Value, CheckpointError> {
        let arch = self.text("general.architecture").ok_or_else(|| self.missing("general.architecture"))?;
        if !ARCHITECTURES.contains(&arch) {
            return Err(self.unsupported("general.architecture", arch, "llama, qwen2 and qwen3 are"));
        }
        let key = |name: &str| format!("{arch}.{name}");
        let size = |name: &str| self.number(&key(name)).ok_or_else(|| self.missing(&key(name)));
        let real = |name: &str| self.real(&key(name)).ok_or_else(|| self.missing(&key(name)));
        if let Some(experts) = self.number(&key("expert_count")).filter(|&n| n > 0) {
            return Err(self.unsupported(&key("expert_count"), &experts.to_string(), "dense models are"));
        }
        let (hidden, heads) = (size("embedding_length")?, size("attention.head_count")?);
        let head_dim = self.number(&key("attention.key_length")).or(hidden.checked_div(heads));
        let turned = self.number(&key("rope.dimension_count"));
        if let Some(turned) = turned.filter(|&turned| Some(turned) != head_dim) {
            let whole = "turning whole heads is";
            return Err(self.unsupported(&key("rope.dimension_count"), &turned.to_string(), whole));
        }
        let scaling = self.text(&key("rope.scaling.type")).filter(|&kind| kind != "none");
        let vocab = tensors.get("token_embd.weight").and_then(|info| info.shape.dims().first().copied());
        Ok(json!({
            "model_type": arch,
            "hidden_size": hidden,
            "intermediate_size": size("feed_forward_length")?,
            "num_hidden_layers": size("block_count")?,
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
            })),
            "tie_word_embeddings": !tensors.contains_key("output.weight"),
            "max_position_embeddings": size("context_length")?,
            "attention_bias": tensors.contains_key("blk.0.attn_q.bias"),
        }))
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

    fn unsupported(&self, key: &str, found: &str, supported: &'static str) -> CheckpointError {
        let (file, key, found) = (self.file.to_owned(), key.to_owned(), found.to_owned());
        CheckpointError::Unsupported { file, key, found, supported }
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
