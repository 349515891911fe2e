//! Weights of eight bits with an exponent on a GPU; `kernels/fp8.cu` has the kernels.

// Reason: launching a kernel is unsafe. Each launch passes the parameters of its kernel, on buffers whose sizes are checked.
#![allow(unsafe_code)]

use super::{
    error::CudaError,
    gpu::{Buffer, Gpu, Product, Shape, Slice},
    kernels::{FEW_ROWS, Kernels},
};
use crate::{
    config::Dtype,
    engine::{
        candle::fp8::{Fp8Rows, SCALED},
        launch::{Arg, Launch},
    },
};

const THREADS: usize = 256;
/// The largest number of a code.
const LARGEST: f32 = 448.0;
const FLOAT_BYTES: usize = 4;

/// A matrix of `rows` × `columns`: a code for each weight, in tiles, and a scale for each 128 columns of `scale_rows` rows.
pub struct Fp8Matrix {
    tiles: Buffer,
    scales: Buffer,
    scale_rows: usize,
    rows: usize,
    columns: usize,
    /// The first half of the rows is a gate, the second what it is multiplied with.
    gated: bool,
}

/// Warps of a block, bytes of a tile in a ring, and the blocks of a multiprocessor with one row of x and with several, as in the kernel.
const WARPS: usize = 8;
const ROOM: usize = 16 * SCALED + 16 * 4;
const BLOCKS: [usize; 2] = [3, 2];
/// Shared memory of a block that the host does not ask for.
const OWN_BYTES: usize = 10 << 10;

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

    /// From codes row by row, which are not needed afterwards.
    fn arranged(
        kernels: &Kernels,
        codes: &Buffer,
        (rows, columns, gated): (usize, usize, bool),
        (scales, scale_rows): (&[f32], usize),
    ) -> Result<Fp8Matrix, CudaError> {
        let gpu = &kernels.gpu;
        let name = kernels.name("fp8_arrange");
        let launch = Launch::of(&name);
        launch.require(columns.is_multiple_of(16), || format!("rows of {columns} are no multiple of 16"))?;
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

    /// Random numbers: `draw` puts `rows` rows of plain ones within ±`half_width` from a row on into a buffer.
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
        launch.require(columns.is_multiple_of(16), || format!("rows of {columns} are no multiple of 16"))?;
        launch.require_room("the tiles", self.tiles.bytes(), tile_bytes(rows, columns, self.gated), &[1])?;
        let table = [rows.div_ceil(scale_rows.max(1)), columns.div_ceil(SCALED)];
        Ok(launch.require_room("the scales", self.scales.bytes(), FLOAT_BYTES, &table)?)
    }

    /// As kernels take them.
    fn args(&self, launch: Launch<'_>) -> Result<[Arg; 3], CudaError> {
        let scale_rows = launch.arg("rows of a scale", self.scale_rows)?;
        Ok([(&self.tiles).into(), (&self.scales).into(), scale_rows])
    }
}

/// How a product of a few rows runs: whether x is in shared memory, and how many tiles a warp copies ahead.
struct Plan {
    kernel: &'static str,
    shape: Shape,
    ahead: usize,
}

impl Plan {
    fn new(gpu: &Gpu, p: &Product<'_>, gated: bool) -> Option<Plan> {
        let strips = p.n.div_ceil(if gated { 8 } else { 16 });
        let (padded, tiles) = (p.k.next_multiple_of(SCALED), p.k.div_ceil(SCALED));
        let one = p.m == 1;
        // Halves of x and a factor for each 128.
        let staged = if one { 2 * padded + 4 * tiles } else { p.m * (2 * padded + 16) + 32 * tiles };
        let kernels: &[(&str, usize)] = match (one, gated) {
            (true, false) => &[("fp8_one", staged), ("fp8_many", 0)],
            (true, true) => &[("fp8_one_gated", staged), ("fp8_many_gated", 0)],
            (false, false) => &[("fp8_staged", staged), ("fp8_many", 0)],
            (false, true) => &[("fp8_staged_gated", staged), ("fp8_many_gated", 0)],
        };
        let bytes = |ahead: usize, staged: usize| WARPS * (ahead + 1) * ROOM + staged;
        let fitting = |ahead, staged| gpu.shared_bytes / (bytes(ahead, staged) + OWN_BYTES);
        let of = |&(kernel, staged): &(&'static str, usize), ahead: usize| {
            let blocks = fitting(ahead, staged).min(BLOCKS[usize::from(!one)]);
            let grid = (strips.min(blocks * gpu.multiprocessors), 1, 1);
            let shape = Shape { shared_bytes: bytes(ahead, staged), ..Shape::early(grid, THREADS) };
            (blocks > 0).then_some(Plan { kernel, shape, ahead })
        };
        // Two ahead where two blocks have room for it.
        let ahead = |staged| if fitting(2, staged) >= 2 { 2 } else { 1 };
        kernels.iter().find_map(|kernel| of(kernel, ahead(kernel.1)))
    }
}

impl Kernels {
    /// y = x·wᵀ (+ bias), or y += where `p.add`, for at most eight rows; with an `activation` y is that of gate and up.
    pub(super) fn fp8_linear(
        &self,
        p: &Product<'_>,
        w: &Fp8Matrix,
        bias: Option<&Buffer>,
        activation: Option<i32>,
    ) -> Result<(), CudaError> {
        let gated = activation.is_some();
        let plan = match self.dtype {
            Dtype::F32 => {
                let kernel = if gated { "fp8_gated" } else { "fp8" };
                let shape = Shape::early((p.n.div_ceil(WARPS), 1, 1), THREADS);
                Some(Plan { kernel, shape, ahead: 0 })
            }
            _ => Plan::new(&self.gpu, p, gated),
        };
        let Some(plan) = plan else {
            let problem = format!("a block has {} bytes of shared memory", self.gpu.shared_bytes);
            return Err(Launch::of("fp8").error(problem).into());
        };
        let name = self.name(plan.kernel);
        let launch = Launch::of(&name);
        let element = self.dtype.bytes() as usize;
        w.check(launch)?;
        let rows = if gated { 2 * p.n } else { p.n };
        launch.require(p.m <= FEW_ROWS && w.rows == rows && w.columns == p.k && w.gated == gated, || {
            format!("{} × {} by {} × {} is no product", p.m, p.k, w.rows, w.columns)
        })?;
        launch.require_room("y", p.y.bytes(), element, &[p.m, p.n])?;
        launch.require_room("x", p.x.bytes(), element, &[p.m, p.k])?;
        launch.require_alignment("x", p.x.address(), 16)?;
        if let Some(bias) = bias {
            launch.require_room("the bias", bias.bytes(), element, &[p.n])?;
        }
        let [tiles, scales, scale_rows] = w.args(launch)?;
        let mut args = vec![
            p.y.into(),
            tiles,
            scales,
            scale_rows,
            p.x.into(),
            bias.into(),
            if p.add { p.y.into() } else { Arg::NULL },
            launch.arg("rows", p.m)?,
            launch.arg("columns", p.n)?,
            launch.arg("k", p.k)?,
            Arg::Int(activation.unwrap_or(0)),
        ];
        if self.dtype != Dtype::F32 {
            args.push(launch.arg("tiles ahead", plan.ahead)?);
        }
        // SAFETY: the kernel's parameters, on operands of these sizes.
        unsafe { self.gpu.launch(launch, plan.shape, &args) }
    }

    /// The matrix as plain numbers, for a product of many rows.
    pub(super) fn fp8_plain(&self, w: &Fp8Matrix) -> Result<Slice<'_>, CudaError> {
        let name = self.name("fp8_plain");
        let launch = Launch::of(&name);
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
        let launch = Launch::of(&name);
        launch.require_room("the codes", codes.bytes(), 1, &[count])?;
        launch.require_room("the numbers", plain.bytes(), self.dtype.bytes() as usize, &[count])?;
        let args = [codes.into(), plain.into(), Arg::size(count), Arg::Float(times)];
        // SAFETY: the kernel's parameters, on buffers of these sizes.
        unsafe { self.gpu.launch(launch, self.spread(count), &args) }
    }
}
