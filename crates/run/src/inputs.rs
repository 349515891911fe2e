//! The inputs of a run, validated before it starts: the model's shape, weights, tokenizer and prompts.

mod model;
mod pictures;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};

pub use model::Model;
pub use pictures::Pictures;
use thiserror::Error;

use crate::assets::sampling::{self, Sampling};
use llm_cost::SpecError;
use llmprof_base::read::{self, MAX_DOCUMENT};
use llmprof_config::{DatasetSampling, ImagesConfig, PromptsConfig, RunConfig, Scheme};
use llmprof_engine::{candle::stock::StockError, weights::CheckpointError};
use llmprof_event::WorkKind;
use llmprof_workload::{
    Prompt, PromptSet, Workload, heap,
    text::{
        TextError, Tokenizer,
        prompts::{self, Sample},
    },
};

/// Maximum memory for a prompt: chat templates can double a text at every step.
const MAX_PROMPT_MEMORY: u64 = 2_000_000_000;

#[derive(Debug, Error)]
pub enum InputsError {
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Stock(#[from] StockError),
    #[error(
        "this program's decoder does not support {model_type}, candle-transformers does: use runtime=candle_stock"
    )]
    OnlyStock { model_type: String },
    #[error("runtime=candle_stock does not dequantise GGUF files; use model.dequantize=false")]
    StaysQuantised,
    #[error(transparent)]
    Text(#[from] TextError),
    #[error("model.dequantize=true is for GGUF files; {weights} is not quantised, use model.dtype instead")]
    NothingQuantised { weights: String },
    #[error(
        "model.dtype={} is for synthetic weights; {weights} already has a type, use model.dtype=auto",
        scheme.name()
    )]
    NotQuantisedHere { weights: String, scheme: Scheme },
    #[error("model.dtype={} needs an NVIDIA GPU, and the model runs on the CPU; use model.dtype=bf16", scheme.name())]
    NeedsGpu { scheme: Scheme },
    #[error("model.dtype={} is for runtime=candle; candle_stock has f32, f16 and bf16", scheme.name())]
    OnlyOwnQuantised { scheme: Scheme },
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    #[error(
        "{} is not {model}: its {key} is {got}, not {wanted}; use model=local and your own model.name",
        weights.display()
    )]
    OtherModel { weights: PathBuf, model: String, key: &'static str, got: u64, wanted: u64 },
    #[error(
        "{key} needs a tokenizer; trained weights have one: model.weights=<a checkpoint's directory or a .gguf file>, or `llmprof-tui fetch` and `llmprof-tui bootstrap models`"
    )]
    NoTokenizer { key: &'static str },
    #[error("{file}, prompt {number}: {tokens} tokens exceed dataset.prompt_tokens={limit}")]
    PromptTooLong { file: String, number: usize, tokens: usize, limit: u32 },
    #[error("{file}, prompt {number}: no tokens")]
    EmptyPrompt { file: String, number: usize },
    #[error(
        "the tokenizer has token {id}, but the model has only {vocab} tokens: the tokenizer belongs to another model"
    )]
    OtherTokenizer { id: u32, vocab: usize },
    #[error(
        "{prompt} prompt tokens and {output} output tokens exceed the {limit} positions of {model}; lower dataset.prompt_tokens or infer.max_new_tokens"
    )]
    TooLong { model: String, prompt: u32, output: u32, limit: usize },
}

/// Errors in the choice of prompts.
#[derive(Debug, Error)]
pub enum DatasetError {
    #[error("{file} does not exist; create it with: {}", created_by.join(" "))]
    Missing { file: String, created_by: Vec<String> },
    #[error("dataset.sampling selects from texts, and there are none; use dataset=prompts")]
    NothingToSample,
    #[error("runtime.requests=null means one request per text, and there are no texts; give a number")]
    NoRequests,
    #[error("dataset.sampling selects {got} texts, more than the limit of {limit} requests")]
    TooMany { got: u64, limit: u64 },
    #[error("dataset.sampling.subset_filelist: cannot read {file}: {cause}")]
    UnreadableList { file: String, cause: std::io::Error },
    #[error("dataset.sampling.subset_filelist: {file}: {cause}")]
    InvalidList { file: String, cause: String },
    #[error(
        "dataset.sampling.subset_filelist selects samples by name, and sample {number} of {file} has no name (id, name or source)"
    )]
    Unnamed { file: String, number: usize },
    #[error("dataset.images.dir: sample {number} does not name an image in it")]
    NoPicture { number: usize },
    #[error("{file} does not exist; dataset.images.dir is the directory of the images")]
    MissingPicture { file: String },
    #[error("dataset.images.dir: cannot read {dir}: {cause}")]
    UnreadablePictures { dir: String, cause: std::io::Error },
    #[error("dataset.images.dir={dir} has no images (png, jpg, webp or bmp)")]
    NoPictures { dir: String },
}

/// The model and its workload.
#[derive(Debug, Clone)]
pub struct Inputs {
    pub model: Model,
    /// Set if the run reads or writes text.
    pub tokenizer: Option<Arc<Tokenizer>>,
    pub workload: Workload,
    /// For a vision-language model.
    pub pictures: Option<Pictures>,
    /// The choices of `auto`.
    pub choices: Vec<String>,
}

impl Inputs {
    /// The inputs of a run of this kind.
    pub fn open(config: &RunConfig, kind: &WorkKind) -> Result<Inputs, InputsError> {
        let (model, weights_remark) = Model::open(config, kind)?;
        // A server has its own tokenizer.
        let is_server = *kind == WorkKind::Server;
        let images = config.dataset.images.as_ref().filter(|_| model.sees() || has_own_code(config));
        let tokenizer = match setting_with_text(config) {
            // The processor of a vision-language model belongs to PyTorch.
            Some(_) if images.is_some() => stop_tokenizer(&model, config),
            // So does the text of a script.
            Some(key) if has_own_text(config) => tokenizer(&model, key).ok().map(Arc::new),
            Some(key) if !is_server => Some(Arc::new(tokenizer(&model, key)?)),
            _ => None,
        };
        let pictures = match images {
            Some(images) => Some(read_pictures(images, config)?),
            None => None,
        };
        let random =
            || PromptSet::Random { tokens: config.dataset.prompt_tokens, vocab: model.vocab() as u32 };
        let prompt_set = match (&config.dataset.prompts, &tokenizer) {
            _ if pictures.is_some() => random(),
            (Some(prompts), tokenizer) => read_prompts(prompts, config, tokenizer.as_deref(), model.vocab())?,
            _ if config.dataset.sampling.is_some() => return Err(DatasetError::NothingToSample.into()),
            _ => random(),
        };
        let stops = tokenizer.as_ref().filter(|_| !config.infer.ignore_eos).map(|t| t.stop_ids().to_vec());
        let workload = Workload {
            requests: match (config.runtime.requests, is_server) {
                // The number of requests of a trace is fixed.
                (None, true) if matches!(prompt_set, PromptSet::Random { .. }) => 0,
                (None, false) if pictures.is_some() => {
                    pictures.as_ref().and_then(Pictures::requests).ok_or(DatasetError::NoRequests)?
                }
                _ => requests(config, &prompt_set)?,
            },
            open_ended: config.runtime.until.is_some(),
            warmup: config.runtime.warmup,
            batch: config.runtime.batch_size,
            prompts: prompt_set,
            output_tokens: config.infer.max_new_tokens,
            stop_ids: stops.unwrap_or_default(),
            seed: config.runtime.seed,
        };
        let (prompt, output) = (workload.prompt_tokens(), workload.output_tokens);
        let is_over = |limit: &usize| !is_server && prompt as usize + output as usize > *limit;
        if let Some(limit) = model.max_positions().filter(is_over) {
            let model = config.model.name.clone();
            return Err(InputsError::TooLong { model, prompt, output, limit });
        }
        Ok(Inputs { model, tokenizer, workload, pictures, choices: weights_remark.into_iter().collect() })
    }
}

/// The pages of a dataset, or synthetic ones.
fn read_pictures(images: &ImagesConfig, config: &RunConfig) -> Result<Pictures, InputsError> {
    let seed = config.runtime.seed;
    let (Some(_), Some(prompts)) = (&images.dir, &config.dataset.prompts) else {
        return Pictures::open(images, None, seed);
    };
    let (samples, order) = ordered_samples(prompts, config)?;
    let chosen: Vec<Sample> = order.into_iter().map(|index| samples[index].clone()).collect();
    Pictures::open(images, Some(&chosen), seed)
}

/// Whether code other than transformers' prepares the images.
fn has_own_code(config: &RunConfig) -> bool {
    config.runtime.pytorch().is_some_and(|settings| settings.script.is_some() || settings.trust_remote_code)
}

/// Whether Python decodes the tokens itself.
fn has_own_text(config: &RunConfig) -> bool {
    config.runtime.pytorch().is_some_and(|settings| settings.script.is_some())
}

/// The tokenizer that knows the end-of-text tokens, if the model has one.
fn stop_tokenizer(model: &Model, config: &RunConfig) -> Option<Arc<Tokenizer>> {
    let dir = model.weights_path().filter(|_| !config.infer.ignore_eos)?;
    Tokenizer::from_dir(dir).ok().map(Arc::new)
}

/// The first setting that needs text, if there is one.
fn setting_with_text(config: &RunConfig) -> Option<&'static str> {
    [
        ("dataset.prompts", config.dataset.prompts.is_some()),
        ("output.predictions.enable=true", config.output.predictions.enable),
        ("infer.ignore_eos=false", !config.infer.ignore_eos),
    ]
    .into_iter()
    .find_map(|(setting, needs_text)| needs_text.then_some(setting))
}

fn tokenizer(model: &Model, key: &'static str) -> Result<Tokenizer, InputsError> {
    Ok(model.tokenizer().ok_or(InputsError::NoTokenizer { key })??)
}

/// The configured number, or one per text.
fn requests(config: &RunConfig, prompts: &PromptSet) -> Result<u32, DatasetError> {
    match (config.runtime.requests, prompts) {
        (Some(requests), _) => Ok(requests),
        (None, PromptSet::Given(prompts)) => Ok(prompts.len() as u32),
        (None, PromptSet::Random { .. }) => Err(DatasetError::NoRequests),
    }
}

/// The maximum number of texts without `runtime.requests`.
const MAX_SAMPLES: u64 = 1_000_000;

/// The prompts in the order of the requests.
fn read_prompts(
    prompts: &PromptsConfig,
    config: &RunConfig,
    tokenizer: Option<&Tokenizer>,
    vocab: usize,
) -> Result<PromptSet, InputsError> {
    let (samples, order) = ordered_samples(prompts, config)?;
    let mut read: HashMap<usize, Prompt> = HashMap::new();
    let mut set = Vec::with_capacity(order.len());
    for index in order {
        let prompt = match read.get(&index) {
            Some(prompt) => prompt.clone(),
            None => {
                let number = index + 1;
                let text = &samples[index].text;
                let prompt = heap::limited(MAX_PROMPT_MEMORY, || match tokenizer {
                    Some(tokenizer) => prompt_of(text, number, prompts, config, tokenizer),
                    None => Ok(Prompt { text: text.clone(), ids: Vec::new() }),
                })?;
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

/// The samples of a file, and the indexes of the used ones, in the order of the requests.
fn ordered_samples(
    prompts: &PromptsConfig,
    config: &RunConfig,
) -> Result<(Vec<Sample>, Vec<usize>), InputsError> {
    let file = &prompts.file;
    let samples = prompts::load(Path::new(file)).map_err(|e| with_command(file, e))?;
    // After the last text the first is used again. Texts beyond the number of requests are never used.
    let max = config.runtime.requests.map_or(MAX_SAMPLES + 1, |n| u64::from(n.max(config.runtime.warmup)));
    let order = match &config.dataset.sampling {
        Some(sampling) => select(sampling, &samples, file, config.runtime.seed, max)?,
        None => (0..samples.len()).take(max as usize).collect(),
    };
    if order.len() as u64 > MAX_SAMPLES && config.runtime.requests.is_none() {
        return Err(DatasetError::TooMany { got: order.len() as u64, limit: MAX_SAMPLES }.into());
    }
    Ok((samples, order))
}

/// Names the command that creates a missing variant of a dataset.
fn with_command(file: &str, error: TextError) -> InputsError {
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
    let created_by =
        std::iter::once("llmprof-tui").chain(command.iter().copied()).map(str::to_owned).collect();
    DatasetError::Missing { file: file.to_owned(), created_by }.into()
}

/// The indexes of the selected samples, in order; at least one, at most `max`.
fn select(
    sampling: &DatasetSampling,
    samples: &[Sample],
    file: &str,
    seed: u64,
    max: u64,
) -> Result<Vec<usize>, DatasetError> {
    let subset: Vec<usize> = match &sampling.subset_filelist {
        None => (0..samples.len()).collect(),
        Some(list) => {
            let unnamed = |number| DatasetError::Unnamed { file: file.to_owned(), number };
            let names = samples.iter().zip(1..).map(|(s, number)| s.name.clone().ok_or(unnamed(number)));
            let names = names.collect::<Result<Vec<String>, _>>()?;
            let text = read::text(Path::new(list), MAX_DOCUMENT)
                .map_err(|cause| DatasetError::UnreadableList { file: list.clone(), cause })?;
            sampling::subset(&text, &names)
                .map_err(|cause| DatasetError::InvalidList { file: list.clone(), cause })?
        }
    };
    let epochs = Sampling::from(sampling).epochs(subset.len() as u64, seed);
    Ok(epochs.flatten().take(max as usize).map(|index| subset[index as usize]).collect())
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
        // The text is truncated, not its ids: a chat template adds tokens after it.
        let plain = tokenizer.prompt_ids(&prompt.text, false)?;
        let length = plain.len().saturating_sub(prompt.ids.len() - limit);
        let cut = tokenizer.text(&plain[..length])?;
        // Special tokens have no text, and the text must become shorter.
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
