//! CUPTI's activity records, read from their bytes.
//!
//! Only the first fields of a record are read. They are the same in CUDA 12 and 13: new fields are added at the end.

/// Kinds of records.
pub mod kind {
    pub const MEMCPY: u32 = 1;
    pub const MEMSET: u32 = 2;
    pub const DRIVER: u32 = 4;
    pub const RUNTIME: u32 = 5;
    pub const KERNEL: u32 = 10;
    pub const SYNCHRONIZATION: u32 = 38;
    pub const EXTERNAL_CORRELATION: u32 = 39;
    pub const GRAPH_TRACE: u32 = 51;
}

/// The bytes of a record.
#[derive(Clone, Copy)]
pub struct Bytes<'a>(pub &'a [u8]);

impl Bytes<'_> {
    pub fn u8(self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    pub fn u16(self, at: usize) -> Option<u16> {
        Some(u16::from_ne_bytes(self.0.get(at..at + 2)?.try_into().ok()?))
    }

    pub fn u32(self, at: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(self.0.get(at..at + 4)?.try_into().ok()?))
    }

    pub fn u64(self, at: usize) -> Option<u64> {
        Some(u64::from_ne_bytes(self.0.get(at..at + 8)?.try_into().ok()?))
    }

    fn extent(self, at: usize) -> Option<[u32; 3]> {
        Some([self.u32(at)?, self.u32(at + 4)?, self.u32(at + 8)?])
    }
}

/// The part of a record that describes GPU work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Activity {
    pub correlation: u32,
    pub start_ns: u64,
    pub end_ns: u64,
    pub device: u32,
    pub stream: u32,
    /// The graph node that it is, 0 for none, and its graph.
    pub node: u64,
    pub graph: u32,
    pub kind: ActivityKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivityKind {
    Kernel {
        /// The address of its name; 0 if CUPTI gives none.
        name_address: usize,
        grid: [u32; 3],
        block: [u32; 3],
        registers: u16,
        shared_bytes: u32,
    },
    Copy {
        direction: u8,
        bytes: u64,
    },
    Memset {
        bytes: u64,
    },
    Graph,
    Wait {
        kind: u8,
    },
}

/// The record at the beginning of `bytes`; `None` for other kinds and truncated records.
pub fn read(bytes: &[u8]) -> Option<Activity> {
    let b = Bytes(bytes);
    match b.u32(0)? {
        kind::KERNEL => Some(Activity {
            correlation: b.u32(92)?,
            start_ns: b.u64(16)?,
            end_ns: b.u64(24)?,
            device: b.u32(40)?,
            stream: b.u32(48)?,
            node: b.u64(144)?,
            graph: b.u32(156)?,
            kind: ActivityKind::Kernel {
                name_address: b.u64(104)? as usize,
                grid: b.extent(52)?,
                block: b.extent(64)?,
                registers: b.u16(6)?,
                shared_bytes: b.u32(76)?.saturating_add(b.u32(80)?),
            },
        }),
        tag @ (kind::MEMCPY | kind::MEMSET) => Some(Activity {
            correlation: b.u32(44)?,
            start_ns: b.u64(16)?,
            end_ns: b.u64(24)?,
            device: b.u32(32)?,
            stream: b.u32(40)?,
            node: b.u64(64)?,
            graph: b.u32(72)?,
            kind: match tag {
                kind::MEMCPY => ActivityKind::Copy { direction: b.u8(4)?, bytes: b.u64(8)? },
                _ => ActivityKind::Memset { bytes: b.u64(8)? },
            },
        }),
        kind::GRAPH_TRACE => Some(Activity {
            correlation: b.u32(4)?,
            start_ns: b.u64(8)?,
            end_ns: b.u64(16)?,
            device: b.u32(24)?,
            stream: b.u32(36)?,
            node: 0,
            graph: b.u32(28)?,
            kind: ActivityKind::Graph,
        }),
        kind::SYNCHRONIZATION => Some(Activity {
            correlation: b.u32(24)?,
            start_ns: b.u64(8)?,
            end_ns: b.u64(16)?,
            device: 0,
            stream: b.u32(32)?,
            node: 0,
            graph: 0,
            kind: ActivityKind::Wait { kind: b.u32(4)? as u8 },
        }),
        _ => None,
    }
}
