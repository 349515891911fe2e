//! Questions on the terminal.

use std::io::{self, IsTerminal, Write};

use llmprof_base::foreign::Lines;

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAnswer {
    #[error("not a terminal: pass --yes")]
    NotATerminal,
    #[error("cannot read the answer: {0}")]
    Unreadable(#[from] io::Error),
}

/// Asks on the terminal. Anything but yes is no.
pub(super) fn ask(question: &str) -> Result<bool, NoAnswer> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(NoAnswer::NotATerminal);
    }
    let mut out = io::stderr();
    write!(out, "{} [y/N] ", Lines(question)).and_then(|()| out.flush())?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
