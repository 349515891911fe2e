//! The header of a GGUF file, with sizes that fit the file: what reads it may multiply and add them.

use std::{
    fs::File,
    io::{self, BufReader, Read, Seek, SeekFrom},
    path::Path,
};

use candle_core::quantized::gguf_file::{Content, TensorInfo};

use super::checkpoint::CheckpointError;
use crate::{
    base::{read, units},
    process::crash::contained,
};

/// A vocabulary of 262,000 tokens with its merges has 12 MB. Lists take 32 times their size in memory.
const MAX_HEADER: u64 = 100_000_000;

/// Opens `path` and reads its header. All tensors together fit the file.
pub(super) fn read_header(path: &Path) -> Result<(BufReader<File>, Content), CheckpointError> {
    let unreadable = |cause| CheckpointError::Unreadable { file: path.to_owned(), cause };
    let corrupt = |cause| CheckpointError::Corrupt { file: path.to_owned(), format: "GGUF", cause };
    let mut file = BufReader::new(read::open(path).map_err(unreadable)?);
    let length = file.get_ref().metadata().map_err(unreadable)?.len();
    // candle divides by an alignment of zero.
    let content =
        contained(|| Content::read(&mut Beginning { file: &mut file, at: 0 }).map_err(|e| e.to_string()))
            .flatten()
            .map_err(corrupt)?;
    let mut total = 0u64;
    for (tensor, info) in &content.tensor_infos {
        let Some(size) = checked_size(info) else {
            let dims = info.shape.dims();
            return Err(corrupt(format!("{tensor} has shape {dims:?}, which is more than any file holds")));
        };
        let end = content.tensor_data_offset.saturating_add(info.offset).saturating_add(size);
        if end > length {
            return Err(corrupt(format!("{tensor} ends at byte {end}, the file at {length}")));
        }
        total = total.saturating_add(size);
    }
    match total > length {
        true => Err(corrupt(format!("its tensors have {total} bytes together, the file has {length}"))),
        false => Ok((file, content)),
    }
}

/// Bytes of a tensor of a file whose header was read by [`read_header`].
pub(super) fn size_bytes(info: &TensorInfo) -> u64 {
    checked_size(info).unwrap_or(u64::MAX)
}

/// `None` where 64 bits cannot count them.
fn checked_size(info: &TensorInfo) -> Option<u64> {
    let values = info.shape.dims().iter().try_fold(1u64, |n, &dim| n.checked_mul(dim as u64))?;
    // Values have four bytes each where they are dequantised.
    values.checked_mul(4)?;
    (values / info.ggml_dtype.block_size() as u64).checked_mul(info.ggml_dtype.type_size() as u64)
}

/// A file of which only the beginning can be read.
struct Beginning<'a> {
    file: &'a mut BufReader<File>,
    at: u64,
}

impl Read for Beginning<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at > MAX_HEADER {
            let text = format!("its header is larger than the limit of {}", units::bytes(MAX_HEADER));
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        let read = self.file.read(buffer)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for Beginning<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.at = self.file.seek(to)?;
        Ok(self.at)
    }

    fn stream_position(&mut self) -> io::Result<u64> {
        Ok(self.at)
    }
}
