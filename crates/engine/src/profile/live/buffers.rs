//! The buffers that CUPTI writes its records into.

#![allow(unsafe_code)] // memory that a C library writes

use std::{
    alloc::{GlobalAlloc, Layout, System},
    collections::VecDeque,
    slice,
};

/// Bytes of a buffer: a few seconds of eager decode steps, a sixth of a second of the fastest graphs.
pub const BUFFER_BYTES: usize = 2 << 20;
/// CUPTI aligns its records to this.
const ALIGNMENT: usize = 8;
/// Maximum full buffers that wait to be read; records beyond that are dropped and counted.
const MAX_FULL: usize = 64;
/// Buffers that CUPTI may have at a time without reallocating the register.
const EXPECTED_LENT: usize = 256;
/// Approximate bytes of a kernel's record.
const RECORD_BYTES: usize = 208;

fn layout() -> Layout {
    // A valid constant layout.
    Layout::from_size_align(BUFFER_BYTES, ALIGNMENT).unwrap_or(Layout::new::<u64>())
}

/// A buffer with records, owned again.
pub struct FullBuffer {
    base: *mut u8,
    valid: usize,
}

// SAFETY: the memory belongs to the buffer alone; CUPTI has returned it.
unsafe impl Send for FullBuffer {}

impl Drop for FullBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated by `Buffers::lend` with this layout; the register lets it become a `FullBuffer` once.
        unsafe { System.dealloc(self.base, layout()) };
    }
}

impl FullBuffer {
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Bytes with records, at most those of a buffer.
    pub fn valid(&self) -> usize {
        self.valid
    }

    /// The valid bytes from `record` on; `None` if it points outside of them.
    pub fn bytes_from(&self, record: *const u8) -> Option<&[u8]> {
        let offset = (record as usize).checked_sub(self.base as usize)?;
        // SAFETY: CUPTI has written the first `valid` bytes, and `valid` is at most the size of the buffer.
        unsafe { slice::from_raw_parts(self.base, self.valid) }.get(offset..)
    }
}

/// Tracks every buffer that was given to CUPTI, so that no other is read or freed.
#[derive(Default)]
pub struct Buffers {
    /// Addresses of the buffers that CUPTI has.
    lent: Vec<usize>,
    full: VecDeque<FullBuffer>,
    lost: Lost,
}

/// Records and buffers that could not be read.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// An estimate.
    pub records: u64,
    /// Buffers that CUPTI returned but that were not lent to it. They are ignored.
    pub foreign_buffers: u64,
}

impl Buffers {
    pub const fn new() -> Buffers {
        let lost = Lost { records: 0, foreign_buffers: 0 };
        Buffers { lent: Vec::new(), full: VecDeque::new(), lost }
    }

    /// Allocates the register now: CUPTI requests buffers during operators, whose heap allocations are counted.
    pub fn reserve(&mut self) {
        self.lent.reserve(EXPECTED_LENT);
        self.full.reserve(MAX_FULL);
    }

    /// A new buffer for CUPTI; null if memory is exhausted.
    pub fn lend(&mut self) -> *mut u8 {
        // From the system's allocator: CUPTI's memory does not count as the operator's.
        // SAFETY: the layout has a non-zero size.
        let base = unsafe { System.alloc(layout()) };
        if !base.is_null() {
            self.lent.push(base as usize);
        }
        base
    }

    /// Takes back a buffer whose first `valid` bytes are records.
    pub fn take_back(&mut self, base: *mut u8, valid: usize) {
        let Some(index) = self.lent.iter().position(|address| *address == base as usize) else {
            self.lost.foreign_buffers += u64::from(!base.is_null());
            return;
        };
        self.lent.swap_remove(index);
        let buffer = FullBuffer { base, valid: valid.min(BUFFER_BYTES) };
        if self.full.len() >= MAX_FULL {
            self.lost.records += (buffer.valid / RECORD_BYTES) as u64;
        } else if buffer.valid > 0 {
            self.full.push_back(buffer);
        }
    }

    /// The oldest buffer with records.
    pub fn next_full(&mut self) -> Option<FullBuffer> {
        self.full.pop_front()
    }

    /// The number of lost records since the last call.
    pub fn take_lost(&mut self) -> Lost {
        std::mem::take(&mut self.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(base: *mut u8, bytes: &[u8]) {
        // SAFETY: tests write the first bytes of a buffer they got from `lend`.
        unsafe { base.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    #[test]
    fn a_lent_buffer_comes_back_with_its_records() {
        let mut buffers = Buffers::new();
        buffers.reserve();
        let base = buffers.lend();
        write(base, &[1, 2, 3, 4, 5, 6, 7, 8]);
        buffers.take_back(base, 8);
        let buffer = buffers.next_full().unwrap();
        assert_eq!((buffer.base(), buffer.valid()), (base, 8));
        assert_eq!(buffer.bytes_from(base.wrapping_add(5)), Some(&[6, 7, 8][..]));
        assert_eq!(buffer.bytes_from(base.wrapping_add(8)), Some(&[][..]));
        assert_eq!(buffer.bytes_from(base.wrapping_add(9)), None, "beyond the valid bytes");
        assert_eq!(buffer.bytes_from(base.wrapping_sub(1)), None, "before the buffer");
        assert!(buffers.next_full().is_none());
        assert_eq!(buffers.take_lost(), Lost::default());
    }

    #[test]
    fn foreign_buffers_are_counted_and_neither_read_nor_freed() {
        let mut buffers = Buffers::new();
        let lent = buffers.lend();
        write(lent, &[9; 16]);
        let mut foreign = [7u8; 16];
        buffers.take_back(foreign.as_mut_ptr(), 16);
        buffers.take_back(lent.wrapping_add(8), 8);
        assert!(buffers.next_full().is_none());
        buffers.take_back(lent, 16);
        buffers.take_back(lent, 16);
        assert!(buffers.next_full().is_some(), "ours is read once");
        assert!(buffers.next_full().is_none(), "a buffer returned twice is foreign the second time");
        assert_eq!(buffers.take_lost(), Lost { records: 0, foreign_buffers: 3 });
        assert_eq!(buffers.take_lost(), Lost::default());
        buffers.take_back(std::ptr::null_mut(), 16);
        assert_eq!(buffers.take_lost(), Lost::default(), "null is no buffer");
        assert_eq!(foreign, [7; 16]);
    }

    #[test]
    fn valid_bytes_are_at_most_those_of_the_buffer() {
        let mut buffers = Buffers::new();
        let base = buffers.lend();
        write(base, &vec![0; BUFFER_BYTES]);
        buffers.take_back(base, usize::MAX);
        assert_eq!(buffers.next_full().unwrap().valid(), BUFFER_BYTES);
        let empty = buffers.lend();
        buffers.take_back(empty, 0);
        assert!(buffers.next_full().is_none(), "a buffer without records is freed at once");
    }

    #[test]
    fn buffers_that_nothing_reads_are_dropped_and_counted() {
        let mut buffers = Buffers::new();
        for _ in 0..MAX_FULL + 2 {
            let base = buffers.lend();
            buffers.take_back(base, 10 * RECORD_BYTES);
        }
        assert_eq!(buffers.take_lost(), Lost { records: 20, foreign_buffers: 0 });
        assert_eq!(std::iter::from_fn(|| buffers.next_full()).count(), MAX_FULL);
        assert!(buffers.lent.is_empty());
    }
}
