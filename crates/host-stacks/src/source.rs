//! Source text of a program, read as data: nothing is imported or executed.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};

use crate::text::sanitised;

const FILE_MAX: u64 = 8 << 20;
const LINE_MAX: usize = 500;

/// The lines from `line - n` to `line + n`, with their numbers. `root` is the process in whose mount namespace the path is.
/// Only regular files with a name of Python source are read, up to 8 MiB. Lines are sanitised and cut to 500 characters.
pub fn source_around(file: &str, line: u32, n: u32, root: Option<u32>) -> Option<Vec<(u32, String)>> {
    let source = open(file, root)?;
    let (first, last) = (line.saturating_sub(n).max(1), line.saturating_add(n));
    let skipped = first as usize - 1;
    let lines = BufReader::new(source.take(FILE_MAX)).split(b'\n').map_while(Result::ok);
    let wanted = (first..=last).zip(lines.skip(skipped));
    let lines: Vec<_> = wanted.map(|(number, bytes)| (number, text(&bytes))).collect();
    lines.iter().any(|(number, _)| *number == line).then_some(lines)
}

fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes).replace('\t', "    ");
    sanitised(&text, LINE_MAX)
}

fn open(file: &str, root: Option<u32>) -> Option<File> {
    let python = [".py", ".pyx", ".pyi", ".pxd"].iter().any(|end| file.ends_with(end));
    if !python || !file.starts_with('/') {
        return None;
    }
    let path = find(file, root)?;
    let status = fstat(&path).ok()?;
    let regular = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile;
    if !regular || u64::try_from(status.st_size).ok()? > FILE_MAX {
        return None;
    }
    // Opened only now, because to open a device can have effects.
    let checked = format!("/proc/self/fd/{}", path.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(checked, flags, Mode::empty()).ok().map(File::from)
}

/// Symbolic links are followed inside of the root of the process only.
fn find(file: &str, root: Option<u32>) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let Some(pid) = root else { return rustix::fs::open(file, flags, Mode::empty()).ok() };
    let directory = rustix::fs::openat(CWD, format!("/proc/{pid}/root"), flags, Mode::empty()).ok()?;
    openat2(&directory, file, flags, Mode::empty(), ResolveFlags::IN_ROOT).ok()
}
