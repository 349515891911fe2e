//! Decompression of gzip, and what PNG needs of its relatives.

use std::io::{self, BufRead, Read};

/// The beginning of every gzip file.
pub const SIGNATURE: [u8; 2] = [0x1f, 0x8b];

/// The decompressed content of all members.
pub fn decompressed(input: impl BufRead) -> impl Read {
    flate2::bufread::MultiGzDecoder::new(input)
}

/// Like [`decompressed`]. More than `limit` bytes are an error: a small file can
/// decompress to any size.
pub fn decompressed_up_to(input: impl BufRead, limit: u64) -> impl Read {
    Limited { input: decompressed(input), left: limit, limit }
}

/// Compresses what is written to it into `file`.
pub fn writer(file: std::fs::File) -> impl io::Write + Send {
    flate2::write::GzEncoder::new(file, flate2::Compression::fast())
}

/// `bytes` as a zlib stream.
pub fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = flate2::read::ZlibEncoder::new(bytes, flate2::Compression::fast());
    // Reading from memory does not fail.
    let _ = encoder.read_to_end(&mut out);
    out
}

pub fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

struct Limited<R> {
    input: R,
    left: u64,
    limit: u64,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| {
            let text = format!("it decompresses to more than {} GB", self.limit / 1_000_000_000);
            io::Error::new(io::ErrorKind::FileTooLarge, text)
        })?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn content_up_to_a_limit() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        gzip.write_all(&[b'x'; 100_000]).unwrap();
        let gzip = gzip.finish().unwrap();
        assert!(gzip.starts_with(&SIGNATURE) && gzip.len() < 1000);
        let mut out = Vec::new();
        decompressed_up_to(gzip.as_slice(), 100_000).read_to_end(&mut out).unwrap();
        assert_eq!(out.len(), 100_000);
        let e = decompressed_up_to(gzip.as_slice(), 99_999).read_to_end(&mut out).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::FileTooLarge);
    }
}
