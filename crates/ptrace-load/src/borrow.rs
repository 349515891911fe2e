//! One thread of the target, from its interruption until it is released.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::candidates::{Candidate, repeatable};
use crate::frame;
use crate::memory::{Memory, ProcessMemory};
use crate::place::{Places, Position};
use crate::sys::{Event, Registers, Tracee, pause};
use crate::{Busy, Refusal, process};

/// The time limit for a thread to stop. Until it stops, it runs or waits for a CPU.
const STOP: Duration = Duration::from_millis(100);
/// The time limit for one event of the borrowed thread. A machine under load needs more than milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// Memory below the stack pointer that functions may use.
const RED_ZONE: u64 = 128;
const ERESTARTNOHAND: i64 = 514;
/// All signals but those that faults raise: the kernel resets the handler of a fault's signal if it is blocked.
const MASK: u64 = {
    let faults = [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGSYS];
    let mut mask = u64::MAX;
    let mut index = 0;
    while index < faults.len() {
        mask &= !(1 << (faults[index] - 1));
        index += 1;
    }
    mask
};

/// Why a try has ended without a result.
#[derive(Debug)]
pub enum Missed {
    /// Another thread or another moment may do.
    Busy(Busy),
    /// Every further try would fail, too.
    Refused(Refusal),
}

impl From<Refusal> for Missed {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// A thread at a safe place, stopped. It is released when this is dropped.
pub struct Borrowed<'a> {
    tracee: Tracee,
    pub pid: u32,
    pub thread: u32,
    memory: &'a ProcessMemory,
    saved: Registers,
    vectors: Vec<u8>,
    mask: u64,
    /// Whether the thread is at the end of a system call, where registers can be set but an interrupted call is not restarted.
    at_call: bool,
    running: bool,
    changed: bool,
    masked: bool,
    ended: bool,
    /// Signals of other processes that could not be blocked.
    held: Vec<libc::siginfo_t>,
    /// The address at which the thread reports that it restores its registers itself, and the code that restores them.
    pub left: Option<(u64, Range<u64>)>,
    /// Whether the thread's stack has room for a frame, and the address of the return address before it.
    has_room: bool,
    return_address: Option<u64>,
}

/// Stops a thread, and keeps it if it is at a safe place. `begin` is the time of the interruption, if the thread has stopped.
pub fn borrow<'a>(
    pid: u32,
    candidate: &Candidate,
    memory: &'a ProcessMemory,
    places: &Places,
    cuda: bool,
    begin: &mut Option<Instant>,
) -> Result<Borrowed<'a>, Missed> {
    let thread = candidate.thread;
    let gone = |error: io::Error, action| match error.raw_os_error() {
        Some(libc::ESRCH) => Missed::Busy(Busy::Gone),
        _ => Refusal::System { pid, action, error }.into(),
    };
    let tracee = Tracee::seize(thread).map_err(|error| match process::tracer(pid) {
        // An earlier try that did not stop in time is still being detached.
        Some(Refusal::Traced { tracer, .. }) if tracer == std::process::id() => Missed::Busy(Busy::Signal),
        Some(traced) => traced.into(),
        None if error.raw_os_error() == Some(libc::EPERM) => Refusal::Denied { pid, error }.into(),
        None => gone(error, "Tracing a thread"),
    })?;
    let interruption = Instant::now();
    tracee.interrupt().map_err(|error| gone(error, "Stopping a thread"))?;
    let event = tracee.wait(interruption + STOP).map_err(|error| gone(error, "Waiting for a thread"))?;
    *begin = event.map(|_| interruption);
    match event {
        Some(Event::Interrupted) => {}
        Some(Event::Signal(signal)) => {
            let _ = tracee.detach(signal);
            return Err(Missed::Busy(Busy::Signal));
        }
        Some(Event::GroupStop) => {
            let _ = tracee.detach(0);
            return Err(Refusal::Stopped { pid }.into());
        }
        Some(Event::Ended) => return Err(Missed::Busy(Busy::Gone)),
        // The kernel detaches a thread that has not stopped when its tracer ends.
        Some(Event::Call) | None => return Err(Missed::Busy(Busy::Signal)),
    }
    let registers = tracee.registers().map_err(|error| gone(error, "Reading registers"))?;
    let mut borrowed = Borrowed {
        tracee,
        pid,
        thread,
        memory,
        saved: registers,
        vectors: Vec::new(),
        mask: 0,
        at_call: false,
        running: false,
        changed: false,
        masked: false,
        ended: false,
        held: Vec::new(),
        left: None,
        has_room: false,
        return_address: None,
    };
    let call = registers.orig_rax as i64;
    if call >= 0 && registers.rax as i64 == -i64::from(libc::EINTR) && repeatable(call) {
        borrowed.saved.rax = (-ERESTARTNOHAND) as u64;
        borrowed.changed = true;
    }
    borrowed.is_safe(places, cuda).map_err(Missed::Busy)?;
    let prepared = borrowed.prepare();
    prepared.map_err(|error| gone(error, "Saving registers"))?;
    Ok(borrowed)
}

impl Borrowed<'_> {
    fn is_safe(&mut self, places: &Places, cuda: bool) -> Result<(), Busy> {
        const CODE_64: u64 = 0x33;
        if self.saved.cs != CODE_64 {
            return Err(Busy::Mode);
        }
        let call = self.saved.orig_rax as i64;
        let position = Position {
            instruction: self.saved.rip,
            stack: self.saved.rsp,
            thread_pointer: Some(self.saved.fs_base),
            call: (call >= 0).then_some(call),
        };
        if position.call.is_none()
            && let Some(sequences) = self.tracee.restartable_sequences()
            && self.memory.u64(sequences.wrapping_add(8)) != Some(0)
        {
            return Err(Busy::Sequence);
        }
        self.has_room = places.has_room(&position, 2 * frame::MAX_SIZE);
        places.check(self.memory, &position, cuda)
    }

    fn prepare(&mut self) -> io::Result<()> {
        self.vectors = self.tracee.vectors()?;
        self.mask = self.tracee.signal_mask()?;
        Ok(())
    }

    /// Writes below the stack the data with which the thread restores its registers itself after its first system call. From then on, the
    /// thread continues if this process dies. Without room on the stack, it would not before it executes the stub.
    pub fn secure(&mut self, signal_return: Option<u64>) {
        let Some(signal_return) = signal_return.filter(|_| self.has_room) else { return };
        let address = (self.saved.rsp - RED_ZONE - frame::MAX_SIZE) & !63;
        let Some(frame) = frame::frame(address, &self.saved, &self.vectors, self.mask) else { return };
        let written = self.memory.write(address, &frame);
        if written.and_then(|()| self.memory.write(address - 8, &signal_return.to_ne_bytes())).is_ok() {
            self.return_address = Some(address - 8);
        }
    }

    fn failed(&self, call: &'static str) -> impl Fn(io::Error) -> Refusal {
        let pid = self.pid;
        move |error| match error.raw_os_error() {
            Some(libc::ESRCH) => Refusal::Died { pid },
            _ => Refusal::Call { pid, call, error },
        }
    }

    /// Executes one system call with the `syscall` instruction at an address of the program.
    pub fn call(
        &mut self,
        instruction: u64,
        name: &'static str,
        number: i64,
        arguments: [u64; 6],
    ) -> Result<u64, Refusal> {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        let mut registers = self.clean();
        registers.rip = instruction;
        registers.rax = number as u64;
        // The function behind the instruction returns to the end of a signal handler, if nobody stops it.
        registers.rsp = self.return_address.unwrap_or((self.saved.rsp - RED_ZONE) & !15);
        (registers.rdi, registers.rsi, registers.rdx) = (rdi, rsi, rdx);
        (registers.r10, registers.r8, registers.r9) = (r10, r8, r9);
        self.changed = true;
        self.tracee.set_registers(&registers).map_err(self.failed(name))?;
        self.tracee.set_signal_mask(MASK).map_err(self.failed(name))?;
        self.masked = true;
        for _ in 0..2 {
            loop {
                self.tracee.resume_to_call().map_err(self.failed(name))?;
                self.running = true;
                if self.next(Instant::now() + PATIENCE)? == Some(Event::Call) {
                    break;
                }
            }
        }
        self.at_call = true;
        let result = self.tracee.registers().map_err(self.failed(name))?.rax as i64;
        if (-4095..0).contains(&result) {
            return Err(self.failed(name)(io::Error::from_raw_os_error(-result as i32)));
        }
        Ok(result as u64)
    }

    /// The saved registers, not in a system call and with the flags that functions expect.
    fn clean(&self) -> Registers {
        const TRAP_AND_DIRECTION: u64 = 1 << 8 | 1 << 10;
        let mut registers = self.saved;
        registers.orig_rax = u64::MAX;
        registers.eflags &= !TRAP_AND_DIRECTION;
        registers
    }

    /// Writes to a page that the process cannot write.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Refusal> {
        if self.memory.write(address, bytes).is_ok() {
            return Ok(());
        }
        for (at, word) in (address..).step_by(8).zip(bytes.chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..word.len()].copy_from_slice(word);
            self.tracee.poke(at, u64::from_ne_bytes(bytes)).map_err(self.failed("PTRACE_POKEDATA"))?;
        }
        Ok(())
    }

    /// Writes the data with which the thread restores its registers itself.
    pub fn write_frame(&self, address: u64) -> Result<(), Refusal> {
        let frame = frame::frame(address, &self.saved, &self.vectors, self.mask);
        let missing = || io::Error::other("the vector registers cannot be saved");
        self.write(address, &frame.ok_or_else(missing).map_err(self.failed("PTRACE_GETREGSET"))?)
    }

    /// Whether the thread has restored its registers itself, because it was not released for seconds.
    fn has_left(&self) -> io::Result<bool> {
        let Some((flag, code)) = &self.left else { return Ok(false) };
        Ok(self.memory.u64(*flag) == Some(1) && !code.contains(&self.tracee.registers()?.rip))
    }

    /// Starts to execute code on a stack of this crate, which ends the memory of `size` bytes at `block`.
    pub fn start(&mut self, instruction: u64, stack: u64, block: u64, size: u64) -> Result<(), Refusal> {
        let mut registers = self.clean();
        (registers.rip, registers.rsp, registers.rbx) = (instruction, stack, block);
        (registers.r12, registers.rbp) = (size, 0);
        self.tracee.set_registers(&registers).map_err(self.failed("PTRACE_CONT"))?;
        self.at_call = false;
        // A word that looks like an active signal handler would be in the way of later loads.
        if let Some(address) = self.return_address.take() {
            self.write(address, &[0; 8])?;
        }
        self.tracee.resume().map_err(self.failed("PTRACE_CONT"))?;
        self.running = true;
        Ok(())
    }

    /// Waits until the code has written a number other than 0 to `done`. After `limit`, a thread that waits for a lock is stopped.
    pub fn finish(&mut self, done: u64, limit: Instant) -> Result<(), Refusal> {
        let begin = Instant::now();
        let mut locked = 0;
        while self.memory.u64(done).ok_or(Refusal::Died { pid: self.pid })? == 0 {
            if self.next(Instant::now())?.is_some() {
                self.tracee.resume().map_err(self.failed("pthread_create"))?;
                self.running = true;
            }
            let now = Instant::now();
            if now > limit {
                locked = if self.waits_for_lock() { locked + 1 } else { 0 };
            }
            // A thread that waits for a lock at all of these looks, for a tenth of a second, would wait for ever.
            if locked > 100 || now > begin + PATIENCE {
                return Err(Refusal::Locked { pid: self.pid, thread: self.thread });
            }
            pause(now - begin);
        }
        Ok(())
    }

    fn waits_for_lock(&self) -> bool {
        let path = format!("/proc/{}/task/{}/syscall", self.pid, self.thread);
        let call = std::fs::read_to_string(path).unwrap_or_default();
        call.split(' ').next() == Some(&libc::SYS_futex.to_string())
    }

    /// The next event that is not a signal of another process. A fault ends the try.
    fn next(&mut self, deadline: Instant) -> Result<Option<Event>, Refusal> {
        let died = Refusal::Died { pid: self.pid };
        match self.tracee.wait(deadline) {
            Ok(Some(Event::Ended)) => {
                self.ended = true;
                Err(died)
            }
            Ok(Some(Event::Signal(_))) => {
                self.running = false;
                let signal = self.tracee.signal().map_err(|_| died)?;
                if signal.si_code > 0 {
                    let error = io::Error::other(format!("signal {}", signal.si_signo));
                    return Err(Refusal::Call { pid: self.pid, call: "pthread_create", error });
                }
                self.held.push(signal);
                Ok(Some(Event::Signal(signal.si_signo)))
            }
            Ok(Some(event)) => {
                self.running = false;
                Ok(Some(event))
            }
            Ok(None) => Ok(None),
            Err(_) => Err(died),
        }
    }

    /// Stops the thread at a point at which its registers can be set and an interrupted system call is restarted.
    pub fn stop(&mut self) -> io::Result<()> {
        if !self.running && !self.at_call {
            return Ok(());
        }
        self.tracee.interrupt()?;
        if !self.running {
            // No instruction is executed before the next stop.
            self.tracee.set_registers(&self.clean())?;
            self.tracee.resume()?;
        }
        loop {
            match self.tracee.wait(Instant::now() + PATIENCE)? {
                Some(Event::Interrupted | Event::GroupStop) => break,
                // A stop for a signal is as good as one for the interruption.
                Some(Event::Signal(_)) => {
                    let signal = self.tracee.signal()?;
                    if signal.si_code <= 0 {
                        self.held.push(signal);
                    }
                    break;
                }
                Some(Event::Call) => self.tracee.resume()?,
                Some(Event::Ended) | None => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
            }
        }
        (self.running, self.at_call) = (false, false);
        Ok(())
    }

    fn give_back(&mut self) -> io::Result<()> {
        if self.ended {
            return Ok(());
        }
        self.stop()?;
        if self.changed && !self.has_left()? {
            if self.masked {
                self.tracee.set_vectors(&mut self.vectors)?;
                self.tracee.set_signal_mask(self.mask)?;
            }
            self.tracee.set_registers(&self.saved)?;
        }
        for signal in &self.held {
            self.tracee.send_again(self.pid, signal);
        }
        self.tracee.detach(0)
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        // An error means that the thread has ended.
        let _ = self.give_back();
    }
}
