//! Detects when the process was stopped by Ctrl-Z or SIGSTOP, and when it continued.

#![allow(unsafe_code)] // a signal handler

use std::{
    io,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::process::{Signal, getpid, kill_process};
use signal_hook::{consts::SIGCONT, low_level};

/// The origin of the handler's times.
static START: OnceLock<Instant> = OnceLock::new();
/// Nanoseconds from [`START`] to the last time the process continued; 0 if it was never stopped.
static WENT_ON_NS: AtomicU64 = AtomicU64::new(0);

/// Detects stops from now on.
pub fn watch() -> io::Result<()> {
    let mut watched = Ok(());
    START.get_or_init(|| {
        let start = Instant::now();
        // SAFETY: the handler reads the clock and stores a number, both of which are allowed in a signal handler.
        let handler = unsafe {
            low_level::register(SIGCONT, move || {
                WENT_ON_NS.store(start.elapsed().as_nanos() as u64, Ordering::Release);
            })
        };
        watched = handler.map(drop);
        start
    });
    watched
}

/// Reports each stop once.
#[derive(Debug)]
pub struct Stops {
    seen_ns: u64,
}

impl Default for Stops {
    /// Reports only stops from now on.
    fn default() -> Self {
        Stops { seen_ns: WENT_ON_NS.load(Ordering::Acquire) }
    }
}

impl Stops {
    /// How long ago the process continued after a stop that was not reported yet.
    pub fn unreported(&mut self) -> Option<Duration> {
        let went_on_ns = WENT_ON_NS.load(Ordering::Acquire);
        if went_on_ns == self.seen_ns {
            return None;
        }
        self.seen_ns = went_on_ns;
        Some(START.get()?.elapsed().saturating_sub(Duration::from_nanos(went_on_ns)))
    }
}

/// Stops the process until a signal continues it.
pub fn stop() -> io::Result<()> {
    Ok(kill_process(getpid(), Signal::STOP)?)
}
