//! Progress of downloads on stderr: a bar for each file and one for all on a terminal, plain lines elsewhere.

use std::cell::RefCell;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::base::units;

const BETWEEN_LINES: Duration = Duration::from_secs(5);
const STYLE: &str = "{msg:32!} {bar:24.cyan} {bytes:>10} of {total_bytes:<10} {bytes_per_sec:>12} {eta:>4}";

/// Shows how far `total` bytes in some files have come.
pub(super) struct Progress {
    look: Look,
    total: u64,
}

enum Look {
    Bars { bars: MultiProgress, all: ProgressBar },
    Lines(RefCell<Lines>),
    Quiet,
}

struct Lines {
    came: u64,
    said: Instant,
}

/// One file's share of it.
pub(super) struct FileProgress<'a> {
    of: &'a Progress,
    name: String,
    bar: Option<ProgressBar>,
    came: u64,
}

impl Progress {
    pub(super) fn new(total: u64, quiet: bool) -> Progress {
        let look = if quiet {
            Look::Quiet
        } else if io::stderr().is_terminal() {
            let bars = MultiProgress::new();
            let all = bars.add(styled(total, "all"));
            Look::Bars { bars, all }
        } else {
            Look::Lines(RefCell::new(Lines { came: 0, said: Instant::now() }))
        };
        Progress { look, total }
    }

    pub(super) fn file(&self, name: &str, size: u64) -> FileProgress<'_> {
        let bar = match &self.look {
            Look::Bars { bars, all } => Some(bars.insert_before(all, styled(size, name))),
            _ => None,
        };
        FileProgress { of: self, name: name.to_owned(), bar, came: 0 }
    }

    pub(super) fn end(&self) {
        if let Look::Bars { bars, .. } = &self.look {
            // Nothing depends on the bars going away.
            let _ = bars.clear();
        }
    }
}

fn styled(size: u64, name: &str) -> ProgressBar {
    let bar = ProgressBar::new(size);
    if let Ok(style) = ProgressStyle::with_template(STYLE) {
        bar.set_style(style.progress_chars("━╸─"));
    }
    bar.set_message(name.to_owned());
    bar
}

impl FileProgress<'_> {
    /// `have` bytes of the file are there; fewer than before when it began anew.
    pub(super) fn at(&mut self, have: u64) {
        let before = std::mem::replace(&mut self.came, have);
        match &self.of.look {
            Look::Bars { all, .. } => {
                all.set_position((all.position() + have).saturating_sub(before));
                if let Some(bar) = &self.bar {
                    bar.set_position(have);
                }
            }
            Look::Lines(lines) => {
                let mut lines = lines.borrow_mut();
                lines.came = (lines.came + have).saturating_sub(before);
                if lines.said.elapsed() >= BETWEEN_LINES {
                    lines.said = Instant::now();
                    let (came, total) = (units::bytes(lines.came), units::bytes(self.of.total));
                    eprintln!("{came} of {total}, at {}", self.name);
                }
            }
            Look::Quiet => {}
        }
    }

    pub(super) fn done(self) {
        if let Some(bar) = &self.bar {
            bar.finish();
        } else if !matches!(self.of.look, Look::Quiet) {
            eprintln!("{} {}", self.name, units::bytes(self.came));
        }
    }
}
