//! Progress on stderr: a bar on a terminal, plain lines elsewhere.

use std::{
    io::{self, IsTerminal},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{
    base::foreign::{MAX_LINE, line},
    process::eprint_line,
    run::time_left::Estimate,
};

const LINE_INTERVAL: Duration = Duration::from_secs(2);

/// The progress of one piece of work.
pub enum ProgressLine {
    Bar(ProgressBar),
    Lines { label: String, printed: Option<Instant>, last: String },
    Quiet,
}

impl ProgressLine {
    /// `label` names the work, such as a job of a sweep; it may be empty.
    pub fn new(quiet: bool, label: &str) -> ProgressLine {
        if quiet {
            return ProgressLine::Quiet;
        }
        let named = !label.is_empty();
        let label = if named { format!("{label}  ") } else { String::new() };
        if !io::stderr().is_terminal() {
            // The first line names the work, so it is printed at once.
            let printed = (!named).then(Instant::now);
            return ProgressLine::Lines { label, printed, last: String::new() };
        }
        let bar = ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::stderr_with_hz(10));
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

    /// `time` and `left` are printed with a line, but alone they make no new one.
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

    pub fn clear(&self) {
        if let ProgressLine::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}
