//! The information in /proc about a process, and whether a library can be loaded into it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;

use crate::elf::other_architecture;
use crate::maps::{Mapping, Module, modules, parse};
use crate::memory::ProcessMemory;
use crate::{Refusal, sys};

const MAX_MAPS: u64 = 1 << 26;
const CAP_SYS_PTRACE: u32 = 19;

/// A process that a library can be loaded into.
#[derive(Clone, Debug)]
pub struct Target {
    pub pid: u32,
    /// The path of its glibc, in its own mount namespace.
    pub libc: String,
    pub threads: usize,
}

/// Whether a library can be loaded into process `pid`. Nothing is stopped, and the process cannot notice it.
pub fn check(pid: u32) -> Result<Target, Refusal> {
    inspect(pid).map(|(target, ..)| target)
}

pub(crate) fn inspect(pid: u32) -> Result<(Target, ProcessMemory, Vec<Mapping>, Vec<Module>), Refusal> {
    let system = |action| move |error| Refusal::System { pid, action, error };
    let status = Status::read(pid).ok_or_else(|| match sys::exists(pid) {
        true => Refusal::OtherUser { pid, uid: None },
        false => Refusal::NoProcess { pid },
    })?;
    status.check(pid)?;
    let memory = ProcessMemory::open(pid).map_err(|error| status.denied(pid, error))?;
    sys::ptrace_reaches_kernel(pid).map_err(|error| Refusal::Seccomp { error })?;
    if status.parent != 0 && sys::same_memory(pid, status.parent) {
        return Err(Refusal::Vfork { pid, parent: status.parent });
    }
    let mut header = [0; 64];
    File::open(format!("/proc/{pid}/exe"))
        .and_then(|mut file| file.read_exact(&mut header))
        .map_err(system("Reading the executable"))?;
    if let Some(theirs) = other_architecture(&header) {
        return Err(Refusal::Architecture { pid, theirs, ours: std::env::consts::ARCH });
    }
    if cfg!(not(target_arch = "x86_64")) {
        return Err(Refusal::Unsupported);
    }
    let mappings = read_mappings(pid).map_err(system("Reading the mappings"))?;
    let modules = modules(&mappings);
    let libc = glibc(pid, &modules)?.path.clone();
    let threads = threads(pid).len();
    Ok((Target { pid, libc, threads }, memory, mappings, modules))
}

pub(crate) fn read_mappings(pid: u32) -> io::Result<Vec<Mapping>> {
    let mut text = Vec::new();
    File::open(format!("/proc/{pid}/maps"))?.take(MAX_MAPS).read_to_end(&mut text)?;
    Ok(parse(&text))
}

/// The threads of a process, in the order of their creation as a rule.
pub(crate) fn threads(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut threads: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    threads.sort_unstable();
    threads
}

/// Who traces a process, if anyone does.
pub(crate) fn tracer(pid: u32) -> Option<Refusal> {
    Status::read(pid)?.traced(pid)
}

/// The glibc of a process.
pub(crate) fn glibc(pid: u32, modules: &[Module]) -> Result<&Module, Refusal> {
    let mut found = modules.iter().filter(|module| is_glibc(module.name()));
    let other = || {
        modules.iter().find(|module| {
            let name = module.name();
            name.starts_with("ld-musl") || name.starts_with("libc.musl") || name == "libc.so"
        })
    };
    match (found.next(), found.next()) {
        (Some(libc), None) => Ok(libc),
        (Some(first), Some(second)) => {
            Err(Refusal::SeveralLibcs { pid, first: first.path.clone(), second: second.path.clone() })
        }
        (None, _) => Err(match other() {
            Some(module) => Refusal::OtherLibc { pid, library: module.path.clone() },
            None => Refusal::Static { pid },
        }),
    }
}

/// Before glibc 2.34, the files are named after the version.
pub(crate) fn is_glibc(name: &str) -> bool {
    name == "libc.so.6" || (name.starts_with("libc-2.") && name.ends_with(".so"))
}

pub(crate) fn is_loader(name: &str) -> bool {
    name.starts_with("ld-linux") || (name.starts_with("ld-2.") && name.ends_with(".so"))
}

/// `/proc/PID/status`.
#[derive(Debug)]
struct Status {
    process: u32,
    parent: u32,
    tracer: u32,
    state: u8,
    /// Real, effective and saved.
    uids: Vec<u32>,
    /// The owner of the files in /proc: root, if the process is not dumpable.
    owner: u32,
    has_memory: bool,
}

impl Status {
    fn read(pid: u32) -> Option<Self> {
        let directory = format!("/proc/{pid}");
        let text = fs::read(format!("{directory}/status")).ok()?;
        // The directory itself always belongs to the user.
        let owner = fs::metadata(format!("{directory}/status")).ok()?.uid();
        let text = String::from_utf8_lossy(&text);
        let field = |name: &str| {
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
        };
        let number = |name| field(name)?.parse().ok();
        Some(Self {
            process: number("Tgid")?,
            parent: number("PPid")?,
            tracer: number("TracerPid")?,
            state: *field("State")?.as_bytes().first()?,
            uids: field("Uid")?.split_whitespace().take(3).filter_map(|uid| uid.parse().ok()).collect(),
            owner,
            has_memory: field("VmSize").is_some(),
        })
    }

    fn check(&self, pid: u32) -> Result<(), Refusal> {
        if self.process == std::process::id() {
            return Err(Refusal::Ourselves { pid });
        }
        if self.process != pid {
            return Err(Refusal::Thread { pid, process: self.process });
        }
        if matches!(self.state, b'Z' | b'X') {
            return Err(Refusal::Zombie { pid });
        }
        if !self.has_memory {
            return Err(Refusal::Kernel { pid });
        }
        if let Some(traced) = self.traced(pid) {
            return Err(traced);
        }
        if self.state == b'T' {
            return Err(Refusal::Stopped { pid });
        }
        Ok(())
    }

    fn traced(&self, pid: u32) -> Option<Refusal> {
        (self.tracer != 0).then(|| {
            let name = fs::read_to_string(format!("/proc/{}/comm", self.tracer)).unwrap_or_default();
            let name = name.trim().chars().filter(|c| !c.is_control()).collect::<String>();
            let name = if name.is_empty() { "another process".into() } else { name };
            Refusal::Traced { pid, tracer: self.tracer, name }
        })
    }

    /// Why the kernel does not allow us to open the memory, which needs the same permission as ptrace.
    fn denied(&self, pid: u32, error: io::Error) -> Refusal {
        if error.kind() == io::ErrorKind::NotFound {
            return Refusal::NoProcess { pid };
        }
        let yama = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
        match yama.as_deref().map(str::trim) {
            Some("3") => return Refusal::YamaNever,
            Some("2") if !may_trace_all() => return Refusal::YamaAdministrators { pid },
            _ => {}
        }
        if may_trace_all() {
            return Refusal::Denied { pid, error };
        }
        if self.uids.iter().any(|&uid| uid != sys::user()) {
            return Refusal::OtherUser { pid, uid: self.uids.get(1).copied() };
        }
        if self.uids.get(1).is_some_and(|&effective| effective != self.owner) {
            return Refusal::NotDumpable { pid };
        }
        match yama.as_deref().map(str::trim) {
            Some("1") => Refusal::YamaAncestors { pid },
            _ => Refusal::Denied { pid, error },
        }
    }
}

/// Whether this process has the capability CAP_SYS_PTRACE.
fn may_trace_all() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    match capabilities.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()) {
        Some(mask) => mask >> CAP_SYS_PTRACE & 1 == 1,
        None => sys::is_root(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(paths: &[&str]) -> Result<String, Refusal> {
        let line = |(index, path): (usize, &&str)| {
            format!("{:x}000-{:x}000 r-xp 00000000 00:01 {index} {path}\n", 2 * index + 1, 2 * index + 2)
        };
        let maps: String = paths.iter().enumerate().map(line).collect();
        glibc(1, &modules(&parse(maps.as_bytes()))).map(|module| module.path.clone())
    }

    #[test]
    fn the_c_library_is_recognised() {
        assert_eq!(library(&["/bin/a", "/lib/libc.so.6"]).unwrap(), "/lib/libc.so.6");
        assert_eq!(library(&["/lib/libc-2.31.so", "/lib/ld-2.31.so"]).unwrap(), "/lib/libc-2.31.so");
        assert!(library(&["/lib/libc.so.6 (deleted)"]).is_ok());
        assert!(matches!(library(&["/bin/a"]), Err(Refusal::Static { .. })));
        for musl in ["/lib/ld-musl-x86_64.so.1", "/lib/libc.musl-x86_64.so.1", "/lib/libc.so"] {
            let refusal = library(&["/bin/a", musl]).unwrap_err();
            assert!(matches!(&refusal, Refusal::OtherLibc { library, .. } if library == musl));
        }
        assert!(matches!(library(&["/lib/libc.so.6", "/b/libc.so.6"]), Err(Refusal::SeveralLibcs { .. })));
        assert!(is_loader("ld-linux-x86-64.so.2") && is_loader("ld-2.31.so") && !is_loader("libdl.so.2"));
    }
}
