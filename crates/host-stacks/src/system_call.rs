//! Names of system calls.

use std::fmt;

/// A system call by its number on this architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SystemCall(pub u32);

/// The event for which a blocked call waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Sleep,
    Futex,
    /// Input, output, another process, or anything else.
    Other,
}

const FUTEX_COMMANDS_THAT_WAIT: [u64; 5] = [0, 6, 9, 11, 13];

impl SystemCall {
    /// `None` for calls that are rarely seen.
    pub fn name(self) -> Option<&'static str> {
        NAMES.iter().find(|(number, _)| *number == self.0).map(|(_, name)| *name)
    }

    pub(crate) fn purpose(self, arguments: &[u64; 6]) -> Purpose {
        match self.name() {
            Some("nanosleep" | "clock_nanosleep") => Purpose::Sleep,
            // A wait for no descriptor, as `time.sleep` before CPython 3.11.
            Some("select" | "pselect6") if arguments[0] == 0 => Purpose::Sleep,
            Some("poll" | "ppoll") if arguments[1] == 0 => Purpose::Sleep,
            Some("futex") if FUTEX_COMMANDS_THAT_WAIT.contains(&(arguments[1] & 0x7f)) => Purpose::Futex,
            _ => Purpose::Other,
        }
    }
}

impl fmt::Display for SystemCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "system call {}", self.0),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const NAMES: &[(u32, &str)] = &[
    (0, "read"), (1, "write"), (2, "open"), (3, "close"), (4, "stat"), (5, "fstat"), (6, "lstat"),
    (7, "poll"), (8, "lseek"), (9, "mmap"), (10, "mprotect"), (11, "munmap"), (12, "brk"), (16, "ioctl"),
    (17, "pread64"), (18, "pwrite64"), (19, "readv"), (20, "writev"), (21, "access"), (22, "pipe"),
    (23, "select"), (24, "sched_yield"), (25, "mremap"), (26, "msync"), (28, "madvise"), (34, "pause"),
    (35, "nanosleep"), (40, "sendfile"), (42, "connect"), (43, "accept"), (44, "sendto"), (45, "recvfrom"),
    (46, "sendmsg"), (47, "recvmsg"), (56, "clone"), (57, "fork"), (58, "vfork"), (59, "execve"),
    (61, "wait4"), (65, "semop"), (70, "msgrcv"), (72, "fcntl"), (73, "flock"), (74, "fsync"),
    (75, "fdatasync"), (77, "ftruncate"), (82, "rename"), (87, "unlink"), (128, "rt_sigtimedwait"),
    (130, "rt_sigsuspend"), (162, "sync"), (202, "futex"), (208, "io_getevents"), (217, "getdents64"),
    (220, "semtimedop"), (230, "clock_nanosleep"), (232, "epoll_wait"), (243, "mq_timedreceive"),
    (247, "waitid"), (257, "openat"), (262, "newfstatat"), (270, "pselect6"), (271, "ppoll"),
    (275, "splice"), (277, "sync_file_range"), (281, "epoll_pwait"), (285, "fallocate"), (288, "accept4"),
    (295, "preadv"), (296, "pwritev"), (299, "recvmmsg"), (307, "sendmmsg"), (318, "getrandom"),
    (326, "copy_file_range"), (332, "statx"), (426, "io_uring_enter"), (435, "clone3"),
    (441, "epoll_pwait2"),
];

#[cfg(not(target_arch = "x86_64"))]
#[rustfmt::skip]
const NAMES: &[(u32, &str)] = &[
    (22, "epoll_pwait"), (25, "fcntl"), (29, "ioctl"), (32, "flock"), (35, "unlink"), (46, "ftruncate"),
    (47, "fallocate"), (56, "openat"), (57, "close"), (61, "getdents64"), (62, "lseek"), (63, "read"),
    (64, "write"), (65, "readv"), (66, "writev"), (67, "pread64"), (68, "pwrite64"), (69, "preadv"),
    (70, "pwritev"), (71, "sendfile"), (72, "pselect6"), (73, "ppoll"), (76, "splice"), (79, "newfstatat"),
    (80, "fstat"), (81, "sync"), (82, "fsync"), (83, "fdatasync"), (84, "sync_file_range"), (95, "waitid"),
    (98, "futex"), (101, "nanosleep"), (115, "clock_nanosleep"), (124, "sched_yield"),
    (133, "rt_sigsuspend"), (137, "rt_sigtimedwait"), (183, "mq_timedreceive"), (188, "msgrcv"),
    (192, "semtimedop"), (202, "accept"), (203, "connect"), (206, "sendto"), (207, "recvfrom"),
    (211, "sendmsg"), (212, "recvmsg"), (214, "brk"), (215, "munmap"), (216, "mremap"), (220, "clone"),
    (221, "execve"), (222, "mmap"), (226, "mprotect"), (227, "msync"), (233, "madvise"), (242, "accept4"),
    (243, "recvmmsg"), (260, "wait4"), (269, "sendmmsg"), (278, "getrandom"), (285, "copy_file_range"),
    (291, "statx"), (426, "io_uring_enter"), (435, "clone3"), (441, "epoll_pwait2"),
];
