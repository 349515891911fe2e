//! The system calls that the standard library has no interface for.

#![allow(unsafe_code)] // ptrace, wait4, kcmp

use std::io;

fn result(value: libc::c_long) -> io::Result<libc::c_long> {
    if value == -1 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

pub fn is_root() -> bool {
    // SAFETY: has no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

pub fn user() -> u32 {
    // SAFETY: has no arguments and cannot fail.
    unsafe { libc::getuid() }
}

/// Whether a process exists, also if /proc hides it.
pub fn exists(pid: u32) -> bool {
    let Ok(pid @ 1..) = i32::try_from(pid) else { return false };
    // SAFETY: signal 0 is not sent.
    unsafe { libc::kill(pid, 0) == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM) }
}

/// Whether two processes share their memory.
pub fn same_memory(one: u32, other: u32) -> bool {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: compares two processes; no argument is a pointer.
    unsafe { libc::syscall(libc::SYS_kcmp, one as libc::pid_t, other as libc::pid_t, KCMP_VM, 0, 0) == 0 }
}

/// Whether the system call ptrace reaches the kernel. Continuing a process that is not traced fails without effect.
pub fn ptrace_reaches_kernel(pid: u32) -> io::Result<()> {
    // SAFETY: PTRACE_CONT has no pointers.
    match unsafe { libc::syscall(libc::SYS_ptrace, libc::PTRACE_CONT, pid as libc::pid_t, 0, 0) } {
        -1 => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            error => Err(error),
        },
        _ => Ok(()),
    }
}

#[cfg(target_arch = "x86_64")]
pub use tracing::*;

#[cfg(target_arch = "x86_64")]
mod tracing {
    use std::time::{Duration, Instant};
    use std::{io, mem, ptr};

    use super::result;

    pub type Registers = libc::user_regs_struct;

    const NT_X86_XSTATE: usize = 0x202;
    const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;
    const PTRACE_SETSIGMASK: libc::c_uint = 0x420b;
    const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
    const PTRACE_EVENT_STOP: i32 = 128;
    /// AMX and AVX-512 need 11 KiB.
    const MAX_XSTATE: usize = 1 << 16;

    /// The report of `wait4` about a traced thread.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Event {
        Ended,
        /// PTRACE_INTERRUPT, or the end of a group stop.
        Interrupted,
        /// The process was stopped by a signal such as SIGSTOP.
        GroupStop,
        /// The beginning or the end of a system call.
        Call,
        /// The signal is not delivered unless it is passed on.
        Signal(i32),
    }

    enum Change {
        None,
        Stopped(i32),
        Ended,
        Gone,
    }

    /// A thread that this thread traces. Whatever is dropped without a detach is detached by the kernel when this thread ends.
    #[derive(Debug)]
    pub struct Tracee(libc::pid_t);

    impl Tracee {
        /// Does not stop the thread.
        pub fn seize(thread: u32) -> io::Result<Self> {
            let tracee = Self(thread as libc::pid_t);
            tracee.request(libc::PTRACE_SEIZE, 0, libc::PTRACE_O_TRACESYSGOOD as usize)?;
            Ok(tracee)
        }

        fn request(&self, request: libc::c_uint, address: usize, data: usize) -> io::Result<libc::c_long> {
            // SAFETY: the callers pass numbers, or pointers to memory of the size that the request writes. The raw call avoids glibc's
            // wrapper, which treats PEEK requests differently.
            result(unsafe { libc::syscall(libc::SYS_ptrace, request, self.0, address, data) })
        }

        pub fn interrupt(&self) -> io::Result<()> {
            self.request(libc::PTRACE_INTERRUPT, 0, 0).map(drop)
        }

        pub fn resume(&self) -> io::Result<()> {
            self.request(libc::PTRACE_CONT, 0, 0).map(drop)
        }

        /// Resumes until the next beginning or end of a system call.
        pub fn resume_to_call(&self) -> io::Result<()> {
            self.request(libc::PTRACE_SYSCALL, 0, 0).map(drop)
        }

        /// The signal is delivered only if the thread has stopped because of it.
        pub fn detach(&self, signal: i32) -> io::Result<()> {
            self.request(libc::PTRACE_DETACH, 0, signal as usize).map(drop)
        }

        pub fn registers(&self) -> io::Result<Registers> {
            // SAFETY: the structure consists of integers.
            let mut registers: Registers = unsafe { mem::zeroed() };
            self.request(libc::PTRACE_GETREGS, 0, &raw mut registers as usize)?;
            Ok(registers)
        }

        pub fn set_registers(&self, registers: &Registers) -> io::Result<()> {
            self.request(libc::PTRACE_SETREGS, 0, &raw const *registers as usize).map(drop)
        }

        /// The floating-point and vector registers.
        pub fn vectors(&self) -> io::Result<Vec<u8>> {
            let mut state = vec![0; MAX_XSTATE];
            let mut io = libc::iovec { iov_base: state.as_mut_ptr().cast(), iov_len: state.len() };
            self.request(libc::PTRACE_GETREGSET, NT_X86_XSTATE, &raw mut io as usize)?;
            state.truncate(io.iov_len);
            Ok(state)
        }

        pub fn set_vectors(&self, state: &mut [u8]) -> io::Result<()> {
            let mut io = libc::iovec { iov_base: state.as_mut_ptr().cast(), iov_len: state.len() };
            self.request(libc::PTRACE_SETREGSET, NT_X86_XSTATE, &raw mut io as usize).map(drop)
        }

        pub fn signal_mask(&self) -> io::Result<u64> {
            let mut mask = 0u64;
            self.request(PTRACE_GETSIGMASK, size_of::<u64>(), &raw mut mask as usize)?;
            Ok(mask)
        }

        pub fn set_signal_mask(&self, mask: u64) -> io::Result<()> {
            self.request(PTRACE_SETSIGMASK, size_of::<u64>(), &raw const mask as usize).map(drop)
        }

        /// The address of the thread's `struct rseq`, if it has registered one.
        pub fn restartable_sequences(&self) -> Option<u64> {
            let mut configuration = [0u64; 3];
            self.request(
                PTRACE_GET_RSEQ_CONFIGURATION,
                size_of_val(&configuration),
                &raw mut configuration as usize,
            )
            .ok()?;
            (configuration[0] != 0).then_some(configuration[0])
        }

        /// Writes also to pages that the process cannot write.
        pub fn poke(&self, address: u64, word: u64) -> io::Result<()> {
            self.request(libc::PTRACE_POKEDATA, address as usize, word as usize).map(drop)
        }

        /// The information of the signal that has stopped the thread.
        pub fn signal(&self) -> io::Result<libc::siginfo_t> {
            // SAFETY: the structure consists of integers.
            let mut signal: libc::siginfo_t = unsafe { mem::zeroed() };
            self.request(libc::PTRACE_GETSIGINFO, 0, &raw mut signal as usize)?;
            Ok(signal)
        }

        /// Sends a signal as it was sent before. Only its sender is changed if the kernel does not allow it.
        pub fn send_again(&self, process: u32, signal: &libc::siginfo_t) {
            let number = signal.si_signo;
            // SAFETY: the pointer is valid for the call; the other arguments are numbers.
            unsafe {
                let process = process as libc::pid_t;
                if libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, self.0, number, ptr::from_ref(signal))
                    == -1
                {
                    libc::syscall(libc::SYS_tgkill, process, self.0, number);
                }
            }
        }

        /// The next event, if there is one. The end of a process is left to its parent, which may be this process.
        pub fn event(&self) -> io::Result<Option<Event>> {
            let ended = |change| matches!(change, Change::Gone | Change::Ended);
            if let Change::Stopped(status) = self.change(libc::WSTOPPED)? {
                return Ok(Some(match (status & 0xff, status >> 8) {
                    (libc::SIGTRAP, PTRACE_EVENT_STOP) => Event::Interrupted,
                    (_, PTRACE_EVENT_STOP) => Event::GroupStop,
                    (signal, _) if signal == libc::SIGTRAP | 0x80 => Event::Call,
                    (signal, _) => Event::Signal(signal),
                }));
            }
            // This reports a new stop, too, and leaves it for the next time.
            Ok(ended(self.change(libc::WEXITED | libc::WNOWAIT)?).then_some(Event::Ended))
        }

        fn change(&self, kind: i32) -> io::Result<Change> {
            // SAFETY: the structure consists of integers, and its pointer is valid for the call.
            unsafe {
                let mut info: libc::siginfo_t = mem::zeroed();
                let options = kind | libc::__WALL | libc::WNOHANG | libc::__WNOTHREAD;
                let waited = libc::waitid(libc::P_PID, self.0 as libc::id_t, &raw mut info, options);
                match result(waited.into()) {
                    Ok(_) if info.si_pid() == 0 => Ok(Change::None),
                    Ok(_) if matches!(info.si_code, libc::CLD_TRAPPED | libc::CLD_STOPPED) => {
                        Ok(Change::Stopped(info.si_status()))
                    }
                    Ok(_) => Ok(Change::Ended),
                    Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(Change::Gone),
                    Err(error) => Err(error),
                }
            }
        }

        /// Waits for an event until the deadline.
        pub fn wait(&self, deadline: Instant) -> io::Result<Option<Event>> {
            let begin = Instant::now();
            loop {
                if let Some(event) = self.event()? {
                    return Ok(Some(event));
                }
                let now = Instant::now();
                if now >= deadline {
                    return Ok(None);
                }
                pause(now - begin);
            }
        }
    }

    /// Waits a little, the longer the more time has passed.
    pub fn pause(passed: Duration) {
        if passed < Duration::from_micros(50) {
            std::thread::yield_now();
        } else {
            std::thread::sleep((passed / 8).clamp(Duration::from_micros(20), Duration::from_millis(1)));
        }
    }
}
