//! The content of the library's records: texts, clocks, ranges. Pure, and in bounded memory whatever is written.

use std::collections::HashMap;

use llmprof_inject::wire::{self, EdgeKind, Mode, Obstacle, Payload, Record, Slot};

use llmprof_base::foreign::visible;
use llmprof_event::Stamp;

/// Maximum open ranges of a program.
const MAX_OPEN: usize = 4096;
const MAX_TEXTS: usize = 1 << 17;

/// A message of a program, with times of the run's clock. Texts are sanitised.
#[derive(Debug)]
pub enum Message<'a> {
    Work {
        work: wire::ActivityRecord,
        name: Option<&'a str>,
    },
    Range {
        domain: &'a str,
        text: &'a str,
        thread: u32,
        start_ns: u64,
        end_ns: u64,
        payload: Option<Payload>,
    },
    Device {
        number: u32,
        uuid: String,
    },
    Mode {
        at_ns: u64,
        mode: Mode,
    },
    /// The words of a stack are [`wire::FrameAt`].
    Stack {
        number: u32,
        frames: &'a [u64],
    },
    Launch {
        correlation: u32,
        stack: u32,
    },
    Obstacle(Obstacle),
    Version(u32),
    Dropped(u64),
}

/// The state of reading a program's records. Its two rings are identified by their index.
#[derive(Default)]
pub struct Transcript {
    texts: [HashMap<u32, String>; 2],
    clocks: Option<Clocks>,
    /// The open ranges of each thread, and those that have an id.
    pushed: HashMap<u32, Vec<OpenRange>>,
    started: HashMap<u64, OpenRange>,
}

struct OpenRange {
    domain: u32,
    name: u32,
    at_ns: u64,
    thread: u32,
    payload: Option<Payload>,
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

    pub fn stamp(self, monotonic_ns: u64) -> u64 {
        self.stamp.0.saturating_add(monotonic_ns).saturating_sub(self.monotonic_ns)
    }
}

impl Transcript {
    /// Reads slots of the ring `lane`; returns the number of slots: those of an incomplete text are not read.
    pub fn read(
        &mut self,
        lane: usize,
        slots: &[Slot],
        run: RunClock,
        each: &mut dyn FnMut(Message<'_>),
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
                Some(Record::Stack { number, frames }) => {
                    let count = wire::stack_slots(frames as usize);
                    let Some(words) = slots.get(at..at + count) else { return at - 1 };
                    at += count;
                    let words = words.as_flattened();
                    each(Message::Stack { number, frames: &words[..words.len().min(frames as usize)] });
                }
                Some(Record::Launch { correlation, stack }) => each(Message::Launch { correlation, stack }),
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
                    each(Message::Work { work, name });
                }
                Some(Record::Range(edge)) => self.range(edge, run, each),
                Some(Record::Payload { thread, payload }) => {
                    if let Some(open) = self.pushed.get_mut(&thread).and_then(|stack| stack.last_mut()) {
                        open.payload = Some(payload);
                    }
                }
                Some(Record::Device { number, uuid }) => {
                    each(Message::Device { number, uuid: uuid_text(&uuid) });
                }
                Some(Record::Mode { at_ns, mode }) => {
                    let at_ns = self.clocks.map_or(0, |clocks| clocks.run_time(at_ns, run));
                    each(Message::Mode { at_ns, mode });
                }
                Some(Record::Obstacle(obstacle)) => each(Message::Obstacle(obstacle)),
                Some(Record::Clock { cupti_ns, monotonic_ns, cupti_version, .. }) => {
                    if self.clocks.is_none() {
                        each(Message::Version(cupti_version));
                    }
                    self.clocks = Some(Clocks { cupti_ns, monotonic_ns });
                }
                Some(Record::Dropped { records }) => each(Message::Dropped(records)),
            }
        }
        at
    }

    fn range(&mut self, edge: wire::RangeEdge, run: RunClock, each: &mut dyn FnMut(Message<'_>)) {
        let open = |name| OpenRange {
            domain: edge.domain,
            name,
            at_ns: edge.at_ns,
            thread: edge.thread,
            payload: None,
        };
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
                // Each domain has its own stack.
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
        each(Message::Range {
            domain: text(range.domain),
            text: text(range.name),
            thread: range.thread,
            start_ns: run.stamp(range.at_ns),
            end_ns: run.stamp(edge.at_ns),
            payload: range.payload,
        });
    }
}

/// In NVML's format.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

impl Clocks {
    /// 0 is kept: CUPTI has no time.
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

#[cfg(test)]
mod tests {
    use llmprof_inject::wire::{ActivityRecord, Launch, RangeEdge, WorkKind};
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn run() -> RunClock {
        RunClock { monotonic_ns: 1_000_000, stamp: Stamp(0) }
    }

    fn clock() -> Slot {
        Record::Clock { cupti_ns: 5_000_000, monotonic_ns: 1_000_500, realtime_ns: 0, cupti_version: 130_001 }
            .slot()
    }

    fn kernel(name: u32, start_ns: u64, end_ns: u64) -> Slot {
        let kind = WorkKind::Kernel { name, launch: Launch::default() };
        Record::Work(ActivityRecord {
            start_ns,
            end_ns,
            correlation: 1,
            stream: 7,
            device: 0,
            graph: 0,
            kind,
        })
        .slot()
    }

    fn said(transcript: &mut Transcript, lane: usize, slots: &[Slot]) -> Vec<String> {
        let mut all = Vec::new();
        transcript.read(lane, slots, run(), &mut |said| all.push(format!("{said:?}")));
        all
    }

    #[test]
    fn times_are_those_of_the_run_and_names_are_visible() {
        let mut transcript = Transcript::default();
        let mut slots = vec![kernel(1, 9, 9), clock()];
        slots.extend(wire::text(1, b"ker\x1b[31mnel"));
        slots.extend([kernel(1, 5_000_100, 5_000_300), kernel(2, 0, 0)]);
        let all = said(&mut transcript, 0, &slots);
        assert_eq!(all.len(), 3, "work before the first clock has no time: {all:?}");
        assert!(
            all[1].contains("start_ns: 600, end_ns: 800") && all[1].contains("ker\\\\u001b"),
            "{}",
            all[1]
        );
        assert!(all[2].contains("start_ns: 0, end_ns: 0") && all[2].contains("None"), "{}", all[2]);
    }

    #[test]
    fn a_text_that_is_cut_off_is_read_later() {
        let mut transcript = Transcript::default();
        let slots = wire::text(3, &[b'x'; 100]);
        assert_eq!(transcript.read(0, &slots[..2], run(), &mut |_| ()), 0);
        assert_eq!(transcript.read(0, &slots, run(), &mut |_| ()), 3);
    }

    #[test]
    fn launches_have_the_frames_that_were_sent_before() {
        let mut transcript = Transcript::default();
        let mut slots = wire::stack(3, &(1..=10).collect::<Vec<u64>>());
        slots.push(Record::Launch { correlation: 70, stack: 3 }.slot());
        assert_eq!(transcript.read(1, &slots[..2], run(), &mut |_| ()), 0, "cut off");
        let all = said(&mut transcript, 1, &slots);
        assert!(all[0].contains("number: 3") && all[0].ends_with("8, 9, 10] }"), "{all:?}");
        assert_eq!(all[1], "Launch { correlation: 70, stack: 3 }");
    }

    #[test]
    fn ranges_of_domains_and_threads_are_distinguished() {
        let mut transcript = Transcript::default();
        let edge = |at_ns: u64, domain, kind| {
            Record::Range(RangeEdge { at_ns: 1_000_000 + at_ns, thread: 1, domain, kind }).slot()
        };
        let mut slots: Vec<Slot> = [(1, "step"), (2, "layer"), (9, "engine")]
            .iter()
            .flat_map(|(n, text)| wire::text(*n, text.as_bytes()))
            .collect();
        slots.extend([
            edge(10, 9, EdgeKind::Push { name: 1 }),
            edge(20, 0, EdgeKind::Push { name: 2 }),
            edge(30, 9, EdgeKind::Pop),
            edge(40, 0, EdgeKind::Pop),
            edge(50, 0, EdgeKind::Pop),
            edge(60, 0, EdgeKind::Start { name: 2, id: 4 }),
            edge(70, 0, EdgeKind::End { id: 4 }),
        ]);
        let all = said(&mut transcript, 1, &slots);
        assert_eq!(all.len(), 3, "{all:?}");
        assert!(
            all[0].contains("engine")
                && all[0].contains("step")
                && all[0].contains("start_ns: 10, end_ns: 30"),
            "{}",
            all[0]
        );
    }

    #[test]
    fn payloads_belong_to_the_range_that_was_opened_last() {
        let mut transcript = Transcript::default();
        let edge = |kind| Record::Range(RangeEdge { at_ns: 1_000_010, thread: 1, domain: 0, kind }).slot();
        let payload = Payload { communicator: Some(7), message_bytes: Some(4096), ..Payload::default() };
        let other = Record::Payload { thread: 2, payload: Payload::default() };
        let slots = [
            edge(EdgeKind::Push { name: 1 }),
            edge(EdgeKind::Push { name: 2 }),
            Record::Payload { thread: 1, payload }.slot(),
            other.slot(),
            edge(EdgeKind::Pop),
            edge(EdgeKind::Pop),
            Record::Device { number: 1, uuid: std::array::from_fn(|i| i as u8) }.slot(),
        ];
        let all = said(&mut transcript, 1, &slots);
        assert!(all[0].contains("Some(4096)") && all[1].contains("payload: None"), "{all:?}");
        assert!(all[2].contains("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"), "{all:?}");
    }

    proptest! {
        #[test]
        fn anything_is_read_without_panic(slots in vec(any::<Slot>(), 0..64), tags in vec(0u64..40, 0..64)) {
            let mut transcript = Transcript::default();
            let mut slots = slots;
            slots.iter_mut().zip(tags).for_each(|(slot, tag)| slot[0] = slot[0] & !0xff | tag);
            slots.insert(0, clock());
            for lane in 0..2 {
                let read = transcript.read(lane, &slots, run(), &mut |_| ());
                prop_assert!(read <= slots.len());
            }
        }
    }
}
