//! Files in directories that another user may have made: created without following links, and read only if they are
//! regular files.

use std::{
    ffi::{CString, OsStr},
    fs::File,
    io::{self, BufWriter, ErrorKind, Read, Write},
    os::fd::OwnedFd,
    path::{Component, Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::{
    fs::{
        self, AtFlags, FileType, Mode, OFlags, RawMode, RenameFlags, fstat, mkdirat, open, openat, renameat,
        renameat_with, statat, unlinkat,
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

    /// Opens a directory like [`open`](Self::open), and creates it with its parents if it is missing.
    pub fn open_or_create(path: &Path) -> io::Result<Dir> {
        std::fs::create_dir_all(path)?;
        Dir::open(path)
    }

    /// The directory at `below`, created if it is missing. A link in the path is an error.
    pub fn subdir(&self, below: &Path) -> io::Result<Dir> {
        let mut fd = openat(&self.fd, ".", DIRECTORY, Mode::empty())?;
        for part in below.components() {
            let Component::Normal(name) = part else { return Err(outside(below)) };
            fd = open_or_make(&fd, name)?;
        }
        Ok(Dir { path: self.path.join(below), fd })
    }

    /// The existing directory at `below`. A link in the path is an error.
    pub fn existing(&self, below: &Path) -> io::Result<Dir> {
        let mut fd = openat(&self.fd, ".", DIRECTORY, Mode::empty())?;
        for part in below.components() {
            let Component::Normal(name) = part else { return Err(outside(below)) };
            fd = open_unlinked(&fd, name)?;
        }
        Ok(Dir { path: self.path.join(below), fd })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes of all files in the directory. Links are not followed.
    pub fn size(&self) -> io::Result<u64> {
        let mut bytes = 0;
        walk(&self.fd, 0, &mut |_, _, entry| {
            bytes += if let Entry::File { bytes } = entry { bytes } else { 0 };
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Renames the entry `from` to `to`, which must not exist.
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        match renameat_with(&self.fd, from, &self.fd, to, RenameFlags::NOREPLACE) {
            // Not every file system can check that itself.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) if self.has(to) => Err(Errno::EXIST.into()),
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => Ok(renameat(&self.fd, from, &self.fd, to)?),
            renamed => Ok(renamed?),
        }
    }

    /// Removes the directory `name` with everything in it. Links in it are removed, never followed.
    pub fn remove_all(&self, name: &OsStr) -> io::Result<()> {
        let below = open_unlinked(&self.fd, name)?;
        walk(&below, 0, &mut |parent, name, entry| {
            let flags = match entry {
                Entry::Directory => AtFlags::REMOVEDIR,
                Entry::File { .. } | Entry::Other => AtFlags::empty(),
            };
            Ok(unlinkat(parent, name, flags)?)
        })?;
        Ok(unlinkat(&self.fd, name, AtFlags::REMOVEDIR)?)
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

    /// Removes the file `name`; if it is a link, only the link.
    pub fn remove(&self, name: impl AsRef<Path>) -> io::Result<()> {
        Ok(unlinkat(&self.fd, name.as_ref(), AtFlags::empty())?)
    }

    /// Whether an entry has this name, including a broken link.
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

    /// Refuses to replace anything but a file or a link.
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
    open_unlinked(parent, name)
}

fn open_unlinked(parent: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    openat(parent, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()).map_err(|e| match e {
        Errno::LOOP | Errno::NOTDIR => {
            let text = format!("{} is a link or a file, not a directory", Path::new(name).display());
            io::Error::new(ErrorKind::NotADirectory, text)
        }
        e => e.into(),
    })
}

/// The kind of a directory entry.
enum Entry {
    /// Visited after everything in it.
    Directory,
    File {
        bytes: u64,
    },
    /// A link, a pipe, a device.
    Other,
}

/// Each level keeps its directory open.
const MAX_DEPTH: usize = 64;

/// Visits everything below a directory, without following links: the parent, the name in it, and what it is.
fn walk(
    dir: &OwnedFd,
    depth: usize,
    visit: &mut impl FnMut(&OwnedFd, &CString, Entry) -> io::Result<()>,
) -> io::Result<()> {
    if depth == MAX_DEPTH {
        return Err(io::Error::other(format!("its directories are more than {MAX_DEPTH} levels deep")));
    }
    let names: Result<Vec<CString>, Errno> =
        fs::Dir::read_from(dir)?.map(|entry| Ok(entry?.file_name().to_owned())).collect();
    for name in names?.into_iter().filter(|name| !matches!(name.to_bytes(), b"." | b"..")) {
        let about = statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW)?;
        let entry = match FileType::from_raw_mode(about.st_mode) {
            FileType::Directory => {
                let below = openat(dir, &name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
                walk(&below, depth + 1, visit)?;
                Entry::Directory
            }
            FileType::RegularFile => Entry::File { bytes: about.st_size as u64 },
            _ => Entry::Other,
        };
        visit(dir, &name, entry)?;
    }
    Ok(())
}

fn outside(path: &Path) -> io::Error {
    let text = format!("{} is not the name of a file in the directory", path.display());
    io::Error::new(ErrorKind::InvalidInput, text)
}

/// A new file that is not yet in its place. It is deleted if it is dropped unfinished.
#[derive(Debug)]
pub struct Replacement {
    dir: Dir,
    name: PathBuf,
    temporary: String,
    file: BufWriter<File>,
    finished: bool,
}

impl Replacement {
    /// Moves the file to its place.
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
    use std::{
        fs,
        os::unix::{fs::symlink, net::UnixListener},
    };

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
        assert!(dir.has(&long) && !dir.has("absent"));
        fs::remove_dir_all(root.path()).unwrap();
        dir.write("late", "").unwrap_err();
    }

    #[test]
    fn a_directory_is_renamed_and_removed_without_following_links() {
        let root = tempfile::tempdir().unwrap();
        let (run, outside) = (root.path().join("a/run"), root.path().join("outside"));
        fs::create_dir_all(run.join("x/y")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("precious"), "kept").unwrap();
        fs::write(run.join("x/y/file"), "12345").unwrap();
        fs::write(run.join("file"), "123").unwrap();
        symlink(&outside, run.join("x/link")).unwrap();
        symlink(outside.join("precious"), run.join("linked")).unwrap();
        symlink(&run, root.path().join("a/alias")).unwrap();
        fifo(&run.join("pipe"));
        let opened = Dir::open(root.path()).unwrap();
        for below in ["a/alias", "a/absent", "..", "/", "a/../a"] {
            opened.existing(Path::new(below)).unwrap_err();
        }
        let parent = opened.existing(Path::new("a")).unwrap();
        assert_eq!(parent.existing(Path::new("run")).unwrap().size().unwrap(), 8);
        let taken = parent.rename(OsStr::new("run"), OsStr::new("alias")).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AlreadyExists);
        parent.rename(OsStr::new("run"), OsStr::new("mine")).unwrap();
        parent.remove_all(OsStr::new("alias")).unwrap_err();
        parent.remove_all(OsStr::new("mine")).unwrap();
        assert_eq!(names(&root.path().join("a")), ["alias"]);
        assert_eq!(names(&outside), ["precious"]);
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
