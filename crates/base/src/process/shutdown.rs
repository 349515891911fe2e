//! Requests to end the program: signals, and a panic or an abort in any thread.

use std::{
    fs, io,
    sync::{
        Arc, LazyLock, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use nix::{
    errno::Errno,
    sys::signal::{SigSet, SigmaskHow, Signal as SignalNumber},
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ},
    flag,
};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::process::{abort, crash};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// Ctrl-C at the terminal, which the whole foreground process group receives.
    Interrupt,
    /// SIGINT that another process sent only to this one.
    InterruptSent,
    Terminate,
    HangUp,
    Panic(String),
    /// Memory is exhausted, or a thread aborted.
    Abort(String),
}

impl Cause {
    /// The exit code that shells expect for this cause.
    pub fn exit_code(&self) -> u8 {
        match self {
            Cause::Interrupt | Cause::InterruptSent => 130,
            Cause::Terminate => 143,
            Cause::HangUp => 129,
            Cause::Panic(_) | Cause::Abort(_) => 1,
        }
    }
}

impl Cause {
    /// The signal, if another process sent it.
    pub fn signal(&self) -> Option<rustix::process::Signal> {
        use rustix::process::Signal;
        match self {
            Cause::InterruptSent => Some(Signal::INT),
            Cause::Terminate => Some(Signal::TERM),
            Cause::HangUp => Some(Signal::HUP),
            Cause::Interrupt | Cause::Panic(_) | Cause::Abort(_) => None,
        }
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Cause::Interrupt => f.write_str("Ctrl-C"),
            Cause::InterruptSent => f.write_str("SIGINT"),
            Cause::Terminate => f.write_str("SIGTERM"),
            Cause::HangUp => f.write_str("SIGHUP: the terminal was closed"),
            Cause::Panic(text) | Cause::Abort(text) => f.write_str(text),
        }
    }
}

/// Whether the last SIGINT came from the terminal.
static BY_TERMINAL: AtomicBool = AtomicBool::new(true);

/// Records the origin of SIGINT: the kernel sends it for the terminal, another process sends it itself.
#[allow(unsafe_code)]
fn note_origin_of_interrupts() -> io::Result<()> {
    /// `SI_KERNEL`.
    const BY_KERNEL: i32 = 0x80;
    static NOTED: OnceLock<()> = OnceLock::new();
    if NOTED.set(()).is_err() {
        return Ok(());
    }
    // SAFETY: the handler reads a field and stores a flag, both of which are allowed in a signal handler.
    let handler = unsafe {
        signal_hook_registry::register_sigaction(SIGINT, |origin| {
            BY_TERMINAL.store(origin.si_code == BY_KERNEL, Ordering::Release);
        })
    };
    handler.map(drop)
}

/// Set by a signal that ends the program, from [`Shutdown::listen`] on.
static REQUESTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Whether a request to end was made. Unlike [`Shutdown::requested`], it can be called at any time.
pub fn is_requested() -> bool {
    REQUESTED.load(Ordering::Acquire)
}

/// Requests the end of the program, whatever it waits for.
pub fn request() {
    REQUESTED.store(true, Ordering::Release);
}

/// Makes a write beyond the file size limit an error instead of the end of the program. The handler is not inherited by
/// child processes.
pub fn survive_file_size_limit() -> io::Result<()> {
    flag::register(SIGXFSZ, Arc::default()).map(drop)
}

/// Listens for signals from its creation on. If SIGHUP is ignored at the start, as under nohup, it stays ignored.
pub struct Shutdown {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Option<Signal>,
}

fn number_of(number: i32) -> Result<SignalNumber, Errno> {
    SignalNumber::try_from(number)
}

impl Shutdown {
    pub fn listen() -> io::Result<Shutdown> {
        static HANG_UP_IGNORED: LazyLock<bool> = LazyLock::new(|| is_ignored(SIGHUP));
        let hang_up = (!*HANG_UP_IGNORED).then_some(SIGHUP);
        // A signal between two registrations would be lost, so signals are blocked until all handlers are registered.
        let awaited: SigSet = [Some(SIGINT), Some(SIGTERM), hang_up]
            .into_iter()
            .flatten()
            .map(number_of)
            .collect::<Result<_, _>>()?;
        let before = awaited.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        // Registered before the one that wakes: handlers run in order.
        note_origin_of_interrupts()?;
        let shutdown = Shutdown {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: hang_up.map(|number| signal(SignalKind::from_raw(number))).transpose()?,
        };
        for number in [SIGINT, SIGTERM].into_iter().chain(hang_up) {
            flag::register(number, Arc::clone(&REQUESTED))?;
        }
        before.thread_set_mask()?;
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
            _ = self.interrupt.recv() => match BY_TERMINAL.load(Ordering::Acquire) {
                true => Cause::Interrupt,
                false => Cause::InterruptSent,
            },
            _ = self.terminate.recv() => Cause::Terminate,
            _ = hang_up => Cause::HangUp,
            text = crash::panicked() => Cause::Panic(text),
            text = abort::ending() => Cause::Abort(text),
        }
    }
}

/// Signals that are meaningful to a followed program and ignored by this one.
pub struct Relayed([Signal; 2]);

impl Relayed {
    pub fn listen() -> io::Result<Relayed> {
        Ok(Relayed([signal(SignalKind::user_defined1())?, signal(SignalKind::user_defined2())?]))
    }

    /// Waits for the next of these signals.
    pub async fn next(&mut self) -> rustix::process::Signal {
        let [first, second] = &mut self.0;
        tokio::select! {
            _ = first.recv() => rustix::process::Signal::USR1,
            _ = second.recv() => rustix::process::Signal::USR2,
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
