//! Rotary position tables, in f32 for all weight types: half precision is wrong past a few hundred positions.

use candle_core::{Device, Result, Tensor};

use llm_cost::{ModelSpec, spec::RopeScaling};

/// Cosines and sines, (capacity, head dim / 2) each.
pub type Tables = (Vec<f32>, Vec<f32>);

pub struct Rope {
    /// (capacity, head dim / 2)
    cos: Tensor,
    sin: Tensor,
}

impl Rope {
    pub fn new((cos, sin): Tables, capacity: usize, device: &Device) -> Result<Self> {
        let tensor = |table| Tensor::from_vec(table, (capacity, ()), device);
        Ok(Rope { cos: tensor(cos)?, sin: tensor(sin)? })
    }

    /// Rotates `x` (batch, heads, t, head dim), whose first row is at `position`.
    pub fn rotate(&self, x: &Tensor, position: usize) -> Result<Tensor> {
        let t = x.dim(2)?;
        let (cos, sin) = (self.cos.narrow(0, position, t)?, self.sin.narrow(0, position, t)?);
        candle_nn::rotary_emb::rope(&x.contiguous()?, &cos, &sin)
    }
}

/// The tables of a run whose sequences have at most `capacity` positions. `divisors`, one per frequency, are applied in
/// addition to the spec's scaling.
pub fn tables(spec: &ModelSpec, divisors: Option<&[f32]>, capacity: usize) -> Result<Tables> {
    let mut frequencies = frequencies(spec, capacity);
    if let Some(divisors) = divisors {
        if divisors.len() != frequencies.len() {
            candle_core::bail!("{} rotary divisors for {} frequencies", divisors.len(), frequencies.len());
        }
        frequencies.iter_mut().zip(divisors).for_each(|(frequency, divisor)| *frequency /= divisor);
    }
    let sharper = match spec.rope_scaling {
        Some(RopeScaling::Yarn { attention_factor, .. } | RopeScaling::LongRope { attention_factor, .. }) => {
            attention_factor as f32
        }
        _ => 1.0,
    };
    Ok(turns(&frequencies, sharper, capacity))
}

/// As [`tables`], for layers with their own rotary base, where the model has such.
pub fn local_tables(spec: &ModelSpec, capacity: usize) -> Option<Tables> {
    let theta = spec.local_rope_theta?;
    Some(turns(&plain(spec.head_dim, theta).collect::<Vec<_>>(), 1.0, capacity))
}

fn turns(frequencies: &[f32], sharper: f32, capacity: usize) -> Tables {
    let table = |f: fn(f32) -> f32| -> Vec<f32> {
        (0..capacity).flat_map(|at| frequencies.iter().map(move |w| sharper * f(at as f32 * w))).collect()
    };
    (table(f32::cos), table(f32::sin))
}

/// Frequencies without scaling.
fn plain(d: usize, theta: f64) -> impl Iterator<Item = f32> {
    (0..d).step_by(2).map(move |i| 1f32 / (theta as f32).powf(i as f32 / d as f32))
}

fn frequencies(spec: &ModelSpec, capacity: usize) -> Vec<f32> {
    let d = spec.head_dim;
    let plain = plain(d, spec.rope_theta);
    match &spec.rope_scaling {
        None => plain.collect(),
        &Some(RopeScaling::Linear { factor }) => plain.map(|w| w / factor as f32).collect(),
        Some(RopeScaling::LongRope { short, long, original_max_positions, .. }) => {
            // Hugging Face switches to the long list at the step that exceeds the original context and leaves the keys
            // in the cache as they are. Here one list is used for the whole run, chosen by its longest sequence.
            let divisors = if capacity > *original_max_positions { long } else { short };
            plain.zip(divisors).map(|(w, divisor)| w / *divisor as f32).collect()
        }
        &Some(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions }) => {
            let [factor, low, high] = [factor, low_freq_factor, high_freq_factor].map(|x| x as f32);
            plain.map(|w| by_wavelength(w, original_max_positions as f32, factor, low, high)).collect()
        }
        &Some(RopeScaling::Yarn {
            factor, beta_fast, beta_slow, original_max_positions, truncate, ..
        }) => {
            // The index of the frequency that rotates `turns` times over the original context.
            let turning = |turns: f64| {
                let positions = original_max_positions as f64 / (turns * 2.0 * std::f64::consts::PI);
                d as f64 * positions.ln() / (2.0 * spec.rope_theta.ln())
            };
            let whole = |at: f64, to_whole: fn(f64) -> f64| if truncate { to_whole(at) } else { at };
            let first = whole(turning(beta_fast), f64::floor).max(0.0);
            let last = whole(turning(beta_slow), f64::ceil).min(d as f64 - 1.0).max(first + 0.001);
            let stretched = |(i, w): (usize, f32)| {
                let share = ((i as f64 - first) / (last - first)).clamp(0.0, 1.0);
                (f64::from(w) * (share / factor + 1.0 - share)) as f32
            };
            plain.enumerate().map(stretched).collect()
        }
    }
}

/// Long wavelengths are scaled, short ones are kept, and those between are interpolated.
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
        let (plain, stretched) = (frequencies(&spec(json!(null)), 8), frequencies(&spec(yarn.clone()), 8));
        let ratio: Vec<f32> = plain.iter().zip(&stretched).map(|(a, b)| b / a).collect();
        assert!(ratio[..24].iter().all(|r| (r - 1.0).abs() < 1e-6), "{ratio:?}");
        assert!(ratio[40..].iter().all(|r| (r - 0.25).abs() < 1e-6), "{ratio:?}");
        assert!((ratio[30] - (1.0 - 0.75 * 7.0 / 17.0)).abs() < 1e-5, "{}", ratio[30]);
        let (cosines, _) = tables(&spec(yarn), None, 1).unwrap();
        assert!((cosines[0] - (0.1 * 4f32.ln() + 1.0)).abs() < 1e-6, "{}", cosines[0]);
    }

    #[test]
    fn layers_with_a_window_turn_by_their_own_base_and_are_not_stretched() {
        let spec = ModelSpec::from_hf(&json!({
            "model_type": "gemma3_text", "vocab_size": 8, "hidden_size": 16, "intermediate_size": 8,
            "num_hidden_layers": 6, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0}
        }))
        .unwrap();
        let (_, global) = tables(&spec, None, 100).unwrap();
        let (_, local) = local_tables(&spec, 100).unwrap();
        for (at, i) in [(1, 0), (9, 3), (99, 7)] {
            let angle = |theta: f64| at as f64 / theta.powf(i as f64 / 8.0);
            let (global, local) = (f64::from(global[at * 8 + i]), f64::from(local[at * 8 + i]));
            assert!((global - (angle(1e6) / 8.0).sin()).abs() < 1e-5, "{at} {i}: {global}");
            assert!((local - angle(1e4).sin()).abs() < 1e-5, "{at} {i}: {local}");
        }
    }

    /// Against the definition in f64: angle = position / (divisor · θ^(2i/d)), cosines and sines times
    /// √(1 + ln(positions / original) / ln(original)).
    #[test]
    fn longrope_takes_the_list_that_the_longest_sequence_asks_for() {
        let (d, positions, original) = (12, 4096, 128);
        let short: Vec<f64> = (0..d / 2).map(|i| 1.0 + 0.07 * i as f64).collect();
        let long: Vec<f64> = (0..d / 2).map(|i| 1.08 + 9.3 * i as f64).collect();
        for (kind, original_is_inside) in [("longrope", false), ("su", true)] {
            let mut config = json!({
                "model_type": "phi3", "vocab_size": 8, "hidden_size": d, "intermediate_size": 8,
                "num_hidden_layers": 1, "num_attention_heads": 1, "max_position_embeddings": positions,
                "rope_scaling": {"type": kind, "short_factor": short, "long_factor": long}
            });
            let place = if original_is_inside { &mut config["rope_scaling"] } else { &mut config };
            place["original_max_position_embeddings"] = json!(original);
            let spec = ModelSpec::from_hf(&config).unwrap();
            let sharper = (1.0 + (positions as f64 / original as f64).ln() / (original as f64).ln()).sqrt();
            for (capacity, divisors) in [(100, &short), (128, &short), (129, &long), (4096, &long)] {
                let (cosines, sines) = tables(&spec, None, capacity).unwrap();
                assert_eq!((cosines.len(), sines.len()), (capacity * d / 2, capacity * d / 2));
                for (n, (cosine, sine)) in cosines.iter().zip(&sines).enumerate() {
                    let (at, i) = (n / (d / 2), n % (d / 2));
                    let angle = at as f64 / (divisors[i] * 10_000f64.powf(2.0 * i as f64 / d as f64));
                    let error = (f64::from(*cosine) - sharper * angle.cos())
                        .abs()
                        .max((f64::from(*sine) - sharper * angle.sin()).abs());
                    // An angle is kept in f32, so it is known to one part in ten million.
                    assert!(error < 1e-6 + angle * 3e-7, "{kind}, {capacity}: {at}, {i}: off by {error}");
                }
            }
        }
    }
}
