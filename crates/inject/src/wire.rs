//! The protocol between the library and the profiler.
//!
//! The profiler listens on a socket. The library connects and sends [`hello`]. The profiler answers with one byte and
//! the descriptor of shared memory, which has two rings of 64-byte slots: one for work of the GPU, one for ranges. Then
//! the profiler sends [`Command`]s, one per line. When the socket closes, the library stops recording.
//!
//! A record is one slot; a text follows its slot in as many slots as it needs. The reader copies slots before it
//! reads them: the program at the other end may write anything, at any time.

use std::{ffi::CStr, sync::atomic::AtomicU64, time::Duration};

/// The variables that the library reads: the directory of the socket, and the token with which it authenticates.
pub const DIRECTORY: &str = "LLMPROF_ATTACH";
pub const TOKEN: &str = "LLMPROF_TOKEN";
/// The socket of a profiler that starts programs. A profiler that joins the program `1234` later listens on
/// `1234.socket`.
pub const SOCKET: &str = "socket";
/// The name of a file in the memory of a process that the profiler has loaded the library into. Its content, [`door`],
/// is the socket at which the library waits for a profiler.
pub const DOOR: &CStr = c"llmprof-door-4";
const _: () = assert!(VERSION == 4, "the name of the door has the version");
pub const DOOR_BYTES: usize = 32;
/// The function that is called after the library was loaded into a running process.
pub const JOIN: &CStr = c"llmprof_join";
/// The longest time in which a program without work is assumed to create its contexts.
pub const SET_UP_AT_MOST: Duration = Duration::from_secs(10);

pub const VERSION: u32 = 4;
/// The first number of the shared memory.
pub const MAGIC: u64 = 0x6c6c_6d70_726f_6600 + VERSION as u64;

/// Eight 64-bit numbers.
pub type Slot = [u64; 8];
pub const SLOT_BYTES: usize = 64;
/// Slots of the rings: some tenths of a second for the fastest programs.
pub const WORK_SLOTS: usize = 1 << 17;
pub const RANGE_SLOTS: usize = 1 << 14;
pub const HEADER_BYTES: usize = 4096;
pub const SHARED_BYTES: usize = HEADER_BYTES + (WORK_SLOTS + RANGE_SLOTS) * SLOT_BYTES;

/// Longer names are cut.
pub const MAX_TEXT: usize = 1024;

/// The beginning of the shared memory. Numbers that different sides write are in different cache lines.
#[repr(C, align(64))]
pub struct Header {
    pub magic: AtomicU64,
    /// Incremented by the profiler while it reads. While it does not change, nothing is recorded.
    pub heartbeat: AtomicU64,
    _pad: [u64; 6],
    pub work: Ends,
    pub ranges: Ends,
}

/// The ends of a ring, in slots since the start.
#[repr(C, align(64))]
pub struct Ends {
    /// Written by the library.
    pub head: AtomicU64,
    /// Records for which the ring had no room, or whose thread could not wait for it.
    pub dropped: AtomicU64,
    _pad: [u64; 6],
    /// Written by the profiler.
    pub tail: AtomicU64,
    _pad2: [u64; 7],
}

const _: () = assert!(size_of::<Header>() <= HEADER_BYTES && size_of::<Slot>() == SLOT_BYTES);

/// The first line that the library sends.
pub fn hello(token: &str) -> String {
    format!("llmprof-inject {VERSION} {token}\n")
}

/// The socket to take out of the process. The program may have closed it and use its number for another file, which
/// has another inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DoorSocket {
    pub descriptor: i32,
    pub inode: u64,
}

/// The content of the file that names the socket to take; `None` while a profiler is connected.
pub fn door(socket: Option<DoorSocket>) -> [u8; DOOR_BYTES] {
    let mut bytes = [b' '; DOOR_BYTES];
    let text = socket.map(|DoorSocket { descriptor, inode }| format!("{descriptor} {inode}"));
    let text = text.unwrap_or_else(|| "-1".to_owned());
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes
}

/// The socket that the file names.
pub fn door_socket(content: &[u8]) -> Option<DoorSocket> {
    let mut words = std::str::from_utf8(content).ok()?.split_ascii_whitespace();
    let descriptor = words.next()?.parse().ok().filter(|descriptor| *descriptor >= 0)?;
    Some(DoorSocket { descriptor, inode: words.next()?.parse().ok()? })
}

/// A command of the profiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Kernels for `burst_ms` of every `period_ms`; copies and memsets in between. Kernels all the time if both are
    /// equal; never if `burst_ms` is 0.
    Record { burst_ms: u32, period_ms: u32 },
    /// Kernels all the time, and waits of the host. Waits slow down a program that launches each kernel by itself by a
    /// quarter, until it ends.
    Everything,
    /// Nothing.
    Rest,
    /// In bursts, each launch with the frames of its Python thread. Does not change what is recorded of the GPU.
    Frames(FrameLayout),
}

/// Where the interpreter of the program keeps the frames of a thread: offsets in bytes, and the type of code objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameLayout {
    /// In the state of a thread: the innermost frame.
    pub frame: u16,
    /// If the state has a structure at `frame` instead: the innermost frame in it.
    pub cframe: Option<u16>,
    /// In a frame: its caller.
    pub back: u16,
    pub code: u16,
    pub instruction: u16,
    /// Bytes per unit of the instruction's index; 0 if it is a pointer.
    pub scale: u8,
    /// In a frame: 3 and above for frames of C code.
    pub owner: Option<u16>,
    pub code_type: u64,
}

impl FrameLayout {
    fn words(self) -> [u64; 8] {
        let optional = |offset: Option<u16>| offset.map_or(u64::MAX, u64::from);
        let FrameLayout { frame, cframe, back, code, instruction, scale, owner, code_type } = self;
        let [frame, back, code, instruction] = [frame, back, code, instruction].map(u64::from);
        [frame, optional(cframe), back, code, instruction, scale.into(), optional(owner), code_type]
    }

    fn from_words(words: [u64; 8]) -> Option<FrameLayout> {
        let offset = |word: u64| u16::try_from(word).ok();
        let optional = |word| if word == u64::MAX { Some(None) } else { offset(word).map(Some) };
        Some(FrameLayout {
            frame: offset(words[0])?,
            cframe: optional(words[1])?,
            back: offset(words[2])?,
            code: offset(words[3])?,
            instruction: offset(words[4])?,
            scale: u8::try_from(words[5]).ok()?,
            owner: optional(words[6])?,
            code_type: words[7],
        })
    }
}

/// Maximum frames of a launch, innermost first.
pub const MAX_FRAMES: usize = 64;

/// A frame in one word: its code object, and the instruction in units of two bytes from the beginning of the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameAt {
    pub code: u64,
    pub unit: i16,
}

impl FrameAt {
    pub fn word(self) -> u64 {
        self.code << 16 | u64::from(self.unit as u16)
    }

    pub fn from_word(word: u64) -> FrameAt {
        FrameAt { code: word >> 16, unit: word as u16 as i16 }
    }
}

impl Command {
    pub fn line(self) -> String {
        match self {
            Command::Record { burst_ms, period_ms } => format!("record {burst_ms} {period_ms}\n"),
            Command::Everything => "everything\n".to_owned(),
            Command::Rest => "rest\n".to_owned(),
            Command::Frames(layout) => {
                let words = layout.words().map(|word| format!("{word:x}"));
                format!("frames {}\n", words.join(" "))
            }
        }
    }

    pub fn read(line: &str) -> Option<Command> {
        let mut words = line.split_ascii_whitespace();
        match words.next()? {
            "record" => {
                let (burst_ms, period_ms) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
                Some(Command::Record { burst_ms, period_ms })
            }
            "everything" => Some(Command::Everything),
            "rest" => Some(Command::Rest),
            "frames" => {
                let words: Vec<u64> = words.map_while(|word| u64::from_str_radix(word, 16).ok()).collect();
                FrameLayout::from_words(words.try_into().ok()?).map(Command::Frames)
            }
            _ => None,
        }
    }
}

/// The current mode of recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Nothing,
    /// Copies and memsets.
    Light,
    /// Each kernel.
    Burst,
}

/// Why the library does not record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// There is no CUPTI in the program, nor next to its CUDA runtime.
    NoCupti,
    /// CUPTI answers with this error.
    Failed(u32),
    /// The program profiles itself, or another tool does.
    InUse,
    /// The program has no CUDA context yet.
    NoContext,
}

/// The parameters of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Launch {
    pub grid: [u32; 3],
    pub block: [u16; 3],
    pub registers: u16,
    pub shared_bytes: u32,
}

/// Work of the GPU, or a wait for it, with the number or the address of a kernel's name. Times are CUPTI's, 0 if it has
/// none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActivityRecord<Name = u32> {
    pub start_ns: u64,
    pub end_ns: u64,
    /// The same for all nodes of a graph launch.
    pub correlation: u32,
    pub stream: u32,
    pub device: u16,
    /// The graph that it is, or is a node of; 0 for none.
    pub graph: u32,
    pub kind: WorkKind<Name>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkKind<Name = u32> {
    Kernel {
        name: Name,
        launch: Launch,
    },
    /// The direction is CUPTI's `CUpti_ActivityMemcpyKind`.
    Copy {
        direction: u8,
        bytes: u64,
    },
    Memset {
        bytes: u64,
    },
    /// A whole graph.
    Graph,
    /// The host waited; the kind is CUPTI's `CUpti_ActivitySynchronizationType`.
    Wait {
        kind: u8,
    },
}

impl<Name> ActivityRecord<Name> {
    /// The same with another name.
    pub fn named<Other>(self, name: impl FnOnce(Name) -> Other) -> ActivityRecord<Other> {
        let ActivityRecord { start_ns, end_ns, correlation, stream, device, graph, kind } = self;
        let kind = match kind {
            WorkKind::Kernel { name: known, launch } => WorkKind::Kernel { name: name(known), launch },
            WorkKind::Copy { direction, bytes } => WorkKind::Copy { direction, bytes },
            WorkKind::Memset { bytes } => WorkKind::Memset { bytes },
            WorkKind::Graph => WorkKind::Graph,
            WorkKind::Wait { kind } => WorkKind::Wait { kind },
        };
        ActivityRecord { start_ns, end_ns, correlation, stream, device, graph, kind }
    }
}

/// The start or the end of an NVTX range, or a mark. Times are of `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeEdge {
    pub at_ns: u64,
    pub thread: u32,
    pub domain: u32,
    pub kind: EdgeKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EdgeKind {
    Push { name: u32 },
    Pop,
    Start { name: u32, id: u64 },
    End { id: u64 },
    Mark { name: u32 },
}

/// The fields that are used of NCCL's payloads of ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Payload {
    /// The same on all ranks of a communicator.
    pub communicator: Option<u64>,
    /// Bytes of one rank.
    pub message_bytes: Option<u64>,
    /// The number of ranks of the communicator, and this rank.
    pub ranks: Option<u32>,
    pub rank: Option<u32>,
}

/// The content of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    Work(ActivityRecord),
    Range(RangeEdge),
    /// The payload of the range that the thread has just opened.
    Payload {
        thread: u32,
        payload: Payload,
    },
    /// A GPU by the process's device index.
    Device {
        number: u32,
        uuid: [u8; 16],
    },
    /// The text with this number follows.
    Text {
        number: u32,
        bytes: u32,
    },
    /// The frames with this number follow, as [`FrameAt`] in words.
    Stack {
        number: u32,
        frames: u32,
    },
    /// A call that launches work, from the Python frames with the number `stack`.
    Launch {
        correlation: u32,
        stack: u32,
    },
    /// The mode from now on, by CUPTI's clock.
    Mode {
        at_ns: u64,
        mode: Mode,
    },
    Obstacle(Obstacle),
    /// The same moment by three clocks, and CUPTI's version.
    Clock {
        cupti_ns: u64,
        monotonic_ns: u64,
        realtime_ns: u64,
        cupti_version: u32,
    },
    /// The number of records that CUPTI dropped.
    Dropped {
        records: u64,
    },
}

/// The number of slots that follow the slot of a text of this many bytes.
pub fn text_slots(bytes: usize) -> usize {
    bytes.min(MAX_TEXT).div_ceil(SLOT_BYTES)
}

/// A text with its number, as slots.
pub fn text(number: u32, text: &[u8]) -> Vec<Slot> {
    let text = &text[..text.len().min(MAX_TEXT)];
    let mut slots = vec![Record::Text { number, bytes: text.len() as u32 }.slot()];
    for part in text.chunks(SLOT_BYTES) {
        let mut bytes = [0; SLOT_BYTES];
        bytes[..part.len()].copy_from_slice(part);
        slots.push(std::array::from_fn(|i| u64::from_ne_bytes(std::array::from_fn(|k| bytes[i * 8 + k]))));
    }
    slots
}

/// The bytes in the slots that follow a text's slot.
pub fn text_of(slots: &[Slot], bytes: usize) -> Vec<u8> {
    let mut text: Vec<u8> = slots.iter().flatten().flat_map(|word| word.to_ne_bytes()).collect();
    text.truncate(bytes);
    text
}

/// Frames with their number, as slots.
pub fn stack(number: u32, frames: &[u64]) -> Vec<Slot> {
    let frames = &frames[..frames.len().min(MAX_FRAMES)];
    let mut slots = vec![Record::Stack { number, frames: frames.len() as u32 }.slot()];
    slots.extend(frames.chunks(8).map(|part| std::array::from_fn(|i| part.get(i).copied().unwrap_or(0))));
    slots
}

/// The number of slots that follow the slot of a stack of this many frames.
pub fn stack_slots(frames: usize) -> usize {
    frames.min(MAX_FRAMES).div_ceil(8)
}

/// Two numbers in one 64-bit number.
fn two(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

mod tag {
    pub const KERNEL: u32 = 1;
    pub const COPY: u32 = 2;
    pub const MEMSET: u32 = 3;
    pub const GRAPH: u32 = 4;
    pub const WAIT: u32 = 5;
    pub const TEXT: u32 = 16;
    pub const MODE: u32 = 17;
    pub const OBSTACLE: u32 = 18;
    pub const CLOCK: u32 = 19;
    pub const DROPPED: u32 = 20;
    pub const DEVICE: u32 = 21;
    pub const STACK: u32 = 22;
    pub const LAUNCH: u32 = 23;
    pub const PUSH: u32 = 32;
    pub const POP: u32 = 33;
    pub const START: u32 = 34;
    pub const END: u32 = 35;
    pub const MARK: u32 = 36;
    pub const PAYLOAD: u32 = 37;
}

impl Record {
    /// Number 0 has the tag and 16 more bits above it; work has its times in 1 and 2.
    pub fn slot(&self) -> Slot {
        let mut slot = [0; 8];
        match *self {
            Record::Work(work) => {
                let of = |tag: u32, extra: u32| {
                    two(tag | extra << 8 | u32::from(work.device) << 16, work.correlation)
                };
                slot[1] = work.start_ns;
                slot[2] = work.end_ns;
                slot[3] = two(work.stream, work.graph);
                match work.kind {
                    WorkKind::Kernel { name, launch } => {
                        slot[0] = of(tag::KERNEL, 0);
                        slot[4] = two(name, launch.shared_bytes);
                        slot[5] = two(launch.grid[0], launch.grid[1]);
                        let [x, y, z] = launch.block.map(u64::from);
                        slot[6] = two(launch.grid[2], 0);
                        slot[7] = x | y << 16 | z << 32 | u64::from(launch.registers) << 48;
                    }
                    WorkKind::Copy { direction, bytes } => {
                        slot[0] = of(tag::COPY, u32::from(direction));
                        slot[4] = bytes;
                    }
                    WorkKind::Memset { bytes } => {
                        slot[0] = of(tag::MEMSET, 0);
                        slot[4] = bytes;
                    }
                    WorkKind::Graph => slot[0] = of(tag::GRAPH, 0),
                    WorkKind::Wait { kind } => slot[0] = of(tag::WAIT, u32::from(kind)),
                }
            }
            Record::Range(edge) => {
                let (tag, name, id) = match edge.kind {
                    EdgeKind::Push { name } => (tag::PUSH, name, 0),
                    EdgeKind::Pop => (tag::POP, 0, 0),
                    EdgeKind::Start { name, id } => (tag::START, name, id),
                    EdgeKind::End { id } => (tag::END, 0, id),
                    EdgeKind::Mark { name } => (tag::MARK, name, 0),
                };
                slot[0] = two(tag, edge.thread);
                slot[1] = edge.at_ns;
                slot[2] = two(edge.domain, name);
                slot[3] = id;
            }
            Record::Payload { thread, payload } => {
                let Payload { communicator, message_bytes, ranks, rank } = payload;
                let known =
                    [communicator.is_some(), message_bytes.is_some(), ranks.is_some(), rank.is_some()];
                let known =
                    known.iter().enumerate().fold(0, |bits, (bit, known)| bits | u32::from(*known) << bit);
                slot[0] = two(tag::PAYLOAD | known << 8, thread);
                slot[1] = communicator.unwrap_or(0);
                slot[2] = message_bytes.unwrap_or(0);
                slot[3] = two(ranks.unwrap_or(0), rank.unwrap_or(0));
            }
            Record::Device { number, uuid } => {
                slot[0] = two(tag::DEVICE, number);
                for (word, bytes) in slot[1..3].iter_mut().zip(uuid.chunks(8)) {
                    *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
                }
            }
            Record::Text { number, bytes } => {
                slot[0] = two(tag::TEXT, number);
                slot[1] = u64::from(bytes);
            }
            Record::Stack { number, frames } => {
                slot[0] = two(tag::STACK, number);
                slot[1] = u64::from(frames);
            }
            Record::Launch { correlation, stack } => {
                slot[0] = two(tag::LAUNCH, correlation);
                slot[1] = u64::from(stack);
            }
            Record::Mode { at_ns, mode } => {
                slot[0] = two(tag::MODE, mode as u32);
                slot[1] = at_ns;
            }
            Record::Obstacle(obstacle) => {
                let (kind, error) = match obstacle {
                    Obstacle::NoCupti => (0, 0),
                    Obstacle::Failed(error) => (1, error),
                    Obstacle::InUse => (2, 0),
                    Obstacle::NoContext => (3, 0),
                };
                slot[0] = two(tag::OBSTACLE, kind);
                slot[1] = u64::from(error);
            }
            Record::Clock { cupti_ns, monotonic_ns, realtime_ns, cupti_version } => {
                slot[0] = two(tag::CLOCK, cupti_version);
                slot[1..4].copy_from_slice(&[cupti_ns, monotonic_ns, realtime_ns]);
            }
            Record::Dropped { records } => {
                slot[0] = two(tag::DROPPED, 0);
                slot[1] = records;
            }
        }
        slot
    }

    /// The content of a slot; `None` for content that no library of this version writes.
    pub fn read(slot: &Slot) -> Option<Record> {
        let (low, high) = halves(slot[0]);
        let work = |kind| {
            let (stream, graph) = halves(slot[3]);
            let device = (low >> 16) as u16;
            Some(Record::Work(ActivityRecord {
                start_ns: slot[1],
                end_ns: slot[2],
                correlation: high,
                stream,
                device,
                graph,
                kind,
            }))
        };
        let extra = (low >> 8) as u8;
        let range = |kind| {
            let (domain, _) = halves(slot[2]);
            Some(Record::Range(RangeEdge { at_ns: slot[1], thread: high, domain, kind }))
        };
        let (_, range_name) = halves(slot[2]);
        match low & 0xff {
            tag::KERNEL => {
                let (name, shared_bytes) = halves(slot[4]);
                let (x, y) = halves(slot[5]);
                let block = [0, 16, 32].map(|bits| (slot[7] >> bits) as u16);
                let registers = (slot[7] >> 48) as u16;
                let launch = Launch { grid: [x, y, slot[6] as u32], block, registers, shared_bytes };
                work(WorkKind::Kernel { name, launch })
            }
            tag::COPY => work(WorkKind::Copy { direction: extra, bytes: slot[4] }),
            tag::MEMSET => work(WorkKind::Memset { bytes: slot[4] }),
            tag::GRAPH => work(WorkKind::Graph),
            tag::WAIT => work(WorkKind::Wait { kind: extra }),
            tag::TEXT => {
                let bytes = u32::try_from(slot[1]).ok().filter(|bytes| *bytes as usize <= MAX_TEXT)?;
                Some(Record::Text { number: high, bytes })
            }
            tag::STACK => {
                let frames = u32::try_from(slot[1]).ok().filter(|frames| *frames as usize <= MAX_FRAMES)?;
                Some(Record::Stack { number: high, frames })
            }
            tag::LAUNCH => Some(Record::Launch { correlation: high, stack: slot[1] as u32 }),
            tag::MODE => {
                let mode = [Mode::Nothing, Mode::Light, Mode::Burst].get(high as usize).copied()?;
                Some(Record::Mode { at_ns: slot[1], mode })
            }
            tag::OBSTACLE => Some(Record::Obstacle(match high {
                0 => Obstacle::NoCupti,
                1 => Obstacle::Failed(slot[1] as u32),
                2 => Obstacle::InUse,
                3 => Obstacle::NoContext,
                _ => return None,
            })),
            tag::CLOCK => Some(Record::Clock {
                cupti_ns: slot[1],
                monotonic_ns: slot[2],
                realtime_ns: slot[3],
                cupti_version: high,
            }),
            tag::PAYLOAD => {
                let known = |bit: u8| extra >> bit & 1 == 1;
                let (ranks, rank) = halves(slot[3]);
                let payload = Payload {
                    communicator: known(0).then_some(slot[1]),
                    message_bytes: known(1).then_some(slot[2]),
                    ranks: known(2).then_some(ranks),
                    rank: known(3).then_some(rank),
                };
                Some(Record::Payload { thread: high, payload })
            }
            tag::DEVICE => {
                let byte = |i: usize| (slot[1 + i / 8] >> (8 * (i % 8))) as u8;
                Some(Record::Device { number: high, uuid: std::array::from_fn(byte) })
            }
            tag::DROPPED => Some(Record::Dropped { records: slot[1] }),
            tag::PUSH => range(EdgeKind::Push { name: range_name }),
            tag::POP => range(EdgeKind::Pop),
            tag::START => range(EdgeKind::Start { name: range_name, id: slot[3] }),
            tag::END => range(EdgeKind::End { id: slot[3] }),
            tag::MARK => range(EdgeKind::Mark { name: range_name }),
            _ => None,
        }
    }
}

/// Readings of both clocks, of which the closest counts.
const CLOCK_TRIES: u32 = 16;

/// The same moment by two clocks: `inner` is read between two readings of `outer`. Of several tries, the one with the
/// shortest time between them counts: an interruption of the thread would shift every time that is converted with the
/// result.
pub fn closest(mut inner: impl FnMut() -> u64, mut outer: impl FnMut() -> u64) -> (u64, u64) {
    let tries = (0..CLOCK_TRIES).map(|_| {
        let (before, inner_ns, after) = (outer(), inner(), outer());
        let apart_ns = after.saturating_sub(before);
        (apart_ns, inner_ns, before + apart_ns / 2)
    });
    let (_, inner_ns, outer_ns) = tries.min().unwrap_or_default();
    (inner_ns, outer_ns)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kind() -> impl Strategy<Value = WorkKind> {
        let launch = (any::<[u32; 3]>(), any::<[u16; 3]>(), any::<u16>(), any::<u32>()).prop_map(
            |(grid, block, registers, shared_bytes)| Launch { grid, block, registers, shared_bytes },
        );
        prop_oneof![
            (any::<u32>(), launch).prop_map(|(name, launch)| WorkKind::Kernel { name, launch }),
            (any::<u8>(), any::<u64>()).prop_map(|(direction, bytes)| WorkKind::Copy { direction, bytes }),
            any::<u64>().prop_map(|bytes| WorkKind::Memset { bytes }),
            Just(WorkKind::Graph),
            any::<u8>().prop_map(|kind| WorkKind::Wait { kind }),
        ]
    }

    fn record() -> impl Strategy<Value = Record> {
        let work = (any::<[u64; 2]>(), any::<[u32; 3]>(), any::<u16>(), kind()).prop_map(
            |([start_ns, end_ns], [correlation, stream, graph], device, kind)| {
                Record::Work(ActivityRecord { start_ns, end_ns, correlation, stream, device, graph, kind })
            },
        );
        let edge = prop_oneof![
            any::<u32>().prop_map(|name| EdgeKind::Push { name }),
            Just(EdgeKind::Pop),
            (any::<u32>(), any::<u64>()).prop_map(|(name, id)| EdgeKind::Start { name, id }),
            any::<u64>().prop_map(|id| EdgeKind::End { id }),
            any::<u32>().prop_map(|name| EdgeKind::Mark { name }),
        ];
        let range = (any::<u64>(), any::<[u32; 2]>(), edge).prop_map(|(at_ns, [thread, domain], kind)| {
            Record::Range(RangeEdge { at_ns, thread, domain, kind })
        });
        let mode = prop_oneof![Just(Mode::Nothing), Just(Mode::Light), Just(Mode::Burst)];
        let obstacle = prop_oneof![
            Just(Obstacle::NoCupti),
            Just(Obstacle::InUse),
            Just(Obstacle::NoContext),
            any::<u32>().prop_map(Obstacle::Failed)
        ];
        prop_oneof![
            work,
            range,
            (any::<u64>(), mode).prop_map(|(at_ns, mode)| Record::Mode { at_ns, mode }),
            obstacle.prop_map(Record::Obstacle),
            (any::<[u64; 3]>(), any::<u32>()).prop_map(
                |([cupti_ns, monotonic_ns, realtime_ns], cupti_version)| {
                    Record::Clock { cupti_ns, monotonic_ns, realtime_ns, cupti_version }
                }
            ),
            any::<u64>().prop_map(|records| Record::Dropped { records }),
            any::<[u32; 2]>().prop_map(|[correlation, stack]| Record::Launch { correlation, stack }),
            (any::<u32>(), any::<[u8; 16]>()).prop_map(|(number, uuid)| Record::Device { number, uuid }),
            (any::<u32>(), any::<(Option<u64>, Option<u64>, Option<u32>, Option<u32>)>()).prop_map(
                |(thread, (communicator, message_bytes, ranks, rank))| {
                    let payload = Payload { communicator, message_bytes, ranks, rank };
                    Record::Payload { thread, payload }
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn a_record_is_read_back(record in record()) {
            prop_assert_eq!(Record::read(&record.slot()), Some(record));
        }

        #[test]
        fn a_text_is_read_back(number in any::<u32>(), bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let slots = text(number, &bytes);
            let wanted = &bytes[..bytes.len().min(MAX_TEXT)];
            prop_assert_eq!(Record::read(&slots[0]), Some(Record::Text { number, bytes: wanted.len() as u32 }));
            prop_assert_eq!(slots.len() - 1, text_slots(bytes.len()));
            prop_assert_eq!(text_of(&slots[1..], wanted.len()), wanted);
        }

        #[test]
        fn frames_are_read_back(number in any::<u32>(), frames in proptest::collection::vec(any::<u64>(), 0..100)) {
            let slots = stack(number, &frames);
            let wanted = &frames[..frames.len().min(MAX_FRAMES)];
            prop_assert_eq!(Record::read(&slots[0]), Some(Record::Stack { number, frames: wanted.len() as u32 }));
            prop_assert_eq!(slots.len() - 1, stack_slots(frames.len()));
            prop_assert_eq!(&slots[1..].concat()[..wanted.len()], wanted);
        }

        #[test]
        fn any_slot_is_read_without_panic(slot in any::<Slot>()) {
            match Record::read(&slot) {
                Some(Record::Text { bytes, .. }) => prop_assert!(bytes as usize <= MAX_TEXT),
                Some(Record::Stack { frames, .. }) => prop_assert!(frames as usize <= MAX_FRAMES),
                _ => {}
            }
        }
    }

    #[test]
    fn a_frame_is_one_word() {
        for (code, unit) in [(0x7fff_dead_beef, -1), (0xffff_ffff_ffff, i16::MAX), (0, 0), (16, i16::MIN)] {
            let frame = FrameAt { code, unit };
            assert_eq!(FrameAt::from_word(frame.word()), frame);
        }
    }

    #[test]
    fn commands_are_read_back() {
        let layout = FrameLayout {
            frame: 56,
            cframe: Some(0),
            back: 8,
            code: 0,
            instruction: 56,
            scale: 0,
            owner: None,
            code_type: 0x7fff_1234_5678,
        };
        let frames = Command::Frames(layout);
        let record = Command::Record { burst_ms: 200, period_ms: 5000 };
        for command in [record, Command::Everything, Command::Rest, frames] {
            assert_eq!(Command::read(command.line().trim_end()), Some(command));
        }
        for wrong in [
            "",
            "record",
            "record 1",
            "record x 2",
            "stop",
            "frames",
            "frames 1 2 3",
            "frames 10000 0 0 0 0 0 0 0",
        ] {
            assert_eq!(Command::read(wrong), None);
        }
    }

    #[test]
    fn the_socket_at_the_door_is_read_back() {
        for socket in [
            None,
            Some(DoorSocket { descriptor: 0, inode: 1 }),
            Some(DoorSocket { descriptor: i32::MAX, inode: u64::MAX }),
        ] {
            assert_eq!(door_socket(&door(socket)), socket);
        }
        for wrong in ["", "7", "-1 5", "x 5", "7 -5"] {
            assert_eq!(door_socket(wrong.as_bytes()), None, "{wrong}");
        }
    }

    /// A thread that is interrupted for 7 µs between two readings, in all tries but one.
    #[test]
    fn an_interruption_between_the_clocks_does_not_shift_them() {
        let now = std::cell::Cell::new(1_000);
        let reads = std::cell::Cell::new(0);
        let inner = || {
            now.set(now.get() + 20);
            5_000_000 + now.get()
        };
        let outer = || {
            reads.set(reads.get() + 1);
            let is_interrupted = reads.get() % 2 == 0 && reads.get() != 10;
            now.set(now.get() + if is_interrupted { 7_000 } else { 20 });
            now.get()
        };
        let (inner_ns, outer_ns) = closest(inner, outer);
        assert_eq!(inner_ns - outer_ns, 5_000_000, "exactly in the middle of two readings 40 ns apart");
    }
}
