//! The files of a run directory over the pipe: only regular files, with paths inside the directory.

use std::{
    collections::HashMap,
    fs,
    io::{self, ErrorKind, Read, Write},
    path::{Component, Path, PathBuf},
    time::SystemTime,
};

use super::{
    protocol::{Frame, MAX_PAYLOAD},
    wire::send,
};
use llmprof_base::{
    dir::{Dir, Replacement, open_file},
    foreign::line,
    units,
};

/// The file that is mirrored while it is written.
pub const EVENTS: &str = "events.ndjson";
/// Maximum files of one run directory.
const MAX_FILES: usize = 20_000;
const MAX_DEPTH: usize = 16;
/// Maximum names of files that are too large, in one answer.
const MAX_LEFT_OUT: usize = 20;

/// The files that were sent already, by path.
pub type Sent = HashMap<PathBuf, (u64, SystemTime)>;

struct LocalFile {
    below: PathBuf,
    bytes: u64,
    modified: SystemTime,
}

/// Sends the files below `dir` that have changed since then, small ones first. Returns the names of those beyond the
/// limit.
pub fn send_dir(
    out: &mut impl Write,
    dir: &Path,
    limit_bytes: u64,
    sent: &mut Sent,
) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    list(dir, Path::new(""), 0, &mut found)?;
    found.retain(|file| sent.get(&file.below) != Some(&(file.bytes, file.modified)));
    found.sort_by_key(|file| file.bytes);
    let (mut room, mut left_out) = (limit_bytes, Vec::new());
    let total_bytes = found.iter().map(|file| file.bytes).take_while(|bytes| {
        let fits = *bytes <= room;
        room = room.saturating_sub(*bytes);
        fits
    });
    let total_bytes = total_bytes.sum();
    room = limit_bytes;
    for file in found {
        if file.bytes > room {
            left_out.push(format!("{} ({})", dir.join(&file.below).display(), units::bytes(file.bytes)));
            continue;
        }
        room -= file.bytes;
        send_file(out, dir, &file, total_bytes)?;
        sent.insert(file.below, (file.bytes, file.modified));
    }
    left_out.truncate(MAX_LEFT_OUT);
    Ok(left_out)
}

/// A file that is being written is sent with the size it had.
fn send_file(out: &mut impl Write, dir: &Path, file: &LocalFile, total_bytes: u64) -> io::Result<()> {
    let mut content = match open_file(&dir.join(&file.below)) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        content => content?.take(file.bytes),
    };
    let path = file.below.to_string_lossy().into_owned();
    send(out, &Frame::File { path, bytes: file.bytes, total_bytes }, b"")?;
    let (mut chunk, mut left) = (vec![0; MAX_PAYLOAD], file.bytes);
    while left > 0 {
        let room = MAX_PAYLOAD.min(left as usize);
        let len = match content.read(&mut chunk[..room])? {
            // The file became shorter.
            0 => {
                chunk[..room].fill(0);
                room
            }
            len => len,
        };
        send(out, &Frame::Chunk { len }, &chunk[..len])?;
        left -= len as u64;
    }
    Ok(())
}

fn list(dir: &Path, below: &Path, depth: usize, found: &mut Vec<LocalFile>) -> io::Result<()> {
    if depth > MAX_DEPTH {
        return Ok(());
    }
    for entry in fs::read_dir(dir.join(below))? {
        let entry = entry?;
        let below = below.join(entry.file_name());
        // The metadata of a link is that of the link itself, which is left out.
        let Ok(about) = entry.metadata() else { continue };
        let is_temporary = entry.file_name().to_string_lossy().starts_with(".llmprof-");
        if about.is_dir() {
            list(dir, &below, depth + 1, found)?;
        } else if about.is_file() && below != Path::new(EVENTS) && !is_temporary && below.to_str().is_some() {
            if found.len() == MAX_FILES {
                return Err(io::Error::other(format!("{} has more than {MAX_FILES} files", dir.display())));
            }
            found.push(LocalFile { bytes: about.len(), modified: about.modified()?, below });
        }
    }
    Ok(())
}

/// Receives the files, within limits that the other end cannot raise.
#[derive(Debug)]
pub struct Inbox {
    dir: Dir,
    limit_bytes: u64,
    open: Option<(Replacement, u64)>,
    pub files: usize,
    pub bytes: u64,
    pub total_bytes: u64,
}

impl Inbox {
    pub fn new(dir: &Path, limit_bytes: u64) -> io::Result<Inbox> {
        Ok(Inbox { dir: Dir::open(dir)?, limit_bytes, open: None, files: 0, bytes: 0, total_bytes: 0 })
    }

    pub fn file(&mut self, path: &str, bytes: u64, total_bytes: u64) -> io::Result<()> {
        if self.open.is_some() {
            return Err(io::Error::new(ErrorKind::InvalidData, "a file began before the end of another"));
        }
        let below = safe_path(path)?;
        self.files += 1;
        if self.files > MAX_FILES || bytes > self.limit_bytes.saturating_sub(self.bytes) {
            let text = format!("it exceeds the limit of {}", units::bytes(self.limit_bytes));
            return Err(io::Error::new(ErrorKind::FileTooLarge, text));
        }
        self.total_bytes = total_bytes.min(self.limit_bytes);
        let file = self.dir.replace(below)?;
        match bytes {
            0 => file.finish(),
            left => {
                self.open = Some((file, left));
                Ok(())
            }
        }
    }

    pub fn chunk(&mut self, payload: &[u8]) -> io::Result<()> {
        let wrong = || io::Error::new(ErrorKind::InvalidData, "bytes that belong to no file");
        let (mut file, left) = self.open.take().ok_or_else(wrong)?;
        let left = left.checked_sub(payload.len() as u64).ok_or_else(wrong)?;
        file.write_all(payload)?;
        self.bytes += payload.len() as u64;
        match left {
            0 => file.finish(),
            left => {
                self.open = Some((file, left));
                Ok(())
            }
        }
    }

    pub fn is_between_files(&self) -> bool {
        self.open.is_none()
    }
}

/// A path of plain names, which stays below the directory.
fn safe_path(path: &str) -> io::Result<&Path> {
    let below = Path::new(path);
    let plain = below.components().all(|part| matches!(part, Component::Normal(_)));
    let depth = below.components().count();
    match plain && (1..=MAX_DEPTH + 1).contains(&depth) && !path.contains('\0') && below != Path::new(EVENTS)
    {
        true => Ok(below),
        false => Err(io::Error::new(
            ErrorKind::InvalidData,
            format!("{:?} is not a path in a run", line(path, 80)),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::{io::BufReader, os::unix::fs::symlink};

    use proptest::prelude::*;

    use super::*;
    use crate::remote::wire::receive;

    fn take_in(mut pipe: &[u8], inbox: &mut Inbox) -> io::Result<()> {
        let mut input = BufReader::new(&mut pipe);
        while let Some((frame, payload)) = receive(&mut input)? {
            match frame {
                Frame::File { path, bytes, total_bytes } => inbox.file(&path, bytes, total_bytes)?,
                Frame::Chunk { .. } => inbox.chunk(&payload)?,
                other => panic!("{other:?}"),
            }
        }
        Ok(())
    }

    #[test]
    fn files_arrive_unchanged_and_once() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let large: Vec<u8> = (0..MAX_PAYLOAD * 2 + 7).map(|i| i as u8).collect();
        fs::create_dir_all(from.path().join("nsys/deep")).unwrap();
        for (name, content) in
            [("empty", &b""[..]), ("nsys/deep/report", &large), ("report.md", b"# x\n"), (EVENTS, b"{}\n")]
        {
            fs::write(from.path().join(name), content).unwrap();
        }
        symlink("/etc/passwd", from.path().join("link")).unwrap();
        let (mut sent, mut pipe) = (Sent::new(), Vec::new());
        assert_eq!(send_dir(&mut pipe, from.path(), 1 << 30, &mut sent).unwrap(), Vec::<String>::new());
        let mut inbox = Inbox::new(to.path(), 1 << 30).unwrap();
        take_in(&pipe, &mut inbox).unwrap();
        assert_eq!(fs::read(to.path().join("nsys/deep/report")).unwrap(), large);
        assert_eq!(fs::read(to.path().join("report.md")).unwrap(), b"# x\n");
        assert!(to.path().join("empty").exists() && !to.path().join("link").exists());
        assert!(!to.path().join(EVENTS).exists());
        assert_eq!(
            (inbox.bytes, inbox.files, inbox.total_bytes),
            (large.len() as u64 + 4, 3, large.len() as u64 + 4)
        );
        // Only changed files are sent again.
        fs::write(from.path().join("report.md"), "# longer\n").unwrap();
        let mut pipe = Vec::new();
        send_dir(&mut pipe, from.path(), 1 << 30, &mut sent).unwrap();
        assert!(pipe.len() < 200, "{}", String::from_utf8_lossy(&pipe));
        take_in(&pipe, &mut inbox).unwrap();
        assert_eq!(fs::read(to.path().join("report.md")).unwrap(), b"# longer\n");
    }

    #[test]
    fn files_beyond_the_limit_are_named() {
        let from = tempfile::tempdir().unwrap();
        fs::write(from.path().join("small"), "x").unwrap();
        fs::write(from.path().join("large"), [0; 4096]).unwrap();
        let mut pipe = Vec::new();
        let left = send_dir(&mut pipe, from.path(), 100, &mut Sent::new()).unwrap();
        assert!(left.len() == 1 && left[0].contains("large (4.10 kB)"), "{left:?}");
    }

    #[test]
    fn nothing_leaves_the_directory() {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("run");
        fs::create_dir(&dir).unwrap();
        symlink(outer.path(), dir.join("up")).unwrap();
        let mut inbox = Inbox::new(&dir, 1 << 20).unwrap();
        for path in ["../x", "/tmp/x", "a/../../x", "", ".", "./x/..", "events.ndjson", "a\0b", "up/x"] {
            assert!(inbox.file(path, 0, 0).is_err(), "{path:?}");
        }
        assert!(!outer.path().join("x").exists());
        assert!(inbox.file("big", 1 << 21, 0).is_err());
        inbox.file("ok", 2, 2).unwrap();
        assert!(inbox.chunk(b"123").is_err());
        assert!(inbox.chunk(b"1").is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_safe_path_stays_below(path in "[a./\\\\]{0,12}") {
            if let Ok(below) = safe_path(&path) {
                let at = Path::new("/root/run").join(below);
                prop_assert!(at.starts_with("/root/run"));
                let steps_up = at.components().any(|part| part == Component::ParentDir);
                prop_assert!(!steps_up);
            }
        }
    }
}
