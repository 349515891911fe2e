//! Which setting forbids to read the memory of a process.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use crate::refusal::{Cause, Refusal};

pub fn refusal(pid: u32, error: &io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Refusal::NoPermission { pid, cause: cause(pid) },
        _ => Refusal::Gone { pid },
    }
}

fn cause(pid: u32) -> Cause {
    let own = rustix::process::geteuid().as_raw();
    let user = fs::metadata(format!("/proc/{pid}")).map_or(own, |directory| directory.uid());
    match ptrace_scope() {
        3 => Cause::PtraceForbidden,
        _ if own != 0 && user != own => Cause::OtherUser { user },
        scope @ 1.. if own != 0 => Cause::PtraceScope { scope },
        _ => Cause::Capability,
    }
}

/// 0 if the kernel has no Yama.
fn ptrace_scope() -> u8 {
    let text = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}
