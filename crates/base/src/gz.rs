//! Decompression of gzip, and zlib streams for PNG.

use std::io::{self, BufRead, Read};

/// The beginning of every gzip file.
pub const SIGNATURE: [u8; 2] = [0x1f, 0x8b];

/// The decompressed content of all members.
pub fn decompressed(input: impl BufRead) -> impl Read {
    flate2::bufread::MultiGzDecoder::new(input)
}

/// Content up to this size may be compressed by any ratio.
const FREE_BYTES: u64 = 64 << 20;
/// Records compress to about a twentieth. The limit of gzip is a thousandth, for one repeated byte.
const MAX_RATIO: u64 = 200;

/// Like [`decompressed`]. More than `limit` bytes are an error, and so is a ratio above [`MAX_RATIO`]: a small file can
/// decompress to gigabytes of spaces.
pub fn decompressed_up_to(input: impl BufRead, limit: u64) -> impl Read {
    let input = flate2::bufread::MultiGzDecoder::new(Counted { input, consumed: 0 });
    Limited { input, read: 0, limit }
}

/// Writes gzip-compressed data to `file`.
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

/// Counts the bytes that are read from `input`.
struct Counted<R> {
    input: R,
    consumed: u64,
}

impl<R: BufRead> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.consumed += read as u64;
        Ok(read)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.input.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.consumed += amount as u64;
        self.input.consume(amount);
    }
}

struct Limited<R> {
    input: flate2::bufread::MultiGzDecoder<Counted<R>>,
    read: u64,
    limit: u64,
}

impl<R: BufRead> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.read += read as u64;
        let refused = |text: String| Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        if self.read > self.limit {
            return refused(format!("it decompresses to more than {} GB", self.limit / 1_000_000_000));
        }
        if self.read > FREE_BYTES && self.read / MAX_RATIO > self.input.get_ref().consumed {
            return refused(format!(
                "it decompresses to more than {MAX_RATIO} times its size: it is probably not a recording"
            ));
        }
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

    #[test]
    fn gigabytes_of_spaces_are_refused_early() {
        // Members follow one another: 10,000 times 1 MB of spaces.
        let mut member = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        member.write_all(&[b' '; 1_000_000]).unwrap();
        let bomb = member.finish().unwrap().repeat(10_000);
        let mut input = decompressed_up_to(bomb.as_slice(), u64::MAX);
        let mut content = io::sink();
        let e = io::copy(&mut input, &mut content).unwrap_err();
        assert!(e.to_string().contains("more than 200 times its size"), "{e}");
    }
}
