//! CUPTI's activity records, read from their bytes.
//!
//! Only the beginning of a record is read, which is the same in CUDA 12 and 13: records grow at their ends.

use crate::event::kernels::Extent;

/// Kinds of records that are asked for.
pub mod kind {
    pub const COPY: u32 = 1;
    pub const SET: u32 = 2;
    pub const DRIVER: u32 = 4;
    pub const RUNTIME: u32 = 5;
    pub const KERNEL: u32 = 10;
    pub const MARK: u32 = 39;
}

/// A record that means something here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    Work(Work),
    /// The launch `correlation` was made under the mark `id`.
    Mark {
        correlation: u32,
        id: u64,
    },
}

/// Something the GPU did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    /// Of the call that launched it.
    pub correlation: u32,
    pub start_ns: u64,
    pub end_ns: u64,
    pub in_graph: bool,
    pub what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    Kernel {
        /// Where its name stands; 0 where CUPTI tells none.
        name_at: usize,
        grid: Extent,
        block: Extent,
        registers: u16,
        shared_bytes: u32,
    },
    Copy {
        direction: &'static str,
        bytes: u64,
    },
    Set {
        bytes: u64,
    },
}

/// The record at the beginning of `bytes`; `None` for kinds that are not read here, records of other libraries' marks, and
/// records that are cut off.
pub fn read(bytes: &[u8]) -> Option<Record> {
    let u8_at = |at: usize| bytes.get(at).copied();
    let u16_at = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let u32_at = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let extent_at = |at: usize| Some([u32_at(at)?, u32_at(at + 4)?, u32_at(at + 8)?]);
    let work = |correlation_at: usize, node_at: usize, what: What| {
        Some(Record::Work(Work {
            correlation: u32_at(correlation_at)?,
            start_ns: u64_at(16)?,
            end_ns: u64_at(24)?,
            in_graph: u64_at(node_at)? != 0,
            what,
        }))
    };
    match u32_at(0)? {
        kind::KERNEL => {
            let what = What::Kernel {
                name_at: u64_at(104)? as usize,
                grid: extent_at(52)?,
                block: extent_at(64)?,
                registers: u16_at(6)?,
                shared_bytes: u32_at(76)?.saturating_add(u32_at(80)?),
            };
            work(92, 144, what)
        }
        kind::COPY => work(44, 64, What::Copy { direction: direction(u8_at(4)?), bytes: u64_at(8)? }),
        kind::SET => work(44, 64, What::Set { bytes: u64_at(8)? }),
        kind::MARK if u32_at(4)? == MARKS => Some(Record::Mark { correlation: u32_at(16)?, id: u64_at(8)? }),
        _ => None,
    }
}

/// CUPTI's name for marks of a kind that the user makes up.
pub const MARKS: u32 = 3;

fn direction(kind: u8) -> &'static str {
    match kind {
        1 => "copy, host to device",
        2 => "copy, device to host",
        8 => "copy on the device",
        10 => "copy between devices",
        _ => "copy",
    }
}

#[cfg(test)]
pub mod tests {
    use proptest::prelude::*;

    use super::*;

    fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
        bytes[at..at + value.len()].copy_from_slice(value);
    }

    /// A kernel's record as CUPTI lays it out.
    fn kernel() -> Vec<u8> {
        let mut bytes = vec![0u8; 208];
        put(&mut bytes, 0, &kind::KERNEL.to_ne_bytes());
        put(&mut bytes, 6, &96u16.to_ne_bytes());
        put(&mut bytes, 16, &1_000u64.to_ne_bytes());
        put(&mut bytes, 24, &4_500u64.to_ne_bytes());
        for (i, value) in [132u32, 1, 2, 256, 1, 1, 1024, 4096].iter().enumerate() {
            put(&mut bytes, 52 + 4 * i, &value.to_ne_bytes());
        }
        put(&mut bytes, 92, &77u32.to_ne_bytes());
        put(&mut bytes, 104, &0xabcdu64.to_ne_bytes());
        put(&mut bytes, 144, &5u64.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_kernel_is_read() {
        let what = What::Kernel {
            name_at: 0xabcd,
            grid: [132, 1, 2],
            block: [256, 1, 1],
            registers: 96,
            shared_bytes: 5120,
        };
        let wanted = Work { correlation: 77, start_ns: 1_000, end_ns: 4_500, in_graph: true, what };
        assert_eq!(read(&kernel()), Some(Record::Work(wanted)));
        assert_eq!(read(&kernel()[..100]), None, "cut off");
    }

    #[test]
    fn copies_marks_and_strangers() {
        let mut bytes = vec![0u8; 128];
        put(&mut bytes, 0, &kind::COPY.to_ne_bytes());
        bytes[4] = 1;
        put(&mut bytes, 8, &8192u64.to_ne_bytes());
        put(&mut bytes, 44, &9u32.to_ne_bytes());
        let Some(Record::Work(copy)) = read(&bytes) else { panic!("no copy") };
        assert_eq!(copy.what, What::Copy { direction: "copy, host to device", bytes: 8192 });
        assert_eq!((copy.correlation, copy.in_graph), (9, false));
        let mut mark = vec![0u8; 24];
        put(&mut mark, 0, &kind::MARK.to_ne_bytes());
        put(&mut mark, 4, &MARKS.to_ne_bytes());
        put(&mut mark, 8, &42u64.to_ne_bytes());
        put(&mut mark, 16, &9u32.to_ne_bytes());
        assert_eq!(read(&mark), Some(Record::Mark { correlation: 9, id: 42 }));
        put(&mut mark, 4, &1u32.to_ne_bytes());
        assert_eq!(read(&mark), None, "someone else's mark");
        put(&mut mark, 0, &kind::DRIVER.to_ne_bytes());
        assert_eq!(read(&mark), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = read(&bytes);
        }
    }
}
