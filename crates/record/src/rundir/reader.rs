//! Reads `events.ndjson`, also during the run, and also if its last line is torn.

use std::{
    io::{self, BufRead, BufReader, Cursor, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use thiserror::Error;

use super::{timed_file::TimedFile, token_line::token_line};
use llmprof_base::dir::open_file;
use llmprof_event::{Envelope, SCHEMA};

#[derive(Debug, Error)]
pub enum ReadError {
    #[error("{path}: {source}; a run is a directory with an events.ndjson")]
    Open { path: PathBuf, source: io::Error },
    #[error("{name} cannot be read: {source}")]
    Io { name: String, source: io::Error },
    #[error("{name} is empty: the run ended before its first event was written; record it again")]
    Empty { name: String },
    #[error("{name} is not a recording of this program: its first line is not a run_started event")]
    NotARun { name: String },
    #[error(
        "{name} does not identify the run: its first line cannot be read ({reason}); record the run again"
    )]
    Start { name: String, reason: String },
    #[error(
        "{name} was recorded by a newer version (schema {found}, this program reads up to {SCHEMA}); update llmprof-tui"
    )]
    Schema { name: String, found: u64 },
    #[error(
        "{name} has schema {found}, which no version of this program wrote (this one reads 1 to {SCHEMA}); record the run again"
    )]
    TooOld { name: String, found: u64 },
}

/// The longest wait of a screen for a disk.
pub const DISK_TIMEOUT: Duration = Duration::from_secs(2);
/// A longer first line was not written by this program, and is not read to its end.
const MAX_FIRST_LINE_BYTES: u64 = 16 << 20;
/// A longer line is skipped. The longest valid ones are tables of kernels, of a few megabytes.
const MAX_LINE_BYTES: u64 = 64 << 20;
const BUFFER_BYTES: usize = 1 << 18;

trait Source: BufRead + Seek + Send {}
impl<T: BufRead + Seek + Send> Source for T {}

/// Reads a recording line by line. Lines that cannot be read are skipped and counted.
pub struct EventReader {
    name: String,
    source: Box<dyn Source>,
    line: Vec<u8>,
    offset: u64,
    skipped: u64,
    /// Within a line that is too long.
    skipping: bool,
}

/// The next item of a recording.
#[derive(Debug)]
pub enum Next {
    Event(Envelope),
    /// The current end. `torn` if the file ends within a line.
    End {
        torn: bool,
    },
}

impl EventReader {
    pub fn open(path: &Path) -> Result<EventReader, ReadError> {
        let file = open_file(path).map_err(|source| ReadError::Open { path: path.to_owned(), source })?;
        Self::checked(path.display().to_string(), Box::new(BufReader::with_capacity(BUFFER_BYTES, file)))
    }

    /// Like [`open`](Self::open), for a screen: waiting for the disk for longer than `limit` is an error.
    pub fn open_within(path: &Path, limit: Duration) -> Result<EventReader, ReadError> {
        let opened = TimedFile::open(path, limit);
        let file = opened.map_err(|source| ReadError::Open { path: path.to_owned(), source })?;
        Self::checked(path.display().to_string(), Box::new(BufReader::with_capacity(BUFFER_BYTES, file)))
    }

    /// A recording that is built into the program.
    pub fn embedded(name: &str, bytes: Arc<[u8]>) -> Result<EventReader, ReadError> {
        Self::checked(name.to_owned(), Box::new(Cursor::new(bytes)))
    }

    fn checked(name: String, source: Box<dyn Source>) -> Result<EventReader, ReadError> {
        let line = Vec::with_capacity(256);
        let mut reader = EventReader { name, source, line, offset: 0, skipped: 0, skipping: false };
        reader.check_schema()?;
        reader.seek(0)?;
        Ok(reader)
    }

    fn check_schema(&mut self) -> Result<(), ReadError> {
        let read = (&mut self.source).take(MAX_FIRST_LINE_BYTES).read_until(b'\n', &mut self.line);
        read.map_err(|e| self.io(e))?;
        let name = self.name.clone();
        if self.line.is_empty() {
            return Err(ReadError::Empty { name });
        }
        // Parsed without its type first, to distinguish a newer schema from garbage.
        let first: serde_json::Value = serde_json::from_slice(&self.line).unwrap_or_default();
        match first.pointer("/e/run_started/schema").and_then(serde_json::Value::as_u64) {
            None => Err(ReadError::NotARun { name }),
            Some(found) if found > u64::from(SCHEMA) => Err(ReadError::Schema { name, found }),
            Some(0) => Err(ReadError::TooOld { name, found: 0 }),
            Some(_) => match serde_json::from_slice::<Envelope>(&self.line) {
                Ok(_) => Ok(()),
                Err(e) => Err(ReadError::Start { name, reason: e.to_string() }),
            },
        }
    }

    /// The next event, or the current end: a file that grows has more later.
    pub fn read_next(&mut self) -> Result<Next, ReadError> {
        loop {
            let room = MAX_LINE_BYTES.saturating_sub(self.line.len() as u64);
            let read = (&mut self.source).take(room).read_until(b'\n', &mut self.line);
            read.map_err(|e| self.io(e))?;
            let whole = self.line.last() == Some(&b'\n');
            if !whole && (self.line.len() as u64) < MAX_LINE_BYTES {
                return Ok(Next::End { torn: self.is_torn() });
            }
            self.offset += self.line.len() as u64;
            if self.skipping || !whole {
                self.skipped += u64::from(whole);
                self.skipping = !whole;
                self.line.clear();
                continue;
            }
            let read = token_line(&self.line).or_else(|| serde_json::from_slice(&self.line).ok());
            self.line.clear();
            match read {
                Some(envelope) => return Ok(Next::Event(envelope)),
                None => self.skipped += 1,
            }
        }
    }

    /// Seeks to `offset`, which must come from [`offset`](Self::offset).
    pub fn seek(&mut self, offset: u64) -> Result<(), ReadError> {
        self.line.clear();
        self.skipping = false;
        self.offset = offset;
        self.source.seek(SeekFrom::Start(offset)).map(|_| ()).map_err(|e| self.io(e))
    }

    /// The start of the next line.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether the file ended within a line at the last read.
    pub fn is_torn(&self) -> bool {
        self.skipping || !self.line.is_empty()
    }

    /// Lines that could not be read.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    fn io(&self, source: io::Error) -> ReadError {
        ReadError::Io { name: self.name.clone(), source }
    }
}
