//! Rows of a KV cache with 8 bits per value.

use std::ops::Range;

use candle_core::{Device, Result, Tensor, bail};
use half::f16;
use rayon::prelude::*;

use crate::simd::{Stored, vectorised};

/// Values of Q8_0 that share a scale.
pub const Q8_0_BLOCK: usize = 32;
/// The largest value of e4m3.
const LARGEST: f32 = 448.0;
/// The factor between e4m3 and f32 when the bits of both are aligned.
const BIAS: f32 = f32::from_bits((127 + 120) << 23);

/// The 8-bit format of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EightBits {
    /// e4m3: four exponent bits, three mantissa bits, limited to ±448.
    Fp8,
    /// An integer times the scale of its block of 32, as in GGUF.
    Q8_0,
}

/// Rows of `dim` values: `capacity` per head and sequence.
pub struct EightBitRows {
    kind: EightBits,
    batch: usize,
    codes: Vec<u8>,
    /// The scales of Q8_0, one per block; empty for FP8.
    scales: Vec<f16>,
    capacity: usize,
    dim: usize,
}

impl EightBitRows {
    /// All zeros. `dim` is a multiple of 32 for Q8_0.
    pub fn new(kind: EightBits, (batch, heads): (usize, usize), capacity: usize, dim: usize) -> EightBitRows {
        let heads = batch * heads;
        let scales = match kind {
            EightBits::Fp8 => 0,
            EightBits::Q8_0 => heads * capacity * dim / Q8_0_BLOCK,
        };
        let codes = vec![0; heads * capacity * dim];
        EightBitRows { kind, batch, codes, scales: vec![f16::ZERO; scales], capacity, dim }
    }

    /// Writes the rows `x` (…, t, dim) of all heads from row `at` on.
    pub fn write(&mut self, x: &Tensor, at: usize) -> Result<()> {
        let x: Vec<f32> = x.to_dtype(candle_core::DType::F32)?.flatten_all()?.to_vec1()?;
        let (dim, capacity) = (self.dim, self.capacity);
        let heads = self.codes.len() / (capacity * dim);
        let rows = x.len() / (heads * dim);
        if at + rows > capacity || x.len() != heads * rows * dim {
            bail!("{rows} rows from {at} on do not fit into {capacity}");
        }
        let blocks = self.scales.len() / (heads * capacity).max(1);
        for (head, x) in x.chunks_exact(rows * dim).enumerate() {
            let first = head * capacity + at;
            let codes = &mut self.codes[first * dim..][..x.len()];
            match self.kind {
                EightBits::Fp8 => vectorised(
                    #[inline(always)]
                    || x.iter().zip(codes.iter_mut()).for_each(|(x, code)| *code = fp8(*x)),
                ),
                EightBits::Q8_0 => {
                    let scales = &mut self.scales[first * blocks..][..rows * blocks];
                    vectorised(
                        #[inline(always)]
                        || q8_0(x, codes, scales),
                    );
                }
            }
        }
        Ok(())
    }

    /// The rows of `range` of every head, (batch, heads, rows, dim) in f32.
    pub fn read(&self, range: Range<usize>) -> Result<Tensor> {
        let (dim, capacity) = (self.dim, self.capacity);
        let heads = self.codes.len() / (capacity * dim);
        let mut out = vec![0f32; heads * range.len() * dim];
        let blocks = self.scales.len() / (heads * capacity).max(1);
        out.par_chunks_mut((range.len() * dim).max(1)).enumerate().for_each(|(head, out)| {
            let first = head * capacity + range.start;
            let codes = &self.codes[first * dim..][..out.len()];
            let scales = &self.scales[first * blocks..][..range.len() * blocks];
            vectorised(
                #[inline(always)]
                || match self.kind {
                    EightBits::Fp8 => {
                        for (out, code) in out.iter_mut().zip(codes) {
                            *out = of_fp8(*code);
                        }
                    }
                    EightBits::Q8_0 => {
                        let blocks = out.chunks_exact_mut(Q8_0_BLOCK).zip(codes.chunks_exact(Q8_0_BLOCK));
                        for ((out, codes), scale) in blocks.zip(scales) {
                            let scale = scale.widen();
                            for (out, code) in out.iter_mut().zip(codes) {
                                *out = f32::from(code.cast_signed()) * scale;
                            }
                        }
                    }
                },
            );
        });
        Tensor::from_vec(out, (self.batch, heads / self.batch, range.len(), dim), &Device::Cpu)
    }

    /// Moves the rows of `range` of every head to the front.
    pub fn keep(&mut self, range: Range<usize>) {
        let (dim, capacity) = (self.dim, self.capacity);
        for codes in self.codes.chunks_exact_mut(capacity * dim) {
            codes.copy_within(range.start * dim..range.end * dim, 0);
        }
        let blocks = dim / Q8_0_BLOCK;
        if self.kind == EightBits::Q8_0 {
            for scales in self.scales.chunks_exact_mut(capacity * blocks) {
                scales.copy_within(range.start * blocks..range.end * blocks, 0);
            }
        }
    }
}

/// The nearest code; of two, the even one.
#[inline(always)]
fn fp8(x: f32) -> u8 {
    let bits = (x.abs().min(LARGEST) / BIAS).to_bits();
    let code = (bits + 0x7ffff + (bits >> 20 & 1)) >> 20;
    (code as u8) | if x < 0.0 { 0x80 } else { 0 }
}

#[inline(always)]
fn of_fp8(code: u8) -> f32 {
    let size = f32::from_bits(u32::from(code & 0x7f) << 20) * BIAS;
    f32::from_bits(size.to_bits() | u32::from(code & 0x80) << 24)
}

#[inline(always)]
fn q8_0(x: &[f32], codes: &mut [u8], scales: &mut [f16]) {
    let blocks = x.chunks_exact(Q8_0_BLOCK).zip(codes.chunks_exact_mut(Q8_0_BLOCK));
    for ((x, codes), scale) in blocks.zip(scales) {
        let largest = x.iter().fold(0f32, |most, x| most.max(x.abs()));
        let by = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        *scale = f16::from_f32(largest / 127.0);
        for (code, x) in codes.iter_mut().zip(x) {
            *code = (x * by).round_ties_even() as i8 as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: Vec<f32>, dims: (usize, usize, usize)) -> Tensor {
        Tensor::from_vec(values, dims, &Device::Cpu).unwrap()
    }

    #[test]
    fn every_code_has_a_number_of_its_own() {
        for code in 0..=255u8 {
            let number = of_fp8(code);
            // Code 0x7f has no value here, and there is one zero.
            if code & 0x7f != 0x7f && code != 0x80 {
                assert_eq!(fp8(number), code, "{number}");
            }
        }
        for (x, nearest) in [
            (0.0, 0.0),
            (1e9, 448.0),
            (-1e9, -448.0),
            (17.0, 16.0),
            (17.1, 18.0),
            (19.0, 20.0),
            (0.0009, 0.0),
            (0.0011, 2f32.powi(-9)),
            (-0.3, -0.3125),
        ] {
            assert_eq!(of_fp8(fp8(x)), nearest, "{x}");
        }
    }

    #[test]
    fn rows_are_read_as_written_and_kept() {
        for (kind, step) in [(EightBits::Fp8, 1.0 / 16.0), (EightBits::Q8_0, 0.5 / 127.0)] {
            let mut rows = EightBitRows::new(kind, (1, 2), 10, 64);
            let values: Vec<f32> = (0..2 * 3 * 64).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
            rows.write(&row(values.clone(), (2, 3, 64)), 4).unwrap();
            let near = |rows: &EightBitRows, from: usize, skip: usize| {
                let read: Vec<f32> =
                    rows.read(from..from + 2).unwrap().flatten_all().unwrap().to_vec1().unwrap();
                let expected = values.chunks_exact(3 * 64).flat_map(|head| &head[skip * 64..][..2 * 64]);
                for (found, expected) in read.iter().zip(expected) {
                    let error = (found - expected).abs();
                    assert!(error <= step * 1.01 * expected.abs().max(1.0), "{kind:?}: {found} {expected}");
                }
            };
            near(&rows, 4, 0);
            near(&rows, 5, 1);
            rows.keep(5..7);
            near(&rows, 0, 1);
            assert!(rows.write(&row(values.clone(), (2, 3, 64)), 8).is_err());
        }
    }
}
