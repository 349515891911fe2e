//! A recording of a fleet: a line with its origin, then one line per refresh.

use std::{
    fs::File,
    io::{self, BufReader, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use llmprof_analysis::fleet::Snapshot;
use llmprof_base::{dir, read};

/// Raised when an old reader would misread a new recording.
const SCHEMA: u32 = 1;
/// Maximum length of a line; 20,000 GPUs have 30 MB.
const MAX_LINE_BYTES: u64 = 128 << 20;
/// Maximum refreshes of a recording: at one per 15 s, a month.
const MAX_SNAPSHOTS: usize = 200_000;

/// The first line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The schema of the recording.
    pub fleet: u32,
    /// The address of Prometheus, never with a login.
    pub prometheus: String,
    #[serde(default)]
    pub node_label: Option<String>,
    #[serde(default)]
    pub matchers: Vec<String>,
}

impl Header {
    pub fn new(prometheus: String, node_label: Option<String>, matchers: Vec<String>) -> Header {
        Header { fleet: SCHEMA, prometheus, node_label, matchers }
    }
}

#[derive(Debug, Error)]
pub enum RecordingError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{0} is not a recording of a fleet: write one with llmprof-tui fleet --record FILE")]
    NotAFleet(PathBuf),
    #[error(
        "{path} was recorded by a newer version (schema {found}, this program reads {SCHEMA}); update llmprof-tui"
    )]
    Schema { path: PathBuf, found: u32 },
    #[error("{0} has no refresh: the recording ended before Prometheus answered; record it again")]
    Empty(PathBuf),
}

/// Writes a recording, one complete line at a time.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    file: File,
}

impl Recorder {
    /// A new file at `path`, or in the directory `path` with a name from `now`.
    pub fn create(path: &Path, header: &Header, now: &str) -> Result<Recorder, RecordingError> {
        let path = if path.is_dir() { path.join(format!("fleet_{now}.ndjson")) } else { path.to_owned() };
        let io = |source| RecordingError::Io { path: path.clone(), source };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = path.file_name().ok_or_else(|| io(io::ErrorKind::InvalidInput.into()))?;
        let file = dir::Dir::open(parent).and_then(|dir| dir.create_new(name)).map_err(io)?;
        let mut recorder = Recorder { path, file };
        recorder.write(header)?;
        Ok(recorder)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn record(&mut self, snapshot: &Snapshot) -> Result<(), RecordingError> {
        self.write(snapshot)
    }

    fn write(&mut self, line: &impl Serialize) -> Result<(), RecordingError> {
        let written = serde_json::to_vec(line).map_err(io::Error::from).and_then(|mut bytes| {
            bytes.push(b'\n');
            self.file.write_all(&bytes)
        });
        written.map_err(|source| RecordingError::Io { path: self.path.clone(), source })
    }
}

/// A recording on disk with the offset of each refresh. A refresh is read when it is shown.
pub struct Recorded {
    pub header: Header,
    path: PathBuf,
    file: BufReader<File>,
    /// The time of each refresh, and the offset of its line.
    lines: Vec<(f64, u64)>,
    /// The number of damaged lines.
    pub skipped: usize,
}

/// Reads a recording. Its last line may be torn.
pub fn read(path: &Path) -> Result<Recorded, RecordingError> {
    #[derive(Deserialize)]
    struct Time {
        unix_s: f64,
    }
    let io = |source| RecordingError::Io { path: path.to_owned(), source };
    let mut file = BufReader::with_capacity(1 << 18, read::open(path).map_err(io)?);
    let mut line = Vec::new();
    read::line(&mut file, MAX_LINE_BYTES, &mut line).map_err(io)?;
    let header: Header =
        serde_json::from_slice(&line).map_err(|_| RecordingError::NotAFleet(path.to_owned()))?;
    if header.fleet != SCHEMA {
        return Err(RecordingError::Schema { path: path.to_owned(), found: header.fleet });
    }
    let (mut lines, mut skipped) = (Vec::new(), 0);
    let mut offset = line.len() as u64;
    while lines.len() < MAX_SNAPSHOTS && read::line(&mut file, MAX_LINE_BYTES, &mut line).map_err(io)? {
        match serde_json::from_slice::<Time>(&line) {
            Ok(Time { unix_s }) if unix_s.is_finite() => lines.push((unix_s, offset)),
            _ => skipped += 1,
        }
        offset += line.len() as u64;
    }
    if lines.is_empty() {
        return Err(RecordingError::Empty(path.to_owned()));
    }
    Ok(Recorded { header, path: path.to_owned(), file, lines, skipped })
}

impl Recorded {
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub fn time(&self, at: usize) -> Option<f64> {
        self.lines.get(at).map(|(unix_s, _)| *unix_s)
    }

    pub fn snapshot(&mut self, at: usize) -> Result<Snapshot, RecordingError> {
        let (_, offset) = self.lines[at.min(self.lines.len() - 1)];
        let mut line = Vec::new();
        let read = self
            .file
            .seek(SeekFrom::Start(offset))
            .and_then(|_| read::line(&mut self.file, MAX_LINE_BYTES, &mut line))
            .and_then(|_| Ok(serde_json::from_slice(&line)?));
        read.map_err(|source| RecordingError::Io { path: self.path.clone(), source })
    }

    /// At most `n` evenly spaced refreshes up to `at`.
    pub fn up_to(&mut self, at: usize, n: usize) -> Result<Vec<Snapshot>, RecordingError> {
        let count = at.min(self.lines.len() - 1) + 1;
        let step = count.div_ceil(n.max(1)).max(1);
        let mut wanted: Vec<usize> = (0..count).rev().step_by(step).collect();
        wanted.reverse();
        wanted.into_iter().map(|at| self.snapshot(at)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(unix_s: f64) -> Snapshot {
        Snapshot { unix_s, took_ms: 3.0, window_s: 60.0, gpus: Vec::new(), remarks: vec!["x".into()] }
    }

    #[test]
    fn recordings_round_trip() {
        let dir = tempfile::tempdir().unwrap();
        let header = Header::new("http://p:9090".into(), None, Vec::new());
        let mut recorder = Recorder::create(dir.path(), &header, "2026-01-01_00-00-00").unwrap();
        (0..10).for_each(|i| recorder.record(&snapshot(f64::from(i))).unwrap());
        let path = dir.path().join("fleet_2026-01-01_00-00-00.ndjson");
        assert_eq!(recorder.path(), path);
        recorder.file.write_all(b"{\"unix_s\": 99, \"to").unwrap();
        let mut recorded = super::read(&path).unwrap();
        assert_eq!((recorded.len(), recorded.skipped, &recorded.header), (10, 1, &header));
        assert_eq!(recorded.snapshot(4).unwrap(), snapshot(4.0));
        let times: Vec<f64> = recorded.up_to(8, 3).unwrap().iter().map(|one| one.unix_s).collect();
        assert_eq!(times, [2.0, 5.0, 8.0]);
        Recorder::create(&path, &header, "").unwrap_err();
    }

    #[test]
    fn other_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x");
        for (text, wanted) in [
            ("", "is not a recording of a fleet"),
            ("{\"t\":0}\n", "is not a recording of a fleet"),
            ("{\"fleet\":9,\"prometheus\":\"p\"}\n", "newer version (schema 9"),
            ("{\"fleet\":1,\"prometheus\":\"p\"}\n{", "has no refresh"),
        ] {
            std::fs::write(&file, text).unwrap();
            let words = super::read(&file).err().unwrap().to_string();
            assert!(words.contains(wanted), "{words}");
        }
    }
}
