//! The one table from a GGUF file's architecture to candle-transformers' quantised model of it.

use std::{fs::File, io::BufReader, path::Path};

use candle_core::{Device, Result, Tensor, quantized::gguf_file::Content};
use candle_transformers::models::{
    quantized_gemma3, quantized_llama, quantized_phi3, quantized_qwen2, quantized_qwen3,
};

use super::families::{CausalLm, Renewed};

/// One row of the table.
pub(super) struct Architecture {
    /// As `general.architecture` names it.
    pub name: &'static str,
    make: fn(Content, &mut BufReader<File>, &Device) -> Result<Box<dyn CausalLm>>,
    /// Whether it takes more than one sequence at a time: the last rows of many prompts do not lie together, and
    /// most of these models multiply them as they lie.
    pub batches: bool,
    /// The most positions its rotary table has.
    pub most_positions: Option<usize>,
    /// The cache is allocated for all the positions the model knows.
    pub whole_cache: bool,
    pub rotary_tables_per_layer: bool,
}

pub(super) static ARCHITECTURES: [Architecture; 5] = [
    Architecture {
        name: "llama",
        make: |content, file, device| made(quantized_llama::ModelWeights::from_gguf(content, file, device)?),
        batches: false,
        most_positions: Some(quantized_llama::MAX_SEQ_LEN),
        whole_cache: false,
        rotary_tables_per_layer: false,
    },
    Architecture {
        name: "qwen2",
        make: |content, file, device| made(quantized_qwen2::ModelWeights::from_gguf(content, file, device)?),
        batches: false,
        most_positions: None,
        whole_cache: false,
        rotary_tables_per_layer: false,
    },
    Architecture {
        name: "qwen3",
        make: |content, file, device| made(quantized_qwen3::ModelWeights::from_gguf(content, file, device)?),
        batches: true,
        most_positions: None,
        whole_cache: false,
        rotary_tables_per_layer: false,
    },
    Architecture {
        name: "phi3",
        make: |content, file, device| {
            let model = quantized_phi3::ModelWeights::from_gguf(false, content, file, device)?;
            made(Renewed::new(model))
        },
        batches: false,
        most_positions: None,
        whole_cache: true,
        rotary_tables_per_layer: false,
    },
    Architecture {
        name: "gemma3",
        make: |content, file, device| {
            made(Renewed::new(quantized_gemma3::ModelWeights::from_gguf(content, file, device)?))
        },
        batches: true,
        most_positions: Some(quantized_gemma3::MAX_SEQ_LEN),
        whole_cache: false,
        rotary_tables_per_layer: true,
    },
];

impl Architecture {
    pub fn make(&self, path: &Path, device: &Device) -> Result<Box<dyn CausalLm>> {
        let mut file = BufReader::new(File::open(path)?);
        let content = Content::read(&mut file)?;
        (self.make)(content, &mut file, device)
    }
}

fn made(model: impl CausalLm + 'static) -> Result<Box<dyn CausalLm>> {
    Ok(Box::new(model))
}

macro_rules! clears_its_cache {
    ($($model:ty),+) => {$(
        impl CausalLm for $model {
            fn forward(&mut self, ids: &Tensor, position: usize) -> Result<Tensor> {
                <$model>::forward(self, ids, position)
            }

            fn reset(&mut self) -> Result<()> {
                self.clear_kv_cache();
                Ok(())
            }
        }
    )+};
}

clears_its_cache!(
    quantized_llama::ModelWeights,
    quantized_qwen2::ModelWeights,
    quantized_qwen3::ModelWeights
);

macro_rules! cannot_forget {
    ($($model:ty),+) => {$(
        impl CausalLm for Renewed<$model> {
            fn forward(&mut self, ids: &Tensor, position: usize) -> Result<Tensor> {
                self.model.forward(ids, position)
            }

            fn reset(&mut self) -> Result<()> {
                self.model = self.unread.clone();
                Ok(())
            }
        }
    )+};
}

cannot_forget!(quantized_phi3::ModelWeights, quantized_gemma3::ModelWeights);
