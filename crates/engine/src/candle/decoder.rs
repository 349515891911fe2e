//! The decoder-only transformer, built from a [`ModelSpec`].

use std::{collections::HashMap, sync::Mutex};

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::ops::rms_norm;
use decoder_ops::{
    Activation, Sight, attention, attention_step_by_step, gated, gated_step_by_step, scaled, softcapped, sum,
    widen,
};

use super::{
    CandleResult,
    cache::LayerCache,
    candle_dtype,
    experts::{Experts, Mlp, Mode, Shared},
    matrix::{Matrix, Tensors},
    rope::{self, Rope},
};
use crate::{kv::KvShape, routing::Tally, weights::WeightSource};
use llm_cost::{
    ModelSpec, Operator,
    spec::{self, TensorShape},
};
use llmprof_config::Dtype;
use llmprof_workload::{EngineError, PrepareStep, Progress, listener::Listeners};

/// The positions of a step whose next token is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answered {
    /// The last of each sequence.
    Last,
    All,
}

/// A model with its weights, and a cache for one batch of sequences of equal length.
pub struct Decoder {
    spec: ModelSpec,
    embedding: Matrix,
    layers: Vec<Layer>,
    norm: Tensor,
    /// The embedding again where the two are tied.
    head: Matrix,
    rope: Rope,
    /// For layers with their own rotary base.
    local_rope: Option<Rope>,
    embedding_scale: f32,
    batch: usize,
    capacity: usize,
    device: Device,
    step_by_step: bool,
    listeners: Listeners,
}

struct Layer {
    index: usize,
    input_norm: Tensor,
    /// Queries, keys and values in one GEMM.
    qkv: Matrix,
    qkv_bias: Option<Tensor>,
    qk_norm: Option<(Tensor, Tensor)>,
    sinks: Option<Vec<f32>>,
    output: Matrix,
    output_bias: Option<Tensor>,
    mlp_norm: Tensor,
    /// Norms of the outputs of attention and MLP, before the residual is added.
    post_attention_norm: Option<Tensor>,
    post_mlp_norm: Option<Tensor>,
    mlp: LayerMlp,
    sight: Sight,
    is_local: bool,
    cache: LayerCache,
}

enum LayerMlp {
    Dense(Mlp),
    Experts(Box<Experts>),
}

impl Decoder {
    /// Takes the weights from `source` and makes the `cache`.
    /// `progress` is called for every tensor and may cancel. The caller has checked that memory suffices.
    pub fn new(
        spec: &ModelSpec,
        dtype: Dtype,
        source: &dyn WeightSource,
        cache: impl Into<KvShape>,
        device: &Device,
        progress: Progress<'_>,
    ) -> std::result::Result<Self, EngineError> {
        let loader = Loader::new(spec, dtype, source, device, progress);
        Decoder::loaded(Loader { in_panels: true, ..loader }, spec, cache.into())
    }

    /// The same model without the built-in loops: attention, activation and quantised GEMMs are candle's own
    /// operations, in the order in which candle-transformers calls them. Slower, and bit-identical to its
    /// quantised llama: where activations are rounded to eight bits, another order of summation leads to
    /// other tokens.
    pub fn step_by_step(
        spec: &ModelSpec,
        dtype: Dtype,
        source: &dyn WeightSource,
        cache: impl Into<KvShape>,
        device: &Device,
        progress: Progress<'_>,
    ) -> std::result::Result<Self, EngineError> {
        let loader = Loader::new(spec, dtype, source, device, progress);
        Ok(Decoder { step_by_step: true, ..Decoder::loaded(loader, spec, cache.into())? })
    }

    fn loaded(
        mut loader: Loader<'_>,
        spec: &ModelSpec,
        cache: KvShape,
    ) -> std::result::Result<Self, EngineError> {
        let (batch, capacity) = (cache.batch, cache.positions);
        let Loader { device, source, dtype, .. } = loader;
        let embedding = loader.matrix(&["model.embed_tokens.weight"])?;
        let layers = (0..spec.layers)
            .map(|i| Layer::new(spec, i, &mut loader, &cache))
            .collect::<std::result::Result<_, _>>()?;
        Ok(Decoder {
            layers,
            norm: loader.norm("model.norm.weight")?,
            head: if spec.tied_embeddings {
                embedding.clone()
            } else {
                loader.matrix(&["lm_head.weight"])?
            },
            embedding,
            rope: Rope::new(
                rope::tables(spec, source.rope_divisors()?.as_deref(), capacity).backend()?,
                capacity,
                device,
            )
            .backend()?,
            local_rope: rope::local_tables(spec, capacity)
                .map(|tables| Rope::new(tables, capacity, device))
                .transpose()
                .backend()?,
            embedding_scale: spec.embedding_scale(dtype),
            spec: spec.clone(),
            batch,
            capacity,
            device: device.clone(),
            step_by_step: false,
            listeners: Listeners::default(),
        })
    }

    /// Reports every operator to `listeners` from now on.
    pub fn set_listeners(&mut self, listeners: Listeners) {
        self.listeners = listeners;
    }

    pub(super) fn listeners(&self) -> &Listeners {
        &self.listeners
    }

    /// The expert assignments so far, by layer.
    pub(super) fn routed(&self) -> Vec<(usize, Tally)> {
        let of_layer = |layer: &Layer| match &layer.mlp {
            LayerMlp::Dense(_) => None,
            LayerMlp::Experts(experts) => Some((layer.index, experts.tally().clone())),
        };
        self.layers.iter().filter_map(of_layer).collect()
    }

    pub fn vocab(&self) -> usize {
        self.spec.vocab
    }

    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Positions the cache holds for each sequence.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Runs `ids`, sequence after sequence, as positions `position..` of their sequences, and gives the logits
    /// of each sequence's last position: (batch, vocabulary), f32. Positions before are read from the cache.
    pub fn forward(&self, ids: &[u32], position: usize) -> Result<Tensor> {
        self.answer(ids, position, Answered::Last)
    }

    /// As [`forward`](Self::forward), with the logits of those positions that are `answered`.
    pub fn answer(&self, ids: &[u32], position: usize, answered: Answered) -> Result<Tensor> {
        let t = ids.len() / self.batch;
        let timed =
            |operator, work: &dyn Fn() -> Result<Tensor>| self.listeners.operator(operator, None, work);
        let mut x = timed(Operator::Embedding, &|| {
            let ids = Tensor::from_slice(ids, ids.len(), &self.device)?;
            let x = self.embedding.rows(&ids)?.reshape((self.batch, t, self.spec.hidden))?;
            if self.spec.scaled_embeddings { scaled(&x, self.embedding_scale) } else { Ok(x) }
        })?;
        for layer in &self.layers {
            x = layer.forward(&x, self, position)?;
        }
        let last = timed(Operator::FinalNorm, &|| {
            let last = match answered {
                Answered::Last => x.narrow(1, t - 1, 1)?.contiguous()?,
                Answered::All => x.reshape((self.batch * t, 1, ()))?,
            };
            rms_norm(&last, &self.norm, self.spec.rms_eps as f32)
        })?;
        timed(Operator::LmHead, &|| {
            let logits = self.head.linear(&last, None)?.squeeze(1)?;
            match self.spec.logit_softcap {
                Some(cap) => softcapped(&logits, cap as f32),
                None => Ok(logits),
            }
        })
    }
}

impl Layer {
    fn new(
        spec: &ModelSpec,
        index: usize,
        loader: &mut Loader<'_>,
        cache: &KvShape,
    ) -> std::result::Result<Self, EngineError> {
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let qkv = |kind| spec.qkv_names(index, kind);
        let cache_shape = (cache.batch, spec.kv_heads, cache.kept(spec, index), spec.head_dim);
        let window = spec.window_of_layer(index);
        let [post_attention_norm, post_mlp_norm] = match spec.post_norm_names() {
            Some([attention, mlp]) => [Some(loader.norm(&name(attention))?), Some(loader.norm(&name(mlp))?)],
            None => [None, None],
        };
        Ok(Layer {
            index,
            input_norm: loader.norm(&name("input_layernorm.weight"))?,
            qkv: loader.matrix(&qkv("weight"))?,
            qkv_bias: if spec.qkv_bias { Some(loader.vector(&qkv("bias"))?) } else { None },
            qk_norm: if spec.qk_norm {
                let q = loader.norm(&name("self_attn.q_norm.weight"))?;
                Some((q, loader.norm(&name("self_attn.k_norm.weight"))?))
            } else {
                None
            },
            sinks: match spec.sinks {
                true => Some(loader.vector(&[&name("self_attn.sinks")])?.to_vec1().backend()?),
                false => None,
            },
            output: loader.matrix(&[&name("self_attn.o_proj.weight")])?,
            output_bias: match spec.output_bias {
                true => Some(loader.vector(&[&name("self_attn.o_proj.bias")])?),
                false => None,
            },
            mlp_norm: loader.norm(&name(spec.mlp_norm_name()))?,
            post_attention_norm,
            post_mlp_norm,
            mlp: match spec.experts_of_layer(index) {
                Some(experts) => LayerMlp::Experts(Box::new(loader.experts(experts, index)?)),
                None => {
                    LayerMlp::Dense(loader.mlp(&spec.gate_up_names(index), &name("mlp.down_proj.weight"))?)
                }
            },
            sight: sight_of_layer(spec, index),
            is_local: spec.is_local(index),
            cache: LayerCache::new(cache_shape, window, cache.dtype, loader.dtype(), loader.device)
                .backend()?,
        })
    }

    fn forward(&self, x: &Tensor, model: &Decoder, position: usize) -> Result<Tensor> {
        let eps = model.spec.rms_eps as f32;
        let timed = |operator, work: &dyn Fn() -> Result<Tensor>| self.timed(model, operator, work);
        // Adds the result of a GEMM to `x`, with a norm in between where the model has one.
        let add = |x: &Tensor,
                   product: (Operator, &dyn Fn() -> Result<Tensor>),
                   norm: (Operator, &Option<Tensor>)| {
            let (operator, work) = product;
            match norm {
                (_, None) => timed(operator, &|| sum(x, &work()?)),
                (normed, Some(norm)) => {
                    let y = timed(operator, work)?;
                    timed(normed, &|| sum(x, &rms_norm(&y, norm, eps)?))
                }
            }
        };
        let normed = timed(Operator::AttentionNorm, &|| rms_norm(x, &self.input_norm, eps))?;
        let attended = self.attend(&normed, model, position)?;
        let output = || self.output.linear(&attended, self.output_bias.as_ref());
        let norm = (Operator::PostAttentionNorm, &self.post_attention_norm);
        let x = add(x, (Operator::AttentionOutput, &output), norm)?;
        let normed = timed(Operator::MlpNorm, &|| rms_norm(&x, &self.mlp_norm, eps))?;
        match &self.mlp {
            LayerMlp::Dense(mlp) => {
                let gated = self.gated_mlp(mlp, &normed, model)?;
                let down = || mlp.down.linear(&gated, mlp.down_bias.as_ref());
                add(&x, (Operator::Down, &down), (Operator::PostMlpNorm, &self.post_mlp_norm))
            }
            LayerMlp::Experts(experts) => {
                let mode = Mode {
                    listeners: &model.listeners,
                    layer: self.index,
                    activation: activation(&model.spec),
                    step_by_step: model.step_by_step,
                };
                sum(&x, &experts.forward(&normed, &mode)?)
            }
        }
    }

    /// Runs `work` as an operator of this layer.
    fn timed<T>(&self, model: &Decoder, operator: Operator, work: impl FnOnce() -> T) -> T {
        model.listeners.operator(operator, Some(self.index), work)
    }

    /// Gate, up and activation, without the GEMM with `down`.
    fn gated_mlp(&self, mlp: &Mlp, x: &Tensor, model: &Decoder) -> Result<Tensor> {
        let gate_up =
            self.timed(model, Operator::GateUp, || mlp.gate_up.linear(x, mlp.gate_up_bias.as_ref()))?;
        let gated = if model.step_by_step { gated_step_by_step } else { gated };
        self.timed(model, Operator::Activation, || gated(&gate_up, activation(&model.spec)))
    }

    /// Attention without the GEMM with `output`.
    fn attend(&self, x: &Tensor, model: &Decoder, position: usize) -> Result<Tensor> {
        let spec = &model.spec;
        let rope = model.local_rope.as_ref().filter(|_| self.is_local).unwrap_or(&model.rope);
        let (b, t, _) = x.dims3()?;
        let qkv = self.timed(model, Operator::Qkv, || self.qkv.linear(x, self.qkv_bias.as_ref()))?;
        let (q, seen) = self.timed(model, Operator::Rope, || {
            let mut first = 0;
            let mut heads = |count: usize| {
                let part = qkv.narrow(2, first, count * spec.head_dim)?;
                first += count * spec.head_dim;
                part.reshape((b, t, count, spec.head_dim))?.transpose(1, 2)?.contiguous()
            };
            let (mut q, mut k, v) = (heads(spec.heads)?, heads(spec.kv_heads)?, heads(spec.kv_heads)?);
            if let Some((q_norm, k_norm)) = &self.qk_norm {
                q = rms_norm(&q, q_norm, spec.rms_eps as f32)?;
                k = rms_norm(&k, k_norm, spec.rms_eps as f32)?;
            }
            let seen = self.cache.extended(&rope.rotate(&k, position)?, &v, position)?;
            Ok::<_, candle_core::Error>((rope.rotate(&q, position)?, seen))
        })?;
        let attention = if model.step_by_step { attention_step_by_step } else { attention };
        self.timed(model, Operator::Attention, || {
            let (first, sinks) = (position - seen.first, self.sinks.as_deref());
            attention(&q, &seen.keys, &seen.values, first, self.sight, sinks)
        })
    }
}

/// Loads tensors by name and reports progress.
struct Loader<'a> {
    shapes: HashMap<String, TensorShape>,
    source: &'a dyn WeightSource,
    dtype: Dtype,
    norm_offset: f32,
    /// Quantised matrices are put into the order of the built-in GEMMs.
    in_panels: bool,
    device: &'a Device,
    progress: Progress<'a>,
    done: u64,
    total: u64,
}

/// The mask and the scores of a layer.
fn sight_of_layer(spec: &ModelSpec, layer: usize) -> Sight {
    Sight {
        window: spec.window_of_layer(layer),
        scalar: spec.score_scalar,
        softcap: spec.score_softcap.map(|cap| cap as f32),
    }
}

fn activation(spec: &ModelSpec) -> Activation {
    match spec.activation {
        spec::Activation::Silu => Activation::Silu,
        spec::Activation::GeluTanh => Activation::GeluTanh,
        spec::Activation::Gelu => Activation::Gelu,
        spec::Activation::SwigluOai => Activation::SwigluOai,
    }
}

impl<'a> Loader<'a> {
    fn new(
        spec: &ModelSpec,
        dtype: Dtype,
        source: &'a dyn WeightSource,
        device: &'a Device,
        progress: Progress<'a>,
    ) -> Loader<'a> {
        let tensors = spec.tensors();
        let total = tensors.iter().map(TensorShape::elements).sum();
        let shapes = tensors.into_iter().map(|t| (t.name.clone(), t)).collect();
        let norm_offset = spec.norm_offset;
        Loader { shapes, source, dtype, norm_offset, in_panels: false, device, progress, done: 0, total }
    }

    fn dtype(&self) -> DType {
        candle_dtype(self.dtype)
    }

    /// In the storage type of the source, otherwise in the model's type.
    fn matrix(&mut self, names: &[impl AsRef<str>]) -> std::result::Result<Matrix, EngineError> {
        let parts = self.parts(names)?;
        let blocks = if self.in_panels { Matrix::from_blocks } else { Matrix::candle_blocks };
        let matrix = self.source.matrix(&parts, self.dtype, blocks)?;
        matrix.to_device(self.device).backend()
    }

    fn mlp(&mut self, gate_up: &[impl AsRef<str>], down: &str) -> std::result::Result<Mlp, EngineError> {
        let (gate_up, down) = (self.matrix(gate_up)?, self.matrix(&[down])?);
        Ok(Mlp { gate_up, gate_up_bias: None, down, down_bias: None })
    }

    fn experts(&mut self, spec: spec::Experts, layer: usize) -> std::result::Result<Experts, EngineError> {
        let router = self.matrix(&[spec.router_name(layer, "weight")])?;
        let router_bias = match spec.biased {
            true => Some(self.vector(&[spec.router_name(layer, "bias")])?),
            false => None,
        };
        let all = (0..spec.count).map(|expert| {
            let (gate_up, down) = spec.names(layer, expert, "weight");
            let mlp = self.mlp(&gate_up, &down)?;
            if !spec.biased {
                return Ok(mlp);
            }
            let (gate_up, down) = spec.names(layer, expert, "bias");
            let (gate_up_bias, down_bias) = (Some(self.vector(&gate_up)?), Some(self.vector(&[down])?));
            Ok(Mlp { gate_up_bias, down_bias, ..mlp })
        });
        let all = all.collect::<std::result::Result<Vec<_>, EngineError>>()?;
        let shared = match spec.shared_intermediate {
            0 => None,
            _ => {
                let (gate_up, down, gate) = spec.shared_names(layer);
                Some(Shared { mlp: self.mlp(&gate_up, &down)?, gate: self.matrix(&[gate])? })
            }
        };
        Ok(Experts { spec, router, router_bias, all, shared, tally: Mutex::default() })
    }

    /// The scale of a norm, with the model's offset added.
    fn norm(&mut self, name: &str) -> std::result::Result<Tensor, EngineError> {
        let weight = self.vector(&[name])?;
        Ok(if self.norm_offset == 0.0 { weight } else { (weight + f64::from(self.norm_offset)).backend()? })
    }

    /// Norms and biases are small and are widened once.
    fn vector(&mut self, names: &[impl AsRef<str>]) -> std::result::Result<Tensor, EngineError> {
        let parts = self.parts(names)?;
        widen(&self.source.stacked(&parts, self.dtype)?.to_device(self.device).backend()?).backend()
    }

    fn parts(&mut self, names: &[impl AsRef<str>]) -> std::result::Result<Vec<TensorShape>, EngineError> {
        let mut parts = Vec::with_capacity(names.len());
        for name in names.iter().map(AsRef::as_ref) {
            if !(self.progress)(PrepareStep::Weights(name), self.done, self.total) {
                return Err(EngineError::Cancelled);
            }
            let shape = self.shapes.get(name);
            let shape = shape.ok_or_else(|| EngineError::Backend(format!("no tensor {name}")))?;
            self.done += shape.elements();
            parts.push(shape.clone());
        }
        Ok(parts)
    }
}
