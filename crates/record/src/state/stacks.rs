//! Where the Python threads of a followed program were, by samples, and where while the GPU was idle.

use std::{collections::BTreeMap, fmt};

use llmprof_base::units::percent;
use llmprof_event::{HostActivity, HostRow, HostStacks};

/// Maximum number of lines; samples of further ones are only counted.
const KEPT: usize = 4096;
/// A thread that waits in one line in this share of its samples does nothing for the program.
const PARKED: f64 = 0.98;
/// Idle samples below which their shares say nothing.
const FEW: u64 = 20;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    thread: String,
    state: HostActivity,
    line: String,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    samples: u64,
    idle: u64,
}

#[derive(Debug, Clone, Default)]
pub struct Stacks {
    samples: u64,
    recorded: u64,
    idle: u64,
    places: BTreeMap<Place, Counts>,
}

/// A line of the program's code, and how often a thread was there.
#[derive(Debug, Clone, PartialEq)]
pub struct HostLine<'a> {
    pub thread: &'a str,
    pub state: &'a HostActivity,
    pub line: &'a str,
    /// The share of all samples.
    pub share: f64,
    /// The share of the samples while the GPU was idle, if there are enough.
    pub idle_share: Option<f64>,
}

impl fmt::Display for HostLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = percent(100.0 * self.idle_share.unwrap_or(self.share));
        write!(f, "thread {} was {} in {} for {share} of the time", self.thread, self.state, self.line)
    }
}

impl Stacks {
    pub fn is_there(&self) -> bool {
        self.samples > 0
    }

    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The number of samples while the GPU was idle, and of all samples while kernels were recorded.
    pub fn idle(&self) -> Option<(u64, u64)> {
        (self.idle >= FEW).then_some((self.idle, self.recorded))
    }

    pub(super) fn add(&mut self, window: &HostStacks) {
        self.samples += u64::from(window.samples);
        self.recorded += u64::from(window.recorded);
        self.idle += u64::from(window.idle);
        for HostRow { thread, state, line, samples, idle } in &window.rows {
            let place = Place { thread: thread.clone(), state: state.clone(), line: line.clone() };
            if self.places.len() >= KEPT && !self.places.contains_key(&place) {
                continue;
            }
            let counts = self.places.entry(place).or_default();
            counts.samples += u64::from(*samples);
            counts.idle += u64::from(*idle);
        }
    }

    /// The lines by their share while the GPU was idle, or of all samples if that is not known. Threads that only wait
    /// are left out.
    pub fn lines(&self) -> Vec<HostLine<'_>> {
        let idle = self.idle();
        let is_parked = |place: &Place, counts: &Counts| {
            let waits = !matches!(place.state, HostActivity::RunningPython | HostActivity::RunningNative);
            waits && counts.samples as f64 >= PARKED * self.samples as f64
        };
        let shown = self.places.iter().filter(|(place, counts)| !is_parked(place, counts));
        let mut lines: Vec<HostLine<'_>> = shown
            .map(|(place, counts)| HostLine {
                thread: &place.thread,
                state: &place.state,
                line: &place.line,
                share: counts.samples as f64 / self.samples.max(1) as f64,
                idle_share: idle.map(|(idle, _)| counts.idle as f64 / idle as f64),
            })
            .collect();
        let key = |line: &HostLine<'_>| (line.idle_share.unwrap_or(line.share), line.share);
        lines.sort_by(|a, b| key(b).partial_cmp(&key(a)).unwrap_or(std::cmp::Ordering::Equal));
        lines
    }

    /// What two threads did most while the GPU was idle, in a sentence.
    pub fn idle_text(&self) -> Option<String> {
        self.idle()?;
        let lines = self.lines();
        let first = lines.first()?;
        let second = lines.iter().find(|line| line.thread != first.thread);
        let texts: Vec<String> =
            [Some(first), second].into_iter().flatten().map(ToString::to_string).collect();
        Some(format!("While the GPU was idle, {}.", texts.join(", and ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(thread: &str, state: HostActivity, line: &str, samples: u32, idle: u32) -> HostRow {
        HostRow { thread: thread.to_owned(), state, line: line.to_owned(), samples, idle }
    }

    fn window(samples: u32, idle: u32, rows: Vec<HostRow>) -> HostStacks {
        HostStacks { pid: 7, samples, recorded: samples, idle, rows }
    }

    #[test]
    fn lines_are_ordered_by_what_they_cost_the_gpu() {
        let mut stacks = Stacks::default();
        for _ in 0..2 {
            stacks.add(&window(
                50,
                20,
                vec![
                    row("main", HostActivity::WaitingForGpu, "run.py:9 step", 30, 2),
                    row("main", HostActivity::RunningPython, "run.py:5 schedule", 20, 18),
                    row("io", HostActivity::SystemCall, "zmq.py:1 poll", 50, 20),
                ],
            ));
        }
        let lines = stacks.lines();
        let found: Vec<(&str, Option<f64>, f64)> =
            lines.iter().map(|line| (line.line, line.idle_share, line.share)).collect();
        assert_eq!(found, [("run.py:5 schedule", Some(0.9), 0.4), ("run.py:9 step", Some(0.1), 0.6)]);
        assert_eq!(
            stacks.idle_text().unwrap(),
            "While the GPU was idle, thread main was running Python in run.py:5 schedule for 90 % of the time."
        );
    }

    #[test]
    fn without_idle_samples_lines_are_ordered_by_time() {
        let mut stacks = Stacks::default();
        assert!(!stacks.is_there() && stacks.lines().is_empty() && stacks.idle_text().is_none());
        let rows = vec![
            row("main", HostActivity::Sleeping, "a.py:1 f", 3, 0),
            row("main", HostActivity::RunningNative, "a.py:2 f", 7, 0),
        ];
        stacks.add(&HostStacks { recorded: 0, ..window(10, 0, rows) });
        assert_eq!(stacks.lines()[0].line, "a.py:2 f");
        assert_eq!((stacks.lines()[0].idle_share, stacks.idle_text()), (None, None));
    }

    #[test]
    fn the_number_of_lines_is_bounded() {
        let mut stacks = Stacks::default();
        for n in 0..3 * KEPT as u32 {
            let line = format!("a.py:{n} f");
            stacks.add(&window(1, 1, vec![row("main", HostActivity::RunningPython, &line, 1, 1)]));
        }
        assert_eq!(stacks.lines().len(), KEPT);
    }
}
