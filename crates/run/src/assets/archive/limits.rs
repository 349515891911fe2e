//! Limits on the extracted size of an archive: a small one can claim any size.

use std::{
    cell::Cell,
    fmt,
    io::{self, Read},
    rc::Rc,
};

use llmprof_base::units::{bytes, grouped};

/// Limits on the content of an archive.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub(super) entries: u64,
    pub(super) bytes: u64,
    /// The size of the content divided by that of the archive.
    pub(super) ratio: u64,
    /// An archive of any size may have this many bytes.
    pub(super) any_ratio_bytes: u64,
}

impl Limits {
    pub const DEFAULT: Limits =
        Limits { entries: 1_000_000, bytes: 500_000_000_000, ratio: 200, any_ratio_bytes: 100_000_000 };
    pub const NONE: Limits =
        Limits { entries: u64::MAX, bytes: u64::MAX, ratio: u64::MAX, any_ratio_bytes: u64::MAX };
}

/// A limit that an archive exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Excess {
    Entries { limit: u64 },
    Bytes { limit: u64 },
    Ratio { limit: u64, archive: u64 },
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Excess::Entries { limit } => write!(f, "it has more than {} entries", grouped(limit as i64)),
            Excess::Bytes { limit } => write!(f, "its content is larger than {}", bytes(limit)),
            Excess::Ratio { limit, archive } => {
                write!(
                    f,
                    "its content is more than {limit} times as large as the archive ({})",
                    bytes(archive)
                )
            }
        }?;
        write!(f, "; if that is intended, pass --no-archive-limits")
    }
}

/// The entries and bytes of an archive so far.
#[derive(Debug)]
pub(super) struct Total {
    limits: Limits,
    archive: u64,
    entries: u64,
    bytes: u64,
}

impl Total {
    /// Starts the count for an archive of `archive` bytes.
    pub fn new(limits: Limits, archive: u64) -> Total {
        Total { limits, archive, entries: 0, bytes: 0 }
    }

    /// Adds an entry of `size` bytes.
    pub fn add(&mut self, size: u64) -> Result<(), Excess> {
        let Limits { entries, bytes, ratio, any_ratio_bytes } = self.limits;
        self.entries += 1;
        self.bytes = self.bytes.saturating_add(size);
        if self.entries > entries {
            return Err(Excess::Entries { limit: entries });
        }
        if self.bytes > self.archive.saturating_mul(ratio).max(any_ratio_bytes) {
            return Err(Excess::Ratio { limit: ratio, archive: self.archive });
        }
        if self.bytes > bytes {
            return Err(Excess::Bytes { limit: bytes });
        }
        Ok(())
    }
}

/// Maximum headers of an entry: long names, extended attributes, the map of a sparse file. They are kept in memory.
const MAX_HEADERS: u64 = 16_000_000;

/// A stream that limits the headers between two contents.
pub(super) struct Headers<R> {
    stream: R,
    left: Rc<Cell<u64>>,
}

/// Tells a [`Headers`] when the content of an entry is read.
pub(super) struct Meter(Rc<Cell<u64>>);

impl<R: Read> Headers<R> {
    pub fn new(stream: R) -> (Headers<R>, Meter) {
        let left = Rc::new(Cell::new(MAX_HEADERS));
        (Headers { stream, left: Rc::clone(&left) }, Meter(left))
    }
}

impl Meter {
    pub fn headers_follow(&self) {
        self.0.set(MAX_HEADERS);
    }

    pub fn content_follows(&self) {
        self.0.set(u64::MAX);
    }
}

impl<R: Read> Read for Headers<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer)?;
        let left = self.left.get().checked_sub(read as u64).ok_or_else(|| {
            let text = format!("the headers of one entry are larger than {}", bytes(MAX_HEADERS));
            io::Error::new(io::ErrorKind::FileTooLarge, text)
        })?;
        self.left.set(left);
        Ok(read)
    }
}
