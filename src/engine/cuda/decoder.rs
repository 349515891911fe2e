//! The decoder on a GPU: weights and cache made once, prefill through cuBLAS, decode through our own products.

use super::{
    gpu::{Buffer, Gpu},
    kernels::{Cache, FEW_ROWS, Heads, Kernels, Matrix, Picking, Splits, Turning},
    trouble::CudaTrouble,
};
use crate::{
    config::Dtype,
    engine::{
        EngineError, Progress,
        candle::{
            Checkpoint, SyntheticWeights, WeightSource,
            host_values::{HostValues, host_values, widened},
            rope,
        },
    },
    model::{ModelSpec, Operator, spec::TensorShape},
    profile::listener::Listeners,
};

/// Rows of a prefill that go through the MLP at a time: its activations are the widest by far.
const MLP_ROWS: usize = 4096;

pub struct Decoder {
    pub kernels: Kernels,
    spec: ModelSpec,
    heads: Heads,
    embedding: Matrix,
    /// None where the embedding serves.
    head: Option<Matrix>,
    norm: Buffer,
    layers: Vec<Layer>,
    rope: Tables,
    /// Of the layers that turn by a base of their own.
    local_rope: Option<Tables>,
    embedding_scale: f32,
    splits: Splits,
    pub picking: Picking,
    space: Space,
    /// Who is told of every operator.
    pub listeners: Listeners,
}

/// Cosines and sines, (capacity, head dim / 2) each.
struct Tables {
    cosines: Buffer,
    sines: Buffer,
}

struct Layer {
    input_norm: Buffer,
    qkv: Matrix,
    qkv_bias: Option<Buffer>,
    query_norm: Option<Buffer>,
    key_norm: Option<Buffer>,
    output: Matrix,
    output_bias: Option<Buffer>,
    mlp_norm: Buffer,
    /// Of what attention and MLP give, before it is added.
    post_attention_norm: Option<Buffer>,
    post_mlp_norm: Option<Buffer>,
    gate_up: Matrix,
    down: Matrix,
    keys: Buffer,
    values: Buffer,
    window: Option<usize>,
    is_local: bool,
}

/// Activations of a prefill of `rows` rows, batch and positions together.
struct Space {
    rows: usize,
    ids: Buffer,
    x: Buffer,
    normed: Buffer,
    qkv: Buffer,
    attended: Buffer,
    wide: Buffer,
    activated: Buffer,
}

/// What the decoder needs of the GPU's memory.
#[derive(Debug, Clone, Copy)]
pub struct Footprint {
    pub weight_bytes: u64,
    pub cache_bytes: u64,
    pub workspace_bytes: u64,
}

impl Footprint {
    pub fn new(spec: &ModelSpec, dtype: Dtype, batch: usize, capacity: usize, prompt: usize) -> Footprint {
        let (rows, capacity) = ((batch * prompt) as u64, capacity as u64);
        let (hidden, attended) = (spec.hidden as u64, (spec.heads * spec.head_dim) as u64);
        let qkv = ((spec.heads + 2 * spec.kv_heads) * spec.head_dim) as u64;
        let row = 2 * hidden + qkv + attended;
        let mlp = rows.min(MLP_ROWS as u64) * 3 * spec.intermediate as u64;
        let logits = batch as u64 * spec.vocab as u64 * 4;
        let tables = capacity * spec.head_dim as u64 * 4 * (1 + u64::from(spec.local_rope_theta.is_some()));
        Footprint {
            weight_bytes: spec.weight_bytes(dtype),
            cache_bytes: batch as u64 * capacity * spec.kv_bytes_per_position(dtype),
            workspace_bytes: (rows * row + mlp) * dtype.bytes() + logits + tables + (40 << 20),
        }
    }

    pub fn total_bytes(&self) -> u64 {
        self.weight_bytes + self.cache_bytes + self.workspace_bytes
    }
}

impl Decoder {
    /// Makes the weights from `source`, or at random where there is none, and everything a run of `batch` sequences of
    /// at most `capacity` positions needs, whose prompts have at most `prompt`.
    pub fn new(
        gpu: Gpu,
        spec: &ModelSpec,
        dtype: Dtype,
        source: &Source<'_>,
        (batch, capacity, prompt): (usize, usize, usize),
        progress: Progress<'_>,
    ) -> Result<Decoder, EngineError> {
        let kernels = Kernels { gpu, dtype, activation: spec.activation };
        let gpu = &kernels.gpu;
        let heads = Heads {
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            dim: spec.head_dim,
            batch,
            capacity,
            scale: 1.0 / (spec.score_scalar as f32).sqrt(),
            softcap: spec.score_softcap.map_or(0.0, |cap| cap as f32),
        };
        let tensors = spec.tensors();
        let total = tensors.len() as u64;
        let norm_offset = spec.norm_offset;
        let mut loader = Loader { kernels: &kernels, source, tensors, norm_offset, progress, done: 0, total };
        let embedding = loader.matrix(&["model.embed_tokens.weight"])?;
        let layers =
            (0..spec.layers).map(|i| Layer::new(spec, i, &mut loader, &heads)).collect::<Result<_, _>>()?;
        let norm = loader.norm("model.norm.weight")?;
        let head = if spec.tied_embeddings { None } else { Some(loader.matrix(&["lm_head.weight"])?) };
        let divisors = source.any().rope_divisors()?;
        let rope = Tables::new(gpu, &rope::tables(spec, divisors.as_deref(), capacity)?)?;
        let local_rope =
            rope::local_tables(spec, capacity).map(|tables| Tables::new(gpu, &tables)).transpose()?;
        let splits = Splits::new(gpu, &heads)?;
        let picking = Picking::new(gpu, batch, spec.vocab)?;
        let space = Space::new(gpu, spec, dtype, batch * prompt.max(1), &heads)?;
        gpu.synchronize()?;
        Ok(Decoder {
            spec: spec.clone(),
            heads,
            embedding,
            head,
            norm,
            layers,
            rope,
            local_rope,
            embedding_scale: spec.embedding_scale(dtype),
            splits,
            picking,
            space,
            kernels,
            listeners: Listeners::default(),
        })
    }

    pub fn heads(&self) -> &Heads {
        &self.heads
    }

    /// Most positions of one prompt.
    pub fn longest_prompt(&self) -> usize {
        self.space.rows / self.heads.batch
    }

    /// Starts a sequence: the next position is 0.
    pub fn rewind(&self) -> Result<(), CudaTrouble> {
        self.kernels.gpu.upload(&self.picking.progress, 0, &[0i32])
    }

    /// Reads prompts, sequence after sequence; logits of each sequence's last position are the result.
    pub fn prefill(&self, ids: &[u32]) -> Result<(), CudaTrouble> {
        self.kernels.gpu.upload(&self.space.ids, 0, ids)?;
        self.forward(&self.space.ids, ids.len() / self.heads.batch)
    }

    /// Extends every sequence by the token that was chosen last.
    pub fn decode(&self) -> Result<(), CudaTrouble> {
        self.forward(&self.picking.tokens, 1)
    }

    fn forward(&self, ids: &Buffer, length: usize) -> Result<(), CudaTrouble> {
        let (kernels, spec, space) = (&self.kernels, &self.spec, &self.space);
        let rows = self.heads.batch * length;
        self.listeners.part(Operator::Embedding, None, || {
            kernels.embed(&space.x, &self.embedding, ids, rows, self.embedding_scale)
        })?;
        for (i, layer) in self.layers.iter().enumerate() {
            self.attend(i, layer, length)?;
            self.think(i, layer, rows)?;
        }
        let eps = spec.rms_eps as f32;
        let last = (length, length - 1);
        self.listeners.part(Operator::FinalNorm, None, || {
            let size = (self.heads.batch, spec.hidden);
            kernels.rms_norm(&space.normed, &space.x, &self.norm, size, eps, last)
        })?;
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        let logits = &self.picking.logits;
        self.listeners.part(Operator::LmHead, None, || {
            kernels.logits(logits, &space.normed, head, self.heads.batch)?;
            match spec.logit_softcap {
                Some(cap) => kernels.softcap(logits, self.heads.batch * spec.vocab, cap as f32),
                None => Ok(()),
            }
        })
    }

    /// x += attention(norm(x)), normed once more before it is added where the model does that.
    fn attend(&self, i: usize, layer: &Layer, length: usize) -> Result<(), CudaTrouble> {
        let (kernels, spec, space, heads) = (&self.kernels, &self.spec, &self.space, &self.heads);
        let (rows, eps) = (heads.batch * length, spec.rms_eps as f32);
        let cache = Cache { keys: &layer.keys, values: &layer.values, window: layer.window };
        let rope = self.local_rope.as_ref().filter(|_| layer.is_local).unwrap_or(&self.rope);
        let turning = Turning {
            bias: layer.qkv_bias.as_ref(),
            query_norm: layer.query_norm.as_ref(),
            key_norm: layer.key_norm.as_ref(),
            eps,
            cosines: &rope.cosines,
            sines: &rope.sines,
        };
        let progress = &self.picking.progress;
        let tell = |operator, work: &dyn Fn() -> Result<(), CudaTrouble>| {
            self.listeners.part(operator, Some(i), work)
        };
        let size = (rows, spec.hidden);
        tell(Operator::AttentionNorm, &|| {
            kernels.rms_norm(&space.normed, &space.x, &layer.input_norm, size, eps, (1, 0))
        })?;
        tell(Operator::Qkv, &|| kernels.linear(&space.qkv, &space.normed, &layer.qkv, rows, None, false))?;
        tell(Operator::Rope, &|| kernels.rope(&space.qkv, &cache, &turning, progress, length, heads))?;
        tell(Operator::Attention, &|| match length {
            1 => kernels.decode_attention(&space.attended, &space.qkv, &cache, &self.splits, progress, heads),
            _ => kernels.prefill_attention(&space.attended, &space.qkv, &cache, length, heads),
        })?;
        let bias = layer.output_bias.as_ref();
        let Some(norm) = &layer.post_attention_norm else {
            return tell(Operator::AttentionOutput, &|| {
                kernels.linear(&space.x, &space.attended, &layer.output, rows, bias, true)
            });
        };
        tell(Operator::AttentionOutput, &|| {
            kernels.linear(&space.normed, &space.attended, &layer.output, rows, bias, false)
        })?;
        tell(Operator::PostAttentionNorm, &|| kernels.add_normed(&space.x, &space.normed, norm, size, eps))
    }

    /// x += mlp(norm(x)), normed once more before it is added where the model does that.
    fn think(&self, i: usize, layer: &Layer, rows: usize) -> Result<(), CudaTrouble> {
        let (kernels, spec, space) = (&self.kernels, &self.spec, &self.space);
        let eps = spec.rms_eps as f32;
        let tell = |operator, work: &dyn Fn() -> Result<(), CudaTrouble>| {
            self.listeners.part(operator, Some(i), work)
        };
        let size = (rows, spec.hidden);
        tell(Operator::MlpNorm, &|| {
            kernels.rms_norm(&space.normed, &space.x, &layer.mlp_norm, size, eps, (1, 0))
        })?;
        // Where it is normed first, the result takes the place of the rows it was made of.
        let (to, add) = match layer.post_mlp_norm {
            Some(_) => (&space.normed, false),
            None => (&space.x, true),
        };
        let row_bytes = spec.hidden * kernels.dtype.bytes() as usize;
        for first in (0..rows).step_by(MLP_ROWS) {
            let count = MLP_ROWS.min(rows - first);
            let at = first * row_bytes;
            tell(Operator::GateUp, &|| {
                kernels.gated(&space.activated, &space.wide, space.normed.at(at), &layer.gate_up, count)
            })?;
            tell(Operator::Down, &|| {
                kernels.linear_at(to.at(at), (&space.activated).into(), &layer.down, count, None, add)
            })?;
        }
        match &layer.post_mlp_norm {
            Some(norm) => {
                tell(Operator::PostMlpNorm, &|| kernels.add_normed(&space.x, &space.normed, norm, size, eps))
            }
            None => Ok(()),
        }
    }
}

impl Tables {
    fn new(gpu: &Gpu, (cosines, sines): &rope::Tables) -> Result<Tables, CudaTrouble> {
        let table = |values: &[f32]| -> Result<Buffer, CudaTrouble> {
            let buffer = gpu.alloc("rotary tables", size_of_val(values))?;
            gpu.upload(&buffer, 0, values)?;
            Ok(buffer)
        };
        Ok(Tables { cosines: table(cosines)?, sines: table(sines)? })
    }
}

impl Layer {
    fn new(spec: &ModelSpec, i: usize, loader: &mut Loader<'_>, heads: &Heads) -> Result<Layer, EngineError> {
        let name = |part: &str| format!("model.layers.{i}.{part}");
        let qkv = loader.matrix(&spec.qkv_names(i, "weight"))?;
        let qkv_bias = match spec.qkv_bias {
            true => Some(loader.bias(&spec.qkv_names(i, "bias"))?),
            false => None,
        };
        let mut norm_of = |part: &str| match spec.qk_norm {
            true => loader.norm(&name(part)).map(Some),
            false => Ok(None),
        };
        let (query_norm, key_norm) =
            (norm_of("self_attn.q_norm.weight")?, norm_of("self_attn.k_norm.weight")?);
        let [post_attention_norm, post_mlp_norm] = match spec.post_norm_names() {
            Some([attention, mlp]) => [Some(loader.norm(&name(attention))?), Some(loader.norm(&name(mlp))?)],
            None => [None, None],
        };
        let gpu = &loader.kernels.gpu;
        let cache_bytes =
            heads.batch * heads.kv_heads * heads.capacity * heads.dim * loader.kernels.dtype.bytes() as usize;
        let (keys, values) = (gpu.zeros("the cache", cache_bytes)?, gpu.zeros("the cache", cache_bytes)?);
        Ok(Layer {
            input_norm: loader.norm(&name("input_layernorm.weight"))?,
            qkv,
            qkv_bias,
            query_norm,
            key_norm,
            output: loader.matrix(&[&name("self_attn.o_proj.weight")])?,
            output_bias: match spec.output_bias {
                true => Some(loader.bias(&[&name("self_attn.o_proj.bias")])?),
                false => None,
            },
            mlp_norm: loader.norm(&name(spec.mlp_norm_name()))?,
            post_attention_norm,
            post_mlp_norm,
            gate_up: loader.matrix(&spec.gate_up_names(i))?,
            down: loader.matrix(&[&name("mlp.down_proj.weight")])?,
            keys,
            values,
            window: spec.window_of_layer(i),
            is_local: spec.is_local(i),
        })
    }
}

impl Space {
    fn new(
        gpu: &Gpu,
        spec: &ModelSpec,
        dtype: Dtype,
        rows: usize,
        heads: &Heads,
    ) -> Result<Space, CudaTrouble> {
        let floats = |count: usize| gpu.alloc("activations", count * dtype.bytes() as usize);
        let mlp_rows = rows.min(MLP_ROWS);
        // Where our own product makes gate and up in one, the two are never written.
        let wide_rows = if mlp_rows > FEW_ROWS || !spec.hidden.is_multiple_of(8) { mlp_rows } else { 0 };
        Ok(Space {
            rows,
            ids: gpu.alloc("activations", rows * 4)?,
            x: floats(rows * spec.hidden)?,
            normed: floats(rows * spec.hidden)?,
            qkv: floats(rows * heads.columns())?,
            attended: floats(rows * heads.heads * heads.dim)?,
            wide: floats(wide_rows * 2 * spec.intermediate)?,
            activated: floats(mlp_rows * spec.intermediate)?,
        })
    }
}

/// Where weights come from.
pub enum Source<'a> {
    Synthetic(SyntheticWeights),
    Checkpoint(&'a Checkpoint),
}

impl Source<'_> {
    fn any(&self) -> &dyn WeightSource {
        match self {
            Source::Synthetic(weights) => weights,
            Source::Checkpoint(checkpoint) => *checkpoint,
        }
    }
}

struct Loader<'a> {
    kernels: &'a Kernels,
    source: &'a Source<'a>,
    tensors: Vec<TensorShape>,
    norm_offset: f32,
    progress: Progress<'a>,
    done: u64,
    total: u64,
}

impl Loader<'_> {
    /// The shapes of named tensors; tells of the progress.
    fn shapes(&mut self, names: &[impl AsRef<str>]) -> Result<Vec<TensorShape>, EngineError> {
        let shapes: Vec<TensorShape> = names
            .iter()
            .map(|name| {
                let name = name.as_ref();
                let found = self.tensors.iter().find(|tensor| tensor.name == name);
                found.cloned().ok_or_else(|| EngineError::Backend(format!("the model has no tensor {name}")))
            })
            .collect::<Result<_, _>>()?;
        self.done += names.len() as u64;
        if !(self.progress)(names[0].as_ref(), self.done, self.total) {
            return Err(EngineError::Cancelled);
        }
        Ok(shapes)
    }

    /// The named matrices, one below the other.
    fn matrix(&mut self, names: &[impl AsRef<str>]) -> Result<Matrix, EngineError> {
        let shapes = self.shapes(names)?;
        let (kernels, dtype) = (self.kernels, self.kernels.dtype);
        let rows = shapes.iter().map(|shape| shape.shape[0]).sum();
        let columns = shapes[0].shape[1];
        let row_bytes = columns * dtype.bytes() as usize;
        let values = kernels.gpu.alloc("the weights", rows * row_bytes)?;
        match self.source {
            Source::Synthetic(weights) => {
                let mut first = 0;
                for shape in &shapes {
                    let (key, spread) = weights.recipe(shape);
                    kernels.synthetic(
                        values.at(first * row_bytes),
                        key,
                        (shape.shape[0], columns),
                        spread,
                    )?;
                    first += shape.shape[0];
                }
            }
            Source::Checkpoint(checkpoint) => {
                self.upload(&values, &host_values(*checkpoint, &shapes, dtype)?)?;
            }
        }
        Ok(Matrix { values, rows, columns })
    }

    /// The named vectors, one after the other, in the model's own type.
    fn bias(&mut self, names: &[impl AsRef<str>]) -> Result<Buffer, EngineError> {
        let shapes = self.shapes(names)?;
        let values = host_values(self.source.any(), &shapes, self.kernels.dtype)?;
        let len: usize = shapes.iter().map(|shape| shape.shape[0]).sum();
        let buffer = self.kernels.gpu.alloc("the weights", len * self.kernels.dtype.bytes() as usize)?;
        self.upload(&buffer, &values)?;
        Ok(buffer)
    }

    fn upload(&self, to: &Buffer, values: &HostValues) -> Result<(), CudaTrouble> {
        match values {
            HostValues::F32(values) => self.kernels.gpu.upload(to, 0, values),
            HostValues::F16(values) => self.kernels.gpu.upload(to, 0, values),
            HostValues::Bf16(values) => self.kernels.gpu.upload(to, 0, values),
        }
    }

    /// A norm's weights, as they are multiplied with: f32, from the values they have in the model's type.
    fn norm(&mut self, name: &str) -> Result<Buffer, EngineError> {
        let shapes = self.shapes(&[name])?;
        let mut values = widened(self.source.any(), &shapes, self.kernels.dtype)?;
        values.iter_mut().for_each(|weight| *weight += self.norm_offset);
        let buffer = self.kernels.gpu.alloc("the weights", values.len() * 4)?;
        self.kernels.gpu.upload(&buffer, 0, &values)?;
        Ok(buffer)
    }
}
