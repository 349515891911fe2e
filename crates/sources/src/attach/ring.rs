//! Memory that is shared with a program, and the reading end of its rings.

#![allow(unsafe_code)] // memory that another process writes

use std::{
    fs::File,
    io,
    os::fd::AsFd,
    ptr::{self, NonNull},
    sync::atomic::{AtomicU64, Ordering},
};

use llmprof_inject::wire::{
    Ends, HEADER_BYTES, Header, MAGIC, RANGE_SLOTS, SHARED_BYTES, SLOT_BYTES, Slot, WORK_SLOTS,
};
use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

/// Shared memory. It outlives the writing program.
pub struct Memory {
    file: File,
    base: NonNull<u8>,
}

// SAFETY: only this value has the mapping in this process; its numbers are accessed as atomics or volatile.
unsafe impl Send for Memory {}

/// The two rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    Work,
    Ranges,
}

/// The ends of a ring are invalid: the program has overwritten them.
#[derive(Debug, PartialEq, Eq)]
pub struct Corrupt;

impl Memory {
    pub fn new() -> io::Result<Memory> {
        let file = memfd_create("llmprof", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, SHARED_BYTES as u64)?;
        // The program cannot truncate it, which would end this process at the next access.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of a file whose size cannot change.
        let base =
            unsafe { mmap(ptr::null_mut(), SHARED_BYTES, protection, MapFlags::SHARED, file.as_fd(), 0)? };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = Memory { file: file.into(), base };
        memory.header().magic.store(MAGIC, Ordering::Release);
        Ok(memory)
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    fn header(&self) -> &Header {
        // SAFETY: within the mapping, aligned to a page; all fields are atomics.
        unsafe { self.base.cast::<Header>().as_ref() }
    }

    /// Signals to the library that the ring is being read.
    pub fn beat(&self) {
        self.header().heartbeat.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that did not fit.
    pub fn dropped(&self, which: Which) -> u64 {
        self.ends(which).dropped.load(Ordering::Relaxed)
    }

    fn ends(&self, which: Which) -> &Ends {
        match which {
            Which::Work => &self.header().work,
            Which::Ranges => &self.header().ranges,
        }
    }

    /// Copies up to `limit` slots that the library has written from `tail` on, and appends them to `into`. The tail is
    /// kept here: the program's copy is not trusted.
    pub fn copy(&self, which: Which, tail: u64, limit: usize, into: &mut Vec<Slot>) -> Result<(), Corrupt> {
        let (first, count) = match which {
            Which::Work => (HEADER_BYTES, WORK_SLOTS),
            Which::Ranges => (HEADER_BYTES + WORK_SLOTS * SLOT_BYTES, RANGE_SLOTS),
        };
        let ends = self.ends(which);
        let waiting = ends.head.load(Ordering::Acquire).wrapping_sub(tail);
        if waiting > count as u64 {
            return Err(Corrupt);
        }
        let taken = (waiting as usize).min(limit);
        into.reserve(taken);
        for i in 0..taken as u64 {
            let at = first + (tail.wrapping_add(i) as usize & (count - 1)) * SLOT_BYTES;
            // SAFETY: within the mapping. The program may write at the same time: each word is read once, and any value is valid.
            let slot = unsafe {
                let words = self.base.as_ptr().add(at).cast::<AtomicU64>();
                std::array::from_fn(|k| (*words.add(k)).load(Ordering::Relaxed))
            };
            into.push(slot);
        }
        Ok(())
    }

    /// Frees the slots before `tail`.
    pub fn free(&self, which: Which, tail: u64) {
        self.ends(which).tail.store(tail, Ordering::Release);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and no reference to it is left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), SHARED_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_ends_are_refused() {
        let memory = Memory::new().unwrap();
        let mut slots = Vec::new();
        assert_eq!(memory.copy(Which::Work, 0, 10, &mut slots), Ok(()));
        assert!(slots.is_empty());
        memory.header().work.head.store(3, Ordering::Release);
        assert_eq!(memory.copy(Which::Work, 0, 2, &mut slots), Ok(()));
        assert_eq!(slots.len(), 2);
        memory.free(Which::Work, 2);
        for head in [1, u64::MAX, 3 + WORK_SLOTS as u64] {
            memory.header().work.head.store(head, Ordering::Release);
            assert_eq!(memory.copy(Which::Work, 2, 10, &mut slots), Err(Corrupt), "{head}");
        }
        assert_eq!(memory.copy(Which::Ranges, 0, 10, &mut slots), Ok(()));
        assert!(memory.file().set_len(0).is_err(), "sealed");
    }
}
