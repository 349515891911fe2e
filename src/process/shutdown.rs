//! Why the program has to end now: a signal, or a panic somewhere.

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
    /// What a shell expects of a program that ended so.
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
            Cause::HangUp => f.write_str("SIGHUP: the terminal went away"),
            Cause::Panic(text) => f.write_str(text),
        }
    }
}

/// Listens from the moment it is made.
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

    /// Waits for the first reason to end.
    pub async fn requested(&mut self) -> Cause {
        tokio::select! {
            _ = self.interrupt.recv() => Cause::Interrupt,
            _ = self.terminate.recv() => Cause::Terminate,
            _ = self.hang_up.recv() => Cause::HangUp,
            text = crash::panicked() => Cause::Panic(text),
        }
    }
}
