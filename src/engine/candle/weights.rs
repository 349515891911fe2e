//! Sources of weights; among them random ones of the right shape, reproducible from a seed.

use candle_core::{Device, Tensor};
use half::{bf16, f16};
use rayon::prelude::*;

use super::{
    matrix::Matrix,
    simd::{Stored, vectorised},
};
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
        match dtype {
            Dtype::F32 => self.stack::<f32>(parts),
            Dtype::F16 => self.stack::<f16>(parts),
            Dtype::Bf16 => self.stack::<bf16>(parts),
        }
    }
}

/// Elements per work item.
const UNIT: usize = 64 * 1024;

impl SyntheticWeights {
    pub fn new(seed: u64) -> SyntheticWeights {
        SyntheticWeights { seed, norm_middle: 1.0 }
    }

    /// The same for a model that may add an offset to its norm weights.
    pub fn for_model(self, spec: &ModelSpec) -> SyntheticWeights {
        SyntheticWeights { norm_middle: 1.0 - spec.norm_offset, ..self }
    }

    fn stack<T: Stored + candle_core::WithDType>(
        &self,
        parts: &[TensorShape],
    ) -> candle_core::Result<Tensor> {
        let len = |t: &TensorShape| t.shape.iter().product::<usize>();
        let mut values = vec![T::default(); parts.iter().map(len).sum()];
        let mut rest = values.as_mut_slice();
        let mut rows = 0;
        for part in parts {
            let (mine, others) = rest.split_at_mut(len(part));
            self.fill(part, mine);
            rest = others;
            rows += part.shape[0];
        }
        let mut shape = parts[0].shape.clone();
        shape[0] = rows;
        Tensor::from_vec(values, shape, &Device::Cpu)
    }

    fn fill<T: Stored>(&self, tensor: &TensorShape, out: &mut [T]) {
        let key = self.key(&tensor.name);
        // A vector counts as one row.
        let columns = *tensor.shape.last().unwrap_or(&1);
        let (offset, spread) = self.distribution(tensor);
        let rows_per_unit = (UNIT / columns).max(1);
        out.par_chunks_mut(rows_per_unit * columns).enumerate().for_each(|(unit, out)| {
            vectorised(
                #[inline(always)]
                || {
                    let mut wide = [0f32; 256];
                    for (row, out) in out.chunks_mut(columns).enumerate() {
                        let key = mix64(key.wrapping_add((unit * rows_per_unit + row) as u64));
                        let (low, high) = (key as u32, (key >> 32) as u32);
                        for (block, out) in out.chunks_mut(wide.len()).enumerate() {
                            let first = (block * wide.len()) as u32;
                            for (i, value) in wide.iter_mut().enumerate() {
                                *value = offset + spread * unit_interval(first + i as u32, low, high);
                            }
                            T::narrow_slice(&wide[..out.len()], out);
                        }
                    }
                },
            );
        });
    }

    /// Parameters for another device to draw the same values: the key, and centre and half width of the distribution.
    #[cfg(feature = "cuda")]
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

/// Uniform in [-1, 1). In 32-bit arithmetic, of which a vector holds twice as much as of 64-bit.
#[inline(always)]
fn unit_interval(column: u32, low: u32, high: u32) -> f32 {
    let mut h = column.wrapping_mul(0x9e37_79b9) ^ low;
    h = (h ^ (h >> 16)).wrapping_mul(0x7feb_352d);
    h = (h ^ (h >> 15)).wrapping_add(high).wrapping_mul(0x846c_a68b);
    h ^= h >> 16;
    // The top 24 bits are what f32 holds exactly.
    ((h >> 8) as i32 - (1 << 23)) as f32 * (1.0 / (1 << 23) as f32)
}

/// SplitMix64's finaliser.
fn mix64(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
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
