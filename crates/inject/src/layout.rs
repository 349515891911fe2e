//! CUPTI's activity records, read from their bytes.
//!
//! Only the first fields of a record are read. They are the same in CUDA 12 and 13: new fields are added at the end.

use crate::wire::{ActivityRecord, Launch, WorkKind};

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

/// The GPU work of the record at the beginning of `bytes`, with the address of a kernel's name, 0 if CUPTI gives none;
/// `None` for other kinds and truncated records.
pub fn read(bytes: &[u8]) -> Option<ActivityRecord<usize>> {
    let b = Bytes(bytes);
    // A node's graph may have the number 0.
    let graph = |node: u64, graph: u32| if node != 0 { graph.max(1) } else { 0 };
    match b.u32(0)? {
        kind::KERNEL => Some(ActivityRecord {
            correlation: b.u32(92)?,
            start_ns: b.u64(16)?,
            end_ns: b.u64(24)?,
            device: b.u32(40)? as u16,
            stream: b.u32(48)?,
            graph: graph(b.u64(144)?, b.u32(156)?),
            kind: WorkKind::Kernel {
                name: b.u64(104)? as usize,
                launch: Launch {
                    grid: b.extent(52)?,
                    block: b.extent(64)?.map(|threads| threads.min(u32::from(u16::MAX)) as u16),
                    registers: b.u16(6)?,
                    shared_bytes: b.u32(76)?.saturating_add(b.u32(80)?),
                },
            },
        }),
        tag @ (kind::MEMCPY | kind::MEMSET) => Some(ActivityRecord {
            correlation: b.u32(44)?,
            start_ns: b.u64(16)?,
            end_ns: b.u64(24)?,
            device: b.u32(32)? as u16,
            stream: b.u32(40)?,
            graph: graph(b.u64(64)?, b.u32(72)?),
            kind: match tag {
                kind::MEMCPY => WorkKind::Copy { direction: b.u8(4)?, bytes: b.u64(8)? },
                _ => WorkKind::Memset { bytes: b.u64(8)? },
            },
        }),
        kind::GRAPH_TRACE => Some(ActivityRecord {
            correlation: b.u32(4)?,
            start_ns: b.u64(8)?,
            end_ns: b.u64(16)?,
            device: b.u32(24)? as u16,
            stream: b.u32(36)?,
            graph: b.u32(28)?.max(1),
            kind: WorkKind::Graph,
        }),
        kind::SYNCHRONIZATION => Some(ActivityRecord {
            correlation: b.u32(24)?,
            start_ns: b.u64(8)?,
            end_ns: b.u64(16)?,
            device: 0,
            stream: b.u32(32)?,
            graph: 0,
            kind: WorkKind::Wait { kind: b.u32(4)? as u8 },
        }),
        _ => None,
    }
}
