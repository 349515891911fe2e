//! The cost of a step by operator, computed from the shape: FLOPs, bytes and parameters.
//!
//! A multiply-add is two FLOPs. Bytes are the memory traffic without caching between operators and with perfect caching
//! within one: weights once, keys and values once, activations in and out. The operators are those of the built-in engine: `rope`
//! includes the biases, norms and rotation of queries and keys and the KV cache write, `gate_up` includes the activation,
//! matrix products include the residual addition.

use serde::Serialize;

use super::{
    Operator,
    quantisation::Part,
    shape::{LayerGroup, Shape},
};

mod layer;

/// A forward pass: the positions computed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Step {
    pub batch: u64,
    /// New positions of each sequence.
    pub new: u64,
    /// Positions of each sequence that are already in the KV cache.
    pub past: u64,
}

impl Step {
    pub fn prefill(batch: u64, prompt: u64) -> Step {
        Step { batch, new: prompt, past: 0 }
    }

    /// One new position after `context` positions.
    pub fn decode(batch: u64, context: u64) -> Step {
        Step { batch, new: 1, past: context }
    }

    fn rows(&self) -> f64 {
        self.batch as f64 * self.new as f64
    }

    /// Pairs of a query and a key position in one sequence.
    fn pairs(&self, window: Option<u64>) -> f64 {
        let (new, past) = (self.new as f64, self.past as f64);
        let Some(window) = window.map(|window| window as f64) else {
            return new * past + new * (new + 1.0) / 2.0;
        };
        // The first positions attend to all before them, the others to a full window.
        let growing = (window - past).clamp(0.0, new);
        growing * past + growing * (growing + 1.0) / 2.0 + (new - growing) * window
    }

    /// Positions of one sequence whose keys and values are read.
    fn attended(&self, window: Option<u64>) -> f64 {
        let all = self.past as f64 + self.new as f64;
        window.map_or(all, |window| all.min(window as f64 + self.new as f64 - 1.0))
    }
}

/// The cost of one operator, or the sum of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Amounts {
    /// Matrix products with weights.
    pub matmul_flops: f64,
    /// Scores and the weighted sum of values.
    pub attention_flops: f64,
    pub softmax_flops: f64,
    /// Norms, rotary embedding, activation, additions, sampling.
    pub other_flops: f64,
    pub weight_bytes: f64,
    pub activation_bytes: f64,
    pub kv_read_bytes: f64,
    pub kv_write_bytes: f64,
    pub parameters: f64,
}

impl Amounts {
    pub fn flops(&self) -> f64 {
        self.matmul_flops + self.attention_flops + self.softmax_flops + self.other_flops
    }

    pub fn bytes(&self) -> f64 {
        self.weight_bytes + self.activation_bytes + self.kv_read_bytes + self.kv_write_bytes
    }

    /// Bytes that must be read from memory in any case: weights, keys and values.
    pub fn certain_bytes(&self) -> f64 {
        self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes
    }

    /// Arithmetic intensity in FLOPs per byte; `None` without memory traffic.
    pub fn intensity(&self) -> Option<f64> {
        (self.bytes() > 0.0).then(|| self.flops() / self.bytes())
    }

    pub fn times(&self, n: f64) -> Amounts {
        Amounts {
            matmul_flops: self.matmul_flops * n,
            attention_flops: self.attention_flops * n,
            softmax_flops: self.softmax_flops * n,
            other_flops: self.other_flops * n,
            weight_bytes: self.weight_bytes * n,
            activation_bytes: self.activation_bytes * n,
            kv_read_bytes: self.kv_read_bytes * n,
            kv_write_bytes: self.kv_write_bytes * n,
            parameters: self.parameters * n,
        }
    }
}

impl std::ops::Add for Amounts {
    type Output = Amounts;

    fn add(self, other: Amounts) -> Amounts {
        Amounts {
            matmul_flops: self.matmul_flops + other.matmul_flops,
            attention_flops: self.attention_flops + other.attention_flops,
            softmax_flops: self.softmax_flops + other.softmax_flops,
            other_flops: self.other_flops + other.other_flops,
            weight_bytes: self.weight_bytes + other.weight_bytes,
            activation_bytes: self.activation_bytes + other.activation_bytes,
            kv_read_bytes: self.kv_read_bytes + other.kv_read_bytes,
            kv_write_bytes: self.kv_write_bytes + other.kv_write_bytes,
            parameters: self.parameters + other.parameters,
        }
    }
}

impl std::iter::Sum for Amounts {
    fn sum<I: Iterator<Item = Amounts>>(all: I) -> Amounts {
        all.fold(Amounts::default(), |sum, one| sum + one)
    }
}

/// The cost of an operator in a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct OperatorCost {
    pub operator: Operator,
    /// Calls per step: one, or one per layer.
    pub calls: u64,
    /// The sum of all calls.
    #[serde(flatten)]
    pub all: Amounts,
}

impl OperatorCost {
    /// The mean of the calls, which differ if layers differ.
    pub fn each(&self) -> Amounts {
        self.all.times(1.0 / self.calls.max(1) as f64)
    }
}

/// The cost of a step, with its operators in execution order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepCost {
    pub step: Step,
    pub operators: Vec<OperatorCost>,
    /// The cost of one layer of each group.
    pub layers: Vec<LayerCost>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayerCost {
    pub layer: LayerGroup,
    pub operators: Vec<OperatorCost>,
}

impl StepCost {
    pub fn total(&self) -> Amounts {
        self.operators.iter().map(|operator| operator.all).sum()
    }

    /// That of `layers` is the sum of the operators within layers, and not one more of the step.
    pub fn operator(&self, operator: Operator) -> Option<OperatorCost> {
        if operator == Operator::Layers {
            let of_kind = |kind: &LayerCost| {
                kind.operators.iter().map(|cost| cost.all).sum::<Amounts>().times(kind.layer.count as f64)
            };
            return Some(once(operator, self.layers.iter().map(of_kind).sum()));
        }
        self.operators.iter().find(|cost| cost.operator == operator).copied()
    }
}

/// FLOPs per element of a norm: square, sum, scale, weight.
pub(super) const NORM_FLOPS: f64 = 4.0;
/// FLOPs per score of a softmax: maximum, difference, exponential, sum, quotient.
pub(super) const SOFTMAX_FLOPS: f64 = 5.0;
/// FLOPs per element of the rotary embedding: two products and a sum.
pub(super) const ROTATION_FLOPS: f64 = 3.0;
/// FLOPs per element of the gated activation: exponential, sum, quotient and two products.
pub(super) const ACTIVATION_FLOPS: f64 = 5.0;
/// Logits are f32 for every model type.
const LOGIT_BYTES: f64 = 4.0;

impl Shape {
    /// The cost of `step`.
    pub fn cost(&self, step: Step) -> StepCost {
        let layers: Vec<LayerCost> = self
            .layers
            .iter()
            .map(|group| LayerCost { layer: *group, operators: self.layer_cost(step, group) })
            .collect();
        let outer = self.outer_cost(step);
        let mut operators: Vec<OperatorCost> = Vec::new();
        for &operator in Operator::ALL {
            let outside = outer.iter().filter(|cost| cost.operator == operator).copied();
            let inside = layers.iter().flat_map(|kind| {
                let n = kind.layer.count;
                kind.operators.iter().map(move |cost| OperatorCost {
                    calls: n,
                    all: cost.all.times(n as f64),
                    ..*cost
                })
            });
            let same: Vec<OperatorCost> =
                outside.chain(inside.filter(|cost| cost.operator == operator)).collect();
            if !same.is_empty() {
                let calls = same.iter().map(|cost| cost.calls).sum();
                operators.push(OperatorCost { operator, calls, all: same.iter().map(|cost| cost.all).sum() });
            }
        }
        StepCost { step, operators, layers }
    }

    /// The operators outside of layers. Logits are computed for the last position of each sequence only.
    fn outer_cost(&self, step: Step) -> Vec<OperatorCost> {
        let (rows, batch) = (step.rows(), step.batch as f64);
        let (h, vocab, number) = (self.hidden as f64, self.vocab as f64, self.number_bytes as f64);
        let weight = self.weight_size(Part::Other);
        let head = self.weight_size(if self.tied_embeddings { Part::Other } else { Part::Head });
        let table = vocab * h;
        let tables = if self.position_table > 0 { 2.0 } else { 1.0 };
        let head_bias = self.bias(batch, if self.head_bias { vocab } else { 0.0 });
        vec![
            once(
                Operator::Embedding,
                Amounts {
                    weight_bytes: tables * rows * h * weight,
                    activation_bytes: rows * h * number,
                    parameters: table + self.position_table as f64 * h,
                    ..Amounts::default()
                },
            ),
            once(Operator::FinalNorm, self.norm(batch)),
            once(
                Operator::LmHead,
                Amounts {
                    matmul_flops: 2.0 * batch * table,
                    weight_bytes: table * head,
                    activation_bytes: batch * (h * number + vocab * LOGIT_BYTES),
                    parameters: if self.tied_embeddings { 0.0 } else { table },
                    ..Amounts::default()
                } + head_bias,
            ),
            once(
                Operator::Sampling,
                Amounts {
                    other_flops: batch * vocab,
                    activation_bytes: batch * vocab * LOGIT_BYTES,
                    ..Amounts::default()
                },
            ),
        ]
    }

    fn norm(&self, rows: f64) -> Amounts {
        let h = self.hidden as f64;
        Amounts {
            other_flops: NORM_FLOPS * rows * h,
            weight_bytes: self.norm_numbers() as f64 * self.weight_size(Part::Other),
            activation_bytes: 2.0 * rows * h * self.number_bytes as f64,
            parameters: self.norm_numbers() as f64,
            ..Amounts::default()
        }
    }

    /// A norm of an operator's output with the residual addition.
    fn post_norm(&self, rows: f64) -> Amounts {
        let h = self.hidden as f64;
        let added = Amounts {
            other_flops: rows * h,
            activation_bytes: rows * h * self.number_bytes as f64,
            ..Amounts::default()
        };
        self.norm(rows) + added
    }

    /// The GEMM of `rows` rows with a weight matrix of `inputs` × `outputs` in `part`.
    fn product(&self, part: Part, rows: f64, inputs: f64, outputs: f64) -> Amounts {
        Amounts {
            matmul_flops: 2.0 * rows * inputs * outputs,
            weight_bytes: inputs * outputs * self.weight_size(part),
            activation_bytes: rows * (inputs + outputs) * self.number_bytes as f64,
            parameters: inputs * outputs,
            ..Amounts::default()
        }
    }

    /// The addition of a bias of `numbers` to `rows` rows.
    fn bias(&self, rows: f64, numbers: f64) -> Amounts {
        Amounts {
            other_flops: rows * numbers,
            weight_bytes: numbers * self.weight_size(Part::Other),
            parameters: numbers,
            ..Amounts::default()
        }
    }

    /// The residual addition of a matrix product; part of the post norm if the model has one.
    fn residual(&self, rows: f64) -> Amounts {
        let numbers = if self.post_norms { 0.0 } else { rows * self.hidden as f64 };
        Amounts {
            other_flops: numbers,
            activation_bytes: numbers * self.number_bytes as f64,
            ..Amounts::default()
        }
    }
}

fn once(operator: Operator, all: Amounts) -> OperatorCost {
    OperatorCost { operator, calls: 1, all }
}

/// The GPU memory of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// The weights of the decoder and the vision encoders, in bytes.
    pub weight_bytes: u64,
    /// The KV cache of all positions, also in windowed layers, and the states of linear attention.
    pub kv_bytes: u64,
    /// Activations of a prefill, logits and the cuBLAS workspace.
    pub workspace_bytes: u64,
}

impl Memory {
    pub fn total(&self) -> u64 {
        self.weight_bytes.saturating_add(self.kv_bytes).saturating_add(self.workspace_bytes)
    }
}

/// Approximate memory of a CUDA context and its libraries.
pub const CONTEXT_BYTES: u64 = 600_000_000;
/// Rows of a prefill per MLP pass.
const MLP_ROWS: u64 = 4096;
const LIBRARY_BYTES: u64 = 40 << 20;

impl Shape {
    /// The memory for `batch` sequences of up to `positions` positions with prompts of `prompt` positions.
    pub fn memory(&self, batch: u64, prompt: u64, positions: u64) -> Memory {
        let (q, kv) = self.row_widths();
        let product = |factors: &[u64]| factors.iter().fold(1u64, |n, &f| n.saturating_mul(f));
        let rows = product(&[batch, prompt]);
        let row = 2 * self.hidden + (q + 2 * kv) + q;
        let widest = self.experts.map_or(self.intermediate, |experts| {
            let active = experts.active * experts.intermediate + experts.shared_intermediate;
            active.max(self.intermediate)
        });
        let mlp = product(&[rows.min(MLP_ROWS), 3, widest]);
        let numbers = product(&[rows, row]).saturating_add(mlp);
        let vision_bytes = self.vision.as_ref().map_or(0, |vision| vision.weight_bytes);
        Memory {
            weight_bytes: self.weight_bytes.saturating_add(vision_bytes),
            kv_bytes: product(&[batch, positions, self.kv_bytes_per_position()])
                .saturating_add(product(&[batch, self.state_bytes()])),
            workspace_bytes: product(&[numbers, self.number_bytes])
                .saturating_add(product(&[batch, self.vocab, LOGIT_BYTES as u64]))
                .saturating_add(product(&[positions, self.head_dim, 4]))
                .saturating_add(LIBRARY_BYTES),
        }
    }

    /// The maximum batch size for `prompt` and `output` positions in `free_bytes`; `None` if no batch fits.
    pub fn largest_batch(&self, prompt: u64, output: u64, free_bytes: u64) -> Option<u64> {
        largest(|batch| self.memory(batch, prompt, prompt.saturating_add(output)).total() <= free_bytes)
    }

    /// The maximum context (prompt and output) of `batch` sequences with `output` positions in `free_bytes`, limited by the
    /// model; `None` if none fits.
    pub fn largest_context(&self, batch: u64, output: u64, free_bytes: u64) -> Option<u64> {
        let fits = |positions: u64| {
            let prompt = positions.saturating_sub(output);
            self.memory(batch, prompt, positions).total() <= free_bytes
        };
        largest(fits).map(|positions| positions.min(self.max_positions))
    }
}

/// The maximum n for which `fits` holds; `None` if 1 does not fit. `fits` must be monotonic.
fn largest(fits: impl Fn(u64) -> bool) -> Option<u64> {
    if !fits(1) {
        return None;
    }
    let (mut low, mut high) = (1u64, 1u64 << 40);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(low)
}

#[cfg(test)]
mod tests;
