//! The writing end of the rings.

use std::{
    collections::HashMap,
    ffi::c_int,
    ptr,
    sync::{
        Mutex, MutexGuard, TryLockError,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    c,
    wire::{
        self, Ends, HEADER_BYTES, Header, MAGIC, RANGE_SLOTS, Record, SHARED_BYTES, SLOT_BYTES, Slot,
        WORK_SLOTS,
    },
};

/// Shared memory of the profiler, mapped as long as this value lives.
pub struct Shared {
    base: *mut u8,
}

// SAFETY: its words are accessed as atomics or under a ring's lock.
unsafe impl Send for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`. The rings were closed before, under the locks that their writers hold.
        unsafe { c::munmap(self.base.cast(), SHARED_BYTES) };
    }
}

impl Shared {
    /// Maps the memory behind a descriptor; `None` if it is not the profiler's.
    pub fn map(fd: c_int) -> Option<Shared> {
        // SAFETY: a new mapping. Only a profiler of the same user could truncate the file.
        let base =
            unsafe { c::mmap(ptr::null_mut(), SHARED_BYTES, c::PROT_READ_WRITE, c::MAP_SHARED, fd, 0) };
        if base == c::MAP_FAILED {
            return None;
        }
        let shared = Shared { base: base.cast() };
        (shared.header().magic.load(Ordering::Acquire) == MAGIC).then_some(shared)
    }

    pub fn header(&self) -> &Header {
        // SAFETY: the mapping is larger and page-aligned. All fields are atomics.
        unsafe { &*self.base.cast::<Header>() }
    }

    /// # Safety
    /// The ring is dropped before this value.
    pub unsafe fn work(&self) -> Ring {
        // SAFETY: within the mapping.
        let (slots, ends) = unsafe { (self.base.add(HEADER_BYTES), &*ptr::from_ref(&self.header().work)) };
        Ring { slots: slots.cast(), count: WORK_SLOTS as u64, ends }
    }

    /// # Safety
    /// The ring is dropped before this value.
    pub unsafe fn ranges(&self) -> Ring {
        let offset = HEADER_BYTES + WORK_SLOTS * SLOT_BYTES;
        // SAFETY: within the mapping.
        let (slots, ends) = unsafe { (self.base.add(offset), &*ptr::from_ref(&self.header().ranges)) };
        Ring { slots: slots.cast(), count: RANGE_SLOTS as u64, ends }
    }
}

/// The writing end of a ring. Only one writer at a time: a [`Lane`] has a lock.
pub struct Ring {
    slots: *mut Slot,
    count: u64,
    ends: &'static Ends,
}

// SAFETY: as for `Shared`.
unsafe impl Send for Ring {}

impl Ring {
    /// Writes all slots or none; none if the reader is too far behind.
    fn push(&mut self, slots: &[Slot]) -> bool {
        let (head, tail) = (self.ends.head.load(Ordering::Relaxed), self.ends.tail.load(Ordering::Acquire));
        let used = head.wrapping_sub(tail);
        if used > self.count || self.count - used < slots.len() as u64 {
            self.ends.dropped.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        for (i, slot) in slots.iter().enumerate() {
            let at = (head.wrapping_add(i as u64) & (self.count - 1)) as usize;
            // SAFETY: `at` is below the number of slots, which is a power of two; the reader does not read beyond the head.
            unsafe { ptr::write_volatile(self.slots.add(at), *slot) };
        }
        self.ends.head.store(head.wrapping_add(slots.len() as u64), Ordering::Release);
        true
    }
}

/// A ring with the texts that were sent through it.
pub struct Lane(Mutex<Option<Open>>, AtomicU64);

struct Open {
    ring: Ring,
    texts: HashMap<Box<[u8]>, u32>,
    text_bytes: usize,
    stacks: HashMap<Box<[u64]>, u32>,
}

/// Maximum texts of one program. Further ones are sent as text 0.
const MAX_TEXTS: usize = 1 << 16;
const MAX_TEXT_BYTES: usize = 8 << 20;
/// Maximum stacks of one program. Launches from further ones have none.
const MAX_STACKS: usize = 1 << 15;

impl Lane {
    pub const fn new() -> Lane {
        Lane(Mutex::new(None), AtomicU64::new(0))
    }

    pub fn open(&self, ring: Ring) {
        *self.lock() = Some(Open { ring, texts: HashMap::new(), text_bytes: 0, stacks: HashMap::new() });
    }

    pub fn close(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Open>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Calls `write` with the lane, if it is open. Waits while another thread writes, which is always short.
    pub fn with(&self, write: impl FnOnce(&mut Writer<'_>)) {
        if let Some(open) = self.lock().as_mut() {
            write(&mut Writer(open));
        }
    }

    /// Like [`with`](Self::with), for threads of the program: it does not wait; what cannot be written is dropped and
    /// counted.
    pub fn try_with(&self, write: impl FnOnce(&mut Writer<'_>)) {
        for _ in 0..64 {
            match self.0.try_lock() {
                Ok(mut guard) => {
                    if let Some(open) = guard.as_mut() {
                        let missed = self.1.swap(0, Ordering::Relaxed);
                        open.ring.ends.dropped.fetch_add(missed, Ordering::Relaxed);
                        write(&mut Writer(open));
                    }
                    return;
                }
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
                Err(TryLockError::Poisoned(_)) => return,
            }
        }
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

pub struct Writer<'a>(&'a mut Open);

impl Writer<'_> {
    pub fn write(&mut self, record: Record) {
        self.0.ring.push(&[record.slot()]);
    }

    /// The number of a text, which is sent before its first use. 0 if there are too many.
    pub fn number(&mut self, text: &[u8]) -> u32 {
        let open = &mut *self.0;
        if let Some(number) = open.texts.get(text) {
            return *number;
        }
        let kept = &text[..text.len().min(wire::MAX_TEXT)];
        if open.texts.len() >= MAX_TEXTS || open.text_bytes + kept.len() > MAX_TEXT_BYTES {
            return 0;
        }
        let number = open.texts.len() as u32 + 1;
        if !open.ring.push(&wire::text(number, kept)) {
            return 0;
        }
        open.text_bytes += kept.len();
        open.texts.insert(kept.into(), number);
        number
    }

    /// The number of a stack, which is sent before its first use; 0 if there are too many.
    pub fn stack(&mut self, frames: &[u64]) -> u32 {
        let open = &mut *self.0;
        if let Some(number) = open.stacks.get(frames) {
            return *number;
        }
        let number = open.stacks.len() as u32 + 1;
        if open.stacks.len() >= MAX_STACKS || !open.ring.push(&wire::stack(number, frames)) {
            return 0;
        }
        open.stacks.insert(frames.into(), number);
        number
    }
}
