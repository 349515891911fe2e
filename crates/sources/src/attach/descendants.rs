//! The descendants of a program, including those in their own process groups and sessions. They inherit a variable,
//! which identifies those whose parent ended before they were seen.

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal};

use llmprof_base::tools::under::Mark;

/// Each program has its own value, because programs may start programs.
const VARIABLE: &str = "LLMPROF_PROGRAM";
/// The interval at which `/proc` is searched for new processes, which takes milliseconds.
const INTERVAL: Duration = Duration::from_secs(1);

/// A process: its parent, and its start time, which distinguishes it from a later process with the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: u32,
    parent: u32,
    started: u64,
}

/// The known descendants with their start times. A process remains one after its parent has ended.
#[derive(Debug)]
pub(super) struct Descendants {
    mark: Mark,
    seen: BTreeMap<u32, u64>,
    /// Processes without the variable.
    others: BTreeMap<u32, u64>,
    read_at: Option<Instant>,
}

/// The result of reading the environment of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Marked {
    Yes,
    No,
    /// During its exec a process has no environment.
    Unknown,
}

impl Descendants {
    pub(super) fn new() -> Descendants {
        let mark = Mark::new("program");
        Descendants { mark, seen: BTreeMap::new(), others: BTreeMap::new(), read_at: None }
    }

    /// The variable for the program to start.
    pub(super) fn variable(&self) -> (&'static str, &str) {
        (VARIABLE, self.mark.value())
    }

    /// Searches for new descendants of `root`, at intervals.
    pub(super) fn follow(&mut self, root: u32) {
        if self.read_at.is_none_or(|at| at.elapsed() >= INTERVAL) {
            self.refresh(root);
        }
    }

    /// Searches for new descendants of `root`, and drops those that have ended.
    pub(super) fn refresh(&mut self, root: u32) {
        self.read_at = Some(Instant::now());
        let wanted = format!("{VARIABLE}={}", self.mark.value());
        self.take(root, &running(), |pid| marked(pid, wanted.as_bytes()));
    }

    fn take(&mut self, root: u32, running: &[Process], marked: impl Fn(u32) -> Marked) {
        let started: BTreeMap<u32, u64> =
            running.iter().map(|process| (process.pid, process.started)).collect();
        let is_running = |pid: &u32, since: &mut u64| started.get(pid) == Some(since);
        self.seen.retain(is_running);
        self.others.retain(is_running);
        for process in running.iter().filter(|process| process.pid != root) {
            if self.seen.contains_key(&process.pid) || self.others.contains_key(&process.pid) {
                continue;
            }
            match marked(process.pid) {
                Marked::Yes => self.seen.insert(process.pid, process.started),
                Marked::No => self.others.insert(process.pid, process.started),
                Marked::Unknown => None,
            };
        }
        loop {
            let before = self.seen.len();
            for process in running {
                if process.parent == root || self.seen.contains_key(&process.parent) {
                    self.seen.insert(process.pid, process.started);
                }
            }
            if self.seen.len() == before {
                return;
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    #[cfg(test)]
    pub(super) fn has(&self, pid: u32) -> bool {
        self.seen.contains_key(&pid)
    }

    pub(super) fn signal(&self, signal: Signal) {
        for pid in self.seen.keys().filter_map(|pid| Pid::from_raw(*pid as i32)) {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

/// Whether a process has the variable. The environment of another user's process cannot be read; it does not belong to
/// the program.
fn marked(pid: u32, wanted: &[u8]) -> Marked {
    match fs::read(format!("/proc/{pid}/environ")) {
        Ok(environment) if environment.is_empty() => Marked::Unknown,
        Ok(environment) if environment.split(|byte| *byte == 0).any(|entry| entry == wanted) => Marked::Yes,
        _ => Marked::No,
    }
}

/// All processes that have not ended.
fn running() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| process_of(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)).collect()
}

/// A line of `/proc/PID/stat`; `None` for a zombie.
fn process_of(pid: u32, stat: &str) -> Option<Process> {
    // The name, in parentheses, may contain spaces and parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let started = fields.nth(17)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(Process { pid, parent, started })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, parent: u32, started: u64) -> Process {
        Process { pid, parent, started }
    }

    #[test]
    fn orphans_stay_descendants_and_reused_pids_do_not() {
        let mut of = Descendants::new();
        let none = |_| Marked::No;
        // In any order: 30 is a child of 20.
        of.take(10, &[process(30, 20, 3), process(20, 10, 2), process(10, 1, 1), process(99, 1, 1)], none);
        assert_eq!(of.seen, BTreeMap::from([(20, 2), (30, 3)]));
        // The root and 20 have ended, 30 has another parent and a new child.
        of.take(10, &[process(30, 1, 3), process(40, 30, 9), process(99, 1, 1)], none);
        assert_eq!(of.seen, BTreeMap::from([(30, 3), (40, 9)]));
        // 30 and 40 have ended; another process has the number 30.
        of.take(10, &[process(30, 1, 50), process(99, 30, 1)], none);
        assert!(of.is_empty(), "{of:?}");
    }

    #[test]
    fn orphans_that_were_never_seen_with_their_parent_are_known_by_their_environment() {
        let mut of = Descendants::new();
        let running = [process(10, 1, 1), process(50, 1, 5), process(60, 1, 6), process(70, 50, 7)];
        of.take(10, &running, |pid| match pid {
            50 => Marked::Yes,
            60 => Marked::Unknown,
            _ => Marked::No,
        });
        assert_eq!(of.seen, BTreeMap::from([(50, 5), (70, 7)]), "70 has changed its environment");
        of.take(10, &running, |pid| if pid == 60 { Marked::Yes } else { Marked::No });
        assert_eq!(of.seen, BTreeMap::from([(50, 5), (60, 6), (70, 7)]));
        assert_eq!(marked(std::process::id(), b"LLMPROF_PROGRAM=another"), Marked::No);
    }

    #[test]
    fn lines_of_proc_are_read() {
        let stat =
            |state: &str| format!("7 (a) b) {state} 5 7 7 0 -1 4194304 1 0 0 0 1 2 3 4 20 0 1 0 4711 100 0");
        assert_eq!(process_of(7, &stat("S")), Some(process(7, 5, 4711)));
        assert_eq!(process_of(7, &stat("Z")), None);
        assert_eq!(process_of(7, "7 (cut) S 5"), None);
        let me = std::process::id();
        assert!(running().iter().any(|process| process.pid == me));
    }
}
