//! Keys and mouse events, read on separate threads: crossterm never returns once the terminal is gone, and the event
//! loop must still close the run.

use std::{io, thread};

use crossterm::event::{self, Event};
use rustix::{
    event::{PollFd, PollFlags, poll},
    process::Signal,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
};

/// The input of the terminal.
#[derive(Debug)]
pub enum Input {
    /// A key, the mouse, pasted text or a new size.
    Event(Event),
    Failed(io::Error),
    /// The process is asked to stop.
    Suspend,
    /// The process continues after it was stopped.
    Resumed,
    /// The terminal is gone.
    HangUp,
}

/// Starts the threads, which end with the program. Call it within a runtime.
pub fn listen() -> io::Result<UnboundedReceiver<Input>> {
    let (tx, rx) = unbounded_channel();
    let hang_up = tx.clone();
    let mut stop = signal(SignalKind::from_raw(Signal::TSTP.as_raw()))?;
    let mut resume = signal(SignalKind::from_raw(Signal::CONT.as_raw()))?;
    let job_control = tx.clone();
    tokio::spawn(async move {
        loop {
            let input = tokio::select! {
                _ = stop.recv() => Input::Suspend,
                _ = resume.recv() => Input::Resumed,
            };
            if job_control.send(input).is_err() {
                return;
            }
        }
    });
    spawn("llmprof-input", move || read(&tx))?;
    spawn("llmprof-hang-up", move || {
        wait_for_hang_up();
        drop(hang_up.send(Input::HangUp));
    })?;
    Ok(rx)
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(work);
    spawned.map(drop).map_err(|e| {
        let words = format!("cannot start the thread {name}: {e}; raise the limit on processes (ulimit -u)");
        io::Error::new(e.kind(), words)
    })
}

fn read(tx: &UnboundedSender<Input>) {
    loop {
        let input = event::read().map_or_else(Input::Failed, Input::Event);
        let failed = matches!(input, Input::Failed(_));
        if tx.send(input).is_err() || failed {
            return;
        }
    }
}

/// `poll` reports a hang-up without being asked for it.
fn wait_for_hang_up() {
    let stdin = io::stdin();
    let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    let mut terminal = [PollFd::new(&stdin, PollFlags::empty())];
    while !terminal[0].revents().intersects(gone) {
        match poll(&mut terminal, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // If it cannot be polled, the signal has to suffice.
            Err(_) => loop {
                thread::park();
            },
        }
    }
}
