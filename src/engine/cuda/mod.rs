//! The decoder on NVIDIA GPUs: kernels of our own, a decode step as one CUDA graph, steps queued ahead.
//!
//! Token and position live on the device. A step takes the token the last one chose, writes its own, and moves the
//! position on; so the next step is queued before the host has seen this one's token, and the GPU never waits for the
//! host. The host reads ids from a ring in its own memory that the device writes.

mod decoder;
mod gpu;
mod kernels;
mod load;
mod trouble;

#[cfg(test)]
mod tests;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use cudarc::driver::{CudaEvent, CudaGraph};

pub use self::{decoder::Footprint, gpu::Gpu, load::LoadedGpu, trouble::CudaTrouble};
use self::{
    decoder::{Decoder, Source},
    gpu::Ring,
    kernels::Odds,
};
use super::{
    Engine, EngineError, KERNELS, Progress, Prompts,
    candle::{CandleOptions, SyntheticWeights, memory::gigabytes},
    sampling::{Picker, Sampling},
};
use crate::profile::listener::{Listener, Listeners, Part};
use crate::{
    event::{AllocatorSample, Phase},
    model::Operator,
};

/// Steps under way beyond the one that is waited for.
const AHEAD: u32 = 2;
/// Steps whose ids the ring holds; more than are ever under way.
const SLOTS: usize = 16;

pub struct CudaEngine {
    // Before the decoder: a graph refers to its buffers.
    graph: Option<CudaGraph>,
    /// What the graph's nodes belong to, in their order.
    nodes: Vec<Part>,
    decoder: Decoder,
    ring: Ring,
    choice: Choice,
    /// Steps put on the stream, and steps whose tokens were given out. They count on over all requests.
    queued: u32,
    taken: u32,
    /// The position the next queued step writes; 0 before prefill.
    position: usize,
    /// Events at the beginning and the end of the steps that are queued and not yet taken.
    marks: VecDeque<(CudaEvent, CudaEvent)>,
    spare_marks: Vec<(CudaEvent, CudaEvent)>,
    took: Option<Duration>,
}

/// Who chooses tokens.
enum Choice {
    Likeliest,
    Drawn(Odds),
    /// The host, which knows what came before.
    Host(Picker),
}

impl CudaEngine {
    /// Whether the model fits on the device, before anything is allocated there.
    pub fn check(options: &CandleOptions, index: usize) -> Result<(), EngineError> {
        let gpu = Gpu::open(index)?;
        Self::check_on(&gpu, options)
    }

    fn check_on(gpu: &Gpu, options: &CandleOptions) -> Result<(), EngineError> {
        options.check_lengths()?;
        let CandleOptions { spec, model, dtype, batch, max_positions, prompt_tokens, .. } = options;
        if spec.head_dim > 256 {
            let words = format!(
                "head_dim {} is beyond the 256 our kernels take; use runtime=candle_stock",
                spec.head_dim
            );
            return Err(EngineError::Backend(words));
        }
        if options.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.is_quantised()) {
            let words = "quantised weights run on the CPU (runtime.device=cpu), as plain numbers \
                         (model.dequantize=true), or in candle's own models (runtime=candle_stock)";
            return Err(EngineError::Backend(words.to_owned()));
        }
        let need = Footprint::new(spec, *dtype, *batch, *max_positions, *prompt_tokens).total_bytes();
        let (free, _) = gpu.memory()?;
        if need <= free {
            return Ok(());
        }
        Err(EngineError::OutOfMemory {
            what: model.clone(),
            need: gigabytes(need),
            dtype: dtype.name().to_owned(),
            free: format!("{} on {}", gigabytes(free), gpu.name()),
            remedy:
                "a smaller model, runtime.batch_size or dataset.prompt_tokens, or end what else runs there"
                    .to_owned(),
        })
    }

    /// Makes weights, cache and buffers, and runs every shape once, so that nothing is loaded or compiled while a
    /// request is measured.
    pub fn new(options: &CandleOptions, index: usize, progress: Progress<'_>) -> Result<Self, EngineError> {
        let gpu = Gpu::open(index)?;
        Self::check_on(&gpu, options)?;
        let CandleOptions { spec, dtype, batch, max_positions, prompt_tokens, .. } = options;
        let source = match &options.checkpoint {
            Some(checkpoint) => Source::Checkpoint(checkpoint),
            None => Source::Synthetic(SyntheticWeights::new(options.seed).for_model(spec)),
        };
        let sizes = (*batch, *max_positions, *prompt_tokens);
        let decoder = Decoder::new(gpu, spec, *dtype, &source, sizes, progress)?;
        let ring = decoder.kernels.gpu.ring(SLOTS, *batch)?;
        let mut engine = CudaEngine {
            graph: None,
            nodes: Vec::new(),
            decoder,
            ring,
            choice: Choice::new(&options.sampling),
            queued: 0,
            taken: 0,
            position: 0,
            marks: VecDeque::new(),
            spare_marks: Vec::new(),
            took: None,
        };
        if !progress(KERNELS, 0, 1) {
            return Err(EngineError::Cancelled);
        }
        engine.warm_up(*prompt_tokens, options.cuda_graphs)?;
        Ok(engine)
    }

    /// One request of the real lengths, and the graph of a step where that is asked for.
    fn warm_up(&mut self, prompt_tokens: usize, graphs: bool) -> Result<(), EngineError> {
        let batch = self.decoder.heads().batch;
        self.prefill(&Prompts { ids: vec![0; batch * prompt_tokens.max(1)], batch })?;
        if self.position < self.decoder.heads().capacity {
            self.decode()?;
        }
        if graphs && !matches!(self.choice, Choice::Host(_)) {
            let counter = Arc::new(self.decoder.kernels.gpu.node_counter());
            let listener: Arc<dyn Listener> = counter.clone();
            self.decoder.listeners = Listeners::from(vec![listener]);
            let graph = self.decoder.kernels.gpu.capture(|| {
                self.decoder.decode()?;
                self.choose(1)
            });
            self.decoder.listeners = Listeners::default();
            self.graph = Some(graph?);
            self.nodes = counter.nodes();
        }
        self.reset()
    }

    /// Chooses tokens from the logits, on the device.
    fn choose(&self, advance: usize) -> Result<(), CudaTrouble> {
        let (kernels, picking) = (&self.decoder.kernels, &self.decoder.picking);
        self.decoder.listeners.part(Operator::Sampling, None, || match &self.choice {
            Choice::Likeliest => kernels.pick_likeliest(picking, &self.ring, advance),
            Choice::Drawn(odds) => kernels.draw(picking, &self.ring, advance, odds),
            Choice::Host(_) => kernels.step_done(picking, &self.ring, advance),
        })
    }

    /// Lets the host choose, where it must; the device gets its tokens before it counts the step.
    fn choose_on_host(&mut self) -> Result<(), CudaTrouble> {
        let Choice::Host(picker) = &mut self.choice else { return Ok(()) };
        let (gpu, picking) = (&self.decoder.kernels.gpu, &self.decoder.picking);
        let mut logits = gpu.download::<f32>(&picking.logits, picking.batch * picking.vocab)?;
        let ids = picker.pick(&mut logits, picking.vocab);
        gpu.upload(&picking.tokens, 0, &ids)
    }

    /// Puts a step on the stream between two events.
    fn queue(
        &mut self,
        phase: Phase,
        advance: usize,
        step: impl FnOnce(&mut Self) -> Result<(), CudaTrouble>,
    ) -> Result<(), CudaTrouble> {
        let gpu = &self.decoder.kernels.gpu;
        let marks = match self.spare_marks.pop() {
            Some(marks) => marks,
            None => (gpu.event()?, gpu.event()?),
        };
        gpu.record(&marks.0)?;
        // A few pointers, once a step.
        let listeners = self.decoder.listeners.clone();
        listeners.step(phase, || step(self))?;
        self.decoder.kernels.gpu.record(&marks.1)?;
        self.marks.push_back(marks);
        self.queued = self.queued.wrapping_add(1);
        self.position += advance;
        Ok(())
    }

    /// Waits for the oldest step under way and gives its tokens.
    fn take(&mut self) -> Result<Vec<u32>, EngineError> {
        let ids = self.decoder.kernels.gpu.wait(&self.ring, self.taken.wrapping_add(1))?;
        self.taken = self.taken.wrapping_add(1);
        self.took = None;
        if let Some(marks) = self.marks.pop_front() {
            // The event comes a moment after the ids; steps queued ahead keep the device busy meanwhile.
            if marks.1.synchronize().is_ok() {
                self.took =
                    marks.0.elapsed_ms(&marks.1).ok().map(|ms| Duration::from_secs_f64(f64::from(ms) / 1e3));
            }
            self.spare_marks.push(marks);
        }
        Ok(ids)
    }

    fn queue_decode(&mut self) -> Result<(), CudaTrouble> {
        self.queue(Phase::Decode, 1, |engine| match &engine.graph {
            Some(graph) => Ok(graph.launch()?),
            None => {
                engine.decoder.decode()?;
                engine.choose_on_host()?;
                engine.choose(1)
            }
        })
    }
}

impl Choice {
    fn new(sampling: &Sampling) -> Choice {
        if sampling.is_argmax() {
            Choice::Likeliest
        } else if sampling.no_repeat_ngram_size > 0 {
            Choice::Host(Picker::new(sampling.clone()))
        } else {
            Choice::Drawn(Odds {
                temperature: sampling.temperature as f32,
                top_k: sampling.top_k.unwrap_or(0),
                top_p: sampling.top_p as f32,
                seed: sampling.seed,
            })
        }
    }
}

impl Engine for CudaEngine {
    fn prefill(&mut self, prompts: &Prompts) -> Result<Vec<u32>, EngineError> {
        let heads = *self.decoder.heads();
        let length = prompts.checked_length(heads.batch)?;
        if length > self.decoder.longest_prompt() || length > heads.capacity {
            return Err(EngineError::ContextTooLong {
                capacity: self.decoder.longest_prompt(),
                asked: length,
            });
        }
        self.reset()?;
        if let Choice::Host(picker) = &mut self.choice {
            picker.begin(prompts);
        }
        self.decoder.rewind()?;
        self.queue(Phase::Prefill, length, |engine| {
            engine.decoder.prefill(&prompts.ids)?;
            engine.choose_on_host()?;
            engine.choose(length)
        })?;
        self.take()
    }

    fn decode(&mut self) -> Result<Vec<u32>, EngineError> {
        if self.position == 0 {
            return Err(EngineError::Backend("decode was asked for before prefill".to_owned()));
        }
        let capacity = self.decoder.heads().capacity;
        // What the host chooses cannot be queued before it has.
        let ahead = if matches!(self.choice, Choice::Host(_)) { 0 } else { AHEAD };
        while self.queued.wrapping_sub(self.taken) <= ahead && self.position < capacity {
            self.queue_decode()?;
        }
        if self.queued == self.taken {
            return Err(EngineError::ContextTooLong { capacity, asked: capacity + 1 });
        }
        self.take()
    }

    fn tell(&mut self, listeners: Listeners) {
        if self.graph.is_some() {
            listeners.captured(&self.nodes);
        }
        self.decoder.listeners = listeners;
    }

    fn synchronize(&mut self) -> Result<(), EngineError> {
        Ok(self.decoder.kernels.gpu.synchronize()?)
    }

    fn reset(&mut self) -> Result<(), EngineError> {
        // Steps queued ahead of an end that came early are done, and their tokens forgotten.
        self.synchronize()?;
        self.taken = self.queued;
        self.spare_marks.extend(self.marks.drain(..));
        self.position = 0;
        Ok(())
    }

    fn device_time(&self) -> Option<Duration> {
        self.took
    }

    fn allocator(&self) -> Option<AllocatorSample> {
        Some(self.decoder.kernels.gpu.allocator())
    }
}
