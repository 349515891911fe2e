//! Launches the kernels. Every function checks the sizes that its kernel relies on; if a kernel relies on values in
//! device memory, the function is unsafe and documents what they must be. The `.cu` files document what each
//! kernel computes.

// Reason: launching a kernel is unsafe. Each launch passes the parameters of its kernel, on buffers whose sizes are checked.
#![allow(unsafe_code)]

use super::{
    error::CudaError,
    few_rows::{MOST_ROWS, Scratch},
    fp8::Fp8Matrix,
    gpu::{Buffer, Gpu, Product, Ring, Shape, Slice},
    quantised::Tiles,
};
use crate::launch::{Arg, Heads, Launch};
use llm_cost::spec::Activation;
use llmprof_config::{Dtype, KvCacheDtype};

type Launched = Result<(), CudaError>;

/// Rows of activations up to which the built-in GEMM is faster than cuBLAS.
pub const FEW_ROWS: usize = 8;
/// Query heads of one block of the decode attention.
const HEADS_PER_BLOCK: usize = 8;
/// Maximum blocks of a cluster in `decode_attention.cu`; they share one key/value head.
const CLUSTER_BLOCKS: usize = 8;
/// Head dimensions with tensor-core kernels.
const TENSOR_CORE_DIMS: [usize; 5] = [64, 80, 96, 128, 256];
/// Head dimensions in a Q8_0 cache are multiples of this: the two halves of a head are rotated together, in blocks of
/// 32.
pub const Q8_0_STEP: usize = 64;
/// Blocks that search one row of logits for its maximum.
const ARGMAX_BLOCKS: usize = 64;
const FLOAT_BYTES: usize = 4;
const ID_BYTES: usize = 4;
/// The position and the number of finished steps, 4 bytes each.
const PROGRESS_BYTES: usize = 8;

/// Units of attention work: key/value heads times the blocks that share the query heads of one, for `length` positions
/// of all sequences.
fn attention_units(heads: &Heads, length: usize) -> usize {
    heads.kv_heads * blocks_per_group(heads) * heads.batch * length
}

fn blocks_per_group(heads: &Heads) -> usize {
    heads.group().div_ceil(HEADS_PER_BLOCK)
}

/// Keys and values of one layer.
#[derive(Clone, Copy)]
pub struct KvCache<'a> {
    pub keys: &'a Buffer,
    pub values: &'a Buffer,
    /// A position attends to this many positions, including itself; `None` attends to all.
    pub window: Option<usize>,
    /// Positions kept for each sequence, in a ring.
    pub slots: usize,
    pub dtype: KvCacheDtype,
    /// Attention sinks: one learned score per head that belongs to no position.
    pub sinks: Option<&'a Buffer>,
}

impl KvCache<'_> {
    fn check(&self, launch: Launch<'_>, heads: &Heads, element: usize) -> Launched {
        heads.check(launch)?;
        let bytes = heads.cache_bytes(self.slots, self.dtype, element);
        launch.require_room("the key cache", self.keys.bytes(), 1, &[bytes])?;
        launch.require_room("the value cache", self.values.bytes(), 1, &[bytes])?;
        launch.require(self.dtype != KvCacheDtype::Q8_0 || heads.dim.is_multiple_of(Q8_0_STEP), || {
            format!("the head dimension {} is not a multiple of {Q8_0_STEP}", heads.dim)
        })?;
        if let Some(sinks) = self.sinks {
            launch.require_room("the sinks", sinks.bytes(), FLOAT_BYTES, &[heads.heads])?;
        }
        let seen = self.window.unwrap_or(heads.capacity).min(heads.capacity);
        Ok(launch.require((1..=self.slots).contains(&seen), || {
            format!("attention needs {seen} positions, and the cache keeps {}", self.slots)
        })?)
    }

    /// 0 means no window. A window as large as the cache has no effect.
    fn window(&self, launch: Launch<'_>, heads: &Heads) -> Result<Arg, CudaError> {
        Ok(launch.arg("the window", self.window.unwrap_or(0).min(heads.capacity))?)
    }

    /// The prefix of the names of kernels that read or write the cache.
    fn prefix(&self) -> &'static str {
        match self.dtype {
            KvCacheDtype::Auto => "",
            KvCacheDtype::Fp8 => "fp8_",
            KvCacheDtype::Q8_0 => "q8_0_",
        }
    }
}

/// Bias, norm and rotation of each head between the projections and the attention.
#[derive(Clone, Copy)]
pub struct HeadTransform<'a> {
    pub bias: Option<&'a Buffer>,
    pub query_norm: Option<&'a Buffer>,
    pub key_norm: Option<&'a Buffer>,
    /// The epsilon of the norms.
    pub eps: f32,
    /// Tables, (capacity, dim / 2).
    pub cosines: &'a Buffer,
    pub sines: &'a Buffer,
}

impl HeadTransform<'_> {
    /// The transform as kernel arguments, in this order.
    fn args(&self) -> [Arg; 6] {
        [
            self.bias.into(),
            self.query_norm.into(),
            self.key_norm.into(),
            self.cosines.into(),
            self.sines.into(),
            Arg::Float(self.eps),
        ]
    }

    fn check(&self, launch: Launch<'_>, heads: &Heads, element: usize) -> Launched {
        let Heads { dim, capacity, .. } = *heads;
        launch.require(dim.is_multiple_of(2), || format!("head dimension {dim} is odd"))?;
        if let Some(bias) = self.bias {
            launch.require_room("the bias", bias.bytes(), element, &[heads.columns()])?;
        }
        for (name, norm) in [("the query norm", self.query_norm), ("the key norm", self.key_norm)] {
            if let Some(norm) = norm {
                launch.require_room(name, norm.bytes(), FLOAT_BYTES, &[dim])?;
            }
        }
        for (name, table) in [("the table of cosines", self.cosines), ("the table of sines", self.sines)] {
            launch.require_room(name, table.bytes(), FLOAT_BYTES, &[capacity, dim / 2])?;
        }
        Ok(())
    }
}

/// A weight matrix of `rows` × `columns`.
pub struct Matrix {
    pub values: Values,
    pub rows: usize,
    pub columns: usize,
}

pub enum Values {
    /// In the model's type.
    Plain(Buffer),
    /// Quantised; parts of different formats, stacked by rows.
    Tiles(Vec<Tiles>),
    /// FP8 (e4m3).
    Fp8(Box<Fp8Matrix>),
}

/// Activations that a matrix is multiplied with, normed first if `norm` is set.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    pub x: Slice<'a>,
    pub norm: Option<Norm<'a>>,
    pub carried: Option<Carried<'a>>,
}

/// The weights of a norm, f32.
#[derive(Clone, Copy)]
pub struct Norm<'a> {
    pub weight: &'a Buffer,
    pub eps: f32,
}

impl<'a> From<Slice<'a>> for Input<'a> {
    fn from(x: Slice<'a>) -> Input<'a> {
        Input { x, norm: None, carried: None }
    }
}

impl<'a> From<&'a Buffer> for Input<'a> {
    fn from(x: &'a Buffer) -> Input<'a> {
        Slice::from(x).into()
    }
}

/// The partial norm of the next operator: the last GEMM of experts, which completes rows of the residual vector, also
/// writes them times the norm's weights, and sums of their squares. So the norm needs no separate kernel.
#[derive(Clone, Copy)]
pub struct Carry<'a> {
    pub weight: &'a Buffer,
    pub scaled: &'a Buffer,
    pub squares: &'a Buffer,
}

/// Rows written by such a GEMM, not yet divided by the root of their mean square.
#[derive(Clone, Copy)]
pub struct Carried<'a> {
    pub squares: &'a Buffer,
    pub eps: f32,
}

/// Numbers of a row whose squares are summed together.
pub const CARRIED_TOGETHER: usize = 8;
/// The number of such sums is a multiple of four.
const CARRIED_STEP: usize = 4 * CARRIED_TOGETHER;
/// Maximum columns of a row: a block has room for the sums of that many.
const MOST_CARRIED: usize = 512 * CARRIED_TOGETHER;

impl Carry<'_> {
    /// The arguments of a kernel that completes `rows` rows of `n`.
    pub fn args(
        carry: Option<Self>,
        launch: Launch<'_>,
        element: usize,
        (rows, n): (usize, usize),
    ) -> Result<[Arg; 3], CudaError> {
        let Some(Carry { weight, scaled, squares }) = carry else { return Ok([Arg::NULL; 3]) };
        launch
            .require(n.is_multiple_of(CARRIED_STEP), || format!("a norm cannot be fused for {n} columns"))?;
        launch.require_room("the norm", weight.bytes(), FLOAT_BYTES, &[n])?;
        launch.require_room("the scaled rows", scaled.bytes(), element, &[rows, n])?;
        launch.require_room("the squares", squares.bytes(), FLOAT_BYTES, &[rows, n / CARRIED_TOGETHER])?;
        Ok([weight.into(), scaled.into(), squares.into()])
    }
}

impl Carried<'_> {
    /// The arguments of a kernel that multiplies `rows` rows of `k`: sums, their number in a row, and the norm's epsilon.
    pub fn args(
        carried: Option<Self>,
        launch: Launch<'_>,
        (rows, k): (usize, usize),
    ) -> Result<[Arg; 3], CudaError> {
        let Some(Carried { squares, eps }) = carried else {
            return Ok([Arg::NULL, Arg::Int(0), Arg::Float(0.0)]);
        };
        let blocks = k / CARRIED_TOGETHER;
        let fits = k.is_multiple_of(CARRIED_STEP) && k <= MOST_CARRIED;
        launch.require(fits, || format!("a norm cannot be fused for {k} columns"))?;
        launch.require_room("the squares", squares.bytes(), FLOAT_BYTES, &[rows, blocks])?;
        Ok([squares.into(), launch.arg("the sums of a row", blocks)?, Arg::Float(eps)])
    }
}

impl Norm<'_> {
    /// The arguments of a kernel for rows of `k`.
    pub fn args(norm: Option<Self>, launch: Launch<'_>, k: usize) -> Result<[Arg; 2], CudaError> {
        if let Some(norm) = norm {
            launch.require_room("the norm", norm.weight.bytes(), FLOAT_BYTES, &[k])?;
        }
        Ok([norm.map(|norm| norm.weight).into(), Arg::Float(norm.map_or(0.0, |norm| norm.eps))])
    }
}

/// Launches the kernels of one number type.
pub struct Kernels {
    pub gpu: Gpu,
    pub dtype: Dtype,
    /// The activation function of the gate.
    pub activation: Activation,
    /// Memory for GEMMs of quantised weights.
    pub scratch: Option<Scratch>,
}

impl Kernels {
    pub(super) fn name(&self, kernel: &str) -> String {
        format!("{kernel}_{}", self.dtype.name())
    }

    fn element_bytes(&self) -> usize {
        self.dtype.bytes() as usize
    }

    /// Copies the rows of the table selected by `rows` ids, times `scale`.
    ///
    /// # Safety
    /// The ids are below the number of the table's rows.
    pub unsafe fn embed(
        &self,
        out: &Buffer,
        table: &Matrix,
        ids: &Buffer,
        rows: usize,
        scale: f32,
    ) -> Launched {
        let (name, element) = (self.name("embed"), self.element_bytes());
        let launch = Launch::new(&name);
        let values = match &table.values {
            Values::Plain(values) => values,
            Values::Fp8(_) => return Err(launch.error("an embedding table cannot be FP8".to_owned()).into()),
            Values::Tiles(parts) => {
                launch.require(parts.len() == 1, || "an embedding table must have one format".to_owned())?;
                // SAFETY: as the caller guarantees.
                return unsafe { self.embed_quantised(out, &parts[0], ids, rows, scale) };
            }
        };
        launch.require_room("the output", out.bytes(), element, &[rows, table.columns])?;
        launch.require_room("the table", values.bytes(), element, &[table.rows, table.columns])?;
        launch.require_room("the ids", ids.bytes(), ID_BYTES, &[rows])?;
        let columns = launch.arg("columns", table.columns)?;
        let args = [out.into(), values.into(), ids.into(), columns, Arg::Float(scale)];
        // The kernel waits for all kernels of the previous step: attention relies on that.
        // SAFETY: the kernel's parameters, on buffers of these sizes; the caller guarantees the ids.
        unsafe { self.gpu.launch(launch, Shape::plain((rows, 1, 1), 256), &args) }
    }

    /// Norms `rows` rows of `n`; row i of the result is row i·every + first of x.
    pub fn rms_norm(
        &self,
        out: &Buffer,
        x: &Buffer,
        weight: &Buffer,
        size: (usize, usize),
        eps: f32,
        selection: (usize, usize),
    ) -> Launched {
        self.norm([out, x, weight], None, size, eps, selection)
    }

    /// to += norm(x), of `rows` rows of `n`.
    pub fn add_normed(
        &self,
        to: &Buffer,
        x: &Buffer,
        weight: &Buffer,
        size: (usize, usize),
        eps: f32,
    ) -> Launched {
        self.norm([to, x, weight], Some(to), size, eps, (1, 0))
    }

    fn norm(
        &self,
        [out, x, weight]: [&Buffer; 3],
        residual: Option<&Buffer>,
        (rows, n): (usize, usize),
        eps: f32,
        (every, first): (usize, usize),
    ) -> Launched {
        let (name, element) = (self.name("rms_norm"), self.element_bytes());
        let launch = Launch::new(&name);
        launch.require_room("the output", out.bytes(), element, &[rows, n])?;
        let last = rows.saturating_sub(1).checked_mul(every).and_then(|row| row.checked_add(first));
        launch.require_room("x", x.bytes(), element, &[last.unwrap_or(usize::MAX).saturating_add(1), n])?;
        launch.require_room("the weight", weight.bytes(), FLOAT_BYTES, &[n])?;
        let args = [
            out.into(),
            x.into(),
            weight.into(),
            residual.into(),
            launch.arg("columns", n)?,
            Arg::Float(eps),
            launch.arg("the row stride", every)?,
            launch.arg("the first row", first)?,
        ];
        let threads = n.div_ceil(8).next_multiple_of(32).clamp(64, 512);
        // SAFETY: the kernel's parameters, on buffers of these sizes; the residual is the output.
        unsafe { self.gpu.launch(launch, Shape::early((rows, 1, 1), threads), &args) }
    }

    /// y = x·wᵀ (+ bias), or y += if `add`. x has `rows` rows.
    ///
    /// The input may have a norm only if [`fuses_norm`](Self::fuses_norm) is true.
    pub fn linear<'a>(
        &'a self,
        y: impl Into<Slice<'a>>,
        x: impl Into<Input<'a>>,
        w: &'a Matrix,
        rows: usize,
        bias: Option<&Buffer>,
        add: bool,
    ) -> Launched {
        let (y, Input { x, norm, carried }) = (y.into(), x.into());
        let of = |values| self.product(y, x, values, (w.rows, w.columns), rows, self.dtype, add);
        let product = match &w.values {
            Values::Plain(values) => {
                let product = of(values.into());
                if self.is_skinny(&product) && norm.is_none() {
                    return self.skinny("skinny", &product, bias, None, carried);
                }
                product
            }
            Values::Tiles(parts) if rows <= MOST_ROWS => {
                // Its w is not used: tiles have their own pointers.
                return self.quantised_linear(&of(y), parts, bias, norm);
            }
            Values::Tiles(parts) => of(self.dequantised(w, parts)?),
            Values::Fp8(matrix) if self.fp8_rows(rows) => {
                return self.fp8_linear(&of(y), matrix, bias, None);
            }
            Values::Fp8(matrix) => of(self.fp8_plain(matrix)?),
        };
        let is_normed = norm.is_none() && carried.is_none();
        Launch::new("the GEMM").require(is_normed, || "the norm of its input cannot be fused".to_owned())?;
        self.gpu.multiply(&product)?;
        let Some(bias) = bias else { return Ok(()) };
        let name = self.name("add_bias");
        let launch = Launch::new(&name);
        launch.require_room("the bias", bias.bytes(), self.element_bytes(), &[w.rows])?;
        let args = [product.y.into(), bias.into(), Arg::size(rows), launch.arg("columns", w.rows)?];
        // SAFETY: the kernel's parameters; the GEMM has checked the size of y.
        unsafe { self.gpu.launch(launch, self.spread(rows * w.rows), &args) }
    }

    /// The last GEMM of a step, with f32 results.
    pub fn logits<'a>(&self, y: &Buffer, x: impl Into<Input<'a>>, w: &Matrix, rows: usize) -> Launched {
        let Input { x, norm, carried } = x.into();
        let (n, k) = (w.rows, w.columns);
        let values = match &w.values {
            Values::Plain(values) => values,
            Values::Fp8(_) => {
                return Err(Launch::new("logits")
                    .error("there is no FP8 kernel for the LM head".to_owned())
                    .into());
            }
            // The dequantised matrix would be large.
            Values::Tiles(parts) => {
                for first in (0..rows).step_by(MOST_ROWS) {
                    let y = y.slice_from(first * n * FLOAT_BYTES);
                    let x = x.after(first * k * self.element_bytes());
                    let count = MOST_ROWS.min(rows - first);
                    let product = self.product(y, x, y, (n, k), count, Dtype::F32, false);
                    self.quantised_linear(&product, parts, None, norm)?;
                }
                return Ok(());
            }
        };
        let product = self.product(y.into(), x, values.into(), (n, k), rows, Dtype::F32, false);
        Launch::new("the GEMM")
            .require(norm.is_none(), || "the norm of its input cannot be fused".to_owned())?;
        if self.is_skinny(&product) {
            let kernel = if self.dtype == Dtype::F32 { "skinny" } else { "skinny_logits" };
            return self.skinny(kernel, &product, None, None, carried);
        }
        self.gpu.multiply(&product)
    }

    /// Whether a GEMM of `rows` rows with `w` computes the norm of its input itself.
    pub fn fuses_norm(&self, rows: usize, w: &Matrix) -> bool {
        rows <= MOST_ROWS && matches!(w.values, Values::Tiles(_))
    }

    /// Whether a GEMM of `rows` rows with `w` accepts rows with a partial norm ([`Carried`]).
    pub fn takes_carried(&self, rows: usize, w: &Matrix) -> bool {
        let fits = w.columns.is_multiple_of(CARRIED_STEP) && w.columns <= MOST_CARRIED;
        fits && self.dtype != Dtype::F32 && rows <= FEW_ROWS && matches!(w.values, Values::Plain(_))
    }

    // Reason: the operands of a GEMM and their sizes.
    #[allow(clippy::too_many_arguments)]
    fn product<'a>(
        &self,
        y: Slice<'a>,
        x: Slice<'a>,
        w: Slice<'a>,
        (n, k): (usize, usize),
        rows: usize,
        out: Dtype,
        add: bool,
    ) -> Product<'a> {
        Product { y, x, w, m: rows, n, k, dtype: self.dtype, out, add }
    }

    /// Limits the `count` f32 numbers of x to ±cap.
    pub fn softcap(&self, x: &Buffer, count: usize, cap: f32) -> Launched {
        let launch = Launch::new("softcap");
        launch.require_room("x", x.bytes(), FLOAT_BYTES, &[count])?;
        // SAFETY: the kernel's parameters, on a buffer of this size.
        unsafe { self.gpu.launch(launch, self.spread(count), &[x.into(), Arg::size(count), Arg::Float(cap)]) }
    }

    /// out = activation(gate) · up, of `rows` rows of x. The first half of the rows of `gate_up` belongs to the gate.
    /// With many rows, `wide` holds the results of both GEMMs.
    pub fn gated<'a>(
        &'a self,
        out: &'a Buffer,
        wide: &'a Buffer,
        x: impl Into<Input<'a>>,
        gate_up: &'a Matrix,
        rows: usize,
    ) -> Launched {
        let input = x.into();
        let n = gate_up.rows / 2;
        let activation = self.activation_number();
        let of =
            |values| self.product(out.into(), input.x, values, (n, gate_up.columns), rows, self.dtype, false);
        match &gate_up.values {
            Values::Plain(values) => {
                let product = of(values.into());
                if self.is_skinny(&product) && input.norm.is_none() {
                    return self.skinny("skinny_gated", &product, None, Some(activation), input.carried);
                }
            }
            Values::Fp8(matrix) if self.fp8_rows(rows) => {
                return self.fp8_linear(&of(input.x), matrix, None, Some(activation));
            }
            Values::Fp8(_) => {}
            Values::Tiles(parts) => {
                if let [one] = parts.as_slice()
                    && one.is_gated()
                    && rows <= MOST_ROWS
                {
                    return self.quantised_gated(&of(input.x), one, activation, input.norm);
                }
            }
        }
        self.linear(wide, input, gate_up, rows, None, false)?;
        self.activated(out, wide, rows, n)
    }

    /// The activation's number in kernels.
    pub(super) fn activation_number(&self) -> i32 {
        match self.activation {
            Activation::Silu => 0,
            Activation::GeluTanh => 1,
            Activation::Gelu => 2,
            Activation::SwigluOai => 3,
        }
    }

    /// out = activation(gate) · up, of rows of n gates and n ups.
    pub(super) fn activated(&self, out: &Buffer, wide: &Buffer, rows: usize, n: usize) -> Launched {
        let name = self.name("gated");
        let launch = Launch::new(&name);
        launch.require_room("the output", out.bytes(), self.element_bytes(), &[rows, n])?;
        launch.require_room("gate and up", wide.bytes(), self.element_bytes(), &[rows, n, 2])?;
        let activation = Arg::Int(self.activation_number());
        let args = [out.into(), wide.into(), Arg::size(rows), launch.arg("columns", n)?, activation];
        // SAFETY: the kernel's parameters, on buffers of these sizes.
        unsafe { self.gpu.launch(launch, self.spread(rows * n / 8), &args) }
    }

    /// Whether the built-in GEMM is used: few rows, and columns that are loaded eight at a time.
    fn is_skinny(&self, p: &Product<'_>) -> bool {
        p.m <= FEW_ROWS && (self.dtype == Dtype::F32 || p.k.is_multiple_of(8))
    }

    /// The built-in GEMM for few rows. With an `activation`, w has n rows of the gate and n rows of up, and y =
    /// activation(gate) · up.
    fn skinny(
        &self,
        kernel: &str,
        p: &Product<'_>,
        bias: Option<&Buffer>,
        activation: Option<i32>,
        carried: Option<Carried<'_>>,
    ) -> Launched {
        let name = match (self.dtype, carried) {
            (Dtype::F32, _) => self.name(kernel),
            (_, None) => self.name(&format!("{kernel}_8")),
            (_, Some(_)) => self.name(&format!("{kernel}_carried_8")),
        };
        let launch = Launch::new(&name);
        let w_rows = if activation.is_some() { p.n.saturating_mul(2) } else { p.n };
        p.check(launch, w_rows)?;
        if self.dtype != Dtype::F32 {
            launch.require_alignment("x", p.x.address(), 16)?;
            launch.require_alignment("w", p.w.address(), 16)?;
        }
        if let Some(bias) = bias {
            launch.require_room("the bias", bias.bytes(), self.element_bytes(), &[p.n])?;
        }
        let mut args = vec![
            p.y.into(),
            p.w.into(),
            p.x.into(),
            bias.into(),
            if p.add { p.y.into() } else { Arg::NULL },
            launch.arg("rows", p.m)?,
            launch.arg("columns", p.n)?,
            launch.arg("k", p.k)?,
            Arg::Int(activation.unwrap_or(0)),
        ];
        if carried.is_some() {
            launch.require(kernel == "skinny" && self.dtype != Dtype::F32, || {
                "the norm of its input cannot be fused".to_owned()
            })?;
            args.extend(Carried::args(carried, launch, (p.m, p.k))?);
        }
        let rows_per_block = if self.dtype == Dtype::F32 || activation.is_some() { 8 } else { 16 };
        let shape = Shape::early((p.n.div_ceil(rows_per_block), 1, 1), 256);
        // SAFETY: the kernel's parameters, on operands of these sizes; `is_skinny` has checked m and k.
        unsafe { self.gpu.launch(launch, shape, &args) }
    }

    /// A grid with enough blocks for `items` in a grid-stride loop.
    pub(super) fn spread(&self, items: usize) -> Shape {
        Shape::early((items.div_ceil(256).clamp(1, self.gpu.multiprocessors * 16), 1, 1), 256)
    }

    /// Bias, norm and rotation of each head; keys and values go to the cache. Rows are `length` positions of each
    /// sequence, starting at the position in `progress`.
    ///
    /// # Safety
    /// The position in `progress` plus `length` is at most the capacity.
    pub unsafe fn rope(
        &self,
        qkv: &Buffer,
        cache: &KvCache<'_>,
        transform: &HeadTransform<'_>,
        progress: &Buffer,
        length: usize,
        heads: &Heads,
    ) -> Launched {
        let (name, element) = (self.name(&format!("{}rope", cache.prefix())), self.element_bytes());
        let launch = Launch::new(&name);
        cache.check(launch, heads, element)?;
        transform.check(launch, heads, element)?;
        launch.require_room("qkv", qkv.bytes(), element, &[heads.batch, length, heads.columns()])?;
        launch.require_room("the progress", progress.bytes(), PROGRESS_BYTES, &[1])?;
        let rows = heads.batch * length;
        // One warp for each head of a row, counted as `int`.
        let warps = rows * (heads.heads + 2 * heads.kv_heads);
        launch.int("the number of warps", warps.next_multiple_of(4))?;
        let [bias, query_norm, key_norm, cosines, sines, eps] = transform.args();
        let args = [
            qkv.into(),
            cache.keys.into(),
            cache.values.into(),
            bias,
            query_norm,
            key_norm,
            cosines,
            sines,
            progress.into(),
            launch.arg("rows", rows)?,
            launch.arg("length", length)?,
            launch.arg("heads", heads.heads)?,
            launch.arg("key/value heads", heads.kv_heads)?,
            launch.arg("the head dimension", heads.dim)?,
            launch.arg("the slots", cache.slots)?,
            eps,
        ];
        // SAFETY: the kernel's parameters, on buffers of these sizes; the caller guarantees the position.
        unsafe { self.gpu.launch(launch, Shape::early((warps.div_ceil(4), 1, 1), 128), &args) }
    }

    /// Copies the unquantised keys and values of a whole prompt from `fresh` to the cache.
    pub fn keep(&self, cache: &KvCache<'_>, fresh: &KvCache<'_>, length: usize, heads: &Heads) -> Launched {
        let (name, element) = (self.name(&format!("{}keep", cache.prefix())), self.element_bytes());
        let launch = Launch::new(&name);
        cache.check(launch, heads, element)?;
        fresh.check(launch, &Heads { capacity: length, ..*heads }, element)?;
        let rows = heads.batch * heads.kv_heads;
        let warps = rows * length.min(cache.slots);
        launch.int("the number of warps", warps.next_multiple_of(4))?;
        for (to, from) in [(cache.keys, fresh.keys), (cache.values, fresh.values)] {
            let args = [
                to.into(),
                from.into(),
                launch.arg("heads", rows)?,
                launch.arg("length", length)?,
                launch.arg("the slots", cache.slots)?,
                launch.arg("the head dimension", heads.dim)?,
            ];
            // SAFETY: the kernel's parameters, on buffers of these sizes.
            unsafe { self.gpu.launch(launch, Shape::early((warps.div_ceil(4), 1, 1), 128), &args) }?;
        }
        Ok(())
    }

    /// Causal attention of the first `length` positions of each sequence, whose keys and values are
    /// unquantised.
    pub fn prefill_attention(
        &self,
        out: &Buffer,
        qkv: &Buffer,
        cache: &KvCache<'_>,
        length: usize,
        h: &Heads,
    ) -> Launched {
        let tensor_cores = self.has_tensor_core_kernel(h, KvCacheDtype::Auto);
        let for_hopper =
            HopperAttention::for_dim(h.dim).filter(|_| tensor_cores && self.gpu.runs_hopper_kernels());
        let name = match (tensor_cores, for_hopper) {
            (true, Some(_)) => self.name(&format!("prefill_attention_hopper_{}", h.dim)),
            (true, None) => self.name(&format!("prefill_attention_{}", h.dim)),
            (false, _) => self.name("plain_attention"),
        };
        let launch = Launch::new(&name);
        launch.require(cache.dtype == KvCacheDtype::Auto && cache.slots >= length, || {
            format!("{length} positions need an unquantised cache with as many slots")
        })?;
        self.check_attention(launch, [out, qkv], cache, length, h)?;
        let common = attention_args(launch, cache, h)?;
        let length_arg = launch.arg("length", length)?;
        let buffers = [out.into(), qkv.into(), cache.keys.into(), cache.values.into(), length_arg];
        let args = [&buffers[..], &common, &[launch.arg("the head dimension", h.dim)?]].concat();
        let shape = if let Some(HopperAttention { rows, threads, shared_bytes }) = for_hopper {
            // Each multiprocessor takes parts in turn; the grid's third size is the batch.
            let parts = length.div_ceil(rows) * h.heads;
            let blocks = self.gpu.multiprocessors.div_ceil(h.batch).clamp(1, parts);
            Shape { shared_bytes, ..Shape::plain((blocks, 1, h.batch), threads) }
        } else if tensor_cores {
            // As in `prefill_attention.cu`: rows of queries and rows of a tile, padded by eight.
            let (rows, tile) = if h.dim == 256 { (64, 32) } else { (128, 64) };
            let shared_bytes = (rows + 4 * tile) * (h.dim + 8) * 2;
            Shape { shared_bytes, ..Shape::plain((length.div_ceil(rows), h.heads, h.batch), 128) }
        } else {
            Shape::plain((length.div_ceil(4), h.heads, h.batch), 128)
        };
        // SAFETY: the kernel's parameters, on buffers of these sizes.
        unsafe { self.gpu.launch(launch, shape, &args) }
    }

    /// Whether [`decode_attention`](Self::decode_attention) also does the work of [`rope`](Self::rope).
    pub fn rotates_in_attention(&self, heads: &Heads, cache: &KvCache<'_>) -> bool {
        self.has_tensor_core_kernel(heads, cache.dtype)
    }

    /// Attention of `length` new positions of each sequence. Their heads have been transformed and written to the
    /// cache; or, for one position with a `transform`, this kernel does that if
    /// [`rotates_in_attention`](Self::rotates_in_attention) is true.
    ///
    /// # Safety
    /// The position in `progress` plus `length` is at most the capacity.
    // Reason: the operands of a kernel.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn decode_attention(
        &self,
        out: &Buffer,
        qkv: &Buffer,
        cache: &KvCache<'_>,
        transform: Option<&HeadTransform<'_>>,
        splits: &AttentionSplits,
        progress: &Buffer,
        length: usize,
        h: &Heads,
    ) -> Launched {
        let tensor_cores = self.has_tensor_core_kernel(h, cache.dtype);
        let prefix = cache.prefix();
        let name = if tensor_cores {
            let blocks = splits.count * attention_units(h, length);
            let crowded = if blocks > self.gpu.multiprocessors { "crowded_" } else { "" };
            self.name(&format!("{crowded}{prefix}decode_attention_{}", h.dim))
        } else {
            self.name(&format!("{prefix}plain_decode_attention"))
        };
        let launch = Launch::new(&name);
        self.check_attention(launch, [out, qkv], cache, length, h)?;
        launch.require_room("the progress", progress.bytes(), PROGRESS_BYTES, &[1])?;
        launch.require(transform.is_none() || (length == 1 && tensor_cores), || {
            format!("RoPE of {length} positions cannot be fused into this kernel")
        })?;
        let length_arg = launch.arg("length", length)?;
        let common = attention_args(launch, cache, h)?;
        let buffers: [Arg; 4] = [out.into(), qkv.into(), cache.keys.into(), cache.values.into()];
        let (args, shape) = if tensor_cores {
            splits.check(launch, h, length)?;
            let partial: [Arg; 4] =
                [(&splits.parts).into(), (&splits.arrived).into(), progress.into(), length_arg];
            let threads = if h.dim > 128 { 128 } else { 256 };
            let grid = (splits.count, h.kv_heads * blocks_per_group(h), h.batch * length);
            let transformed = match transform {
                Some(transform) => {
                    transform.check(launch, h, self.element_bytes())?;
                    transform.args()
                }
                None => [Arg::NULL, Arg::NULL, Arg::NULL, Arg::NULL, Arg::NULL, Arg::Float(0.0)],
            };
            let args = [&buffers[..], &partial, &common, &transformed].concat();
            let cluster = if self.gpu.has_clusters() { splits.count } else { 0 };
            (args, Shape { cluster, ..Shape::early(grid, threads) })
        } else {
            let dim = launch.arg("the head dimension", h.dim)?;
            let args = [&buffers[..], &[progress.into(), length_arg], &common, &[dim]].concat();
            (args, Shape::early((h.heads, h.batch * length, 1), 256))
        };
        // SAFETY: the kernel's parameters, on buffers of these sizes; the caller guarantees the position.
        unsafe { self.gpu.launch(launch, shape, &args) }
    }

    fn has_tensor_core_kernel(&self, heads: &Heads, cache: KvCacheDtype) -> bool {
        let is_there = match cache {
            KvCacheDtype::Auto => true,
            KvCacheDtype::Fp8 => heads.dim != 80,
            KvCacheDtype::Q8_0 => heads.dim.is_multiple_of(Q8_0_STEP),
        };
        self.dtype != Dtype::F32 && TENSOR_CORE_DIMS.contains(&heads.dim) && is_there
    }

    fn check_attention(
        &self,
        launch: Launch<'_>,
        [out, qkv]: [&Buffer; 2],
        cache: &KvCache<'_>,
        length: usize,
        heads: &Heads,
    ) -> Launched {
        let element = self.element_bytes();
        cache.check(launch, heads, element)?;
        let Heads { batch, capacity, dim, .. } = *heads;
        launch.require((1..=capacity).contains(&length), || {
            format!("{length} positions are not in 1 to {capacity}, the capacity of the cache")
        })?;
        launch.require_room("the output", out.bytes(), element, &[batch, length, heads.heads, dim])?;
        Ok(launch.require_room("qkv", qkv.bytes(), element, &[batch, length, heads.columns()])?)
    }

    /// Writes the index of each row's maximum logit to `tokens` and to the ring, and advances the position.
    pub fn argmax(&self, b: &SamplingBuffers, ring: &Ring, advance: usize) -> Launched {
        let launch = Launch::new("pick_likeliest");
        b.check(launch, ring)?;
        let args = [
            (&b.tokens).into(),
            (&b.logits).into(),
            (&b.parts).into(),
            (&b.arrived).into(),
            (&b.progress).into(),
            ring.ids_pointer(),
            ring.done_pointer(),
            launch.arg("the batch", b.batch)?,
            launch.arg("the vocabulary", b.vocab)?,
            launch.arg("slots", ring.slots())?,
            launch.arg("the advance", advance)?,
        ];
        // SAFETY: the kernel's parameters, on buffers of these sizes.
        unsafe { self.gpu.launch(launch, Shape::early((ARGMAX_BLOCKS, b.batch, 1), 256), &args) }
    }

    /// Like [`argmax`](Self::argmax), with a random draw.
    pub fn sample(
        &self,
        b: &SamplingBuffers,
        ring: &Ring,
        advance: usize,
        p: &SamplingParameters,
    ) -> Launched {
        let launch = Launch::new("draw");
        b.check(launch, ring)?;
        let args = [
            (&b.tokens).into(),
            (&b.logits).into(),
            (&b.progress).into(),
            launch.arg("the vocabulary", b.vocab)?,
            Arg::Float(p.temperature),
            launch.arg("top_k", p.top_k.min(b.vocab))?,
            Arg::Float(p.top_p),
            Arg::U64(p.seed),
        ];
        // SAFETY: the kernel's parameters, on buffers of these sizes.
        unsafe { self.gpu.launch(launch, Shape::early((b.batch, 1, 1), 1024), &args) }?;
        self.finish_step(b, ring, advance)
    }

    /// Copies the sampled tokens to the ring, counts the step, and advances the position.
    pub fn finish_step(&self, b: &SamplingBuffers, ring: &Ring, advance: usize) -> Launched {
        let launch = Launch::new("step_done");
        b.check(launch, ring)?;
        let args = [
            (&b.tokens).into(),
            (&b.progress).into(),
            ring.ids_pointer(),
            ring.done_pointer(),
            launch.arg("the batch", b.batch)?,
            launch.arg("slots", ring.slots())?,
            launch.arg("the advance", advance)?,
        ];
        // SAFETY: the kernel's parameters, on buffers of these sizes.
        unsafe { self.gpu.launch(launch, Shape::early((1, 1, 1), 1), &args) }
    }

    /// Random values for the `rows` × `columns` of `out`, uniform within `spread` of `offset`.
    pub fn synthetic(
        &self,
        out: Slice<'_>,
        key: u64,
        (rows, columns): (usize, usize),
        (offset, spread): (f32, f32),
    ) -> Launched {
        let name = self.name("synthetic");
        let launch = Launch::new(&name);
        launch.require_room("the output", out.bytes(), self.element_bytes(), &[rows, columns])?;
        let args = [
            out.into(),
            Arg::U64(key),
            Arg::size(rows),
            launch.arg("columns", columns)?,
            Arg::Float(offset),
            Arg::Float(spread),
        ];
        let blocks = rows.clamp(1, self.gpu.multiprocessors * 32);
        // SAFETY: the kernel's parameters, on a buffer of this size.
        unsafe { self.gpu.launch(launch, Shape::plain((blocks, 1, 1), 256), &args) }
    }
}

/// Sizes of `prefill_attention_hopper.cu`.
#[derive(Clone, Copy)]
struct HopperAttention {
    /// Queries of a part.
    rows: usize,
    threads: usize,
    shared_bytes: usize,
}

impl HopperAttention {
    fn for_dim(dim: usize) -> Option<HopperAttention> {
        const TILE: usize = 128;
        let groups = match dim {
            64 => 3,
            128 => 2,
            _ => return None,
        };
        // Queries, and two tiles each of keys and values, aligned to 1,024 bytes.
        let shared_bytes = 1024 + (groups * 64 + 4 * TILE) * dim * 2;
        Some(HopperAttention { rows: groups * 64, threads: (groups + 1) * 128, shared_bytes })
    }
}

/// Arguments that all attention kernels take in this order: the sizes of the heads, then how scores are computed.
fn attention_args(launch: Launch<'_>, cache: &KvCache<'_>, h: &Heads) -> Result<[Arg; 7], CudaError> {
    Ok([
        launch.arg("heads", h.heads)?,
        launch.arg("key/value heads", h.kv_heads)?,
        launch.arg("the slots", cache.slots)?,
        cache.window(launch, h)?,
        Arg::Float(h.scale),
        Arg::Float(h.softcap),
        cache.sinks.into(),
    ])
}

/// How the decode attention is divided among blocks, and the buffers for their partial results.
pub struct AttentionSplits {
    count: usize,
    parts: Buffer,
    arrived: Buffer,
}

impl AttentionSplits {
    /// Two blocks for each multiprocessor, if each has enough positions; with clusters, the blocks of a key/value head
    /// form one.
    /// For up to `length` new positions.
    pub fn new(gpu: &Gpu, h: &Heads, length: usize) -> Result<AttentionSplits, CudaError> {
        let of_one = attention_units(h, 1);
        let units = attention_units(h, length);
        let count = match gpu.has_clusters() {
            true => 1 << (2 * gpu.multiprocessors / of_one).clamp(1, CLUSTER_BLOCKS).ilog2(),
            false => (2 * gpu.multiprocessors).div_ceil(of_one).clamp(1, 32).min(h.capacity.div_ceil(128)),
        };
        let floats = units * count * HEADS_PER_BLOCK * (h.dim + 4);
        Ok(AttentionSplits {
            count,
            parts: gpu.alloc("attention", floats * FLOAT_BYTES)?,
            arrived: gpu.zeros("attention", units * 4)?,
        })
    }

    fn check(&self, launch: Launch<'_>, h: &Heads, length: usize) -> Launched {
        let units = attention_units(h, length);
        let floats = [units, self.count, HEADS_PER_BLOCK, h.dim + 4];
        launch.require_room("the partial results", self.parts.bytes(), FLOAT_BYTES, &floats)?;
        Ok(launch.require_room("the counters", self.arrived.bytes(), 4, &[units])?)
    }
}

/// The buffers for sampling tokens.
pub struct SamplingBuffers {
    /// (batch, vocab), f32.
    pub logits: Buffer,
    /// The sampled tokens, which are the next step's input, u32. Always below `vocab`.
    pub tokens: Buffer,
    /// The next position and the number of completed steps.
    pub progress: Buffer,
    parts: Buffer,
    arrived: Buffer,
    pub batch: usize,
    pub vocab: usize,
}

impl SamplingBuffers {
    pub fn new(gpu: &Gpu, batch: usize, vocab: usize) -> Result<SamplingBuffers, CudaError> {
        let what = "choosing tokens";
        Ok(SamplingBuffers {
            logits: gpu.alloc("logits", batch * vocab * FLOAT_BYTES)?,
            tokens: gpu.zeros(what, batch * ID_BYTES)?,
            progress: gpu.zeros(what, PROGRESS_BYTES)?,
            parts: gpu.alloc(what, batch * ARGMAX_BLOCKS * 8)?,
            arrived: gpu.zeros(what, 4)?,
            batch,
            vocab,
        })
    }

    fn check(&self, launch: Launch<'_>, ring: &Ring) -> Launched {
        let SamplingBuffers { batch, vocab, .. } = *self;
        launch.require(ring.batch() == batch, || {
            format!("the ring has {} tokens per step and the batch is {batch}", ring.batch())
        })?;
        launch.require_room("the logits", self.logits.bytes(), FLOAT_BYTES, &[batch, vocab])?;
        launch.require_room("the tokens", self.tokens.bytes(), ID_BYTES, &[batch])?;
        launch.require_room("the progress", self.progress.bytes(), PROGRESS_BYTES, &[1])?;
        launch.require_room("the partial results", self.parts.bytes(), 8, &[batch, ARGMAX_BLOCKS])?;
        Ok(launch.require_room("the counter", self.arrived.bytes(), 4, &[1])?)
    }
}

/// The parameters of a random draw; see [`crate::sampling::Sampling`].
#[derive(Debug, Clone, Copy)]
pub struct SamplingParameters {
    pub temperature: f32,
    /// 0 draws from all tokens.
    pub top_k: usize,
    pub top_p: f32,
    pub seed: u64,
}
