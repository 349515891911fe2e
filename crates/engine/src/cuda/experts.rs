//! Mixtures of experts on a GPU; `kernels/experts.cu` has the kernels.

// Reason: launching a kernel is unsafe. Each launch passes the parameters of its kernel, on buffers whose sizes are checked; expert ids are written by
// kernels, which keep them below the number of experts.
#![allow(unsafe_code)]

use std::cell::OnceCell;

use super::{
    error::CudaError,
    few_rows::{EIGHT, ROWS_AT_ONCE, Tiled},
    gpu::{Buffer, Gpu, Product, Shape, Slice},
    images::HOPPER,
    kernels::{Carry, FEW_ROWS, Kernels, Matrix, Norm, Values},
};
use crate::{
    launch::{Arg, Launch},
    routing::Tally,
};
use llm_cost::spec::Experts;
use llmprof_config::Dtype;

type Launched = Result<(), CudaError>;

/// Maximum number of experts in `experts.cu`.
pub const MAX_EXPERTS: usize = 512;
pub const MAX_ACTIVE: usize = 32;
/// Prefill rows that go through the experts at a time.
pub const EXPERT_ROWS: usize = 2048;
/// From this many pairs per expert, dequantised weights are faster than quantised ones.
const MOST_PAIRS: usize = 64;
/// Maximum bytes of experts that are dequantised at a time.
pub const PLAIN_BYTES: usize = 512 << 20;
const COLUMNS: usize = 128;
const STAGES: usize = 3;
const THREADS: usize = 256;
const TILE_ROW_BYTES: usize = 128;
const ID_BYTES: usize = 4;
/// Counts after those of the experts: experts with rows, rows, steps.
const TALLY_SUMS: usize = 3;

/// The experts of a layer. The matrices of all experts are below each other.
pub struct ExpertLayer {
    pub experts: Experts,
    /// The last row is the gate of the shared expert, if there is one.
    pub router: Matrix,
    pub gate_up: Matrix,
    pub down: Matrix,
    pub biases: Option<Biases>,
    pub shared: Option<(Matrix, Matrix)>,
    /// The expert assignments in decode steps, as `route` counts them.
    pub tally: Buffer,
    /// Blocks of the GEMM of gate and up, with the router fused into it, that run concurrently.
    pub blocks_alone: OnceCell<usize>,
}

/// The biases of a layer's experts.
pub struct Biases {
    /// In f32, one for each expert.
    pub router: Buffer,
    /// The biases of all experts, one after the other; gates before ups.
    pub gate_up: Buffer,
    pub down: Buffer,
}

impl Biases {
    fn check(&self, launch: Launch<'_>, layer: &ExpertLayer, element: usize) -> Launched {
        let of_experts = [("gate and up", &self.gate_up, &layer.gate_up), ("down", &self.down, &layer.down)];
        for (what, bias, matrix) in of_experts {
            launch.require_room(&format!("the bias of {what}"), bias.bytes(), element, &[matrix.rows])?;
        }
        Ok(launch.require_room("the router's bias", self.router.bytes(), 4, &[layer.experts.count])?)
    }
}

impl ExpertLayer {
    /// The biases of the router, of gate and up, and of down, as kernel arguments.
    fn bias_args(&self, launch: Launch<'_>, element: usize) -> Result<[Arg; 3], CudaError> {
        let Some(biases) = &self.biases else { return Ok([Arg::NULL; 3]) };
        biases.check(launch, self, element)?;
        Ok([&biases.router, &biases.gate_up, &biases.down].map(Arg::from))
    }

    /// The name of the kernel: for one row whose router is fused into the GEMMs, for experts with biases, or for all
    /// others.
    fn kernel(&self, name: &str, alone: bool) -> String {
        let alone = if alone { "_alone" } else { "" };
        let biased = if self.biases.is_some() { "_biased" } else { "" };
        format!("{name}{alone}{biased}")
    }

    pub fn tally_bytes(experts: &Experts) -> usize {
        (experts.count + TALLY_SUMS) * ID_BYTES
    }

    /// Waits for the device.
    pub fn tally(&self, gpu: &Gpu) -> Result<Tally, CudaError> {
        let count = self.experts.count;
        let numbers = gpu.download::<u32>(&self.tally, count + TALLY_SUMS)?;
        let numbers: Vec<u64> = numbers.into_iter().map(u64::from).collect();
        let (tokens, sums) = numbers.split_at(count);
        Ok(Tally { tokens: tokens.to_vec(), touched: sums[0], routed: sums[1], steps: sums[2] })
    }

    /// Whether the experts are unquantised.
    pub fn is_plain(&self) -> bool {
        [&self.gate_up, &self.down].iter().all(|matrix| matches!(matrix.values, Values::Plain(_)))
    }

    /// The number of experts whose dequantised weights fit into [`PLAIN_BYTES`], at least one.
    pub fn plain_at_a_time(&self, matrix: &Matrix, dtype: Dtype) -> usize {
        let each = matrix.rows / self.experts.count * matrix.columns * dtype.bytes() as usize;
        (PLAIN_BYTES / each.max(1)).clamp(1, self.experts.count)
    }
}

/// Checks that the kernels support these experts.
pub fn check(experts: &Experts, hidden: usize) -> Result<(), String> {
    let Experts { count, active, intermediate, .. } = experts;
    if *count > MAX_EXPERTS || *active > MAX_ACTIVE {
        return Err(format!(
            "{active} of {count} experts exceed the {MAX_ACTIVE} of {MAX_EXPERTS} of the built-in kernels; use \
             runtime=candle_stock"
        ));
    }
    if !hidden.is_multiple_of(8) || !intermediate.is_multiple_of(8) {
        return Err(format!(
            "hidden size {hidden} and intermediate size {intermediate}: the built-in kernels for experts need \
             multiples of eight; use runtime=candle_stock"
        ));
    }
    Ok(())
}

/// Buffers for `rows` rows.
pub struct Routed {
    rows: usize,
    pub(super) scores: Buffer,
    pub(super) ids: Buffer,
    pub(super) weights: Buffer,
    plan: Buffer,
    order: Buffer,
    place: Buffer,
    /// Finished blocks.
    counter: Buffer,
    /// Router scores of one row that blocks wait for; all bits are set while there is none.
    pub(super) posted: Buffer,
    /// Gate and up, their product, and the results of all pairs.
    wide: Buffer,
    gated: Buffer,
    results: Buffer,
}

/// Bytes of [`Routed`] for `rows` rows.
pub fn routed_bytes(experts: &Experts, hidden: usize, rows: usize, dtype: Dtype) -> u64 {
    let pairs = rows.min(EXPERT_ROWS) as u64 * experts.active as u64;
    pairs * ((3 * experts.intermediate + hidden) as u64 * dtype.bytes() + 5 * ID_BYTES as u64)
}

impl Routed {
    pub fn new(
        gpu: &Gpu,
        experts: &Experts,
        hidden: usize,
        rows: usize,
        dtype: Dtype,
    ) -> Result<Routed, CudaError> {
        let rows = rows.min(EXPERT_ROWS);
        let pairs = rows * experts.active;
        let numbers = |count: usize| gpu.alloc("activations", count * dtype.bytes() as usize);
        let words = |count: usize| gpu.alloc("activations", count * ID_BYTES);
        let posted = words(experts.count + 1)?;
        gpu.fill(&posted, u8::MAX)?;
        Ok(Routed {
            rows,
            scores: words(rows * (experts.count + 1))?,
            ids: words(pairs)?,
            weights: words(pairs)?,
            plan: words(1 + 3 * most_tiles(pairs, experts.count, EIGHT))?,
            order: words(pairs)?,
            place: words(pairs)?,
            counter: gpu.zeros("activations", ID_BYTES)?,
            posted,
            wide: numbers(if rows > FEW_ROWS { pairs * 2 * experts.intermediate } else { 0 })?,
            gated: numbers(pairs * experts.intermediate)?,
            results: numbers(pairs * hidden)?,
        })
    }
}

impl Routed {
    /// The plan of `pairs` pairs, by row if they are `gathered`, else by position.
    fn tiled(&self, layer: &ExpertLayer, pairs: usize, tile_rows: usize, gathered: bool) -> Tiled<'_> {
        let Experts { count, active, .. } = layer.experts;
        Tiled {
            plan: &self.plan,
            order: gathered.then_some(&self.order),
            active,
            tiles: most_tiles(pairs, count, tile_rows),
            tile_rows,
        }
    }

    /// Ids, weights, expert counts and whether weights are normalised, as kernel arguments.
    fn choice(&self, launch: Launch<'_>, layer: &ExpertLayer, rows: usize) -> Result<[Arg; 5], CudaError> {
        let Experts { count, active, normalised, .. } = layer.experts;
        launch.require(count <= MAX_EXPERTS && active <= MAX_ACTIVE.min(count), || {
            format!("{active} of {count} experts: at most {MAX_ACTIVE} of {MAX_EXPERTS} can be selected")
        })?;
        let scores = layer.router.rows;
        launch.require(scores >= count, || format!("{scores} scores for {count} experts"))?;
        launch.require_room("the ids", self.ids.bytes(), ID_BYTES, &[rows, active])?;
        launch.require_room("the weights", self.weights.bytes(), ID_BYTES, &[rows, active])?;
        launch.require_room("the tally", layer.tally.bytes(), ID_BYTES, &[count + TALLY_SUMS])?;
        Ok([
            (&self.ids).into(),
            (&self.weights).into(),
            launch.arg("experts", count)?,
            launch.arg("active experts", active)?,
            Arg::Int(normalised.into()),
        ])
    }
}

/// The two GEMMs of experts.
#[derive(Clone, Copy)]
enum Half {
    GateUp,
    Down,
}

/// The maximum number of tiles: the last tile of every expert may be partial.
fn most_tiles(pairs: usize, experts: usize, tile_rows: usize) -> usize {
    pairs / tile_rows + experts.min(pairs)
}

/// Positions of a tile: few if experts have few pairs, because then most of what is read are weights.
fn tile_rows(layer: &ExpertLayer, pairs: usize, dtype: Dtype) -> usize {
    let count = layer.experts.count;
    if let Some(rows) = few_rows_of(layer, pairs) {
        return rows;
    }
    if dtype == Dtype::F32 || pairs < 24 * count { 16 } else { 128 }
}

/// Positions of a tile in GEMMs that read quantised weights; `None` if dequantised weights are faster.
fn few_rows_of(layer: &ExpertLayer, pairs: usize) -> Option<usize> {
    let are_tiles =
        [&layer.gate_up, &layer.down].iter().all(|matrix| matches!(matrix.values, Values::Tiles(_)));
    match pairs / layer.experts.count {
        _ if !are_tiles => None,
        0..4 => Some(EIGHT),
        4..12 => Some(2 * EIGHT),
        12..MOST_PAIRS => Some(ROWS_AT_ONCE),
        _ => None,
    }
}

/// The reordered activations for such GEMMs: number of rows for up to `rows` input rows, and the maximum columns.
pub fn ordered_rows(experts: &Experts, hidden: usize, rows: usize) -> (usize, usize) {
    let pairs = (rows.min(EXPERT_ROWS) * experts.active).min(MOST_PAIRS * experts.count);
    // The last tile of each expert may have one row.
    (pairs + ROWS_AT_ONCE * experts.count.min(pairs), hidden.max(experts.intermediate))
}

impl Kernels {
    /// The router scores of at most [`FEW_ROWS`] rows, from which the GEMMs of unquantised experts assign experts.
    /// Experts of other types are assigned here, and counted if `counted`.
    pub fn norm_and_route(
        &self,
        (normed, x): (&Buffer, &Buffer),
        norm: Norm<'_>,
        routed: &Routed,
        layer: &ExpertLayer,
        rows: usize,
        counted: bool,
    ) -> Launched {
        let name = self.name(&layer.kernel("norm_and_route", false));
        let launch = Launch::new(&name);
        let (k, stride, element) = (layer.router.columns, layer.router.rows, self.dtype.bytes() as usize);
        let Values::Plain(router) = &layer.router.values else {
            return Err(launch.error("the router is quantised".to_owned()).into());
        };
        launch.require(rows <= FEW_ROWS && k.is_multiple_of(8), || {
            format!(
                "{rows} rows of {k}: at most {FEW_ROWS} rows, with a length that is a multiple of eight, are routed \
                     at once"
            )
        })?;
        for (what, buffer) in [("x", x), ("the normed rows", normed)] {
            launch.require_room(what, buffer.bytes(), element, &[rows, k])?;
        }
        launch.require_room("the router", router.bytes(), element, &[stride, k])?;
        launch.require_room("the scores", routed.scores.bytes(), ID_BYTES, &[rows, stride])?;
        let [ids, weights, experts, active, normalised] = routed.choice(launch, layer, rows)?;
        let [norm, eps] = Norm::args(Some(norm), launch, k)?;
        let [bias, ..] = layer.bias_args(launch, element)?;
        let args = [
            normed.into(),
            x.into(),
            norm,
            eps,
            router.into(),
            bias,
            (&routed.scores).into(),
            if layer.is_plain() { Arg::NULL } else { ids },
            weights,
            if counted { (&layer.tally).into() } else { Arg::NULL },
            (&routed.counter).into(),
            launch.arg("rows", rows)?,
            launch.arg("scores", stride)?,
            experts,
            active,
            normalised,
            launch.arg("columns", k)?,
        ];
        let grid = (stride.div_ceil(8), 1, 1);
        let shape = Shape { shared_bytes: k * 4, ..Shape::early(grid, THREADS) };
        // SAFETY: the kernel's parameters, on buffers of these sizes; the counter is zero between launches.
        unsafe { self.gpu.launch(launch, shape, &args) }
    }

    /// Assigns experts to many normed rows, and sorts the pairs by expert. Assignments are counted if `counted`.
    pub fn route(
        &self,
        routed: &Routed,
        layer: &ExpertLayer,
        normed: Slice<'_>,
        rows: usize,
        counted: bool,
    ) -> Launched {
        self.logits(&routed.scores, normed, &layer.router, rows)?;
        let launch = Launch::new("route");
        let [ids, weights, experts, active, normalised] = routed.choice(launch, layer, rows)?;
        let [bias, ..] = layer.bias_args(launch, self.dtype.bytes() as usize)?;
        let args = [
            (&routed.scores).into(),
            bias,
            launch.arg("scores", layer.router.rows)?,
            ids,
            weights,
            launch.arg("rows", rows)?,
            experts,
            active,
            normalised,
        ];
        // SAFETY: the kernel's parameters, on buffers of these sizes; `logits` has checked the scores.
        unsafe { self.gpu.launch(launch, Shape::early((rows.div_ceil(8), 1, 1), THREADS), &args) }?;
        let launch = Launch::new("sort_pairs");
        let Experts { count, active: each, .. } = layer.experts;
        let pairs = rows * each;
        let tile_rows = tile_rows(layer, pairs, self.dtype);
        let plan = 1 + 3 * most_tiles(pairs, count, tile_rows);
        launch.require_room("the plan", routed.plan.bytes(), ID_BYTES, &[plan])?;
        launch.require_room("the order", routed.order.bytes(), ID_BYTES, &[pairs])?;
        launch.require_room("the places", routed.place.bytes(), ID_BYTES, &[pairs])?;
        let args = [
            ids,
            (&routed.plan).into(),
            (&routed.order).into(),
            (&routed.place).into(),
            if counted { (&layer.tally).into() } else { Arg::NULL },
            launch.arg("pairs", pairs)?,
            active,
            experts,
            launch.arg("rows of a tile", tile_rows)?,
        ];
        // SAFETY: the kernel's parameters, on buffers of these sizes.
        unsafe { self.gpu.launch(launch, Shape::early((1, 1, 1), MAX_EXPERTS), &args) }
    }

    /// Whether norm and router of these rows are fused into the GEMM of gate and up and so need no kernel: for one row
    /// and unquantised weights, if the GPU runs all blocks of the GEMM concurrently.
    pub fn routes_within(&self, layer: &ExpertLayer, rows: usize) -> bool {
        rows == 1 && self.dtype != Dtype::F32 && layer.is_plain() && self.blocks_alone(layer) > 0
    }

    fn blocks_alone(&self, layer: &ExpertLayer) -> usize {
        *layer.blocks_alone.get_or_init(|| {
            let name = self.name(&layer.kernel("expert_gated", true));
            let shared_bytes = layer.gate_up.columns * self.dtype.bytes() as usize;
            self.gpu.blocks_at_once(Launch::new(&name), THREADS, shared_bytes)
        })
    }

    /// Gate and up of all pairs with their activation, after [`route`](Self::route) or [`norm_and_route`](Self::norm_and_route) of the same rows; or with norm and router
    /// of one row, x, which is then normed into `normed`.
    pub fn experts_gated(
        &self,
        routed: &Routed,
        layer: &ExpertLayer,
        normed: Slice<'_>,
        rows: usize,
        counted: bool,
        within: Option<(&Buffer, Norm<'_>)>,
    ) -> Launched {
        let Experts { active, intermediate, .. } = layer.experts;
        let pairs = rows * active;
        let few = few_rows_of(layer, pairs).filter(|_| rows > FEW_ROWS);
        if let (Some(tile_rows), Values::Tiles(parts)) = (few, &layer.gate_up.values) {
            let p = Product {
                m: pairs,
                ..self.of_pair(&routed.gated, normed, intermediate, layer.gate_up.columns)
            };
            let bias = layer.biases.as_ref().map(|biases| &biases.gate_up);
            return self.quantised_expert_rows(parts, &p, bias, routed.tiled(layer, pairs, tile_rows, true));
        }
        if rows > FEW_ROWS {
            self.expert_product(&routed.wide, normed, routed, layer, Half::GateUp, rows)?;
            return self.activated(&routed.gated, &routed.wide, pairs, intermediate);
        }
        if let Values::Tiles(parts) = &layer.gate_up.values {
            let p = self.of_pair(&routed.gated, normed, intermediate, layer.gate_up.columns);
            let bias = layer.biases.as_ref().map(|biases| &biases.gate_up);
            return self.quantised_experts("quantised_gated", parts, &p, bias, (&routed.ids, pairs, active));
        }
        let name = self.name(&layer.kernel("expert_gated", within.is_some()));
        let launch = Launch::new(&name);
        let (n, k, element) = (intermediate, layer.gate_up.columns, self.dtype.bytes() as usize);
        let w = self.check_experts(launch, layer, &layer.gate_up, 2 * n)?;
        launch.require_room("the normed rows", normed.bytes(), element, &[rows, k])?;
        launch.require_room("the output", routed.gated.bytes(), element, &[pairs, n])?;
        let [ids, weights, experts, active, normalised] = routed.choice(launch, layer, rows)?;
        let stride = layer.router.rows;
        launch.require_room("the scores", routed.scores.bytes(), ID_BYTES, &[rows, stride])?;
        let [router_bias, bias, _] = layer.bias_args(launch, element)?;
        let [x, norm, eps, router] = match (within, &layer.router.values) {
            (None, _) => [Arg::NULL, Arg::NULL, Arg::Float(0.0), Arg::NULL],
            (Some((x, norm)), Values::Plain(router)) => {
                launch.require(rows == 1, || {
                    format!("{rows} rows: routing is fused into the GEMM of one row only")
                })?;
                launch.require_room("x", x.bytes(), element, &[k])?;
                launch.require_room("the router", router.bytes(), element, &[stride, k])?;
                launch.require_room("the posted scores", routed.posted.bytes(), ID_BYTES, &[stride])?;
                let [norm, eps] = Norm::args(Some(norm), launch, k)?;
                [x.into(), norm, eps, router.into()]
            }
            _ => return Err(launch.error("the router is quantised".to_owned()).into()),
        };
        let args = [
            (&routed.gated).into(),
            w.into(),
            bias,
            x,
            normed.into(),
            norm,
            eps,
            router,
            router_bias,
            (&routed.posted).into(),
            (&routed.scores).into(),
            ids,
            weights,
            if counted { (&layer.tally).into() } else { Arg::NULL },
            launch.arg("rows", rows)?,
            launch.arg("scores", stride)?,
            experts,
            active,
            normalised,
            launch.arg("columns", n)?,
            launch.arg("k", k)?,
            Arg::Int(self.activation_number()),
        ];
        let strips = n.div_ceil(8) * pairs;
        let shape = match within {
            None => Shape::early((strips.min(2 * self.gpu.multiprocessors), 1, 1), THREADS),
            Some(_) => Shape {
                shared_bytes: k * element,
                at_once: true,
                // Early start with all blocks at once has been tested only on this compute capability.
                early: self.gpu.capability == HOPPER,
                ..Shape::early((strips.min(self.blocks_alone(layer)), 1, 1), THREADS)
            },
        };
        // SAFETY: the kernel's parameters, on buffers of these sizes; no score is posted between launches.
        unsafe { self.gpu.launch(launch, shape, &args) }
    }

    /// to += Σ weight · down of the pairs of each row, after [`experts_gated`](Self::experts_gated).
    pub fn experts_down(
        &self,
        to: Slice<'_>,
        routed: &Routed,
        layer: &ExpertLayer,
        rows: usize,
        carry: Option<Carry<'_>>,
        routed_within: bool,
    ) -> Launched {
        let Experts { active, intermediate: k, .. } = layer.experts;
        let (n, element) = (layer.down.rows / layer.experts.count, self.dtype.bytes() as usize);
        let pairs = rows * active;
        let few = few_rows_of(layer, pairs).filter(|_| rows > FEW_ROWS);
        if let (Some(tile_rows), Values::Tiles(parts)) = (few, &layer.down.values) {
            let p = Product { m: pairs, ..self.of_pair(&routed.results, (&routed.gated).into(), n, k) };
            let bias = layer.biases.as_ref().map(|biases| &biases.down);
            self.quantised_expert_rows(parts, &p, bias, routed.tiled(layer, pairs, tile_rows, false))?;
            return self.combine(to, routed, Some(&routed.place), (rows, active, n));
        }
        if rows > FEW_ROWS {
            let gated = (&routed.gated).into();
            self.expert_product(&routed.results, gated, routed, layer, Half::Down, rows)?;
            return self.combine(to, routed, Some(&routed.place), (rows, active, n));
        }
        if let Values::Tiles(parts) = &layer.down.values {
            let p = self.of_pair(&routed.results, (&routed.gated).into(), n, k);
            let bias = layer.biases.as_ref().map(|biases| &biases.down);
            self.quantised_experts("quantised", parts, &p, bias, (&routed.ids, pairs, 1))?;
            return self.combine(to, routed, None, (rows, active, n));
        }
        let name = self.name(&layer.kernel("expert_down", routed_within));
        let launch = Launch::new(&name);
        let w = self.check_experts(launch, layer, &layer.down, n)?;
        launch.require_room("x", routed.gated.bytes(), element, &[pairs, k])?;
        launch.require_room("y", to.bytes(), element, &[rows, n])?;
        let [_, _, experts, active, normalised] = routed.choice(launch, layer, rows)?;
        let stride = layer.router.rows;
        launch.require_room("the scores", routed.scores.bytes(), ID_BYTES, &[rows, stride])?;
        launch.require_room("the posted scores", routed.posted.bytes(), ID_BYTES, &[stride])?;
        let [weight, scaled, squares] = Carry::args(carry, launch, element, (rows, n))?;
        let [_, _, bias] = layer.bias_args(launch, element)?;
        let args = [
            to.into(),
            w.into(),
            (&routed.gated).into(),
            bias,
            (&routed.scores).into(),
            (&routed.posted).into(),
            launch.arg("rows", rows)?,
            launch.arg("scores", stride)?,
            experts,
            active,
            normalised,
            launch.arg("columns", n)?,
            launch.arg("k", k)?,
            weight,
            scaled,
            squares,
        ];
        let shape = Shape::early((n.div_ceil(8), rows, 1), THREADS);
        // SAFETY: the kernel's parameters, on buffers of these sizes.
        unsafe { self.gpu.launch(launch, shape, &args) }
    }

    /// Multiplies `rows` rows of the shared expert's activations with the sigmoid of their gate's score.
    pub fn scale_shared(
        &self,
        x: &Buffer,
        routed: &Routed,
        layer: &ExpertLayer,
        (rows, n): (usize, usize),
    ) -> Launched {
        let name = self.name("scale_rows");
        let launch = Launch::new(&name);
        let stride = layer.router.rows;
        launch.require_room("x", x.bytes(), self.dtype.bytes() as usize, &[rows, n])?;
        launch.require_room("the scores", routed.scores.bytes(), ID_BYTES, &[rows, stride])?;
        let scores = routed.scores.slice_from((stride - 1) * ID_BYTES);
        let args = [x.into(), scores.into(), launch.arg("the stride", stride)?, launch.arg("columns", n)?];
        // SAFETY: the kernel's parameters, on buffers of these sizes.
        unsafe { self.gpu.launch(launch, Shape::early((rows, 1, 1), THREADS), &args) }
    }

    /// One pair's GEMM; its w is not used.
    fn of_pair<'a>(&self, y: &'a Buffer, x: Slice<'a>, n: usize, k: usize) -> Product<'a> {
        let y = Slice::from(y);
        Product { y, x, w: y, m: 1, n, k, dtype: self.dtype, out: self.dtype, add: false }
    }

    /// The plain matrices of all experts, each of `rows` rows.
    fn check_experts<'a>(
        &self,
        launch: Launch<'_>,
        layer: &ExpertLayer,
        matrix: &'a Matrix,
        rows: usize,
    ) -> Result<&'a Buffer, CudaError> {
        let Values::Plain(values) = &matrix.values else {
            return Err(launch.error("these weights are quantised".to_owned()).into());
        };
        let (element, k) = (self.dtype.bytes() as usize, matrix.columns);
        launch.require(k.is_multiple_of(8) || self.dtype == Dtype::F32, || {
            format!("the row length {k} is not a multiple of eight")
        })?;
        launch.require_room("the experts", values.bytes(), element, &[layer.experts.count, rows, k])?;
        Ok(values)
    }

    /// The GEMMs of all pairs with their experts, tile by tile, into y by position. x is by row for gate and
    /// up, else by position.
    fn expert_product(
        &self,
        y: &Buffer,
        x: Slice<'_>,
        routed: &Routed,
        layer: &ExpertLayer,
        half: Half,
        rows: usize,
    ) -> Launched {
        let (matrix, gathered) = match half {
            Half::GateUp => (&layer.gate_up, true),
            Half::Down => (&layer.down, false),
        };
        let Experts { count, active, .. } = layer.experts;
        let (pairs, element) = (rows * active, self.dtype.bytes() as usize);
        let (n, k) = (matrix.rows / count, matrix.columns);
        let tile_rows = tile_rows(layer, pairs, self.dtype);
        let name = self.name(&format!("expert_product_{tile_rows}"));
        let launch = Launch::new(&name);
        launch
            .require(rows <= routed.rows, || format!("{rows} rows exceed the capacity of {}", routed.rows))?;
        launch.require_room("y", y.bytes(), element, &[pairs, n])?;
        launch.require_room("x", x.bytes(), element, &[if gathered { rows } else { pairs }, k])?;
        let [_, of_gate_up, of_down] = layer.bias_args(launch, element)?;
        let bias = if gathered { of_gate_up } else { of_down };
        let at_a_time = match &matrix.values {
            Values::Plain(_) | Values::Fp8(_) => count,
            Values::Tiles(_) => layer.plain_at_a_time(matrix, self.dtype),
        };
        for first in (0..count).step_by(at_a_time) {
            let here = at_a_time.min(count - first);
            let w: Slice<'_> = match &matrix.values {
                Values::Plain(_) | Values::Fp8(_) => self.check_experts(launch, layer, matrix, n)?.into(),
                Values::Tiles(parts) => self.dequantised_experts(parts, first, here)?,
            };
            let args = [
                y.into(),
                x.into(),
                w.into(),
                bias,
                (&routed.plan).into(),
                if gathered { (&routed.order).into() } else { Arg::NULL },
                launch.arg("active experts", active)?,
                launch.arg("the first expert", first)?,
                launch.arg("experts", here)?,
                launch.arg("columns", n)?,
                launch.arg("k", k)?,
            ];
            let shape = Shape {
                shared_bytes: match self.dtype {
                    Dtype::F32 => 0,
                    _ => STAGES * (tile_rows + COLUMNS) * TILE_ROW_BYTES,
                },
                ..Shape::early((n.div_ceil(COLUMNS), most_tiles(pairs, count, tile_rows), 1), THREADS)
            };
            // SAFETY: the kernel's parameters, on buffers of these sizes.
            unsafe { self.gpu.launch(launch, shape, &args) }?;
        }
        Ok(())
    }

    /// to += Σ weight · result of the pairs of each row.
    fn combine(
        &self,
        to: Slice<'_>,
        routed: &Routed,
        place: Option<&Buffer>,
        (rows, active, n): (usize, usize, usize),
    ) -> Launched {
        let name = self.name("combine");
        let launch = Launch::new(&name);
        let element = self.dtype.bytes() as usize;
        launch.require_room("y", to.bytes(), element, &[rows, n])?;
        launch.require_room("the results", routed.results.bytes(), element, &[rows, active, n])?;
        let args = [
            to.into(),
            (&routed.results).into(),
            place.into(),
            (&routed.weights).into(),
            launch.arg("active experts", active)?,
            launch.arg("columns", n)?,
        ];
        // SAFETY: the kernel's parameters, on buffers of these sizes.
        unsafe { self.gpu.launch(launch, Shape::early((rows, n.div_ceil(THREADS), 1), THREADS), &args) }
    }
}
