//! Reading of untrusted files: only regular files, up to a limit that the error names.

use std::{
    io::{self, BufRead, Read},
    path::Path,
};

pub use super::dir::{open_file as open, read_file as bytes};
use super::units;

/// For documents that are kept in memory: results, indices, configurations.
pub const MAX_DOCUMENT: u64 = 64_000_000;

/// The text of a regular file of at most `limit` bytes.
pub fn text(path: &Path, limit: u64) -> io::Result<String> {
    String::from_utf8(bytes(path, limit)?)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, format!("it is not UTF-8 text ({e})")))
}

/// Reads the next line, with its end, in place of the old content of `line`; false at the end of the input. A line of more than
/// `limit` bytes is an error.
pub fn line(input: &mut impl BufRead, limit: u64, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let read = input.by_ref().take(limit.saturating_add(1)).read_until(b'\n', line)?;
    match read as u64 > limit {
        true => {
            let text = format!("it has a line of more than {}", units::bytes(limit));
            Err(io::Error::new(io::ErrorKind::FileTooLarge, text))
        }
        false => Ok(read > 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_utf8() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a");
        std::fs::write(&file, "12345").unwrap();
        assert_eq!(text(&file, 5).unwrap(), "12345");
        assert_eq!(text(&file, 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        std::fs::write(&file, b"\xff").unwrap();
        assert_eq!(text(&file, 5).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn lines_up_to_a_limit() {
        let (mut input, mut read) = (&b"12\n\n123456"[..], Vec::new());
        for (expected, left) in [(&b"12\n"[..], true), (b"\n", true)] {
            assert_eq!(line(&mut input, 4, &mut read).unwrap(), left);
            assert_eq!(read, expected);
        }
        let error = line(&mut input, 4, &mut read).unwrap_err().to_string();
        assert_eq!(error, "it has a line of more than 4.00 B");
        assert!(!line(&mut &b""[..], 4, &mut read).unwrap());
    }
}
