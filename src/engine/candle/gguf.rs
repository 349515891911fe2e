//! GGUF: quantised blocks are kept; names and shapes are translated to those of a Hugging Face checkpoint.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use candle_core::{
    Device, Result, Tensor,
    quantized::{GgmlDType, QStorage, QTensor, gguf_file::TensorInfo},
};

use super::{
    Matrix,
    checkpoint::{CheckpointError, below_each_other, candle_dtype},
    gguf_header::{read_header, size_bytes},
    gguf_metadata::Metadata,
    matrix,
};
use crate::{
    config::Dtype,
    model::{ModelSpec, spec::TensorShape},
    text::Vocabulary,
};

/// Divisors of the rotary frequencies: Llama 3's rotary scaling in GGUF.
const ROPE_DIVISORS: &str = "rope_freqs.weight";

/// A GGUF file whose header has been read.
pub(super) struct GgufFile {
    path: PathBuf,
    file: Mutex<File>,
    config: serde_json::Value,
    vocabulary: Option<Vocabulary>,
    tensors: HashMap<String, TensorInfo>,
    data_offset: u64,
    /// Queries and keys are in the order of interleaved rotary pairs.
    interleaved: bool,
}

impl std::fmt::Debug for GgufFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GgufFile").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Rows of one tensor as stored in the file, in the order of our decoder.
struct Blocks {
    dtype: GgmlDType,
    bytes: Vec<u8>,
    rows: usize,
}

impl GgufFile {
    /// Reads the header; tensors are read on request.
    pub fn open(path: &Path) -> std::result::Result<Self, CheckpointError> {
        let (file, content) = read_header(path)?;
        let metadata = Metadata { file: path, entries: &content.metadata };
        let config = metadata.hf_config(&content.tensor_infos)?;
        Ok(GgufFile {
            path: path.to_owned(),
            file: Mutex::new(file.into_inner()),
            interleaved: config["model_type"] == "llama",
            config,
            vocabulary: metadata.vocabulary(),
            tensors: content.tensor_infos,
            data_offset: content.tensor_data_offset,
        })
    }

    /// The shape from the metadata.
    pub fn spec(&self) -> std::result::Result<ModelSpec, CheckpointError> {
        ModelSpec::from_hf(&self.config)
            .map_err(|cause| CheckpointError::Shape { file: self.path.clone(), cause })
    }

    pub fn vocabulary(&self) -> Option<&Vocabulary> {
        self.vocabulary.as_ref()
    }

    /// Checks that every tensor of `spec` exists and has its shape.
    pub fn check(&self, spec: &ModelSpec) -> std::result::Result<(), CheckpointError> {
        let file = || self.path.clone();
        for TensorShape { name, shape } in spec.tensors() {
            let tensor = gguf_name(&name);
            let Some(info) = self.tensors.get(&tensor) else {
                return Err(CheckpointError::MissingTensor { file: file(), tensor });
            };
            if info.shape.dims() != shape {
                let got = info.shape.dims().to_vec();
                return Err(CheckpointError::WrongShape { file: file(), tensor, got, wanted: shape });
            }
        }
        Ok(())
    }

    pub fn weight_bytes(&self, spec: &ModelSpec, dtype: Dtype) -> u64 {
        self.bytes_by_type(spec, dtype).values().sum()
    }

    /// The type of most bytes.
    pub fn type_name(&self, spec: &ModelSpec, dtype: Dtype) -> String {
        let by_type = self.bytes_by_type(spec, dtype);
        by_type.into_iter().max_by_key(|&(_, bytes)| bytes).map_or_else(String::new, |(name, _)| name)
    }

    fn bytes_by_type(&self, spec: &ModelSpec, dtype: Dtype) -> BTreeMap<String, u64> {
        let mut bytes = BTreeMap::new();
        for tensor in spec.tensors() {
            if let Some(info) = self.tensors.get(&gguf_name(&tensor.name)) {
                let (name, size) = match is_plain(info.ggml_dtype) {
                    true => (dtype.name().to_owned(), info.shape.elem_count() as u64 * dtype.bytes()),
                    false => {
                        let size = match *info.shape.dims() {
                            [rows, columns] => matrix::bytes(info.ggml_dtype, rows, columns),
                            _ => None,
                        };
                        (type_name(info.ggml_dtype), size.unwrap_or_else(|| size_bytes(info)))
                    }
                };
                *bytes.entry(name).or_default() += size;
            }
        }
        bytes
    }

    /// The tensors, dequantised.
    pub fn stacked(&self, spec: &ModelSpec, parts: &[TensorShape], dtype: Dtype) -> Result<Tensor> {
        let read = |part: &TensorShape| self.plain(&self.blocks(spec, part)?, &part.shape, dtype);
        below_each_other(parts.iter().map(read).collect::<Result<_>>()?)
    }

    /// The tensors in the types the file has; neighbours of one type become one matrix.
    pub fn matrix(&self, spec: &ModelSpec, parts: &[TensorShape], dtype: Dtype) -> Result<Matrix> {
        let columns = parts[0].shape.last().copied().unwrap_or(1);
        let mut runs: Vec<Blocks> = Vec::with_capacity(parts.len());
        for part in parts {
            let next = self.blocks(spec, part)?;
            match runs.last_mut() {
                Some(last) if last.dtype == next.dtype => {
                    last.bytes.extend_from_slice(&next.bytes);
                    last.rows += next.rows;
                }
                _ => runs.push(next),
            }
        }
        let matrices = runs.iter().map(|run| match is_plain(run.dtype) {
            true => self.plain(run, &[run.rows, columns], dtype).map(Matrix::plain),
            false => run.tensor(&[run.rows, columns]).map(Matrix::quantised),
        });
        Ok(Matrix::stacked(matrices.collect::<Result<Vec<_>>>()?))
    }

    pub fn rope_divisors(&self) -> Result<Option<Vec<f32>>> {
        match self.tensors.get(ROPE_DIVISORS) {
            Some(info) => self.read(info)?.dequantize(&Device::Cpu)?.to_vec1().map(Some),
            None => Ok(None),
        }
    }

    fn plain(&self, blocks: &Blocks, shape: &[usize], dtype: Dtype) -> Result<Tensor> {
        blocks.tensor(shape)?.dequantize(&Device::Cpu)?.to_dtype(candle_dtype(dtype))
    }

    fn read(&self, info: &TensorInfo) -> Result<QTensor> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        info.read(&mut *file, self.data_offset, &Device::Cpu)
    }

    fn blocks(&self, spec: &ModelSpec, part: &TensorShape) -> Result<Blocks> {
        let name = gguf_name(&part.name);
        let Some(info) = self.tensors.get(&name) else { candle_core::bail!("no tensor {name}") };
        let tensor = self.read(info)?;
        let rows = part.shape.first().copied().unwrap_or(1);
        let bytes = tensor.data()?;
        let turned = part.name.contains("self_attn.q_proj") || part.name.contains("self_attn.k_proj");
        let bytes = match self.interleaved && turned {
            true => halves_from_pairs(&bytes, rows, spec.head_dim),
            false => bytes.into_owned(),
        };
        Ok(Blocks { dtype: info.ggml_dtype, bytes, rows })
    }
}

impl Blocks {
    fn tensor(&self, shape: &[usize]) -> Result<QTensor> {
        let storage = QStorage::from_data((&self.bytes).into(), &Device::Cpu, self.dtype)?;
        QTensor::new(storage, shape)
    }
}

/// Puts the rows of each head back into the order of a Hugging Face checkpoint. GGUF's llama rotates rows 2i and
/// 2i + 1 as a pair, our decoder i and i + head_dim / 2. A row consists of complete blocks, so it moves without being
/// decoded.
fn halves_from_pairs(bytes: &[u8], rows: usize, head_dim: usize) -> Vec<u8> {
    let row_bytes = bytes.len() / rows;
    let half = head_dim / 2;
    let mut out = Vec::with_capacity(bytes.len());
    for row in 0..rows {
        let (head, within) = (row / head_dim, row % head_dim);
        let from = head * head_dim + 2 * (within % half) + within / half;
        out.extend_from_slice(&bytes[from * row_bytes..(from + 1) * row_bytes]);
    }
    out
}

pub(super) fn is_plain(dtype: GgmlDType) -> bool {
    matches!(dtype, GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16)
}

/// As llama.cpp writes it, in lower case: `q4_1`, `q6_k`.
pub(super) fn type_name(dtype: GgmlDType) -> String {
    format!("{dtype:?}").replace('K', "_K").to_lowercase()
}

/// The GGUF name of a tensor of a Hugging Face checkpoint.
fn gguf_name(name: &str) -> String {
    const OUTER: [(&str, &str); 3] =
        [("model.embed_tokens.", "token_embd."), ("model.norm.", "output_norm."), ("lm_head.", "output.")];
    const INNER: [(&str, &str); 11] = [
        ("input_layernorm.", "attn_norm."),
        ("self_attn.q_proj.", "attn_q."),
        ("self_attn.k_proj.", "attn_k."),
        ("self_attn.v_proj.", "attn_v."),
        ("self_attn.o_proj.", "attn_output."),
        ("self_attn.q_norm.", "attn_q_norm."),
        ("self_attn.k_norm.", "attn_k_norm."),
        ("post_attention_layernorm.", "ffn_norm."),
        ("mlp.gate_proj.", "ffn_gate."),
        ("mlp.up_proj.", "ffn_up."),
        ("mlp.down_proj.", "ffn_down."),
    ];
    let renamed = |name: &str, table: &[(&str, &str)]| {
        table.iter().find_map(|(from, to)| name.strip_prefix(from).map(|rest| format!("{to}{rest}")))
    };
    match name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')) {
        Some((layer, inner)) => {
            let inner = renamed(inner, &INNER).unwrap_or_else(|| inner.to_owned());
            format!("blk.{layer}.{inner}")
        }
        None => renamed(name, &OUTER).unwrap_or_else(|| name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let table = [
            ("model.embed_tokens.weight", "token_embd.weight"),
            ("lm_head.weight", "output.weight"),
            ("model.norm.weight", "output_norm.weight"),
            ("model.layers.12.self_attn.k_proj.bias", "blk.12.attn_k.bias"),
            ("model.layers.0.self_attn.q_norm.weight", "blk.0.attn_q_norm.weight"),
            ("model.layers.3.post_attention_layernorm.weight", "blk.3.ffn_norm.weight"),
        ];
        for (hf, gguf) in table {
            assert_eq!(gguf_name(hf), gguf);
        }
        assert_eq!(type_name(GgmlDType::Q4_1), "q4_1");
        assert_eq!(type_name(GgmlDType::Q6K), "q6_k");
    }

    #[test]
    fn rows_of_a_head_go_back_from_pairs_to_halves() {
        // Two heads of six rows of two bytes; a row's bytes are its number in the Hugging Face order.
        let pairs: Vec<u8> =
            [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11].into_iter().flat_map(|row| [row, row]).collect();
        let halves: Vec<u8> = (0..12).flat_map(|row| [row, row]).collect();
        assert_eq!(halves_from_pairs(&pairs, 12, 6), halves);
    }
}
