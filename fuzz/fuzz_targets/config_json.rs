//! Any JSON is the `config.json` of a model or refused; the sizes of what is read can be added and multiplied.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmprof::{
    config::Dtype,
    model::{ModelSpec, Shape},
};

fuzz_target!(|bytes: &[u8]| {
    let Ok(config) = serde_json::from_slice(bytes) else { return };
    if let Ok(spec) = ModelSpec::from_hf(&config) {
        let _ = (spec.parameters(), spec.step_weight_bytes(Dtype::F32), spec.kv_bytes_per_position(Dtype::F32));
    }
    if let Ok(shape) = Shape::from_hf(&config, Dtype::Bf16) {
        let _ = (shape.parameters(), shape.kv_bytes_per_position());
    }
});
