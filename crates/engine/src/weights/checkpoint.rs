//! Trained weights on disk: opened, checked against the model's shape, and read when the decoder is created.

use std::path::{Path, PathBuf};

use decoder_ops::{Format, Panels};
use thiserror::Error;

use super::{
    QuantisedRows, Values, WeightError, WeightSource,
    fp8::{self, Fp8Rows},
    gguf::GgufFile,
    safetensors::SafetensorsFiles,
};
use llm_cost::{
    ModelSpec, SpecError,
    spec::{TensorShape, read_config_json},
};
use llmprof_base::foreign::line;
use llmprof_config::Dtype;
use llmprof_workload::text::Vocabulary;

/// Why weights cannot be used. Every message names the file.
#[derive(Debug, Error)]
pub enum CheckpointError {
    #[error("cannot read {}: {cause}", file.display())]
    Unreadable { file: PathBuf, cause: std::io::Error },
    #[error(
        "{} has no weights: model.safetensors, model.safetensors.index.json or the path of a .gguf file is expected",
        dir.display()
    )]
    NoWeights { dir: PathBuf },
    #[error("{} is not a complete {format} file: {}", file.display(), line(cause, MAX_CAUSE))]
    Corrupt { file: PathBuf, format: &'static str, cause: String },
    #[error("{} names {}, which does not exist", index.display(), line(shard, MAX_CAUSE))]
    MissingShard { index: PathBuf, shard: String },
    #[error("{} has no tensor {tensor}", file.display())]
    MissingTensor { file: PathBuf, tensor: String },
    #[error("{}: {tensor} has shape {got:?}, the model needs {wanted:?}", file.display())]
    WrongShape { file: PathBuf, tensor: String, got: Vec<usize>, wanted: Vec<usize> },
    #[error("{}: {tensor} is {got}; f32, f16 and bf16 can be read", file.display())]
    WrongType { file: PathBuf, tensor: String, got: String },
    #[error(
        "{}: {tensor} is stored in parts whose shapes or types do not match; 4-bit AWQ, GPTQ and gpt-oss (MXFP4) are \
         supported",
        file.display()
    )]
    Packed { file: PathBuf, tensor: String },
    #[error(
        "{}: {tensor} is FP8 (e4m3), and its scales are missing or do not match; one scale per matrix, per row or per \
         block of 128 × 128 is supported",
        file.display()
    )]
    Unscaled { file: PathBuf, tensor: String },
    #[error("{} has no {key}", file.display())]
    MissingKey { file: PathBuf, key: String },
    #[error("{}: {key} {:?} is not supported; {supported}", file.display(), line(found, MAX_CAUSE))]
    Unsupported { file: PathBuf, key: String, found: String, supported: String },
    #[error("{}: {cause}", file.display())]
    Shape { file: PathBuf, cause: SpecError },
}

/// Causes repeat names of the file, which may be any bytes.
const MAX_CAUSE: usize = 200;

/// A model on disk with all its tensors in the right shapes.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    spec: ModelSpec,
    files: Files,
    /// Quantised blocks are dequantised when they are read.
    dequantised: bool,
}

#[derive(Debug)]
enum Files {
    Safetensors(SafetensorsFiles),
    Gguf(Box<GgufFile>),
}

impl Checkpoint {
    /// Opens `path`: a directory with `config.json` and safetensors, a single safetensors file beside its
    /// `config.json`, or a GGUF file. `config_json` is read instead of the `config.json` beside the weights.
    pub fn open(path: &Path, config_json: Option<&Path>) -> Result<Checkpoint, CheckpointError> {
        let unreadable = |cause| CheckpointError::Unreadable { file: path.to_owned(), cause };
        let is_dir = std::fs::metadata(path).map_err(unreadable)?.is_dir();
        if !is_dir && path.extension().is_none_or(|extension| extension != "safetensors") {
            let file = GgufFile::open(path)?;
            let spec = file.spec()?;
            file.check(&spec)?;
            let files = Files::Gguf(Box::new(file));
            return Ok(Checkpoint { path: path.to_owned(), spec, files, dequantised: false });
        }
        let dir = if is_dir { path } else { path.parent().unwrap_or(Path::new("")) };
        let config_json = config_json.map_or_else(|| dir.join("config.json"), Path::to_owned);
        let in_file = |cause| CheckpointError::Shape { file: config_json.clone(), cause };
        let spec = ModelSpec::from_config_json(&config_json).map_err(in_file)?;
        let mut files =
            if is_dir { SafetensorsFiles::in_dir(path)? } else { SafetensorsFiles::single(path)? };
        let config = read_config_json(&config_json).map_err(in_file)?;
        if config["quantization_config"]["checkpoint_format"] == "gptq_v2" {
            files.gptq_zero_offset = 0;
        }
        files.check(&spec.tensors())?;
        let files = Files::Safetensors(files);
        Ok(Checkpoint { path: path.to_owned(), spec, files, dequantised: false })
    }

    /// The same weights, dequantised.
    pub fn dequantised(self) -> Checkpoint {
        Checkpoint { dequantised: true, ..self }
    }

    /// Whether the weights stay quantised.
    pub fn is_quantised(&self) -> bool {
        self.has_blocks() && !self.dequantised
    }

    /// Whether the files may hold quantised weights.
    pub fn has_blocks(&self) -> bool {
        match &self.files {
            Files::Gguf(_) => true,
            Files::Safetensors(files) => {
                let keeps = |tensor| files.kept_format(tensor).is_some() || files.keeps_fp8(tensor);
                self.spec.tensors().iter().any(keeps)
            }
        }
    }

    /// Whether a device keeps weights in FP8 (e4m3).
    pub fn is_fp8(&self) -> bool {
        match &self.files {
            Files::Safetensors(files) if !self.dequantised => {
                self.spec.tensors().iter().any(|tensor| files.keeps_fp8(tensor))
            }
            _ => false,
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Bytes of the weights in memory, with unquantised ones as `dtype`.
    pub fn weight_bytes(&self, dtype: Dtype) -> u64 {
        self.spec.tensors().iter().map(|tensor| self.tensor_bytes(tensor, dtype)).sum()
    }

    /// The same of one tensor.
    pub fn tensor_bytes(&self, tensor: &TensorShape, dtype: Dtype) -> u64 {
        match &self.files {
            Files::Gguf(file) if !self.dequantised => file.tensor_bytes(&self.spec, tensor, dtype),
            Files::Safetensors(files) if !self.dequantised => {
                match (files.kept_format(tensor), tensor.shape.as_slice()) {
                    (_, &[rows, columns]) if files.keeps_fp8(tensor) => fp8::bytes(rows, columns),
                    (Some(format), &[rows, columns]) => Panels::size(format, rows, columns) as u64,
                    _ => tensor.elements() * dtype.bytes(),
                }
            }
            _ => tensor.elements() * dtype.bytes(),
        }
    }

    /// The type of most weights: `dtype`, or a quantised one such as `q4_1`.
    pub fn type_name(&self, dtype: Dtype) -> String {
        match &self.files {
            Files::Gguf(file) if !self.dequantised => file.type_name(&self.spec, dtype),
            Files::Safetensors(_) if self.is_fp8() => "fp8".to_owned(),
            Files::Safetensors(files) if self.is_quantised() => {
                let format = self.spec.tensors().iter().find_map(|tensor| files.kept_format(tensor));
                if format == Some(Format::Mxfp4) { "mxfp4" } else { "int4" }.to_owned()
            }
            _ => dtype.name().to_owned(),
        }
    }

    /// The tokenizer in a GGUF file.
    pub fn vocabulary(&self) -> Option<&Vocabulary> {
        match &self.files {
            Files::Safetensors(_) => None,
            Files::Gguf(file) => file.vocabulary(),
        }
    }
}

impl WeightSource for Checkpoint {
    fn values(&self, parts: &[TensorShape], dtype: Dtype) -> Result<Values, WeightError> {
        match &self.files {
            Files::Safetensors(files) => files.values(parts, dtype),
            Files::Gguf(file) => file.values(&self.spec, parts, dtype),
        }
    }

    fn blocks(&self, parts: &[TensorShape]) -> Result<Option<Vec<QuantisedRows>>, WeightError> {
        match &self.files {
            Files::Gguf(file) if !self.dequantised => file.blocks_of(&self.spec, parts),
            Files::Safetensors(files) if !self.dequantised => Ok(files.blocks(parts)),
            _ => Ok(None),
        }
    }

    fn fp8(&self, parts: &[TensorShape]) -> Option<Fp8Rows> {
        match &self.files {
            Files::Safetensors(files) if !self.dequantised => files.fp8(parts),
            _ => None,
        }
    }

    fn rope_divisors(&self) -> Result<Option<Vec<f32>>, WeightError> {
        match &self.files {
            Files::Safetensors(_) => Ok(None),
            Files::Gguf(file) => file.rope_divisors(),
        }
    }
}
