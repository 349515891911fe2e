//! Sources of weights; among them random ones of the right shape, reproducible from a seed.

use candle_core::Tensor;
use decoder_ops::{Uniform, mix64, uniform};

use super::{checkpoint::candle_dtype, matrix::Matrix};
use crate::{
    config::Dtype,
    model::{ModelSpec, spec::TensorShape},
};

/// Gives the tensors of a checkpoint by their Hugging Face names.
pub trait WeightSource: Sync {
    /// The named tensors, stacked along the first dimension; the rest of their shapes is the same.
    fn stacked(&self, parts: &[TensorShape], dtype: Dtype) -> candle_core::Result<Tensor>;

    fn tensor(&self, tensor: &TensorShape, dtype: Dtype) -> candle_core::Result<Tensor> {
        self.stacked(std::slice::from_ref(tensor), dtype)
    }

    /// The named tensors, stacked, as a weight matrix. A source with quantised blocks returns those, regardless of
    /// `dtype`.
    fn matrix(&self, parts: &[TensorShape], dtype: Dtype) -> candle_core::Result<Matrix> {
        self.stacked(parts, dtype).map(Matrix::plain)
    }

    /// Divisors of the rotary frequencies, where a checkpoint lists them.
    fn rope_divisors(&self) -> candle_core::Result<Option<Vec<f32>>> {
        Ok(None)
    }
}

/// Random weights. A value is a function of (seed, tensor name, row, column) alone, so it does not
/// depend on the number of threads or on earlier draws, and any device can compute it.
///
/// Matrices are uniform with variance 1 / columns, so that activations keep their size through any depth;
/// norm scales are within 10 % of one, biases within 0.05 of zero.
#[derive(Debug, Clone, Copy)]
pub struct SyntheticWeights {
    seed: u64,
    /// The offset that the model adds to norm weights.
    norm_middle: f32,
}

impl WeightSource for SyntheticWeights {
    fn stacked(&self, parts: &[TensorShape], dtype: Dtype) -> candle_core::Result<Tensor> {
        let uniforms: Vec<Uniform> = parts.iter().map(|part| self.uniform(part)).collect();
        let mut shape = parts[0].shape.clone();
        shape[0] = parts.iter().map(|part| part.shape[0]).sum();
        uniform(&uniforms, &shape, candle_dtype(dtype))
    }
}

impl SyntheticWeights {
    pub fn new(seed: u64) -> SyntheticWeights {
        SyntheticWeights { seed, norm_middle: 1.0 }
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
    use super::*;

    fn shape(name: &str, shape: &[usize]) -> TensorShape {
        TensorShape { name: name.to_owned(), shape: shape.to_vec() }
    }

    fn values(seed: u64, tensor: &TensorShape, dtype: Dtype) -> Vec<f32> {
        let tensor = SyntheticWeights::new(seed).tensor(tensor, dtype).unwrap();
        tensor.to_dtype(candle_core::DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
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
        let stacked = SyntheticWeights::new(7).stacked(&[a.clone(), b.clone()], Dtype::F32).unwrap();
        assert_eq!(stacked.dims(), [8, 40]);
        let expected = [values(7, &a, Dtype::F32), values(7, &b, Dtype::F32)].concat();
        assert_eq!(stacked.flatten_all().unwrap().to_vec1::<f32>().unwrap(), expected);
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
}
