//! Why the threads of a process cannot be read.

use thiserror::Error;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error("Process {pid} is not a Python program: it has no CPython interpreter.")]
    NotPython { pid: u32 },
    #[error("Process {pid} runs CPython {version}. Versions 3.8 to 3.15 with a GIL are supported.")]
    UnknownVersion { pid: u32, version: String },
    #[error("Process {pid} is starting: its interpreter has no thread yet. Try again.")]
    Starting { pid: u32 },
    #[error("No permission to read the memory of process {pid}: {cause}")]
    NoPermission { pid: u32, cause: Cause },
    #[error("Process {pid} has ended or now runs another program.")]
    Gone { pid: u32 },
}

/// The setting that forbids the read, with the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Cause {
    #[error("it belongs to user {user}. Run as that user or as root.")]
    OtherUser { user: u32 },
    #[error(
        "kernel.yama.ptrace_scope is {scope}. Run as root, or set it: sysctl -w kernel.yama.ptrace_scope=0."
    )]
    PtraceScope { scope: u8 },
    #[error("kernel.yama.ptrace_scope is 3, which holds until the next boot.")]
    PtraceForbidden,
    #[error(
        "it has other capabilities or is not dumpable. Run as root; in a container, add the capability SYS_PTRACE."
    )]
    Capability,
}
