//! GEMMs of weights in fewer bits with two rows of activations or more, up to [`MOST_ROWS`];
//! `kernels/few_rows.cuh` has the other side.

// Reason: launching a kernel is unsafe. Each launch passes the parameters of its kernel, on buffers whose sizes are checked.
#![allow(unsafe_code)]

use super::{
    error::CudaError,
    gpu::{Buffer, Gpu, Product, Shape, Slice},
    kernels::{Kernels, Norm},
};
use crate::launch::{Arg, Launch};
use llmprof_config::Dtype;

/// Rows of activations up to which GEMMs read such weights as they are, and those that one GEMM takes. Each
/// GEMM reads the weights again; with more rows, dequantised weights are faster.
pub const MOST_ROWS: usize = 64;
pub const ROWS_AT_ONCE: usize = 32;
/// Rows of activations lie together by eights.
pub const EIGHT: usize = 8;
const GROUP: usize = 32;
/// A group of a row as halves.
const GROUP_BYTES: usize = GROUP * 2;
const THREADS: usize = 256;
/// Quantised weights become halves times this, as `quantised.cuh` has it.
const LIFT: f32 = 16.0;

/// Memory for GEMMs with weights in fewer bits: activations of a few rows in the order of the kernels, and a
/// dequantised matrix for many rows.
pub struct Scratch {
    ordered: Buffer,
    factors: Buffer,
    plain: Buffer,
}

/// Which columns lie together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// As tiles of GGUF's formats have them.
    Groups,
    /// As tiles of FP8 have them.
    Fp8,
}

/// Rows of activations by the tiles of a plan, each with those of one expert.
#[derive(Clone, Copy)]
pub struct Tiled<'a> {
    pub plan: &'a Buffer,
    /// The pairs by position, `active` of which share a row; without them, rows are positions.
    pub order: Option<&'a Buffer>,
    pub active: usize,
    /// The most tiles of the plan, and the most rows of one.
    pub tiles: usize,
    pub tile_rows: usize,
}

/// Some rows of a GEMM.
pub struct Part<'a> {
    first: usize,
    pub product: Product<'a>,
}

/// A GEMM whose y has rows of `stride`, by the rows that a kernel takes.
pub fn parts<'a>(p: &Product<'a>, stride: usize) -> impl Iterator<Item = Part<'a>> {
    let (p, element, out) = (*p, p.dtype.bytes() as usize, p.out.bytes() as usize);
    (0..p.m).step_by(ROWS_AT_ONCE).map(move |first| {
        let (y, x) = (p.y.after(first * stride * out), p.x.after(first * p.k * element));
        Part { first, product: Product { y, x, m: ROWS_AT_ONCE.min(p.m - first), ..p } }
    })
}

impl<'a> Part<'a> {
    /// All of it, in one kernel.
    pub fn whole(product: Product<'a>) -> Part<'a> {
        Part { first: 0, product }
    }

    /// The eights of rows that its kernel is for.
    pub fn eights(&self) -> usize {
        self.product.m.div_ceil(EIGHT).next_power_of_two()
    }
}

/// Groups of a row: the last tile of any format is filled up.
fn groups(columns: usize) -> usize {
    columns.div_ceil(GROUP).next_multiple_of(8)
}

/// Bytes of rows in the order of the kernels.
pub fn ordered_bytes(rows: usize, columns: usize) -> usize {
    rows * groups(columns) * GROUP_BYTES
}

impl Scratch {
    /// For [`MOST_ROWS`] rows of up to `columns`, or for the rows and columns of `of_experts` if they take more; with `plain_bytes` for the largest matrix of more rows.
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

    /// The parameters that such kernels have in common. With an `activation`, y is that of gate and up.
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
        let missing = || launch.error("there is no memory for weights in fewer bits".to_owned());
        Ok(self.scratch.as_ref().ok_or_else(missing)?)
    }

    /// Memory for one dequantised matrix.
    pub(super) fn plain(&self, launch: Launch<'_>) -> Result<&Buffer, CudaError> {
        Ok(&self.few_rows(launch)?.plain)
    }

    /// Puts the rows of x into the order of the kernels, normed if asked; or those of a plan's tiles.
    pub(super) fn ordered_rows(
        &self,
        p: &Product<'_>,
        order: Order,
        norm: Option<Norm<'_>>,
        tiled: Option<Tiled<'_>>,
    ) -> Result<(), CudaError> {
        let name = self.name("ordered_rows");
        let launch = Launch::of(&name);
        let (scratch, groups) = (self.few_rows(launch)?, groups(p.k));
        let grid = tiled.map_or((p.m, 1), |tiled| (tiled.tile_rows, tiled.tiles));
        let rows = (grid.0 * grid.1).next_multiple_of(EIGHT);
        launch.require(p.k.is_multiple_of(16), || format!("rows of {} are no multiple of 16", p.k))?;
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
