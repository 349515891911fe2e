//! Requests to end the program: signals, and a panic or an abort in any thread.

use std::{
    fs, io,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, Ordering},
    },
};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ},
    flag,
};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::process::{abort, crash};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    Interrupt,
    Terminate,
    HangUp,
    Panic(String),
    /// No more memory, or an abort.
    Abort(String),
}

impl Cause {
    /// The exit code that shells expect for this cause.
    pub fn exit_code(&self) -> u8 {
        match self {
            Cause::Interrupt => 130,
            Cause::Terminate => 143,
            Cause::HangUp => 129,
            Cause::Panic(_) | Cause::Abort(_) => 1,
        }
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Cause::Interrupt => f.write_str("Ctrl-C"),
            Cause::Terminate => f.write_str("SIGTERM"),
            Cause::HangUp => f.write_str("SIGHUP: the terminal was closed"),
            Cause::Panic(text) | Cause::Abort(text) => f.write_str(text),
        }
    }
}

/// Set by a signal that ends the program, from [`Shutdown::listen`] on.
static REQUESTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Whether the program was asked to end. Unlike [`Shutdown::requested`] it can be asked at any time.
pub fn is_requested() -> bool {
    REQUESTED.load(Ordering::Acquire)
}

/// The program ends now, whatever waits for it.
pub fn request() {
    REQUESTED.store(true, Ordering::Release);
}

/// A file that reaches the limit on its size is an error of the write, not the end of the program. A handler does that, which
/// child processes do not inherit.
pub fn survive_file_size_limit() -> io::Result<()> {
    flag::register(SIGXFSZ, Arc::default()).map(drop)
}

/// Listens for signals from its creation on. A hang-up that is ignored, as nohup has it, stays ignored.
pub struct Shutdown {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Option<Signal>,
}

impl Shutdown {
    pub fn listen() -> io::Result<Shutdown> {
        static HANG_UP_IGNORED: LazyLock<bool> = LazyLock::new(|| is_ignored(SIGHUP));
        let hang_up = (!*HANG_UP_IGNORED).then_some(SIGHUP);
        // First: from the first handler on, a signal no longer ends the process.
        let shutdown = Shutdown {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: hang_up.map(|number| signal(SignalKind::from_raw(number))).transpose()?,
        };
        for number in [SIGINT, SIGTERM].into_iter().chain(hang_up) {
            flag::register(number, Arc::clone(&REQUESTED))?;
        }
        Ok(shutdown)
    }

    /// Waits for the first request to end.
    pub async fn requested(&mut self) -> Cause {
        let hang_up = async {
            match &mut self.hang_up {
                Some(hang_up) => hang_up.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => Cause::Interrupt,
            _ = self.terminate.recv() => Cause::Terminate,
            _ = hang_up => Cause::HangUp,
            text = crash::panicked() => Cause::Panic(text),
            text = abort::ending() => Cause::Abort(text),
        }
    }
}

/// Whether the program was started with this signal ignored.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}
