//! What the user does, heard outside of the loop: on a terminal that went away crossterm reads for ever and
//! never returns, and the loop has a run to close.

use std::{io, thread};

use crossterm::event::{self, Event};
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use rustix::event::{PollFd, PollFlags, poll};

/// Keys, mouse and sizes as they come. It ends when the terminal has gone.
pub type Heard = UnboundedReceiver<io::Result<Event>>;

/// Listens from now on; the threads behind it end with the program.
pub fn listen() -> io::Result<Heard> {
    let (tx, rx) = unbounded();
    let watch = tx.clone();
    thread::Builder::new().name("llmprof-input".into()).spawn(move || read(&tx))?;
    thread::Builder::new().name("llmprof-hang-up".into()).spawn(move || {
        wait_for_hang_up();
        watch.close_channel();
    })?;
    Ok(rx)
}

fn read(tx: &UnboundedSender<io::Result<Event>>) {
    loop {
        let heard = event::read();
        let failed = heard.is_err();
        if tx.unbounded_send(heard).is_err() || failed {
            return;
        }
    }
}

/// A hang-up is reported without being asked for, so nothing else is.
fn wait_for_hang_up() {
    let stdin = io::stdin();
    let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    let mut terminal = [PollFd::new(&stdin, PollFlags::empty())];
    while !terminal[0].revents().intersects(gone) {
        match poll(&mut terminal, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // Not to be watched: the signal has to do.
            Err(_) => loop {
                thread::park();
            },
        }
    }
}
