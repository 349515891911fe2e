//! Rotary position tables, in f32 whatever the weights are: half precision is wrong past a few hundred positions.

use candle_core::{Device, Result, Tensor};

use crate::model::{ModelSpec, spec::RopeScaling};

pub struct Rope {
    /// (capacity, head dim / 2)
    cos: Tensor,
    sin: Tensor,
}

impl Rope {
    /// `divisors`, one for each frequency, come on top of the spec's own scaling.
    pub fn new(spec: &ModelSpec, divisors: Option<&[f32]>, capacity: usize, device: &Device) -> Result<Self> {
        let (cos, sin) = tables(spec, divisors, capacity)?;
        let shape = (capacity, spec.head_dim / 2);
        Ok(Rope { cos: Tensor::from_vec(cos, shape, device)?, sin: Tensor::from_vec(sin, shape, device)? })
    }

    /// Turns `x` (batch, heads, t, head dim), whose first row is at `position`.
    pub fn turn(&self, x: &Tensor, position: usize) -> Result<Tensor> {
        let t = x.dim(2)?;
        let (cos, sin) = (self.cos.narrow(0, position, t)?, self.sin.narrow(0, position, t)?);
        candle_nn::rotary_emb::rope(&x.contiguous()?, &cos, &sin)
    }
}

/// Cosines and sines, (capacity, head dim / 2) each, in f32: half precision is wrong from a few hundred positions on.
pub fn tables(spec: &ModelSpec, divisors: Option<&[f32]>, capacity: usize) -> Result<(Vec<f32>, Vec<f32>)> {
    let mut frequencies = frequencies(spec);
    if let Some(divisors) = divisors {
        if divisors.len() != frequencies.len() {
            candle_core::bail!("{} rotary divisors for {} frequencies", divisors.len(), frequencies.len());
        }
        frequencies.iter_mut().zip(divisors).for_each(|(frequency, divisor)| *frequency /= divisor);
    }
    let table = |f: fn(f32) -> f32| -> Vec<f32> {
        (0..capacity).flat_map(|at| frequencies.iter().map(move |w| f(at as f32 * w))).collect()
    };
    Ok((table(f32::cos), table(f32::sin)))
}

fn frequencies(spec: &ModelSpec) -> Vec<f32> {
    let d = spec.head_dim;
    let plain = (0..d).step_by(2).map(|i| 1f32 / (spec.rope_theta as f32).powf(i as f32 / d as f32));
    match spec.rope_scaling {
        None => plain.collect(),
        Some(scaling) => plain.map(|w| stretched(w, &scaling)).collect(),
    }
}

/// Llama 3: long waves are stretched, short ones stay, and those between are blended.
fn stretched(frequency: f32, scaling: &RopeScaling) -> f32 {
    let original = scaling.original_max_positions as f32;
    let (factor, low, high) =
        (scaling.factor as f32, scaling.low_freq_factor as f32, scaling.high_freq_factor as f32);
    let wavelength = 2.0 * std::f32::consts::PI / frequency;
    if wavelength < original / high {
        frequency
    } else if wavelength > original / low {
        frequency / factor
    } else {
        let blend = (original / wavelength - low) / (high - low);
        (1.0 - blend) * frequency / factor + blend * frequency
    }
}
