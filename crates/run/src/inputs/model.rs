//! The model of a run, for the program's decoder or for candle-transformers.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::Value;

use super::InputsError;
use llm_cost::{
    ModelSpec, Shape, SpecError, Step,
    spec::{TensorShape, read_config_json},
};
use llmprof_config::{Dtype, KvCacheDtype, PreprocessConfig, RunConfig, Scheme, Weights};
use llmprof_engine::{
    candle::stock::{self, StockModel},
    weights::{Checkpoint, CheckpointError, SyntheticWeights},
};
use llmprof_event::{ModelEngine, WorkKind};
use llmprof_workload::text::{TextError, Tokenizer, Vocabulary};

/// A model and its source.
#[derive(Debug, Clone)]
pub enum Model {
    /// For the program's decoder.
    Own {
        spec: Box<ModelSpec>,
        /// Trained weights; `None` for synthetic ones.
        checkpoint: Option<Arc<Checkpoint>>,
        /// How synthetic weights are quantised, if they are.
        scheme: Option<Scheme>,
    },
    /// For candle-transformers.
    Stock(Arc<StockModel>),
    /// For PyTorch.
    Python(Arc<PythonModel>),
}

/// The known facts about a model of PyTorch.
#[derive(Debug, Clone)]
pub struct PythonModel {
    /// Its `config.json`.
    pub arch: Value,
    /// A checkpoint's directory; `None` for random weights.
    pub weights: Option<PathBuf>,
    /// How it prepares images, if the configuration sets it.
    pub preprocess: Option<PreprocessConfig>,
}

impl PythonModel {
    /// The part of the configuration for text.
    fn text(&self) -> &Value {
        let parts = ["text_config", "language_config"].map(|key| &self.arch[key]);
        parts.into_iter().find(|part| part.is_object()).unwrap_or(&self.arch)
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.text().get(key).or_else(|| self.arch.get(key)).and_then(Value::as_u64)
    }

    /// Whether it is a vision-language model.
    pub fn sees(&self) -> bool {
        ["vision_config", "sam_config", "vision_tower"]
            .iter()
            .any(|key| self.arch.get(*key).is_some_and(|part| !part.is_null()))
    }

    fn shape(&self, dtype: Dtype) -> Option<Shape> {
        let mut shape = Shape::from_hf(&self.arch, dtype).ok()?;
        if let (Some(vision), Some(preprocess)) = (&mut shape.vision, &self.preprocess) {
            vision.views = vision.views.prepared(preprocess);
        }
        Some(shape)
    }
}

/// The vocabulary of random prompts if the model's is not known, e.g. of a script.
const UNKNOWN_VOCABULARY: u64 = 32_000;

impl Model {
    /// Opens and validates the model of `config` for a run of this kind. With `model.weights=auto` also returns a note
    /// on its weights.
    pub fn open(config: &RunConfig, kind: &WorkKind) -> Result<(Model, Option<String>), InputsError> {
        let open = |weights| Self::with_weights(config, kind, weights);
        if config.model.weights != Weights::Auto {
            return Ok((open(&config.model.weights)?, None));
        }
        let dir = Path::new("models").join(&config.model.name);
        let has_weights = kind.runs_model();
        if !has_weights || !dir.exists() {
            // The header and reports show that weights are synthetic.
            return Ok((open(&Weights::Synthetic)?, None));
        }
        match open(&Weights::Path(dir.clone())) {
            Ok(model) => Ok((model, Some(format!("model.weights=auto is {}", dir.display())))),
            Err(error) => {
                let remark =
                    format!("model.weights=auto is synthetic: {} cannot be used: {error}", dir.display());
                Ok((open(&Weights::Synthetic)?, Some(remark)))
            }
        }
    }

    fn with_weights(config: &RunConfig, kind: &WorkKind, weights: &Weights) -> Result<Model, InputsError> {
        let path = match weights {
            Weights::Path(path) => Some(path.as_path()),
            Weights::Synthetic | Weights::Auto => None,
        };
        let model = match kind {
            WorkKind::Model(ModelEngine::CandleTransformers) => Self::stock(config, path)?,
            WorkKind::Python => Self::python(config, path)?,
            WorkKind::Model(_) | WorkKind::Sim | WorkKind::Program | WorkKind::Server | WorkKind::Watch => {
                Self::own(config, path).map_err(with_remedy)?
            }
        };
        model.check_shape(config)?;
        Ok(model)
    }

    fn own(config: &RunConfig, weights: Option<&Path>) -> Result<Model, InputsError> {
        let config_json = config.model.config_json.as_deref().map(Path::new);
        let path = match weights {
            Some(path) => path,
            None if config.model.dequantize => {
                return Err(InputsError::NothingQuantised { weights: "synthetic".into() });
            }
            None => {
                let spec = match config_json {
                    Some(path) => ModelSpec::from_config_json(path)?,
                    None => ModelSpec::from_hf(&config.model.arch)?,
                };
                return Ok(Model::Own {
                    spec: Box::new(spec),
                    checkpoint: None,
                    scheme: config.model.dtype.scheme(),
                });
            }
        };
        if let Some(scheme) = config.model.dtype.scheme() {
            return Err(InputsError::NotQuantisedHere { weights: path.display().to_string(), scheme });
        }
        let checkpoint = match (Checkpoint::open(path, config_json)?, config.model.dequantize) {
            (checkpoint, false) => checkpoint,
            (checkpoint, true) if checkpoint.has_blocks() => checkpoint.dequantised(),
            _ => return Err(InputsError::NothingQuantised { weights: path.display().to_string() }),
        };
        let spec = Box::new(checkpoint.spec().clone());
        Ok(Model::Own { spec, checkpoint: Some(Arc::new(checkpoint)), scheme: None })
    }

    fn stock(config: &RunConfig, weights: Option<&Path>) -> Result<Model, InputsError> {
        if config.model.dequantize {
            return Err(InputsError::StaysQuantised);
        }
        if let Some(scheme) = config.model.dtype.scheme() {
            return Err(InputsError::OnlyOwnQuantised { scheme });
        }
        let config_json = config.model.config_json.as_deref().map(Path::new);
        let model = match (weights, config_json) {
            (Some(path), _) => StockModel::open(path, config_json)?,
            (None, Some(path)) => StockModel::synthetic_from(path)?,
            (None, None) => StockModel::synthetic(&config.model.arch)?,
        };
        Ok(Model::Stock(Arc::new(model)))
    }

    fn python(config: &RunConfig, weights: Option<&Path>) -> Result<Model, InputsError> {
        if let Some(scheme) = config.model.dtype.scheme() {
            return Err(InputsError::OnlyOwnQuantised { scheme });
        }
        let beside = weights.map(|dir| dir.join("config.json")).filter(|path| path.is_file());
        let given = config.model.config_json.as_ref().map(PathBuf::from).or(beside);
        let arch = match given {
            Some(path) => read_config_json(&path)?,
            None => config.model.arch.clone(),
        };
        Ok(Model::Python(Arc::new(PythonModel {
            arch,
            weights: weights.map(Path::to_owned),
            preprocess: config.model.preprocess.clone().filter(PreprocessConfig::is_enabled),
        })))
    }

    /// FP8 weights are dequantised.
    pub fn for_cpu(self) -> Result<Model, InputsError> {
        match self {
            Model::Own { scheme: Some(scheme @ Scheme::Fp8), .. } => Err(InputsError::NeedsGpu { scheme }),
            Model::Own { spec, checkpoint: Some(checkpoint), scheme } if checkpoint.is_fp8() => {
                let plain = Arc::try_unwrap(checkpoint).map(|checkpoint| Arc::new(checkpoint.dequantised()));
                let checkpoint = Some(plain.unwrap_or_else(|shared| shared));
                Ok(Model::Own { spec, checkpoint, scheme })
            }
            model => Ok(model),
        }
    }

    /// Trained weights must have the configured shape, so that a recording has the right model name.
    fn check_shape(&self, config: &RunConfig) -> Result<(), InputsError> {
        let Some(weights) = self.weights_path() else { return Ok(()) };
        let named = ModelSpec::from_hf(&config.model.arch).ok();
        for (key, size) in SIZES {
            let (got, wanted) = match self {
                Model::Own { spec, .. } => {
                    (Some(size(spec) as u64), named.as_ref().map(|spec| size(spec) as u64))
                }
                Model::Stock(model) => {
                    (model.number(key), config.model.arch.get(key).and_then(|n| n.as_u64()))
                }
                Model::Python(model) => {
                    let named =
                        PythonModel { arch: config.model.arch.clone(), weights: None, preprocess: None };
                    (model.number(key), named.number(key))
                }
            };
            if let (Some(got), Some(wanted)) = (got, wanted)
                && got != wanted
            {
                let (weights, model) = (weights.to_owned(), config.model.name.clone());
                return Err(InputsError::OtherModel { weights, model, key, got, wanted });
            }
        }
        Ok(())
    }

    /// The types on the CPU, fastest first. A decode step of this program's engine reads half the bytes in bf16; candle
    /// itself multiplies fastest in f32, and so do the unquantised parts of quantised weights.
    pub fn fastest_on_cpu(&self) -> &'static [Dtype] {
        match self {
            Model::Own { checkpoint: Some(checkpoint), .. } if checkpoint.has_blocks() => {
                &[Dtype::F32, Dtype::Bf16]
            }
            Model::Own { scheme: Some(_), .. } => &[Dtype::F32, Dtype::Bf16],
            Model::Own { .. } => &[Dtype::Bf16, Dtype::F32],
            Model::Stock(_) | Model::Python(_) => &[Dtype::F32, Dtype::Bf16],
        }
    }

    /// The path of trained weights; `None` for synthetic ones.
    pub fn weights_path(&self) -> Option<&Path> {
        match self {
            Model::Own { checkpoint, .. } => checkpoint.as_ref().map(|checkpoint| checkpoint.path()),
            Model::Stock(model) => model.path(),
            Model::Python(model) => model.weights.as_deref(),
        }
    }

    /// The tokenizer of trained weights: next to them, or in a GGUF file.
    pub fn tokenizer(&self) -> Option<Result<Tokenizer, TextError>> {
        let path = self.weights_path()?;
        Some(match self.vocabulary() {
            Some(vocabulary) => Tokenizer::from_vocabulary(vocabulary),
            None if path.is_dir() => Tokenizer::from_dir(path),
            None => Tokenizer::from_dir(path.parent().unwrap_or(Path::new(""))),
        })
    }

    /// The tokenizer in a GGUF file.
    pub fn vocabulary(&self) -> Option<&Vocabulary> {
        match self {
            Model::Own { checkpoint, .. } => checkpoint.as_ref()?.vocabulary(),
            Model::Stock(model) => model.vocabulary(),
            Model::Python(_) => None,
        }
    }

    pub fn vocab(&self) -> usize {
        match self {
            Model::Own { spec, .. } => spec.vocab,
            Model::Stock(model) => model.vocab(),
            Model::Python(model) => model.number("vocab_size").unwrap_or(UNKNOWN_VOCABULARY) as usize,
        }
    }

    /// The maximum number of positions of a sequence; `None` if there is no limit.
    pub fn max_positions(&self) -> Option<usize> {
        match self {
            Model::Own { spec, .. } => Some(spec.max_positions),
            Model::Stock(model) => model.max_positions(),
            Model::Python(model) => model.number("max_position_embeddings").map(|n| n as usize),
        }
    }

    /// The number of its layers, if the engine reports them during a prefill.
    pub fn layers(&self) -> Option<u16> {
        match self {
            Model::Own { spec, .. } => u16::try_from(spec.layers).ok(),
            Model::Stock(_) | Model::Python(_) => None,
        }
    }

    /// Whether it is a vision-language model.
    pub fn sees(&self) -> bool {
        matches!(self, Model::Python(model) if model.sees())
    }

    pub fn parameters(&self) -> u64 {
        match self {
            Model::Own { spec, .. } => spec.parameters(),
            Model::Stock(model) => model.parameters(),
            Model::Python(model) => model.shape(Dtype::F32).map_or(0, |shape| shape.parameters()),
        }
    }

    /// The size of the weights in memory.
    pub fn weight_bytes(&self, dtype: Dtype) -> u64 {
        match self {
            Model::Own { checkpoint: Some(checkpoint), .. } => checkpoint.weight_bytes(dtype),
            Model::Own { spec, scheme, .. } => synthetic(spec, *scheme).weight_bytes(spec, dtype),
            Model::Stock(model) => model.weight_bytes(dtype),
            Model::Python(model) => model.shape(dtype).map_or(0, |shape| shape.weight_bytes),
        }
    }

    /// The bytes of the weights that a decode step reads; `None` if they depend on the tokens.
    pub fn step_weight_bytes(&self, dtype: Dtype, batch: usize) -> Option<u64> {
        match self {
            Model::Own { spec, checkpoint, scheme } => {
                let bytes = tensor_bytes(spec, checkpoint.as_deref(), *scheme, dtype);
                Some(spec.step_bytes(batch, bytes))
            }
            Model::Stock(model) => model.step_weight_bytes(dtype, batch),
            Model::Python(model) => {
                let step = Step::decode(batch as u64, 1);
                Some(model.shape(dtype)?.cost(step).total().weight_bytes as u64)
            }
        }
    }

    /// Bytes in the KV cache per position and sequence.
    pub fn kv_bytes_per_position(&self, dtype: Dtype, kv_cache: KvCacheDtype) -> u64 {
        match self {
            Model::Own { spec, .. } => spec.kv_bytes_per_position(dtype, kv_cache),
            Model::Stock(model) => model.kv_bytes_per_position(dtype),
            Model::Python(model) => model.shape(dtype).map_or(0, |shape| shape.kv_bytes_per_position()),
        }
    }

    /// The shape that its cost is computed from; `None` if this program cannot compute it.
    pub fn shape(&self, dtype: Dtype) -> Option<Shape> {
        match self {
            Model::Own { spec, checkpoint, scheme } => {
                let shape = Shape::new(spec, dtype, self.weight_bytes(dtype));
                let is_quantised =
                    scheme.is_some() || checkpoint.as_ref().is_some_and(|all| all.is_quantised());
                Some(match is_quantised {
                    true => {
                        let bytes = tensor_bytes(spec, checkpoint.as_deref(), *scheme, dtype);
                        shape.stored_as(&spec.tensors(), bytes)
                    }
                    false => shape,
                })
            }
            Model::Stock(model) => model.shape(dtype),
            Model::Python(model) => model.shape(dtype),
        }
    }

    /// The type of most of the weights.
    pub fn type_name(&self, dtype: Dtype) -> String {
        match self {
            Model::Own { checkpoint: Some(checkpoint), .. } => checkpoint.type_name(dtype),
            Model::Own { scheme: Some(scheme), .. } => scheme.name().to_owned(),
            Model::Own { .. } => dtype.name().to_owned(),
            Model::Stock(model) => model.type_name(dtype),
            Model::Python(_) => dtype.name().to_owned(),
        }
    }
}

/// Weights as those of a run, with any seed.
fn synthetic(spec: &ModelSpec, scheme: Option<Scheme>) -> SyntheticWeights {
    SyntheticWeights::new(0).quantised(scheme, spec)
}

/// The size in memory of a tensor of the program's decoder.
fn tensor_bytes(
    spec: &ModelSpec,
    checkpoint: Option<&Checkpoint>,
    scheme: Option<Scheme>,
    dtype: Dtype,
) -> impl Fn(&TensorShape) -> u64 {
    let weights = synthetic(spec, scheme);
    move |tensor| match checkpoint {
        Some(checkpoint) => checkpoint.tensor_bytes(tensor, dtype),
        None => weights.tensor_bytes(tensor, dtype),
    }
}

/// A key of a `config.json`, and how to read its value.
type Size = (&'static str, fn(&ModelSpec) -> usize);

/// The sizes that identify a model, by their keys in a `config.json`.
const SIZES: [Size; 7] = [
    ("vocab_size", |spec| spec.vocab),
    ("hidden_size", |spec| spec.hidden),
    ("intermediate_size", |spec| spec.intermediate),
    ("num_hidden_layers", |spec| spec.layers),
    ("num_attention_heads", |spec| spec.heads),
    ("num_key_value_heads", |spec| spec.kv_heads),
    ("head_dim", |spec| spec.head_dim),
];

/// Points to candle-transformers if it has a family that this program's decoder does not have.
fn with_remedy(error: InputsError) -> InputsError {
    let unknown = match &error {
        InputsError::Spec(cause) | InputsError::Checkpoint(CheckpointError::Shape { cause, .. }) => {
            unknown_family(cause)
        }
        _ => None,
    };
    match unknown.filter(|model_type| stock::is_known(model_type)) {
        Some(model_type) => InputsError::OnlyStock { model_type: model_type.to_owned() },
        None => error,
    }
}

fn unknown_family(error: &SpecError) -> Option<&str> {
    match error {
        SpecError::UnknownFamily { found } | SpecError::CostOnly { found } => Some(found),
        SpecError::InFile { cause, .. } => unknown_family(cause),
        _ => None,
    }
}
