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

/// A matrix of `rows` × `columns`: a code for each weight, and a scale for each 128 columns of `scale_rows` rows.
pub struct Fp8Matrix {
    codes: Buffer,
    scales: Buffer,
    scale_rows: usize,
    rows: usize,
    columns: usize,
}

impl Fp8Matrix {
    pub fn new(gpu: &Gpu, from: &Fp8Rows, columns: usize) -> Result<Fp8Matrix, CudaError> {
        let codes = gpu.alloc("the weights", from.codes.len())?;
        gpu.upload(&codes, &from.codes)?;
        let scales = gpu.alloc("the weights", size_of_val(from.scales.as_slice()))?;
        gpu.upload(&scales, &from.scales)?;
        Ok(Fp8Matrix { codes, scales, scale_rows: from.scale_rows, rows: from.rows, columns })
    }

    /// Random numbers: `draw` puts `rows` rows of plain ones within ±`half_width` from a row on into a buffer.
    pub fn random(
        kernels: &Kernels,
        parts: &[(usize, f32)],
        columns: usize,
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
        let table = gpu.alloc("the weights", size_of_val(scales.as_slice()))?;
        gpu.upload(&table, &scales)?;
        Ok(Fp8Matrix { codes, scales: table, scale_rows: SCALE_ROWS, rows, columns })
    }

    fn check(&self, launch: Launch<'_>) -> Result<(), CudaError> {
        let Fp8Matrix { rows, columns, scale_rows, .. } = *self;
        launch.require(columns.is_multiple_of(16), || format!("rows of {columns} are no multiple of 16"))?;
        launch.require_room("the codes", self.codes.bytes(), 1, &[rows, columns])?;
        let table = [rows.div_ceil(scale_rows.max(1)), columns.div_ceil(SCALED)];
        Ok(launch.require_room("the scales", self.scales.bytes(), FLOAT_BYTES, &table)?)
    }

    /// As kernels take them.
    fn args(&self, launch: Launch<'_>) -> Result<[Arg; 3], CudaError> {
        let scale_rows = launch.arg("rows of a scale", self.scale_rows)?;
        Ok([(&self.codes).into(), (&self.scales).into(), scale_rows])
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
        let name = self.name(if activation.is_some() { "fp8_gated" } else { "fp8" });
        let launch = Launch::of(&name);
        let element = self.dtype.bytes() as usize;
        w.check(launch)?;
        let rows = if activation.is_some() { 2 * p.n } else { p.n };
        launch.require(p.m <= FEW_ROWS && w.rows == rows && w.columns == p.k, || {
            format!("{} × {} by {} × {} is no product", p.m, p.k, w.rows, w.columns)
        })?;
        launch.require_room("y", p.y.bytes(), element, &[p.m, p.n])?;
        launch.require_room("x", p.x.bytes(), element, &[p.m, p.k])?;
        launch.require_alignment("x", p.x.address(), 16)?;
        if let Some(bias) = bias {
            launch.require_room("the bias", bias.bytes(), element, &[p.n])?;
        }
        let [codes, scales, scale_rows] = w.args(launch)?;
        let args = [
            p.y.into(),
            codes,
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
        let rows_per_block = if self.dtype == Dtype::F32 || activation.is_some() { 8 } else { 16 };
        let shape = Shape::early((p.n.div_ceil(rows_per_block), 1, 1), THREADS);
        // SAFETY: the kernel's parameters, on operands of these sizes.
        unsafe { self.gpu.launch(launch, shape, &args) }
    }

    /// The matrix as plain numbers, for a product of many rows.
    pub(super) fn fp8_plain(&self, w: &Fp8Matrix) -> Result<Slice<'_>, CudaError> {
        let name = self.name("fp8_plain");
        let launch = Launch::of(&name);
        w.check(launch)?;
        let out = self.plain(launch)?;
        launch.require_room("the output", out.bytes(), self.dtype.bytes() as usize, &[w.rows, w.columns])?;
        let [codes, scales, scale_rows] = w.args(launch)?;
        let (n, k) = (launch.arg("rows", w.rows)?, launch.arg("columns", w.columns)?);
        let args = [out.into(), codes, scales, scale_rows, n, k];
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
