//! The sizes of KV caches, on any device.

use llm_cost::ModelSpec;
use llmprof_config::{Dtype, KvCacheDtype};
use llmprof_workload::EngineError;

/// Positions that a layer with a window keeps beyond it: those that a step may take back, and space for new ones before
/// rows are moved.
pub const SPARE_POSITIONS: usize = 64;
/// Positions that a step may take back.
pub const TAKEN_BACK: usize = 16;

/// The cache of a batch of sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    pub batch: usize,
    /// The maximum number of positions of a sequence.
    pub positions: usize,
    pub dtype: KvCacheDtype,
}

impl From<(usize, usize)> for KvShape {
    /// A cache for `batch` sequences of at most `positions`, in the model's type.
    fn from((batch, positions): (usize, usize)) -> KvShape {
        KvShape { batch, positions, dtype: KvCacheDtype::Auto }
    }
}

impl KvShape {
    /// Positions that a layer keeps of each sequence.
    pub fn kept(&self, spec: &ModelSpec, layer: usize) -> usize {
        let of_window = |window: usize| self.positions.min(window.saturating_add(SPARE_POSITIONS));
        spec.window_of_layer(layer).map_or(self.positions, of_window)
    }

    /// Bytes of all layers, with unquantised numbers as `dtype`.
    pub fn bytes(&self, spec: &ModelSpec, dtype: Dtype) -> u64 {
        let kept = (0..spec.layers).map(|layer| self.kept(spec, layer) as u64).fold(0, u64::saturating_add);
        let of_position = spec.kv_bytes_per_position(dtype, self.dtype) / (spec.layers as u64).max(1);
        kept.saturating_mul(of_position).saturating_mul(self.batch as u64)
    }

    /// Checks that a model's heads can be cached in this type; Q8_0 needs heads that are a multiple of `step`.
    pub fn check(&self, spec: &ModelSpec, step: usize) -> Result<(), EngineError> {
        match self.dtype {
            KvCacheDtype::Q8_0 if !spec.head_dim.is_multiple_of(step) => Err(EngineError::Backend(format!(
                "runtime.kv_cache_dtype=q8_0 needs a head dimension that is a multiple of {step}, and this model's is {}; use \
                 runtime.kv_cache_dtype=fp8",
                spec.head_dim
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn windows_and_types_bound_the_cache() {
        let spec = ModelSpec::from_hf(&json!({
            "model_type": "gemma3_text", "vocab_size": 8, "hidden_size": 64, "intermediate_size": 8,
            "num_hidden_layers": 6, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64,
            "max_position_embeddings": 8192, "sliding_window": 512, "query_pre_attn_scalar": 64,
            "hidden_activation": "gelu_pytorch_tanh"
        }))
        .unwrap();
        let shape = |positions, dtype| KvShape { batch: 2, positions, dtype };
        // Five layers have a window, the sixth attends to everything.
        let rows = 5 * (512 + 64) + 8192;
        assert_eq!(shape(8192, KvCacheDtype::Auto).bytes(&spec, Dtype::Bf16), 2 * rows * 2 * 64 * 2);
        assert_eq!(shape(8192, KvCacheDtype::Fp8).bytes(&spec, Dtype::Bf16), 2 * rows * 2 * 64);
        assert_eq!(shape(8192, KvCacheDtype::Q8_0).bytes(&spec, Dtype::F32), 2 * rows * 2 * 68);
        assert_eq!(shape(100, KvCacheDtype::Auto).kept(&spec, 0), 100);
        assert!(shape(100, KvCacheDtype::Q8_0).check(&spec, 64).is_ok());
        let narrow = ModelSpec { head_dim: 80, ..spec };
        let message = shape(100, KvCacheDtype::Q8_0).check(&narrow, 64).unwrap_err().to_string();
        assert!(message.contains("multiple of 64, and this model's is 80; use runtime.kv_cache_dtype=fp8"));
    }
}
