//! The duration of a model's steps on a simulated GPU.

use super::{
    card::SimCard,
    kernels::{SimSteps, nominal_ns},
};
use llm_cost::{Shape, Step};
use llmprof_event::Phase;

/// Durations of a model's steps on a GPU, from the model's cost.
#[derive(Debug, Clone)]
pub struct SimTiming {
    shape: Shape,
    card: &'static SimCard,
    /// Whether a decode step is one CUDA graph.
    graphs: bool,
    /// The last computed decode steps: batch, context and seconds, at both ends of a range of contexts.
    decode: Option<(u64, u64, [f64; 2])>,
}

/// The distance of contexts between which the duration of a decode step is interpolated.
const CONTEXT_RANGE: u64 = 256;

impl SimTiming {
    pub fn new(shape: Shape, card: &'static SimCard, graphs: bool) -> SimTiming {
        SimTiming { shape, card, graphs, decode: None }
    }

    /// The duration of a prefill of `prompt` tokens in each of `batch` sequences.
    pub fn prefill_s(&self, batch: u64, prompt: u64) -> f64 {
        self.step_s(Phase::Prefill, Step::prefill(batch, prompt))
    }

    /// The duration of a decode step after `context` positions.
    pub fn decode_s(&mut self, batch: u64, context: u64) -> f64 {
        let from = context / CONTEXT_RANGE * CONTEXT_RANGE;
        let at = |context: u64| self.step_s(Phase::Decode, Step::decode(batch, context.max(1)));
        let known = self.decode.filter(|known| (known.0, known.1) == (batch, from));
        let (_, _, [first, last]) =
            known.unwrap_or_else(|| (batch, from, [at(from), at(from + CONTEXT_RANGE)]));
        self.decode = Some((batch, from, [first, last]));
        first + (last - first) * (context - from) as f64 / CONTEXT_RANGE as f64
    }

    /// The utilisation of the GPU by a step of a phase.
    pub fn load(&self, phase: Phase, step: Step) -> SimLoad {
        let (cost, secs) = (self.shape.cost(step).total(), self.step_s(phase, step));
        let roof = self.card.roof(&self.shape.dtype);
        SimLoad { compute: cost.flops() / secs / roof.flops, memory: cost.bytes() / secs / roof.bytes_per_s }
    }

    fn step_s(&self, phase: Phase, step: Step) -> f64 {
        let graph = self.graphs && phase == Phase::Decode;
        let (shape, card) = (&self.shape, self.card);
        nominal_ns(&SimSteps { shape, card, phase, step, steps: 1, step_ns: 0, graph, seed: 0 }) / 1e9
    }
}

/// The shares of both ceilings that a phase uses, 0–1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SimLoad {
    pub compute: f64,
    pub memory: f64,
}

impl SimLoad {
    /// A prefill and a decode of a 7B model on an H200, as measured.
    pub const PREFILL: SimLoad = SimLoad { compute: 0.929, memory: 0.169 };
    pub const DECODE: SimLoad = SimLoad { compute: 0.031, memory: 0.786 };
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sim::card::{H200, RTX_4090};
    use llmprof_config::Dtype;

    fn timing(layers: u32, hidden: u32, card: &'static SimCard) -> SimTiming {
        let config = json!({
            "model_type": "qwen2", "vocab_size": 152064, "hidden_size": hidden, "intermediate_size": hidden * 5,
            "num_hidden_layers": layers, "num_attention_heads": 28, "num_key_value_heads": 4, "head_dim": 128,
            "max_position_embeddings": 131072
        });
        SimTiming::new(Shape::from_hf(&config, Dtype::Bf16).unwrap(), card, true)
    }

    #[test]
    fn steps_follow_the_model_and_the_gpu() {
        let (mut small, mut large) = (timing(4, 1024, &H200), timing(28, 3584, &H200));
        assert!(small.decode_s(1, 512) < large.decode_s(1, 512) / 4.0);
        let mut on_4090 = timing(28, 3584, &RTX_4090);
        let ratio = on_4090.decode_s(1, 512) / large.decode_s(1, 512);
        // Decode is memory-bound: 4.8 TB/s against 1.008 TB/s.
        assert!((4.0..4.9).contains(&ratio), "{ratio}");
        assert!(on_4090.prefill_s(1, 2048) > 4.0 * large.prefill_s(1, 2048));
        // Never faster than the weights can be read.
        let bytes = large.shape.cost(Step::decode(1, 512)).total().certain_bytes();
        assert!(large.decode_s(1, 512) > bytes / 4.8e12, "{}", large.decode_s(1, 512));
    }

    #[test]
    fn a_longer_context_takes_longer() {
        let mut timing = timing(28, 3584, &H200);
        let steps: Vec<f64> = (0..20).map(|i| timing.decode_s(4, 100 + 300 * i)).collect();
        assert!(steps.windows(2).all(|pair| pair[0] < pair[1]), "{steps:?}");
        let exact = timing.step_s(Phase::Decode, Step::decode(4, 1000));
        assert!((timing.decode_s(4, 1000) / exact - 1.0).abs() < 0.01);
    }

    #[test]
    fn decode_uses_memory_and_prefill_arithmetic() {
        let timing = timing(28, 3584, &H200);
        let decode = timing.load(Phase::Decode, Step::decode(1, 512));
        let prefill = timing.load(Phase::Prefill, Step::prefill(1, 4096));
        assert!(decode.memory > 0.6 && decode.compute < 0.05, "{decode:?}");
        assert!(prefill.compute > 0.4 && prefill.memory < 0.5, "{prefill:?}");
        assert!(decode.memory <= 1.0 && prefill.compute <= 1.0);
    }
}
