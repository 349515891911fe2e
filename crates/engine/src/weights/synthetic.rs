//! Random weights of the right shape, reproducible from a seed.

use decoder_ops::{Format, Panels, Uniform, mix64, random_blocks, uniform};

use super::{
    QuantisedRows, Values, WeightError, WeightSource, fp8, joined,
    scheme::{Architecture, format_of, stays_fp8},
};
use llm_cost::{ModelSpec, spec::TensorShape};
use llmprof_config::{Dtype, Scheme};

/// Random weights. A value depends only on (seed, tensor name, row, column), so it does not
/// depend on the number of threads or on earlier draws, and any device can compute it.
///
/// Matrices are uniform with variance 1 / columns, so that activations keep their size through any depth;
/// norm scales are within 10 % of one, biases within 0.05 of zero.
#[derive(Debug, Clone, Copy)]
pub struct SyntheticWeights {
    seed: u64,
    /// The offset that the model adds to norm weights.
    norm_middle: f32,
    /// How matrices are quantised, in a model with this number of layers and of query heads per key/value head.
    quantised: Option<(Scheme, Architecture)>,
}

impl WeightSource for SyntheticWeights {
    fn values(&self, parts: &[TensorShape], dtype: Dtype) -> Result<Values, WeightError> {
        let parts: Vec<Uniform> = parts.iter().map(|part| self.uniform(part)).collect();
        Ok(match dtype {
            Dtype::F32 => Values::F32(uniform(&parts)),
            Dtype::F16 => Values::F16(uniform(&parts)),
            Dtype::Bf16 => Values::Bf16(uniform(&parts)),
        })
    }

    fn blocks(&self, parts: &[TensorShape]) -> Result<Option<Vec<QuantisedRows>>, WeightError> {
        let Some(formats) = parts.iter().map(|part| self.format(part)).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let of_part = |(part, format): (&TensorShape, Format)| {
            let (rows, columns) = (part.shape[0], part.shape[1]);
            QuantisedRows { format, bytes: random_blocks(format, self.key(&part.name), rows, columns), rows }
        };
        Ok(Some(joined(parts.iter().zip(formats).map(of_part))))
    }
}

impl SyntheticWeights {
    pub fn new(seed: u64) -> SyntheticWeights {
        SyntheticWeights { seed, norm_middle: 1.0, quantised: None }
    }

    /// With matrices quantised like those in the files of llama.cpp.
    pub fn quantised(self, scheme: Option<Scheme>, spec: &ModelSpec) -> SyntheticWeights {
        let group = spec.heads / spec.kv_heads.max(1);
        let experts = spec.experts.map_or(0, |experts| experts.count);
        let architecture = Architecture { layers: spec.layers, group, tied: spec.tied_embeddings, experts };
        SyntheticWeights { quantised: scheme.map(|scheme| (scheme, architecture)), ..self }
    }

    fn format(&self, tensor: &TensorShape) -> Option<Format> {
        let (scheme, architecture) = self.quantised?;
        format_of(scheme, &architecture, tensor)
    }

    /// Whether a device keeps a tensor in FP8 (e4m3).
    pub fn is_fp8(&self, tensor: &TensorShape) -> bool {
        self.quantised.is_some_and(|(scheme, _)| scheme == Scheme::Fp8) && stays_fp8(tensor)
    }

    /// Bytes of a tensor in memory, an unquantised one as `dtype`.
    pub fn tensor_bytes(&self, tensor: &TensorShape, dtype: Dtype) -> u64 {
        match self.format(tensor) {
            _ if self.is_fp8(tensor) => fp8::bytes(tensor.shape[0], tensor.shape[1]),
            Some(format) => Panels::size(format, tensor.shape[0], tensor.shape[1]) as u64,
            None => tensor.elements() * dtype.bytes(),
        }
    }

    /// The same of all weights of a model.
    pub fn weight_bytes(&self, spec: &ModelSpec, dtype: Dtype) -> u64 {
        spec.tensors().iter().map(|tensor| self.tensor_bytes(tensor, dtype)).sum()
    }

    /// The same for a model that may add an offset to its norm weights.
    pub fn for_model(self, spec: &ModelSpec) -> SyntheticWeights {
        SyntheticWeights { norm_middle: 1.0 - spec.norm_offset, ..self }
    }

    fn uniform(&self, tensor: &TensorShape) -> Uniform {
        // A vector counts as one row.
        let columns = *tensor.shape.last().unwrap_or(&1);
        let rows = tensor.shape.iter().product::<usize>() / columns;
        let (centre, half_width) = self.distribution(tensor);
        Uniform { key: self.key(&tensor.name), centre, half_width, rows, columns }
    }

    /// Parameters for another device to draw the same values: the key, and centre and half width of the distribution.
    pub fn recipe(&self, tensor: &TensorShape) -> (u64, (f32, f32)) {
        (self.key(&tensor.name), self.distribution(tensor))
    }

    /// FNV-1a of the name, mixed with the seed.
    fn key(&self, name: &str) -> u64 {
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        mix64(hash ^ mix64(self.seed))
    }

    /// Centre and half width of a tensor's uniform distribution.
    fn distribution(&self, tensor: &TensorShape) -> (f32, f32) {
        match tensor.shape.as_slice() {
            [_, columns] => (0.0, (3.0 / *columns as f32).sqrt()),
            _ if tensor.name.ends_with("bias") => (0.0, 0.05),
            _ => (self.norm_middle, 0.1),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shape(name: &str, shape: &[usize]) -> TensorShape {
        TensorShape { name: name.to_owned(), shape: shape.to_vec() }
    }

    fn values(seed: u64, tensor: &TensorShape, dtype: Dtype) -> Vec<f32> {
        SyntheticWeights::new(seed).values(std::slice::from_ref(tensor), dtype).unwrap().widened()
    }

    #[test]
    fn values_follow_from_seed_and_name_alone() {
        let tensor = shape("model.layers.0.mlp.up_proj.weight", &[700, 300]);
        let draw = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| values(1, &tensor, Dtype::F32))
        };
        let one = draw(1);
        assert_eq!(one, draw(3));
        assert_ne!(one, values(2, &tensor, Dtype::F32));
        assert_ne!(one, values(1, &shape("model.layers.1.mlp.up_proj.weight", &[700, 300]), Dtype::F32));
    }

    #[test]
    fn stacking_keeps_each_parts_values() {
        let (a, b) = (shape("a.weight", &[3, 40]), shape("b.weight", &[5, 40]));
        let stacked = SyntheticWeights::new(7).values(&[a.clone(), b.clone()], Dtype::F32).unwrap();
        let expected = [values(7, &a, Dtype::F32), values(7, &b, Dtype::F32)].concat();
        assert_eq!(stacked.widened(), expected);
    }

    #[test]
    fn distributions() {
        let table = [
            ("m.weight", vec![400, 576], 0.0, (1.0f64 / 576.0).sqrt()),
            ("model.norm.weight", vec![4096], 1.0, 0.1 / 3f64.sqrt()),
            ("q_proj.bias", vec![4096], 0.0, 0.05 / 3f64.sqrt()),
        ];
        for (name, dims, mean, deviation) in table {
            for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
                let values = values(3, &shape(name, &dims), dtype);
                let n = values.len() as f64;
                let found = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
                let spread = (values.iter().map(|&v| (f64::from(v) - found).powi(2)).sum::<f64>() / n).sqrt();
                assert!((found - mean).abs() < 0.05 * deviation, "{name} {dtype:?}: mean {found}");
                assert!((spread / deviation - 1.0).abs() < 0.03, "{name} {dtype:?}: deviation {spread}");
            }
        }
    }

    #[test]
    fn rows_and_columns_are_independent() {
        let v = values(11, &shape("m.weight", &[256, 256]), Dtype::F32);
        for lag in [1, 2, 16, 256, 257, 512] {
            let n = v.len() - lag;
            let correlation: f32 = (0..n).map(|i| v[i] * v[i + lag]).sum::<f32>() * 256.0 / n as f32;
            assert!(correlation.abs() < 0.02, "lag {lag}: {correlation}");
        }
    }

    /// The sizes that llama.cpp states for its files of Llama 3.1 8B are 4.8944 and 4.4597 bits per weight.
    #[test]
    fn quantised_synthetic_weights_are_as_large_as_a_file_of_llama_cpp() {
        let spec = ModelSpec::from_hf(&json!({
            "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "max_position_embeddings": 131072, "tie_word_embeddings": false
        }))
        .unwrap();
        let parameters: u64 = spec.tensors().iter().map(TensorShape::elements).sum();
        let of_file = |scheme: Scheme| -> f64 {
            let architecture = Architecture { layers: 32, group: 4, tied: false, experts: 0 };
            let bytes = |tensor: &TensorShape| match format_of(scheme, &architecture, tensor) {
                Some(format) => tensor.elements() / format.weights() as u64 * format.bytes() as u64,
                None => 4 * tensor.elements(),
            };
            spec.tensors().iter().map(|tensor| bytes(tensor) as f64).sum()
        };
        for (scheme, bits) in [(Scheme::Q4KM, 4.8944), (Scheme::Iq4Xs, 4.4597)] {
            let file = of_file(scheme);
            assert!((file * 8.0 / parameters as f64 - bits).abs() < 1e-4, "{scheme:?}: {file}");
            let weights = SyntheticWeights::new(1).quantised(Some(scheme), &spec);
            let more = weights.weight_bytes(&spec, Dtype::F32) as f64 / file - 1.0;
            assert!((0.0..=0.04).contains(&more), "{scheme:?}: {more}");
        }
    }
}
