//! The cost of vision encoders by operator: FLOPs, bytes and parameters.

use serde::Serialize;

use super::{Convolution, Encoded, Encoder, EncoderLayers, Projector, View, VisionShape};
use crate::{
    Operator, Shape,
    cost::{ACTIVATION_FLOPS, Amounts, NORM_FLOPS, OperatorCost, ROTATION_FLOPS, SOFTMAX_FLOPS},
};

/// The cost of the phase that turns images into rows of the decoder. Weights are read once for all images.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VisionCost {
    /// The sums over all encoders, in the order of [`Operator::ALL`].
    pub operators: Vec<OperatorCost>,
    /// The encoders and the projector.
    pub parts: Vec<PartCost>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PartCost {
    pub part: &'static str,
    #[serde(flatten)]
    pub all: Amounts,
}

impl VisionCost {
    pub fn total(&self) -> Amounts {
        self.operators.iter().map(|operator| operator.all).sum()
    }

    pub fn operator(&self, operator: Operator) -> Option<&OperatorCost> {
        self.operators.iter().find(|cost| cost.operator == operator)
    }
}

impl Shape {
    /// The cost of the vision encoders for these images; `None` for a model without known encoders.
    pub fn vision_cost(&self, encoded: &Encoded) -> Option<VisionCost> {
        Some(self.vision.as_ref()?.cost_of(&encoded.sizes))
    }
}

/// The patches of equal views.
#[derive(Debug, Clone, Copy)]
struct Grid {
    views: f64,
    rows: f64,
    columns: f64,
}

impl Grid {
    fn patches(&self) -> f64 {
        self.rows * self.columns
    }

    /// The result of a convolution whose input is filled up at the edges.
    fn after(&self, stride: u64) -> Grid {
        let stride = stride.max(1) as f64;
        Grid { rows: (self.rows / stride).ceil(), columns: (self.columns / stride).ceil(), ..*self }
    }
}

/// The work of attention in a layer.
struct Attended {
    /// Positions, with those that fill up windows.
    rows: f64,
    /// Pairs of a position and one that it attends to.
    pairs: f64,
    /// Rows and columns of patches that a position attends to.
    sides: (f64, f64),
}

/// Bytes of a number and of a weight.
#[derive(Debug, Clone, Copy)]
struct Bytes {
    number: f64,
    weight: f64,
}

impl Bytes {
    fn product(&self, rows: f64, inputs: f64, outputs: f64) -> Amounts {
        Amounts {
            matmul_flops: 2.0 * rows * inputs * outputs,
            activation_bytes: rows * (inputs + outputs) * self.number,
            ..self.weights(inputs * outputs)
        }
    }

    fn weights(&self, parameters: f64) -> Amounts {
        Amounts { weight_bytes: parameters * self.weight, parameters, ..Amounts::default() }
    }

    /// Added to each of `rows` rows.
    fn bias(&self, is_there: bool, rows: f64, width: f64) -> Amounts {
        match is_there {
            true => Amounts { other_flops: rows * width, ..self.weights(width) },
            false => Amounts::default(),
        }
    }

    /// A norm of rows of `width` with `weights` weights.
    fn norm(&self, rows: f64, width: f64, weights: f64) -> Amounts {
        Amounts {
            other_flops: NORM_FLOPS * rows * width,
            activation_bytes: 2.0 * rows * width * self.number,
            ..self.weights(weights)
        }
    }

    /// The addition of rows to those before an operator.
    fn residual(&self, rows: f64, width: f64) -> Amounts {
        Amounts {
            other_flops: rows * width,
            activation_bytes: rows * width * self.number,
            ..Amounts::default()
        }
    }
}

/// The sums of operators.
#[derive(Default)]
struct Sums(Vec<OperatorCost>);

impl Sums {
    fn add(&mut self, operator: Operator, calls: u64, all: Amounts) {
        match self.0.iter_mut().find(|cost| cost.operator == operator) {
            Some(cost) => {
                cost.calls = cost.calls.saturating_add(calls);
                cost.all = cost.all + all;
            }
            None => self.0.push(OperatorCost { operator, calls, all }),
        }
    }

    fn total(&self) -> Amounts {
        self.0.iter().map(|cost| cost.all).sum()
    }
}

impl VisionShape {
    pub(super) fn cost_of(&self, views: &[View]) -> VisionCost {
        let cost = |weight: f64| {
            let bytes = Bytes { number: self.number_bytes as f64, weight };
            self.cost_with(views, bytes)
        };
        // How large a weight is follows from how many there are.
        let parameters = cost(0.0).total().parameters;
        cost(self.bytes_per_weight(parameters))
    }

    fn cost_with(&self, views: &[View], bytes: Bytes) -> VisionCost {
        let names = self.encoders.iter().map(|encoder| encoder.kind.name()).chain(["projector"]);
        let mut parts: Vec<PartCost> = names.map(|part| PartCost { part, all: Amounts::default() }).collect();
        let mut all = Sums::default();
        let patch = self.patch_size();
        for (at, view) in views.iter().enumerate() {
            let mut grid = Grid {
                views: view.count as f64,
                rows: (view.height / patch) as f64,
                columns: (view.width / patch) as f64,
            };
            let mut rows = grid.patches();
            for (index, part) in parts.iter_mut().enumerate() {
                let mut sums = Sums::default();
                match self.encoders.get(index) {
                    Some(encoder) => (grid, rows) = encoder.cost(grid, bytes, &mut sums),
                    None => self.projector.cost(grid.views * rows, bytes, &mut sums),
                }
                if at > 0 {
                    // The weights are those of the first views.
                    let again = |cost: &mut OperatorCost| {
                        (cost.all.weight_bytes, cost.all.parameters) = (0.0, 0.0);
                    };
                    sums.0.iter_mut().for_each(again);
                }
                part.all = part.all + sums.total();
                sums.0.into_iter().for_each(|cost| all.add(cost.operator, cost.calls, cost.all));
            }
        }
        all.0.sort_by_key(|cost| cost.operator);
        VisionCost { operators: all.0, parts }
    }
}

impl Encoder {
    /// Adds the cost of the views of `grid` to `sums`; the grid after it and the rows of a view that leave it.
    fn cost(&self, grid: Grid, bytes: Bytes, sums: &mut Sums) -> (Grid, f64) {
        let width = self.width as f64;
        let norm_weights = if self.norm_bias { 2.0 * width } else { width };
        let patches = grid.patches();
        let queries = self.queries_for(patches);
        let class = if self.class_token { 1.0 } else { 0.0 };
        let rows = grid.views * (patches + class + queries);
        let norm = || bytes.norm(rows, width, norm_weights);

        let mut embedding = bytes.weights(class * width);
        if let Some(of) = self.patches {
            let inputs = of.channels as f64 * of.frames as f64 * (of.size as f64).powi(2);
            let pixels = grid.views * patches;
            embedding = embedding + bytes.product(pixels, inputs, width) + bytes.bias(of.bias, pixels, width);
        }
        if self.position_table > 0 {
            let added = Amounts { weight_bytes: 0.0, parameters: 0.0, ..bytes.residual(rows, width) };
            embedding = embedding + added + bytes.weights(self.position_table as f64 * width);
        }
        // A pass reads one of the tables of queries and none of the unused weights.
        let tables: f64 = self.queries.iter().map(|rows| *rows as f64).sum();
        embedding.weight_bytes += queries * width * bytes.weight;
        embedding.parameters += tables * width + self.unused as f64;
        if self.first_norm {
            embedding = embedding + norm();
        }
        if embedding != Amounts::default() {
            sums.add(Operator::Embedding, 1, embedding);
        }
        for group in &self.layers {
            let mut add = |operator, amounts: Amounts| {
                sums.add(operator, group.count, amounts.times(group.count as f64));
            };
            add(Operator::AttentionNorm, norm());
            self.attention(grid, group, rows, bytes, &mut add);
            add(Operator::MlpNorm, norm());
            self.mlp(rows, bytes, &mut add);
        }
        if self.last_norm {
            sums.add(Operator::FinalNorm, 1, norm());
        }
        let mut grid = grid;
        for convolution in &self.convolutions {
            grid = convolution.cost(grid, bytes, sums);
        }
        let leaving = if queries > 0.0 { queries } else { grid.patches() };
        (grid, leaving)
    }

    /// Rows of learned queries that follow `patches` patches.
    fn queries_for(&self, patches: f64) -> f64 {
        let enough = self.queries.iter().find(|rows| **rows as f64 >= patches);
        enough.or(self.queries.last()).map_or(0.0, |rows| *rows as f64)
    }

    fn attended(&self, grid: Grid, group: &EncoderLayers, rows: f64) -> Attended {
        let patches = grid.patches();
        match group.window.map(|window| window.max(1) as f64) {
            None => {
                let queries = self.queries_for(patches);
                let others = patches + if self.class_token { 1.0 } else { 0.0 };
                // A query attends to all patches and to the queries before it, patches to patches.
                let pairs = others * others + queries * others + queries * (queries + 1.0) / 2.0;
                Attended { rows, pairs: grid.views * pairs, sides: (grid.rows, grid.columns) }
            }
            Some(window) if self.padded_windows => {
                let windows = (grid.rows / window).ceil() * (grid.columns / window).ceil();
                let rows = grid.views * windows * window * window;
                Attended { rows, pairs: rows * window * window, sides: (window, window) }
            }
            Some(window) => {
                // The sum over windows of the squares of their sides.
                let squares = |side: f64| {
                    let rest = side % window;
                    (side / window).floor() * window * window + rest * rest
                };
                let pairs = grid.views * squares(grid.rows) * squares(grid.columns);
                Attended { rows, pairs, sides: (window, window) }
            }
        }
    }

    fn attention(
        &self,
        grid: Grid,
        group: &EncoderLayers,
        rows: f64,
        bytes: Bytes,
        add: &mut impl FnMut(Operator, Amounts),
    ) {
        let (width, heads, dim) = (self.width as f64, self.heads as f64, self.head_dim as f64);
        let (q, kv) = (heads * dim, self.kv_heads as f64 * dim);
        let outputs = q + 2.0 * kv;
        let attended = self.attended(grid, group, rows);
        let projected = attended.rows;
        let qkv = bytes.product(projected, width, outputs) + bytes.bias(self.qkv_bias, projected, outputs);
        add(Operator::Qkv, qkv);
        if self.rotary {
            let rotated = projected * (q + kv);
            add(
                Operator::Rope,
                Amounts {
                    other_flops: ROTATION_FLOPS * rotated,
                    activation_bytes: 2.0 * rotated * bytes.number,
                    ..Amounts::default()
                },
            );
        }
        let mut attention = Amounts {
            attention_flops: 4.0 * attended.pairs * q,
            softmax_flops: SOFTMAX_FLOPS * attended.pairs * heads,
            activation_bytes: projected * (outputs + q) * bytes.number,
            ..Amounts::default()
        };
        if self.relative_positions > 0 {
            // A score for each row and column that a position attends to, both added to those of its pairs.
            let side = group.window.unwrap_or(self.relative_positions) as f64;
            let tables = bytes.weights(2.0 * (2.0 * side - 1.0).max(0.0) * dim);
            let positions = Amounts {
                attention_flops: 2.0 * projected * q * (attended.sides.0 + attended.sides.1),
                other_flops: 2.0 * attended.pairs * heads,
                ..tables
            };
            attention = attention + positions;
        }
        add(Operator::Attention, attention);
        let output = bytes.product(projected, q, width) + bytes.bias(self.output_bias, projected, width);
        add(Operator::AttentionOutput, output + bytes.residual(rows, width));
    }

    fn mlp(&self, rows: f64, bytes: Bytes, add: &mut impl FnMut(Operator, Amounts)) {
        let (width, intermediate) = (self.width as f64, self.intermediate as f64);
        let up = if self.plain_mlp { intermediate } else { 2.0 * intermediate };
        let mut gate_up = bytes.product(rows, width, up) + bytes.bias(self.mlp_bias, rows, up);
        // Gate and up are not written to memory, only their product.
        gate_up.activation_bytes = rows * (width + intermediate) * bytes.number;
        gate_up.other_flops += ACTIVATION_FLOPS * rows * intermediate;
        add(Operator::GateUp, gate_up);
        let down = bytes.product(rows, intermediate, width) + bytes.bias(self.mlp_bias, rows, width);
        add(Operator::Down, down + bytes.residual(rows, width));
    }
}

impl Convolution {
    fn cost(&self, grid: Grid, bytes: Bytes, sums: &mut Sums) -> Grid {
        let after = grid.after(self.stride);
        let (inputs, outputs) = (self.inputs as f64, self.outputs as f64);
        let rows = after.views * after.patches();
        let mut amounts = bytes.product(rows, inputs * (self.kernel as f64).powi(2), outputs);
        amounts.activation_bytes = (grid.views * grid.patches() * inputs + rows * outputs) * bytes.number;
        if self.norm {
            amounts = amounts + bytes.norm(rows, outputs, 2.0 * outputs);
        }
        sums.add(Operator::Projector, 1, amounts);
        after
    }
}

impl Projector {
    /// The cost for `patches` rows of the last encoder.
    fn cost(&self, patches: f64, bytes: Bytes, sums: &mut Sums) {
        let merged = (self.merge.max(1) as f64).powi(2);
        let rows = (patches / merged).floor();
        if self.norm > 0 {
            let width = self.products.first().map_or(0.0, |(inputs, _)| *inputs as f64) / merged;
            sums.add(Operator::Projector, 1, bytes.norm(patches, width, self.norm as f64));
        }
        for (index, (inputs, outputs)) in self.products.iter().enumerate() {
            let (inputs, outputs) = (*inputs as f64, *outputs as f64);
            let mut amounts = bytes.product(rows, inputs, outputs) + bytes.bias(true, rows, outputs);
            if index + 1 < self.products.len() {
                amounts.other_flops += ACTIVATION_FLOPS * rows * outputs;
            }
            if index == 0 {
                let last = self.products.last().map_or(0.0, |(_, outputs)| *outputs as f64);
                amounts = amounts + bytes.weights(self.separators as f64 * last);
            }
            sums.add(Operator::Projector, 1, amounts);
        }
    }
}
