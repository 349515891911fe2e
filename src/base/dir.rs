//! Files in directories that someone else may have made: created without following links, and read only where they are
//! regular files.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, BufWriter, ErrorKind, Read, Write},
    os::fd::OwnedFd,
    path::{Component, Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, RawMode, fstat, mkdirat, open, openat, renameat, stat, statat,
        unlinkat,
    },
    io::Errno,
};

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);
const NEW_FILE: OFlags =
    OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// An open directory. Files are created in the directory that was opened, whatever its path names later.
#[derive(Debug)]
pub struct Dir {
    path: PathBuf,
    fd: OwnedFd,
}

impl Dir {
    /// Opens an existing directory. Links in `path` are followed: the caller has chosen it.
    pub fn open(path: &Path) -> io::Result<Dir> {
        let named = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        Ok(Dir { path: path.to_owned(), fd: open(named, DIRECTORY, Mode::empty())? })
    }

    /// Opens a directory like [`open`](Self::open), and creates it with its parents where it is missing.
    pub fn open_or_create(path: &Path) -> io::Result<Dir> {
        fs::create_dir_all(path)?;
        Dir::open(path)
    }

    /// The directory at `below`, created where it is missing. A link on the way is an error.
    pub fn subdir(&self, below: &Path) -> io::Result<Dir> {
        let mut fd = openat(&self.fd, ".", DIRECTORY, Mode::empty())?;
        for part in below.components() {
            let Component::Normal(name) = part else { return Err(outside(below)) };
            fd = open_or_make(&fd, name)?;
        }
        Ok(Dir { path: self.path.join(below), fd })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory is still at its path: it was neither moved nor deleted.
    pub fn is_in_place(&self) -> bool {
        let Ok(opened) = fstat(&self.fd) else { return false };
        stat(&self.path).is_ok_and(|found| (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino))
    }

    /// Creates the file at `below`, which must not exist. Missing directories are created.
    pub fn create_new(&self, below: impl AsRef<Path>) -> io::Result<File> {
        let (dir, name) = self.place_of(below.as_ref())?;
        dir.create_new_here(name)
    }

    /// Writes the whole file at `below`: the old one is replaced when the new one is complete. Missing directories are
    /// created.
    pub fn write(&self, below: impl AsRef<Path>, content: impl AsRef<[u8]>) -> io::Result<()> {
        let mut file = self.replace(below)?;
        file.write_all(content.as_ref())?;
        file.finish()
    }

    /// A file that takes the place of the one at `below` when it is finished. Missing directories are created.
    pub fn replace(&self, below: impl AsRef<Path>) -> io::Result<Replacement> {
        let (dir, name) = self.place_of(below.as_ref())?;
        dir.check_replaceable(name)?;
        let (temporary, file) = dir.create_temporary()?;
        let file = BufWriter::with_capacity(1 << 18, file);
        Ok(Replacement { name: name.into(), dir, temporary, file, finished: false })
    }

    /// Removes the file `name`; of a link, the link.
    pub fn remove(&self, name: impl AsRef<Path>) -> io::Result<()> {
        Ok(unlinkat(&self.fd, name.as_ref(), AtFlags::empty())?)
    }

    /// Whether anything has this name, a broken link too.
    pub fn has(&self, name: impl AsRef<Path>) -> bool {
        statat(&self.fd, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    fn place_of<'a>(&self, below: &'a Path) -> io::Result<(Dir, &'a OsStr)> {
        let (Some(name), Some(parent)) = (below.file_name(), below.parent()) else {
            return Err(outside(below));
        };
        Ok((self.subdir(parent)?, name))
    }

    fn create_new_here(&self, name: &OsStr) -> io::Result<File> {
        Ok(File::from(openat(&self.fd, name, NEW_FILE, Mode::from_raw_mode(0o666))?))
    }

    /// A file or a link is replaced; anything else with this name has a purpose of its own.
    fn check_replaceable(&self, name: &OsStr) -> io::Result<()> {
        let Ok(about) = statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(()) };
        match FileType::from_raw_mode(about.st_mode) {
            FileType::RegularFile | FileType::Symlink => Ok(()),
            other => Err(refused(other)),
        }
    }

    /// The name is short: it is valid for every name of a target.
    fn create_temporary(&self) -> io::Result<(String, File)> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        loop {
            let name = format!(".llmprof-{}-{}.new", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
            match self.create_new_here(name.as_ref()) {
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                created => return created.map(|file| (name, file)),
            }
        }
    }
}

fn open_or_make(parent: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    match mkdirat(parent, name, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(e.into()),
    }
    openat(parent, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()).map_err(|e| match e {
        Errno::LOOP | Errno::NOTDIR => {
            let text = format!("{} is a link or a file, not a directory", Path::new(name).display());
            io::Error::new(ErrorKind::NotADirectory, text)
        }
        e => e.into(),
    })
}

fn outside(path: &Path) -> io::Error {
    let text = format!("{} is not the name of a file in the directory", path.display());
    io::Error::new(ErrorKind::InvalidInput, text)
}

/// A new file that is not yet in its place. It is deleted where it is dropped unfinished.
#[derive(Debug)]
pub struct Replacement {
    dir: Dir,
    name: PathBuf,
    temporary: String,
    file: BufWriter<File>,
    finished: bool,
}

impl Replacement {
    /// Puts the file in its place.
    pub fn finish(mut self) -> io::Result<()> {
        self.file.flush()?;
        renameat(&self.dir.fd, &self.temporary, &self.dir.fd, &self.name)?;
        self.finished = true;
        Ok(())
    }
}

impl Write for Replacement {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.file.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.finished {
            let _ = self.dir.remove(&self.temporary);
        }
    }
}

/// Writes the whole file at `path`: the old one, or a link, is replaced when the new one is complete.
pub fn write(path: &Path, content: impl AsRef<[u8]>) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| outside(path))?;
    Dir::open(path.parent().unwrap_or(Path::new("")))?.write(name, content)
}

/// Opens a regular file, or a link to one, for reading. Anything else is refused: a FIFO, a socket or a device may never
/// answer or never end.
pub fn open_file(path: &Path) -> io::Result<File> {
    // Without O_NONBLOCK, opening a FIFO waits for a writer. It has no effect on regular files.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match open(path, flags, Mode::empty()) {
        // Sockets cannot be opened.
        Err(Errno::NXIO) => return Err(refused(FileType::Socket)),
        opened => opened?,
    };
    match FileType::from_raw_mode(fstat(&file)?.st_mode as RawMode) {
        FileType::RegularFile => Ok(File::from(file)),
        other => Err(refused(other)),
    }
}

/// The content of a regular file, or of a link to one. More than `limit` bytes are an error.
pub fn read_file(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    open_file(path)?.take(limit.saturating_add(1)).read_to_end(&mut content)?;
    match content.len() as u64 > limit {
        false => Ok(content),
        true => {
            let text = format!("it is larger than {limit} bytes, the limit of such a file");
            Err(io::Error::new(ErrorKind::FileTooLarge, text))
        }
    }
}

fn refused(kind: FileType) -> io::Error {
    let (error, kind) = match kind {
        FileType::Directory => (ErrorKind::IsADirectory, "a directory"),
        FileType::Fifo => (ErrorKind::InvalidInput, "a FIFO"),
        FileType::Socket => (ErrorKind::InvalidInput, "a socket"),
        FileType::CharacterDevice | FileType::BlockDevice => (ErrorKind::InvalidInput, "a device"),
        _ => (ErrorKind::InvalidInput, "a special file"),
    };
    io::Error::new(error, format!("it is {kind}, not a regular file"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::{fs::symlink, net::UnixListener};

    use super::*;

    fn fifo(path: &Path) {
        rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        let root = tempfile::tempdir().unwrap();
        let (inside, outside) = (root.path().join("run"), root.path().join("outside"));
        fs::create_dir(&inside).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("precious"), "kept").unwrap();
        for (link, target) in [("a", "precious"), ("b", "absent")] {
            symlink(outside.join(target), inside.join(link)).unwrap();
        }
        symlink(&outside, inside.join("sub")).unwrap();
        let dir = Dir::open(&inside).unwrap();
        assert_eq!(dir.create_new("a").unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(dir.create_new("b").unwrap_err().kind(), ErrorKind::AlreadyExists);
        dir.write("a", "new").unwrap();
        dir.write("b", "new").unwrap();
        for path in ["sub/x", "../x", "/x", "..", ""] {
            dir.write(path, "new").unwrap_err();
            dir.create_new(path).unwrap_err();
        }
        write(&inside.join("b"), "newer").unwrap();
        assert_eq!(names(&outside), ["precious"]);
        assert_eq!(fs::read_to_string(outside.join("precious")).unwrap(), "kept");
        assert_eq!(fs::read_to_string(inside.join("a")).unwrap(), "new");
        assert_eq!(fs::read_to_string(inside.join("b")).unwrap(), "newer");
        assert_eq!(names(&inside), ["a", "b", "sub"], "no temporary file stays");
    }

    #[test]
    fn a_file_is_replaced_when_it_is_complete() {
        let root = tempfile::tempdir().unwrap();
        let dir = Dir::open(root.path()).unwrap();
        dir.write("x/y/file", "old").unwrap();
        let file = root.path().join("x/y/file");
        let mut new = dir.replace("x/y/file").unwrap();
        new.write_all(b"new").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "old");
        drop(new);
        assert_eq!(
            (fs::read_to_string(&file).unwrap().as_str(), names(file.parent().unwrap()).len()),
            ("old", 1)
        );
        dir.write("x/y/file", "new").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        let long = "n".repeat(255);
        dir.write(&long, "").unwrap();
        assert!(dir.has(&long) && !dir.has("absent") && dir.is_in_place());
        fs::remove_dir_all(root.path()).unwrap();
        assert!(!dir.is_in_place());
        dir.write("late", "").unwrap_err();
    }

    #[test]
    fn only_regular_files_are_read_and_replaced() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::write(path("file"), "12345").unwrap();
        symlink("file", path("link")).unwrap();
        for name in ["file", "link"] {
            assert_eq!(read_file(&path(name), 5).unwrap(), b"12345");
            let e = read_file(&path(name), 4).unwrap_err();
            assert_eq!(e.to_string(), "it is larger than 4 bytes, the limit of such a file");
        }
        fifo(&path("fifo"));
        let _socket = UnixListener::bind(path("socket")).unwrap();
        symlink("/dev/zero", path("device")).unwrap();
        fs::create_dir(path("directory")).unwrap();
        let dir = Dir::open(root.path()).unwrap();
        for (name, kind) in
            [("fifo", "a FIFO"), ("socket", "a socket"), ("device", "a device"), ("directory", "a directory")]
        {
            let words = format!("it is {kind}, not a regular file");
            assert_eq!(open_file(&path(name)).unwrap_err().to_string(), words);
            match name {
                // The link is replaced, not the device.
                "device" => dir.write(name, "").unwrap(),
                _ => assert_eq!(dir.write(name, "").unwrap_err().to_string(), words),
            }
        }
        assert_eq!(open_file(&path("absent")).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
