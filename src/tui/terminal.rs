//! The terminal while the program draws on it, and how it is restored.

use std::{
    io::{self, IsTerminal, Stdout, Write},
    mem::ManuallyDrop,
};

use crossterm::{
    cursor,
    event::{DisableBracketedPaste, DisableMouseCapture, EnableBracketedPaste, EnableMouseCapture},
    execute,
    terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
};
use ratatui::{Terminal, backend::CrosstermBackend};

pub type Screen = Terminal<CrosstermBackend<Stdout>>;

/// Keeps the terminal in raw mode on the alternate screen; restores it when dropped, by return or by panic.
pub struct TerminalGuard {
    /// Never dropped: it would report on stderr that it cannot show the cursor, and panic if stderr is the
    /// terminal that is gone.
    pub screen: ManuallyDrop<Screen>,
}

impl TerminalGuard {
    pub fn enter(mouse: bool) -> io::Result<TerminalGuard> {
        enable_raw_mode()?;
        let entered = execute!(io::stdout(), EnterAlternateScreen, EnableBracketedPaste, cursor::Hide)
            .and_then(|()| if mouse { execute!(io::stdout(), EnableMouseCapture) } else { Ok(()) })
            .and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        match entered {
            Ok(screen) => Ok(TerminalGuard { screen: ManuallyDrop::new(screen) }),
            Err(e) => {
                restore();
                Err(e)
            }
        }
    }
}

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    // One by one: if one fails, the others are still tried.
    let mut out = io::stdout();
    let _ = execute!(out, DisableMouseCapture);
    let _ = execute!(out, DisableBracketedPaste);
    let _ = execute!(out, LeaveAlternateScreen);
    let _ = execute!(out, cursor::Show);
    let _ = disable_raw_mode();
    let _ = out.flush();
}

/// Whether stdin and stdout are terminals.
pub fn is_there() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}
