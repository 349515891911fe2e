//! A model for candle-transformers, opened and checked: its tensors are known before anything is allocated.

use std::{
    collections::{BTreeMap, HashSet},
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use candle_core::{DType, Device};
use serde_json::{Value, json};
use thiserror::Error;

use super::{
    super::{CandleResult, candle_dtype},
    backend::{Counting, Feeding, Values},
    config::Config,
    families::{CausalLm, FAMILIES, Family, Parts, family},
    quantised::{ARCHITECTURES, Architecture},
};
use crate::{
    candle::memory::Footprint,
    weights::{CheckpointError, Metadata, SafetensorsFiles, SyntheticWeights, read_header},
};
use llm_cost::{
    ModelSpec, Shape, SpecError,
    spec::{self, TensorShape},
};
use llmprof_config::Dtype;
use llmprof_workload::{EngineError, PrepareStep, Progress, text::Vocabulary};

/// Why candle-transformers cannot run a model.
#[derive(Debug, Error)]
pub enum StockError {
    #[error("unknown model_type {found:?}; candle-transformers has {}", known_families())]
    UnknownFamily { found: String },
    #[error(
        "{}: general.architecture {found:?} is unknown; candle-transformers has quantised {}",
        file.display(), known_architectures()
    )]
    UnknownArchitecture { file: PathBuf, found: String },
    #[error("candle-transformers cannot build this {model_type}: {cause}")]
    Refused { model_type: String, cause: String },
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

fn known_families() -> String {
    FAMILIES.iter().map(|family| family.model_type).collect::<Vec<_>>().join(", ")
}

fn known_architectures() -> String {
    ARCHITECTURES.iter().map(|architecture| architecture.name).collect::<Vec<_>>().join(", ")
}

/// Whether candle-transformers has models of this `model_type`.
pub fn is_known(model_type: &str) -> bool {
    family(model_type).is_some()
}

/// Every `model_type` that candle-transformers has models of.
pub fn model_types() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.model_type)
}

/// A model whose tensors are all known and, if they are trained, exist in the checkpoint.
#[derive(Debug)]
pub struct StockModel {
    config: Config,
    build: Build,
    path: Option<PathBuf>,
    vocabulary: Option<Vocabulary>,
    vocab: usize,
}

/// How the model is built.
enum Build {
    Plain {
        family: &'static Family,
        tensors: Vec<TensorShape>,
        files: Option<SafetensorsFiles>,
        /// The same model for the built-in decoder, if that has the family, for comparison.
        ours: Option<Box<ModelSpec>>,
    },
    Quantised {
        architecture: &'static Architecture,
        parameters: u64,
        /// The blocks, and in f32 all tensors that candle dequantises or that are not quantised.
        weight_bytes: u64,
        /// The part of them from which a step only looks up rows.
        table_bytes: u64,
        type_name: String,
    },
}

impl std::fmt::Debug for Build {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Build::Plain { family, .. } => f.debug_tuple("Plain").field(&family.model_type).finish(),
            Build::Quantised { architecture, .. } => {
                f.debug_tuple("Quantised").field(&architecture.name).finish()
            }
        }
    }
}

impl StockModel {
    /// A model of the shape in `config`, with synthetic weights.
    pub fn synthetic(config: &Value) -> Result<StockModel, StockError> {
        Self::plain(config, None, None)
    }

    /// Like [`StockModel::synthetic`], from the `config.json` at `path`.
    pub fn synthetic_from(path: &Path) -> Result<StockModel, StockError> {
        Self::synthetic(&spec::read_config_json(path)?)
    }

    /// Opens trained weights: a directory with `config.json` and safetensors, a single safetensors file beside its
    /// `config.json`, or a GGUF file. `config_json` is read instead of the `config.json` beside the weights.
    pub fn open(path: &Path, config_json: Option<&Path>) -> Result<StockModel, StockError> {
        let unreadable = |cause| CheckpointError::Unreadable { file: path.to_owned(), cause };
        let is_dir = std::fs::metadata(path).map_err(unreadable)?.is_dir();
        if !is_dir && path.extension().is_none_or(|extension| extension != "safetensors") {
            return Self::quantised(path);
        }
        let dir = if is_dir { path } else { path.parent().unwrap_or(Path::new("")) };
        let config_json = config_json.map_or_else(|| dir.join("config.json"), Path::to_owned);
        let config = spec::read_config_json(&config_json)?;
        let files = if is_dir { SafetensorsFiles::in_dir(path)? } else { SafetensorsFiles::single(path)? };
        Self::plain(&config, Some(files), Some(path.to_owned()))
    }

    fn plain(
        value: &Value,
        files: Option<SafetensorsFiles>,
        path: Option<PathBuf>,
    ) -> Result<StockModel, StockError> {
        let model_type = match value.get("model_type") {
            Some(Value::String(model_type)) => model_type.clone(),
            _ => return Err(SpecError::MissingKey { key: "model_type".to_owned() }.into()),
        };
        let family =
            family(&model_type).ok_or_else(|| StockError::UnknownFamily { found: model_type.clone() })?;
        let refused = |cause: String| StockError::Refused { model_type: model_type.clone(), cause };
        let config = Config::new(value).map_err(refused)?;
        if family.ignores_head_dim && config.head_dim() != config.hidden() / config.heads() {
            let (head_dim, share) = (config.head_dim(), config.hidden() / config.heads());
            return Err(refused(format!(
                "it computes a head dimension of {share}, but head_dim is {head_dim}"
            )));
        }
        let vocab = config.number(&["vocab_size"]).ok_or_else(|| refused("vocab_size is missing".into()))?;
        let tensors =
            count(family, &config, &has(&config, files.as_ref())).map_err(|e| refused(e.to_string()))?;
        let ours = match ModelSpec::runs(&model_type) {
            true => Some(Box::new(ModelSpec::from_hf(value)?)),
            false => None,
        };
        if let Some(spec) = &ours {
            same_tensors(spec, &tensors).map_err(refused)?;
        }
        if let Some(files) = &files {
            files.check(&tensors)?;
        }
        let build = Build::Plain { family, tensors, files, ours };
        Ok(StockModel { config, build, path, vocabulary: None, vocab: vocab as usize })
    }

    fn quantised(path: &Path) -> Result<StockModel, StockError> {
        let file = || path.to_owned();
        let (_, header) = read_header(path)?;
        header.check_candle(path)?;
        let metadata = Metadata { file: path, entries: &header.metadata };
        let name = metadata.text("general.architecture").ok_or_else(|| CheckpointError::MissingKey {
            file: file(),
            key: "general.architecture".into(),
        })?;
        let architecture = ARCHITECTURES
            .iter()
            .find(|architecture| architecture.name == name)
            .ok_or_else(|| StockError::UnknownArchitecture { file: file(), found: name.to_owned() })?;

        let table = header.tensors.get("token_embd.weight").ok_or_else(|| {
            CheckpointError::MissingTensor { file: file(), tensor: "token_embd.weight".to_owned() }
        })?;
        let table_numbers = table.numbers();
        let vocab = table.shape.first().copied().unwrap_or(1);
        // The table is dequantised for lookups; if it is also the head, its blocks are kept as well.
        let mut weight_bytes = 4 * table_numbers;
        let mut parameters = 0;
        let mut by_type = BTreeMap::<String, u64>::new();
        let tied = !header.tensors.contains_key("output.weight");
        for (tensor, info) in &header.tensors {
            let numbers = info.numbers();
            parameters += numbers;
            let (kept_as, bytes) = match info.kind.plain().is_some() {
                true => ("f32".to_owned(), 4 * numbers),
                false => (info.kind.name(), info.size().unwrap_or(u64::MAX)),
            };
            if tensor != "token_embd.weight" || tied {
                weight_bytes += bytes;
            }
            *by_type.entry(kept_as).or_default() += bytes;
        }
        let type_name =
            by_type.into_iter().max_by_key(|&(_, bytes)| bytes).map_or_else(String::new, |(name, _)| name);

        let number = |key: &str| metadata.number(&format!("{name}.{key}"));
        let config = json!({
            "model_type": name,
            "vocab_size": vocab,
            "hidden_size": number("embedding_length"),
            "intermediate_size": number("feed_forward_length"),
            "num_hidden_layers": number("block_count"),
            "num_attention_heads": number("attention.head_count"),
            "num_key_value_heads": number("attention.head_count_kv"),
            "head_dim": number("attention.key_length"),
            "max_position_embeddings": number("context_length"),
            "num_experts": number("expert_count").filter(|&experts| experts > 1),
        });
        let config = Config::new(&config)
            .map_err(|cause| StockError::Refused { model_type: name.to_owned(), cause })?;
        let vocabulary = metadata.vocabulary();
        let build = Build::Quantised {
            architecture,
            parameters,
            weight_bytes,
            table_bytes: 4 * table_numbers,
            type_name,
        };
        Ok(StockModel { config, build, path: Some(path.to_owned()), vocabulary, vocab })
    }

    /// The path of trained weights.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The tokenizer a GGUF file carries.
    pub fn vocabulary(&self) -> Option<&Vocabulary> {
        self.vocabulary.as_ref()
    }

    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// `model_type`, or the architecture of a GGUF file.
    pub fn family(&self) -> &'static str {
        match &self.build {
            Build::Plain { family, .. } => family.model_type,
            Build::Quantised { architecture, .. } => architecture.name,
        }
    }

    /// Whether it supports a batch of more than one sequence.
    pub fn batches(&self) -> bool {
        match &self.build {
            Build::Plain { family, .. } => family.batches,
            // The last rows of several prompts are not contiguous, and the quantised models need contiguous rows.
            Build::Quantised { .. } => false,
        }
    }

    /// The config's value of `key`, if it is a number.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.config.number(&[key])
    }

    /// The maximum number of positions of a sequence; `None` if it is unlimited.
    pub fn max_positions(&self) -> Option<usize> {
        let said = self.config.number(&["max_position_embeddings"]).map(|n| n as usize);
        let most = match &self.build {
            Build::Plain { family, .. } => family.most_positions,
            Build::Quantised { architecture, .. } => architecture.most_positions,
        };
        said.into_iter().chain(most).min()
    }

    pub fn parameters(&self) -> u64 {
        match &self.build {
            Build::Plain { tensors, .. } => numbers(tensors.iter()),
            Build::Quantised { parameters, .. } => *parameters,
        }
    }

    pub fn weight_bytes(&self, dtype: Dtype) -> u64 {
        match &self.build {
            Build::Plain { tensors, .. } => numbers(tensors.iter()) * dtype.bytes(),
            Build::Quantised { weight_bytes, .. } => *weight_bytes,
        }
    }

    /// The weights that a decode step reads: only the selected experts, and no embedding table from which only rows are
    /// read. `None` if a batch may select any number of experts.
    pub fn step_weight_bytes(&self, dtype: Dtype, batch: usize) -> Option<u64> {
        let experts = self.config.number(&["num_experts", "num_local_experts", "n_routed_experts"]);
        match &self.build {
            Build::Quantised { weight_bytes, table_bytes, .. } => {
                experts.is_none().then(|| weight_bytes - table_bytes)
            }
            Build::Plain { tensors, .. } => {
                let (routed, dense): (Vec<_>, Vec<_>) =
                    tensors.iter().partition(|tensor| tensor.name.contains(".experts."));
                let head = tensors.iter().any(|tensor| tensor.name == "lm_head.weight");
                let table = if head { self.vocab as u64 * self.config.hidden() } else { 0 };
                let routed = match (numbers(routed.into_iter()), experts) {
                    (0, _) => 0,
                    (all, Some(experts)) if batch == 1 => {
                        let chosen = self.config.number(&["num_experts_per_tok"])?;
                        all / experts * chosen.min(experts)
                    }
                    _ => return None,
                };
                Some((numbers(dense.into_iter()) - table + routed) * dtype.bytes())
            }
        }
    }

    /// The shape for its cost, if the counted tensors are those of the shape and the cache is the one that the shape needs:
    /// candle-transformers caches keys and values that other engines recompute.
    pub fn shape(&self, dtype: Dtype) -> Option<Shape> {
        let shape = Shape::from_hf(&self.config.to_value(), dtype).ok()?;
        let same_cache = match self.build {
            Build::Plain { .. } => shape.kv_bytes_per_position() == self.kv_bytes_per_position(dtype),
            Build::Quantised { .. } => true,
        };
        let same = same_cache && shape.parameters() == self.parameters();
        same.then(|| Shape { weight_bytes: self.weight_bytes(dtype), quantisation: None, ..shape })
    }

    /// Bytes of cache per position of one sequence, over all layers. A state that does not grow
    /// has none.
    pub fn kv_bytes_per_position(&self, dtype: Dtype) -> u64 {
        match &self.build {
            Build::Plain { family, .. } => (family.cached_numbers)(&self.config) * dtype.bytes(),
            Build::Quantised { .. } => {
                let config = &self.config;
                2 * config.layers() * config.kv_heads() * config.head_dim() * 4
            }
        }
    }

    /// The type most of the weights are kept in: `dtype`, or a quantised one such as `q4_1`.
    pub fn type_name(&self, dtype: Dtype) -> String {
        match &self.build {
            Build::Plain { .. } => dtype.name().to_owned(),
            Build::Quantised { type_name, .. } => type_name.clone(),
        }
    }

    /// The memory for `batch` sequences of `positions`, `prompt` of them at once.
    pub(super) fn footprint(&self, dtype: Dtype, batch: usize, positions: usize, prompt: usize) -> Footprint {
        let product = |factors: &[u64]| factors.iter().fold(1u64, |n, &f| n.saturating_mul(f));
        let (batch, positions, prompt) = (batch as u64, positions as u64, prompt as u64);
        let config = &self.config;
        let known = self.max_positions().map_or(0, |n| n as u64);
        let (per_layer, cached, widest) = match &self.build {
            Build::Plain { family, tensors, .. } => {
                let inner = tensors.iter().filter(|t| t.shape.len() == 2 && t.shape[0] != self.vocab);
                let widest = inner.map(|t| t.shape[0] as u64).max().unwrap_or(0);
                (family.rotary_tables_per_layer, positions, widest)
            }
            Build::Quantised { architecture, .. } => {
                let cached = (architecture.cached_positions)(positions, known);
                let widest = 2 * config.number(&["intermediate_size"]).unwrap_or(config.hidden());
                (architecture.rotary_tables_per_layer, cached, widest)
            }
        };
        let heads = config.heads();
        // Scores, masked scores and their softmax are live at the same time, besides the mask.
        let scores = product(&[batch, heads, prompt, prompt, 3]).saturating_add(product(&[prompt, prompt]));
        let rows = product(&[batch, prompt, 3 * widest + 4 * config.hidden()]);
        // One layer's keys and values, repeated for every query head.
        let repeated = product(&[batch, positions, heads, config.head_dim(), 2]);
        let tables = product(&[known, config.head_dim(), if per_layer { config.layers() } else { 1 }]);
        let workspace = [scores, rows, repeated, tables, product(&[batch, self.vocab as u64])]
            .into_iter()
            .fold(0u64, u64::saturating_add);
        Footprint {
            weight_bytes: self.weight_bytes(dtype),
            cache_bytes: product(&[batch, cached, self.kv_bytes_per_position(dtype)]),
            workspace_bytes: workspace.saturating_mul(4),
        }
    }

    /// Builds the model for `batch` sequences. `progress` may cancel that.
    pub fn make(
        &self,
        dtype: Dtype,
        seed: u64,
        batch: usize,
        device: &Device,
        progress: Progress<'_>,
    ) -> Result<Box<dyn CausalLm>, EngineError> {
        match &self.build {
            Build::Plain { family, tensors, files, ours } => {
                let values = match files {
                    Some(files) => Values::Files(files),
                    None => {
                        let weights = SyntheticWeights::new(seed);
                        Values::Synthetic {
                            weights: ours.as_ref().map_or(weights, |spec| weights.for_model(spec)),
                            comparable: ours.is_some(),
                        }
                    }
                };
                if device.is_cuda() {
                    device.set_seed(seed).backend()?;
                }
                let (has, cancelled) = (has(&self.config, files.as_ref()), AtomicBool::new(false));
                let feeding = Feeding {
                    values,
                    has: &has,
                    progress: Mutex::new((progress, 0)),
                    total: tensors.iter().map(TensorShape::elements).sum(),
                    cancelled: &cancelled,
                };
                let builder = feeding.builder(candle_dtype(dtype), device);
                let model =
                    (family.make)(Parts { config: &self.config, builder, tensors, batch }).backend()?;
                match cancelled.load(Ordering::Relaxed) {
                    true => Err(EngineError::Cancelled),
                    false => Ok(model),
                }
            }
            Build::Quantised { architecture, .. } => {
                let path = self.path.as_deref().unwrap_or(Path::new(""));
                if !progress(PrepareStep::Weights("blocks"), 0, 1) {
                    return Err(EngineError::Cancelled);
                }
                architecture.make(path, device).backend()
            }
        }
    }
}

/// Whether a tensor exists, for a constructor that checks before it reads. A tied head does not.
fn has<'a>(config: &Config, files: Option<&'a SafetensorsFiles>) -> impl Fn(&str) -> bool + Sync + 'a {
    let tied = config.flag("tie_word_embeddings").unwrap_or(false);
    move |name| !(tied && name.starts_with("lm_head")) && files.is_none_or(|files| files.contains(name))
}

/// Every tensor of the model, found by building it from tensors without memory.
fn count(
    family: &Family,
    config: &Config,
    has: &(dyn Fn(&str) -> bool + Sync),
) -> candle_core::Result<Vec<TensorShape>> {
    let wanted = Mutex::new(Vec::new());
    let builder = Counting { wanted: &wanted, has }.builder(DType::F32);
    (family.make)(Parts { config: &config.for_counting(), builder, tensors: &[], batch: 1 })?;
    let mut wanted = wanted.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut seen = HashSet::with_capacity(wanted.len());
    wanted.retain(|tensor| seen.insert(tensor.name.clone()));
    Ok(wanted)
}

fn numbers<'a>(tensors: impl Iterator<Item = &'a TensorShape>) -> u64 {
    tensors.map(|tensor| tensor.shape.iter().map(|&n| n as u64).product::<u64>()).sum()
}

/// If the config has parts that candle-transformers does not build, e.g. biases, the result would be another model.
fn same_tensors(spec: &ModelSpec, made: &[TensorShape]) -> Result<(), String> {
    let expected = spec.tensors();
    if let Some(tensor) = expected.iter().find(|tensor| !made.contains(tensor)) {
        return Err(format!("it has no {} {:?}", tensor.name, tensor.shape));
    }
    match made.iter().find(|tensor| !expected.contains(tensor)) {
        Some(tensor) => Err(format!("it also needs {} {:?}", tensor.name, tensor.shape)),
        None => Ok(()),
    }
}
