//! The decoder on NVIDIA GPUs: built-in kernels, a decode step as one CUDA graph, steps queued ahead.
//!
//! Token and position are in device memory. A step reads the token of the previous step, writes its own, and advances
//! the position; so the next step is queued before the host has read this step's token, and the GPU never waits for the
//! host. The host reads ids from a ring buffer in its own memory that the device writes.

// Reason: the decoder relies on token ids and positions in device memory, which the engine keeps within their ranges.
#![allow(unsafe_code)]

mod blas;
mod buffer;
mod decoder;
mod error;
mod experts;
mod few_rows;
mod fp8;
mod gpu;
mod images;
mod kernels;
mod layers;
mod load;

mod quantised;
mod sizes;

#[cfg(test)]
mod tests;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use cudarc::driver::{CudaEvent, CudaGraph};

use self::{
    decoder::{Decoder, Weights},
    gpu::Ring,
    images::Needs,
    kernels::{Q8_0_STEP, SamplingBuffers, SamplingParameters},
    layers::Instance,
    sizes::Sizes,
};
pub use self::{
    error::CudaError,
    gpu::Gpu,
    images::{Manifest, dotted},
    load::LoadedGpu,
};
use super::{
    candle::{CandleOptions, memory},
    kv::{KvShape, TAKEN_BACK},
    launch::MAX_HEAD_DIM,
    routing::expert_use,
    sampling::{Picker, Sampling},
    speculation::Revisable,
};
use llm_cost::{Operator, spec::TensorShape};
use llmprof_config::{Dtype, KvCacheDtype};
use llmprof_event::{AllocatorSample, ExpertUse, Phase};
use llmprof_workload::{
    Engine, EngineError, PrepareStep, Progress, Prompts,
    listener::{Listener, Listeners, OperatorInstance, Span},
};

/// Steps queued beyond the one whose token the host waits for.
const QUEUED_AHEAD: u32 = 2;
/// Capacity of the ring in steps, more than are ever queued.
const RING_SLOTS: usize = 2 * TAKEN_BACK;

pub struct CudaEngine {
    // Dropped before the decoder: a graph refers to its buffers.
    graph: Option<CudaGraph>,
    /// The step of several positions, for speculation.
    checking: Option<Checking>,
    /// The operators of the graph's nodes, in execution order.
    nodes: Vec<OperatorInstance>,
    decoder: Decoder,
    ring: Ring,
    sampler: Sampler,
    /// The numbers of steps queued on the stream, and of steps whose tokens were returned, over all requests.
    queued: u32,
    taken: u32,
    may_work_ahead: bool,
    /// The position that the next queued step writes; 0 before prefill.
    position: usize,
    /// Events at the beginning and the end of the steps that are queued and not yet taken.
    events: VecDeque<(CudaEvent, CudaEvent)>,
    spare_events: Vec<(CudaEvent, CudaEvent)>,
    device_time: Option<Duration>,
}

/// A step that extends the sequence by several given tokens.
struct Checking {
    graph: Option<CudaGraph>,
    sampling: SamplingBuffers,
    ring: Ring,
    /// Steps so far.
    steps: u32,
    /// The operators of the graph's nodes.
    nodes: Vec<OperatorInstance>,
}

/// How tokens are sampled.
enum Sampler {
    Argmax,
    Random(SamplingParameters),
    /// On the host, which knows the previous tokens.
    Host(Picker),
}

/// The bytes that a tensor of `bytes` takes on the host: tiles of quantised weights have full groups of columns.
fn tiled_bytes(tensor: &TensorShape, bytes: u64, dtype: Dtype) -> u64 {
    const COLUMNS: u64 = 128;
    match *tensor.shape.as_slice() {
        [_, columns] if columns > 0 && bytes < tensor.elements() * dtype.bytes() => {
            let columns = columns as u64;
            (bytes as f64 * columns.next_multiple_of(COLUMNS) as f64 / columns as f64) as u64
        }
        _ => bytes,
    }
}

impl CudaEngine {
    /// Checks that the model fits on the device, without creating it.
    pub fn check(options: &CandleOptions, index: usize) -> Result<(), EngineError> {
        let gpu = Gpu::open(index, false)?;
        Self::check_on(&gpu, options)
    }

    fn check_on(gpu: &Gpu, options: &CandleOptions) -> Result<(), EngineError> {
        options.check_lengths()?;
        options.kv_shape().check(&options.spec, Q8_0_STEP)?;
        let CandleOptions { spec, model, dtype, batch, max_positions, .. } = options;
        if spec.head_dim > MAX_HEAD_DIM {
            return Err(EngineError::Backend(format!(
                "head_dim {} exceeds the {MAX_HEAD_DIM} of the built-in kernels; use runtime=candle_stock",
                spec.head_dim
            )));
        }
        if let Some(experts) = spec.experts {
            experts::check(&experts, spec.hidden).map_err(EngineError::Backend)?;
        }
        let footprint = |dtype, positions: usize| {
            let tensors = spec.tensors();
            let bytes = |tensor| tiled_bytes(tensor, options.tensor_bytes(tensor, dtype), dtype);
            let weight_bytes = tensors.iter().map(bytes).sum();
            let given = Self::sizes(options);
            let cache = KvShape { positions, ..given.cache };
            let sizes = Sizes { cache, prompt: given.prompt.min(positions), ..given };
            decoder::footprint(spec, dtype, weight_bytes, options.is_quantised(), &sizes)
        };
        let lengths = (*batch, *max_positions);
        memory::check_footprint(model, *dtype, &footprint, lengths, gpu.free_bytes()?, Some(&gpu.name()))
    }

    fn sizes(options: &CandleOptions) -> Sizes {
        Sizes { cache: options.kv_shape(), prompt: options.prompt_tokens, step: options.step_positions }
    }

    /// Allocates weights, cache and buffers, and runs every shape once, so that no code is loaded during a measured
    /// request.
    pub fn new(options: &CandleOptions, index: usize, progress: Progress<'_>) -> Result<Self, EngineError> {
        let mut gpu = Gpu::open(index, options.cublas)?;
        Self::check_on(&gpu, options)?;
        let plain = options.fused_step && !options.is_quantised() && !options.is_fp8();
        let sizes = Self::sizes(options);
        let instance = Instance::find(&options.spec, options.dtype, &sizes).filter(|_| plain);
        let needs = Needs {
            quantised: options.is_quantised() && !options.is_fp8(),
            experts: options.spec.experts.is_some(),
            fp8: options.is_fp8(),
            eight_bit_cache: options.kv_cache != KvCacheDtype::Auto,
            layers: instance.is_some(),
        };
        if !gpu.load_kernels(options.dtype, needs, &mut |done, total| {
            progress(PrepareStep::Kernels, done, total)
        })? {
            return Err(EngineError::Cancelled);
        }
        let CandleOptions { spec, dtype, batch, prompt_tokens, .. } = options;
        let source = match &options.checkpoint {
            Some(checkpoint) => Weights::Checkpoint(checkpoint),
            None => Weights::Synthetic(options.synthetic()),
        };
        let mut decoder = Decoder::new(gpu, spec, *dtype, &source, &sizes, progress)?;
        if let Some(instance) = instance {
            decoder.fuse_layers(instance, &sizes)?;
        }
        let gpu = &decoder.kernels.gpu;
        let ring = gpu.ring(RING_SLOTS, *batch)?;
        let checking = match options.step_positions {
            0 | 1 => None,
            positions => Some(Checking {
                graph: None,
                sampling: SamplingBuffers::new(gpu, positions, spec.vocab)?,
                ring: gpu.ring(RING_SLOTS, positions)?,
                steps: 0,
                nodes: Vec::new(),
            }),
        };
        let mut engine = CudaEngine {
            graph: None,
            checking,
            nodes: Vec::new(),
            decoder,
            ring,
            sampler: Sampler::new(&options.sampling),
            queued: 0,
            taken: 0,
            may_work_ahead: true,
            position: 0,
            events: VecDeque::new(),
            spare_events: Vec::new(),
            device_time: None,
        };
        if !progress(PrepareStep::Kernels, 0, 1) {
            return Err(EngineError::Cancelled);
        }
        engine.warm_up(*prompt_tokens, options.cuda_graphs)?;
        Ok(engine)
    }

    /// Runs one request of the real lengths, and captures the graph of a decode step if `graphs` is set.
    fn warm_up(&mut self, prompt_tokens: usize, graphs: bool) -> Result<(), EngineError> {
        let batch = self.decoder.heads().batch;
        self.prefill(&Prompts { ids: vec![0; batch * prompt_tokens.max(1)], batch })?;
        if self.position < self.decoder.heads().capacity {
            self.decode()?;
        }
        if let Some(checking) = &self.checking
            && self.position + checking.sampling.batch <= self.decoder.heads().capacity
        {
            self.extend(&vec![0; checking.sampling.batch])?;
        }
        if graphs && !matches!(self.sampler, Sampler::Host(_)) {
            let (graph, nodes) = self.captured(|engine| {
                // SAFETY: captured, not run. `queue_decode` runs it with a position below the capacity.
                unsafe { engine.decoder.decode() }?;
                engine.choose(1)
            })?;
            (self.graph, self.nodes) = (Some(graph), nodes);
            if let Some(mut checking) = self.checking.take() {
                let (graph, nodes) = self.captured(|engine| {
                    // SAFETY: captured, not run. `extend` runs it with tokens and a position that fit.
                    unsafe { engine.decoder.extend(&checking.sampling) }?;
                    engine.choose_into(&checking.sampling, &checking.ring, 0)
                })?;
                (checking.graph, checking.nodes) = (Some(graph), nodes);
                self.checking = Some(checking);
            }
        }
        self.decoder.forget_routed()?;
        self.reset()
    }

    /// A step as a graph, and the operators of its nodes.
    fn captured(
        &mut self,
        step: impl FnOnce(&Self) -> Result<(), CudaError>,
    ) -> Result<(CudaGraph, Vec<OperatorInstance>), CudaError> {
        let counter = Arc::new(self.decoder.kernels.gpu.node_counter());
        let listener: Arc<dyn Listener> = counter.clone();
        self.decoder.listeners = Listeners::from_iter([listener]);
        let graph = self.decoder.kernels.gpu.capture(|| step(self));
        self.decoder.listeners = Listeners::default();
        Ok((graph?, counter.nodes()))
    }

    /// Samples tokens from the logits, on the device.
    fn choose(&self, advance: usize) -> Result<(), CudaError> {
        self.choose_into(&self.decoder.sampling, &self.ring, advance)
    }

    fn choose_into(&self, buffers: &SamplingBuffers, ring: &Ring, advance: usize) -> Result<(), CudaError> {
        let kernels = &self.decoder.kernels;
        self.decoder.listeners.operator(Operator::Sampling, None, || match &self.sampler {
            Sampler::Argmax => kernels.argmax(buffers, ring, advance),
            Sampler::Random(parameters) => kernels.sample(buffers, ring, advance, parameters),
            Sampler::Host(_) => kernels.finish_step(buffers, ring, advance),
        })
    }

    /// Sets the position and the step count that the device continues from.
    fn set_progress(&self, buffers: &SamplingBuffers, steps: u32) -> Result<(), CudaError> {
        let position = u32::try_from(self.position).unwrap_or(u32::MAX);
        self.decoder.kernels.gpu.upload(&buffers.progress, &[position, steps])
    }

    fn check_ids(&self, ids: &[u32]) -> Result<(), EngineError> {
        let vocab = self.decoder.vocab();
        match ids.iter().find(|id| **id as usize >= vocab) {
            Some(id) => Err(EngineError::Backend(format!("token {id} is not in a vocabulary of {vocab}"))),
            None => Ok(()),
        }
    }

    /// The step of several positions, between two events.
    fn checked(&mut self, ids: &[u32], checking: &mut Checking) -> Result<Vec<u32>, EngineError> {
        let gpu = &self.decoder.kernels.gpu;
        // Unused positions are computed too: later steps overwrite them.
        let mut padded = vec![0; checking.sampling.batch];
        padded[..ids.len()].copy_from_slice(ids);
        gpu.upload(&checking.sampling.tokens, &padded)?;
        self.set_progress(&checking.sampling, checking.steps)?;
        let events = match self.spare_events.pop() {
            Some(events) => events,
            None => (gpu.event()?, gpu.event()?),
        };
        gpu.record(&events.0)?;
        self.decoder.listeners.during(Span::Step(Phase::Decode), || match &checking.graph {
            Some(graph) => Ok::<(), CudaError>(graph.launch()?),
            None => {
                // SAFETY: tokens and position are checked by the caller and uploaded above.
                unsafe { self.decoder.extend(&checking.sampling) }?;
                self.choose_into(&checking.sampling, &checking.ring, 0)
            }
        })?;
        gpu.record(&events.1)?;
        checking.steps = checking.steps.wrapping_add(1);
        let mut chosen = gpu.wait(&checking.ring, checking.steps)?;
        chosen.truncate(ids.len());
        self.device_time = self.elapsed(&events);
        self.spare_events.push(events);
        self.position += ids.len();
        Ok(chosen)
    }

    /// The time between two events; waits for the second.
    fn elapsed(&self, events: &(CudaEvent, CudaEvent)) -> Option<Duration> {
        events.1.synchronize().ok()?;
        let ms = events.0.elapsed_ms(&events.1).ok()?;
        Some(Duration::from_secs_f64(f64::from(ms) / 1e3))
    }

    /// Samples tokens on the host if the device cannot; the device gets them before it counts the step.
    fn choose_on_host(&mut self) -> Result<(), CudaError> {
        let Sampler::Host(picker) = &mut self.sampler else { return Ok(()) };
        let (gpu, buffers) = (&self.decoder.kernels.gpu, &self.decoder.sampling);
        let mut logits = gpu.download::<f32>(&buffers.logits, buffers.batch * buffers.vocab)?;
        // An index into a row of logits is below the vocabulary.
        let ids = picker.pick(&mut logits, buffers.vocab);
        gpu.upload(&buffers.tokens, &ids)
    }

    /// Queues a step on the stream between two events.
    fn queue(
        &mut self,
        phase: Phase,
        advance: usize,
        step: impl FnOnce(&mut Self) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let gpu = &self.decoder.kernels.gpu;
        let events = match self.spare_events.pop() {
            Some(events) => events,
            None => (gpu.event()?, gpu.event()?),
        };
        gpu.record(&events.0)?;
        // A few reference counts, once per step.
        let listeners = self.decoder.listeners.clone();
        listeners.during(Span::Step(phase), || step(self))?;
        self.decoder.kernels.gpu.record(&events.1)?;
        self.events.push_back(events);
        self.queued = self.queued.wrapping_add(1);
        self.position += advance;
        Ok(())
    }

    /// Waits for the oldest queued step and returns its tokens.
    fn take(&mut self) -> Result<Vec<u32>, EngineError> {
        let ids = self.decoder.kernels.gpu.wait(&self.ring, self.taken.wrapping_add(1))?;
        self.taken = self.taken.wrapping_add(1);
        self.device_time = None;
        if let Some(events) = self.events.pop_front() {
            // The event completes shortly after the ids; the steps queued ahead keep the device busy.
            self.device_time = self.elapsed(&events);
            self.spare_events.push(events);
        }
        Ok(ids)
    }

    fn queue_decode(&mut self) -> Result<(), CudaError> {
        assert!(self.position < self.decoder.heads().capacity, "a decode step beyond the cache");
        self.queue(Phase::Decode, 1, |engine| match &engine.graph {
            Some(graph) => Ok(graph.launch()?),
            None => {
                // SAFETY: the position on the device is `position` when the step runs, checked above.
                unsafe { engine.decoder.decode() }?;
                engine.choose_on_host()?;
                engine.choose(1)
            }
        })
    }
}

impl Sampler {
    fn new(sampling: &Sampling) -> Sampler {
        if sampling.is_argmax() {
            Sampler::Argmax
        } else if sampling.no_repeat_ngram_size > 0 {
            Sampler::Host(Picker::new(sampling.clone()))
        } else {
            Sampler::Random(SamplingParameters {
                temperature: sampling.temperature as f32,
                top_k: sampling.top_k.unwrap_or(0),
                top_p: sampling.top_p as f32,
                seed: sampling.seed,
            })
        }
    }
}

impl Revisable for CudaEngine {
    fn position(&self) -> usize {
        self.position
    }

    fn extend(&mut self, ids: &[u32]) -> Result<Vec<u32>, EngineError> {
        self.check_ids(ids)?;
        let capacity = self.decoder.heads().capacity;
        let fits = |checking: &mut Checking| (2..=checking.sampling.batch).contains(&ids.len());
        let Some(mut checking) = self.checking.take_if(fits) else {
            return ids.iter().try_fold(Vec::new(), |mut all, id| {
                all.extend(self.propose(&[*id], 1)?);
                Ok(all)
            });
        };
        let end = self.position + checking.sampling.batch;
        let chosen = match end <= capacity {
            true => self.checked(ids, &mut checking),
            false => Err(EngineError::ContextTooLong { capacity, asked: end }),
        };
        self.checking = Some(checking);
        chosen
    }

    fn take_back(&mut self, position: usize) -> Result<(), EngineError> {
        // Steps queued ahead would continue from another token.
        if self.queued != self.taken {
            self.synchronize()?;
            self.taken = self.queued;
            self.spare_events.extend(self.events.drain(..));
        }
        self.position = self.position.min(position);
        Ok(())
    }

    /// All steps are queued at once: the device takes each token from the previous step.
    fn propose(&mut self, ids: &[u32], count: usize) -> Result<Vec<u32>, EngineError> {
        self.check_ids(ids)?;
        let capacity = self.decoder.heads().capacity;
        let steps = ids.len() + count.saturating_sub(1);
        let end = self.position + steps;
        if end > capacity || steps > RING_SLOTS {
            return Err(EngineError::ContextTooLong { capacity, asked: end });
        }
        self.take_back(self.position)?;
        self.set_progress(&self.decoder.sampling, self.queued)?;
        for step in 0..steps {
            if let Some(id) = ids.get(step) {
                self.decoder.kernels.gpu.upload(&self.decoder.sampling.tokens, &[*id])?;
            }
            self.queue_decode()?;
        }
        let mut chosen = Vec::with_capacity(count);
        let mut took = Some(Duration::ZERO);
        for step in 0..steps {
            let next = self.take()?;
            took = took.zip(self.device_time).map(|(sum, step)| sum + step);
            if step + 1 >= ids.len() {
                chosen.extend(next);
            }
        }
        // The total time of all steps.
        self.device_time = took;
        Ok(chosen)
    }
}

impl Engine for CudaEngine {
    fn prefill(&mut self, prompts: &Prompts) -> Result<Vec<u32>, EngineError> {
        let heads = *self.decoder.heads();
        let length = prompts.validate(heads.batch, self.decoder.vocab())?;
        if length > self.decoder.longest_prompt() || length > heads.capacity {
            return Err(EngineError::ContextTooLong {
                capacity: self.decoder.longest_prompt(),
                asked: length,
            });
        }
        self.reset()?;
        if self.queued > 0 && llmprof_base::process::crash::fault_requested("gpu") {
            self.decoder.kernels.gpu.inject_fault()?;
        }
        if let Sampler::Host(picker) = &mut self.sampler {
            picker.begin(prompts);
        }
        self.decoder.rewind()?;
        self.queue(Phase::Prefill, length, |engine| {
            // SAFETY: rewound above; ids and length are checked above.
            unsafe { engine.decoder.prefill(&prompts.ids) }?;
            engine.choose_on_host()?;
            engine.choose(length)
        })?;
        self.take()
    }

    fn decode(&mut self) -> Result<Vec<u32>, EngineError> {
        if self.position == 0 {
            return Err(EngineError::Backend("decode was called before prefill".to_owned()));
        }
        let capacity = self.decoder.heads().capacity;
        // The next step needs the token that the host samples.
        let ahead = match self.sampler {
            Sampler::Host(_) => 0,
            _ if !self.may_work_ahead => 0,
            _ => QUEUED_AHEAD,
        };
        while self.queued.wrapping_sub(self.taken) <= ahead && self.position < capacity {
            self.queue_decode()?;
        }
        if self.queued == self.taken {
            return Err(EngineError::ContextTooLong { capacity, asked: capacity + 1 });
        }
        self.take()
    }

    fn expert_use(&self) -> Result<Option<ExpertUse>, EngineError> {
        Ok(expert_use(&self.decoder.routed()?))
    }

    fn set_listeners(&mut self, listeners: Listeners) {
        if self.graph.is_some() {
            listeners.graph_captured(&self.nodes);
        }
        if let Some(checking) = self.checking.as_ref().filter(|checking| checking.graph.is_some()) {
            listeners.graph_captured(&checking.nodes);
        }
        self.decoder.listeners = listeners;
    }

    fn work_ahead(&mut self, may: bool) {
        self.may_work_ahead = may;
    }

    fn steps_ahead(&self) -> usize {
        self.queued.wrapping_sub(self.taken) as usize
    }

    fn synchronize(&mut self) -> Result<(), EngineError> {
        Ok(self.decoder.kernels.gpu.synchronize()?)
    }

    fn reset(&mut self) -> Result<(), EngineError> {
        // Steps that were queued ahead of an early end run, and their tokens are discarded.
        self.synchronize()?;
        self.taken = self.queued;
        self.spare_events.extend(self.events.drain(..));
        self.position = 0;
        Ok(())
    }

    fn remark(&self) -> Option<String> {
        let why = self.decoder.kernels.gpu.without_cublas()?;
        Some(format!(
            "{why}: prefill uses the built-in GEMM kernels, which are slower; decode is not affected"
        ))
    }

    fn device_time(&self) -> Option<Duration> {
        self.device_time
    }

    fn allocator(&self) -> Option<AllocatorSample> {
        Some(self.decoder.kernels.gpu.allocator())
    }
}
