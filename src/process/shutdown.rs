//! Requests to end the program: signals, and a panic in any thread.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::process::crash;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    Interrupt,
    Terminate,
    HangUp,
    Panic(String),
}

impl Cause {
    /// The exit code that shells expect for this cause.
    pub fn exit_code(&self) -> u8 {
        match self {
            Cause::Interrupt => 130,
            Cause::Terminate => 143,
            Cause::HangUp => 129,
            Cause::Panic(_) => 1,
        }
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Cause::Interrupt => f.write_str("Ctrl-C"),
            Cause::Terminate => f.write_str("SIGTERM"),
            Cause::HangUp => f.write_str("SIGHUP: the terminal was closed"),
            Cause::Panic(text) => f.write_str(text),
        }
    }
}

/// Listens for signals from its creation on.
pub struct Shutdown {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Shutdown {
    pub fn listen() -> io::Result<Shutdown> {
        Ok(Shutdown {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the first request to end.
    pub async fn requested(&mut self) -> Cause {
        tokio::select! {
            _ = self.interrupt.recv() => Cause::Interrupt,
            _ = self.terminate.recv() => Cause::Terminate,
            _ = self.hang_up.recv() => Cause::HangUp,
            text = crash::panicked() => Cause::Panic(text),
        }
    }
}
