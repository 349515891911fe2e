//! FP8 (e4m3) weights on a GPU; `kernels/fp8.cu` has the kernels.

// Reason: launching a kernel is unsafe. Each launch passes the parameters of its kernel, on buffers whose sizes are checked.
#![allow(unsafe_code)]

use super::{
    error::CudaError,
    few_rows::{self, MOST_ROWS, Order},
    gpu::{Buffer, Gpu, Product, Shape, Slice},
    kernels::{FEW_ROWS, Kernels},
};
use crate::{
    launch::{Arg, Launch},
    weights::fp8::{Fp8Rows, SCALED},
};
use llmprof_config::Dtype;

const THREADS: usize = 256;
/// The largest FP8 (e4m3) value.
const LARGEST: f32 = 448.0;
const FLOAT_BYTES: usize = 4;

/// A matrix of `rows` × `columns`: a code for each weight, in tiles, and a scale for each 128 columns of `scale_rows` rows.
pub struct Fp8Matrix {
    tiles: Buffer,
    scales: Buffer,
    scale_rows: usize,
    rows: usize,
    columns: usize,
    /// The first half of the rows is the gate, the second half is up.
    gated: bool,
}

/// Warps of a block, bytes of a tile in a ring, and the blocks of a multiprocessor with one row of x and with several,
/// as in the kernel.
const WARPS: usize = 8;
const ROOM: usize = 16 * SCALED + 16 * 4;
const BLOCKS: [usize; 2] = [3, 2];
/// Static shared memory of a block.
const OWN_BYTES: usize = 17 << 10;

/// Bytes of the tiles of a matrix.
fn tile_bytes(rows: usize, columns: usize, gated: bool) -> usize {
    let strips = if gated { (rows / 2).div_ceil(8) } else { rows.div_ceil(16) };
    strips * columns.div_ceil(SCALED) * 16 * SCALED
}

impl Fp8Matrix {
    pub fn new(
        kernels: &Kernels,
        from: &Fp8Rows,
        columns: usize,
        gated: bool,
    ) -> Result<Fp8Matrix, CudaError> {
        let codes = kernels.gpu.alloc("the weights", from.codes.len())?;
        kernels.gpu.upload(&codes, &from.codes)?;
        Self::arranged(kernels, &codes, (from.rows, columns, gated), (&from.scales, from.scale_rows))
    }

    /// Arranges row-major codes in tiles; the codes are not needed afterwards.
    fn arranged(
        kernels: &Kernels,
        codes: &Buffer,
        (rows, columns, gated): (usize, usize, bool),
        (scales, scale_rows): (&[f32], usize),
    ) -> Result<Fp8Matrix, CudaError> {
        let gpu = &kernels.gpu;
        let name = kernels.name("fp8_arrange");
        let launch = Launch::new(&name);
        launch.require(columns.is_multiple_of(16), || {
            format!("the row length {columns} is not a multiple of 16")
        })?;
        launch.require_room("the codes", codes.bytes(), 1, &[rows, columns])?;
        let tiles = gpu.alloc("the weights", tile_bytes(rows, columns, gated))?;
        let n = launch.arg("rows", if gated { rows / 2 } else { rows })?;
        let k = launch.arg("columns", columns)?;
        let args = [(&tiles).into(), codes.into(), n, k, Arg::Int(gated.into())];
        // SAFETY: the kernel's parameters, on buffers of these sizes.
        unsafe { gpu.launch(launch, kernels.spread(tiles.bytes() / 16), &args) }?;
        let table = gpu.alloc("the weights", size_of_val(scales))?;
        gpu.upload(&table, scales)?;
        Ok(Fp8Matrix { tiles, scales: table, scale_rows, rows, columns, gated })
    }

    /// A matrix of random numbers: `draw` fills a buffer with `rows` unquantised rows within ±`half_width`, starting at
    /// a given row.
    pub fn random(
        kernels: &Kernels,
        parts: &[(usize, f32)],
        columns: usize,
        gated: bool,
        draw: &mut dyn FnMut(usize, Slice<'_>) -> Result<(), CudaError>,
    ) -> Result<Fp8Matrix, CudaError> {
        const SCALE_ROWS: usize = 16;
        let gpu = &kernels.gpu;
        let rows = parts.iter().map(|(rows, _)| rows).sum();
        let codes = gpu.alloc("the weights", rows * columns)?;
        let mut scales = Vec::new();
        let mut first = 0;
        for (i, &(rows, half_width)) in parts.iter().enumerate() {
            let plain = gpu.alloc("the weights", rows * columns * kernels.dtype.bytes() as usize)?;
            draw(i, (&plain).into())?;
            kernels.fp8_from(
                codes.slice_from(first * columns),
                &plain,
                rows * columns,
                LARGEST / half_width,
            )?;
            gpu.synchronize()?;
            scales.resize(
                scales.len() + rows.div_ceil(SCALE_ROWS) * columns.div_ceil(SCALED),
                half_width / LARGEST,
            );
            first += rows;
        }
        Self::arranged(kernels, &codes, (rows, columns, gated), (&scales, SCALE_ROWS))
    }

    fn check(&self, launch: Launch<'_>) -> Result<(), CudaError> {
        let Fp8Matrix { rows, columns, scale_rows, .. } = *self;
        launch.require(columns.is_multiple_of(16), || {
            format!("the row length {columns} is not a multiple of 16")
        })?;
        launch.require_room("the tiles", self.tiles.bytes(), tile_bytes(rows, columns, self.gated), &[1])?;
        let table = [rows.div_ceil(scale_rows.max(1)), columns.div_ceil(SCALED)];
        Ok(launch.require_room("the scales", self.scales.bytes(), FLOAT_BYTES, &table)?)
    }

    /// The matrix as kernel arguments.
    fn args(&self, launch: Launch<'_>) -> Result<[Arg; 3], CudaError> {
        let scale_rows = launch.arg("rows of a scale", self.scale_rows)?;
        Ok([(&self.tiles).into(), (&self.scales).into(), scale_rows])
    }
}

/// How a GEMM runs: the blocks, and how many tiles a warp copies ahead.
struct Plan {
    shape: Shape,
    ahead: usize,
}

impl Plan {
    /// The plan with `staged` bytes of activations in shared memory, and at most `blocks` blocks per multiprocessor.
    fn new(gpu: &Gpu, p: &Product<'_>, gated: bool, staged: usize, blocks: usize) -> Option<Plan> {
        let strips = p.n.div_ceil(if gated { 8 } else { 16 });
        let bytes = |ahead: usize| WARPS * (ahead + 1) * ROOM + staged;
        let fitting = |ahead| gpu.shared_bytes / (bytes(ahead) + OWN_BYTES);
        // Two tiles ahead if two blocks have room for that.
        let ahead = if fitting(2) >= 2 { 2 } else { 1 };
        let blocks = Some(fitting(ahead).min(blocks)).filter(|&blocks| blocks > 0)?;
        let grid = (strips.min(blocks * gpu.multiprocessors), 1, 1);
        Some(Plan { shape: Shape { shared_bytes: bytes(ahead), ..Shape::early(grid, THREADS) }, ahead })
    }

    /// The plan for one row: shared memory has its numbers in 16 bits, and a scale for each 128 of them.
    fn one(gpu: &Gpu, p: &Product<'_>, gated: bool) -> Option<Plan> {
        let staged = 2 * p.k.next_multiple_of(SCALED) + 4 * p.k.div_ceil(SCALED);
        Plan::new(gpu, p, gated, staged, BLOCKS[0])
    }
}

impl Kernels {
    /// Whether a GEMM of `rows` rows reads the FP8 codes.
    pub(super) fn fp8_rows(&self, rows: usize) -> bool {
        rows <= if self.dtype == Dtype::F32 { FEW_ROWS } else { MOST_ROWS }
    }

    /// y = x·wᵀ (+ bias), or y += if `p.add`, for as many rows as [`fp8_rows`](Self::fp8_rows) allows; with an `activation` y is that of
    /// gate and up.
    pub(super) fn fp8_linear(
        &self,
        p: &Product<'_>,
        w: &Fp8Matrix,
        bias: Option<&Buffer>,
        activation: Option<i32>,
    ) -> Result<(), CudaError> {
        let gated = activation.is_some();
        let (kernel, plan) = match (self.dtype, gated) {
            (Dtype::F32, false) => ("fp8", None),
            (Dtype::F32, true) => ("fp8_gated", None),
            (_, false) => ("fp8_one", Plan::one(&self.gpu, p, gated)),
            (_, true) => ("fp8_one_gated", Plan::one(&self.gpu, p, gated)),
        };
        let name = self.name(kernel);
        let launch = Launch::new(&name);
        let element = self.dtype.bytes() as usize;
        w.check(launch)?;
        let rows = if gated { 2 * p.n } else { p.n };
        let fits =
            self.fp8_rows(p.m) && w.rows == rows && w.columns == p.k && w.gated == gated && p.out == p.dtype;
        launch.require(fits, || {
            format!("shapes do not match: {} × {} by {} × {}", p.m, p.k, w.rows, w.columns)
        })?;
        launch.require_room("y", p.y.bytes(), element, &[p.m, p.n])?;
        launch.require_room("x", p.x.bytes(), element, &[p.m, p.k])?;
        launch.require_alignment("x", p.x.address(), 16)?;
        if let Some(bias) = bias {
            launch.require_room("the bias", bias.bytes(), element, &[p.n])?;
        }
        let [tiles, scales, scale_rows] = w.args(launch)?;
        let (n, k) = (launch.arg("columns", p.n)?, launch.arg("k", p.k)?);
        let residual = if p.add { p.y.into() } else { Arg::NULL };
        let mut args = vec![p.y.into(), tiles, scales, scale_rows, p.x.into(), bias.into(), residual];
        let shape = match (self.dtype, plan) {
            (Dtype::F32, _) => {
                args.extend([launch.arg("rows", p.m)?, n, k, Arg::Int(activation.unwrap_or(0))]);
                Shape::early((p.n.div_ceil(WARPS), 1, 1), THREADS)
            }
            (_, Some(plan)) if p.m == 1 => {
                let ahead = launch.arg("tiles ahead", plan.ahead)?;
                args.extend([n, k, Arg::Int(activation.unwrap_or(0)), ahead]);
                plan.shape
            }
            _ => return self.fp8_few(p, w, bias, activation),
        };
        // SAFETY: the kernel's parameters, on operands of these sizes.
        unsafe { self.gpu.launch(launch, shape, &args) }
    }

    /// The GEMM for several rows; the operands are checked.
    fn fp8_few(
        &self,
        p: &Product<'_>,
        w: &Fp8Matrix,
        bias: Option<&Buffer>,
        activation: Option<i32>,
    ) -> Result<(), CudaError> {
        self.ordered_rows(p, Order::Fp8, None, None)?;
        for some in few_rows::parts(p, p.n) {
            let name = format!("fp8_rows_{}", some.eights());
            let launch = Launch::new(&name);
            let plan = Plan::new(&self.gpu, p, activation.is_some(), 0, BLOCKS[1]);
            let Some(Plan { shape, ahead }) = plan else {
                let problem = format!("a block has {} bytes of shared memory", self.gpu.shared_bytes);
                return Err(launch.error(problem).into());
            };
            let [tiles, scales, scale_rows] = w.args(launch)?;
            let weights = [tiles, scales, scale_rows, launch.arg("tiles ahead", ahead)?];
            let rows = self.few_rows(launch)?.args(launch, &some, bias.map(Slice::from), activation, p.n)?;
            // SAFETY: the kernel's parameters, on operands of these sizes.
            unsafe { self.gpu.launch(launch, shape, &[weights.as_slice(), &rows].concat()) }?;
        }
        Ok(())
    }

    /// The dequantised matrix, for a GEMM of many rows.
    pub(super) fn fp8_plain(&self, w: &Fp8Matrix) -> Result<Slice<'_>, CudaError> {
        let name = self.name("fp8_plain");
        let launch = Launch::new(&name);
        w.check(launch)?;
        let out = self.plain(launch)?;
        launch.require_room("the output", out.bytes(), self.dtype.bytes() as usize, &[w.rows, w.columns])?;
        let [tiles, scales, scale_rows] = w.args(launch)?;
        let n = launch.arg("rows", if w.gated { w.rows / 2 } else { w.rows })?;
        let k = launch.arg("columns", w.columns)?;
        let args = [out.into(), tiles, scales, scale_rows, n, k, Arg::Int(w.gated.into())];
        // SAFETY: the kernel's parameters, on buffers of these sizes.
        unsafe { self.gpu.launch(launch, self.spread(w.rows * w.columns / 16), &args) }?;
        Ok(out.into())
    }

    /// The nearest codes of `count` numbers times `times`.
    fn fp8_from(&self, codes: Slice<'_>, plain: &Buffer, count: usize, times: f32) -> Result<(), CudaError> {
        let name = self.name("fp8_from");
        let launch = Launch::new(&name);
        launch.require_room("the codes", codes.bytes(), 1, &[count])?;
        launch.require_room("the numbers", plain.bytes(), self.dtype.bytes() as usize, &[count])?;
        let args = [codes.into(), plain.into(), Arg::size(count), Arg::Float(times)];
        // SAFETY: the kernel's parameters, on buffers of these sizes.
        unsafe { self.gpu.launch(launch, self.spread(count), &args) }
    }
}
