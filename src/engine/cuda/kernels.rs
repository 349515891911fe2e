//! The kernels by name, with the arguments each takes. What a kernel does is said in its `.cu` file.

// Reason: starting a kernel is unsafe; each function here passes what its kernel takes, on buffers of the sizes named.
#![allow(unsafe_code)]

use super::{
    gpu::{Arg, Buffer, Gpu, NONE, Product, Ring, Shape},
    trouble::CudaTrouble,
};
use crate::{config::Dtype, model::spec::Activation};

type Done = Result<(), CudaTrouble>;

/// Rows of activations up to which our own product beats cuBLAS.
pub const FEW_ROWS: usize = 8;
/// Query heads that one block of the decode attention takes.
const HEADS_OF_A_BLOCK: usize = 8;
/// Blocks that share one key/value head where they can work together, as `decode_attention.cu` has it.
const CLUSTER: usize = 8;
/// Head dimensions with tensor-core kernels.
const TENSOR_DIMS: [usize; 5] = [64, 80, 96, 128, 256];
/// Blocks that look for the likeliest token of one sequence.
const PICKING_BLOCKS: usize = 64;

/// Heads and the cache they attend to: (batch, kv_heads, capacity, dim).
#[derive(Debug, Clone, Copy)]
pub struct Heads {
    pub heads: usize,
    pub kv_heads: usize,
    pub dim: usize,
    pub batch: usize,
    pub capacity: usize,
    pub scale: f32,
    /// Scores are squeezed into ±cap; 0 leaves them.
    pub softcap: f32,
}

impl Heads {
    /// Columns of queries, keys and values together.
    pub fn columns(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.dim
    }

    fn steps(&self) -> usize {
        (self.heads / self.kv_heads).div_ceil(HEADS_OF_A_BLOCK)
    }

    fn on_tensor_cores(&self, dtype: Dtype) -> bool {
        dtype != Dtype::F32 && TENSOR_DIMS.contains(&self.dim)
    }
}

/// Keys and values of one layer.
#[derive(Clone, Copy)]
pub struct Cache<'a> {
    pub keys: &'a Buffer,
    pub values: &'a Buffer,
    /// A position sees this many, itself included; `None` sees all.
    pub window: Option<usize>,
}

/// What is done to each head between the projections and the attention.
#[derive(Clone, Copy)]
pub struct Turning<'a> {
    pub bias: Option<&'a Buffer>,
    pub query_norm: Option<&'a Buffer>,
    pub key_norm: Option<&'a Buffer>,
    /// Of the norms.
    pub eps: f32,
    /// Tables, (capacity, dim / 2).
    pub cosines: &'a Buffer,
    pub sines: &'a Buffer,
}

/// A weight matrix of `rows` × `columns`.
pub struct Matrix {
    pub values: Buffer,
    pub rows: usize,
    pub columns: usize,
}

/// Starts kernels of one number type.
pub struct Kernels {
    pub gpu: Gpu,
    pub dtype: Dtype,
    /// What the gate goes through.
    pub activation: Activation,
}

impl Kernels {
    fn name(&self, kernel: &str) -> String {
        format!("{kernel}_{}", self.dtype.name())
    }

    /// Looks `rows` ids up in the table.
    pub fn embed(&self, out: &Buffer, table: &Matrix, ids: &Buffer, rows: usize, scale: f32) -> Done {
        let args = [out.into(), (&table.values).into(), ids.into(), table.columns.into(), scale.into()];
        // SAFETY: as the kernel takes them; ids are below the table's rows.
        unsafe { self.gpu.launch(&self.name("embed"), Shape::early((rows, 1, 1), 256), &args) }
    }

    /// Norms `rows` rows of `n`; row i of the result is row i·every + first of x.
    pub fn rms_norm(
        &self,
        out: &Buffer,
        x: &Buffer,
        weight: &Buffer,
        size: (usize, usize),
        eps: f32,
        (every, first): (usize, usize),
    ) -> Done {
        let rest = [eps.into(), every.into(), first.into()];
        self.normed([out.into(), x.into(), weight.into(), NONE], size, rest)
    }

    /// to += norm(x), of `rows` rows of `n`.
    pub fn add_normed(
        &self,
        to: &Buffer,
        x: &Buffer,
        weight: &Buffer,
        size: (usize, usize),
        eps: f32,
    ) -> Done {
        let every_row = [eps.into(), 1usize.into(), 0usize.into()];
        self.normed([to.into(), x.into(), weight.into(), to.into()], size, every_row)
    }

    fn normed(&self, places: [Arg; 4], (rows, n): (usize, usize), rest: [Arg; 3]) -> Done {
        let args = [&places[..], &[n.into()], &rest].concat();
        let threads = n.div_ceil(8).next_multiple_of(32).clamp(64, 512);
        // SAFETY: as the kernel takes them.
        unsafe { self.gpu.launch(&self.name("rms_norm"), Shape::early((rows, 1, 1), threads), &args) }
    }

    /// y = x·wᵀ (+ bias), or y += where `add`. x has `rows` rows.
    pub fn linear(
        &self,
        y: &Buffer,
        x: &Buffer,
        w: &Matrix,
        rows: usize,
        bias: Option<&Buffer>,
        add: bool,
    ) -> Done {
        self.linear_at(y.into(), x.into(), w, rows, bias, add)
    }

    /// As [`linear`](Self::linear), on rows within larger buffers.
    pub fn linear_at(
        &self,
        y: Arg,
        x: Arg,
        w: &Matrix,
        rows: usize,
        bias: Option<&Buffer>,
        add: bool,
    ) -> Done {
        let (n, k) = (w.rows, w.columns);
        if self.is_skinny(rows, k) {
            let residual = if add { y } else { NONE };
            let args = [
                y,
                (&w.values).into(),
                x,
                bias.into(),
                residual,
                rows.into(),
                n.into(),
                k.into(),
                0usize.into(),
            ];
            // SAFETY: as the kernel takes them.
            return unsafe { self.gpu.launch(&self.skinny("skinny"), self.skinny_shape(n, 16), &args) };
        }
        let (dtype, w) = (self.dtype, (&w.values).into());
        // SAFETY: sizes are those of the matrix and of the rows the caller has room for.
        unsafe { self.gpu.multiply(Product { y, x, w, m: rows, n, k, dtype, out: dtype, add }) }?;
        let Some(bias) = bias else { return Ok(()) };
        let args = [y, bias.into(), (rows as u64).into(), n.into()];
        // SAFETY: as the kernel takes them.
        unsafe { self.gpu.launch(&self.name("add_bias"), self.spread(rows * n), &args) }
    }

    /// The last product of a step: f32 out.
    pub fn logits(&self, y: &Buffer, x: &Buffer, w: &Matrix, rows: usize) -> Done {
        let (n, k) = (w.rows, w.columns);
        if self.is_skinny(rows, k) {
            let args: [Arg; 9] = [
                y.into(),
                (&w.values).into(),
                x.into(),
                NONE,
                NONE,
                rows.into(),
                n.into(),
                k.into(),
                0usize.into(),
            ];
            let name =
                if self.dtype == Dtype::F32 { "skinny".to_owned() } else { "skinny_logits".to_owned() };
            // SAFETY: as the kernel takes them.
            return unsafe { self.gpu.launch(&self.skinny(&name), self.skinny_shape(n, 16), &args) };
        }
        let (y, x, w) = (y.into(), x.into(), (&w.values).into());
        // SAFETY: sizes are those of the matrix and of the rows the caller has room for.
        unsafe {
            self.gpu.multiply(Product {
                y,
                x,
                w,
                m: rows,
                n,
                k,
                dtype: self.dtype,
                out: Dtype::F32,
                add: false,
            })
        }
    }

    /// Squeezes the `count` f32 numbers of x into ±cap.
    pub fn softcap(&self, x: &Buffer, count: usize, cap: f32) -> Done {
        let args = [x.into(), (count as u64).into(), cap.into()];
        // SAFETY: as the kernel takes them.
        unsafe { self.gpu.launch("softcap", self.spread(count), &args) }
    }

    /// out = activate(gate) · up, of `rows` rows of x. `gate_up` has the gates' rows first; `wide` takes both products
    /// where there are many rows.
    pub fn gated(&self, out: &Buffer, wide: &Buffer, x: Arg, gate_up: &Matrix, rows: usize) -> Done {
        let (n, k) = (gate_up.rows / 2, gate_up.columns);
        let activation = match self.activation {
            Activation::Silu => 0usize,
            Activation::GeluTanh => 1,
            Activation::Gelu => 2,
        };
        if self.is_skinny(rows, k) {
            let args = [
                out.into(),
                (&gate_up.values).into(),
                x,
                NONE,
                NONE,
                rows.into(),
                n.into(),
                k.into(),
                activation.into(),
            ];
            // SAFETY: as the kernel takes them.
            return unsafe { self.gpu.launch(&self.skinny("skinny_gated"), self.skinny_shape(n, 8), &args) };
        }
        self.linear_at(wide.into(), x, gate_up, rows, None, false)?;
        let args = [out.into(), wide.into(), (rows as u64).into(), n.into(), activation.into()];
        // SAFETY: as the kernel takes them.
        unsafe { self.gpu.launch(&self.name("gated"), self.spread(rows * n / 8), &args) }
    }

    /// Whether our own product takes this one: few rows, and loads of eight columns.
    fn is_skinny(&self, rows: usize, columns: usize) -> bool {
        rows <= FEW_ROWS && (self.dtype == Dtype::F32 || columns.is_multiple_of(8))
    }

    fn skinny(&self, kernel: &str) -> String {
        match self.dtype {
            Dtype::F32 => self.name(kernel),
            _ => format!("{kernel}_8_{}", self.dtype.name()),
        }
    }

    fn skinny_shape(&self, n: usize, rows_of_a_block: usize) -> Shape {
        let of_a_block = if self.dtype == Dtype::F32 { 8 } else { rows_of_a_block };
        Shape::early((n.div_ceil(of_a_block), 1, 1), 256)
    }

    /// Enough blocks for `items` that threads stride over.
    fn spread(&self, items: usize) -> Shape {
        let most = self.gpu.multiprocessors as usize * 16;
        Shape::early((items.div_ceil(256).clamp(1, most), 1, 1), 256)
    }

    /// Bias, norm and rotation of each head; keys and values go to the cache. Rows are `length` positions of each
    /// sequence, from `progress`'s position on.
    pub fn rope(
        &self,
        qkv: &Buffer,
        cache: &Cache<'_>,
        turning: &Turning<'_>,
        progress: &Buffer,
        length: usize,
        heads: &Heads,
    ) -> Done {
        let rows = heads.batch * length;
        let tasks = rows * (heads.heads + 2 * heads.kv_heads);
        let args = [
            qkv.into(),
            cache.keys.into(),
            cache.values.into(),
            turning.bias.into(),
            turning.query_norm.into(),
            turning.key_norm.into(),
            turning.cosines.into(),
            turning.sines.into(),
            progress.into(),
            rows.into(),
            length.into(),
            heads.heads.into(),
            heads.kv_heads.into(),
            heads.dim.into(),
            heads.capacity.into(),
            turning.eps.into(),
        ];
        // SAFETY: as the kernel takes them; positions stay below the capacity.
        unsafe { self.gpu.launch(&self.name("rope"), Shape::early((tasks.div_ceil(4), 1, 1), 128), &args) }
    }

    /// Causal attention of `length` new positions of each sequence, from position 0.
    pub fn prefill_attention(
        &self,
        out: &Buffer,
        qkv: &Buffer,
        cache: &Cache<'_>,
        length: usize,
        h: &Heads,
    ) -> Done {
        let args = [
            out.into(),
            qkv.into(),
            cache.keys.into(),
            cache.values.into(),
            length.into(),
            h.heads.into(),
            h.kv_heads.into(),
            h.capacity.into(),
            cache.window.unwrap_or(0).into(),
            h.scale.into(),
            h.softcap.into(),
            h.dim.into(),
        ];
        let (name, shape) = if h.on_tensor_cores(self.dtype) {
            // As `prefill_attention.cu` has them: rows of queries and of a tile, padded by eight.
            let (rows, tile) = if h.dim == 256 { (64, 32) } else { (128, 64) };
            let shared_bytes = (rows + 4 * tile) * (h.dim + 8) * 2;
            let grid = (length.div_ceil(rows), h.heads, h.batch);
            let name = format!("prefill_attention_{}_{}", h.dim, self.dtype.name());
            (name, Shape { shared_bytes, ..Shape::plain(grid, 128) })
        } else {
            (self.name("plain_attention"), Shape::plain((length.div_ceil(4), h.heads, h.batch), 128))
        };
        // SAFETY: as the kernel takes them; dim is at most 256, checked when the engine was made.
        unsafe { self.gpu.launch(&name, shape, &args) }
    }

    /// Attention of the one new position of each sequence.
    pub fn decode_attention(
        &self,
        out: &Buffer,
        qkv: &Buffer,
        cache: &Cache<'_>,
        splits: &Splits,
        progress: &Buffer,
        h: &Heads,
    ) -> Done {
        let caches: [Arg; 4] = [out.into(), qkv.into(), cache.keys.into(), cache.values.into()];
        let rest: [Arg; 6] = [
            h.heads.into(),
            h.kv_heads.into(),
            h.capacity.into(),
            cache.window.unwrap_or(0).into(),
            h.scale.into(),
            h.softcap.into(),
        ];
        if h.on_tensor_cores(self.dtype) {
            let shared: [Arg; 3] = [(&splits.parts).into(), (&splits.arrived).into(), progress.into()];
            let blocks = splits.count * h.kv_heads * h.steps() * h.batch;
            let crowded = if blocks > self.gpu.multiprocessors as usize { "crowded_" } else { "" };
            let name = format!("{crowded}decode_attention_{}_{}", h.dim, self.dtype.name());
            let threads = if h.dim > 128 { 128 } else { 256 };
            let shape = Shape::early((splits.count, h.kv_heads * h.steps(), h.batch), threads);
            // SAFETY: as the kernel takes them.
            return unsafe { self.gpu.launch(&name, shape, &[&caches[..], &shared, &rest].concat()) };
        }
        let args = [&caches[..], &[progress.into()], &rest, &[h.dim.into()]].concat();
        let shape = Shape::early((h.heads, h.batch, 1), 256);
        // SAFETY: as the kernel takes them; dim is at most 256.
        unsafe { self.gpu.launch(&self.name("plain_decode_attention"), shape, &args) }
    }

    /// The likeliest token of each row of logits goes to `tokens` and to the ring, and the position moves on.
    pub fn pick_likeliest(&self, p: &Picking, ring: &Ring, advance: usize) -> Done {
        let args = [
            (&p.tokens).into(),
            (&p.logits).into(),
            (&p.parts).into(),
            (&p.arrived).into(),
            (&p.progress).into(),
            ring.ids_at(),
            ring.done_at(),
            p.batch.into(),
            p.vocab.into(),
            ring.slots().into(),
            advance.into(),
        ];
        // SAFETY: as the kernel takes them.
        unsafe { self.gpu.launch("pick_likeliest", Shape::early((PICKING_BLOCKS, p.batch, 1), 256), &args) }
    }

    /// As [`pick_likeliest`](Self::pick_likeliest), drawn among the likely ones.
    pub fn draw(&self, p: &Picking, ring: &Ring, advance: usize, odds: &Odds) -> Done {
        let args = [
            (&p.tokens).into(),
            (&p.logits).into(),
            (&p.progress).into(),
            p.vocab.into(),
            odds.temperature.into(),
            odds.top_k.into(),
            odds.top_p.into(),
            odds.seed.into(),
        ];
        // SAFETY: as the kernel takes them.
        unsafe { self.gpu.launch("draw", Shape::early((p.batch, 1, 1), 1024), &args) }?;
        self.step_done(p, ring, advance)
    }

    /// Counts a step whose tokens are in place.
    pub fn step_done(&self, p: &Picking, ring: &Ring, advance: usize) -> Done {
        let args = [
            (&p.tokens).into(),
            (&p.progress).into(),
            ring.ids_at(),
            ring.done_at(),
            p.batch.into(),
            ring.slots().into(),
            advance.into(),
        ];
        // SAFETY: as the kernel takes them.
        unsafe { self.gpu.launch("step_done", Shape::early((1, 1, 1), 1), &args) }
    }

    /// Random values for the `rows` × `columns` at `at`, uniform within `spread` of `offset`.
    pub fn synthetic(
        &self,
        at: Arg,
        key: u64,
        (rows, columns): (usize, usize),
        (offset, spread): (f32, f32),
    ) -> Done {
        let args = [at, key.into(), (rows as u64).into(), columns.into(), offset.into(), spread.into()];
        let blocks = rows.clamp(1, self.gpu.multiprocessors as usize * 32);
        // SAFETY: as the kernel takes them.
        unsafe { self.gpu.launch(&self.name("synthetic"), Shape::plain((blocks, 1, 1), 256), &args) }
    }
}

/// How the decode attention is shared out over blocks, and where they put their parts.
pub struct Splits {
    count: usize,
    parts: Buffer,
    arrived: Buffer,
}

impl Splits {
    /// A cluster; or two blocks for each multiprocessor, as long as each has positions enough to be worth it.
    pub fn new(gpu: &Gpu, h: &Heads) -> Result<Splits, CudaTrouble> {
        let units = h.kv_heads * h.steps() * h.batch;
        let fair = (2 * gpu.multiprocessors as usize).div_ceil(units);
        let count = match gpu.has_clusters() {
            true => CLUSTER,
            false => fair.clamp(1, 32).min(h.capacity.div_ceil(128)),
        };
        let floats = units * count * HEADS_OF_A_BLOCK * (h.dim + 4);
        Ok(Splits {
            count,
            parts: gpu.alloc("attention", floats * 4)?,
            arrived: gpu.zeros("attention", units * 4)?,
        })
    }
}

/// What choosing tokens works on.
pub struct Picking {
    /// (batch, vocab), f32.
    pub logits: Buffer,
    /// The next step's input, u32.
    pub tokens: Buffer,
    /// The next position and the count of steps.
    pub progress: Buffer,
    parts: Buffer,
    arrived: Buffer,
    pub batch: usize,
    pub vocab: usize,
}

impl Picking {
    pub fn new(gpu: &Gpu, batch: usize, vocab: usize) -> Result<Picking, CudaTrouble> {
        let what = "choosing tokens";
        Ok(Picking {
            logits: gpu.alloc("logits", batch * vocab * 4)?,
            tokens: gpu.zeros(what, batch * 4)?,
            progress: gpu.zeros(what, 8)?,
            parts: gpu.alloc(what, batch * PICKING_BLOCKS * 8)?,
            arrived: gpu.zeros(what, 4)?,
            batch,
            vocab,
        })
    }
}

/// Of a draw; see [`crate::engine::sampling::Sampling`].
#[derive(Debug, Clone, Copy)]
pub struct Odds {
    pub temperature: f32,
    /// 0 draws among all.
    pub top_k: usize,
    pub top_p: f32,
    pub seed: u64,
}
