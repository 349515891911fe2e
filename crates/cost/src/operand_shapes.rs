//! The shapes of operands as text: `[1×896]·[896×9728]`.

use super::{
    Operator,
    cost::Step,
    shape::{Experts, LayerGroup, Shape},
};

/// A shape in brackets, outermost dimension first.
fn sizes(dimensions: &[u64]) -> String {
    let texts: Vec<String> = dimensions.iter().map(u64::to_string).collect();
    format!("[{}]", texts.join("×"))
}

fn product(rows: u64, inputs: u64, outputs: u64) -> String {
    format!("{}·{}", sizes(&[rows, inputs]), sizes(&[inputs, outputs]))
}

impl Shape {
    /// The operands of one call of `operator` in `step`. Different shapes of layers are joined with "or".
    pub fn operand_shapes(&self, operator: Operator, step: Step) -> String {
        let rows = step.batch.saturating_mul(step.new);
        let (h, batch, dim) = (self.hidden, step.batch, self.head_dim);
        match operator {
            Operator::Embedding => {
                format!("ids {} of {}", sizes(&[batch, step.new]), sizes(&[self.vocab, h]))
            }
            Operator::AttentionNorm
            | Operator::PostAttentionNorm
            | Operator::MlpNorm
            | Operator::PostMlpNorm
            | Operator::Layers => sizes(&[rows, h]),
            Operator::Qkv => self.by_group(|group| {
                let all = self.attention_tensors(group).projections;
                all.iter().map(|(a, b)| product(rows, *a, *b)).collect::<Vec<_>>().join(" and ")
            }),
            Operator::Rope => {
                let shape = |heads: u64| sizes(&[batch, heads, step.new, dim]);
                format!("q {} k {}", shape(self.heads), shape(self.kv_heads))
            }
            Operator::Attention => self.attention_shapes(step),
            Operator::AttentionOutput => self.by_group(|group| {
                let (inputs, outputs) = self.attention_tensors(group).output;
                product(rows, inputs, outputs)
            }),
            Operator::Router => {
                let gate = |experts: &Experts| u64::from(experts.has_shared_gate());
                product(rows, h, self.experts.map_or(0, |experts| experts.count + gate(&experts)))
            }
            Operator::GateUp => self.mlp_shapes(rows, |width| (h, self.up_width(width))),
            Operator::Activation => sizes(&[rows, self.up_width(self.intermediate)]),
            Operator::Down => self.mlp_shapes(rows, |width| (width, h)),
            // Logits are computed for the last position of each sequence only.
            Operator::FinalNorm => sizes(&[batch, h]),
            Operator::LmHead => product(batch, h, self.vocab),
            Operator::Sampling => sizes(&[batch, self.vocab]),
            // The draft belongs to another model, and the projector to a vision encoder.
            Operator::Draft | Operator::Projector => String::new(),
        }
    }

    /// The texts of layers, each once.
    fn by_group(&self, text: impl Fn(&LayerGroup) -> String) -> String {
        let mut texts: Vec<String> = Vec::new();
        for group in &self.layers {
            let text = text(group);
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        texts.join(" or ")
    }

    fn attention_shapes(&self, step: Step) -> String {
        let (batch, dim) = (step.batch, self.head_dim);
        let kv = self.by_group(|group| {
            if let Some(linear) = self.linear.filter(|_| group.is_linear) {
                let state = sizes(&[batch, linear.value_heads, linear.key_dim, linear.value_dim]);
                return format!("state {state}");
            }
            let all = step.past.saturating_add(step.new);
            let in_window = |window: u64| all.min(window.saturating_add(step.new.saturating_sub(1)));
            let positions = group.window.map_or(all, in_window);
            match self.latent {
                Some(latent) => sizes(&[batch, positions, latent.kv_rank + latent.rope_dim]),
                None => sizes(&[batch, self.kv_heads, positions, dim]),
            }
        });
        format!("q {} kv {kv}", sizes(&[batch, self.heads, step.new, dim]))
    }

    /// A matrix product of the MLP; `matrix` gives the inputs and outputs for an intermediate size.
    fn mlp_shapes(&self, rows: u64, matrix: impl Fn(u64) -> (u64, u64)) -> String {
        let text = |rows: u64, intermediate: u64| {
            let (inputs, outputs) = matrix(intermediate);
            product(rows, inputs, outputs)
        };
        let mut texts = Vec::new();
        if self.layers.iter().any(|group| !group.has_experts) {
            texts.push(text(rows, self.intermediate));
        }
        if let Some(experts) = self.experts.filter(|_| self.layers.iter().any(|group| group.has_experts)) {
            let active = text(rows.saturating_mul(experts.active), experts.intermediate);
            texts.push(format!("{active} over {} experts", experts.count));
            if experts.shared_intermediate > 0 {
                texts.push(format!("{} shared", text(rows, experts.shared_intermediate)));
            }
        }
        texts.join(" or ")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Dtype;

    fn shape(changes: serde_json::Value) -> Shape {
        let mut config = json!({
            "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
            "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
            "max_position_embeddings": 32768
        });
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
        Shape::from_hf(&config, Dtype::Bf16).unwrap()
    }

    #[test]
    fn operands_of_a_decode_step_and_a_prefill() {
        let shape = shape(json!({}));
        let (decode, prefill) = (Step::decode(1, 512), Step::prefill(2, 128));
        for (operator, of_decode, of_prefill) in [
            (Operator::Embedding, "ids [1×1] of [151936×896]", "ids [2×128] of [151936×896]"),
            (Operator::MlpNorm, "[1×896]", "[256×896]"),
            (Operator::Qkv, "[1×896]·[896×1152]", "[256×896]·[896×1152]"),
            (Operator::Rope, "q [1×14×1×64] k [1×2×1×64]", "q [2×14×128×64] k [2×2×128×64]"),
            (Operator::Attention, "q [1×14×1×64] kv [1×2×513×64]", "q [2×14×128×64] kv [2×2×128×64]"),
            (Operator::GateUp, "[1×896]·[896×9728]", "[256×896]·[896×9728]"),
            (Operator::Down, "[1×4864]·[4864×896]", "[256×4864]·[4864×896]"),
            (Operator::LmHead, "[1×896]·[896×151936]", "[2×896]·[896×151936]"),
        ] {
            assert_eq!(shape.operand_shapes(operator, decode), of_decode);
            assert_eq!(shape.operand_shapes(operator, prefill), of_prefill);
        }
    }

    #[test]
    fn different_layers_are_joined() {
        let gemma = shape(json!({"model_type": "gemma3_text", "head_dim": 64, "sliding_window": 100,
            "sliding_window_pattern": 6}));
        let text = gemma.operand_shapes(Operator::Attention, Step::decode(1, 512));
        assert_eq!(text, "q [1×14×1×64] kv [1×2×100×64] or [1×2×513×64]");
        let sparse = shape(json!({"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2,
            "decoder_sparse_step": 2}));
        let text = sparse.operand_shapes(Operator::Down, Step::decode(3, 9));
        assert_eq!(text, "[3×4864]·[4864×896] or [6×4864]·[4864×896] over 8 experts");
    }

    #[test]
    fn shapes_agree_with_costs() {
        // The FLOPs of a matrix product are twice the product of its three sizes.
        let shape = shape(json!({}));
        let step = Step::prefill(2, 128);
        for operator in [Operator::Qkv, Operator::GateUp, Operator::Down, Operator::LmHead] {
            let text = shape.operand_shapes(operator, step);
            let numbers: Vec<f64> =
                text.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect();
            let flops = shape.cost(step).operator(operator).unwrap().each().matmul_flops;
            assert_eq!(2.0 * numbers[0] * numbers[1] * numbers[3], flops, "{text}");
        }
    }
}
