//! The model of a run: one that our own decoder builds, or one that candle-transformers does.

use std::{path::Path, sync::Arc};

use super::InputsError;
use crate::{
    config::{Dtype, RunConfig, Runtime, Weights},
    engine::candle::{
        Checkpoint, CheckpointError,
        stock::{self, StockModel},
    },
    model::{ModelSpec, Shape, SpecError},
    text::Vocabulary,
};

/// Who builds the model, and from what.
#[derive(Debug, Clone)]
pub enum Model {
    Ours {
        spec: Box<ModelSpec>,
        /// Trained weights; `None` where they are synthetic.
        checkpoint: Option<Arc<Checkpoint>>,
    },
    Stock(Arc<StockModel>),
}

impl Model {
    /// Finds and checks the model that `config` names, for the runtime it names.
    pub fn open(config: &RunConfig) -> Result<Model, InputsError> {
        let model = match config.runtime.name {
            Runtime::CandleStock => Self::stock(config)?,
            Runtime::Candle | Runtime::Sim | Runtime::Watch => Self::ours(config).map_err(remedied)?,
        };
        model.is_the_one_named(config)?;
        Ok(model)
    }

    fn ours(config: &RunConfig) -> Result<Model, InputsError> {
        let config_json = config.model.config_json.as_deref().map(Path::new);
        let path = match &config.model.weights {
            Weights::Path(path) => path,
            Weights::Synthetic if config.model.dequantize => {
                return Err(InputsError::NothingQuantised { weights: "synthetic".into() });
            }
            Weights::Synthetic => {
                let spec = match config_json {
                    Some(path) => ModelSpec::from_config_json(path)?,
                    None => ModelSpec::from_hf(&config.model.arch)?,
                };
                return Ok(Model::Ours { spec: Box::new(spec), checkpoint: None });
            }
        };
        let checkpoint = match (Checkpoint::open(path, config_json)?, config.model.dequantize) {
            (checkpoint, false) => checkpoint,
            (checkpoint, true) if checkpoint.is_gguf() => checkpoint.dequantised(),
            _ => return Err(InputsError::NothingQuantised { weights: path.display().to_string() }),
        };
        let spec = Box::new(checkpoint.spec().clone());
        Ok(Model::Ours { spec, checkpoint: Some(Arc::new(checkpoint)) })
    }

    fn stock(config: &RunConfig) -> Result<Model, InputsError> {
        if config.model.dequantize {
            return Err(InputsError::StaysQuantised);
        }
        let config_json = config.model.config_json.as_deref().map(Path::new);
        let model = match (&config.model.weights, config_json) {
            (Weights::Path(path), _) => StockModel::open(path, config_json)?,
            (Weights::Synthetic, Some(path)) => StockModel::synthetic_from(path)?,
            (Weights::Synthetic, None) => StockModel::synthetic(&config.model.arch)?,
        };
        Ok(Model::Stock(Arc::new(model)))
    }

    /// A recording must not bear the name of a model it did not run: where the configuration has a shape, trained
    /// weights have the same.
    fn is_the_one_named(&self, config: &RunConfig) -> Result<(), InputsError> {
        let Some(weights) = self.weights_path() else { return Ok(()) };
        let named = ModelSpec::from_hf(&config.model.arch).ok();
        let keys = [
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
        ];
        for key in keys {
            let (got, wanted) = match self {
                Model::Ours { spec, .. } => {
                    (size(spec, key), named.as_ref().and_then(|spec| size(spec, key)))
                }
                Model::Stock(model) => {
                    (model.number(key), config.model.arch.get(key).and_then(|n| n.as_u64()))
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

    /// Where trained weights are; `None` where they are synthetic.
    pub fn weights_path(&self) -> Option<&Path> {
        match self {
            Model::Ours { checkpoint, .. } => checkpoint.as_ref().map(|checkpoint| checkpoint.path()),
            Model::Stock(model) => model.path(),
        }
    }

    /// The tokenizer a GGUF file carries.
    pub fn vocabulary(&self) -> Option<&Vocabulary> {
        match self {
            Model::Ours { checkpoint, .. } => checkpoint.as_ref()?.vocabulary(),
            Model::Stock(model) => model.vocabulary(),
        }
    }

    pub fn vocab(&self) -> usize {
        match self {
            Model::Ours { spec, .. } => spec.vocab,
            Model::Stock(model) => model.vocab(),
        }
    }

    /// The most positions of a sequence; `None` where nothing limits them.
    pub fn max_positions(&self) -> Option<usize> {
        match self {
            Model::Ours { spec, .. } => Some(spec.max_positions),
            Model::Stock(model) => model.max_positions(),
        }
    }

    pub fn parameters(&self) -> u64 {
        match self {
            Model::Ours { spec, .. } => spec.parameters(),
            Model::Stock(model) => model.parameters(),
        }
    }

    /// What the weights take in memory.
    pub fn weight_bytes(&self, dtype: Dtype) -> u64 {
        match self {
            Model::Ours { checkpoint: Some(checkpoint), .. } => checkpoint.weight_bytes(dtype),
            Model::Ours { spec, .. } => spec.weight_bytes(dtype),
            Model::Stock(model) => model.weight_bytes(dtype),
        }
    }

    /// The part of them that a decode step reads; `None` where that depends on the tokens.
    pub fn step_weight_bytes(&self, dtype: Dtype, batch: usize) -> Option<u64> {
        match self {
            Model::Ours { spec, .. } => {
                let share = spec.step_weight_bytes(dtype) as f64 / spec.weight_bytes(dtype).max(1) as f64;
                Some((self.weight_bytes(dtype) as f64 * share) as u64)
            }
            Model::Stock(model) => model.step_weight_bytes(dtype, batch),
        }
    }

    /// Bytes that one position of one sequence leaves in the cache.
    pub fn kv_bytes_per_position(&self, dtype: Dtype) -> u64 {
        match self {
            Model::Ours { spec, .. } => spec.kv_bytes_per_position(dtype),
            Model::Stock(model) => model.kv_bytes_per_position(dtype),
        }
    }

    /// What its cost follows from; `None` where this program can't reckon it.
    pub fn shape(&self, dtype: Dtype) -> Option<Shape> {
        match self {
            Model::Ours { spec, .. } => Some(Shape::new(spec, dtype, self.weight_bytes(dtype))),
            Model::Stock(model) => model.shape(dtype),
        }
    }

    /// The type most of the weights are kept in.
    pub fn type_name(&self, dtype: Dtype) -> String {
        match self {
            Model::Ours { checkpoint: Some(checkpoint), .. } => checkpoint.type_name(dtype),
            Model::Ours { .. } => dtype.name().to_owned(),
            Model::Stock(model) => model.type_name(dtype),
        }
    }
}

fn size(spec: &ModelSpec, key: &str) -> Option<u64> {
    let size = match key {
        "vocab_size" => spec.vocab,
        "hidden_size" => spec.hidden,
        "intermediate_size" => spec.intermediate,
        "num_hidden_layers" => spec.layers,
        "num_attention_heads" => spec.heads,
        "num_key_value_heads" => spec.kv_heads,
        "head_dim" => spec.head_dim,
        _ => return None,
    };
    Some(size as u64)
}

/// A family that our decoder does not have may be one of candle-transformers'.
fn remedied(error: InputsError) -> InputsError {
    let unknown = match &error {
        InputsError::Spec(cause) | InputsError::Checkpoint(CheckpointError::Shape { cause, .. }) => {
            unknown_family(cause)
        }
        InputsError::Checkpoint(CheckpointError::Unsupported { key, found, .. })
            if key == "general.architecture" && stock::is_quantised(found) =>
        {
            return InputsError::OnlyStockGguf { architecture: found.clone() };
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
        SpecError::UnknownFamily { found } => Some(found),
        SpecError::InFile { cause, .. } => unknown_family(cause),
        _ => None,
    }
}
