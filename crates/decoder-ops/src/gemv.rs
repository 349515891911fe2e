//! Matrix times few rows on the CPU: reads each weight once, in its storage type.

use candle_core::{CpuStorage, CustomOp2, DType, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

use crate::simd::{Stored, dot, vectorised};

/// Weight bytes per work item. Small, so that a preempted core delays the others little; large enough that the cost of
/// scheduling is negligible compared with reading.
pub(crate) const UNIT_BYTES: usize = 64 * 1024;

/// The number of rows up to which [`gemv`] is faster than widening the weight and a general matrix product.
pub(crate) fn max_rows(weight: DType) -> usize {
    if weight == DType::F32 { 4 } else { 12 }
}

/// `x · wᵀ` for `x` (…, k) in f32 and `w` (n, k) in f32, bf16 or f16; both contiguous. Returns (…, n) in f32. Runs on
/// the current rayon pool.
pub fn gemv(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    x.apply_op2_no_bwd(w, &Gemv)
}

struct Gemv;

impl CustomOp2 for Gemv {
    fn name(&self) -> &'static str {
        "gemv"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_l: &Layout,
        w: &CpuStorage,
        w_l: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (n, k) = w_l.shape().dims2()?;
        let mut dims = x_l.dims().to_vec();
        if dims.pop() != Some(k) {
            bail!("gemv: {:?} and {:?} do not match", x_l.shape(), w_l.shape());
        }
        dims.push(n);
        let x = contiguous(x.as_slice::<f32>()?, x_l)?;
        let y = match w {
            CpuStorage::F32(w) => product(x, contiguous(w, w_l)?, n, k),
            CpuStorage::BF16(w) => product(x, contiguous(w, w_l)?, n, k),
            CpuStorage::F16(w) => product(x, contiguous(w, w_l)?, n, k),
            _ => bail!("gemv: weights must be f32, bf16 or f16"),
        };
        Ok((CpuStorage::F32(y), dims.into()))
    }
}

pub(crate) fn contiguous<'a, T>(data: &'a [T], layout: &Layout) -> Result<&'a [T]> {
    match layout.contiguous_offsets() {
        Some((from, to)) => Ok(&data[from..to]),
        None => bail!("expected a contiguous tensor; strides are {:?}", layout.stride()),
    }
}

/// Row-major (m, n).
fn product<W: Stored>(x: &[f32], w: &[W], n: usize, k: usize) -> Vec<f32> {
    let m = x.len() / k;
    let rows: Vec<&[f32]> = x.chunks_exact(k).collect();
    let unit = (UNIT_BYTES / (k * size_of::<W>())).clamp(1, n);
    // Work items write columns of the result, which is (n, m) until the end.
    let mut by_column = vec![0f32; n * m];
    by_column.par_chunks_mut(unit * m).zip(w.par_chunks(unit * k)).with_max_len(1).for_each(|(y, w)| {
        vectorised(
            #[inline(always)]
            || {
                if let [row] = rows[..] {
                    for (y, w) in y.iter_mut().zip(w.chunks_exact(k)) {
                        *y = dot(w, row);
                    }
                    return;
                }
                // Converted once: the row of weights stays in the L1 cache for all rows.
                let mut wide = vec![0f32; k];
                for (y, w) in y.chunks_exact_mut(m).zip(w.chunks_exact(k)) {
                    for (wide, w) in wide.iter_mut().zip(w) {
                        *wide = w.widen();
                    }
                    for (y, row) in y.iter_mut().zip(&rows) {
                        *y = dot(&wide, row);
                    }
                }
            },
        );
    });
    if m == 1 {
        return by_column;
    }
    let mut y = vec![0f32; n * m];
    for (i, y) in y.chunks_exact_mut(n).enumerate() {
        for (y, column) in y.iter_mut().zip(by_column.chunks_exact(m)) {
            *y = column[i];
        }
    }
    y
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn equals_candles_gemm() {
        for (m, n, k) in
            [(1, 1, 1), (1, 7, 33), (2, 64, 31), (3, 65, 64), (4, 300, 576), (5, 9, 100), (9, 33, 40)]
        {
            let x = Tensor::randn(0f32, 1.0, (m, k), &Device::Cpu).unwrap();
            let w = Tensor::randn(0f32, 1.0, (n, k), &Device::Cpu).unwrap();
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                let w = w.to_dtype(dtype).unwrap();
                let wide = w.to_dtype(DType::F32).unwrap();
                let expected = x.matmul(&wide.t().unwrap()).unwrap();
                let diff = (gemv(&x, &w).unwrap() - expected).unwrap().abs().unwrap().max_all().unwrap();
                let diff = diff.to_scalar::<f32>().unwrap();
                assert!(diff < 1e-3, "{m}×{k} · {n}×{k} {dtype:?}: {diff}");
            }
        }
    }

    #[test]
    fn honours_offsets_and_refuses_wrong_sizes() {
        let x = Tensor::randn(0f32, 1.0, (3, 8), &Device::Cpu).unwrap();
        let w = Tensor::randn(0f32, 1.0, (5, 8), &Device::Cpu).unwrap();
        let all = gemv(&x, &w).unwrap();
        let part = gemv(&x.narrow(0, 2, 1).unwrap(), &w.narrow(0, 1, 3).unwrap()).unwrap();
        let expected = all.narrow(0, 2, 1).unwrap().narrow(1, 1, 3).unwrap();
        assert_eq!(part.to_vec2::<f32>().unwrap(), expected.to_vec2::<f32>().unwrap());
        assert!(gemv(&x, &w.t().unwrap()).is_err());
        assert!(gemv(&x.narrow(1, 0, 4).unwrap(), &w).is_err());
    }
}
