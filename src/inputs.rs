//! What a run works on, found and checked before anything starts: the model's shape, weights, tokenizer and prompts.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use thiserror::Error;

use crate::{
    config::{PromptsConfig, RunConfig, Weights},
    engine::{
        candle::{Checkpoint, CheckpointError},
        workload::{Prompt, PromptSet, Workload},
    },
    model::{ModelSpec, SpecError},
    text::{TextError, Tokenizer, prompts},
};

#[derive(Debug, Error)]
pub enum InputsError {
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(
        "{} is not {model}: its {key} is {got}, not {wanted}; use model=local, with a model.name of your own",
        weights.display()
    )]
    OtherModel { weights: PathBuf, model: String, key: &'static str, got: usize, wanted: usize },
    #[error(
        "{key} needs a tokenizer; weights bring one: model.weights=<a checkpoint's directory or a .gguf file>"
    )]
    NoTokenizer { key: &'static str },
    #[error("{file}, prompt {number}: {tokens} tokens are more than dataset.prompt_tokens {limit} allows")]
    PromptTooLong { file: String, number: usize, tokens: usize, limit: u32 },
    #[error("{file}, prompt {number}: it has no tokens")]
    EmptyPrompt { file: String, number: usize },
    #[error("the tokenizer knows token {id}, the model has {vocab}: they do not belong together")]
    OtherTokenizer { id: u32, vocab: usize },
    #[error(
        "{prompt} prompt tokens and {output} output tokens are more than the {limit} positions {model} was made for; lower dataset.prompt_tokens or infer.max_new_tokens"
    )]
    TooLong { model: String, prompt: u32, output: u32, limit: usize },
}

/// The model and what it is asked.
#[derive(Debug, Clone)]
pub struct Inputs {
    pub spec: ModelSpec,
    /// Trained weights; `None` where they are synthetic.
    pub checkpoint: Option<Arc<Checkpoint>>,
    /// There where text is to be read or written.
    pub tokenizer: Option<Arc<Tokenizer>>,
    pub workload: Workload,
}

impl Inputs {
    pub fn open(config: &RunConfig) -> Result<Inputs, InputsError> {
        let config_json = config.model.config_json.as_deref().map(Path::new);
        let (spec, checkpoint) = match &config.model.weights {
            Weights::Path(path) => {
                let checkpoint = Checkpoint::open(path, config_json)?;
                same_model(config, &checkpoint)?;
                (checkpoint.spec().clone(), Some(Arc::new(checkpoint)))
            }
            Weights::Synthetic => match config_json {
                Some(path) => (ModelSpec::from_config_json(path)?, None),
                None => (ModelSpec::from_hf(&config.model.arch)?, None),
            },
        };
        let tokenizer = match text_needed_by(config) {
            Some(key) => Some(Arc::new(tokenizer(checkpoint.as_deref(), key)?)),
            None => None,
        };
        let prompt_set = match (&config.dataset.prompts, &tokenizer) {
            (Some(file), Some(tokenizer)) => {
                given(file, tokenizer, config.dataset.prompt_tokens, spec.vocab)?
            }
            _ => PromptSet::Random { tokens: config.dataset.prompt_tokens, vocab: spec.vocab as u32 },
        };
        let stops = tokenizer.as_ref().filter(|_| !config.infer.ignore_eos).map(|t| t.stop_ids().to_vec());
        let workload = Workload {
            requests: config.runtime.requests,
            warmup: config.runtime.warmup,
            batch: config.runtime.batch_size,
            prompts: prompt_set,
            output_tokens: config.infer.max_new_tokens,
            stop_ids: stops.unwrap_or_default(),
            seed: config.runtime.seed,
        };
        let (prompt, output) = (workload.prompt_tokens(), workload.output_tokens);
        if prompt as usize + output as usize > spec.max_positions {
            let model = config.model.name.clone();
            return Err(InputsError::TooLong { model, prompt, output, limit: spec.max_positions });
        }
        Ok(Inputs { spec, checkpoint, tokenizer, workload })
    }
}

/// A recording must not bear the name of a model it did not run: where the configuration has a shape, the weights
/// have the same.
fn same_model(config: &RunConfig, checkpoint: &Checkpoint) -> Result<(), InputsError> {
    let Ok(named) = ModelSpec::from_hf(&config.model.arch) else { return Ok(()) };
    let sizes = |spec: &ModelSpec| {
        [
            ("vocab_size", spec.vocab),
            ("hidden_size", spec.hidden),
            ("intermediate_size", spec.intermediate),
            ("num_hidden_layers", spec.layers),
            ("num_attention_heads", spec.heads),
            ("num_key_value_heads", spec.kv_heads),
            ("head_dim", spec.head_dim),
        ]
    };
    let mut pairs = sizes(checkpoint.spec()).into_iter().zip(sizes(&named));
    match pairs.find(|(got, wanted)| got != wanted) {
        None => Ok(()),
        Some(((key, got), (_, wanted))) => {
            let (weights, model) = (checkpoint.path().to_owned(), config.model.name.clone());
            Err(InputsError::OtherModel { weights, model, key, got, wanted })
        }
    }
}

/// The first key that asks for text, if any does.
fn text_needed_by(config: &RunConfig) -> Option<&'static str> {
    [
        ("dataset.prompts", config.dataset.prompts.is_some()),
        ("output.predictions.enable=true", config.output.predictions.enable),
        ("infer.ignore_eos=false", !config.infer.ignore_eos),
    ]
    .into_iter()
    .find_map(|(key, asks)| asks.then_some(key))
}

fn tokenizer(checkpoint: Option<&Checkpoint>, key: &'static str) -> Result<Tokenizer, InputsError> {
    let checkpoint = checkpoint.ok_or(InputsError::NoTokenizer { key })?;
    let path = checkpoint.path();
    Ok(match checkpoint.vocabulary() {
        Some(vocabulary) => Tokenizer::from_vocabulary(vocabulary)?,
        None if path.is_dir() => Tokenizer::from_dir(path)?,
        None => Tokenizer::from_dir(path.parent().unwrap_or(Path::new("")))?,
    })
}

fn given(
    PromptsConfig { file, chat }: &PromptsConfig,
    tokenizer: &Tokenizer,
    limit: u32,
    vocab: usize,
) -> Result<PromptSet, InputsError> {
    let mut set = Vec::new();
    for (number, text) in (1..).zip(prompts::load(Path::new(file))?) {
        let ids = tokenizer.prompt_ids(&text, *chat)?;
        let (file, tokens) = (file.clone(), ids.len());
        if tokens == 0 {
            return Err(InputsError::EmptyPrompt { file, number });
        }
        if tokens > limit as usize {
            return Err(InputsError::PromptTooLong { file, number, tokens, limit });
        }
        if let Some(&id) = ids.iter().find(|&&id| id as usize >= vocab) {
            return Err(InputsError::OtherTokenizer { id, vocab });
        }
        set.push(Prompt { text, ids });
    }
    Ok(PromptSet::Given(set.into()))
}
