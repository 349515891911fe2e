//! Why a library cannot be loaded into a process.

use std::io;
use std::time::Duration;

/// Each message names the obstacle and its remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    #[error("No process has the PID {pid}.")]
    NoProcess { pid: u32 },
    #[error("{pid} is a thread of process {process}. Use {process}.")]
    Thread { pid: u32, process: u32 },
    #[error("Process {pid} is this process. Use the PID of another process.")]
    Ourselves { pid: u32 },
    #[error("Process {pid} has ended, but its parent has not waited for it (zombie).")]
    Zombie { pid: u32 },
    #[error("{pid} is a thread of the kernel, which cannot load a library.")]
    Kernel { pid: u32 },
    #[error(
        "Process {pid} shares the memory of its parent {parent} until it calls exec (vfork). Try again later."
    )]
    Vfork { pid: u32, parent: u32 },
    #[error("Process {pid} belongs to {}. Run as this user or with sudo.", user(*.uid))]
    OtherUser { pid: u32, uid: Option<u32> },
    #[error(
        "Process {pid} is protected (not dumpable: set-uid, file capabilities or PR_SET_DUMPABLE). Run with sudo."
    )]
    NotDumpable { pid: u32 },
    #[error(
        "Process {pid} is already traced by {name} (PID {tracer}), and a process has at most one tracer. Detach {name} first."
    )]
    Traced { pid: u32, tracer: u32, name: String },
    #[error(
        "kernel.yama.ptrace_scope=1 allows only ancestors to trace process {pid}. Run `sudo sysctl kernel.yama.ptrace_scope=0` or run with sudo."
    )]
    YamaAncestors { pid: u32 },
    #[error("kernel.yama.ptrace_scope=2 allows only administrators to trace process {pid}. Run with sudo.")]
    YamaAdministrators { pid: u32 },
    #[error(
        "kernel.yama.ptrace_scope=3 forbids ptrace until the next boot. Set kernel.yama.ptrace_scope=0 in /etc/sysctl.d and reboot."
    )]
    YamaNever,
    #[error(
        "ptrace of process {pid} is denied by a security module or a container ({error}). In a container, start it with `--cap-add SYS_PTRACE`."
    )]
    Denied { pid: u32, error: io::Error },
    #[error(
        "ptrace is denied by a seccomp filter of this process ({error}). Start the container with `--cap-add SYS_PTRACE` or `--security-opt seccomp=unconfined`."
    )]
    Seccomp { error: io::Error },
    #[error("Process {pid} is stopped. Run `kill -CONT {pid}`.")]
    Stopped { pid: u32 },
    #[error(
        "Process {pid} is statically linked: it has no dynamic loader that could load a library. Link it dynamically with glibc."
    )]
    Static { pid: u32 },
    #[error(
        "Process {pid} uses the C library {library}, but only glibc is supported. Use a build or an image with glibc."
    )]
    OtherLibc { pid: u32, library: String },
    #[error(
        "Process {pid} has several copies of glibc ({first}, {second}), e.g. because of LD_AUDIT or dlmopen."
    )]
    SeveralLibcs { pid: u32, first: String, second: String },
    #[error(
        "Process {pid} runs {theirs} code, but this program is built for {ours}. Use a build for {theirs}."
    )]
    Architecture { pid: u32, theirs: String, ours: &'static str },
    #[error("Libraries can be loaded into running processes only on x86-64.")]
    Unsupported,
    #[error(
        "Process {pid} does not have the function {name} of glibc. Before glibc 2.34, programs need to be linked with -lpthread and -ldl."
    )]
    Function { pid: u32, name: &'static str },
    #[error(
        "No thread of process {pid} was at a safe place within {} ms: {tries} stops and {looks} inspections, the last \
         of thread {thread}, which {busy}. Try again.",
        .within.as_millis()
    )]
    NoSafePlace { pid: u32, within: Duration, tries: u32, looks: u32, thread: u32, busy: Busy },
    #[error(
        "Thread {thread} of process {pid} waited for a lock in pthread_create and was released. Try again."
    )]
    Locked { pid: u32, thread: u32 },
    #[error("Process {pid} ended or called exec during the load.")]
    Died { pid: u32 },
    #[error("{call} failed in process {pid}: {error}.{}", remedy(.call))]
    Call { pid: u32, call: &'static str, error: io::Error },
    #[error("Process {pid} cannot load the library: {message}.")]
    Library { pid: u32, message: String },
    #[error("The library has no function {name}: {message}.")]
    Symbol { name: String, message: String },
    #[error(
        "The function did not return within {within:?} in thread {thread} of process {pid}. The thread continues to run."
    )]
    NoAnswer { pid: u32, thread: u32, within: Duration },
    #[error("{action} of process {pid} failed: {error}.")]
    System { pid: u32, action: &'static str, error: io::Error },
}

/// The activity of a thread that could not be borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Busy {
    #[error("was in the dynamic loader")]
    Loader,
    #[error("was in the memory allocator")]
    Allocator,
    #[error("was creating a thread or a process")]
    Threads,
    #[error("was in a signal handler")]
    Handler,
    #[error("was in a CUDA library")]
    Cuda,
    #[error("was running code of the C library")]
    Libc,
    #[error("was in a system call that changes memory, threads or signals")]
    Call,
    #[error("was in a restartable sequence")]
    Sequence,
    #[error("had a stack that could not be read or is too deep")]
    Stack,
    #[error("ran 32-bit code")]
    Mode,
    #[error("did not stop, or received a signal")]
    Signal,
    #[error("had ended")]
    Gone,
}

fn user(uid: Option<u32>) -> String {
    match uid {
        Some(0) => "root".into(),
        Some(uid) => format!("the user with UID {uid}"),
        None => "another user".into(),
    }
}

fn remedy(call: &str) -> &'static str {
    match call {
        "memfd_create" => {
            " A seccomp filter, a limit of file descriptors (`ulimit -n`) or the memory limit of its container forbids it."
        }
        "mmap" | "pthread_create" => {
            " Raise its limits of memory and threads (`ulimit -v`, `ulimit -u`, pids.max)."
        }
        _ => "",
    }
}
