//! A bounded fold of samples.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem::discriminant;
use std::sync::Arc;

use crate::frame::{Frame, fold_to_user, shorten};
use crate::sampler::ThreadSample;
use crate::state::State;

const ROWS_MAX: usize = 4096;
const STACKS_MAX: usize = 4096;

/// Time by thread, state and line of the program. Functions at the same line are one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub thread: Arc<str>,
    /// Of the latest sample: the thread that holds the GIL may differ between samples of a row.
    pub state: State,
    /// `None`: no frame, or the time that had no row of its own any more.
    pub frame: Option<Frame>,
    pub ns: u64,
    pub samples: u64,
}

#[derive(PartialEq, Eq, Hash)]
struct Key {
    thread: Arc<str>,
    state: State,
    line: Option<(Arc<str>, u32)>,
}

#[derive(Default)]
pub struct Profile {
    rows: HashMap<Key, Row>,
    stacks: HashMap<String, u64>,
    total_ns: u64,
}

impl Profile {
    pub fn new() -> Profile {
        Profile::default()
    }

    /// `weight_ns`: the time that the sample stands for.
    pub fn add(&mut self, sample: &ThreadSample, weight_ns: u64) {
        self.total_ns = self.total_ns.saturating_add(weight_ns);
        self.add_row(sample, weight_ns);
        self.add_stack(stack(sample), weight_ns);
    }

    fn add_row(&mut self, sample: &ThreadSample, weight_ns: u64) {
        let mut frame = fold_to_user(&sample.frames).or(sample.frames.first()).cloned();
        let line = frame.as_ref().map(|frame| (frame.file.clone(), frame.line));
        let mut key = Key { thread: sample.name.clone(), state: without_holder(sample.state), line };
        if self.rows.len() >= ROWS_MAX && !self.rows.contains_key(&key) {
            key = Key { thread: "other".into(), state: State::Unknown, line: None };
            frame = None;
        }
        let empty = Row { thread: key.thread.clone(), state: key.state, frame, ns: 0, samples: 0 };
        let row = self.rows.entry(key).or_insert(empty);
        row.ns = row.ns.saturating_add(weight_ns);
        row.samples += 1;
        if discriminant(&row.state) == discriminant(&sample.state) {
            row.state = sample.state;
        }
    }

    fn add_stack(&mut self, stack: String, weight_ns: u64) {
        let full = self.stacks.len() >= STACKS_MAX;
        let time = match self.stacks.entry(stack) {
            Entry::Vacant(_) if full => self.stacks.entry("other".to_owned()).or_default(),
            entry => entry.or_default(),
        };
        *time = time.saturating_add(weight_ns);
    }

    pub fn total_ns(&self) -> u64 {
        self.total_ns
    }

    /// Most time first.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = self.rows.values().cloned().collect();
        rows.sort_by(|a, b| b.ns.cmp(&a.ns).then_with(|| a.thread.cmp(&b.thread)));
        rows
    }

    /// Collapsed stacks for flame graphs, `thread;frame;…;[state] count`, in microseconds.
    pub fn collapsed(&self) -> Vec<String> {
        let mut lines: Vec<String> =
            self.stacks.iter().map(|(stack, ns)| format!("{stack} {}", ns / 1000)).collect();
        lines.sort_unstable();
        lines
    }
}

fn without_holder(state: State) -> State {
    match state {
        State::WaitingForGil { .. } => State::WaitingForGil { held_by: None },
        state => state,
    }
}

fn stack(sample: &ThreadSample) -> String {
    let mut parts = vec![part(&sample.name)];
    let frame =
        |frame: &Frame| part(&format!("{} ({}:{})", frame.function, shorten(&frame.file), frame.line));
    parts.extend(sample.frames.iter().rev().map(frame));
    parts.push(format!("[{}]", without_holder(sample.state)));
    parts.join(";")
}

/// `;` separates frames.
fn part(text: &str) -> String {
    text.replace(';', ":")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(state: State, line: u32) -> ThreadSample {
        let frame = Frame { file: "/a/b;c.py".into(), line, function: "f".into() };
        ThreadSample {
            thread: 1,
            name: "main".into(),
            state,
            frames: vec![frame],
            holds_gil: false,
            native: None,
        }
    }

    #[test]
    fn rows_are_sorted_by_time_and_bounded() {
        let mut profile = Profile::new();
        for line in 0..10_000 {
            profile.add(&sample(State::RunningPython, line), 1000);
        }
        profile.add(&sample(State::Sleeping, 7), 10_000_000_000);
        let rows = profile.rows();
        assert_eq!(rows.len(), ROWS_MAX + 1);
        assert_eq!(rows.iter().map(|row| row.ns).sum::<u64>(), profile.total_ns());
        assert_eq!(rows[0].thread.as_ref(), "other");
        assert!(profile.collapsed().len() <= STACKS_MAX + 1);
    }

    #[test]
    fn waits_for_the_gil_are_one_row_with_the_latest_holder() {
        let mut profile = Profile::new();
        for holder in [3, 4] {
            profile.add(&sample(State::WaitingForGil { held_by: Some(holder) }, 1), 5000);
        }
        assert_eq!(profile.rows()[0].state, State::WaitingForGil { held_by: Some(4) });
        assert_eq!(profile.collapsed(), ["main;f (a/b:c.py:1);[waiting for the GIL] 10"]);
    }
}
