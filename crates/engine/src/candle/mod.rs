//! Our own decoder on candle's tensors, on the CPU.

mod cache;
mod decoder;
mod experts;
mod load;
mod matrix;
pub mod memory;
pub(super) mod rope;
pub mod stock;

use std::sync::Arc;

use candle_core::{D, DType, Device};
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

pub use decoder::{Answered, Decoder};
pub use load::LoadedCpu;
pub use matrix::{Matrix, Tensors};

use super::{
    kv::KvShape,
    routing::expert_use,
    sampling::{Picker, Sampling},
    speculation::Revisable,
    weights::{Checkpoint, SyntheticWeights, WeightError, WeightSource},
};
use llm_cost::{ModelSpec, Operator, spec::TensorShape};
use llmprof_config::{Dtype, KvCacheDtype, Scheme};
use llmprof_event::{ExpertUse, Phase};
use llmprof_workload::{
    Engine, EngineError, Progress, Prompts,
    listener::{Listeners, Span},
};

fn candle_dtype(dtype: Dtype) -> DType {
    match dtype {
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::Bf16 => DType::BF16,
    }
}

impl From<WeightError> for EngineError {
    fn from(error: WeightError) -> Self {
        EngineError::Backend(error.to_string())
    }
}

/// Turns errors of candle into those of an engine.
pub(crate) trait CandleResult<T> {
    fn backend(self) -> Result<T, EngineError>;
}

impl<T> CandleResult<T> for candle_core::Result<T> {
    fn backend(self) -> Result<T, EngineError> {
        self.map_err(|error| EngineError::Backend(error.to_string()))
    }
}

/// The model, the workload and the device settings.
#[derive(Debug, Clone)]
pub struct CandleOptions {
    pub spec: ModelSpec,
    /// The model's name, for messages.
    pub model: String,
    pub dtype: Dtype,
    /// Threads of the CPU engine; `None` uses one per core.
    ///
    /// Our own work and candle's matrix products run on a pool of this size. What candle does on threads
    /// of its own (element-wise operations on large tensors, counted by `CANDLE_NUM_THREADS`) is not used.
    pub threads: Option<u32>,
    pub batch: usize,
    /// Prompt plus output tokens.
    pub max_positions: usize,
    /// Tokens of the longest prompt.
    pub prompt_tokens: usize,
    /// Seed of the synthetic weights.
    pub seed: u64,
    /// Trained weights; `None` for synthetic ones.
    pub checkpoint: Option<Arc<Checkpoint>>,
    /// How synthetic weights are quantised, if they are.
    pub scheme: Option<Scheme>,
    pub sampling: Sampling,
    /// On a GPU, a decode step is launched as one CUDA graph.
    pub cuda_graphs: bool,
    /// Use cuBLAS on a GPU where it is found.
    pub cublas: bool,
    /// On a GPU, one kernel does all layers of a decode step where there is one for the model.
    pub fused_step: bool,
    pub kv_cache: KvCacheDtype,
    /// The most positions of a step after the prompt: more than one where draft tokens are checked.
    pub step_positions: usize,
}

impl CandleOptions {
    /// Checks batch and lengths, for any device.
    pub fn check_lengths(&self) -> Result<(), EngineError> {
        let CandleOptions { spec, batch, max_positions, .. } = self;
        if *batch == 0 || *max_positions == 0 {
            return Err(EngineError::Backend("batch and length must be at least one".to_owned()));
        }
        if *max_positions > spec.max_positions {
            return Err(EngineError::ContextTooLong { capacity: spec.max_positions, asked: *max_positions });
        }
        Ok(())
    }

    /// Bytes of the weights, with plain ones as `dtype`.
    pub fn weight_bytes(&self, dtype: Dtype) -> u64 {
        self.spec.tensors().iter().map(|tensor| self.tensor_bytes(tensor, dtype)).sum()
    }

    pub fn tensor_bytes(&self, tensor: &TensorShape, dtype: Dtype) -> u64 {
        match &self.checkpoint {
            Some(checkpoint) => checkpoint.tensor_bytes(tensor, dtype),
            None => self.synthetic().tensor_bytes(tensor, dtype),
        }
    }

    /// Its cache.
    pub fn kv_shape(&self) -> KvShape {
        // Draft tokens may go beyond the last that is wanted.
        let positions = self.max_positions.saturating_add(self.step_positions.saturating_sub(1));
        KvShape { batch: self.batch, positions, dtype: self.kv_cache }
    }

    /// Its synthetic weights.
    pub fn synthetic(&self) -> SyntheticWeights {
        SyntheticWeights::new(self.seed).for_model(&self.spec).quantised(self.scheme, &self.spec)
    }

    /// Whether matrices are quantised.
    pub fn is_quantised(&self) -> bool {
        match &self.checkpoint {
            Some(checkpoint) => checkpoint.is_quantised(),
            None => self.scheme.is_some(),
        }
    }

    /// Whether a device keeps weights in FP8 (e4m3).
    pub fn is_fp8(&self) -> bool {
        match &self.checkpoint {
            Some(checkpoint) => checkpoint.is_fp8(),
            None => self.scheme == Some(Scheme::Fp8),
        }
    }

    /// Checks that everything fits into `free_bytes` of memory.
    fn check(&self, free_bytes: u64) -> Result<(), EngineError> {
        self.check_lengths()?;
        self.kv_shape().check(&self.spec, decoder_ops::Q8_0_BLOCK)?;
        let weight_bytes = |dtype| self.weight_bytes(dtype);
        let sizes = (self.kv_shape(), self.prompt_tokens);
        memory::check(&self.spec, &self.model, self.dtype, &weight_bytes, sizes, free_bytes)
    }
}

/// Generation for one batch of sequences of equal length.
pub struct CandleEngine {
    decoder: Decoder,
    picker: Picker,
    pool: ThreadPool,
    /// Each sequence's newest token, not yet in the cache; empty before prefill.
    last: Vec<u32>,
    /// Positions in the cache.
    position: usize,
}

impl CandleEngine {
    /// Checks lengths and memory for this machine's CPU, without creating the model.
    pub fn check(options: &CandleOptions) -> Result<(), EngineError> {
        // If free memory is unknown, try.
        options.check(memory::free_bytes().unwrap_or(u64::MAX))
    }

    /// Checks that the model fits, then creates its weights. `progress` may cancel.
    pub fn new(options: &CandleOptions, progress: Progress<'_>) -> Result<Self, EngineError> {
        Self::with_free_memory(options, memory::free_bytes().unwrap_or(u64::MAX), progress)
    }

    /// As [`CandleEngine::new`], with `free_bytes` as the free memory.
    pub fn with_free_memory(
        options: &CandleOptions,
        free_bytes: u64,
        progress: Progress<'_>,
    ) -> Result<Self, EngineError> {
        let CandleOptions { spec, dtype, .. } = options;
        options.check(free_bytes)?;
        let pool = thread_pool(options.threads)?;
        let synthetic = options.synthetic();
        let source: &dyn WeightSource = match &options.checkpoint {
            Some(checkpoint) => checkpoint.as_ref(),
            None => &synthetic,
        };
        // Outside of this pool, parallel work would start another one.
        let decoder =
            pool.install(|| Decoder::new(spec, *dtype, source, options.kv_shape(), &Device::Cpu, progress))?;
        let picker = Picker::new(options.sampling.clone());
        Ok(CandleEngine { decoder, picker, pool, last: Vec::new(), position: 0 })
    }

    /// Runs `ids` from the current position on and keeps the next token of each sequence.
    fn step(&mut self, phase: Phase, ids: &[u32]) -> Result<Vec<u32>, EngineError> {
        let next = self.run(phase, ids, Answered::Last)?;
        self.last.clone_from(&next);
        Ok(next)
    }

    /// Runs `ids` from the current position on and gives the tokens that follow those that are `answered`.
    fn run(&mut self, phase: Phase, ids: &[u32], answered: Answered) -> Result<Vec<u32>, EngineError> {
        let end = self.position + ids.len() / self.decoder.batch();
        if end > self.decoder.capacity() {
            return Err(EngineError::ContextTooLong { capacity: self.decoder.capacity(), asked: end });
        }
        let (decoder, picker, position) = (&self.decoder, &mut self.picker, self.position);
        // Inside the pool from the start: a caller outside of it would sleep and wake at every GEMM.
        // Listeners are called on the one thread that runs the step.
        let listeners = decoder.listeners();
        let mut step = || {
            let logits = decoder.answer(ids, position, answered)?;
            listeners.operator(Operator::Sampling, None, || {
                if picker.sampling().is_argmax() {
                    return logits.argmax(D::Minus1)?.to_vec1::<u32>();
                }
                let vocab = logits.dim(D::Minus1)?;
                Ok(picker.pick(&mut logits.flatten_all()?.to_vec1()?, vocab))
            })
        };
        let next = self.pool.install(|| listeners.during(Span::Step(phase), &mut step)).backend()?;
        self.position = end;
        Ok(next)
    }
}

impl Revisable for CandleEngine {
    fn position(&self) -> usize {
        self.position
    }

    fn extend(&mut self, ids: &[u32]) -> Result<Vec<u32>, EngineError> {
        Prompts { ids: ids.to_vec(), batch: 1 }.validate(self.decoder.batch(), self.decoder.vocab())?;
        self.run(Phase::Decode, ids, Answered::All)
    }

    fn take_back(&mut self, position: usize) -> Result<(), EngineError> {
        self.position = self.position.min(position);
        Ok(())
    }
}

impl Engine for CandleEngine {
    fn prefill(&mut self, prompts: &Prompts) -> Result<Vec<u32>, EngineError> {
        prompts.validate(self.decoder.batch(), self.decoder.vocab())?;
        self.reset()?;
        self.picker.begin(prompts);
        self.step(Phase::Prefill, &prompts.ids)
    }

    fn decode(&mut self) -> Result<Vec<u32>, EngineError> {
        if self.last.is_empty() {
            return Err(EngineError::Backend("decode called before prefill".to_owned()));
        }
        let last = std::mem::take(&mut self.last);
        let next = self.step(Phase::Decode, &last);
        if next.is_err() {
            self.last = last;
        }
        next
    }

    fn synchronize(&mut self) -> Result<(), EngineError> {
        // CPU work is finished when it returns.
        Ok(())
    }

    fn reset(&mut self) -> Result<(), EngineError> {
        self.last.clear();
        self.position = 0;
        Ok(())
    }

    fn expert_use(&self) -> Result<Option<ExpertUse>, EngineError> {
        Ok(expert_use(&self.decoder.routed()))
    }

    fn set_listeners(&mut self, listeners: Listeners) {
        self.decoder.set_listeners(listeners);
    }
}

/// Threads of an engine on the CPU; `None` takes one for each core.
fn thread_pool(threads: Option<u32>) -> Result<ThreadPool, EngineError> {
    let refused = |e: ThreadPoolBuildError| {
        EngineError::Backend(format!(
            "cannot start the engine's threads: {e}; raise the limit on processes (ulimit -u), or set runtime.threads=1"
        ))
    };
    ThreadPoolBuilder::new()
        .num_threads(threads.unwrap_or(0) as usize)
        .thread_name(|i| format!("engine-{i}"))
        .build()
        .map_err(refused)
}

#[cfg(test)]
mod tests;
