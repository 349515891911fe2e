//! The one table from a GGUF file's architecture to candle-transformers' quantised model of it.

use std::{fs::File, io::BufReader, path::Path};

use candle_core::{Device, Result, Tensor, quantized::gguf_file::Content};
use candle_transformers::models::{
    quantized_gemma3, quantized_llama, quantized_phi3, quantized_qwen2, quantized_qwen3,
};

use super::families::{CausalLm, Renewed, told_the_position};
use crate::weights::read_header;

type Made = Result<Box<dyn CausalLm>>;

/// One row of the table.
pub(super) struct Architecture {
    /// The value of `general.architecture`.
    pub name: &'static str,
    make: fn(Content, &mut BufReader<File>, &Device) -> Made,
    /// The number of positions of its rotary table.
    pub most_positions: Option<usize>,
    /// Positions for which its cache allocates memory, given the requested ones and the model's maximum.
    pub cached_positions: fn(u64, u64) -> u64,
    pub rotary_tables_per_layer: bool,
}

pub(super) static ARCHITECTURES: [Architecture; 5] = [
    Architecture {
        name: "llama",
        make: |content, file, device| boxed(quantized_llama::ModelWeights::from_gguf(content, file, device)?),
        most_positions: Some(quantized_llama::MAX_SEQ_LEN),
        cached_positions: |asked, _| asked,
        rotary_tables_per_layer: false,
    },
    Architecture {
        name: "qwen2",
        make: |content, file, device| boxed(quantized_qwen2::ModelWeights::from_gguf(content, file, device)?),
        most_positions: None,
        cached_positions: |asked, _| asked,
        rotary_tables_per_layer: false,
    },
    Architecture {
        name: "qwen3",
        make: |content, file, device| boxed(quantized_qwen3::ModelWeights::from_gguf(content, file, device)?),
        most_positions: None,
        // On the CPU it keeps keys and values twice, once in a buffer of at least 4,096 positions.
        cached_positions: |asked, _| asked + asked.max(4096),
        rotary_tables_per_layer: false,
    },
    Architecture {
        name: "phi3",
        make: |content, file, device| {
            let model = quantized_phi3::ModelWeights::from_gguf(false, content, file, device)?;
            boxed(Renewed::new(model))
        },
        most_positions: None,
        cached_positions: |_, known| known,
        rotary_tables_per_layer: false,
    },
    Architecture {
        name: "gemma3",
        make: |content, file, device| {
            boxed(Renewed::new(quantized_gemma3::ModelWeights::from_gguf(content, file, device)?))
        },
        most_positions: Some(quantized_gemma3::MAX_SEQ_LEN),
        cached_positions: |asked, _| asked,
        rotary_tables_per_layer: true,
    },
];

impl Architecture {
    pub fn make(&self, path: &Path, device: &Device) -> Made {
        let read = read_header(path).map_err(|e| candle_core::Error::Msg(e.to_string()));
        let (mut file, header) = read?;
        (self.make)(header.into_content(), &mut file, device)
    }
}

fn boxed(model: impl CausalLm + 'static) -> Made {
    Ok(Box::new(model))
}

told_the_position!(
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
