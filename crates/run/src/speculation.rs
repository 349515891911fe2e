//! Speculative decoding as configured, validated before the run.

use thiserror::Error;

use super::inputs::{InputsError, Model};
use llmprof_config::{RunConfig, SpeculativeMethod};
use llmprof_engine::{kv::TAKEN_BACK, speculation::Assumed};
use llmprof_event::{ModelEngine, WorkKind};

/// Maximum draft tokens per step.
const MAX_TOKENS: u32 = TAKEN_BACK as u32 - 1;

#[derive(Debug, Error)]
pub enum SpeculationError {
    #[error("runtime.speculative.tokens={0} is not in 1 to {MAX_TOKENS}")]
    Tokens(u32),
    #[error("runtime.speculative.ngram={0}: at least one token is searched for")]
    Ngram(u32),
    #[error("speculative decoding runs one sequence at a time: set runtime.batch_size=1, not {0}")]
    Batch(u32),
    #[error(
        "runtime.speculative.method=draft needs a second model: add +model@draft=NAME, e.g. +model@draft=qwen2_5_0_5b"
    )]
    NoDraft,
    #[error("the draft model: {0}")]
    Draft(#[source] InputsError),
    #[error("runtime.speculative.acceptance={0} is not in 0 to 1")]
    Acceptance(f64),
    #[error(
        "runtime.speculative.acceptance is for random weights; trained ones decide themselves which tokens are accepted: leave it null"
    )]
    Trained,
    #[error("infer.no_repeat_ngram_size cannot be combined with speculative decoding")]
    NoRepeat,
}

/// The source of draft tokens, and their number per step.
#[derive(Debug, Clone)]
pub(crate) struct SpeculationPlan {
    pub source: ProposedBy,
    pub tokens: usize,
    pub assumed: Option<Assumed>,
}

#[derive(Debug, Clone)]
pub(crate) enum ProposedBy {
    Ngram { longest: usize },
    Draft { model: Model, name: String },
}

/// Only the program's own decoder verifies draft tokens.
const OWN: WorkKind = WorkKind::Model(ModelEngine::Candle);

impl SpeculationPlan {
    /// `None` if every step gives one token.
    pub fn new(config: &RunConfig, model: &Model) -> Result<Option<SpeculationPlan>, SpeculationError> {
        let Some(speculative) = &config.runtime.speculative else { return Ok(None) };
        let Some(method) = speculative.method else { return Ok(None) };
        if !(1..=MAX_TOKENS).contains(&speculative.tokens) {
            return Err(SpeculationError::Tokens(speculative.tokens));
        }
        if config.runtime.batch_size != 1 {
            return Err(SpeculationError::Batch(config.runtime.batch_size));
        }
        if config.infer.no_repeat_ngram_size > 0 {
            return Err(SpeculationError::NoRepeat);
        }
        let assumed = match speculative.acceptance {
            None => None,
            Some(_) if model.weights_path().is_some() => return Err(SpeculationError::Trained),
            Some(share) if !(0.0..=1.0).contains(&share) => return Err(SpeculationError::Acceptance(share)),
            Some(acceptance) => Some(Assumed { acceptance, seed: config.runtime.seed }),
        };
        let source = match (method, &config.draft) {
            (SpeculativeMethod::Ngram, _) if speculative.ngram == 0 => {
                return Err(SpeculationError::Ngram(speculative.ngram));
            }
            (SpeculativeMethod::Ngram, _) => ProposedBy::Ngram { longest: speculative.ngram as usize },
            (SpeculativeMethod::Draft, None) => return Err(SpeculationError::NoDraft),
            (SpeculativeMethod::Draft, Some(draft)) => {
                let of_draft = RunConfig { model: draft.clone(), ..config.clone() };
                let (model, _) = Model::open(&of_draft, &OWN).map_err(SpeculationError::Draft)?;
                ProposedBy::Draft { model, name: draft.name.clone() }
            }
        };
        Ok(Some(SpeculationPlan { source, tokens: speculative.tokens as usize, assumed }))
    }

    /// A note for the user before the run.
    pub fn remark(&self, model: &Model) -> Option<String> {
        match self.assumed {
            Some(Assumed { acceptance, .. }) => Some(format!(
                "{:.0} % of the draft tokens are assumed to be accepted (runtime.speculative.acceptance)",
                acceptance * 100.0
            )),
            None if model.weights_path().is_none() => Some(
                "random weights agree with draft tokens only by chance; runtime.speculative.acceptance=0.7 assumes an acceptance rate"
                    .to_owned(),
            ),
            None => None,
        }
    }
}
