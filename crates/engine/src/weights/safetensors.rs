//! Safetensors: one file, or shards that an index names; mapped into memory and read tensor by tensor.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    path::{Path, PathBuf},
};

use candle_core::{DType, safetensors::MmapedSafetensors};
use decoder_ops::Format;
use serde::Deserialize;

use super::{
    CheckpointError, QuantisedRows, Values, WeightError, WeightSource,
    fp8::{Fp8, Fp8Rows, stacked},
    gpt_oss::{ExpertSlice, OfExpert},
    joined,
    packed::{Packed, Stored},
    scheme::stays_fp8,
};
use llm_cost::spec::TensorShape;
use llmprof_base::read::{self, MAX_DOCUMENT};
use llmprof_config::Dtype;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Files whose headers have been read, and which of them holds which tensor.
pub(crate) struct SafetensorsFiles {
    files: Vec<(PathBuf, MmapedSafetensors)>,
    /// Tensor name to its index in `files`.
    home: HashMap<String, usize>,
    /// The file to name when a tensor is missing: the index, or the only file.
    whole: PathBuf,
    /// The offset that GPTQ adds to its zero points.
    pub gptq_zero_offset: i32,
}

impl fmt::Debug for SafetensorsFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.files.iter().map(|(path, _)| path)).finish()
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl SafetensorsFiles {
    /// The shards an index names, or the single file.
    pub fn in_dir(dir: &Path) -> Result<Self, CheckpointError> {
        let index = dir.join(INDEX);
        if index.is_file() {
            return Self::sharded(&index);
        }
        let single = dir.join(SINGLE);
        if single.is_file() {
            Self::single(&single)
        } else {
            Err(CheckpointError::NoWeights { dir: dir.into() })
        }
    }

    pub fn single(path: &Path) -> Result<Self, CheckpointError> {
        let file = map(path)?;
        let home = file.tensors().into_iter().map(|(name, _)| (name, 0)).collect();
        Ok(SafetensorsFiles {
            files: vec![(path.to_owned(), file)],
            home,
            whole: path.to_owned(),
            gptq_zero_offset: 1,
        })
    }

    fn sharded(index: &Path) -> Result<Self, CheckpointError> {
        let text = read::text(index, MAX_DOCUMENT)
            .map_err(|cause| CheckpointError::Unreadable { file: index.to_owned(), cause })?;
        let Index { weight_map } = serde_json::from_str(&text).map_err(|e| CheckpointError::Corrupt {
            file: index.to_owned(),
            format: "safetensors index",
            cause: e.to_string(),
        })?;
        let dir = index.parent().unwrap_or(Path::new(""));
        let mut places = BTreeMap::new();
        let mut files = Vec::new();
        let mut home = HashMap::with_capacity(weight_map.len());
        for (tensor, shard) in weight_map {
            let place = match places.get(&shard) {
                Some(&place) => place,
                None => {
                    let path = dir.join(&shard);
                    if !path.is_file() {
                        return Err(CheckpointError::MissingShard { index: index.to_owned(), shard });
                    }
                    files.push((path.clone(), map(&path)?));
                    places.insert(shard, files.len() - 1);
                    files.len() - 1
                }
            };
            home.insert(tensor, place);
        }
        Ok(SafetensorsFiles { files, home, whole: index.to_owned(), gptq_zero_offset: 1 })
    }

    pub fn contains(&self, tensor: &str) -> bool {
        self.place_of(tensor).is_some()
    }

    /// The stored name of a tensor and its file. The text part of a larger model is searched under its prefix: `model.norm.weight` may be `language_model.model.norm.weight` or `model.language_model.norm.weight`.
    fn place_of(&self, tensor: &str) -> Option<(String, usize)> {
        let within = format!("language_model.{tensor}");
        let of_larger = tensor.replacen("model.", "model.language_model.", 1);
        [tensor.to_owned(), within, of_larger]
            .into_iter()
            .find_map(|name| self.home.get(&name).map(|&file| (name, file)))
    }

    /// Checks that every one of `wanted` exists with its shape and in a readable type.
    pub fn check(&self, wanted: &[TensorShape]) -> Result<(), CheckpointError> {
        for tensor in wanted {
            let TensorShape { name, shape } = tensor;
            if self.is_packed(tensor) {
                let (file, name) = (self.whole.clone(), name.clone());
                self.packed(tensor).ok_or(CheckpointError::Packed { file, tensor: name })?;
                continue;
            }
            if let Some(slice) = self.in_all_experts(tensor) {
                let stored = slice.names().into_iter().find(|name| self.contains(name));
                let (file, name) = (self.whole.clone(), stored.unwrap_or_else(|| name.clone()));
                self.of_expert(tensor).ok_or(CheckpointError::Packed { file, tensor: name })?;
                continue;
            }
            let missing =
                |file: &Path| CheckpointError::MissingTensor { file: file.into(), tensor: name.clone() };
            let (kept_as, place) = self.place_of(name).ok_or_else(|| missing(&self.whole))?;
            let (file, tensors) = &self.files[place];
            let view = tensors.get(&kept_as).map_err(|_| missing(file))?;
            if view.shape() != shape {
                return Err(CheckpointError::WrongShape {
                    file: file.clone(),
                    tensor: name.clone(),
                    got: view.shape().to_vec(),
                    wanted: shape.clone(),
                });
            }
            if DType::try_from(view.dtype()).is_ok_and(|dtype| dtype == DType::F8E4M3) {
                let (file, tensor_name) = (file.clone(), name.clone());
                self.fp8_of(tensor).ok_or(CheckpointError::Unscaled { file, tensor: tensor_name })?;
                continue;
            }
            if !matches!(DType::try_from(view.dtype()), Ok(DType::F32 | DType::F16 | DType::BF16)) {
                let got = format!("{:?}", view.dtype()).to_lowercase();
                return Err(CheckpointError::WrongType { file: file.clone(), tensor: name.clone(), got });
            }
        }
        Ok(())
    }

    /// Whether the tensor is stored in 4 bits by AWQ or GPTQ.
    pub fn is_packed(&self, tensor: &TensorShape) -> bool {
        let matrix = tensor.name.strip_suffix(".weight");
        matrix.is_some_and(|matrix| self.contains(&format!("{matrix}.qweight")))
            && !self.contains(&tensor.name)
    }

    /// The range of one expert's tensor within a stored one.
    fn in_all_experts(&self, tensor: &TensorShape) -> Option<ExpertSlice> {
        let slice = ExpertSlice::from_name(&tensor.name).filter(|_| !self.contains(&tensor.name))?;
        // Other models that store all experts in one tensor have no biases and another order.
        let is_there = slice.names().iter().any(|name| self.contains(name)) && self.contains(&slice.bias());
        is_there.then_some(slice)
    }

    fn of_expert(&self, tensor: &TensorShape) -> Option<OfExpert<'_>> {
        OfExpert::new(self.in_all_experts(tensor)?, tensor, |name| self.stored(name))
    }

    fn packed(&self, tensor: &TensorShape) -> Option<Packed<'_>> {
        let matrix = tensor.name.strip_suffix(".weight")?;
        let stored = |part: &str| self.stored(&format!("{matrix}.{part}"));
        let shape = <[usize; 2]>::try_from(tensor.shape.as_slice()).ok()?;
        let parts = [stored("qweight")?, stored("qzeros")?, stored("scales")?];
        Packed::new(shape, parts, stored("g_idx").as_ref(), self.gptq_zero_offset)
    }

    fn stored(&self, name: &str) -> Option<Stored<'_>> {
        let (name, place) = self.place_of(name)?;
        let view = self.files[place].1.get(&name).ok()?;
        let dtype = DType::try_from(view.dtype()).ok();
        Some(Stored { shape: view.shape().to_vec(), dtype, data: view.data() })
    }

    /// A matrix in FP8 (e4m3), with its scales. Checkpoints have them under one of two names.
    fn fp8_of(&self, tensor: &TensorShape) -> Option<Fp8<'_>> {
        let codes = self.stored(&tensor.name).filter(|stored| stored.dtype == Some(DType::F8E4M3))?;
        let scales =
            ["scale_inv", "scale"].iter().find_map(|name| self.stored(&format!("{}_{name}", tensor.name)));
        Fp8::new(<[usize; 2]>::try_from(tensor.shape.as_slice()).ok()?, codes.data, &scales?)
    }

    /// Whether a device keeps the tensor in FP8.
    pub fn keeps_fp8(&self, tensor: &TensorShape) -> bool {
        stays_fp8(tensor) && self.fp8_of(tensor).is_some()
    }

    /// The tensors in FP8, if all of them are stored in it.
    pub fn fp8(&self, parts: &[TensorShape]) -> Option<Fp8Rows> {
        let of = |part: &TensorShape| if stays_fp8(part) { self.fp8_of(part) } else { None };
        stacked(&parts.iter().map(of).collect::<Option<Vec<_>>>()?)
    }

    /// The 4-bit type in which the tensor is kept when it is read; `None` if it is dequantised.
    pub fn kept_format(&self, tensor: &TensorShape) -> Option<Format> {
        if self.is_packed(tensor) {
            return self.packed(tensor).filter(|packed| packed.fits_blocks()).map(|_| Format::Q4_1);
        }
        self.of_expert(tensor)?.format()
    }

    /// The tensors as blocks, if all of them are stored in 4 bits.
    pub fn blocks(&self, parts: &[TensorShape]) -> Option<Vec<QuantisedRows>> {
        let blocks = |part: &TensorShape| {
            if self.is_packed(part) { self.packed(part)?.blocks() } else { self.of_expert(part)?.blocks() }
        };
        Some(joined(parts.iter().map(blocks).collect::<Option<Vec<_>>>()?.into_iter()))
    }
}

impl WeightSource for SafetensorsFiles {
    fn values(&self, parts: &[TensorShape], dtype: Dtype) -> Result<Values, WeightError> {
        let count = parts.iter().map(TensorShape::elements).sum::<u64>() as usize;
        let mut values = Values::with_capacity(dtype, count);
        for part in parts {
            let unreadable = || WeightError(format!("{} cannot be read", part.name));
            if self.is_packed(part) {
                values.extend(&self.packed(part).ok_or_else(unreadable)?.values());
            } else if let Some(of_expert) = self.of_expert(part) {
                values.extend(&of_expert.values()?);
            } else if let Some(fp8) = self.fp8_of(part) {
                values.extend(&fp8.values());
            } else {
                let stored = self.stored(&part.name).ok_or_else(unreadable)?;
                let dtype = stored.plain().filter(|_| stored.shape == part.shape);
                values.extend_from_bytes(dtype.ok_or_else(unreadable)?, stored.data);
            }
        }
        Ok(values)
    }
}

fn map(path: &Path) -> Result<MmapedSafetensors, CheckpointError> {
    // SAFETY: the mapping is sound as long as the file is not truncated or rewritten while it is mapped. Weights are
    // written once and then only read; the mapping is read-only, private to this process, and lives no longer
    // than the checkpoint. Reading a 15 GB file through a copy instead would need twice its size.
    #[allow(unsafe_code, reason = "the only way to map a file; see SAFETY")]
    let mapped = unsafe { MmapedSafetensors::new(path) };
    mapped.map_err(|e| CheckpointError::Corrupt {
        file: path.to_owned(),
        format: "safetensors",
        cause: innermost(e),
    })
}

/// The cause without the path that candle adds: the message has it already.
fn innermost(error: candle_core::Error) -> String {
    match error {
        candle_core::Error::WithPath { inner, .. } | candle_core::Error::WithBacktrace { inner, .. } => {
            innermost(*inner)
        }
        other => other.to_string(),
    }
}
