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
    let sharper = match spec.rope_scaling {
        Some(RopeScaling::Yarn { attention_factor, .. }) => attention_factor as f32,
        _ => 1.0,
    };
    let table = |f: fn(f32) -> f32| -> Vec<f32> {
        (0..capacity).flat_map(|at| frequencies.iter().map(move |w| sharper * f(at as f32 * w))).collect()
    };
    Ok((table(f32::cos), table(f32::sin)))
}

fn frequencies(spec: &ModelSpec) -> Vec<f32> {
    let d = spec.head_dim;
    let plain = (0..d).step_by(2).map(|i| 1f32 / (spec.rope_theta as f32).powf(i as f32 / d as f32));
    match spec.rope_scaling {
        None => plain.collect(),
        Some(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions }) => {
            let [factor, low, high] = [factor, low_freq_factor, high_freq_factor].map(|x| x as f32);
            plain.map(|w| by_wavelength(w, original_max_positions as f32, factor, low, high)).collect()
        }
        Some(RopeScaling::Yarn { factor, beta_fast, beta_slow, original_max_positions, .. }) => {
            // Which of the frequencies turns `turns` times over the original context.
            let turning = |turns: f64| {
                let positions = original_max_positions as f64 / (turns * 2.0 * std::f64::consts::PI);
                d as f64 * positions.ln() / (2.0 * spec.rope_theta.ln())
            };
            let first = turning(beta_fast).floor().max(0.0);
            let last = turning(beta_slow).ceil().min(d as f64 - 1.0).max(first + 0.001);
            let stretched = |(i, w): (usize, f32)| {
                let share = ((i as f64 - first) / (last - first)).clamp(0.0, 1.0);
                (f64::from(w) * (share / factor + 1.0 - share)) as f32
            };
            plain.enumerate().map(stretched).collect()
        }
    }
}

/// Long waves are stretched, short ones stay, and those between are blended.
fn by_wavelength(frequency: f32, original: f32, factor: f32, low: f32, high: f32) -> f32 {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yarn_keeps_fast_turns_and_stretches_slow_ones() {
        let spec = |scaling: serde_json::Value| {
            ModelSpec::from_hf(&json!({
                "model_type": "qwen2", "vocab_size": 8, "hidden_size": 128, "intermediate_size": 8,
                "num_hidden_layers": 1, "num_attention_heads": 1, "max_position_embeddings": 131072,
                "rope_theta": 1_000_000.0, "rope_scaling": scaling
            }))
            .unwrap()
        };
        // As Qwen2.5's model card asks for: by hand, 23 and 40 are the first and last that are blended.
        let yarn = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768});
        let (plain, stretched) = (frequencies(&spec(json!(null))), frequencies(&spec(yarn.clone())));
        let ratio: Vec<f32> = plain.iter().zip(&stretched).map(|(a, b)| b / a).collect();
        assert!(ratio[..24].iter().all(|r| (r - 1.0).abs() < 1e-6), "{ratio:?}");
        assert!(ratio[40..].iter().all(|r| (r - 0.25).abs() < 1e-6), "{ratio:?}");
        assert!((ratio[30] - (1.0 - 0.75 * 7.0 / 17.0)).abs() < 1e-5, "{}", ratio[30]);
        let (cosines, _) = tables(&spec(yarn), None, 1).unwrap();
        assert!((cosines[0] - (0.1 * 4f32.ln() + 1.0)).abs() < 1e-6, "{}", cosines[0]);
    }
}
