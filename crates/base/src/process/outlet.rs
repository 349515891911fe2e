//! Output to a terminal that may not be read, e.g. that of a hung connection. It never blocks the caller for long.

use std::{
    io::{self, Write},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags, open},
    io::Errno,
    termios::{QueueSelector, tcflush},
};

/// Longest wait for a terminal that reads slowly.
const PATIENCE: Duration = Duration::from_millis(20);
/// Maximum pending bytes; beyond this the terminal is not waited for.
const MAX_PENDING: usize = 1 << 20;

/// A terminal that is written to without blocking. Bytes that it does not accept stay pending. Clones share it.
#[derive(Debug, Clone)]
pub struct Outlet(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    terminal: OwnedFd,
    pending: Vec<u8>,
}

impl Outlet {
    /// The terminal behind `stream`, opened once more: other programs share `stream`, and would not expect it to be
    /// non-blocking.
    pub fn open(stream: impl AsFd) -> io::Result<Outlet> {
        let own = format!("/proc/self/fd/{}", stream.as_fd().as_raw_fd());
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = open(own, flags, Mode::empty())
            // Another user's terminal, after su.
            .or_else(|_| open("/dev/tty", flags, Mode::empty()))
            .or_else(|_| rustix::io::fcntl_dupfd_cloexec(stream.as_fd(), 3))?;
        Ok(Outlet(Arc::new(Mutex::new(State { terminal, pending: Vec::new() }))))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether everything has reached the terminal.
    pub fn is_done(&self) -> io::Result<bool> {
        self.write_within(Duration::ZERO)
    }

    /// Writes what the terminal accepts within `limit`. Returns whether that was everything.
    pub fn write_within(&self, limit: Duration) -> io::Result<bool> {
        self.state().write_within(limit)
    }

    /// Drops what is pending, and what the terminal has not read yet.
    pub fn discard(&self) {
        let mut state = self.state();
        state.pending.clear();
        let _ = tcflush(&state.terminal, QueueSelector::OFlush);
    }
}

impl State {
    fn write_within(&mut self, limit: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + limit;
        let mut written = 0;
        let result = loop {
            if written == self.pending.len() {
                break Ok(true);
            }
            match rustix::io::write(&self.terminal, &self.pending[written..]) {
                Ok(n) => written += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => match deadline.checked_duration_since(Instant::now()) {
                    Some(left) if !left.is_zero() => wait_for_room(&self.terminal, left),
                    _ => break Ok(false),
                },
                Err(e) => {
                    // The terminal is gone: the rest will never be written.
                    written = self.pending.len();
                    break Err(e.into());
                }
            }
        };
        self.pending.drain(..written);
        result
    }
}

fn wait_for_room(terminal: &OwnedFd, limit: Duration) {
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    // An interrupted or failed wait counts as a short one.
    let _ = poll(&mut [PollFd::new(terminal, PollFlags::OUT)], Some(&limit));
}

impl Write for Outlet {
    /// Accepts all bytes, for the next flush. If megabytes are pending, the rest is dropped.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.state();
        if state.pending.len() < MAX_PENDING {
            state.pending.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    /// Writes what the terminal accepts at once. The rest stays pending.
    fn flush(&mut self) -> io::Result<()> {
        self.write_within(PATIENCE).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn unread_output_stays_pending_and_arrives_later() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut outlet = Outlet::open(&writer).unwrap();
        drop(writer);
        let frame: Vec<u8> = (0..1_000_000_u32).map(|i| i as u8).collect();
        outlet.write_all(&frame).unwrap();
        outlet.flush().unwrap();
        assert!(!outlet.is_done().unwrap());
        // One more frame exceeds the limit of pending bytes.
        outlet.write_all(&frame).unwrap();
        outlet.write_all(b"lost").unwrap();
        let read = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).unwrap();
            bytes
        });
        while !outlet.write_within(Duration::from_secs(1)).unwrap() {}
        drop(outlet);
        assert_eq!(read.join().unwrap(), [frame.clone(), frame].concat());
    }

    #[test]
    fn without_a_reader_nothing_stays_pending() {
        let (reader, writer) = io::pipe().unwrap();
        let mut outlet = Outlet::open(&writer).unwrap();
        drop(reader);
        outlet.write_all(b"text").unwrap();
        assert_eq!(outlet.is_done().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert!(outlet.is_done().unwrap());
    }
}
