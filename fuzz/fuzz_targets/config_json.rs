//! Any JSON is the `config.json` of a model or refused; the sizes of what is read can be added and multiplied.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmprof::{
    config::{Dtype, KvCacheDtype},
    model::{ModelSpec, Shape},
};

fuzz_target!(|bytes: &[u8]| {
    let Ok(config) = serde_json::from_slice(bytes) else { return };
    if let Ok(spec) = ModelSpec::from_hf(&config) {
        let step_bytes = spec.step_bytes(3, |tensor| tensor.elements().saturating_mul(4));
        let cache_bytes = spec.kv_bytes_per_position(Dtype::F32, KvCacheDtype::default());
        let _ = (spec.parameters(), spec.weight_bytes(Dtype::F32), step_bytes, cache_bytes);
    }
    if let Ok(shape) = Shape::from_hf(&config, Dtype::Bf16) {
        let _ = (shape.parameters(), shape.kv_bytes_per_position());
    }
});
