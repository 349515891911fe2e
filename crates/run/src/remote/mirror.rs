//! The local run directory while the remote run is in progress: its events, byte for byte, and the origin of the copy.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Read, Seek, SeekFrom, Write},
    os::unix::fs::FileExt,
    path::{Component, Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::files::EVENTS;
use llmprof_base::read;
use llmprof_event::Envelope;
use llmprof_record::{
    rundir::{EventReader, Next, ReadError, RunDir},
    state::RunState,
};

/// The file that names the origin of a copy.
const ORIGIN: &str = "remote.json";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Origin {
    host: String,
    id: String,
    run: u32,
    dir: PathBuf,
}

/// The place for copies of runs.
#[derive(Debug, Clone)]
pub enum Copies {
    /// Each in a directory below this one, by machine, model and date.
    Below(PathBuf),
    /// The only one, in this directory.
    At(PathBuf),
}

pub struct Mirror {
    dir: RunDir,
    file: File,
    bytes: u64,
    limit_bytes: u64,
    /// Whether the first line is complete.
    has_line: bool,
    reader: Option<EventReader>,
    /// Whether everything that arrived was read.
    pub is_read: bool,
}

impl Mirror {
    /// The local directory for a run on `host`: the one of an earlier connection, or a new one.
    pub fn open(
        copies: &Copies,
        host: &str,
        id: &str,
        run: u32,
        there: &Path,
        limit_bytes: u64,
    ) -> io::Result<Mirror> {
        let origin = Origin { host: host.to_owned(), id: id.to_owned(), run, dir: there.to_owned() };
        let wanted = match copies {
            Copies::Below(root) => local_dir(root, host, there),
            Copies::At(dir) => dir.clone(),
        };
        let dir = match existing(&wanted, &origin) {
            Some(dir) => dir,
            None => {
                let dir = RunDir::create(&wanted)?;
                fs::write(dir.path().join(ORIGIN), serde_json::to_vec(&origin)?)?;
                dir
            }
        };
        let mut file =
            OpenOptions::new().read(true).append(true).create(true).open(dir.path().join(EVENTS))?;
        let bytes = file.seek(SeekFrom::End(0))?;
        let mut mirror =
            Mirror { dir, file, bytes, limit_bytes, has_line: false, reader: None, is_read: false };
        mirror.has_line = mirror.find_line()?;
        Ok(mirror)
    }

    /// Whether an earlier connection has received the first line.
    fn find_line(&mut self) -> io::Result<bool> {
        let mut buffer = vec![0; 1 << 16];
        let mut at = 0;
        loop {
            self.file.seek(SeekFrom::Start(at))?;
            let len = self.file.read(&mut buffer)?;
            if len == 0 || buffer[..len].contains(&b'\n') {
                return Ok(len > 0);
            }
            at += len as u64;
        }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The number of local bytes, at which the other end continues.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends bytes that follow the local ones. Bytes that an earlier connection has received must be equal, and are
    /// not appended again, so that nothing is lost or repeated.
    pub fn append(&mut self, at: u64, payload: &[u8]) -> io::Result<()> {
        let wrong = |text: String| Err(io::Error::new(ErrorKind::InvalidData, text));
        if at > self.bytes {
            return wrong(format!("events from byte {at}, but the local copy has {} bytes", self.bytes));
        }
        let (known, payload) = payload.split_at(payload.len().min((self.bytes - at) as usize));
        if !known.is_empty() {
            let mut here = vec![0; known.len()];
            self.file.read_exact_at(&mut here, at)?;
            if here != known {
                return wrong(format!("{} is not a copy of the remote events", self.dir.events().display()));
            }
        }
        if payload.is_empty() {
            return Ok(());
        }
        if self.bytes + payload.len() as u64 > self.limit_bytes {
            return Err(io::Error::new(ErrorKind::FileTooLarge, "the events exceed --fetch-limit"));
        }
        self.file.write_all(payload)?;
        self.bytes += payload.len() as u64;
        self.has_line |= payload.contains(&b'\n');
        self.is_read = false;
        Ok(())
    }

    /// Applies at most `max` events to the state, and passes each to `see`. Returns their number.
    pub fn read_into(
        &mut self,
        state: &mut RunState,
        max: usize,
        mut see: impl FnMut(&Envelope),
    ) -> Result<usize, ReadError> {
        if !self.has_line {
            self.is_read = true;
            return Ok(0);
        }
        if self.reader.is_none() {
            self.reader = Some(EventReader::open(&self.dir.events())?);
        }
        let Some(reader) = &mut self.reader else { return Ok(0) };
        for n in 0..max {
            match reader.read_next()? {
                Next::Event(envelope) => {
                    see(&envelope);
                    state.apply(&envelope);
                }
                Next::End { .. } => {
                    self.is_read = true;
                    state.unreadable_lines = reader.skipped();
                    return Ok(n);
                }
            }
        }
        Ok(max)
    }
}

/// `root/host/model/date` for a run in `…/model/date`.
fn local_dir(root: &Path, host: &str, there: &Path) -> PathBuf {
    let plain = |text: &str| {
        let safe = |c: char| if c.is_alphanumeric() || "-_.@=,+".contains(c) { c } else { '_' };
        let text: String = text.chars().take(100).map(safe).collect();
        if text.starts_with('.') || text.is_empty() { format!("_{text}") } else { text }
    };
    let names: Vec<String> = there
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(plain(&name.to_string_lossy())),
            _ => None,
        })
        .collect();
    let last = &names[names.len().saturating_sub(2)..];
    last.iter().fold(root.join(plain(host)), |path, name| path.join(name))
}

/// The copy of the same run that an earlier connection has begun, at `wanted` or next to it.
fn existing(wanted: &Path, origin: &Origin) -> Option<RunDir> {
    let parent = wanted.parent()?;
    let mut beside: Vec<PathBuf> = fs::read_dir(parent).ok()?.flatten().map(|entry| entry.path()).collect();
    beside.sort();
    let is_same = |dir: &PathBuf| {
        let bytes = read::bytes(&dir.join(ORIGIN), 1 << 16).ok()?;
        serde_json::from_slice::<Origin>(&bytes).ok().filter(|found| found == origin)
    };
    beside.iter().find(|dir| is_same(dir).is_some()).map(|dir| RunDir::open(dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_directory_is_mapped_below_the_local_root() {
        let root = Path::new("runs");
        for (there, here) in [
            (
                "/home/me/runs/baseline/smollm2_135m/2026-01-01_12-00-00",
                "runs/box/smollm2_135m/2026-01-01_12-00-00",
            ),
            ("/../../..", "runs/box"),
            ("/x/../../etc/passwd", "runs/box/etc/passwd"),
            ("/a/.ssh/\u{1b}[2J", "runs/box/_.ssh/__2J"),
        ] {
            assert_eq!(local_dir(root, "box", Path::new(there)), Path::new(here), "{there}");
        }
        assert_eq!(local_dir(root, "..", Path::new("/m/d")), Path::new("runs/_../m/d"));
    }

    #[test]
    fn a_copy_resumes_where_it_ended() {
        let root = tempfile::tempdir().unwrap();
        let there = Path::new("/home/me/runs/b/model/date");
        let copies = Copies::Below(root.path().to_owned());
        let open = |id: &str| Mirror::open(&copies, "box", id, 0, there, 10).unwrap();
        let mut mirror = open("aaaaaa");
        mirror.append(0, b"12\n").unwrap();
        assert_eq!(mirror.append(1, b"3").unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(mirror.append(4, b"x").unwrap_err().kind(), ErrorKind::InvalidData);
        let path = mirror.dir().to_owned();
        drop(mirror);
        let mut again = open("aaaaaa");
        assert_eq!((again.dir(), again.bytes(), again.has_line), (&*path, 3, true));
        again.append(1, b"2\n34").unwrap();
        again.append(0, b"12\n").unwrap();
        assert_eq!(again.append(5, b"more than ten").unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert_eq!(fs::read(path.join(EVENTS)).unwrap(), b"12\n34");
        // Another run has its own directory.
        assert_ne!(open("bbbbbb").dir(), path);
    }
}
