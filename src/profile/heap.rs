//! The heap, counted: what this process holds, and what a thread asks for.

#![allow(unsafe_code)] // an allocator can't be written without it; reading glibc's own account neither

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::atomic::{AtomicI64, Ordering},
};

use crate::event::{Allocator, AllocatorSample, HeapGrowth};

/// The system's heap with a count beside it. Only a program can install it; where none did, nothing here knows anything.
pub struct CountingHeap;

/// Of all threads. A peak may be missed by what another thread takes in the same nanoseconds.
static LIVE: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);

thread_local! {
    /// Without a destructor and made at compile time: an allocator may use it at any moment of a thread's life.
    static THREAD: Account = const { Account { allocated: Cell::new(0), live: Cell::new(0), peak: Cell::new(0) } };
}

/// What one thread has asked for. It may give back what others took, so what it holds can be below zero.
struct Account {
    allocated: Cell<u64>,
    live: Cell<i64>,
    peak: Cell<i64>,
}

fn grew(bytes: usize) {
    let bytes = bytes as i64;
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    if live > PEAK.load(Ordering::Relaxed) {
        PEAK.fetch_max(live, Ordering::Relaxed);
    }
    let _ = THREAD.try_with(|account| {
        account.allocated.set(account.allocated.get().wrapping_add(bytes as u64));
        account.live.set(account.live.get() + bytes);
        account.peak.set(account.peak.get().max(account.live.get()));
    });
}

fn shrank(bytes: usize) {
    LIVE.fetch_sub(bytes as i64, Ordering::Relaxed);
    let _ = THREAD.try_with(|account| account.live.set(account.live.get() - bytes as i64));
}

// SAFETY: every call is the system's own, with the same arguments; counting neither allocates nor panics.
unsafe impl GlobalAlloc for CountingHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        let memory = unsafe { System.alloc(layout) };
        if !memory.is_null() {
            grew(layout.size());
        }
        memory
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let memory = unsafe { System.alloc_zeroed(layout) };
        if !memory.is_null() {
            grew(layout.size());
        }
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) };
        shrank(layout.size());
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        let moved = unsafe { System.realloc(memory, layout, size) };
        if !moved.is_null() {
            // What was there may have been moved within itself: only the difference is asked for.
            match size.checked_sub(layout.size()) {
                Some(more) => grew(more),
                None => shrank(layout.size() - size),
            }
        }
        moved
    }
}

/// Whether the program counts its heap.
pub fn is_counted() -> bool {
    // No program gets as far as asking without having taken some.
    PEAK.load(Ordering::Relaxed) > 0
}

/// What the process holds now; `None` where it is not counted.
pub fn sample() -> Option<AllocatorSample> {
    is_counted().then(|| AllocatorSample {
        allocator: Allocator::Heap,
        live_bytes: LIVE.load(Ordering::Relaxed).max(0) as u64,
        peak_bytes: PEAK.load(Ordering::Relaxed).max(0) as u64,
        reserved_bytes: reserved_bytes(),
    })
}

/// A moment of a thread, from which on its requests are looked at. Marks of one thread may lie within each other.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    allocated: u64,
    live: i64,
    /// The peak of the mark around this one.
    outer_peak: i64,
}

/// Marks this moment of the calling thread; `None` where the heap is not counted.
pub fn mark() -> Option<Mark> {
    if !is_counted() {
        return None;
    }
    THREAD
        .try_with(|account| {
            let (allocated, live) = (account.allocated.get(), account.live.get());
            Mark { allocated, live, outer_peak: account.peak.replace(live) }
        })
        .ok()
}

impl Mark {
    /// What the thread asked for since. To be called on the thread that made the mark, once, inner marks first.
    pub fn growth(self) -> HeapGrowth {
        let grown = THREAD.try_with(|account| {
            let peak = account.peak.get();
            account.peak.set(peak.max(self.outer_peak));
            HeapGrowth {
                allocated_bytes: account.allocated.get().wrapping_sub(self.allocated),
                peak_bytes: (peak - self.live).max(0) as u64,
            }
        });
        grown.unwrap_or_default()
    }
}

/// What glibc has taken from the system: its arenas, and what it maps piece by piece. Not there with another C library.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn reserved_bytes() -> Option<u64> {
    use std::sync::OnceLock;

    use libloading::os::unix::Library;

    /// As `malloc.h` has it since glibc 2.33.
    #[repr(C)]
    struct Mallinfo2 {
        arena: usize,
        ordblks: usize,
        smblks: usize,
        hblks: usize,
        hblkhd: usize,
        usmblks: usize,
        fsmblks: usize,
        uordblks: usize,
        fordblks: usize,
        keepcost: usize,
    }
    type Function = unsafe extern "C" fn() -> Mallinfo2;
    static FUNCTION: OnceLock<Option<Function>> = OnceLock::new();

    let function = FUNCTION.get_or_init(|| {
        // Looked up rather than linked: the program runs with older C libraries too.
        // SAFETY: the type is that of the function in `malloc.h`, and libc stays loaded.
        unsafe { Library::this().get::<Function>(b"mallinfo2\0") }.ok().map(|symbol| *symbol)
    });
    // SAFETY: it takes nothing, and locks what it reads.
    let info = unsafe { (*function)?() };
    Some((info.arena + info.hblkhd) as u64)
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn reserved_bytes() -> Option<u64> {
    None
}
