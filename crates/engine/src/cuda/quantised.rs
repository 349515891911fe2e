//! Matrices of quantised weights on the GPU: tiles in the order of `quantised.cuh`, and the kernels that multiply them.

// Reason: launching a kernel is unsafe. Each launch passes the parameters of its kernel, on buffers whose sizes are checked.
#![allow(unsafe_code)]

use decoder_ops::Format;

use super::{
    error::CudaError,
    few_rows::{self, EIGHT, MOST_ROWS, Order, Part, Tiled},
    gpu::{Buffer, Gpu, Product, Shape, Slice},
    kernels::{Kernels, Matrix, Norm, Values},
};
use crate::{
    launch::{Arg, Launch},
    weights::QuantisedRows,
};
use llmprof_config::Dtype;
use llmprof_workload::EngineError;

const GROUP: usize = 32;
const TILE_ROWS: usize = 16;
/// Bytes of a group of rounded activations: 32 bytes, and four floats of its scale and sums.
const GROUP_BYTES: usize = GROUP + SCALE_BYTES;
const SCALE_BYTES: usize = 16;
const THREADS: usize = 256;
const WARPS: usize = THREADS / 32;
/// Static shared memory of the kernels for one row of activations and for several.
const OWN_SHARED: [usize; 2] = [2560, 17 << 10];
/// Maximum blocks of a multiprocessor, by their registers.
const MAX_BLOCKS: usize = 4;
/// Maximum blocks that share the columns of a strip, and the minimum tiles of each.
const SHARING: [usize; 2] = [4, 2];
const LEAST_TILES: usize = 4;

/// Rows of one format, from one matrix or from several of the same size stacked by rows.
pub struct Tiles {
    /// The extent of one matrix.
    extent: Extent,
    values: Buffer,
}

/// The content of a matrix of tiles.
#[derive(Clone, Copy)]
struct Extent {
    format: Format,
    rows: usize,
    columns: usize,
    /// Whether a strip has eight rows of the first half of the matrix and eight of the second.
    gated: bool,
}

/// The size of tiles, as `Layout` in `quantised.cuh` computes it.
fn tile(format: Format) -> (usize, usize) {
    let (groups, bits, scale_bytes) = match format {
        Format::Q4_0 | Format::Iq4Nl | Format::Mxfp4 => (4, 4, 8),
        Format::Q4_1 => (4, 4, 16),
        Format::Q5_0 => (4, 5, 8),
        Format::Q5_1 => (4, 5, 16),
        Format::Q8_0 => (4, 8, 8),
        Format::Q2K => (8, 2, 20),
        Format::Q3K => (8, 3, 18),
        Format::Q4K => (8, 4, 16),
        Format::Q5K => (8, 5, 16),
        Format::Q6K => (8, 6, 18),
        Format::Iq4Xs => (8, 4, 10),
    };
    let columns = groups * GROUP;
    (columns, TILE_ROWS * (columns * bits / 8 + scale_bytes))
}

/// The format's name in kernel names.
fn name_of(format: Format) -> &'static str {
    match format {
        Format::Q4_0 => "Q4_0",
        Format::Q4_1 => "Q4_1",
        Format::Q5_0 => "Q5_0",
        Format::Q5_1 => "Q5_1",
        Format::Q8_0 => "Q8_0",
        Format::Q2K => "Q2K",
        Format::Q3K => "Q3K",
        Format::Q4K => "Q4K",
        Format::Q5K => "Q5K",
        Format::Q6K => "Q6K",
        Format::Iq4Nl => "IQ4NL",
        Format::Iq4Xs => "IQ4XS",
        Format::Mxfp4 => "MXFP4",
    }
}

impl Tiles {
    /// Uploads blocks and arranges them in tiles.
    pub fn new(gpu: &Gpu, from: &QuantisedRows, columns: usize, gated: bool) -> Result<Tiles, CudaError> {
        let extent = Extent { format: from.format, rows: from.rows, columns, gated };
        let values = gpu.alloc("the weights", extent.bytes())?;
        Self::fill(gpu, (&values).into(), from, extent)?;
        Ok(Tiles { extent, values })
    }

    /// Like [`new`](Self::new), for the matrices of `count` experts, which have one format; `one` returns the blocks of
    /// each.
    pub fn of_experts(
        gpu: &Gpu,
        count: usize,
        columns: usize,
        gated: bool,
        one: &mut dyn FnMut(usize) -> Result<QuantisedRows, EngineError>,
    ) -> Result<Tiles, EngineError> {
        let first = one(0)?;
        let extent = Extent { format: first.format, rows: first.rows, columns, gated };
        let values = gpu.alloc("the weights", count * extent.bytes())?;
        for expert in 0..count {
            let from = one(expert)?;
            if (from.format, from.rows) != (first.format, first.rows) {
                return Err(EngineError::Backend("the experts of a layer differ in type".to_owned()));
            }
            Self::fill(gpu, values.slice_from(expert * extent.bytes()), &from, extent)?;
        }
        Ok(Tiles { extent, values })
    }

    fn fill(gpu: &Gpu, values: Slice<'_>, from: &QuantisedRows, extent: Extent) -> Result<(), CudaError> {
        let Extent { columns, gated, .. } = extent;
        let name = format!("tiled_{}", name_of(extent.format));
        let launch = Launch::new(&name);
        let block_weights = extent.format.weights();
        launch.require(columns.is_multiple_of(block_weights), || {
            format!("the row length {columns} is not a multiple of {block_weights}")
        })?;
        launch.require(!gated || from.rows.is_multiple_of(2), || {
            format!("gate and up have {} rows, which is odd", from.rows)
        })?;
        let row_bytes = columns / block_weights * extent.format.bytes();
        launch.require_room("the blocks", from.bytes.len(), row_bytes, &[from.rows])?;
        let blocks = gpu.alloc("the weights", from.bytes.len())?;
        gpu.upload(&blocks, &from.bytes)?;
        launch.require_room("the tiles", values.bytes(), 1, &[extent.bytes()])?;
        let args = [
            values.into(),
            (&blocks).into(),
            launch.arg("rows", extent.n())?,
            launch.arg("columns", columns)?,
            Arg::Int(gated.into()),
        ];
        let lanes = extent.strips() * extent.tiles_of_row() * 32;
        let grid = (lanes.div_ceil(THREADS).clamp(1, gpu.multiprocessors * 16), 1, 1);
        // SAFETY: the kernel's parameters, on buffers of these sizes.
        unsafe { gpu.launch(launch, Shape::plain(grid, THREADS), &args) }?;
        // The blocks are freed when this returns.
        gpu.synchronize()
    }

    /// Checks the biases of all experts.
    fn require_biases(
        &self,
        launch: Launch<'_>,
        bias: Option<&Buffer>,
        element: usize,
    ) -> Result<(), CudaError> {
        let experts = self.values.bytes() / self.extent.bytes().max(1);
        match bias {
            Some(bias) => {
                Ok(launch.require_room("the bias", bias.bytes(), element, &[experts, self.extent.rows])?)
            }
            None => Ok(()),
        }
    }

    /// Whether this is one GEMM of gate and up with their activation.
    pub fn is_gated(&self) -> bool {
        self.extent.gated
    }
}

/// The matrices of a layer's experts.
fn of_one_type<'a>(parts: &'a [Tiles], kernel: &str) -> Result<&'a Tiles, CudaError> {
    match parts {
        [part] => Ok(part),
        _ => Err(Launch::new(kernel).error("the experts of a layer differ in type".to_owned()).into()),
    }
}

impl Extent {
    /// Columns of a GEMM: one for a pair of gate and up.
    fn n(&self) -> usize {
        if self.gated { self.rows / 2 } else { self.rows }
    }

    fn strips(&self) -> usize {
        self.n().div_ceil(if self.gated { TILE_ROWS / 2 } else { TILE_ROWS })
    }

    fn tiles_of_row(&self) -> usize {
        self.columns.div_ceil(tile(self.format).0)
    }

    /// Groups of a row of activations, including the padding of the last tile.
    fn groups(&self) -> usize {
        self.tiles_of_row() * tile(self.format).0 / GROUP
    }

    fn bytes(&self) -> usize {
        self.strips() * self.tiles_of_row() * tile(self.format).1
    }

    fn kernel(&self, name: &str, dtype: Dtype) -> String {
        format!("{name}_{}_{}", name_of(self.format), dtype.name())
    }

    /// The shape of a GEMM with `staged` bytes of activations in shared memory, and the number of tiles that a warp
    /// copies ahead: two if two such blocks fit on a multiprocessor, else one. `None` if one block does not fit. If
    /// there are more strips than blocks, each block takes several in turn, so that it rounds its activations once.
    fn shape(&self, gpu: &Gpu, staged: usize) -> Option<(Shape, usize)> {
        let (resident, shared_bytes, ahead) = self.resident(gpu, staged)?;
        let grid = (self.strips().clamp(1, gpu.multiprocessors * resident), 1, 1);
        Some((Shape { shared_bytes, ..Shape::early(grid, THREADS) }, ahead))
    }

    /// Like [`shape`](Self::shape), for a GEMM with one row of activations, which is in shared memory.
    fn one(&self, gpu: &Gpu) -> Option<(Shape, usize)> {
        self.shape(gpu, self.groups() * GROUP_BYTES)
    }

    /// Blocks of such a GEMM that run concurrently.
    fn at_once(&self, gpu: &Gpu) -> usize {
        let resident = self.resident(gpu, self.groups() * GROUP_BYTES);
        resident.map_or(0, |(blocks, ..)| blocks * gpu.multiprocessors)
    }

    /// Like [`shape`](Self::shape), for a GEMM with one row of activations whose strips are few and long, so that
    /// several blocks share one strip; also returns the number of sharing blocks.
    fn shared_shape(&self, gpu: &Gpu) -> Option<(Shape, usize, usize)> {
        let tiles = self.tiles_of_row();
        SHARING.into_iter().find_map(|by| {
            let each = tiles.div_ceil(by);
            let staged = each * tile(self.format).0 / GROUP * GROUP_BYTES;
            let (resident, shared_bytes, ahead) = self.resident(gpu, staged)?;
            let blocks = self.strips() * by;
            let fits = gpu.has_clusters() && tiles >= by * LEAST_TILES;
            (fits && blocks <= gpu.multiprocessors * resident).then(|| {
                let shape = Shape { shared_bytes, cluster: by, ..Shape::early((blocks, 1, 1), THREADS) };
                (shape, ahead, by)
            })
        })
    }

    /// Blocks per multiprocessor, the shared memory of each, and the tiles that a warp copies ahead.
    fn resident(&self, gpu: &Gpu, staged: usize) -> Option<(usize, usize, usize)> {
        let bytes = |ahead: usize| WARPS * (ahead + 1) * tile(self.format).1 + staged;
        let own = OWN_SHARED[usize::from(staged == 0)];
        let fitting = |ahead| gpu.shared_bytes / (bytes(ahead) + own);
        let ahead = if fitting(2) >= 2 { 2 } else { 1 };
        let resident = Some(fitting(ahead)).filter(|&blocks| blocks > 0)?.min(MAX_BLOCKS);
        Some((resident, bytes(ahead), ahead))
    }
}

/// Operations fused with a GEMM.
struct Fusion<'a> {
    bias: Option<Slice<'a>>,
    activation: i32,
    /// Whether y is f32.
    wide: bool,
    norm: Option<Norm<'a>>,
    turn: Turn,
}

/// GEMMs of one row of activations with two matrices run concurrently. Numbered as in `quantised.cu`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Alone,
    First,
    Second,
}

impl Kernels {
    /// y = x·wᵀ (+ bias), or y += if `product.add`, for at most [`MOST_ROWS`] rows of x.
    pub(super) fn quantised_linear(
        &self,
        product: &Product<'_>,
        parts: &[Tiles],
        bias: Option<&Buffer>,
        norm: Option<Norm<'_>>,
    ) -> Result<(), CudaError> {
        let (element, out) = (product.dtype.bytes() as usize, product.out.bytes() as usize);
        let is_one = product.m == 1 && parts.iter().all(|part| part.extent.one(&self.gpu).is_some());
        if !is_one {
            self.ordered_rows(product, Order::Groups, norm, None)?;
        }
        let mut first = 0;
        for (i, part) in parts.iter().enumerate() {
            let y = product.y.after(first * out);
            let also = Fusion {
                bias: bias.map(|bias| bias.slice_from(first * element)),
                activation: 0,
                wide: product.out != product.dtype,
                norm,
                turn: match (parts.len(), i) {
                    (2, 0) => Turn::First,
                    (2, 1) => Turn::Second,
                    _ => Turn::Alone,
                },
            };
            let part_product = Product { y, n: part.extent.n(), ..*product };
            match is_one {
                true => self.quantised("quantised", part, &part_product, &also)?,
                false => self.quantised_rows(part, &part_product, product.n, &also)?,
            }
            first += part.extent.rows;
        }
        Ok(())
    }

    /// y = activation(gate) · up, for at most [`MOST_ROWS`] rows of x.
    pub(super) fn quantised_gated(
        &self,
        product: &Product<'_>,
        part: &Tiles,
        activation: i32,
        norm: Option<Norm<'_>>,
    ) -> Result<(), CudaError> {
        let also = Fusion { bias: None, activation, wide: false, norm, turn: Turn::Alone };
        if product.m == 1 && part.extent.one(&self.gpu).is_some() {
            return self.quantised("quantised_gated", part, product, &also);
        }
        self.ordered_rows(product, Order::Groups, norm, None)?;
        self.quantised_rows(part, product, part.extent.n(), &also)
    }

    /// Checks the operands of a GEMM whose y has rows of `stride`.
    fn require_operands(
        launch: Launch<'_>,
        part: &Tiles,
        p: &Product<'_>,
        stride: usize,
        also: &Fusion<'_>,
    ) -> Result<(), CudaError> {
        let (element, out) = (p.dtype.bytes() as usize, p.out.bytes() as usize);
        let columns = part.extent.columns;
        launch.require(p.m <= MOST_ROWS && p.k == columns && p.n == part.extent.n(), || {
            format!("shapes do not match: {} × {} by {} × {}", p.m, p.k, part.extent.n(), columns)
        })?;
        launch.require_room("y", p.y.bytes() + (stride - p.n) * out, out, &[p.m, stride])?;
        launch.require_room("x", p.x.bytes(), element, &[p.m, p.k])?;
        launch.require_alignment("x", p.x.address(), 16)?;
        if let Some(bias) = also.bias {
            launch.require_room("the bias", bias.bytes(), element, &[p.n])?;
        }
        Ok(())
    }

    /// A part of a GEMM with one row.
    fn quantised(
        &self,
        kernel: &str,
        part: &Tiles,
        p: &Product<'_>,
        also: &Fusion<'_>,
    ) -> Result<(), CudaError> {
        let gated = part.extent.gated;
        let can_share = !gated && also.norm.is_none() && also.turn == Turn::Alone && p.dtype != Dtype::F32;
        let shared = part.extent.shared_shape(&self.gpu).filter(|_| can_share);
        let suffix = if shared.is_some() { "_shared" } else { "_one" };
        let name = part.extent.kernel(&format!("{kernel}{suffix}"), p.dtype);
        let launch = Launch::new(&name);
        launch.require(p.m == 1, || format!("{} rows, expected one", p.m))?;
        Self::require_operands(launch, part, p, p.n, also)?;
        let residual = if p.add { p.y.into() } else { Arg::NULL };
        let bias = also.bias.map_or(Arg::NULL, Arg::from);
        let (n, k, wide) = (launch.arg("columns", p.n)?, launch.arg("k", p.k)?, Arg::Int(also.wide.into()));
        let mut args = vec![p.y.into(), (&part.values).into(), p.x.into()];
        if let Some((shape, ahead, by)) = shared {
            let ahead = launch.arg("the tiles ahead", ahead)?;
            let by = launch.arg("the blocks of a strip", by)?;
            args.extend([bias, residual, n, k, wide, ahead, by]);
            // SAFETY: the kernel's parameters, on buffers of these sizes.
            return unsafe { self.gpu.launch(launch, shape, &args) };
        }
        let (shape, ahead) = part.extent.one(&self.gpu).ok_or_else(|| self.too_small(launch))?;
        match gated {
            true => args.extend([bias, n, k, Arg::Int(also.activation)]),
            false => args.extend([bias, residual, n, k, wide]),
        }
        args.extend(Norm::args(also.norm, launch, p.k)?);
        args.push(Arg::Int(ahead as i32));
        args.extend([Arg::NULL, Arg::Int(0), Arg::size(0)]);
        if !gated {
            args.push(Arg::Int(also.turn as i32));
        }
        // SAFETY: the kernel's parameters, on buffers of these sizes.
        unsafe { self.gpu.launch(launch, shape, &args) }
    }

    fn too_small(&self, launch: Launch<'_>) -> CudaError {
        launch.error(format!("a block has {} bytes of shared memory", self.gpu.shared_bytes)).into()
    }

    /// A part of a GEMM with several rows, which are already reordered; y has rows of `stride`.
    fn quantised_rows(
        &self,
        part: &Tiles,
        p: &Product<'_>,
        stride: usize,
        also: &Fusion<'_>,
    ) -> Result<(), CudaError> {
        for some in few_rows::parts(p, stride) {
            let name = format!("quantised_rows_{}_{}", some.eights(), name_of(part.extent.format));
            let launch = Launch::new(&name);
            Self::require_operands(launch, part, &some.product, stride, also)?;
            let (shape, ahead) = part.extent.shape(&self.gpu, 0).ok_or_else(|| self.too_small(launch))?;
            let weights = [Arg::from(&part.values), Arg::Int(ahead as i32), Arg::NULL, Arg::size(0)];
            let gated = part.extent.gated.then_some(also.activation);
            let rows = self.few_rows(launch)?.args(launch, &some, also.bias, gated, stride)?;
            // SAFETY: the kernel's parameters, on buffers of these sizes.
            unsafe { self.gpu.launch(launch, shape, &[weights.as_slice(), &rows].concat()) }?;
        }
        Ok(())
    }

    /// y[pair] = w·x + bias, or the product of gate and up, of the expert in `ids` for each of `pairs`; `share` of them
    /// share a row of x. `bias` has the biases of all experts.
    pub(super) fn quantised_experts(
        &self,
        kernel: &str,
        parts: &[Tiles],
        p: &Product<'_>,
        bias: Option<&Buffer>,
        (ids, pairs, share): (&Buffer, usize, usize),
    ) -> Result<(), CudaError> {
        let part = of_one_type(parts, kernel)?;
        let name = part.extent.kernel(&format!("{kernel}_one"), p.dtype);
        let launch = Launch::new(&name);
        let element = p.dtype.bytes() as usize;
        launch.require(p.k == part.extent.columns && p.n == part.extent.n(), || {
            format!("shapes do not match: {} by {} × {}", p.k, part.extent.n(), part.extent.columns)
        })?;
        part.require_biases(launch, bias, element)?;
        launch.require_room("y", p.y.bytes(), element, &[pairs, p.n])?;
        launch.require_room("x", p.x.bytes(), element, &[pairs.div_ceil(share), p.k])?;
        launch.require_room("the ids", ids.bytes(), 4, &[pairs])?;
        launch.require_alignment("x", p.x.address(), 16)?;
        let (mut shape, ahead) = part.extent.one(&self.gpu).ok_or_else(|| self.too_small(launch))?;
        // As many blocks as run concurrently take the strips of all pairs in turn, an equal number each.
        let (strips, at_once) = (part.extent.strips(), part.extent.at_once(&self.gpu));
        let rounds = (strips * pairs).div_ceil(at_once.max(1));
        shape.grid = (strips.div_ceil(rounds.max(1)).max(1), pairs, 1);
        let (n, k) = (launch.arg("columns", p.n)?, launch.arg("k", p.k)?);
        let mut args = vec![p.y.into(), (&part.values).into(), p.x.into()];
        match part.extent.gated {
            true => args.extend([bias.into(), n, k, Arg::Int(self.activation_number())]),
            false => args.extend([bias.into(), Arg::NULL, n, k, Arg::Int(0)]),
        }
        args.extend(Norm::args(None, launch, p.k)?);
        args.extend([
            Arg::Int(ahead as i32),
            ids.into(),
            launch.arg("the share", share)?,
            Arg::size(part.extent.bytes()),
        ]);
        if !part.extent.gated {
            args.push(Arg::Int(Turn::Alone as i32));
        }
        // SAFETY: the kernel's parameters, on buffers of these sizes; the ids are below the number of experts.
        unsafe { self.gpu.launch(launch, shape, &args) }
    }

    /// Like [`quantised_experts`](Self::quantised_experts), by the tiles of a plan, so that an expert's weights are
    /// read once for several rows. y is by position, and so is x if the tiles have no order.
    pub(super) fn quantised_expert_rows(
        &self,
        parts: &[Tiles],
        p: &Product<'_>,
        bias: Option<&Buffer>,
        tiled: Tiled<'_>,
    ) -> Result<(), CudaError> {
        let part = of_one_type(parts, "quantised_rows")?;
        self.ordered_rows(p, Order::Groups, None, Some(tiled))?;
        let name = format!("quantised_rows_{}_{}", tiled.tile_rows / EIGHT, name_of(part.extent.format));
        let launch = Launch::new(&name);
        launch.require(p.k == part.extent.columns && p.n == part.extent.n(), || {
            format!("shapes do not match: {} by {} × {}", p.k, part.extent.n(), part.extent.columns)
        })?;
        part.require_biases(launch, bias, p.dtype.bytes() as usize)?;
        launch.require_room("y", p.y.bytes(), p.out.bytes() as usize, &[p.m, p.n])?;
        let (mut shape, ahead) = part.extent.shape(&self.gpu, 0).ok_or_else(|| self.too_small(launch))?;
        let strips = part.extent.strips();
        let at_once =
            part.extent.resident(&self.gpu, 0).map_or(1, |(blocks, ..)| blocks) * self.gpu.multiprocessors;
        let rounds = (strips * tiled.tiles).div_ceil(at_once.max(1));
        shape.grid = (strips.div_ceil(rounds.max(1)).max(1), tiled.tiles, 1);
        let weights = [
            Arg::from(&part.values),
            Arg::Int(ahead as i32),
            tiled.plan.into(),
            Arg::size(part.extent.bytes()),
        ];
        let activation = part.extent.gated.then_some(self.activation_number());
        let rows =
            self.few_rows(launch)?.args(launch, &Part::whole(*p), bias.map(Slice::from), activation, p.n)?;
        // SAFETY: the kernel's parameters, on buffers of these sizes; the plan's experts are below their number.
        unsafe { self.gpu.launch(launch, shape, &[weights.as_slice(), &rows].concat()) }
    }

    /// The dequantised matrices of `count` experts, starting at `first`.
    pub(super) fn dequantised_experts<'a>(
        &'a self,
        parts: &[Tiles],
        first: usize,
        count: usize,
    ) -> Result<Slice<'a>, CudaError> {
        let part = of_one_type(parts, "dequantised")?;
        let plain = self.plain(Launch::new("dequantised"))?;
        let from = part.values.slice_from(first * part.extent.bytes());
        self.dequantise(plain.into(), from, part.extent, count)?;
        Ok(plain.into())
    }

    /// The dequantised matrix, for a GEMM of many rows.
    pub(super) fn dequantised<'a>(&'a self, w: &Matrix, parts: &[Tiles]) -> Result<Slice<'a>, CudaError> {
        let element = self.dtype.bytes() as usize;
        let plain = self.plain(Launch::new("dequantised"))?;
        let mut first = 0;
        for part in parts {
            let out = plain.slice_from(first * w.columns * element);
            self.dequantise(out, (&part.values).into(), part.extent, 1)?;
            first += part.extent.rows;
        }
        Ok(plain.into())
    }

    /// Dequantises `count` consecutive matrices.
    fn dequantise(
        &self,
        out: Slice<'_>,
        from: Slice<'_>,
        extent: Extent,
        count: usize,
    ) -> Result<(), CudaError> {
        let name = extent.kernel("dequantised", self.dtype);
        let launch = Launch::new(&name);
        let element = self.dtype.bytes() as usize;
        launch.require_room("the output", out.bytes(), element, &[count, extent.rows, extent.columns])?;
        launch.require_room("the tiles", from.bytes(), 1, &[count, extent.bytes()])?;
        let args = [
            out.into(),
            from.into(),
            launch.arg("rows", extent.n())?,
            launch.arg("columns", extent.columns)?,
            Arg::Int(extent.gated.into()),
        ];
        let warps = extent.strips() * extent.tiles_of_row();
        let grid = (warps.div_ceil(8).clamp(1, self.gpu.multiprocessors * 16), count, 1);
        // SAFETY: the kernel's parameters, on buffers of these sizes.
        unsafe { self.gpu.launch(launch, Shape::early(grid, THREADS), &args) }
    }

    /// Rows of a quantised table; see [`Kernels::embed`].
    ///
    /// # Safety
    /// The ids are below the number of the table's rows.
    pub(super) unsafe fn embed_quantised(
        &self,
        out: &Buffer,
        table: &Tiles,
        ids: &Buffer,
        rows: usize,
        scale: f32,
    ) -> Result<(), CudaError> {
        let name = table.extent.kernel("embedded", self.dtype);
        let launch = Launch::new(&name);
        launch.require(!table.extent.gated, || "an embedding table cannot be gated".to_owned())?;
        launch.require_room(
            "the output",
            out.bytes(),
            self.dtype.bytes() as usize,
            &[rows, table.extent.columns],
        )?;
        launch.require_room("the ids", ids.bytes(), size_of::<u32>(), &[rows])?;
        let columns = launch.arg("columns", table.extent.columns)?;
        let args = [out.into(), (&table.values).into(), ids.into(), columns, Arg::Float(scale)];
        // SAFETY: the kernel's parameters, on buffers of these sizes; the caller guarantees the ids.
        unsafe { self.gpu.launch(launch, Shape::plain((rows, 1, 1), THREADS), &args) }
    }
}

impl Matrix {
    /// The bytes of the dequantised weights, if they are needed for GEMMs of many rows.
    pub fn plain_bytes(&self, dtype: Dtype) -> usize {
        match self.values {
            Values::Plain(_) => 0,
            Values::Tiles(_) | Values::Fp8(_) => self.rows * self.columns * dtype.bytes() as usize,
        }
    }
}
