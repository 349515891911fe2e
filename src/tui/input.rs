//! Keys and mouse events, read on threads of their own: crossterm never returns once the terminal is gone, and the
//! event loop has a run to close.

use std::{io, thread};

use crossterm::event::{self, Event};
use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// What the terminal reports.
#[derive(Debug)]
pub enum Input {
    /// A key, the mouse, pasted text or a new size.
    Event(Event),
    Failed(io::Error),
    /// The terminal is gone.
    HangUp,
}

/// Starts to listen; the threads end with the program.
pub fn listen() -> io::Result<UnboundedReceiver<Input>> {
    let (tx, rx) = unbounded_channel();
    let hang_up = tx.clone();
    thread::Builder::new().name("llmprof-input".into()).spawn(move || read(&tx))?;
    thread::Builder::new().name("llmprof-hang-up".into()).spawn(move || {
        wait_for_hang_up();
        drop(hang_up.send(Input::HangUp));
    })?;
    Ok(rx)
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
            // Cannot be watched: the signal has to suffice.
            Err(_) => loop {
                thread::park();
            },
        }
    }
}
