//! Source text of a program, read as data: nothing is imported or executed.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};

use crate::text::sanitised;

const FILE_MAX: u64 = 8 << 20;
const LINE_MAX: usize = 500;

/// A line of a file, whose path is in the mount namespace of process `pid`. Only regular files with a name of Python
/// source are read, up to 8 MiB. The line is sanitised and cut to 500 characters.
pub fn source_line(file: &str, line: u32, pid: u32) -> Option<String> {
    let skipped = line.checked_sub(1)? as usize;
    let source = open(file, pid)?.take(FILE_MAX);
    let line = BufReader::new(source).split(b'\n').map_while(Result::ok).nth(skipped)?;
    Some(text(&line))
}

fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes).replace('\t', "    ");
    sanitised(&text, LINE_MAX)
}

fn open(file: &str, pid: u32) -> Option<File> {
    let python = [".py", ".pyx", ".pyi", ".pxd"].iter().any(|end| file.ends_with(end));
    if !python || !file.starts_with('/') {
        return None;
    }
    let path = find(file, pid)?;
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
fn find(file: &str, pid: u32) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(CWD, format!("/proc/{pid}/root"), flags, Mode::empty()).ok()?;
    openat2(&directory, file, flags, Mode::empty(), ResolveFlags::IN_ROOT).ok()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::{Child, Command};
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use super::*;

    const LOCK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/faults/lock.py");

    fn line_of(path: &Path, line: u32, pid: u32) -> Option<String> {
        source_line(path.to_str().unwrap(), line, pid)
    }

    #[test]
    fn source_is_read_from_regular_files_only() {
        let me = std::process::id();
        let text = std::fs::read_to_string(LOCK).unwrap();
        for (number, line) in (1..).zip(text.lines()) {
            assert_eq!(source_line(LOCK, number, me).as_deref(), Some(line));
        }
        for outside in [0, text.lines().count() as u32 + 1, u32::MAX] {
            assert_eq!(source_line(LOCK, outside, me), None, "{outside}");
        }
        let directory = std::env::temp_dir();
        let fifo = directory.join(format!("host-stacks-{me}.py"));
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        assert_eq!(line_of(&fifo, 1, me), None);
        std::fs::remove_file(&fifo).unwrap();
        for file in ["/etc/shadow", "/dev/zero", "lock.py", "/nowhere/x.py"] {
            assert_eq!(source_line(file, 1, me), None, "{file}");
        }
        let long = directory.join(format!("host-stacks-long-{me}.py"));
        std::fs::write(&long, format!("{}\n\u{1b}[2Jx\n", "a".repeat(10_000))).unwrap();
        assert_eq!(line_of(&long, 1, me).unwrap().len(), 500);
        assert_eq!(line_of(&long, 2, me).unwrap(), "[2Jx");
        std::fs::remove_file(long).unwrap();
    }

    struct Program(Child);

    impl Drop for Program {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Needs the right to create namespaces, and reports if it is missing.
    #[test]
    fn source_is_read_in_the_mount_namespace_of_the_process() {
        let directory = std::env::temp_dir().join(format!("host-stacks-mount-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let [inside, link, last] = ["inside.py", "link.py", "last.py"].map(|name| directory.join(name));
        let script = "mount -t tmpfs none $0 && cp $1 $0/inside.py && ln -s $0/inside.py $0/link.py && \
                      cp $1 $0/last.py && exec sleep 60";
        let mut command = Command::new("unshare");
        let mut program =
            Program(command.args(["--mount", "sh", "-c", script]).arg(&directory).arg(LOCK).spawn().unwrap());
        let deadline = Instant::now() + Duration::from_secs(20);
        while line_of(&last, 1, program.0.id()).is_none() {
            if program.0.try_wait().unwrap().is_some() {
                println!("not run: no right to create a mount namespace");
                return;
            }
            assert!(Instant::now() < deadline, "the files do not appear");
            sleep(Duration::from_millis(10));
        }
        let text = std::fs::read_to_string(LOCK).unwrap();
        for file in [&inside, &link] {
            assert_eq!(line_of(file, 1, std::process::id()), None);
            assert_eq!(line_of(file, 1, program.0.id()).as_deref(), text.lines().next());
        }
        drop(program);
        std::fs::remove_dir(directory).unwrap();
    }
}
