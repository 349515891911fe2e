//! The interface of engines: prompts in, tokens out.

use std::{fmt, time::Duration};

use thiserror::Error;

use crate::listener::Listeners;
use llmprof_event::{AllocatorSample, ExpertUse, Speculation};

/// A batch of prompts of equal length, one sequence after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompts {
    pub ids: Vec<u32>,
    pub batch: usize,
}

impl Prompts {
    pub fn len(&self) -> usize {
        self.ids.len() / self.batch
    }

    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Returns the tokens per sequence if the prompts are `batch` sequences of equal length with ids below `vocab`.
    /// Every engine checks its prompts with this function before it reads them.
    pub fn validate(&self, batch: usize, vocab: usize) -> Result<usize, EngineError> {
        let invalid = |message: String| Err(EngineError::Backend(message));
        if self.batch != batch {
            return invalid(format!("the prompts have batch size {}, the engine has {batch}", self.batch));
        }
        let count = self.ids.len();
        if count == 0 || !count.is_multiple_of(batch) {
            return invalid(format!(
                "{count} prompt tokens cannot be divided into {batch} sequences of equal length"
            ));
        }
        match self.ids.iter().position(|id| *id as usize >= vocab) {
            Some(index) => invalid(format!(
                "prompt token {index} has id {}, and the model's vocabulary has {vocab} tokens; use the model's own tokenizer",
                self.ids[index]
            )),
            None => Ok(self.len()),
        }
    }
}

/// Runs one batch at a time. Both steps return once the new token ids are on the host, one for each sequence.
pub trait Engine {
    /// Reads the prompts into the cache and returns the first token of each sequence.
    fn prefill(&mut self, prompts: &Prompts) -> Result<Vec<u32>, EngineError>;

    /// Extends every sequence by one token, starting from the ids returned last. An engine that speculates extends its
    /// one sequence by several.
    fn decode(&mut self) -> Result<Vec<u32>, EngineError>;

    /// Allows or forbids steps to start before their tokens are asked for; engines that never do so ignore it.
    fn work_ahead(&mut self, _may: bool) {}

    /// Steps that have started and whose tokens have not been asked for.
    fn steps_ahead(&self) -> usize {
        0
    }

    /// Waits until the device is idle.
    fn synchronize(&mut self) -> Result<(), EngineError>;

    /// Discards the sequences; weights and buffers stay.
    fn reset(&mut self) -> Result<(), EngineError>;

    /// Duration of the last step by the device's own clock, if it has one.
    fn device_time(&self) -> Option<Duration> {
        None
    }

    /// The memory that the device's allocator has given out, if it is counted.
    fn allocator(&self) -> Option<AllocatorSample> {
        None
    }

    /// The expert assignments of all decode steps so far, if the model has experts. Waits for the device.
    fn expert_use(&self) -> Result<Option<ExpertUse>, EngineError> {
        Ok(None)
    }

    /// The draft tokens of the last decode step, if there were any.
    fn speculation(&self) -> Option<Speculation> {
        None
    }

    /// A remark for the user about this engine on this machine.
    fn remark(&self) -> Option<String> {
        None
    }

    /// Reports steps and operators to `listeners` from now on, as far as the engine knows its operators.
    fn set_listeners(&mut self, _listeners: Listeners) {}
}

#[derive(Debug, Error)]
pub enum EngineError {
    #[error("{what} needs {need} as {dtype}, {free} free; try {remedy}")]
    OutOfMemory { what: String, need: String, dtype: String, free: String, remedy: String },
    #[error(
        "the KV cache has {capacity} positions, and {asked} are needed; reduce dataset.prompt_tokens or infer.max_new_tokens"
    )]
    ContextTooLong { capacity: usize, asked: usize },
    #[error("device {asked:?} is not available: {remedy}")]
    NoDevice { asked: String, remedy: String },
    #[error("cancelled")]
    Cancelled,
    #[error("{0}")]
    Backend(String),
}

/// A step in the preparation of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrepareStep<'a> {
    /// Creates or reads the named tensor.
    Weights(&'a str),
    /// Loads the device's code and runs it once.
    Kernels,
}

impl fmt::Display for PrepareStep<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PrepareStep::Weights(_) => "weights",
            PrepareStep::Kernels => "kernels",
        })
    }
}

/// Called with the step of the preparation, its progress and its total: counts of weights for `Weights`, otherwise of
/// steps. Returns false to stop.
pub type Progress<'a> = &'a mut (dyn FnMut(PrepareStep<'_>, u64, u64) -> bool + Send);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_fill_the_batch_with_ids_of_the_vocabulary() {
        let validate = |ids: &[u32], batch| {
            Prompts { ids: ids.to_vec(), batch }.validate(2, 10).map_err(|error| error.to_string())
        };
        assert_eq!(validate(&[0, 9, 1, 2, 3, 4], 2), Ok(3));
        for (ids, batch, message) in [
            (&[1, 2][..], 1, "the prompts have batch size 1, the engine has 2"),
            (&[], 2, "0 prompt tokens cannot be divided into 2 sequences of equal length"),
            (&[1, 2, 3], 2, "3 prompt tokens cannot be divided into 2 sequences of equal length"),
            (&[1, 10], 2, "prompt token 1 has id 10, and the model's vocabulary has 10 tokens"),
            (&[u32::MAX, 0], 2, "prompt token 0 has id 4294967295"),
        ] {
            let error = validate(ids, batch).unwrap_err();
            assert!(error.starts_with(message), "{error}");
        }
    }
}
