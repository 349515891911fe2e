//! Text on stdout and stderr. A terminal that is not read neither stops a run nor delays the end of the program for
//! long.

use std::{
    fmt::Display,
    io::{self, IsTerminal, Write},
    sync::LazyLock,
    time::{Duration, Instant},
};

use super::{Outlet, shutdown};
use crate::foreign::{Lines, message};

/// Longest wait for the terminal after a request to end.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// The character that rings the terminal's bell.
pub const BELL: &[u8] = b"\x07";
/// Interval between two checks for a request to end.
const CHECK: Duration = Duration::from_millis(50);

/// Stderr, if it is a terminal.
pub fn stderr_terminal() -> Option<&'static Outlet> {
    static STDERR: LazyLock<Option<Outlet>> =
        LazyLock::new(|| io::stderr().is_terminal().then(|| Outlet::open(io::stderr()).ok()).flatten());
    STDERR.as_ref()
}

/// Prints one line to stderr, sanitised: paths and messages may be untrusted. Unlike `eprintln!` it does not panic if
/// stderr is closed: a run continues without a reader.
pub fn eprint_line(text: impl Display) {
    eprint_lines(message(&text.to_string()));
}

/// Rings the bell of the terminal, if stderr is one.
pub fn ring_stderr() {
    if let Some(mut terminal) = stderr_terminal().cloned() {
        let _ = terminal.write_all(BELL).and_then(|()| terminal.flush());
    }
}

/// Prints a text of several lines to stderr.
pub fn eprint_lines(text: impl Display) {
    let line = format!("{}\n", Lines(text));
    let _ = match stderr_terminal().cloned() {
        Some(mut terminal) => terminal.write_all(line.as_bytes()).and_then(|()| terminal.flush()),
        None => io::stderr().write_all(line.as_bytes()),
    };
}

/// Waits until stderr has accepted everything. Call it before the program ends.
pub fn finish_stderr() {
    let _ = stderr_terminal().map_or(Ok(()), finish);
}

/// Prints `text` to stdout.
pub fn print(text: &str) -> io::Result<()> {
    if !io::stdout().is_terminal() {
        let mut out = io::stdout().lock();
        return out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
    let mut terminal = Outlet::open(io::stdout())?;
    terminal.write_all(text.as_bytes())?;
    finish(&terminal)
}

/// Waits until `terminal` has accepted everything, but only briefly after a request to end.
fn finish(terminal: &Outlet) -> io::Result<()> {
    let mut asked: Option<Instant> = None;
    while !terminal.write_within(CHECK)? {
        if shutdown::is_requested() && asked.get_or_insert_with(Instant::now).elapsed() > LAST_WORDS {
            break;
        }
    }
    Ok(())
}
