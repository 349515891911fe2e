//! Any bytes are read as an index of safetensors and as a safetensors file, or refused.
#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;
use llmprof::{
    config::Dtype,
    engine::{
        candle::stock::StockModel,
        weights::{Checkpoint, WeightSource},
    },
};

const CONFIG: &[u8] = br#"{"model_type": "llama", "vocab_size": 4, "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
    "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 8, "tie_word_embeddings": true}"#;
const SHARD: &[u8] = include_bytes!("../seeds/safetensors/model.safetensors");
const INDEX: &str = "st/model.safetensors.index.json";

fuzz_target!(|bytes: &[u8]| {
    llmprof_fuzz::contain_panics();
    llmprof_fuzz::file("st/config.json", CONFIG);
    llmprof_fuzz::file("st/model.safetensors", SHARD);
    let index = llmprof_fuzz::file(INDEX, bytes);
    let dir = index.parent().expect("a directory");
    let read = || {
        if let Ok(checkpoint) = Checkpoint::open(dir, None) {
            for tensor in checkpoint.spec().tensors() {
                let _ = checkpoint.values(&[tensor], Dtype::F32);
            }
        }
        let _ = StockModel::open(dir, None);
    };
    read();
    fs::remove_file(&index).expect("the index");
    llmprof_fuzz::file("st/model.safetensors", bytes);
    read();
});
