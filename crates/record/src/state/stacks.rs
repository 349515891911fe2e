//! Where the Python threads of a followed program were, by samples, and where while the GPU was idle.

use std::{collections::BTreeMap, fmt};

use llmprof_base::units::percent;
use llmprof_event::{HostActivity, HostRow, HostStacks, Stamp};

/// Maximum number of lines; samples of further ones are only counted.
const KEPT: usize = 4096;
const MAX_PROCESSES: usize = 256;
/// A thread that waits in one line in this share of its samples does nothing for the program.
const PARKED: f64 = 0.98;
/// Idle samples below which their shares say nothing.
const FEW: u64 = 20;
/// Lines below this share of the idle time are not worth a sentence.
const WORTH: f64 = 0.1;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct LineKey {
    pid: u32,
    thread: String,
    state: HostActivity,
    line: String,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    samples: u64,
    idle: u64,
}

/// The samples of a process.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    samples: u64,
    recorded: u64,
    idle: u64,
}

#[derive(Debug, Clone, Default)]
pub struct Stacks {
    processes: BTreeMap<u32, Totals>,
    places: BTreeMap<LineKey, Counts>,
}

/// A line of the program's code, and how often a thread was there.
#[derive(Debug, Clone, PartialEq)]
pub struct HostLine<'a> {
    /// With the process, if there are several.
    pub thread: String,
    pub state: &'a HostActivity,
    pub line: &'a str,
    /// The share of all samples of its process.
    pub share: f64,
    /// The share of the samples in which its GPU was idle, if there are enough.
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
        !self.processes.is_empty()
    }

    pub fn samples(&self) -> u64 {
        self.processes.values().map(|totals| totals.samples).sum()
    }

    /// The number of samples while a GPU was idle, and of all samples for which that is known.
    pub fn idle(&self) -> Option<(u64, u64)> {
        let idle = self.processes.values().map(|totals| totals.idle).sum();
        (idle >= FEW).then(|| (idle, self.processes.values().map(|totals| totals.recorded).sum()))
    }

    pub(super) fn window(&mut self, _: Stamp, window: &HostStacks) {
        if self.processes.len() >= MAX_PROCESSES && !self.processes.contains_key(&window.pid) {
            return;
        }
        let totals = self.processes.entry(window.pid).or_default();
        totals.samples += u64::from(window.samples);
        totals.recorded += u64::from(window.recorded);
        totals.idle += u64::from(window.idle);
        for HostRow { thread, state, line, samples, idle } in &window.rows {
            let (thread, state, line) = (thread.clone(), state.clone(), line.clone());
            let place = LineKey { pid: window.pid, thread, state, line };
            if self.places.len() >= KEPT && !self.places.contains_key(&place) {
                continue;
            }
            let counts = self.places.entry(place).or_default();
            counts.samples += u64::from(*samples);
            counts.idle += u64::from(*idle);
        }
    }

    /// The lines by their share while the GPU was idle, or of all samples if that is not known. Threads that only wait
    /// are left out, but the main one.
    pub fn lines(&self) -> Vec<HostLine<'_>> {
        let mut threads: BTreeMap<(u32, &str), u64> = BTreeMap::new();
        for (place, counts) in &self.places {
            *threads.entry((place.pid, &place.thread)).or_default() += counts.samples;
        }
        let is_parked = |place: &LineKey, counts: &Counts| {
            let of_thread = threads.get(&(place.pid, place.thread.as_str())).copied().unwrap_or(0);
            let waits = matches!(
                place.state,
                HostActivity::SystemCall | HostActivity::Sleeping | HostActivity::WaitingForLock
            );
            place.thread != "main" && waits && counts.samples as f64 >= PARKED * of_thread as f64
        };
        let shown = self.places.iter().filter(|(place, counts)| !is_parked(place, counts));
        let mut lines: Vec<HostLine<'_>> = shown.map(|(place, counts)| self.line(place, *counts)).collect();
        let key = |line: &HostLine<'_>| (line.idle_share.unwrap_or(0.0), line.share);
        lines.sort_by(|a, b| key(b).partial_cmp(&key(a)).unwrap_or(std::cmp::Ordering::Equal));
        lines
    }

    fn line<'a>(&self, place: &'a LineKey, counts: Counts) -> HostLine<'a> {
        let totals = self.processes.get(&place.pid).copied().unwrap_or_default();
        let thread = match self.processes.len() {
            0 | 1 => place.thread.clone(),
            _ => format!("{} of {}", place.thread, place.pid),
        };
        HostLine {
            thread,
            state: &place.state,
            line: &place.line,
            share: counts.samples as f64 / totals.samples.max(1) as f64,
            idle_share: (totals.idle >= FEW).then(|| counts.idle as f64 / totals.idle as f64),
        }
    }

    /// What two threads did most while the GPU was idle, in a sentence.
    pub fn idle_text(&self) -> Option<String> {
        let mut lines = self.lines();
        lines.retain(|line| line.idle_share.is_some_and(|share| share >= WORTH));
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
            stacks.window(
                Stamp(0),
                &window(
                    50,
                    20,
                    vec![
                        row("main", HostActivity::WaitingForGpu, "run.py:9 step", 30, 2),
                        row("main", HostActivity::RunningPython, "run.py:5 schedule", 20, 18),
                        row("io", HostActivity::SystemCall, "zmq.py:1 poll", 50, 20),
                    ],
                ),
            );
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

    /// Each share is of the samples of its own process, and a main thread that waits is the cause.
    #[test]
    fn several_processes_have_their_own_shares() {
        let mut stacks = Stacks::default();
        for pid in [7, 8] {
            let rows = vec![
                row("main", HostActivity::WaitingForGil, "run.py:5 step", 100, 50),
                row("pool", HostActivity::WaitingForLock, "run.py:9 get", 100, 50),
            ];
            stacks.window(Stamp(0), &HostStacks { pid, ..window(100, 50, rows) });
        }
        let found: Vec<(String, f64, Option<f64>)> =
            stacks.lines().into_iter().map(|line| (line.thread, line.share, line.idle_share)).collect();
        let expected = ["main of 7", "main of 8"].map(|thread| (thread.to_owned(), 1.0, Some(1.0)));
        assert_eq!(found, expected);
        // Nothing that is worth a sentence.
        let mut stacks = Stacks::default();
        stacks.window(
            Stamp(0),
            &window(100, 50, vec![row("main", HostActivity::RunningPython, "run.py:1 f", 5, 1)]),
        );
        assert_eq!(stacks.idle_text(), None);
    }

    #[test]
    fn without_idle_samples_lines_are_ordered_by_time() {
        let mut stacks = Stacks::default();
        assert!(!stacks.is_there() && stacks.lines().is_empty() && stacks.idle_text().is_none());
        let rows = vec![
            row("main", HostActivity::Sleeping, "a.py:1 f", 3, 0),
            row("main", HostActivity::RunningNative, "a.py:2 f", 7, 0),
        ];
        stacks.window(Stamp(0), &HostStacks { recorded: 0, ..window(10, 0, rows) });
        assert_eq!(stacks.lines()[0].line, "a.py:2 f");
        assert_eq!((stacks.lines()[0].idle_share, stacks.idle_text()), (None, None));
    }

    #[test]
    fn the_number_of_lines_is_bounded() {
        let mut stacks = Stacks::default();
        for n in 0..3 * KEPT as u32 {
            let line = format!("a.py:{n} f");
            stacks
                .window(Stamp(0), &window(1, 1, vec![row("main", HostActivity::RunningPython, &line, 1, 1)]));
        }
        assert_eq!(stacks.lines().len(), KEPT);
    }
}
