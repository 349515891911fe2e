#![doc = include_str!("../README.md")]

mod elf;
mod maps;
mod memory;
mod process;
mod refusal;

#[cfg(target_arch = "x86_64")]
mod borrow;
#[cfg(target_arch = "x86_64")]
mod candidates;
#[cfg(target_arch = "x86_64")]
mod frame;
#[cfg(target_arch = "x86_64")]
mod load;
#[cfg(target_arch = "x86_64")]
mod place;
#[cfg(target_arch = "x86_64")]
mod stub;
mod sys;

use std::ffi::CStr;
use std::time::Duration;

pub use process::{Target, check};
pub use refusal::{Busy, Refusal};

#[cfg(target_arch = "x86_64")]
pub use load::survey;

/// Limits of one [`load`].
#[derive(Clone, Debug)]
pub struct Options {
    /// How long a thread at a safe place is searched for.
    pub search: Duration,
    /// The time limit for the borrowed thread to create the new one if it waits for a lock; it is then released. While it runs,
    /// it is not interrupted: it could hold a lock.
    pub borrow: Duration,
    /// How long the load waits for the library's function to return.
    pub call: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            search: Duration::from_secs(1),
            borrow: Duration::from_millis(50),
            call: Duration::from_secs(30),
        }
    }
}

/// The result of a load.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The new thread of the target, in the target's PID namespace. It ended after the call.
    pub thread: u32,
    /// The thread that was borrowed.
    pub borrowed: u32,
    pub stopped: Stopped,
    /// How often a thread was stopped, including the last time.
    pub tries: u32,
    /// The return value of the function.
    pub result: i32,
    /// The library had been loaded from the same bytes before: only its function was called.
    pub again: bool,
}

/// The time for which threads of the target were interrupted, from each interruption to its detach.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stopped {
    pub longest: Duration,
    pub total: Duration,
}

/// Loads `library` into process `pid` and calls `int function(const char *)` of it with `argument`, to which a NUL is appended.
/// The argument stays valid after the call. Libraries with the same bytes are loaded once per process; the function is called
/// each time, in a new thread that has blocked all signals.
///
/// Threads that wait in a system call are preferred, because the kernel restarts most calls with the remaining time. The exceptions
/// (epoll_wait, sigtimedwait, semtimedop, io_getevents, sockets with a timeout) are borrowed last, and are repeated with their
/// whole timeout. Threads in the loader, the memory allocator, the creation of threads and signal handlers are not borrowed.
/// Threads in CUDA libraries are borrowed after half of [`Options::search`]: `pthread_create` acquires no lock of CUDA.
///
/// If the calling process is killed meanwhile, the borrowed thread continues, after two seconds at most.
///
/// While this runs, no other thread of the caller may wait for `pid` (`waitpid`), because that would consume the events of the trace.
pub fn load(
    pid: u32,
    library: &[u8],
    function: &CStr,
    argument: &[u8],
    options: &Options,
) -> Result<Loaded, Refusal> {
    #[cfg(target_arch = "x86_64")]
    return load::load(pid, library, function, argument, options);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (library, function, argument, options);
        check(pid)?;
        Err(Refusal::Unsupported)
    }
}
