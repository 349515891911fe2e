//! The decoder on a GPU: weights and cache are allocated once; prefill uses cuBLAS, decode the built-in GEMMs.

// Reason: some kernels rely on token ids and positions in device memory, which this file keeps within their ranges.
#![allow(unsafe_code)]

use std::{cell::OnceCell, collections::HashMap};

use super::{
    error::CudaError,
    experts::{Biases, EXPERT_ROWS, ExpertLayer, PLAIN_BYTES, Routed, ordered_rows, routed_bytes},
    few_rows::{Scratch, ordered_bytes},
    fp8::Fp8Matrix,
    gpu::{Buffer, Gpu},
    kernels::{
        AttentionSplits, CARRIED_TOGETHER, Carried, Carry, FEW_ROWS, HeadTransform, Input, Kernels, KvCache,
        Matrix, Norm, SamplingBuffers, Values,
    },
    layers::{FusedLayer, FusedLayers, Instance},
    quantised::Tiles,
    sizes::Sizes,
};
use crate::{
    candle::{
        CandleResult,
        memory::{Footprint, product},
        rope,
    },
    kv::KvShape,
    launch::{Heads, Launch},
    routing::Tally,
    weights::{Checkpoint, SyntheticWeights, Values as HostValues, WeightSource},
};
use llm_cost::{
    ModelSpec, Operator,
    spec::{Experts, TensorShape},
};
use llmprof_config::{Dtype, KvCacheDtype};
use llmprof_workload::{EngineError, PrepareStep, Progress, listener::Listeners};

/// Prefill rows that go through the MLP at a time: its activations are the widest.
const MLP_ROWS: usize = 4096;
/// Memory reserved for cuBLAS, code and the driver.
const RESERVE_BYTES: u64 = 40 << 20;

pub struct Decoder {
    pub kernels: Kernels,
    spec: ModelSpec,
    heads: Heads,
    embedding: Matrix,
    /// `None` if the embedding is also the head.
    head: Option<Matrix>,
    norm: Buffer,
    layers: Vec<Layer>,
    /// One kernel for the layers of a decode step.
    fused: Option<FusedLayers>,
    rope: Tables,
    /// Rotary tables of the layers that have their own base.
    local_rope: Option<Tables>,
    embedding_scale: f32,
    kv_cache: KvCacheDtype,
    splits: AttentionSplits,
    pub sampling: SamplingBuffers,
    activations: Activations,
    /// Every operator is reported to these listeners.
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
    sinks: Option<Buffer>,
    output: Matrix,
    output_bias: Option<Buffer>,
    mlp_norm: Buffer,
    /// The norm of the attention result before it is added; `post_mlp_norm` is that of the MLP.
    post_attention_norm: Option<Buffer>,
    post_mlp_norm: Option<Buffer>,
    mlp: Mlp,
    keys: Buffer,
    values: Buffer,
    /// Positions that the caches have room for.
    slots: usize,
    window: Option<usize>,
    is_local: bool,
}

/// New positions of every sequence.
#[derive(Debug, Clone, Copy)]
struct StepShape {
    length: usize,
    /// They are the first positions, and only the last of them gets logits.
    is_prompt: bool,
}

enum Mlp {
    Dense { gate_up: Matrix, down: Matrix },
    Experts(Box<ExpertLayer>),
}

impl Layer {
    /// The layer as the kernel for all layers takes it; `None` with experts.
    fn fused(&self, dtype: KvCacheDtype) -> Option<FusedLayer<'_>> {
        let Mlp::Dense { gate_up, down } = &self.mlp else { return None };
        Some(FusedLayer {
            qkv: &self.qkv,
            bias: self.qkv_bias.as_ref(),
            output: &self.output,
            gate_up,
            down,
            input_norm: &self.input_norm,
            mlp_norm: &self.mlp_norm,
            query_norm: self.query_norm.as_ref(),
            key_norm: self.key_norm.as_ref(),
            cache: self.kept(dtype),
        })
    }

    fn kept(&self, dtype: KvCacheDtype) -> KvCache<'_> {
        let (keys, values, sinks) = (&self.keys, &self.values, self.sinks.as_ref());
        KvCache { keys, values, window: self.window, slots: self.slots, dtype, sinks }
    }

    /// All matrices except those of the experts.
    fn matrices(&self) -> Vec<&Matrix> {
        let mut all = vec![&self.qkv, &self.output];
        match &self.mlp {
            Mlp::Dense { gate_up, down } => all.extend([gate_up, down]),
            Mlp::Experts(layer) => {
                all.push(&layer.router);
                all.extend(layer.shared.iter().flat_map(|(gate_up, down)| [gate_up, down]));
            }
        }
        all
    }

    /// The matrices of all experts, and the bytes that are dequantised at a time.
    fn of_experts(&self, dtype: Dtype) -> Vec<(&Matrix, usize)> {
        match &self.mlp {
            Mlp::Dense { .. } => Vec::new(),
            Mlp::Experts(layer) => [&layer.gate_up, &layer.down]
                .map(|matrix| {
                    let share = layer.plain_at_a_time(matrix, dtype);
                    (matrix, matrix.plain_bytes(dtype) / layer.experts.count * share)
                })
                .to_vec(),
        }
    }
}

/// Buffers for `rows` rows, batch times positions.
struct Activations {
    rows: usize,
    /// The maximum number of positions of a prompt.
    prompt: usize,
    ids: Buffer,
    x: Buffer,
    normed: Buffer,
    /// Sums of squares of a few rows, if norms are carried.
    squares: Buffer,
    qkv: Buffer,
    attended: Buffer,
    wide: Buffer,
    gated: Buffer,
    routed: Option<Routed>,
    /// Keys and values of a prompt, if a layer's cache does not keep all of them unquantised.
    fresh: Option<(Buffer, Buffer)>,
}

/// Whether a prompt attends to separate keys and values instead of those in `cache`.
fn needs_fresh(spec: &ModelSpec, cache: &KvShape, prompt: usize) -> bool {
    cache.dtype != KvCacheDtype::Auto || (0..spec.layers).any(|layer| cache.kept(spec, layer) < prompt)
}

/// The GPU memory of the sequences.
pub fn footprint(
    spec: &ModelSpec,
    dtype: Dtype,
    weight_bytes: u64,
    quantised: bool,
    sizes: &Sizes,
) -> Footprint {
    let Sizes { cache, prompt, step } = *sizes;
    let KvShape { batch, positions: capacity, .. } = cache;
    let rows = batch.saturating_mul(prompt.max(step));
    let columns = 2 * spec.hidden + (2 * spec.heads + 2 * spec.kv_heads) * spec.head_dim;
    let mlp = product(&[rows.min(MLP_ROWS), 3, spec.widest_mlp()]);
    let logits = product(&[batch, if step > 1 { 1 + step } else { 1 }, spec.vocab, 4]);
    let tables = product(&[capacity, spec.head_dim, 4, 1 + usize::from(spec.local_rope_theta.is_some())]);
    // A dequantised matrix.
    let plain = match quantised {
        true => product(&[2, spec.widest_mlp(), spec.hidden]).saturating_mul(dtype.bytes()),
        false => 0,
    };
    let plain = match spec.experts {
        Some(experts) if quantised => {
            let (rows, columns) = ordered_rows(&experts, spec.hidden, rows);
            plain.max(PLAIN_BYTES as u64).saturating_add(ordered_bytes(rows, columns) as u64)
        }
        _ => plain,
    };
    let routed = spec.experts.map_or(0, |experts| routed_bytes(&experts, spec.hidden, rows, dtype));
    let activations = product(&[rows, columns]).saturating_add(mlp).saturating_mul(dtype.bytes());
    let fresh = match needs_fresh(spec, &cache, prompt) {
        true => product(&[2, batch, prompt, spec.kv_heads, spec.head_dim]).saturating_mul(dtype.bytes()),
        false => 0,
    };
    Footprint {
        weight_bytes,
        cache_bytes: cache.bytes(spec, dtype),
        workspace_bytes: [activations, routed, logits, tables, plain, fresh, RESERVE_BYTES]
            .into_iter()
            .fold(0, u64::saturating_add),
    }
}

impl Decoder {
    /// Loads the `weights` and allocates the buffers.
    pub fn new(
        gpu: Gpu,
        spec: &ModelSpec,
        dtype: Dtype,
        weights: &Weights<'_>,
        sizes: &Sizes,
        progress: Progress<'_>,
    ) -> Result<Decoder, EngineError> {
        let Sizes { cache, step, .. } = *sizes;
        let KvShape { batch, positions: capacity, .. } = cache;
        let mut kernels = Kernels { gpu, dtype, activation: spec.activation, scratch: None };
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
        let total = tensors.iter().map(TensorShape::elements).sum();
        let tensors = tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
        let norm_offset = spec.norm_offset;
        let mut loader =
            Loader { kernels: &kernels, weights, tensors, norm_offset, progress, done: 0, total };
        let embedding = loader.matrix(&["model.embed_tokens.weight"])?;
        let layers: Vec<Layer> = (0..spec.layers)
            .map(|i| Layer::new(spec, i, &mut loader, &heads, &cache))
            .collect::<Result<_, _>>()?;
        let norm = loader.norm("model.norm.weight")?;
        let head = if spec.tied_embeddings { None } else { Some(loader.matrix(&["lm_head.weight"])?) };
        let divisors = weights.source().rope_divisors()?;
        let rope = Tables::new(gpu, &rope::tables(spec, divisors.as_deref(), capacity).backend()?)?;
        let local_rope =
            rope::local_tables(spec, capacity).map(|tables| Tables::new(gpu, &tables)).transpose()?;
        let splits = AttentionSplits::new(gpu, &heads, step)?;
        let sampling = SamplingBuffers::new(gpu, batch, spec.vocab)?;
        let activations = Activations::new(gpu, spec, dtype, sizes, &heads)?;
        gpu.synchronize()?;
        let matrices = || layers.iter().flat_map(Layer::matrices);
        let of_experts = || layers.iter().flat_map(|layer| layer.of_experts(dtype));
        let heads_and_tables = [&embedding].into_iter().chain(head.as_ref());
        let all = matrices().chain(heads_and_tables).chain(of_experts().map(|(matrix, _)| matrix));
        if all.into_iter().any(|matrix| !matches!(matrix.values, Values::Plain(_))) {
            let columns = matrices().map(|matrix| matrix.columns).max().unwrap_or(0).max(spec.hidden);
            let plain = matrices().map(|matrix| matrix.plain_bytes(dtype));
            let plain_bytes = match activations.rows > FEW_ROWS {
                true => plain.chain(of_experts().map(|(_, bytes)| bytes)).max().unwrap_or(0),
                false => 0,
            };
            let are_tiles = of_experts().any(|(matrix, _)| matches!(matrix.values, Values::Tiles(_)));
            let experts = spec.experts.filter(|_| are_tiles);
            let of_experts = experts.map_or((0, 0), |all| ordered_rows(&all, spec.hidden, activations.rows));
            kernels.scratch = Some(Scratch::new(gpu, columns, of_experts, plain_bytes)?);
        }
        Ok(Decoder {
            spec: spec.clone(),
            heads,
            embedding,
            head,
            norm,
            layers,
            fused: None,
            rope,
            local_rope,
            embedding_scale: spec.embedding_scale(dtype),
            kv_cache: cache.dtype,
            splits,
            sampling,
            activations,
            kernels,
            listeners: Listeners::default(),
        })
    }

    /// From now on, one kernel computes the layers of a decode step, if the GPU has room for it.
    pub fn fuse_layers(&mut self, instance: &Instance, sizes: &Sizes) -> Result<(), CudaError> {
        let of: Option<Vec<FusedLayer<'_>>> =
            self.layers.iter().map(|layer| layer.fused(self.kv_cache)).collect();
        let Some(of) = of else { return Ok(()) };
        let gpu = &self.kernels.gpu;
        let Some(fused) = FusedLayers::new(gpu, instance, &of, &self.heads, sizes)? else { return Ok(()) };
        // A test launch on zeros: if the GPU refuses it, the other kernels are used.
        gpu.fill(&self.activations.x, 0)?;
        self.rewind()?;
        // SAFETY: the position is 0, and the layers are those of this decoder.
        if unsafe { self.decode_layers(&fused, &self.sampling.progress) }.is_ok() {
            gpu.synchronize()?;
            self.fused = Some(fused);
        }
        Ok(())
    }

    /// Whether one kernel computes the layers of a decode step.
    #[cfg(test)]
    pub fn is_fused(&self) -> bool {
        self.fused.is_some()
    }

    /// # Safety
    /// The position in `progress` is below the capacity, and `fused` was created from this decoder's layers.
    unsafe fn decode_layers(&self, fused: &FusedLayers, progress: &Buffer) -> Result<(), CudaError> {
        let transform = HeadTransform {
            bias: None,
            query_norm: None,
            key_norm: None,
            eps: self.spec.rms_eps as f32,
            cosines: &self.rope.cosines,
            sines: &self.rope.sines,
        };
        // SAFETY: the caller guarantees it.
        unsafe { self.kernels.decode_layers(fused, &self.activations.x, &transform, progress, &self.heads) }
    }

    pub fn heads(&self) -> &Heads {
        &self.heads
    }

    pub fn vocab(&self) -> usize {
        self.spec.vocab
    }

    /// The maximum number of positions of one prompt.
    pub fn longest_prompt(&self) -> usize {
        self.activations.prompt
    }

    /// Sets the next position to 0.
    pub fn rewind(&self) -> Result<(), CudaError> {
        self.kernels.gpu.upload(&self.sampling.progress, &[0i32])
    }

    /// Runs prompts, sequence after sequence; the results are the logits of each sequence's last position.
    ///
    /// # Safety
    /// The position on the device is 0, the ids are below the vocabulary, and each sequence fits into the capacity.
    pub unsafe fn prefill(&self, ids: &[u32]) -> Result<(), CudaError> {
        self.kernels.gpu.upload(&self.activations.ids, ids)?;
        let step = StepShape { length: ids.len() / self.heads.batch, is_prompt: true };
        // SAFETY: the caller guarantees it.
        unsafe { self.forward(&self.activations.ids, step, &self.sampling) }
    }

    /// Extends every sequence by its last sampled token.
    ///
    /// # Safety
    /// The position on the device is below the capacity when the launches run.
    pub unsafe fn decode(&self) -> Result<(), CudaError> {
        let step = StepShape { length: 1, is_prompt: false };
        // SAFETY: the caller guarantees the position; sampled tokens are below the vocabulary.
        unsafe { self.forward(&self.sampling.tokens, step, &self.sampling) }
    }

    /// Extends the one sequence by the tokens of `sampling`, starting at its position; the results are the logits after
    /// each of them.
    ///
    /// # Safety
    /// The tokens are below the vocabulary. The position on the device plus their number is at most the
    /// capacity when the launches run.
    pub unsafe fn extend(&self, sampling: &SamplingBuffers) -> Result<(), CudaError> {
        let launch = Launch::new("a step of several positions");
        launch.require(self.heads.batch == 1, || format!("{} sequences", self.heads.batch))?;
        let step = StepShape { length: sampling.batch, is_prompt: false };
        // SAFETY: the caller guarantees it.
        unsafe { self.forward(&sampling.tokens, step, sampling) }
    }

    /// # Safety
    /// The ids are below the vocabulary, and the position on the device plus the step's length is at most the capacity.
    unsafe fn forward(
        &self,
        ids: &Buffer,
        step: StepShape,
        sampling: &SamplingBuffers,
    ) -> Result<(), CudaError> {
        let (kernels, spec, a) = (&self.kernels, &self.spec, &self.activations);
        let StepShape { length, is_prompt } = step;
        let rows = self.heads.batch * length;
        self.listeners.operator(Operator::Embedding, None, || {
            // SAFETY: the ids are below the vocabulary, which is the number of the embedding's rows.
            unsafe { kernels.embed(&a.x, &self.embedding, ids, rows, self.embedding_scale) }
        })?;
        match self.fused.as_ref().filter(|_| length == 1 && !is_prompt) {
            Some(fused) => self.listeners.operator(Operator::Layers, None, || {
                // SAFETY: the caller guarantees the position; the layers are those of this decoder.
                unsafe { self.decode_layers(fused, &sampling.progress) }
            })?,
            None => {
                for (i, layer) in self.layers.iter().enumerate() {
                    // SAFETY: the caller guarantees the position.
                    unsafe { self.attention(i, layer, step, &sampling.progress) }?;
                    self.mlp(i, layer, rows, is_prompt)?;
                }
            }
        }
        let eps = spec.rms_eps as f32;
        // After a prompt, only the last position of each sequence has logits.
        let (answered, selection) = match is_prompt {
            true => (self.heads.batch, (length, length - 1)),
            false => (rows, (1, 0)),
        };
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        let input = match answered == rows && kernels.fuses_norm(rows, head) {
            true => Input { norm: Some(Norm { weight: &self.norm, eps }), ..(&a.x).into() },
            false => {
                self.listeners.operator(Operator::FinalNorm, None, || {
                    kernels.rms_norm(&a.normed, &a.x, &self.norm, (answered, spec.hidden), eps, selection)
                })?;
                (&a.normed).into()
            }
        };
        let logits = &sampling.logits;
        self.listeners.operator(Operator::LmHead, None, || {
            kernels.logits(logits, input, head, answered)?;
            match spec.logit_softcap {
                Some(cap) => kernels.softcap(logits, answered * spec.vocab, cap as f32),
                None => Ok(()),
            }
        })
    }

    /// x += attention(norm(x)), with another norm before the sum if the model has one.
    ///
    /// # Safety
    /// The position in `progress` plus the step's length is at most the capacity.
    unsafe fn attention(
        &self,
        i: usize,
        layer: &Layer,
        StepShape { length, is_prompt }: StepShape,
        progress: &Buffer,
    ) -> Result<(), CudaError> {
        let (kernels, spec, a, heads) = (&self.kernels, &self.spec, &self.activations, &self.heads);
        let (rows, eps) = (heads.batch * length, spec.rms_eps as f32);
        let kept = layer.kept(self.kv_cache);
        // A prompt attends to its unrounded keys and values, even if the cache does not keep all of them.
        let starts = is_prompt;
        let is_prompt = is_prompt && length > 1;
        let is_own = is_prompt && (self.kv_cache != KvCacheDtype::Auto || length > layer.slots);
        let fresh = a.fresh.as_ref().filter(|_| is_own).map(|(keys, values)| KvCache {
            keys,
            values,
            slots: length,
            dtype: KvCacheDtype::Auto,
            ..kept
        });
        let cache = fresh.unwrap_or(kept);
        // Heads of the prompt's own keys and values, which have room for exactly `length` positions.
        let own_heads = Heads { capacity: length, ..*heads };
        let rope = self.local_rope.as_ref().filter(|_| layer.is_local).unwrap_or(&self.rope);
        let transform = HeadTransform {
            bias: layer.qkv_bias.as_ref(),
            query_norm: layer.query_norm.as_ref(),
            key_norm: layer.key_norm.as_ref(),
            eps,
            cosines: &rope.cosines,
            sines: &rope.sines,
        };
        let operator = |operator, work: &dyn Fn() -> Result<(), CudaError>| {
            self.listeners.operator(operator, Some(i), work)
        };
        let size = (rows, spec.hidden);
        let norm = Norm { weight: &layer.input_norm, eps };
        let input = match kernels.fuses_norm(rows, &layer.qkv) {
            true => Input { norm: Some(norm), ..(&a.x).into() },
            false if i > 0 && self.carry(i - 1, rows, starts).is_some() => {
                let carried = Carried { squares: &a.squares, eps };
                Input { carried: Some(carried), ..(&a.normed).into() }
            }
            false => {
                operator(Operator::AttentionNorm, &|| {
                    kernels.rms_norm(&a.normed, &a.x, &layer.input_norm, size, eps, (1, 0))
                })?;
                (&a.normed).into()
            }
        };
        operator(Operator::Qkv, &|| kernels.linear(&a.qkv, input, &layer.qkv, rows, None, false))?;
        let rotated_in_attention = length == 1 && kernels.rotates_in_attention(heads, &cache);
        if !rotated_in_attention {
            operator(Operator::Rope, &|| {
                let heads = if fresh.is_some() { &own_heads } else { heads };
                // SAFETY: the caller guarantees the position, which is 0 if a prompt has a cache of its own length.
                unsafe { kernels.rope(&a.qkv, &cache, &transform, progress, length, heads) }
            })?;
        }
        operator(Operator::Attention, &|| match (is_prompt, &fresh) {
            (true, Some(fresh)) => {
                kernels.prefill_attention(&a.attended, &a.qkv, fresh, length, &own_heads)?;
                kernels.keep(&kept, fresh, length, heads)
            }
            (true, None) => kernels.prefill_attention(&a.attended, &a.qkv, &cache, length, heads),
            // SAFETY: the caller guarantees the position.
            (false, _) => unsafe {
                kernels.decode_attention(
                    &a.attended,
                    &a.qkv,
                    &cache,
                    Some(&transform).filter(|_| rotated_in_attention),
                    &self.splits,
                    progress,
                    length,
                    heads,
                )
            },
        })?;
        let bias = layer.output_bias.as_ref();
        let Some(norm) = &layer.post_attention_norm else {
            return operator(Operator::AttentionOutput, &|| {
                kernels.linear(&a.x, &a.attended, &layer.output, rows, bias, true)
            });
        };
        operator(Operator::AttentionOutput, &|| {
            kernels.linear(&a.normed, &a.attended, &layer.output, rows, bias, false)
        })?;
        operator(Operator::PostAttentionNorm, &|| kernels.add_normed(&a.x, &a.normed, norm, size, eps))
    }

    /// The part of the next layer's norm that the experts of layer `i` compute. In other layers a separate kernel is
    /// faster: GEMMs of many blocks lose more by what each block does for the norm.
    fn carry(&self, i: usize, rows: usize, is_prompt: bool) -> Option<Carry<'_>> {
        let (layer, next) = (self.layers.get(i)?, self.layers.get(i + 1)?);
        let Mlp::Experts(experts) = &layer.mlp else { return None };
        let is_last = experts.is_plain() && experts.shared.is_none() && layer.post_mlp_norm.is_none();
        let a = &self.activations;
        (is_last && !is_prompt && self.kernels.takes_carried(rows, &next.qkv)).then_some(Carry {
            weight: &next.input_norm,
            scaled: &a.normed,
            squares: &a.squares,
        })
    }

    /// The expert assignments of all decode steps so far, by layer. Waits for the device.
    pub fn routed(&self) -> Result<Vec<(usize, Tally)>, CudaError> {
        let mut all = Vec::new();
        for (i, layer) in self.layers.iter().enumerate() {
            if let Mlp::Experts(experts) = &layer.mlp {
                all.push((i, experts.tally(&self.kernels.gpu)?));
            }
        }
        Ok(all)
    }

    /// Restarts the count of expert assignments.
    pub fn forget_routed(&self) -> Result<(), CudaError> {
        for layer in &self.layers {
            if let Mlp::Experts(experts) = &layer.mlp {
                self.kernels.gpu.fill(&experts.tally, 0)?;
            }
        }
        Ok(())
    }

    /// x += Σ weight · result of the assigned experts for norm(x). Assignments of a prompt are not counted.
    fn experts(
        &self,
        i: usize,
        layer: &Layer,
        experts: &ExpertLayer,
        (rows, is_prompt): (usize, bool),
    ) -> Result<(), CudaError> {
        let (kernels, spec, a) = (&self.kernels, &self.spec, &self.activations);
        let Some(routed) = &a.routed else {
            return Err(Launch::new("route")
                .error("the buffers for experts were not allocated".to_owned())
                .into());
        };
        let operator = |operator, work: &dyn Fn() -> Result<(), CudaError>| {
            self.listeners.operator(operator, Some(i), work)
        };
        let eps = spec.rms_eps as f32;
        let few = rows <= FEW_ROWS;
        let within = kernels.routes_within(experts, rows);
        if !few {
            operator(Operator::MlpNorm, &|| {
                kernels.rms_norm(&a.normed, &a.x, &layer.mlp_norm, (rows, spec.hidden), eps, (1, 0))
            })?;
        }
        let norm = Norm { weight: &layer.mlp_norm, eps };
        let row_bytes = spec.hidden * kernels.dtype.bytes() as usize;
        let carry = self.carry(i, rows, is_prompt);
        for first in (0..rows).step_by(EXPERT_ROWS) {
            let count = EXPERT_ROWS.min(rows - first);
            let (normed, x) = (a.normed.slice_from(first * row_bytes), a.x.slice_from(first * row_bytes));
            if !within {
                operator(Operator::Router, &|| match few {
                    true => {
                        kernels.norm_and_route((&a.normed, &a.x), norm, routed, experts, rows, !is_prompt)
                    }
                    false => kernels.route(routed, experts, normed, count, !is_prompt),
                })?;
            }
            operator(Operator::GateUp, &|| {
                let router = within.then_some((&a.x, norm));
                kernels.experts_gated(routed, experts, normed, count, !is_prompt, router)
            })?;
            operator(Operator::Down, &|| kernels.experts_down(x, routed, experts, count, carry, within))?;
            let Some((gate_up, down)) = &experts.shared else { continue };
            operator(Operator::GateUp, &|| {
                kernels.gated(&a.gated, &a.wide, normed, gate_up, count)?;
                kernels.scale_shared(&a.gated, routed, experts, (count, down.columns))
            })?;
            operator(Operator::Down, &|| kernels.linear(x, &a.gated, down, count, None, true))?;
        }
        Ok(())
    }

    /// x += mlp(norm(x)), with another norm before the sum if the model has one.
    fn mlp(&self, i: usize, layer: &Layer, rows: usize, is_prompt: bool) -> Result<(), CudaError> {
        let (gate_up, down) = match &layer.mlp {
            Mlp::Dense { gate_up, down } => (gate_up, down),
            Mlp::Experts(experts) => return self.experts(i, layer, experts, (rows, is_prompt)),
        };
        let (kernels, spec, a) = (&self.kernels, &self.spec, &self.activations);
        let eps = spec.rms_eps as f32;
        let operator = |operator, work: &dyn Fn() -> Result<(), CudaError>| {
            self.listeners.operator(operator, Some(i), work)
        };
        let size = (rows, spec.hidden);
        let norm = Norm { weight: &layer.mlp_norm, eps };
        let fused = kernels.fuses_norm(rows, gate_up);
        if !fused {
            operator(Operator::MlpNorm, &|| {
                kernels.rms_norm(&a.normed, &a.x, &layer.mlp_norm, size, eps, (1, 0))
            })?;
        }
        // With another norm, the result overwrites its input.
        let (to, add) = match layer.post_mlp_norm {
            Some(_) => (&a.normed, false),
            None => (&a.x, true),
        };
        let row_bytes = spec.hidden * kernels.dtype.bytes() as usize;
        for first in (0..rows).step_by(MLP_ROWS) {
            let count = MLP_ROWS.min(rows - first);
            let offset = first * row_bytes;
            let input = match fused {
                true => Input { norm: Some(norm), ..a.x.slice_from(offset).into() },
                false => a.normed.slice_from(offset).into(),
            };
            operator(Operator::GateUp, &|| kernels.gated(&a.gated, &a.wide, input, gate_up, count))?;
            operator(Operator::Down, &|| {
                kernels.linear(to.slice_from(offset), &a.gated, down, count, None, add)
            })?;
        }
        match &layer.post_mlp_norm {
            Some(norm) => {
                operator(Operator::PostMlpNorm, &|| kernels.add_normed(&a.x, &a.normed, norm, size, eps))
            }
            None => Ok(()),
        }
    }
}

impl Tables {
    fn new(gpu: &Gpu, (cosines, sines): &rope::Tables) -> Result<Tables, CudaError> {
        let table = |values: &[f32]| -> Result<Buffer, CudaError> {
            let buffer = gpu.alloc("rotary tables", size_of_val(values))?;
            gpu.upload(&buffer, values)?;
            Ok(buffer)
        };
        Ok(Tables { cosines: table(cosines)?, sines: table(sines)? })
    }
}

impl Layer {
    fn new(
        spec: &ModelSpec,
        i: usize,
        loader: &mut Loader<'_>,
        heads: &Heads,
        cache: &KvShape,
    ) -> Result<Layer, EngineError> {
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
        let slots = cache.kept(spec, i);
        let cache_bytes = heads.cache_bytes(slots, cache.dtype, loader.kernels.dtype.bytes() as usize);
        let (keys, values) = (gpu.zeros("the cache", cache_bytes)?, gpu.zeros("the cache", cache_bytes)?);
        Ok(Layer {
            input_norm: loader.norm(&name("input_layernorm.weight"))?,
            qkv,
            qkv_bias,
            query_norm,
            key_norm,
            sinks: match spec.sinks {
                true => Some(loader.wide_vector(&name("self_attn.sinks"), 0.0)?),
                false => None,
            },
            output: loader.matrix(&[&name("self_attn.o_proj.weight")])?,
            output_bias: match spec.output_bias {
                true => Some(loader.bias(&[&name("self_attn.o_proj.bias")])?),
                false => None,
            },
            mlp_norm: loader.norm(&name(spec.mlp_norm_name()))?,
            post_attention_norm,
            post_mlp_norm,
            mlp: match spec.experts_of_layer(i) {
                Some(experts) => Mlp::Experts(Box::new(loader.experts(experts, i)?)),
                None => Mlp::Dense {
                    gate_up: loader.gate_up(&spec.gate_up_names(i))?,
                    down: loader.matrix(&[&name("mlp.down_proj.weight")])?,
                },
            },
            keys,
            values,
            slots,
            window: spec.window_of_layer(i),
            is_local: spec.is_local(i),
        })
    }
}

impl Activations {
    fn new(
        gpu: &Gpu,
        spec: &ModelSpec,
        dtype: Dtype,
        sizes: &Sizes,
        heads: &Heads,
    ) -> Result<Activations, CudaError> {
        let elements = |count: usize| gpu.alloc("activations", count * dtype.bytes() as usize);
        let prompt = sizes.prompt.max(1);
        let rows = heads.batch * prompt.max(sizes.step);
        let of_prompt = heads.batch * prompt * heads.kv_heads * heads.dim;
        let mlp_rows = rows.min(MLP_ROWS);
        Ok(Activations {
            rows,
            prompt,
            fresh: match needs_fresh(spec, &sizes.cache, prompt) {
                true => Some((elements(of_prompt)?, elements(of_prompt)?)),
                false => None,
            },
            ids: gpu.alloc("activations", rows * 4)?,
            x: elements(rows * spec.hidden)?,
            normed: elements(rows * spec.hidden)?,
            squares: gpu.alloc("activations", FEW_ROWS * spec.hidden.div_ceil(CARRIED_TOGETHER) * 4)?,
            qkv: elements(rows * heads.columns())?,
            attended: elements(rows * heads.heads * heads.dim)?,
            wide: elements(mlp_rows * 2 * spec.widest_mlp())?,
            gated: elements(mlp_rows * spec.widest_mlp())?,
            routed: match &spec.experts {
                Some(experts) => Some(Routed::new(gpu, experts, spec.hidden, rows, dtype)?),
                None => None,
            },
        })
    }
}

/// The source of the weights.
pub enum Weights<'a> {
    Synthetic(SyntheticWeights),
    Checkpoint(&'a Checkpoint),
}

impl Weights<'_> {
    fn source(&self) -> &dyn WeightSource {
        match self {
            Weights::Synthetic(weights) => weights,
            Weights::Checkpoint(checkpoint) => *checkpoint,
        }
    }
}

struct Loader<'a> {
    kernels: &'a Kernels,
    weights: &'a Weights<'a>,
    tensors: HashMap<String, TensorShape>,
    norm_offset: f32,
    progress: Progress<'a>,
    done: u64,
    total: u64,
}

impl Loader<'_> {
    /// The shapes of the named tensors. Reports the progress.
    fn shapes(&mut self, names: &[impl AsRef<str>]) -> Result<Vec<TensorShape>, EngineError> {
        let shapes: Vec<TensorShape> = names
            .iter()
            .map(|name| {
                let name = name.as_ref();
                self.tensors
                    .get(name)
                    .cloned()
                    .ok_or_else(|| EngineError::Backend(format!("the model has no tensor {name}")))
            })
            .collect::<Result<_, _>>()?;
        if !(self.progress)(PrepareStep::Weights(names[0].as_ref()), self.done, self.total) {
            return Err(EngineError::Cancelled);
        }
        self.done += shapes.iter().map(TensorShape::elements).sum::<u64>();
        Ok(shapes)
    }

    /// The named matrices, one below the other.
    fn matrix(&mut self, names: &[impl AsRef<str>]) -> Result<Matrix, EngineError> {
        let shapes = self.shapes(names)?;
        self.of_shapes(&shapes, false)
    }

    /// The matrices of gate and up, for one GEMM if they have one type.
    fn gate_up(&mut self, names: &[impl AsRef<str>]) -> Result<Matrix, EngineError> {
        let shapes = self.shapes(names)?;
        self.of_shapes(&shapes, true)
    }

    fn experts(&mut self, experts: Experts, layer: usize) -> Result<ExpertLayer, EngineError> {
        let mut router = vec![experts.router_name(layer, "weight")];
        let shared = match experts.shared_intermediate {
            0 => None,
            _ => {
                let (gate_up, down, gate) = experts.shared_names(layer);
                router.push(gate);
                Some((self.gate_up(&gate_up)?, self.matrix(&[down])?))
            }
        };
        let (mut gate_ups, mut downs) = (Vec::new(), Vec::new());
        for expert in 0..experts.count {
            let (gate_up, down) = experts.names(layer, expert, "weight");
            gate_ups.push(self.shapes(&gate_up)?);
            downs.push(self.shapes(&[down])?);
        }
        let biases = match experts.biased {
            true => Some(self.biases(&experts, layer)?),
            false => None,
        };
        let gpu = &self.kernels.gpu;
        let tally = gpu.zeros("activations", ExpertLayer::tally_bytes(&experts))?;
        let router = self.matrix(&router)?;
        let (gate_up, down) = (self.of_experts(&gate_ups, true)?, self.of_experts(&downs, false)?);
        let blocks_alone = OnceCell::new();
        Ok(ExpertLayer { experts, router, gate_up, down, biases, shared, tally, blocks_alone })
    }

    fn biases(&mut self, experts: &Experts, layer: usize) -> Result<Biases, EngineError> {
        let names = (0..experts.count).map(|expert| experts.names(layer, expert, "bias"));
        let (gate_ups, downs): (Vec<_>, Vec<_>) = names.unzip();
        Ok(Biases {
            router: self.wide_vector(&experts.router_name(layer, "bias"), 0.0)?,
            gate_up: self.bias(&gate_ups.concat())?,
            down: self.bias(&downs)?,
        })
    }

    /// The matrices of all experts, below each other.
    fn of_experts(&self, experts: &[Vec<TensorShape>], gated: bool) -> Result<Matrix, EngineError> {
        let source = self.weights.source();
        if source.blocks(&experts[0])?.is_none_or(|runs| runs.len() != 1) {
            return self.of_shapes(&experts.concat(), false);
        }
        let rows = experts.iter().flatten().map(|shape| shape.shape[0]).sum();
        let columns = experts[0][0].shape[1];
        let mut one = |expert: usize| {
            let mut runs = source.blocks(&experts[expert])?.unwrap_or_default();
            let differ = || EngineError::Backend("the matrices of an expert differ in type".to_owned());
            if runs.len() > 1 { Err(differ()) } else { runs.pop().ok_or_else(differ) }
        };
        let tiles = Tiles::of_experts(&self.kernels.gpu, experts.len(), columns, gated, &mut one)?;
        Ok(Matrix { values: Values::Tiles(vec![tiles]), rows, columns })
    }

    fn of_shapes(&self, shapes: &[TensorShape], gated: bool) -> Result<Matrix, EngineError> {
        let (kernels, dtype) = (self.kernels, self.kernels.dtype);
        let rows = shapes.iter().map(|shape| shape.shape[0]).sum();
        let columns = shapes[0].shape[1];
        if let Some(runs) = self.weights.source().blocks(shapes)? {
            let gated = gated && runs.len() == 1;
            let tiles = runs.iter().map(|run| Tiles::new(&kernels.gpu, run, columns, gated));
            return Ok(Matrix { values: Values::Tiles(tiles.collect::<Result<_, _>>()?), rows, columns });
        }
        let values = |matrix| Ok(Matrix { values: Values::Fp8(Box::new(matrix)), rows, columns });
        if let Some(codes) = self.weights.source().fp8(shapes) {
            return values(Fp8Matrix::new(kernels, &codes, columns, gated)?);
        }
        if let Weights::Synthetic(weights) = self.weights
            && shapes.iter().all(|shape| weights.is_fp8(shape))
        {
            let recipes: Vec<_> = shapes.iter().map(|shape| weights.recipe(shape)).collect();
            let parts: Vec<(usize, f32)> = shapes
                .iter()
                .zip(&recipes)
                .map(|(shape, (_, (_, width)))| (shape.shape[0], *width))
                .collect();
            return values(Fp8Matrix::random(kernels, &parts, columns, gated, &mut |i, to| {
                let (key, spread) = recipes[i];
                kernels.synthetic(to, key, (parts[i].0, columns), spread)
            })?);
        }
        let row_bytes = columns * dtype.bytes() as usize;
        let values = kernels.gpu.alloc("the weights", rows * row_bytes)?;
        match self.weights {
            Weights::Synthetic(weights) => {
                let mut first = 0;
                for shape in shapes {
                    let (key, spread) = weights.recipe(shape);
                    kernels.synthetic(
                        values.slice_from(first * row_bytes),
                        key,
                        (shape.shape[0], columns),
                        spread,
                    )?;
                    first += shape.shape[0];
                }
            }
            Weights::Checkpoint(checkpoint) => {
                self.upload(&values, &checkpoint.values(shapes, dtype)?)?;
            }
        }
        Ok(Matrix { values: Values::Plain(values), rows, columns })
    }

    /// The named vectors, one after the other, in the model's own type.
    fn bias(&mut self, names: &[impl AsRef<str>]) -> Result<Buffer, EngineError> {
        let shapes = self.shapes(names)?;
        let values = self.weights.source().values(&shapes, self.kernels.dtype)?;
        let len: usize = shapes.iter().map(|shape| shape.shape[0]).sum();
        let buffer = self.kernels.gpu.alloc("the weights", len * self.kernels.dtype.bytes() as usize)?;
        self.upload(&buffer, &values)?;
        Ok(buffer)
    }

    fn upload(&self, to: &Buffer, values: &HostValues) -> Result<(), CudaError> {
        match values {
            HostValues::F32(values) => self.kernels.gpu.upload(to, values),
            HostValues::F16(values) => self.kernels.gpu.upload(to, values),
            HostValues::Bf16(values) => self.kernels.gpu.upload(to, values),
        }
    }

    /// A norm's weights plus the model's offset, in f32, from their values in the model's type.
    fn norm(&mut self, name: &str) -> Result<Buffer, EngineError> {
        self.wide_vector(name, self.norm_offset)
    }

    /// A vector plus an offset, in f32.
    fn wide_vector(&mut self, name: &str, offset: f32) -> Result<Buffer, EngineError> {
        let shapes = self.shapes(&[name])?;
        let mut values = self.weights.source().values(&shapes, self.kernels.dtype)?.widened();
        values.iter_mut().for_each(|weight| *weight += offset);
        let buffer = self.kernels.gpu.alloc("the weights", values.len() * 4)?;
        self.kernels.gpu.upload(&buffer, &values)?;
        Ok(buffer)
    }
}
