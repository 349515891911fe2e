//! The operators of a layer except attention: fused loops on the CPU, candle's operations elsewhere.

use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, D, DType, Layout, Result, Shape, Tensor, bail, cpu::erf::erf_f32,
};
use rayon::prelude::*;

use crate::{
    gemv::{contiguous, gemv, max_rows},
    simd::{Stored, exp, tanh, vectorised},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    Silu,
    /// GELU with the tanh approximation.
    GeluTanh,
    /// GELU with the error function.
    Gelu,
    /// gpt-oss: gate and up limited to ±7, `gate · sigmoid(1.702 · gate) · (up + 1)`.
    SwigluOai,
}

const OAI_LIMIT: f32 = 7.0;
const OAI_ALPHA: f32 = 1.702;

/// Elements per work item of the loops below.
const UNIT: usize = 16 * 1024;

/// `x · wᵀ + bias`, for `x` (b, t, k) and `w` (n, k). On the CPU `x` is f32 whatever `w` is.
pub fn linear(x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let (b, t, k) = x.dims3()?;
    let y = if x.device().is_cpu() && b * t <= max_rows(w.dtype()) {
        gemv(&x.contiguous()?, w)?
    } else {
        // A half-precision weight is widened for this one product: candle's own half products on the CPU
        // are slower than that, and a widened copy of all weights would use the memory that half precision saves.
        let w = if x.device().is_cpu() { widen(w)? } else { w.clone() };
        x.reshape((b * t, k))?.matmul(&w.t()?)?.reshape((b, t, ()))?
    };
    match bias {
        Some(bias) => y.broadcast_add(bias),
        None => Ok(y),
    }
}

/// `activation(gate) · up` for a tensor that holds gate and up one after the other in its last dimension.
pub fn gated(gate_up: &Tensor, activation: Activation) -> Result<Tensor> {
    if gate_up.device().is_cpu() {
        return gate_up.apply_op1_no_bwd(&Gated(activation));
    }
    gated_step_by_step(gate_up, activation)
}

/// Like [`gated`], with candle's own operations.
pub fn gated_step_by_step(gate_up: &Tensor, activation: Activation) -> Result<Tensor> {
    let half = gate_up.dim(D::Minus1)? / 2;
    let (gate, up) = (gate_up.narrow(D::Minus1, 0, half)?, gate_up.narrow(D::Minus1, half, half)?);
    match activation {
        Activation::Silu => gate.silu()? * up,
        Activation::GeluTanh => gate.gelu()? * up,
        Activation::Gelu => gate.gelu_erf()? * up,
        Activation::SwigluOai => {
            let gate = gate.minimum(OAI_LIMIT)?;
            let sigmoid = candle_nn::ops::sigmoid(&(&gate * f64::from(OAI_ALPHA))?)?;
            (gate * sigmoid)? * (up.clamp(-OAI_LIMIT, OAI_LIMIT)? + 1.0)?
        }
    }
}

/// `x · by`.
pub fn scaled(x: &Tensor, by: f32) -> Result<Tensor> {
    if x.device().is_cpu() { each(x, "scaled", move |x| x * by) } else { x * f64::from(by) }
}

/// `cap · tanh(x / cap)`.
pub fn softcapped(x: &Tensor, cap: f32) -> Result<Tensor> {
    if x.device().is_cpu() {
        return each(x, "softcapped", move |x| cap * tanh(x / cap));
    }
    softcapped_step_by_step(x, cap)
}

/// Like [`softcapped`], with candle's own operations.
pub fn softcapped_step_by_step(x: &Tensor, cap: f32) -> Result<Tensor> {
    (x / f64::from(cap))?.tanh()? * f64::from(cap)
}

/// `a + b` of equal shapes. candle's own addition of large tensors runs on threads whose number cannot be set from
/// here; this one stays on the current pool.
pub fn sum(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.device().is_cpu() { a.apply_op2_no_bwd(b, &Sum) } else { a + b }
}

/// The tensor in f32; the same tensor if it is f32 already.
pub fn widen(x: &Tensor) -> Result<Tensor> {
    match x.dtype() {
        DType::F32 => Ok(x.clone()),
        DType::BF16 | DType::F16 if x.device().is_cpu() => x.apply_op1_no_bwd(&Widen),
        _ => x.to_dtype(DType::F32),
    }
}

/// Applies `f` to each element, in parallel.
fn mapped<T: Sync>(x: &[T], f: impl Fn(&T) -> f32 + Sync) -> Vec<f32> {
    let mut out = vec![0f32; x.len()];
    out.par_chunks_mut(UNIT).zip(x.par_chunks(UNIT)).for_each(|(out, x)| {
        vectorised(
            #[inline(always)]
            || {
                for (out, x) in out.iter_mut().zip(x) {
                    *out = f(x);
                }
            },
        );
    });
    out
}

struct Widen;

impl CustomOp1 for Widen {
    fn name(&self) -> &'static str {
        "widen"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let out = match x {
            CpuStorage::BF16(x) => mapped(contiguous(x, layout)?, |x| x.widen()),
            CpuStorage::F16(x) => mapped(contiguous(x, layout)?, |x| x.widen()),
            _ => bail!("widen: bf16 or f16 was expected"),
        };
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }
}

/// Applies `f` to each element of an f32 tensor on the CPU.
fn each<F: Fn(f32) -> f32 + Sync>(x: &Tensor, name: &'static str, f: F) -> Result<Tensor> {
    x.apply_op1_no_bwd(&Each { name, f })
}

struct Each<F> {
    name: &'static str,
    f: F,
}

impl<F: Fn(f32) -> f32 + Sync> CustomOp1 for Each<F> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let out = mapped(contiguous(x.as_slice::<f32>()?, layout)?, |x| (self.f)(*x));
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }
}

struct Sum;

impl CustomOp2 for Sum {
    fn name(&self) -> &'static str {
        "sum"
    }

    fn cpu_fwd(
        &self,
        a: &CpuStorage,
        a_l: &Layout,
        b: &CpuStorage,
        b_l: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let a = contiguous(a.as_slice::<f32>()?, a_l)?;
        let b = contiguous(b.as_slice::<f32>()?, b_l)?;
        if a_l.shape() != b_l.shape() {
            bail!("sum: {:?} and {:?} differ", a_l.shape(), b_l.shape());
        }
        let mut out = vec![0f32; a.len()];
        out.par_chunks_mut(UNIT).zip(a.par_chunks(UNIT).zip(b.par_chunks(UNIT))).for_each(|(out, (a, b))| {
            for (out, (a, b)) in out.iter_mut().zip(a.iter().zip(b)) {
                *out = a + b;
            }
        });
        Ok((CpuStorage::F32(out), a_l.shape().clone()))
    }
}

struct Gated(Activation);

impl Gated {
    /// `out = activation(gate) · up`.
    #[inline(always)]
    fn row(&self, out: &mut [f32], gate: &[f32], up: &[f32]) {
        // One loop per activation, so that each is vectorised.
        match self.0 {
            Activation::Silu => product(out, gate, up, |gate, up| up * gate / (1.0 + exp(-gate))),
            Activation::GeluTanh => product(out, gate, up, |gate, up| {
                // x/2 · (1 + tanh u) is x / (1 + e⁻²ᵘ).
                let u = FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * (gate + 0.044_715 * gate * gate * gate);
                up * gate / (1.0 + exp(-2.0 * u))
            }),
            Activation::Gelu => {
                product(out, gate, up, |gate, up| up * 0.5 * gate * (1.0 + erf_f32(gate * FRAC_1_SQRT_2)))
            }
            Activation::SwigluOai => product(out, gate, up, |gate, up| {
                let gate = gate.min(OAI_LIMIT);
                (up.clamp(-OAI_LIMIT, OAI_LIMIT) + 1.0) * gate / (1.0 + exp(-OAI_ALPHA * gate))
            }),
        }
    }
}

#[inline(always)]
fn product(out: &mut [f32], gate: &[f32], up: &[f32], of: impl Fn(f32, f32) -> f32) {
    for (out, (gate, up)) in out.iter_mut().zip(gate.iter().zip(up)) {
        *out = of(*gate, *up);
    }
}

impl CustomOp1 for Gated {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = contiguous(x.as_slice::<f32>()?, layout)?;
        let mut dims = layout.dims().to_vec();
        let Some(last) = dims.last_mut() else { bail!("gated: a scalar has no halves") };
        *last /= 2;
        let half = *last;
        let mut out = vec![0f32; x.len() / 2];
        out.par_chunks_mut(half).zip(x.par_chunks(2 * half)).for_each(|(out, x)| {
            let (gate, up) = x.split_at(half);
            vectorised(
                #[inline(always)]
                || self.row(out, gate, up),
            );
        });
        Ok((CpuStorage::F32(out), dims.into()))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    fn max_diff(a: &Tensor, b: &Tensor) -> f32 {
        (a - b).unwrap().abs().unwrap().max_all().unwrap().to_scalar().unwrap()
    }

    #[test]
    fn results_do_not_depend_on_the_number_of_rows() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let w = Tensor::randn(0f32, 0.1, (48, 80), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            let bias = Tensor::randn(0f32, 1.0, 48, &Device::Cpu).unwrap();
            let x = Tensor::randn(0f32, 1.0, (2, 20, 80), &Device::Cpu).unwrap();
            let many = linear(&x, &w, Some(&bias)).unwrap();
            let few = linear(&x.narrow(1, 19, 1).unwrap(), &w, Some(&bias)).unwrap();
            assert!(max_diff(&many.narrow(1, 19, 1).unwrap(), &few) < 1e-4, "{dtype:?}");
        }
    }

    #[test]
    fn fused_loops_equal_candles_operations() {
        let x = Tensor::randn(0f32, 4.0, (2, 3, 74), &Device::Cpu).unwrap();
        for activation in [Activation::Silu, Activation::GeluTanh, Activation::Gelu, Activation::SwigluOai] {
            let expected = gated_step_by_step(&x, activation).unwrap();
            assert!(max_diff(&gated(&x, activation).unwrap(), &expected) < 1e-5, "{activation:?}");
        }
        assert_eq!(max_diff(&scaled(&x, 1.5).unwrap(), &(&x * 1.5).unwrap()), 0.0);
        let capped = softcapped(&x, 3.0).unwrap();
        assert!(max_diff(&capped, &softcapped_step_by_step(&x, 3.0).unwrap()) < 1e-5);
        assert_eq!(max_diff(&sum(&x, &x).unwrap(), &(&x + &x).unwrap()), 0.0);
        let half = x.to_dtype(DType::BF16).unwrap();
        assert_eq!(max_diff(&widen(&half).unwrap(), &half.to_dtype(DType::F32).unwrap()), 0.0);
    }
}
