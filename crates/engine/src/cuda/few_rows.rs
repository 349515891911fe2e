//! GEMMs of quantised weights with two or more rows of activations, up to [`MOST_ROWS`]; `kernels/few_rows.cuh` has the
//! device side.

// Reason: launching a kernel is unsafe. Each launch passes the parameters of its kernel, on buffers whose sizes are checked.
#![allow(unsafe_code)]

use super::{
    error::CudaError,
    gpu::{Buffer, Gpu, Product, Shape, Slice},
    kernels::{Kernels, Norm},
};
use crate::launch::{Arg, Launch};
use llmprof_config::Dtype;

/// Maximum rows of activations for which GEMMs read quantised weights, and the rows of one such GEMM. Each GEMM reads
/// the weights again; with more rows, dequantised weights are faster.
pub const MOST_ROWS: usize = 64;
pub const ROWS_AT_ONCE: usize = 32;
/// Rows of activations are stored in groups of eight.
pub const EIGHT: usize = 8;
const GROUP: usize = 32;
/// Bytes of a group of a row in f16.
const GROUP_BYTES: usize = GROUP * 2;
const THREADS: usize = 256;
/// Quantised weights are converted to f16 times this factor, as in `quantised.cuh`.
const LIFT: f32 = 16.0;

/// Memory for GEMMs with quantised weights: activations of a few rows in the order of the kernels, and a dequantised
/// matrix for many rows.
pub struct Scratch {
    ordered: Buffer,
    factors: Buffer,
    plain: Buffer,
}

/// The order in which columns are stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The order of the tiles of GGUF formats.
    Groups,
    /// The order of the tiles of FP8.
    Fp8,
}

/// Rows of activations by the tiles of a plan; each tile has rows of one expert.
#[derive(Clone, Copy)]
pub struct Tiled<'a> {
    pub plan: &'a Buffer,
    /// The pairs by position, `active` of which share a row; if `None`, rows are positions.
    pub order: Option<&'a Buffer>,
    pub active: usize,
    /// The maximum number of tiles of the plan; `tile_rows` is the maximum number of rows of a tile.
    pub tiles: usize,
    pub tile_rows: usize,
}

/// A range of rows of a GEMM.
pub struct Part<'a> {
    first: usize,
    pub product: Product<'a>,
}

/// Divides a GEMM, whose y has rows of `stride`, into parts of as many rows as a kernel takes.
pub fn parts<'a>(p: &Product<'a>, stride: usize) -> impl Iterator<Item = Part<'a>> {
    let (p, element, out) = (*p, p.dtype.bytes() as usize, p.out.bytes() as usize);
    (0..p.m).step_by(ROWS_AT_ONCE).map(move |first| {
        let (y, x) = (p.y.after(first * stride * out), p.x.after(first * p.k * element));
        Part { first, product: Product { y, x, m: ROWS_AT_ONCE.min(p.m - first), ..p } }
    })
}

impl<'a> Part<'a> {
    /// The whole GEMM as one part, for one kernel.
    pub fn whole(product: Product<'a>) -> Part<'a> {
        Part { first: 0, product }
    }

    /// The groups of eight rows that its kernel is compiled for.
    pub fn eights(&self) -> usize {
        self.product.m.div_ceil(EIGHT).next_power_of_two()
    }
}

/// Groups of a row: the last tile of any format is padded.
fn groups(columns: usize) -> usize {
    columns.div_ceil(GROUP).next_multiple_of(8)
}

/// Bytes of rows in the order of the kernels.
pub fn ordered_bytes(rows: usize, columns: usize) -> usize {
    rows * groups(columns) * GROUP_BYTES
}

impl Scratch {
    /// Allocates for [`MOST_ROWS`] rows of up to `columns`, or for the rows and columns of `of_experts` if they need
    /// more; with `plain_bytes` for the largest dequantised matrix.
    pub fn new(
        gpu: &Gpu,
        columns: usize,
        of_experts: (usize, usize),
        plain_bytes: usize,
    ) -> Result<Scratch, CudaError> {
        let bytes = ordered_bytes(MOST_ROWS, columns).max(ordered_bytes(of_experts.0, of_experts.1));
        Ok(Scratch {
            ordered: gpu.alloc("activations", bytes)?,
            factors: gpu.alloc("activations", of_experts.0.max(MOST_ROWS) * size_of::<f32>())?,
            plain: gpu.alloc("dequantised weights", plain_bytes)?,
        })
    }

    /// The common parameters of these kernels. With an `activation`, y is that of gate and up.
    pub fn args(
        &self,
        launch: Launch<'_>,
        Part { first, product: p }: &Part<'_>,
        bias: Option<Slice<'_>>,
        activation: Option<i32>,
        stride: usize,
    ) -> Result<Vec<Arg>, CudaError> {
        let groups = groups(p.k);
        let kind = match p.dtype {
            Dtype::Bf16 => 0,
            Dtype::F16 => 1,
            Dtype::F32 => 2,
        };
        Ok(vec![
            p.y.into(),
            self.ordered.slice_from(first * groups * GROUP_BYTES).into(),
            self.factors.slice_from(first * size_of::<f32>()).into(),
            bias.map_or(Arg::NULL, Arg::from),
            if p.add { p.y.into() } else { Arg::NULL },
            Arg::Int(kind),
            launch.arg("rows", p.m)?,
            launch.arg("columns", p.n)?,
            launch.arg("k", p.k)?,
            launch.arg("groups", groups)?,
            launch.arg("the stride", stride)?,
            Arg::Int(activation.is_some().into()),
            Arg::Int((p.out != p.dtype).into()),
            Arg::Int(activation.unwrap_or(0)),
        ])
    }
}

impl Kernels {
    pub(super) fn few_rows(&self, launch: Launch<'_>) -> Result<&Scratch, CudaError> {
        let missing = || launch.error("the buffers for quantised weights were not allocated".to_owned());
        Ok(self.scratch.as_ref().ok_or_else(missing)?)
    }

    /// Memory for one dequantised matrix.
    pub(super) fn plain(&self, launch: Launch<'_>) -> Result<&Buffer, CudaError> {
        Ok(&self.few_rows(launch)?.plain)
    }

    /// Copies the rows of x into the order of the kernels, normed if there is a `norm`; or the rows of a plan's tiles.
    pub(super) fn ordered_rows(
        &self,
        p: &Product<'_>,
        order: Order,
        norm: Option<Norm<'_>>,
        tiled: Option<Tiled<'_>>,
    ) -> Result<(), CudaError> {
        let name = self.name("ordered_rows");
        let launch = Launch::new(&name);
        let (scratch, groups) = (self.few_rows(launch)?, groups(p.k));
        let grid = tiled.map_or((p.m, 1), |tiled| (tiled.tile_rows, tiled.tiles));
        let rows = (grid.0 * grid.1).next_multiple_of(EIGHT);
        launch
            .require(p.k.is_multiple_of(16), || format!("the row length {} is not a multiple of 16", p.k))?;
        launch.require_room("the ordered rows", scratch.ordered.bytes(), GROUP_BYTES, &[rows, groups])?;
        launch.require_room("the factors", scratch.factors.bytes(), size_of::<f32>(), &[grid.0, grid.1])?;
        let shared_by = tiled.filter(|tiled| tiled.order.is_some()).map_or(1, |tiled| tiled.active);
        launch.require_room("x", p.x.bytes(), p.dtype.bytes() as usize, &[p.m / shared_by, p.k])?;
        launch.require_alignment("x", p.x.address(), 16)?;
        let args = [
            (&scratch.ordered).into(),
            (&scratch.factors).into(),
            p.x.into(),
            launch.arg("columns", p.k)?,
            launch.arg("groups", groups)?,
            Arg::Int((order == Order::Fp8).into()),
            Arg::Float(if order == Order::Fp8 { 1.0 } else { 1.0 / LIFT }),
        ];
        let of_plan = match tiled {
            Some(tiled) => {
                [tiled.plan.into(), tiled.order.into(), launch.arg("active experts", tiled.active)?]
            }
            None => [Arg::NULL, Arg::NULL, Arg::Int(1)],
        };
        let args = [args.as_slice(), &Norm::args(norm, launch, p.k)?, &of_plan].concat();
        // SAFETY: the kernel's parameters, on buffers of these sizes; a plan's rows are those of x.
        unsafe { self.gpu.launch(launch, Shape::early((grid.0, grid.1, 1), THREADS), &args) }
    }
}
