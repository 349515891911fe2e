//! Which threads of a process could be borrowed, the best first. Nothing is stopped for this.

use std::fs;

use crate::place::Position;
use crate::process::threads;

/// Calls that wait, and that the kernel restarts transparently after a stop.
const WAITS: [i64; 20] = [
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_pause,
    libc::SYS_rt_sigsuspend,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_restart_syscall,
    libc::SYS_msgrcv,
];

/// Not in the crate libc.
const SYS_IO_PGETEVENTS: i64 = 333;

/// Calls that return EINTR after a stop (signal(7)), also sockets with a timeout. They have had no effect then, and can be repeated.
const REPEATABLE: [i64; 16] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    SYS_IO_PGETEVENTS,
    libc::SYS_io_uring_enter,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
];

/// Whether the call can be repeated if it has failed with EINTR.
pub fn repeatable(call: i64) -> bool {
    REPEATABLE.contains(&call)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Preference {
    Waits,
    Repeats,
    Runs,
}

/// A thread that could be borrowed.
#[derive(Debug)]
pub struct Candidate {
    pub thread: u32,
    /// Unknown while the thread is running.
    pub position: Option<Position>,
    preference: Preference,
}

pub fn candidates(pid: u32) -> Vec<Candidate> {
    let mut candidates: Vec<_> =
        threads(pid).into_iter().filter_map(|thread| candidate(pid, thread)).collect();
    candidates.sort_by_key(|candidate| candidate.preference);
    candidates
}

fn candidate(pid: u32, thread: u32) -> Option<Candidate> {
    let directory = format!("/proc/{pid}/task/{thread}");
    let stat = fs::read(format!("{directory}/stat")).ok()?;
    let state = stat.iter().rposition(|&byte| byte == b')').and_then(|at| stat.get(at + 2))?;
    // In an uninterruptible sleep, a thread does not stop.
    matches!(state, b'R' | b'S').then_some(())?;
    let call = fs::read_to_string(format!("{directory}/syscall")).unwrap_or_default();
    let position = position(&call);
    let preference = match position.and_then(|position| position.call) {
        Some(call) if WAITS.contains(&call) => Preference::Waits,
        Some(call) if REPEATABLE.contains(&call) => Preference::Repeats,
        _ => Preference::Runs,
    };
    Some(Candidate { thread, position, preference })
}

/// `/proc/PID/task/TID/syscall`: the number of the call, six arguments, the stack and the instruction pointer.
pub fn position(text: &str) -> Option<Position> {
    let mut fields = text.split_whitespace();
    let call = fields.next()?.parse::<i64>().ok().filter(|&call| call >= 0)?;
    let address = |field: &str| u64::from_str_radix(field.strip_prefix("0x")?, 16).ok();
    let mut last = fields.skip(6);
    let (stack, instruction) = (address(last.next()?)?, address(last.next()?)?);
    Some(Position { instruction, stack, thread_pointer: None, call: Some(call) })
}

#[cfg(test)]
mod tests {
    use super::position;

    #[test]
    fn system_calls_are_read() {
        let read = position("202 0x1 0x189 0x0 0x0 0x0 0xff 0x7ffc10 0x7f0a\n").unwrap();
        assert_eq!((read.call, read.stack, read.instruction), (Some(202), 0x7f_fc10, 0x7f0a));
        for text in ["running\n", "", "-1 0x7ffc10 0x7f0a\n", "202 0x1", "202 0x1 2 3 4 5 6 7 8"] {
            assert!(position(text).is_none(), "{text}");
        }
    }
}
