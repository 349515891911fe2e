//! GGUF: quantised blocks are kept; names and shapes are translated to those of a Hugging Face checkpoint.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use candle_core::{
    Device,
    quantized::{QStorage, QTensor},
};
use decoder_ops::{Format, Panels};
use serde_json::json;

use super::{
    CheckpointError, QuantisedRows, Values, WeightError, dequantised,
    gguf_header::{Kind, TensorInfo, read_header},
    gguf_metadata::Metadata,
    joined,
    values::wide,
};
use llm_cost::{ModelSpec, spec::TensorShape};
use llmprof_config::Dtype;
use llmprof_workload::text::Vocabulary;

/// Divisors of the rotary frequencies: Llama 3's rotary scaling in GGUF.
const ROPE_DIVISORS: &str = "rope_freqs.weight";
/// The same for short and for long contexts: Phi-3's.
const ROPE_FACTORS: [(&str, &str); 2] =
    [("short_factor", "rope_factors_short.weight"), ("long_factor", "rope_factors_long.weight")];
/// One per pair of a head's dimensions; heads have up to 512.
const MAX_FACTORS: u64 = 4096;

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

/// Rows of one tensor as stored in the file, in the order of the built-in decoder.
struct Blocks {
    kind: Kind,
    bytes: Vec<u8>,
    rows: usize,
}

impl GgufFile {
    /// Reads the header; tensors are read on request.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let (file, header) = read_header(path)?;
        let metadata = Metadata { file: path, entries: &header.metadata };
        let config = metadata.hf_config(&header.tensors)?;
        let attention_factor = metadata.attention_factor();
        let mut opened = GgufFile {
            path: path.to_owned(),
            file: Mutex::new(file.into_inner()),
            interleaved: config["model_type"] == "llama" || config["model_type"] == "mixtral",
            config,
            vocabulary: metadata.vocabulary(),
            tensors: header.tensors,
            data_offset: header.data_offset,
        };
        if ROPE_FACTORS.iter().all(|(_, tensor)| opened.tensors.contains_key(*tensor)) {
            let mut scaling = json!({"rope_type": "longrope", "attention_factor": attention_factor});
            for (key, tensor) in ROPE_FACTORS {
                let unreadable = |e: WeightError| CheckpointError::Corrupt {
                    file: path.to_owned(),
                    format: "GGUF",
                    cause: e.to_string(),
                };
                scaling[key] = json!(opened.vector(tensor).map_err(unreadable)?);
            }
            opened.config["rope_scaling"] = scaling;
        }
        Ok(opened)
    }

    /// The shape from the metadata.
    pub fn spec(&self) -> Result<ModelSpec, CheckpointError> {
        ModelSpec::from_hf(&self.config)
            .map_err(|cause| CheckpointError::Shape { file: self.path.clone(), cause })
    }

    pub fn vocabulary(&self) -> Option<&Vocabulary> {
        self.vocabulary.as_ref()
    }

    /// Checks that every tensor of `spec` exists and has its shape.
    pub fn check(&self, spec: &ModelSpec) -> Result<(), CheckpointError> {
        let file = || self.path.clone();
        for TensorShape { name, shape } in spec.tensors() {
            let StoredTensor { tensor, expert } = stored_tensor(spec, &name);
            let Some(info) = self.tensors.get(&tensor) else {
                return Err(CheckpointError::MissingTensor { file: file(), tensor });
            };
            let fits = match (expert, info.shape.as_slice()) {
                (Some(expert), [count, one @ ..]) => one == shape && expert < *count,
                // A matrix of one row may be a vector.
                (None, found) => found == shape || (shape[0] == 1 && found == &shape[1..]),
                (Some(_), []) => false,
            };
            if !fits {
                let got = info.shape.clone();
                return Err(CheckpointError::WrongShape { file: file(), tensor, got, wanted: shape });
            }
        }
        Ok(())
    }

    /// The type of most bytes.
    pub fn type_name(&self, spec: &ModelSpec, dtype: Dtype) -> String {
        let by_type = self.bytes_by_type(spec, dtype);
        by_type.into_iter().max_by_key(|&(_, bytes)| bytes).map_or_else(String::new, |(name, _)| name)
    }

    fn bytes_by_type(&self, spec: &ModelSpec, dtype: Dtype) -> BTreeMap<String, u64> {
        let mut bytes = BTreeMap::new();
        for tensor in spec.tensors() {
            if let Some((name, size)) = self.stored(spec, &tensor, dtype) {
                *bytes.entry(name).or_default() += size;
            }
        }
        bytes
    }

    /// Bytes of a tensor in memory, an unquantised one as `dtype`.
    pub fn tensor_bytes(&self, spec: &ModelSpec, tensor: &TensorShape, dtype: Dtype) -> u64 {
        self.stored(spec, tensor, dtype).map_or(0, |(_, bytes)| bytes)
    }

    /// The name of a tensor's type, and its bytes.
    fn stored(&self, spec: &ModelSpec, tensor: &TensorShape, dtype: Dtype) -> Option<(String, u64)> {
        let info = self.tensors.get(&stored_tensor(spec, &tensor.name).tensor)?;
        Some(match (info.kind, tensor.shape.as_slice()) {
            (Kind::Quantised(format), &[rows, columns]) => {
                (info.kind.name(), Panels::size(format, rows, columns) as u64)
            }
            (kind, _) if kind.plain().is_some() => {
                (dtype.name().to_owned(), tensor.elements() * dtype.bytes())
            }
            // Other types are dequantised.
            (kind, _) => (kind.name(), tensor.elements() * dtype.bytes()),
        })
    }

    /// The values of `parts`, one after the other, dequantised.
    pub fn values(
        &self,
        spec: &ModelSpec,
        parts: &[TensorShape],
        dtype: Dtype,
    ) -> Result<Values, WeightError> {
        let count = parts.iter().map(TensorShape::elements).sum::<u64>() as usize;
        let mut values = Values::with_capacity(dtype, count);
        for part in parts {
            let blocks = self.blocks(spec, part)?;
            // The file has scales of norms with the model's offset added.
            if part.name.ends_with("norm.weight") && spec.norm_offset != 0.0 {
                let mut scales = Values::with_capacity(dtype, 0);
                scales.extend(&blocks.values(&part.shape)?);
                let scales: Vec<f32> =
                    scales.widened().iter().map(|scale| scale - spec.norm_offset).collect();
                values.extend(&scales);
            } else if let Some(stored) = blocks.kind.plain() {
                values.extend_from_bytes(stored, &blocks.bytes);
            } else {
                values.extend(&blocks.values(&part.shape)?);
            }
        }
        Ok(values)
    }

    /// The tensors as blocks, if the built-in kernels multiply the types of all of them.
    pub fn blocks_of(
        &self,
        spec: &ModelSpec,
        parts: &[TensorShape],
    ) -> Result<Option<Vec<QuantisedRows>>, WeightError> {
        let format =
            |part: &TensorShape| match self.tensors.get(&stored_tensor(spec, &part.name).tensor)?.kind {
                Kind::Quantised(format) => Some(format),
                _ => None,
            };
        let Some(formats) = parts.iter().map(format).collect::<Option<Vec<_>>>() else { return Ok(None) };
        let read = |(part, format): (&TensorShape, Format)| {
            let Blocks { bytes, rows, .. } = self.blocks(spec, part)?;
            Ok(QuantisedRows { format, bytes, rows })
        };
        let parts = parts.iter().zip(formats).map(read).collect::<Result<Vec<_>, WeightError>>()?;
        Ok(Some(joined(parts.into_iter())))
    }

    pub fn rope_divisors(&self) -> Result<Option<Vec<f32>>, WeightError> {
        self.tensors.contains_key(ROPE_DIVISORS).then(|| self.vector(ROPE_DIVISORS)).transpose()
    }

    /// All values of a small tensor.
    fn vector(&self, name: &str) -> Result<Vec<f32>, WeightError> {
        let Some(info) = self.tensors.get(name) else { return failed(format!("no tensor {name}")) };
        if info.numbers() > MAX_FACTORS {
            let count = info.numbers();
            return failed(format!("{name} has {count} values, at most {MAX_FACTORS} are expected"));
        }
        let blocks = Blocks { kind: info.kind, bytes: self.read(info, None)?, rows: 1 };
        blocks.values(&info.shape)
    }

    /// The bytes of a tensor, or of one expert of it. The header was checked against the file's length.
    fn read(&self, info: &TensorInfo, expert: Option<usize>) -> Result<Vec<u8>, WeightError> {
        let Some(whole) = info.size() else { return failed("a tensor of an unknown size".to_owned()) };
        let (size, first) = match (expert, info.shape.first()) {
            (Some(expert), Some(&count)) if expert < count => {
                (whole / count as u64, whole / count as u64 * expert as u64)
            }
            (Some(expert), _) => return failed(format!("no expert {expert}")),
            (None, _) => (whole, 0),
        };
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = vec![0; size as usize];
        let read = file
            .seek(SeekFrom::Start(self.data_offset + info.offset + first))
            .and_then(|_| file.read_exact(&mut bytes));
        match read {
            Ok(()) => Ok(bytes),
            Err(e) => failed(format!("cannot read {}: {e}", self.path.display())),
        }
    }

    fn blocks(&self, spec: &ModelSpec, part: &TensorShape) -> Result<Blocks, WeightError> {
        let StoredTensor { tensor, expert } = stored_tensor(spec, &part.name);
        let Some(info) = self.tensors.get(&tensor) else { return failed(format!("no tensor {tensor}")) };
        let rows = part.shape.first().copied().unwrap_or(1);
        let bytes = self.read(info, expert)?;
        let turned = part.name.contains("self_attn.q_proj") || part.name.contains("self_attn.k_proj");
        let bytes = match self.interleaved && turned {
            true => halves_from_pairs(&bytes, rows, spec.head_dim),
            false => bytes,
        };
        Ok(Blocks { kind: info.kind, bytes, rows })
    }
}

impl Blocks {
    /// The values of a tensor of this shape.
    fn values(&self, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        if let Some(dtype) = self.kind.plain() {
            return Ok(wide(dtype, &self.bytes));
        }
        if let Kind::Quantised(format) = self.kind {
            return dequantised(format, &self.bytes, shape.last().copied().unwrap_or(1));
        }
        let Some(dtype) = self.kind.candle() else {
            return failed(format!("{} is not supported", self.kind.name()));
        };
        let storage = QStorage::from_data((&self.bytes).into(), &Device::Cpu, dtype)?;
        let tensor = QTensor::new(storage, shape)?;
        Ok(tensor.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1()?)
    }
}

fn failed<T>(message: String) -> Result<T, WeightError> {
    Err(WeightError(message))
}

/// Puts the rows of each head back into the order of a Hugging Face checkpoint. GGUF's llama rotates rows 2i and
/// 2i + 1 as a pair, the built-in decoder i and i + head_dim / 2. A row consists of complete blocks, so it moves without being
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

/// The location of a Hugging Face tensor in a file: the experts of a layer are one tensor.
struct StoredTensor {
    tensor: String,
    expert: Option<usize>,
}

fn stored_tensor(spec: &ModelSpec, name: &str) -> StoredTensor {
    let of_expert = || {
        let (layer, inner) = name.strip_prefix("model.layers.")?.split_once('.')?;
        let (_, expert) = inner.split_once(".experts.")?;
        let (expert, part) = expert.split_once('.')?;
        let (part, kind) = part.split_once('.')?;
        let part = match part {
            "gate_proj" | "w1" => "gate",
            "up_proj" | "w3" => "up",
            "down_proj" | "w2" => "down",
            _ => return None,
        };
        let tensor = format!("blk.{layer}.ffn_{part}_exps.{kind}");
        Some(StoredTensor { tensor, expert: Some(expert.parse().ok()?) })
    };
    of_expert().unwrap_or_else(|| StoredTensor { tensor: gguf_name(spec, name), expert: None })
}

/// The GGUF name of a tensor of a Hugging Face checkpoint.
fn gguf_name(spec: &ModelSpec, name: &str) -> String {
    const OUTER: [(&str, &str); 3] =
        [("model.embed_tokens.", "token_embd."), ("model.norm.", "output_norm."), ("lm_head.", "output.")];
    const INNER: [(&str, &str); 22] = [
        ("input_layernorm.", "attn_norm."),
        ("self_attn.qkv_proj.", "attn_qkv."),
        ("self_attn.q_proj.", "attn_q."),
        ("self_attn.k_proj.", "attn_k."),
        ("self_attn.v_proj.", "attn_v."),
        ("self_attn.o_proj.", "attn_output."),
        ("self_attn.q_norm.", "attn_q_norm."),
        ("self_attn.k_norm.", "attn_k_norm."),
        ("pre_feedforward_layernorm.", "ffn_norm."),
        ("post_feedforward_layernorm.", "post_ffw_norm."),
        ("mlp.gate_proj.", "ffn_gate."),
        ("mlp.up_proj.", "ffn_up."),
        ("mlp.gate_up_proj.", "ffn_up."),
        ("mlp.down_proj.", "ffn_down."),
        ("mlp.gate.", "ffn_gate_inp."),
        ("mlp.router.", "ffn_gate_inp."),
        ("self_attn.sinks", "attn_sinks.weight"),
        ("block_sparse_moe.gate.", "ffn_gate_inp."),
        ("mlp.shared_expert.gate_proj.", "ffn_gate_shexp."),
        ("mlp.shared_expert.up_proj.", "ffn_up_shexp."),
        ("mlp.shared_expert.down_proj.", "ffn_down_shexp."),
        ("mlp.shared_expert_gate.", "ffn_gate_inp_shexp."),
    ];
    // The norm after attention is before the MLP, or, where there is another before it, of attention's output. gpt-oss has the first under the name of the second.
    let is_named_so = spec.post_norms || spec.sinks;
    let after_attention = if is_named_so { "post_attention_norm." } else { "ffn_norm." };
    let inner_names = [&INNER[..], &[("post_attention_layernorm.", after_attention)]].concat();
    let renamed = |name: &str, table: &[(&str, &str)]| {
        table.iter().find_map(|(from, to)| name.strip_prefix(from).map(|rest| format!("{to}{rest}")))
    };
    match name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')) {
        Some((layer, inner)) => {
            let inner = renamed(inner, &inner_names).unwrap_or_else(|| inner.to_owned());
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
        let config = |family: &str| {
            json!({
                "model_type": family, "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
                "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "rms_norm_eps": 1e-5,
                "max_position_embeddings": 64,
            })
        };
        let [llama, gemma] = ["llama", "gemma2"].map(|family| ModelSpec::from_hf(&config(family)).unwrap());
        let norm = "model.layers.3.post_attention_layernorm.weight";
        assert_eq!(gguf_name(&gemma, norm), "blk.3.post_attention_norm.weight");
        let table = [
            ("model.embed_tokens.weight", "token_embd.weight"),
            ("lm_head.weight", "output.weight"),
            ("model.norm.weight", "output_norm.weight"),
            ("model.layers.12.self_attn.k_proj.bias", "blk.12.attn_k.bias"),
            ("model.layers.0.self_attn.q_norm.weight", "blk.0.attn_q_norm.weight"),
            ("model.layers.3.post_attention_layernorm.weight", "blk.3.ffn_norm.weight"),
        ];
        for (hf, gguf) in table {
            assert_eq!(gguf_name(&llama, hf), gguf);
        }
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
