//! What a run works on, found and checked before anything starts: the model's shape, weights, tokenizer and prompts.

mod model;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};

pub use model::Model;
use thiserror::Error;

use crate::{
    assets::sampling::{self, Sampling},
    config::{DatasetSampling, PromptsConfig, RunConfig},
    engine::{
        candle::{CheckpointError, stock::StockError},
        workload::{Prompt, PromptSet, Workload},
    },
    model::SpecError,
    text::{
        TextError, Tokenizer,
        prompts::{self, Sample},
    },
};

#[derive(Debug, Error)]
pub enum InputsError {
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Stock(#[from] StockError),
    #[error("our own decoder has no {model_type}, candle-transformers has: use runtime=candle_stock")]
    OnlyStock { model_type: String },
    #[error(
        "our own decoder reads no GGUF of {architecture}, candle-transformers does: use runtime=candle_stock"
    )]
    OnlyStockGguf { architecture: String },
    #[error("runtime=candle_stock keeps the blocks of a GGUF file as they are; use model.dequantize=false")]
    StaysQuantised,
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(
        "model.dequantize=true makes plain numbers of a GGUF file's blocks; {weights} has none, model.dtype is all it needs"
    )]
    NothingQuantised { weights: String },
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    #[error(
        "{} is not {model}: its {key} is {got}, not {wanted}; use model=local, with a model.name of your own",
        weights.display()
    )]
    OtherModel { weights: PathBuf, model: String, key: &'static str, got: u64, wanted: u64 },
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

/// What can be wrong with the choice of prompts.
#[derive(Debug, Error)]
pub enum DatasetError {
    #[error("there is no {file}; make it with: {}", made_by.join(" "))]
    NotMade { file: String, made_by: Vec<String> },
    #[error("dataset.sampling chooses among texts, and there are none; dataset=prompts has some")]
    NothingToSample,
    #[error(
        "runtime.requests=null takes every text of dataset.sampling once, and there is none; give a number"
    )]
    NoNumber,
    #[error("dataset.sampling takes {got} texts, more than the {limit} requests a run may have")]
    TooMany { got: u64, limit: u64 },
    #[error("dataset.sampling.subset_filelist: cannot read {file}: {cause}")]
    NoList { file: String, cause: std::io::Error },
    #[error("dataset.sampling.subset_filelist: {file}: {cause}")]
    BadList { file: String, cause: String },
    #[error(
        "dataset.sampling.subset_filelist names samples, and sample {number} of {file} has no name (id, name or source)"
    )]
    Nameless { file: String, number: usize },
}

/// The model and what it is asked.
#[derive(Debug, Clone)]
pub struct Inputs {
    pub model: Model,
    /// There where text is to be read or written.
    pub tokenizer: Option<Arc<Tokenizer>>,
    pub workload: Workload,
}

impl Inputs {
    pub fn open(config: &RunConfig) -> Result<Inputs, InputsError> {
        let model = Model::open(config)?;
        let tokenizer = match text_needed_by(config) {
            Some(key) => Some(Arc::new(tokenizer(&model, key)?)),
            None => None,
        };
        let prompt_set = match (&config.dataset.prompts, &tokenizer) {
            (Some(prompts), Some(tokenizer)) => given(prompts, config, tokenizer, model.vocab())?,
            _ if config.dataset.sampling.is_some() => return Err(DatasetError::NothingToSample.into()),
            _ => PromptSet::Random { tokens: config.dataset.prompt_tokens, vocab: model.vocab() as u32 },
        };
        let stops = tokenizer.as_ref().filter(|_| !config.infer.ignore_eos).map(|t| t.stop_ids().to_vec());
        let workload = Workload {
            requests: requests(config, &prompt_set)?,
            open_ended: config.runtime.until.is_some(),
            warmup: config.runtime.warmup,
            batch: config.runtime.batch_size,
            prompts: prompt_set,
            output_tokens: config.infer.max_new_tokens,
            stop_ids: stops.unwrap_or_default(),
            seed: config.runtime.seed,
        };
        let (prompt, output) = (workload.prompt_tokens(), workload.output_tokens);
        if let Some(limit) = model.max_positions().filter(|&limit| prompt as usize + output as usize > limit)
        {
            let model = config.model.name.clone();
            return Err(InputsError::TooLong { model, prompt, output, limit });
        }
        Ok(Inputs { model, tokenizer, workload })
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

fn tokenizer(model: &Model, key: &'static str) -> Result<Tokenizer, InputsError> {
    let path = model.weights_path().ok_or(InputsError::NoTokenizer { key })?;
    Ok(match model.vocabulary() {
        Some(vocabulary) => Tokenizer::from_vocabulary(vocabulary)?,
        None if path.is_dir() => Tokenizer::from_dir(path)?,
        None => Tokenizer::from_dir(path.parent().unwrap_or(Path::new("")))?,
    })
}

/// As many as are asked for, or one for each text that was chosen.
fn requests(config: &RunConfig, prompts: &PromptSet) -> Result<u32, DatasetError> {
    match (config.runtime.requests, prompts) {
        (Some(requests), _) => Ok(requests),
        (None, PromptSet::Given(prompts)) => Ok(prompts.len() as u32),
        (None, PromptSet::Random { .. }) => Err(DatasetError::NoNumber),
    }
}

/// The most texts that a run without a number of its own takes.
const MOST_SAMPLES: u64 = 1_000_000;

/// The prompts in the order of the requests.
fn given(
    prompts: &PromptsConfig,
    config: &RunConfig,
    tokenizer: &Tokenizer,
    vocab: usize,
) -> Result<PromptSet, InputsError> {
    let file = &prompts.file;
    let samples = prompts::load(Path::new(file)).map_err(|e| made_by(file, e))?;
    // The first again after the last: more than there are requests would never be asked.
    let most = config.runtime.requests.map_or(MOST_SAMPLES + 1, |n| u64::from(n.max(config.runtime.warmup)));
    let order = match &config.dataset.sampling {
        Some(sampling) => chosen(sampling, &samples, file, config.runtime.seed, most)?,
        None => (0..samples.len()).take(most as usize).collect(),
    };
    if order.len() as u64 > MOST_SAMPLES && config.runtime.requests.is_none() {
        return Err(DatasetError::TooMany { got: order.len() as u64, limit: MOST_SAMPLES }.into());
    }
    let mut read: HashMap<usize, Prompt> = HashMap::new();
    let mut set = Vec::with_capacity(order.len());
    for index in order {
        let prompt = match read.get(&index) {
            Some(prompt) => prompt.clone(),
            None => {
                let number = index + 1;
                let prompt = prompt_of(&samples[index].text, number, prompts, config, tokenizer)?;
                if let Some(&id) = prompt.ids.iter().find(|&&id| id as usize >= vocab) {
                    return Err(InputsError::OtherTokenizer { id, vocab });
                }
                read.entry(index).or_insert(prompt).clone()
            }
        };
        set.push(prompt);
    }
    Ok(PromptSet::Given(set.into()))
}

/// A variant of a dataset that is not there is made by a command.
fn made_by(file: &str, error: TextError) -> InputsError {
    let parts: Vec<&str> = file.split('/').collect();
    let command: &[&str] = match (&error, parts.as_slice()) {
        (TextError::Unreadable { cause, .. }, ["datasets", name, part, ..])
            if cause.kind() == std::io::ErrorKind::NotFound =>
        {
            match *part {
                "source-data" => &["bootstrap", "datasets", name],
                variant => &["dataset", "prepare", name, "--variant", variant],
            }
        }
        _ => return error.into(),
    };
    let made_by = std::iter::once("llmprof-tui").chain(command.iter().copied()).map(str::to_owned).collect();
    DatasetError::NotMade { file: file.to_owned(), made_by }.into()
}

/// The indexes of the samples that are asked, in their order; at most `most`, never none.
fn chosen(
    sampling: &DatasetSampling,
    samples: &[Sample],
    file: &str,
    seed: u64,
    most: u64,
) -> Result<Vec<usize>, DatasetError> {
    let among: Vec<usize> = match &sampling.subset_filelist {
        None => (0..samples.len()).collect(),
        Some(list) => {
            let nameless = |number| DatasetError::Nameless { file: file.to_owned(), number };
            let names = samples.iter().zip(1..).map(|(s, number)| s.name.clone().ok_or(nameless(number)));
            let names = names.collect::<Result<Vec<String>, _>>()?;
            let text = std::fs::read_to_string(list)
                .map_err(|cause| DatasetError::NoList { file: list.clone(), cause })?;
            sampling::subset(&text, &names)
                .map_err(|cause| DatasetError::BadList { file: list.clone(), cause })?
        }
    };
    let epochs = Sampling::from(sampling).epochs(among.len() as u64, seed);
    Ok(epochs.flatten().take(most as usize).map(|index| among[index as usize]).collect())
}

fn prompt_of(
    text: &str,
    number: usize,
    prompts: &PromptsConfig,
    config: &RunConfig,
    tokenizer: &Tokenizer,
) -> Result<Prompt, InputsError> {
    let limit = config.dataset.prompt_tokens as usize;
    let mut prompt = Prompt { text: text.to_owned(), ids: tokenizer.prompt_ids(text, prompts.chat)? };
    while prompts.truncate && prompt.ids.len() > limit && !prompt.text.is_empty() {
        // The text is cut, not its ids: a chat template has words after it.
        let plain = tokenizer.prompt_ids(&prompt.text, false)?;
        let kept = plain.len().saturating_sub(prompt.ids.len() - limit);
        let cut = tokenizer.text(&plain[..kept])?;
        // Ids of special tokens have no text, and a cut must never be longer than what was cut.
        prompt.text = if cut.len() < prompt.text.len() { cut } else { String::new() };
        prompt.ids = tokenizer.prompt_ids(&prompt.text, prompts.chat)?;
    }
    let (file, tokens) = (prompts.file.clone(), prompt.ids.len());
    if tokens == 0 {
        return Err(InputsError::EmptyPrompt { file, number });
    }
    if tokens > limit {
        return Err(InputsError::PromptTooLong { file, number, tokens, limit: limit as u32 });
    }
    Ok(prompt)
}
