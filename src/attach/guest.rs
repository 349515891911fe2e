//! A program that has our library: its connection, and what it says.

use std::{
    collections::HashMap,
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
};

use llmprof_inject::wire::{self, Command, EdgeKind, Mode, Obstacle, Record, Slot};

use super::ring::{Memory, Which};
use crate::{base::foreign::visible, event::Stamp};

/// Slots that are read at a time: others have their turn, and memory stays bounded.
const MAX_SLOTS: usize = 1 << 15;
/// Open ranges of a program.
const MAX_OPEN: usize = 4096;
const MAX_TEXTS: usize = 1 << 17;

pub struct Guest {
    pub pid: u32,
    stream: UnixStream,
    memory: Memory,
    tails: [u64; 2],
    slots: Vec<Slot>,
    texts: [HashMap<u32, String>; 2],
    clocks: Option<Clocks>,
    /// The open ranges of each thread, and those that have an id.
    pushed: HashMap<u32, Vec<OpenRange>>,
    started: HashMap<u64, OpenRange>,
    pub is_gone: bool,
}

struct OpenRange {
    domain: u32,
    name: u32,
    at_ns: u64,
    thread: u32,
}

/// The same moment by CUPTI's clock and by `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy)]
struct Clocks {
    cupti_ns: u64,
    monotonic_ns: u64,
}

/// `CLOCK_MONOTONIC` and the run's clock at the same moment.
#[derive(Debug, Clone, Copy)]
pub struct RunClock {
    monotonic_ns: u64,
    stamp: Stamp,
}

impl RunClock {
    pub fn now(stamp: Stamp) -> RunClock {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        RunClock { monotonic_ns: now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64, stamp }
    }

    fn stamp(self, monotonic_ns: u64) -> u64 {
        (self.stamp.0 + monotonic_ns).saturating_sub(self.monotonic_ns)
    }
}

/// What a program has said, with times of the run's clock. Texts are made visible.
#[derive(Debug)]
pub enum Said<'a> {
    Work { work: wire::Work, name: Option<&'a str> },
    Range { domain: &'a str, text: &'a str, thread: u32, start_ns: u64, end_ns: u64 },
    Mode { at_ns: u64, mode: Mode },
    Obstacle(Obstacle),
    Version(u32),
    Dropped(u64),
}

impl Guest {
    pub(super) fn new(pid: u32, stream: UnixStream, memory: Memory) -> Guest {
        Guest {
            pid,
            stream,
            memory,
            tails: [0; 2],
            slots: Vec::new(),
            texts: Default::default(),
            clocks: None,
            pushed: HashMap::new(),
            started: HashMap::new(),
            is_gone: false,
        }
    }

    /// Asks the library for something. One that does not listen is as good as gone.
    pub fn ask(&mut self, command: Command) {
        if self.stream.write_all(command.line().as_bytes()).is_err() {
            self.is_gone = true;
        }
    }

    pub fn dropped(&self) -> u64 {
        self.memory.dropped(Which::Work) + self.memory.dropped(Which::Ranges)
    }

    /// Reads what the library has said since the last call. Returns whether there may be more.
    pub fn read(&mut self, run: RunClock, each: &mut dyn FnMut(Said<'_>)) -> bool {
        self.memory.beat();
        let mut byte = [0; 64];
        match self.stream.read(&mut byte) {
            Ok(0) => self.is_gone = true,
            Err(e) if e.kind() != ErrorKind::WouldBlock && e.kind() != ErrorKind::Interrupted => {
                self.is_gone = true
            }
            _ => {}
        }
        let mut more = false;
        for (i, which) in [Which::Work, Which::Ranges].into_iter().enumerate() {
            let mut slots = std::mem::take(&mut self.slots);
            slots.clear();
            if self.memory.copy(which, self.tails[i], MAX_SLOTS, &mut slots).is_err() {
                // Nothing of it can be believed any more.
                self.is_gone = true;
            }
            more |= slots.len() == MAX_SLOTS;
            // A text that is not there completely is read next time.
            let read = self.understand(i, &slots, run, each);
            self.tails[i] = self.tails[i].wrapping_add(read as u64);
            self.memory.free(which, self.tails[i]);
            self.slots = slots;
        }
        more
    }

    /// Returns how many slots were read.
    fn understand(
        &mut self,
        lane: usize,
        slots: &[Slot],
        run: RunClock,
        each: &mut dyn FnMut(Said<'_>),
    ) -> usize {
        let mut at = 0;
        while let Some(slot) = slots.get(at) {
            at += 1;
            match Record::read(slot) {
                None => {}
                Some(Record::Text { number, bytes }) => {
                    let count = wire::text_slots(bytes as usize);
                    let Some(text) = slots.get(at..at + count) else { return at - 1 };
                    at += count;
                    if self.texts[lane].len() < MAX_TEXTS {
                        let text = wire::text_of(text, bytes as usize);
                        let text = visible(&String::from_utf8_lossy(&text)).into_owned();
                        self.texts[lane].insert(number, text);
                    }
                }
                Some(Record::Work(mut work)) => {
                    let Some(clocks) = self.clocks else { continue };
                    work.start_ns = clocks.run_time(work.start_ns, run);
                    work.end_ns = clocks.run_time(work.end_ns, run);
                    let name = match work.kind {
                        wire::WorkKind::Kernel { name, .. } => {
                            self.texts[lane].get(&name).map(String::as_str)
                        }
                        _ => None,
                    };
                    each(Said::Work { work, name });
                }
                Some(Record::Range(edge)) => self.range(edge, run, each),
                Some(Record::Mode { at_ns, mode }) => {
                    let at_ns = self.clocks.map_or(0, |clocks| clocks.run_time(at_ns, run));
                    each(Said::Mode { at_ns, mode });
                }
                Some(Record::Obstacle(obstacle)) => each(Said::Obstacle(obstacle)),
                Some(Record::Clock { cupti_ns, monotonic_ns, cupti_version, .. }) => {
                    if self.clocks.is_none() {
                        each(Said::Version(cupti_version));
                    }
                    self.clocks = Some(Clocks { cupti_ns, monotonic_ns });
                }
                Some(Record::Dropped { records }) => each(Said::Dropped(records)),
            }
        }
        at
    }

    fn range(&mut self, edge: wire::RangeEdge, run: RunClock, each: &mut dyn FnMut(Said<'_>)) {
        let open = |name| OpenRange { domain: edge.domain, name, at_ns: edge.at_ns, thread: edge.thread };
        let ended = match edge.kind {
            EdgeKind::Push { name } => {
                if self.pushed.len() < MAX_OPEN || self.pushed.contains_key(&edge.thread) {
                    let stack = self.pushed.entry(edge.thread).or_default();
                    if stack.len() < MAX_OPEN {
                        stack.push(open(name));
                    }
                }
                None
            }
            EdgeKind::Pop => self.pushed.get_mut(&edge.thread).and_then(|stack| {
                // Each domain has a stack of its own.
                let at = stack.iter().rposition(|range| range.domain == edge.domain)?;
                Some(stack.remove(at))
            }),
            EdgeKind::Start { name, id } => {
                if self.started.len() < MAX_OPEN {
                    self.started.insert(id, open(name));
                }
                None
            }
            EdgeKind::End { id } => self.started.remove(&id),
            EdgeKind::Mark { .. } => None,
        };
        let Some(range) = ended else { return };
        let text = |number| self.texts[1].get(&number).map_or("", String::as_str);
        each(Said::Range {
            domain: text(range.domain),
            text: text(range.name),
            thread: range.thread,
            start_ns: run.stamp(range.at_ns),
            end_ns: run.stamp(edge.at_ns),
        });
    }
}

impl Clocks {
    /// 0 stays: CUPTI has no time.
    fn run_time(self, cupti_ns: u64, run: RunClock) -> u64 {
        match cupti_ns {
            0 => 0,
            ns => {
                let since = ns as i128 - self.cupti_ns as i128;
                let monotonic = (self.monotonic_ns as i128 + since).clamp(0, i128::from(u64::MAX / 2));
                run.stamp(monotonic as u64).max(1)
            }
        }
    }
}
