//! Progress on stderr: a bar on a terminal, plain lines elsewhere.

use std::{
    io::{self, Write},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};
use rustix::termios::tcgetwinsize;

use crate::time_left::Estimate;
use llmprof_base::{
    foreign::{MAX_LINE, line},
    process::{Outlet, eprint_line, output::stderr_terminal},
};

const LINE_INTERVAL: Duration = Duration::from_secs(2);

/// The progress of one piece of work.
pub enum ProgressLine {
    Bar(ProgressBar),
    Lines { label: String, printed: Option<Instant>, last: String },
    Quiet,
}

impl ProgressLine {
    /// `label` names the work, e.g. a job of a sweep; it may be empty.
    pub fn new(quiet: bool, label: &str) -> ProgressLine {
        if quiet {
            return ProgressLine::Quiet;
        }
        let named = !label.is_empty();
        let label = if named { format!("{label}  ") } else { String::new() };
        let Some(terminal) = stderr_terminal() else {
            // The first line names the work, so it is printed at once.
            let printed = (!named).then(Instant::now);
            return ProgressLine::Lines { label, printed, last: String::new() };
        };
        let target = Box::new(BarTerminal { terminal, drawn: Mutex::default() });
        let bar =
            ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::term_like_with_hz(target, 10));
        if let Ok(style) = ProgressStyle::with_template("{prefix}{bar:30.cyan} {percent:>3} %  {msg}") {
            bar.set_style(style.progress_chars("━╸─"));
        }
        bar.set_prefix(line(&label, MAX_LINE));
        ProgressLine::Bar(bar)
    }

    /// The share done, for the bar.
    pub fn show_share(&self, share: f64) {
        if let ProgressLine::Bar(bar) = self {
            bar.set_position((share * 1000.0) as u64);
        }
    }

    /// `time` and `left` are printed with a line, but do not cause one.
    pub fn show(&mut self, text: String, time: &str, left: Option<Estimate>) {
        let left = left.map(|left| format!("  {left}")).unwrap_or_default();
        match self {
            ProgressLine::Quiet => {}
            ProgressLine::Bar(bar) => bar.set_message(line(&(text + &left), MAX_LINE)),
            ProgressLine::Lines { label, printed, last } => {
                if printed.is_none_or(|printed| printed.elapsed() >= LINE_INTERVAL) && text != *last {
                    eprint_line(format_args!("{label}{time}{text}{left}"));
                    (*printed, *last) = (Some(Instant::now()), text);
                }
            }
        }
    }

    /// Prints other text while the bar is hidden.
    pub fn pause(&self, print: impl FnOnce()) {
        match self {
            ProgressLine::Bar(bar) => bar.suspend(print),
            _ => print(),
        }
    }

    pub fn clear(&self) {
        if let ProgressLine::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

/// The terminal on which the bar is drawn. While the terminal is not read, the bar is not drawn.
#[derive(Debug)]
struct BarTerminal {
    terminal: &'static Outlet,
    drawn: Mutex<String>,
}

impl BarTerminal {
    fn draw(&self, text: &str) -> io::Result<()> {
        self.drawn.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
        Ok(())
    }

    fn move_cursor(&self, cells: usize, direction: char) -> io::Result<()> {
        if cells == 0 { Ok(()) } else { self.draw(&format!("\x1b[{cells}{direction}")) }
    }
}

impl TermLike for BarTerminal {
    fn width(&self) -> u16 {
        tcgetwinsize(io::stderr()).map_or(80, |size| size.ws_col)
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'A')
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'B')
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'C')
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'D')
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.draw(&format!("{text}\n"))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.draw(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.draw("\r\x1b[2K")
    }

    fn flush(&self) -> io::Result<()> {
        let drawn = std::mem::take(&mut *self.drawn.lock().unwrap_or_else(PoisonError::into_inner));
        let mut terminal = self.terminal.clone();
        if terminal.is_done()? {
            terminal.write_all(drawn.as_bytes())?;
            terminal.flush()?;
        }
        Ok(())
    }
}
