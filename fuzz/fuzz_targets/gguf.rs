//! Any bytes are read as a GGUF file or refused, by both runtimes; every tensor and the tokenizer of what is read can be used.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmprof::{
    config::Dtype,
    engine::{
        candle::stock::StockModel,
        weights::{Checkpoint, WeightSource},
    },
    workload::text::Tokenizer,
};

fuzz_target!(|bytes: &[u8]| {
    llmprof_fuzz::contain_panics();
    let path = llmprof_fuzz::file("any.gguf", bytes);
    if let Ok(checkpoint) = Checkpoint::open(&path, None) {
        for tensor in checkpoint.spec().tensors() {
            let _ = checkpoint.values(&[tensor], Dtype::F32);
        }
        let _ = checkpoint.rope_divisors();
        if let Some(Ok(tokenizer)) = checkpoint.vocabulary().map(Tokenizer::from_vocabulary) {
            let _ = tokenizer.prompt_ids("a b 12", true);
        }
    }
    if let Ok(model) = StockModel::open(&path, None) {
        let _ = (model.parameters(), model.weight_bytes(Dtype::F32), model.kv_bytes_per_position(Dtype::F32));
        let _ = model.shape(Dtype::F32);
    }
});
