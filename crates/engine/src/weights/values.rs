//! Numbers in host memory.

use half::{bf16, f16, slice::HalfFloatSliceExt, vec::HalfFloatVecExt};

use llmprof_config::Dtype;

/// Values that are converted at a time.
const CHUNK: usize = 4096;

/// Values in one of the types of models.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Values {
    pub fn with_capacity(dtype: Dtype, count: usize) -> Values {
        match dtype {
            Dtype::F32 => Values::F32(Vec::with_capacity(count)),
            Dtype::F16 => Values::F16(Vec::with_capacity(count)),
            Dtype::Bf16 => Values::Bf16(Vec::with_capacity(count)),
        }
    }

    /// Appends values, rounded to the type.
    pub fn extend(&mut self, values: &[f32]) {
        match self {
            Values::F32(all) => all.extend_from_slice(values),
            Values::F16(all) => all.extend(Vec::<f16>::from_f32_slice(values)),
            Values::Bf16(all) => all.extend(Vec::<bf16>::from_f32_slice(values)),
        }
    }

    /// Appends values that are stored as `dtype`, in little-endian order.
    pub fn extend_from_bytes(&mut self, dtype: Dtype, bytes: &[u8]) {
        match (self, dtype) {
            (Values::F16(all), Dtype::F16) => {
                all.extend(bytes.as_chunks().0.iter().map(|value| f16::from_le_bytes(*value)));
            }
            (Values::Bf16(all), Dtype::Bf16) => {
                all.extend(bytes.as_chunks().0.iter().map(|value| bf16::from_le_bytes(*value)));
            }
            (all, _) => {
                for bytes in bytes.chunks(CHUNK * dtype.bytes() as usize) {
                    all.extend(&wide(dtype, bytes));
                }
            }
        }
    }

    /// As f32.
    pub fn widened(self) -> Vec<f32> {
        match self {
            Values::F32(values) => values,
            Values::F16(values) => values.to_f32_vec(),
            Values::Bf16(values) => values.to_f32_vec(),
        }
    }
}

/// Values that are stored as `dtype`.
pub(super) fn wide(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::F32 => bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect(),
        Dtype::F16 => bytes.as_chunks().0.iter().map(|value| f16::from_le_bytes(*value).to_f32()).collect(),
        Dtype::Bf16 => bytes.as_chunks().0.iter().map(|value| bf16::from_le_bytes(*value).to_f32()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_rounded_once() {
        let numbers = [0.0f32, -1.5, 1.0 / 3.0, 65504.0, 1e-3, f32::MIN_POSITIVE];
        let bytes: Vec<u8> = numbers.iter().flat_map(|value| value.to_le_bytes()).collect();
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let mut of_bytes = Values::with_capacity(dtype, 0);
            of_bytes.extend_from_bytes(Dtype::F32, &bytes);
            let mut of_numbers = Values::with_capacity(dtype, 0);
            of_numbers.extend(&numbers);
            assert_eq!(of_bytes, of_numbers);
            let expected = numbers.map(|value| match dtype {
                Dtype::F32 => value,
                Dtype::F16 => f16::from_f32(value).to_f32(),
                Dtype::Bf16 => bf16::from_f32(value).to_f32(),
            });
            assert_eq!(of_numbers.widened(), expected);
        }
        // Half precision to another one.
        let halves: Vec<u8> = [1.0f32, 0.1].iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
        let mut all = Values::with_capacity(Dtype::Bf16, 2);
        all.extend_from_bytes(Dtype::F16, &halves);
        assert_eq!(all, Values::Bf16(vec![bf16::ONE, bf16::from_f32(f16::from_f32(0.1).to_f32())]));
    }
}
