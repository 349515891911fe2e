//! Functions of the C library that std does not offer.

use std::ffi::{c_char, c_int, c_long, c_void};

pub const RTLD_NOW: c_int = 2;
pub const RTLD_NOLOAD: c_int = 4;
pub const PROT_READ_WRITE: c_int = 3;
pub const MAP_SHARED: c_int = 1;
pub const MAP_FAILED: *mut c_void = usize::MAX as *mut c_void;
pub const SOL_SOCKET: c_int = 1;
pub const SO_PEERCRED: c_int = 17;
pub const SCM_RIGHTS: c_int = 1;
pub const MSG_NOSIGNAL: c_int = 0x4000;
pub const MSG_CMSG_CLOEXEC: c_int = 0x4000_0000;
pub const SIG_SETMASK: c_int = 2;
pub const POLLIN: i16 = 1;
pub const MFD_CLOEXEC: u32 = 1;

#[repr(C)]
pub struct Iovec {
    pub base: *mut c_void,
    pub bytes: usize,
}

#[repr(C)]
pub struct Msghdr {
    pub name: *mut c_void,
    pub name_bytes: u32,
    pub iov: *mut Iovec,
    pub iov_count: usize,
    pub control: *mut c_void,
    pub control_bytes: usize,
    pub flags: c_int,
}

/// A control message that carries one descriptor.
#[repr(C, align(8))]
#[derive(Default)]
pub struct Rights {
    pub bytes: usize,
    pub level: c_int,
    pub kind: c_int,
    pub fd: c_int,
    pub pad: c_int,
}

#[repr(C)]
#[derive(Default)]
pub struct Ucred {
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
}

#[repr(C)]
pub struct PollFd {
    pub fd: c_int,
    pub events: i16,
    pub revents: i16,
}

#[repr(C)]
#[derive(Default)]
pub struct Timespec {
    pub seconds: i64,
    pub nanoseconds: i64,
}

/// As large as glibc's `sigset_t`.
#[repr(C, align(8))]
pub struct Signals(pub [u8; 128]);

/// The beginning of `dl_phdr_info`.
#[repr(C)]
pub struct Object {
    pub address: usize,
    pub name: *const c_char,
}

unsafe extern "C" {
    pub fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    pub fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    pub fn dl_iterate_phdr(
        each: extern "C" fn(*const Object, usize, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
    pub fn mmap(
        at: *mut c_void,
        bytes: usize,
        protection: c_int,
        flags: c_int,
        fd: c_int,
        offset: i64,
    ) -> *mut c_void;
    pub fn munmap(at: *mut c_void, bytes: usize) -> c_int;
    pub fn send(fd: c_int, bytes: *const c_void, count: usize, flags: c_int) -> isize;
    pub fn recvmsg(fd: c_int, message: *mut Msghdr, flags: c_int) -> isize;
    pub fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, bytes: *mut u32) -> c_int;
    pub fn poll(fds: *mut PollFd, count: u64, timeout_ms: c_int) -> c_int;
    pub fn close(fd: c_int) -> c_int;
    pub fn memfd_create(name: *const c_char, flags: u32) -> c_int;
    pub fn getuid() -> u32;
    fn syscall(number: c_long, ...) -> c_long;
    pub fn clock_gettime(clock: c_int, at: *mut Timespec) -> c_int;
    pub fn pthread_sigmask(how: c_int, new: *const Signals, old: *mut Signals) -> c_int;
    pub fn pthread_atfork(
        before: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
    pub fn atexit(handler: extern "C" fn()) -> c_int;
}

/// What a descriptor refers to, whichever its number is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    pub device: u64,
    pub inode: u64,
}

#[cfg(target_arch = "x86_64")]
const FSTAT: c_long = 5;
#[cfg(not(target_arch = "x86_64"))]
const FSTAT: c_long = 80;

/// `None` if the descriptor is not open. glibc has `fstat` as a function since 2.33 only.
pub fn file_id(fd: c_int) -> Option<FileId> {
    // At least as large as the kernel's `struct stat`, which begins with both numbers.
    let mut stat = [0u64; 32];
    // SAFETY: it writes at most the size of the structure.
    let status = unsafe { syscall(FSTAT, c_long::from(fd), stat.as_mut_ptr()) };
    (status == 0).then_some(FileId { device: stat[0], inode: stat[1] })
}

/// Nanoseconds by a clock: 0 is `CLOCK_REALTIME`, 1 `CLOCK_MONOTONIC`.
pub fn clock_ns(clock: c_int) -> u64 {
    let mut at = Timespec::default();
    // SAFETY: `at` is a valid place for two numbers.
    unsafe { clock_gettime(clock, &mut at) };
    (at.seconds as u64).wrapping_mul(1_000_000_000).wrapping_add(at.nanoseconds as u64)
}

/// glibc has `gettid` since 2.30 only.
#[cfg(target_arch = "x86_64")]
const GETTID: c_long = 186;
#[cfg(not(target_arch = "x86_64"))]
const GETTID: c_long = 178;

/// The id of this thread.
pub fn thread_id() -> u32 {
    // SAFETY: no argument.
    unsafe { syscall(GETTID) as u32 }
}
