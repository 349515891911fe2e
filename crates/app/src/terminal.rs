//! The terminal while the program draws on it, and how it is restored.

use std::{
    io::{self, IsTerminal, Write},
    mem::ManuallyDrop,
    time::Duration,
};

use crossterm::{
    cursor,
    event::{DisableBracketedPaste, DisableMouseCapture, EnableBracketedPaste, EnableMouseCapture},
    queue,
    terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
};
use ratatui::{Terminal, backend::CrosstermBackend};

use super::bounded::Bounded;
use llmprof_base::process::{Outlet, abort, shutdown, stops};

pub type Screen = Terminal<Bounded<CrosstermBackend<Outlet>>>;

/// The time for the last frame when the screen closes; after that it is discarded.
const LAST_FRAME: Duration = Duration::from_millis(100);
/// Ends a truncated escape sequence.
const CANCEL: &[u8] = b"\x18";

/// Keeps the terminal in raw mode on the alternate screen; restores it when dropped, by return or by panic.
pub struct TerminalGuard {
    /// Never dropped: it would report on stderr that it cannot show the cursor, and panic if stderr is the terminal
    /// that is gone.
    pub screen: ManuallyDrop<Screen>,
    pub outlet: Outlet,
    mouse: bool,
}

impl TerminalGuard {
    pub fn enter(mouse: bool) -> io::Result<TerminalGuard> {
        let outlet = Outlet::open(io::stdout())?;
        abort::restore_terminal_by(restore_after_abort);
        let entered = take(outlet.clone(), mouse)
            .and_then(|()| Terminal::new(Bounded(CrosstermBackend::new(outlet.clone()))));
        match entered {
            Ok(screen) => Ok(TerminalGuard { screen: ManuallyDrop::new(screen), outlet, mouse }),
            Err(e) => {
                restore(outlet);
                Err(e)
            }
        }
    }

    /// Restores the terminal, stops the process, and takes the terminal again when the process continues.
    pub fn suspend(&mut self) -> io::Result<()> {
        restore(self.outlet.clone());
        stops::stop()?;
        self.take_again()
    }

    /// Takes the terminal after a stop: another program may have changed its modes and its content.
    pub fn take_again(&mut self) -> io::Result<()> {
        disable_raw_mode()?;
        take(self.outlet.clone(), self.mouse)?;
        // Clears it without `clear`, which would query the cursor's position and wait for the answer.
        let size = self.screen.size()?;
        self.screen.resize(size.into())
    }
}

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        restore(self.outlet.clone());
        // The screen has closed: what follows must not wait for a terminal that is not read.
        shutdown::request();
    }
}

fn take(mut outlet: Outlet, mouse: bool) -> io::Result<()> {
    enable_raw_mode()?;
    queue!(outlet, EnterAlternateScreen, EnableBracketedPaste, cursor::Hide)?;
    if mouse {
        queue!(outlet, EnableMouseCapture)?;
    }
    outlet.flush()
}

fn restore(mut outlet: Outlet) {
    if !outlet.write_within(LAST_FRAME).unwrap_or(false) {
        // Discarding the rest of the frame makes room for what follows.
        outlet.discard();
        let _ = outlet.write_all(CANCEL);
    }
    // Buffered in memory, so that none of these fails.
    let _ = queue!(outlet, DisableMouseCapture, DisableBracketedPaste, LeaveAlternateScreen, cursor::Show);
    let _ = outlet.flush();
    let _ = disable_raw_mode();
}

/// Like [`restore`], without allocations: writes what the terminal accepts at once.
fn restore_after_abort() {
    const SEQUENCES: &[u8] =
        b"\x18\x1b[?1006l\x1b[?1015l\x1b[?1003l\x1b[?1002l\x1b[?1000l\x1b[?2004l\x1b[?1049l\x1b[?25h";
    let _ = rustix::io::write(io::stdout(), SEQUENCES);
    let _ = disable_raw_mode();
}

/// Whether stdin and stdout are terminals.
pub fn is_there() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}
