//! Download progress on stderr: bars for each file and in total on a terminal, plain lines elsewhere.

use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use llmprof_base::{
    foreign::{MAX_LINE, line},
    units,
};

const LINE_INTERVAL: Duration = Duration::from_secs(5);
const STYLE: &str = "{msg:32!} {bar:24.cyan} {bytes:>10} of {total_bytes:<10} {bytes_per_sec:>12} {eta:>4}";

/// The progress of a download of `total` bytes in several files.
pub(super) struct Progress {
    output: Output,
    total: u64,
}

enum Output {
    Bars { bars: MultiProgress, all: ProgressBar },
    Lines(Mutex<Lines>),
    Quiet,
}

struct Lines {
    present: u64,
    last_line: Instant,
}

/// The progress of one file.
pub(super) struct FileProgress<'a> {
    progress: &'a Progress,
    name: String,
    bar: Option<ProgressBar>,
    present: u64,
}

impl Progress {
    pub(super) fn new(total: u64, quiet: bool) -> Progress {
        let output = if quiet {
            Output::Quiet
        } else if io::stderr().is_terminal() {
            let bars = MultiProgress::new();
            let all = bars.add(styled_bar(total, "all"));
            Output::Bars { bars, all }
        } else {
            Output::Lines(Mutex::new(Lines { present: 0, last_line: Instant::now() }))
        };
        Progress { output, total }
    }

    pub(super) fn file(&self, name: &str, size: u64) -> FileProgress<'_> {
        let name = &line(name, MAX_LINE);
        let bar = match &self.output {
            Output::Bars { bars, all } => Some(bars.insert_before(all, styled_bar(size, name))),
            _ => None,
        };
        FileProgress { progress: self, name: name.to_owned(), bar, present: 0 }
    }

    /// Removes the bars.
    pub(super) fn clear(&self) {
        if let Output::Bars { bars, .. } = &self.output {
            // A bar that remains does no harm.
            let _ = bars.clear();
        }
    }
}

fn styled_bar(size: u64, name: &str) -> ProgressBar {
    let bar = ProgressBar::new(size);
    if let Ok(style) = ProgressStyle::with_template(STYLE) {
        bar.set_style(style.progress_chars("━╸─"));
    }
    bar.set_message(name.to_owned());
    bar
}

impl FileProgress<'_> {
    /// Sets the bytes of the file that are present. They fall when a download starts again.
    pub(super) fn set(&mut self, present: u64) {
        let before = std::mem::replace(&mut self.present, present);
        match &self.progress.output {
            Output::Bars { all, .. } => {
                all.inc(present.saturating_sub(before));
                all.dec(before.saturating_sub(present));
                if let Some(bar) = &self.bar {
                    bar.set_position(present);
                }
            }
            Output::Lines(lines) => {
                let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                lines.present = (lines.present + present).saturating_sub(before);
                if lines.last_line.elapsed() >= LINE_INTERVAL {
                    lines.last_line = Instant::now();
                    let (present, total) = (units::bytes(lines.present), units::bytes(self.progress.total));
                    eprintln!("{present} of {total}, now {}", self.name);
                }
            }
            Output::Quiet => {}
        }
    }

    pub(super) fn finish(self) {
        if let Some(bar) = &self.bar {
            bar.finish();
        } else if !matches!(self.progress.output, Output::Quiet) {
            eprintln!("{} {}", self.name, units::bytes(self.present));
        }
    }
}
