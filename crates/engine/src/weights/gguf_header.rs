//! The header of a GGUF file, with sizes checked against the file, so that readers may multiply and add them.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufReader, Read},
    path::Path,
};

use candle_core::{
    Shape,
    quantized::{
        GgmlDType,
        gguf_file::{self, Content, Value, VersionedMagic},
    },
};
use decoder_ops::Format;

use super::CheckpointError;
use llmprof_base::{read, units};
use llmprof_config::Dtype;

/// A vocabulary of 262,000 tokens with its merges has 12 MB. Lists take 32 times their size in memory.
const MAX_HEADER: u64 = 100_000_000;
/// The maximum depth of nested lists.
const MAX_DEPTH: usize = 4;
const MAX_DIMENSIONS: u32 = 4;
/// The alignment if a file does not state it.
const ALIGNMENT: u64 = 32;

/// The stored type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    F32,
    F16,
    Bf16,
    Quantised(Format),
    /// A type of ggml that this reader does not support, by its number.
    Other(u32),
}

impl Kind {
    /// By the numbers of ggml.
    fn from_ggml(number: u32) -> Kind {
        match number {
            0 => Kind::F32,
            1 => Kind::F16,
            30 => Kind::Bf16,
            2 => Kind::Quantised(Format::Q4_0),
            3 => Kind::Quantised(Format::Q4_1),
            6 => Kind::Quantised(Format::Q5_0),
            7 => Kind::Quantised(Format::Q5_1),
            8 => Kind::Quantised(Format::Q8_0),
            10 => Kind::Quantised(Format::Q2K),
            11 => Kind::Quantised(Format::Q3K),
            12 => Kind::Quantised(Format::Q4K),
            13 => Kind::Quantised(Format::Q5K),
            14 => Kind::Quantised(Format::Q6K),
            20 => Kind::Quantised(Format::Iq4Nl),
            23 => Kind::Quantised(Format::Iq4Xs),
            39 => Kind::Quantised(Format::Mxfp4),
            other => Kind::Other(other),
        }
    }

    /// The type of unquantised values.
    pub fn plain(self) -> Option<Dtype> {
        match self {
            Kind::F32 => Some(Dtype::F32),
            Kind::F16 => Some(Dtype::F16),
            Kind::Bf16 => Some(Dtype::Bf16),
            Kind::Quantised(_) | Kind::Other(_) => None,
        }
    }

    /// The equivalent in candle.
    pub fn candle(self) -> Option<GgmlDType> {
        Some(match self {
            Kind::F32 => GgmlDType::F32,
            Kind::F16 => GgmlDType::F16,
            Kind::Bf16 => GgmlDType::BF16,
            Kind::Quantised(format) => match format {
                Format::Q4_0 => GgmlDType::Q4_0,
                Format::Q4_1 => GgmlDType::Q4_1,
                Format::Q5_0 => GgmlDType::Q5_0,
                Format::Q5_1 => GgmlDType::Q5_1,
                Format::Q8_0 => GgmlDType::Q8_0,
                Format::Q2K => GgmlDType::Q2K,
                Format::Q3K => GgmlDType::Q3K,
                Format::Q4K => GgmlDType::Q4K,
                Format::Q5K => GgmlDType::Q5K,
                Format::Q6K => GgmlDType::Q6K,
                Format::Iq4Nl | Format::Iq4Xs | Format::Mxfp4 => return None,
            },
            Kind::Other(9) => GgmlDType::Q8_1,
            Kind::Other(15) => GgmlDType::Q8K,
            Kind::Other(_) => return None,
        })
    }

    /// The name in llama.cpp, in lower case: `q4_1`, `q6_k`.
    pub fn name(self) -> String {
        match self {
            Kind::F32 => "f32".to_owned(),
            Kind::F16 => "f16".to_owned(),
            Kind::Bf16 => "bf16".to_owned(),
            Kind::Quantised(Format::Iq4Nl) => "iq4_nl".to_owned(),
            Kind::Quantised(Format::Iq4Xs) => "iq4_xs".to_owned(),
            Kind::Quantised(format) => format!("{format:?}").replace('K', "_K").to_lowercase(),
            Kind::Other(number) => {
                const NAMES: [(u32, &str); 12] = [
                    (9, "q8_1"),
                    (15, "q8_k"),
                    (16, "iq2_xxs"),
                    (17, "iq2_xs"),
                    (18, "iq3_xxs"),
                    (19, "iq1_s"),
                    (21, "iq3_s"),
                    (22, "iq2_s"),
                    (29, "iq1_m"),
                    (34, "tq1_0"),
                    (35, "tq2_0"),
                    (40, "nvfp4"),
                ];
                let known = NAMES.iter().find(|(known, _)| *known == number);
                known.map_or_else(|| format!("type {number}"), |(_, name)| (*name).to_owned())
            }
        }
    }

    /// Weights and bytes of a block; `None` if they are unknown.
    fn block(self) -> Option<(u64, u64)> {
        match self {
            Kind::Quantised(format) => Some((format.weights() as u64, format.bytes() as u64)),
            _ => self.candle().map(|dtype| (dtype.block_size() as u64, dtype.type_size() as u64)),
        }
    }
}

/// A tensor of a file.
#[derive(Debug, Clone)]
pub(crate) struct TensorInfo {
    pub kind: Kind,
    /// Rows first.
    pub shape: Vec<usize>,
    /// The offset from the beginning of the tensors.
    pub offset: u64,
}

impl TensorInfo {
    /// The number of values, in a file whose header was read by [`read_header`].
    pub fn numbers(&self) -> u64 {
        self.shape.iter().map(|&dim| dim as u64).product()
    }

    /// Bytes in the file; `None` if they exceed 64 bits or the type is unknown.
    pub fn size(&self) -> Option<u64> {
        let values = self.shape.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim as u64))?;
        // Dequantised values have four bytes each.
        values.checked_mul(4)?;
        let (weights, bytes) = self.kind.block()?;
        (values / weights).checked_mul(bytes)
    }
}

pub(crate) struct Header {
    pub metadata: HashMap<String, Value>,
    pub tensors: HashMap<String, TensorInfo>,
    /// The beginning of the tensors.
    pub data_offset: u64,
}

/// Opens `path` and reads its header. All tensors together fit the file.
pub(crate) fn read_header(path: &Path) -> Result<(BufReader<File>, Header), CheckpointError> {
    let unreadable = |cause| CheckpointError::Unreadable { file: path.to_owned(), cause };
    let corrupt = |cause| CheckpointError::Corrupt { file: path.to_owned(), format: "GGUF", cause };
    let file = BufReader::new(read::open(path).map_err(unreadable)?);
    let length = file.get_ref().metadata().map_err(unreadable)?.len();
    let mut bytes = Bytes { file, at: 0, length, wide: true };
    let header = bytes.header().map_err(corrupt)?;
    let mut total = 0u64;
    for (tensor, info) in &header.tensors {
        if matches!(info.kind, Kind::Other(_)) && info.kind.candle().is_none() {
            let key = format!("the type of {tensor}");
            let supported =
                "f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k to q6_k, iq4_nl, iq4_xs and mxfp4 are";
            let (file, found) = (path.to_owned(), info.kind.name());
            return Err(CheckpointError::Unsupported { file, key, found, supported: supported.to_owned() });
        }
        let dims = &info.shape;
        let columns = dims.last().copied().unwrap_or(1) as u64;
        if let Some((weights, _)) = info.kind.block().filter(|(weights, _)| !columns.is_multiple_of(*weights))
        {
            let kind = info.kind.name();
            return Err(corrupt(format!(
                "{tensor} has rows of {columns} values; {kind} has blocks of {weights}"
            )));
        }
        let Some(size) = info.size() else {
            return Err(corrupt(format!("{tensor} has shape {dims:?}, which is too large for a file")));
        };
        let end = header.data_offset.saturating_add(info.offset).saturating_add(size);
        if end > length {
            return Err(corrupt(format!("{tensor} ends at byte {end}, the file at {length}")));
        }
        total = total.saturating_add(size);
    }
    match total > length {
        true => Err(corrupt(format!("its tensors have {total} bytes in total, the file has {length}"))),
        false => Ok((bytes.file, header)),
    }
}

impl Header {
    /// Refuses types that candle does not support.
    pub fn check_candle(&self, path: &Path) -> Result<(), CheckpointError> {
        match self.tensors.iter().find(|(_, info)| info.kind.candle().is_none()) {
            Some((tensor, info)) => Err(CheckpointError::Unsupported {
                file: path.to_owned(),
                key: format!("the type of {tensor}"),
                found: info.kind.name(),
                supported: "runtime=candle reads it, candle_stock does not".to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// The equivalent in candle.
    pub fn into_content(self) -> Content {
        let infos = self.tensors.into_iter().filter_map(|(tensor, info)| {
            let (ggml_dtype, shape, offset) = (info.kind.candle()?, Shape::from(info.shape), info.offset);
            Some((tensor, gguf_file::TensorInfo { ggml_dtype, shape, offset }))
        });
        let (magic, tensor_data_offset) = (VersionedMagic::GgufV3, self.data_offset);
        Content { magic, tensor_infos: infos.collect(), metadata: self.metadata, tensor_data_offset }
    }
}

/// A file of which only the beginning is read.
struct Bytes {
    file: BufReader<File>,
    at: u64,
    length: u64,
    /// Lengths have eight bytes; they had four in the first version of the format.
    wide: bool,
}

impl Bytes {
    fn header(&mut self) -> Result<Header, String> {
        if &self.array::<4>()? != b"GGUF" {
            return Err("it does not begin with GGUF".to_owned());
        }
        let version = self.u32()?;
        if !(1..=3).contains(&version) {
            return Err(format!("version {version} of the format is not known"));
        }
        self.wide = version > 1;
        let (tensors, entries) = (self.count()?, self.count()?);
        let metadata = (0..entries).map(|_| self.entry()).collect::<Result<HashMap<_, _>, _>>()?;
        let tensors = (0..tensors).map(|_| self.tensor()).collect::<Result<HashMap<_, _>, _>>()?;
        let alignment = match metadata.get("general.alignment") {
            Some(Value::U8(n)) => u64::from(*n),
            Some(Value::U16(n)) => u64::from(*n),
            Some(Value::U32(n)) => u64::from(*n),
            Some(Value::U64(n)) => *n,
            _ => ALIGNMENT,
        };
        let data_offset = self.at.checked_next_multiple_of(alignment);
        let data_offset = data_offset.ok_or_else(|| format!("tensors are aligned to {alignment} bytes"))?;
        Ok(Header { metadata, tensors, data_offset })
    }

    fn entry(&mut self) -> Result<(String, Value), String> {
        let key = self.text()?;
        let kind = self.u32()?;
        Ok((key, self.value(kind, 0)?))
    }

    fn tensor(&mut self) -> Result<(String, TensorInfo), String> {
        let name = self.text()?;
        let dimensions = self.u32()?;
        if dimensions > MAX_DIMENSIONS {
            return Err(format!("a tensor of {dimensions} dimensions"));
        }
        let mut shape = (0..dimensions).map(|_| self.length()).collect::<Result<Vec<_>, _>>()?;
        // Columns come first in the file.
        shape.reverse();
        let shape = shape.into_iter().map(usize::try_from).collect::<Result<Vec<_>, _>>();
        let shape = shape.map_err(|_| format!("{name} is larger than memory can be"))?;
        let kind = Kind::from_ggml(self.u32()?);
        let offset = u64::from_le_bytes(self.array()?);
        Ok((name, TensorInfo { kind, shape, offset }))
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<Value, String> {
        Ok(match kind {
            0 => Value::U8(u8::from_le_bytes(self.array()?)),
            1 => Value::I8(i8::from_le_bytes(self.array()?)),
            2 => Value::U16(u16::from_le_bytes(self.array()?)),
            3 => Value::I16(i16::from_le_bytes(self.array()?)),
            4 => Value::U32(u32::from_le_bytes(self.array()?)),
            5 => Value::I32(i32::from_le_bytes(self.array()?)),
            6 => Value::F32(f32::from_le_bytes(self.array()?)),
            7 => Value::Bool(self.array::<1>()? != [0]),
            8 => Value::String(self.text()?),
            9 if depth < MAX_DEPTH => {
                let kind = self.u32()?;
                let count = self.count()?;
                // Memory grows with the values: a count may be larger than their number.
                let mut values = Vec::new();
                for _ in 0..count {
                    values.push(self.value(kind, depth + 1)?);
                }
                Value::Array(values)
            }
            9 => return Err("lists of lists of lists".to_owned()),
            10 => Value::U64(u64::from_le_bytes(self.array()?)),
            11 => Value::I64(i64::from_le_bytes(self.array()?)),
            12 => Value::F64(f64::from_le_bytes(self.array()?)),
            other => return Err(format!("a value of the unknown type {other}")),
        })
    }

    /// The number of items that follow; each has at least one byte.
    fn count(&mut self) -> Result<u64, String> {
        let count = self.length()?;
        match count > self.length - self.at.min(self.length) {
            true => Err(format!("{count} values in a file of {}", units::bytes(self.length))),
            false => Ok(count),
        }
    }

    fn text(&mut self) -> Result<String, String> {
        let length = self.count()?;
        self.advance(length)?;
        let mut text = vec![0; length as usize];
        self.file.read_exact(&mut text).map_err(|e| e.to_string())?;
        // Some writers end texts with a zero.
        let used = text.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        Ok(String::from_utf8_lossy(&text[..used]).into_owned())
    }

    fn length(&mut self) -> Result<u64, String> {
        if self.wide { Ok(u64::from_le_bytes(self.array()?)) } else { Ok(u64::from(self.u32()?)) }
    }

    fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        self.advance(N as u64)?;
        let mut bytes = [0; N];
        self.file.read_exact(&mut bytes).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => "it ends within its header".to_owned(),
            _ => e.to_string(),
        })?;
        Ok(bytes)
    }

    fn advance(&mut self, bytes: u64) -> Result<(), String> {
        self.at = self.at.saturating_add(bytes);
        match self.at > MAX_HEADER {
            true => Err(format!("its header is larger than the limit of {}", units::bytes(MAX_HEADER))),
            false => Ok(()),
        }
    }
}
