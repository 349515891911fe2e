//! Loops over floats that the compiler turns into vector code, and the types that weights are stored in.

use half::{bf16, f16};

/// Runs `body` compiled for the widest vectors of this CPU. Closures and the functions they call must be
/// `#[inline(always)]`: code that is not inlined is compiled for the baseline CPU.
#[inline(always)]
pub(crate) fn vectorised(body: impl FnMut()) {
    // Not pulp's own dispatch of closures: it calls them by `FnOnce`, through a shim that is not inlined.
    struct Body<F>(F);
    impl<F: FnMut()> pulp::WithSimd for Body<F> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: pulp::Simd>(mut self, _: S) {
            (self.0)();
        }
    }
    pulp::Arch::new().dispatch(Body(body));
}

/// A storage type of weights and caches; arithmetic is in `f32`.
pub trait Stored: Copy + Send + Sync + Default + 'static {
    /// Exact for finite values.
    fn widen(self) -> f32;
    /// Rounds to nearest, ties to even.
    fn narrow_slice(from: &[f32], to: &mut [Self]);
}

impl Stored for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow_slice(from: &[f32], to: &mut [Self]) {
        to.copy_from_slice(from);
    }
}

impl Stored for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn narrow_slice(from: &[f32], to: &mut [Self]) {
        // Without half's test for NaN, which weights never are, this vectorises.
        for (to, from) in to.iter_mut().zip(from) {
            let bits = from.to_bits();
            *to = bf16::from_bits(((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16);
        }
    }
}

impl Stored for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        // Moves exponent and mantissa into place and corrects the bias by a multiplication, which also handles
        // subnormals; unlike a table or a branch, it vectorises.
        let bits = u32::from(self.to_bits());
        let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits(0x7780_0000);
        f32::from_bits(magnitude.to_bits() | ((bits & 0x8000) << 16))
    }

    #[inline(always)]
    fn narrow_slice(from: &[f32], to: &mut [Self]) {
        half::slice::HalfFloatSliceExt::convert_from_f32_slice(to, from);
    }
}

/// Independent sums kept for one row: enough to hide the latency of an addition.
const LANES: usize = 32;

/// The dot product of a row of weights and one of activations, of the same length. To be inlined into a `pulp`
/// dispatch, which determines the width of the vectors.
#[inline(always)]
pub(crate) fn dot<W: Stored>(weights: &[W], row: &[f32]) -> f32 {
    let mut sums = [0f32; LANES];
    let (blocks, tail) = weights.as_chunks::<LANES>();
    let (rows, rest) = row.as_chunks::<LANES>();
    for (block, row) in blocks.iter().zip(rows) {
        let mut wide = [0f32; LANES];
        for (wide, w) in wide.iter_mut().zip(block) {
            *wide = w.widen();
        }
        for lane in 0..LANES {
            sums[lane] += wide[lane] * row[lane];
        }
    }
    let total: f32 = sums.iter().sum();
    tail.iter().zip(rest).fold(total, |total, (w, x)| total + w.widen() * x)
}

/// `sum += scale * row`
#[inline(always)]
pub(crate) fn accumulate<W: Stored>(sum: &mut [f32], row: &[W], scale: f32) {
    for (sum, x) in sum.iter_mut().zip(row) {
        *sum += scale * x.widen();
    }
}

/// `eˣ` to within 2 ulp, without a branch or a call, so that loops over it vectorise. Arguments outside the range give
/// the nearest end of the normal range of `f32`.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Adding 1.5 · 2²³ leaves the rounded integer in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-87.3, 88.0);
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    // ln 2 in two parts keeps the remainder exact.
    let r = x - n * 0.693_359_4 + n * 2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p * r + c;
    }
    let scale = f32::from_bits(rounded.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23);
    (p * r * r + r + 1.0) * scale
}

/// `tanh x` to within 2 · 10⁻⁷, as vector code.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let t = exp(-2.0 * x.abs());
    ((1.0 - t) / (1.0 + t)).copysign(x)
}

/// Softmax of `scale · scores` and of a `sink`, whose share is left out, in place.
#[inline(always)]
pub(crate) fn softmax(scores: &mut [f32], scale: f32, sink: Option<f32>) {
    let mut maxima = [f32::NEG_INFINITY; 16];
    for block in scores.chunks(16) {
        for (max, &score) in maxima.iter_mut().zip(block) {
            *max = if score > *max { score } else { *max };
        }
    }
    let max = maxima.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0f32; 16];
    for block in scores.chunks_mut(16) {
        for (sum, score) in sums.iter_mut().zip(block) {
            *score = exp((*score - max) * scale);
            *sum += *score;
        }
    }
    let of_sink = sink.map_or(0.0, |sink| (sink - max * scale).exp());
    let share = 1.0 / (sums.iter().sum::<f32>() + of_sink);
    for score in scores.iter_mut() {
        *score *= share;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_floats_widen_as_the_half_crate_does() {
        for bits in 0..=u16::MAX {
            let (b, h) = (bf16::from_bits(bits), f16::from_bits(bits));
            if b.is_finite() {
                assert_eq!(b.widen().to_bits(), b.to_f32().to_bits(), "bf16 {bits:#x}");
            }
            if h.is_finite() {
                assert_eq!(h.widen().to_bits(), h.to_f32().to_bits(), "f16 {bits:#x}");
            }
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_even() {
        let values: Vec<f32> = (0..4096).map(|i| (i as f32 - 2048.0) * 1.000_37e-3).collect();
        let (mut b, mut h) = (vec![bf16::ZERO; 4096], vec![f16::ZERO; 4096]);
        bf16::narrow_slice(&values, &mut b);
        f16::narrow_slice(&values, &mut h);
        for (i, &v) in values.iter().enumerate() {
            assert_eq!(b[i], bf16::from_f32(v), "{v}");
            assert_eq!(h[i], f16::from_f32(v), "{v}");
        }
    }

    #[test]
    fn exp_is_close_to_the_standard_one() {
        for i in -8700..=8700 {
            let x = i as f32 * 0.01;
            let error = (f64::from(exp(x)) / f64::from(x).exp() - 1.0).abs();
            assert!(error < 2.5e-7, "exp({x}) has an error of {error}");
        }
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(-1e9) < 1.3e-38);
    }

    #[test]
    fn tanh_is_close_to_the_standard_one() {
        for i in -2000..=2000 {
            let x = i as f32 * 0.01;
            let error = (f64::from(tanh(x)) - f64::from(x).tanh()).abs();
            assert!(error < 2e-7, "tanh({x}) has an error of {error}");
        }
        assert_eq!((tanh(-1e9), tanh(0.0), tanh(1e9)), (-1.0, 0.0, 1.0));
    }

    #[test]
    fn softmax_sums_to_one_and_keeps_ratios() {
        for n in [1, 2, 15, 16, 17, 100] {
            let mut scores: Vec<f32> = (0..n).map(|i| 500.0 + (i % 7) as f32).collect();
            softmax(&mut scores, 0.5, None);
            assert!((scores.iter().sum::<f32>() - 1.0).abs() < 1e-5);
            if n > 1 {
                assert!((scores[1] / scores[0] - 0.5f32.exp()).abs() < 1e-5);
            }
        }
    }
}
