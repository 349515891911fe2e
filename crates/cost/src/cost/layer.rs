//! The cost of one layer: grouped, latent and linear attention, dense MLPs and experts.

use super::{ACTIVATION_FLOPS, Amounts, NORM_FLOPS, OperatorCost, ROTATION_FLOPS, SOFTMAX_FLOPS, Step, once};
use crate::{
    Operator, Shape,
    quantisation::Part,
    shape::{Experts, Latent, LayerGroup, Linear, STATE_BYTES},
    spec::touched,
};

/// FLOPs per number of a state and position: decay, the value that it has for the key, the update, the output.
const STATE_FLOPS: f64 = 7.0;

/// The parts of attention that are not GEMMs with weights.
struct AttentionCore {
    /// Biases, norms, rotation and the write to the cache.
    rope: Amounts,
    attention: Amounts,
}

impl Shape {
    pub(super) fn layer_cost(&self, step: Step, group: &LayerGroup) -> Vec<OperatorCost> {
        let (rows, h) = (step.rows(), self.hidden as f64);
        let tensors = self.attention_tensors(group);
        let product = |(inputs, outputs): &(u64, u64)| {
            self.product(Part::Attention, rows, *inputs as f64, *outputs as f64)
        };
        let AttentionCore { mut rope, attention } = match (self.linear, self.latent) {
            (Some(linear), _) if group.is_linear => self.linear_core(step, &linear),
            (_, Some(latent)) => self.latent_core(step, &latent),
            _ => self.grouped_core(step, group),
        };
        rope.weight_bytes += tensors.small as f64 * self.weight_size(Part::Other);
        rope.parameters += tensors.small as f64;
        let output_bias = self.bias(rows, if self.output_bias { h } else { 0.0 });
        let (gate_up, down) = self.mlp(rows, group);
        let router = self.experts.filter(|_| group.has_experts).map(|experts| self.router(rows, &experts));
        let mut all = vec![
            once(Operator::Qkv, tensors.projections.iter().map(product).sum()),
            once(Operator::Rope, rope),
            once(Operator::Attention, attention),
            once(Operator::AttentionOutput, product(&tensors.output) + self.residual(rows) + output_bias),
            once(Operator::GateUp, gate_up),
            once(Operator::Down, down + self.residual(rows)),
        ];
        if self.pre_norms {
            all.push(once(Operator::AttentionNorm, self.norm(rows)));
        }
        if self.pre_norms && !self.shared_norm {
            all.push(once(Operator::MlpNorm, self.norm(rows)));
        }
        if self.post_norms {
            all.push(once(Operator::PostAttentionNorm, self.post_norm(rows)));
            all.push(once(Operator::PostMlpNorm, self.post_norm(rows)));
        }
        all.extend(router.map(|router| once(Operator::Router, router)));
        all.sort_by_key(|cost| cost.operator);
        all
    }

    fn grouped_core(&self, step: Step, group: &LayerGroup) -> AttentionCore {
        let (rows, batch, number) = (step.rows(), step.batch as f64, self.number_bytes as f64);
        let (q, kv) = self.row_widths();
        let (q, kv) = (q as f64, kv as f64);
        let bias = if self.qkv_bias { q + 2.0 * kv } else { 0.0 };
        let normed = if self.qk_norm { q + kv } else { 0.0 };
        let gate = if self.output_gate { q } else { 0.0 };
        let pairs = batch * step.pairs(group.window);
        AttentionCore {
            rope: Amounts {
                other_flops: rows * (bias + NORM_FLOPS * normed + ROTATION_FLOPS * (q + kv)),
                activation_bytes: rows * (q + 2.0 * kv + q) * number,
                kv_write_bytes: rows * 2.0 * kv * self.kv_number_bytes(),
                ..Amounts::default()
            },
            attention: Amounts {
                attention_flops: 4.0 * pairs * q,
                softmax_flops: SOFTMAX_FLOPS * pairs * self.heads as f64,
                other_flops: ACTIVATION_FLOPS * rows * gate,
                activation_bytes: rows * (2.0 * q + gate) * number,
                kv_read_bytes: batch * step.attended(group.window) * 2.0 * kv * self.kv_number_bytes(),
                ..Amounts::default()
            },
        }
    }

    /// Keys and values of the past are either made again from the cached rows, or the heads attend to these rows: the one
    /// with fewer operations counts.
    fn latent_core(&self, step: Step, latent: &Latent) -> AttentionCore {
        let (rows, batch, number) = (step.rows(), step.batch as f64, self.number_bytes as f64);
        let [rank, nope, rope, value] =
            [latent.kv_rank, latent.nope_dim, latent.rope_dim, latent.value_dim].map(|n| n as f64);
        let (heads, q_rank) = (self.heads as f64, latent.q_rank.unwrap_or(0) as f64);
        let pairs = batch * step.pairs(None);
        let again = 2.0 * batch * step.past as f64 * rank * heads * (nope + value);
        let by_heads = 2.0 * pairs * heads * (nope + rope + value) + again;
        let by_rows = 2.0 * pairs * heads * (2.0 * rank + rope);
        let cached = rank + rope;
        AttentionCore {
            rope: Amounts {
                other_flops: rows * (NORM_FLOPS * (q_rank + rank) + ROTATION_FLOPS * (heads + 1.0) * rope),
                activation_bytes: rows * 2.0 * (q_rank + cached + heads * rope) * number,
                kv_write_bytes: rows * cached * self.kv_number_bytes(),
                ..Amounts::default()
            },
            attention: Amounts {
                attention_flops: by_heads.min(by_rows),
                softmax_flops: SOFTMAX_FLOPS * pairs * heads,
                activation_bytes: rows * heads * (nope + rope + value) * number,
                kv_read_bytes: batch * step.attended(None) * cached * self.kv_number_bytes(),
                ..Amounts::default()
            },
        }
    }

    /// Every sequence has a state, read if there is a past and written.
    fn linear_core(&self, step: Step, linear: &Linear) -> AttentionCore {
        let (rows, batch, number) = (step.rows(), step.batch as f64, self.number_bytes as f64);
        let (key, value) = linear.row_widths();
        let (key, value, convolution) = (key as f64, value as f64, linear.convolution as f64);
        let state_bytes = batch * (linear.state() * STATE_BYTES) as f64;
        let numbers = linear.value_heads as f64 * linear.key_dim as f64 * linear.value_dim as f64;
        AttentionCore {
            rope: Amounts {
                other_flops: rows * (2.0 * convolution + ACTIVATION_FLOPS) * (2.0 * key + value),
                activation_bytes: rows * 2.0 * (2.0 * key + value) * number,
                ..Amounts::default()
            },
            attention: Amounts {
                attention_flops: STATE_FLOPS * rows * numbers,
                other_flops: rows * (NORM_FLOPS + ACTIVATION_FLOPS) * value,
                activation_bytes: rows * (2.0 * key + 3.0 * value) * number,
                kv_read_bytes: if step.past > 0 { state_bytes } else { 0.0 },
                kv_write_bytes: state_bytes,
                ..Amounts::default()
            },
        }
    }

    /// The scores of the experts, and of the gate of the shared one.
    fn router(&self, rows: f64, experts: &Experts) -> Amounts {
        let h = self.hidden as f64;
        let scores = self.product(Part::Other, rows, h, experts.count as f64);
        let bias = self.bias(rows, if experts.router_bias { experts.count as f64 } else { 0.0 });
        match experts.has_shared_gate() {
            true => scores + bias + self.product(Part::Other, rows, h, 1.0),
            false => scores + bias,
        }
    }

    /// The costs of gate and up with the activation and of down.
    fn mlp(&self, rows: f64, group: &LayerGroup) -> (Amounts, Amounts) {
        let h = self.hidden as f64;
        let gated = |rows: f64, intermediate: f64, has_bias: bool| {
            // Gate and up are not written to memory, only their product.
            let up = if self.plain_mlp { intermediate } else { 2.0 * intermediate };
            let mut gate_up = self.product(Part::Mlp, rows, h, up);
            gate_up.activation_bytes = rows * (h + intermediate) * self.number_bytes as f64;
            gate_up.other_flops = ACTIVATION_FLOPS * rows * intermediate;
            let down = self.product(Part::Mlp, rows, intermediate, h);
            match has_bias {
                true => (gate_up + self.bias(rows, up), down + self.bias(rows, h)),
                false => (gate_up, down),
            }
        };
        let Some(experts) = self.experts.filter(|_| group.has_experts) else {
            return gated(rows, self.intermediate as f64, self.mlp_bias);
        };
        let (count, active) = (experts.count as f64, experts.active as f64);
        let used = touched(count, active, rows);
        let of_experts = |mut one: Amounts| {
            one.weight_bytes *= used;
            one.parameters *= count;
            one
        };
        let (gate_up, down) = gated(rows * active, experts.intermediate as f64, experts.bias);
        let (mut gate_up, mut down) = (of_experts(gate_up), of_experts(down));
        if experts.shared_intermediate > 0 {
            let (shared_gate_up, shared_down) = gated(rows, experts.shared_intermediate as f64, false);
            gate_up = gate_up + shared_gate_up;
            down = down + shared_down;
        }
        (gate_up, down)
    }
}
