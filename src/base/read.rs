//! Reading files that somebody else may have made: regular files alone, up to a limit that the error names.

use std::{
    fs::{File, FileType, OpenOptions},
    io::{self, BufRead, Read},
    path::Path,
};

use super::units;

/// Small documents: results, indices, configurations.
pub const MAX_DOCUMENT: u64 = 64_000_000;

/// Opens a regular file. Another kind is an error: a pipe blocks without a writer, a device has no end.
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    // A pipe is opened without waiting for its writer.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(
        &mut options,
        rustix::fs::OFlags::NONBLOCK.bits().cast_signed(),
    );
    let file = options.open(path)?;
    let kind = file.metadata()?.file_type();
    match kind.is_file() {
        true => Ok(file),
        false if kind.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, name_of(kind))),
    }
}

/// The content of a regular file of at most `limit` bytes.
pub fn bytes(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // A file can be longer than its metadata say, as in /proc, and can grow.
    open(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > limit {
        true => Err(too_large(limit)),
        false => Ok(bytes),
    }
}

/// Like [`bytes`], for text in UTF-8.
pub fn text(path: &Path, limit: u64) -> io::Result<String> {
    String::from_utf8(bytes(path, limit)?)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, format!("it is not UTF-8 text ({e})")))
}

/// Reads the next line, with its end, in place of the old content of `line`; false at the end of the input. A line of more than
/// `limit` bytes is an error.
pub fn line(input: &mut impl BufRead, limit: u64, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let read = input.take(limit.saturating_add(1)).read_until(b'\n', line)?;
    match read as u64 > limit {
        true => {
            let text = format!("it has a line of more than {}", units::bytes(limit));
            Err(io::Error::new(io::ErrorKind::FileTooLarge, text))
        }
        false => Ok(read > 0),
    }
}

fn too_large(limit: u64) -> io::Error {
    let text = format!("it is larger than the limit of {}", units::bytes(limit));
    io::Error::new(io::ErrorKind::FileTooLarge, text)
}

fn name_of(kind: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return "it is a pipe, not a regular file; copy its content to a file";
        }
        if kind.is_socket() {
            return "it is a socket, not a regular file";
        }
    }
    let _ = kind;
    "it is a device, not a regular file"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_up_to_a_limit() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a");
        std::fs::write(&file, "12345").unwrap();
        assert_eq!(text(&file, 5).unwrap(), "12345");
        let error = text(&file, 4).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(error.to_string(), "it is larger than the limit of 4.00 B");
        std::fs::write(&file, b"\xff").unwrap();
        assert_eq!(text(&file, 5).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(bytes(&file, 5).unwrap(), b"\xff");
        assert_eq!(bytes(dir.path(), 5).unwrap_err().kind(), io::ErrorKind::IsADirectory);
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

    #[cfg(unix)]
    #[test]
    fn pipes_and_devices_are_refused_at_once() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        for (path, expected) in [(&pipe, "it is a pipe"), (&link, "it is a device")] {
            let error = bytes(path, 5).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
