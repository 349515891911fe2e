//! candle-transformers unmodified: every causal language model it has, behind the `Engine` trait.

mod backend;
mod config;
mod families;
mod model;
mod quantised;

use std::sync::Arc;

use candle_core::{D, DType, Device, Tensor};
use rayon::ThreadPool;

pub use families::CausalLm;
pub use model::{StockError, StockModel, is_known, model_types};

use super::{CandleResult, memory, thread_pool};
use crate::{
    device::unsupported,
    sampling::{Picker, Sampling},
};
use llmprof_config::Dtype;
use llmprof_event as event;
use llmprof_event::Phase;
use llmprof_workload::{
    Engine, EngineError, Progress, Prompts,
    listener::{Listeners, Span},
};

/// The model and the device.
#[derive(Debug, Clone)]
pub struct StockOptions {
    pub model: Arc<StockModel>,
    /// The model's name, for messages.
    pub name: String,
    pub dtype: Dtype,
    pub device: event::Device,
    /// Threads of the CPU engine; `None` is one per core. The number of candle's own threads is set
    /// by `CANDLE_NUM_THREADS`.
    pub threads: Option<u32>,
    pub batch: usize,
    /// Prompt and output together.
    pub max_positions: usize,
    /// Tokens of the longest prompt.
    pub prompt_tokens: usize,
    /// The seed of the synthetic weights.
    pub seed: u64,
    pub sampling: Sampling,
}

impl StockOptions {
    /// Checks lengths, batch, device and memory without building the model.
    pub fn check(&self) -> Result<(), EngineError> {
        match &self.device {
            // If free memory is unknown, the attempt is made.
            event::Device::Cpu => self.check_within(memory::free_bytes().unwrap_or(u64::MAX), None),
            #[cfg(feature = "candle-cuda")]
            event::Device::Cuda(index) => {
                let gpu = crate::cuda::Gpu::open(*index as usize, false)?;
                self.check_within(gpu.free_bytes()?, Some(&gpu.name()))
            }
            other => Err(unsupported(other)),
        }
    }

    /// Like [`StockOptions::check`], with `free_bytes` of free memory, on `gpu` if there is one.
    pub fn check_within(&self, free_bytes: u64, gpu: Option<&str>) -> Result<(), EngineError> {
        let StockOptions { model, name, dtype, batch, max_positions, prompt_tokens, .. } = self;
        if *batch == 0 || *max_positions == 0 {
            return Err(EngineError::Backend("batch and length must be at least one".to_owned()));
        }
        if let Some(capacity) = model.max_positions().filter(|limit| max_positions > limit) {
            return Err(EngineError::ContextTooLong { capacity, asked: *max_positions });
        }
        if *batch > 1 && !model.batches() {
            return Err(EngineError::Backend(format!(
                "candle-transformers' {} takes one sequence at a time; use runtime.batch_size=1",
                model.family()
            )));
        }
        let footprint = |dtype, positions: usize| {
            model.footprint(dtype, *batch, positions, (*prompt_tokens).min(positions))
        };
        memory::check_footprint(name, *dtype, &footprint, (*batch, *max_positions), free_bytes, gpu)
    }
}

/// Generation for one batch of sequences of equal length.
pub struct StockEngine {
    model: Box<dyn CausalLm>,
    picker: Picker,
    device: Device,
    /// The threads of the CPU engine. CUDA's stream belongs to the thread that built the model: the caller's.
    pool: Option<ThreadPool>,
    batch: usize,
    vocab: usize,
    max_positions: usize,
    /// Each sequence's newest token, not yet in the cache; empty before prefill.
    last: Vec<u32>,
    /// Positions in the cache.
    position: usize,
    /// They are notified of steps; candle-transformers reports nothing within a step.
    listeners: Listeners,
}

impl StockEngine {
    /// Checks that the model fits, then loads its weights. `progress` may cancel that.
    pub fn new(options: &StockOptions, progress: Progress<'_>) -> Result<Self, EngineError> {
        options.check()?;
        let device = device(&options.device)?;
        let pool = match options.device.is_cpu() {
            true => Some(thread_pool(options.threads)?),
            false => None,
        };
        let StockOptions { model, dtype, batch, seed, .. } = options;
        let made = on(pool.as_ref(), || model.make(*dtype, *seed, *batch, &device, progress))?;
        Ok(StockEngine {
            model: made,
            picker: Picker::new(options.sampling.clone()),
            device,
            pool,
            batch: *batch,
            vocab: model.vocab(),
            max_positions: options.max_positions,
            last: Vec::new(),
            position: 0,
            listeners: Listeners::default(),
        })
    }

    /// Runs `ids` from the current position on and keeps the next token of each sequence.
    fn step(&mut self, ids: &[u32]) -> Result<Vec<u32>, EngineError> {
        let (batch, vocab, position) = (self.batch, self.vocab, self.position);
        let end = position + ids.len() / batch;
        if end > self.max_positions {
            return Err(EngineError::ContextTooLong { capacity: self.max_positions, asked: end });
        }
        let (model, picker, device) = (&mut self.model, &mut self.picker, &self.device);
        let next = on(self.pool.as_ref(), || {
            let ids = Tensor::from_slice(ids, (batch, ids.len() / batch), device)?;
            // Some models have more rows in the head than there are tokens.
            let logits = model.forward(&ids, position)?.reshape((batch, ()))?.narrow(D::Minus1, 0, vocab)?;
            if picker.sampling().is_argmax() {
                return logits.contiguous()?.argmax(D::Minus1)?.to_vec1::<u32>();
            }
            let mut logits = logits.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
            Ok(picker.pick(&mut logits, vocab))
        })
        .backend()?;
        self.position = end;
        self.last.clone_from(&next);
        Ok(next)
    }
}

impl Engine for StockEngine {
    fn prefill(&mut self, prompts: &Prompts) -> Result<Vec<u32>, EngineError> {
        prompts.validate(self.batch, self.vocab)?;
        self.reset()?;
        self.picker.begin(prompts);
        let listeners = self.listeners.clone();
        listeners.during(Span::Step(Phase::Prefill), || self.step(&prompts.ids))
    }

    fn decode(&mut self) -> Result<Vec<u32>, EngineError> {
        if self.last.is_empty() {
            return Err(EngineError::Backend("decode called before prefill".to_owned()));
        }
        let last = std::mem::take(&mut self.last);
        let listeners = self.listeners.clone();
        let next = listeners.during(Span::Step(Phase::Decode), || self.step(&last));
        if next.is_err() {
            self.last = last;
        }
        next
    }

    fn set_listeners(&mut self, listeners: Listeners) {
        self.listeners = listeners;
    }

    fn synchronize(&mut self) -> Result<(), EngineError> {
        self.device.synchronize().backend()
    }

    fn reset(&mut self) -> Result<(), EngineError> {
        self.last.clear();
        self.position = 0;
        let model = &mut self.model;
        on(self.pool.as_ref(), || model.reset()).backend()
    }
}

/// Runs `work` on the pool, or on this thread if there is none.
fn on<T: Send>(pool: Option<&ThreadPool>, work: impl FnOnce() -> T + Send) -> T {
    match pool {
        Some(pool) => pool.install(work),
        None => work(),
    }
}

#[cfg(feature = "candle-cuda")]
fn device(device: &event::Device) -> Result<Device, EngineError> {
    let event::Device::Cuda(index) = device else { return Ok(Device::Cpu) };
    let device = Device::new_cuda(*index as usize).backend()?;
    if let Device::Cuda(cuda) = &device {
        // SAFETY: the events order streams among each other, and this device has one: the engine lives on one thread.
        #[allow(unsafe_code, reason = "the only way to spare two events for every tensor; see SAFETY")]
        unsafe {
            cuda.disable_event_tracking();
        }
    }
    Ok(device)
}

#[cfg(not(feature = "candle-cuda"))]
fn device(device: &event::Device) -> Result<Device, EngineError> {
    match device {
        event::Device::Cpu => Ok(Device::Cpu),
        other => Err(unsupported(other)),
    }
}
