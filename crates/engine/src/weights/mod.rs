//! The weights of a model as values and blocks in host memory, for any device: from checkpoints, or random.

mod checkpoint;
pub mod fp8;
mod gguf;
mod gguf_header;
mod gguf_metadata;
mod gpt_oss;
mod packed;
mod safetensors;
mod scheme;
mod synthetic;
mod values;

pub use checkpoint::{Checkpoint, CheckpointError};
pub use decoder_ops::Format;
pub(crate) use gguf_header::{Kind, read_header};
pub(crate) use gguf_metadata::Metadata;
pub(crate) use safetensors::SafetensorsFiles;
pub use synthetic::SyntheticWeights;
pub use values::Values;

use llm_cost::spec::TensorShape;
use llmprof_config::Dtype;
use thiserror::Error;

/// Why weights cannot be read, although the checkpoint was accepted when it was opened.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct WeightError(String);

impl From<candle_core::Error> for WeightError {
    fn from(error: candle_core::Error) -> Self {
        WeightError(error.to_string())
    }
}

/// Rows of quantised weights, in blocks as a GGUF file has them.
#[derive(Debug)]
pub struct QuantisedRows {
    pub format: Format,
    pub bytes: Vec<u8>,
    pub rows: usize,
}

/// Yields the tensors of a checkpoint by their Hugging Face names.
pub trait WeightSource: Sync {
    /// The values of the named tensors, one after the other, dequantised if necessary and rounded to `dtype`.
    fn values(&self, parts: &[TensorShape], dtype: Dtype) -> Result<Values, WeightError>;

    /// The named tensors as blocks, stacked by rows; neighbours of one type are joined. `None` if one of them is not
    /// quantised.
    fn blocks(&self, _parts: &[TensorShape]) -> Result<Option<Vec<QuantisedRows>>, WeightError> {
        Ok(None)
    }

    /// The named tensors in FP8 (e4m3), stacked by rows. `None` if one of them is stored in another type.
    fn fp8(&self, _parts: &[TensorShape]) -> Option<fp8::Fp8Rows> {
        None
    }

    /// Divisors of the rotary frequencies, if a checkpoint lists them.
    fn rope_divisors(&self) -> Result<Option<Vec<f32>>, WeightError> {
        Ok(None)
    }
}

/// Joins neighbours of one type.
fn joined(parts: impl Iterator<Item = QuantisedRows>) -> Vec<QuantisedRows> {
    let mut runs: Vec<QuantisedRows> = Vec::new();
    for part in parts {
        match runs.last_mut() {
            Some(last) if last.format == part.format => {
                last.bytes.extend_from_slice(&part.bytes);
                last.rows += part.rows;
            }
            _ => runs.push(part),
        }
    }
    runs
}

/// The values of blocks in rows of `columns`.
fn dequantised(format: Format, bytes: &[u8], columns: usize) -> Result<Vec<f32>, WeightError> {
    let panels = decoder_ops::Panels::new(format, bytes, columns)?;
    let rows: Vec<u32> = (0..panels.shape().0 as u32).collect();
    Ok(decoder_ops::quantised_rows(&rows, &panels)?.flatten_all()?.to_vec1()?)
}
