//! A `config.json` as candle-transformers reads it, with the defaults of keys that a family may omit.

use candle_core::Result;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// Larger than any size of a real model; a product of two stays within 64 bits.
const MAX_SIZE: u64 = 1 << 28;
/// Limits the layers that are counted for an absurd depth.
const MAX_COUNT: u64 = 4096;

/// Keys that must not be zero if they are present, because they are divisors or sizes.
const SIZES: [&str; 13] = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "headdim",
    "max_position_embeddings",
    "d_model",
    "pad_vocab_size_multiple",
    "sliding_window_pattern",
    "decoder_sparse_step",
    "chunk_size",
];
const COUNTS: [&str; 5] =
    ["num_hidden_layers", "n_layer", "num_experts", "num_local_experts", "n_routed_experts"];

/// The keys of a config; those that are null count as absent.
#[derive(Debug, Clone)]
pub(super) struct Config(Map<String, Value>);

impl Config {
    /// Refuses sizes that no model has.
    pub fn new(value: &Value) -> std::result::Result<Config, String> {
        let Some(keys) = value.as_object() else { return Err("it must be an object".to_owned()) };
        let mut keys: Map<String, Value> =
            keys.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), v.clone())).collect();
        // Newer checkpoints keep the rotary base here.
        if let Some(theta) = keys.get("rope_parameters").and_then(|rope| rope.get("rope_theta")).cloned() {
            keys.entry("rope_theta").or_insert(theta);
        }
        let config = Config(keys);
        let limits = SIZES.map(|key| (key, MAX_SIZE)).into_iter().chain(COUNTS.map(|key| (key, MAX_COUNT)));
        for (key, limit) in limits {
            match config.0.get(key) {
                None => {}
                Some(value) => match value.as_u64() {
                    Some(1..) if value.as_u64() <= Some(limit) => {}
                    _ => return Err(format!("{key} {value} is not between 1 and {limit}")),
                },
            }
        }
        let (heads, kv_heads) = (config.heads(), config.kv_heads());
        if heads % kv_heads != 0 {
            return Err(format!(
                "num_attention_heads {heads} is not divisible by num_key_value_heads {kv_heads}"
            ));
        }
        Ok(config)
    }

    /// The config in candle-transformers' type, with `defaults` for absent keys.
    pub fn parse<T: DeserializeOwned>(&self, defaults: Value) -> Result<T> {
        let mut keys = self.0.clone();
        if let Value::Object(defaults) = defaults {
            for (key, value) in defaults {
                keys.entry(key).or_insert(value);
            }
        }
        serde_json::from_value(Value::Object(keys)).map_err(|e| candle_core::Error::Msg(e.to_string()))
    }

    /// The same model for few positions: its tensors are the same, its rotary tables are small.
    pub fn for_counting(&self) -> Config {
        let mut config = self.clone();
        for (key, positions) in [("max_position_embeddings", 2), ("original_max_position_embeddings", 1)] {
            if config.0.contains_key(key) {
                config.0.insert(key.to_owned(), json!(positions));
            }
        }
        config
    }

    pub fn without(mut self, key: &str) -> Config {
        self.0.remove(key);
        self
    }

    pub fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    pub fn to_value(&self) -> Value {
        Value::Object(self.0.clone())
    }

    /// The first of `keys` that is a number.
    pub fn number(&self, keys: &[&str]) -> Option<u64> {
        keys.iter().find_map(|&key| self.0.get(key)?.as_u64())
    }

    pub fn flag(&self, key: &str) -> Option<bool> {
        self.0.get(key)?.as_bool()
    }

    pub fn hidden(&self) -> u64 {
        self.number(&["hidden_size", "d_model"]).unwrap_or(1)
    }

    pub fn layers(&self) -> u64 {
        self.number(&["num_hidden_layers", "n_layer"]).unwrap_or(1)
    }

    pub fn heads(&self) -> u64 {
        self.number(&["num_attention_heads"]).unwrap_or(1)
    }

    pub fn kv_heads(&self) -> u64 {
        self.number(&["num_key_value_heads"]).unwrap_or_else(|| self.heads())
    }

    /// The value of the config, or the share of one head.
    pub fn head_dim(&self) -> u64 {
        self.number(&["head_dim"]).unwrap_or_else(|| self.hidden() / self.heads())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_sizes_are_refused_before_anything_is_made() {
        let refused = |config: Value| Config::new(&config).expect_err("no model has these sizes");
        assert_eq!(refused(json!([])), "it must be an object");
        assert!(refused(json!({"num_attention_heads": 0})).contains("num_attention_heads 0"));
        assert!(refused(json!({"num_hidden_layers": 5000})).contains("between 1 and 4096"));
        assert!(refused(json!({"hidden_size": -3})).contains("hidden_size -3"));
        assert!(refused(json!({"hidden_size": "8"})).contains("hidden_size \"8\""));
        let uneven = json!({"num_attention_heads": 6, "num_key_value_heads": 4});
        assert!(refused(uneven).contains("not divisible by num_key_value_heads 4"));
    }

    #[test]
    fn nulls_are_absent_and_the_rotary_base_is_found_where_newer_files_keep_it() {
        let config = Config::new(
            &json!({"head_dim": null, "hidden_size": 12, "num_attention_heads": 3, "rope_parameters": {"rope_theta": 5.0}}),
        )
        .unwrap();
        assert_eq!((config.head_dim(), config.kv_heads()), (4, 3));
        let parsed: Map<String, Value> = config.parse(json!({"rope_theta": 1.0, "use_cache": true})).unwrap();
        assert_eq!((&parsed["rope_theta"], &parsed["use_cache"]), (&json!(5.0), &json!(true)));
    }
}
