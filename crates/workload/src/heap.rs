//! Counts heap memory: live bytes of the process, and allocations of a thread.

#![allow(unsafe_code)] // needed by every allocator, and to read glibc's statistics

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::{
        OnceLock,
        atomic::{AtomicI64, Ordering},
    },
};

use llmprof_event::{Allocator, AllocatorSample, HeapGrowth};

/// The system's allocator with counters. A program installs it as its global allocator; otherwise all functions of this
/// module return `None`.
pub struct CountingHeap;

/// Live bytes of all threads. `PEAK` may miss what another thread allocates in the same nanoseconds.
static LIVE: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);

/// Called with the size of an allocation that failed. Returns whether to try again.
static ON_FAILURE: OnceLock<fn(usize) -> bool> = OnceLock::new();

/// Registers `handler`, which is called when an allocation fails. It must neither allocate nor panic.
pub fn on_failure(handler: fn(usize) -> bool) {
    let _ = ON_FAILURE.set(handler);
}

/// Allocates with `allocate`, and retries once if the failure handler freed memory.
fn with_second_try(bytes: usize, allocate: impl Fn() -> *mut u8) -> *mut u8 {
    let allocate = || if is_beyond_limit(bytes) { std::ptr::null_mut() } else { allocate() };
    let memory = allocate();
    if memory.is_null() && ON_FAILURE.get().is_some_and(|handler| handler(bytes)) {
        return allocate();
    }
    memory
}

/// Calls `work`, during which this thread may allocate `bytes` more heap memory. An allocation beyond that fails.
pub fn limited<T>(bytes: u64, work: impl FnOnce() -> T) -> T {
    let live = THREAD.with(|account| account.live.get());
    let limit = live.saturating_add_unsigned(bytes);
    let outer = LIMIT.replace(limit);
    LIMIT.set(limit.min(outer));
    let _restore = RestoreLimit(outer);
    work()
}

/// Restores the limit, also after a panic.
struct RestoreLimit(i64);

impl Drop for RestoreLimit {
    fn drop(&mut self) {
        LIMIT.set(self.0);
    }
}

fn is_beyond_limit(bytes: usize) -> bool {
    let limit = LIMIT.try_with(Cell::get).unwrap_or(i64::MAX);
    limit < i64::MAX && THREAD.try_with(|account| account.live.get()).unwrap_or(0) + bytes as i64 > limit
}

thread_local! {
    /// The maximum live bytes of this thread.
    static LIMIT: Cell<i64> = const { Cell::new(i64::MAX) };
    /// Constant and without a destructor: an allocator may be called at any moment of a thread's life.
    static THREAD: Account = const { Account { allocated: Cell::new(0), live: Cell::new(0), peak: Cell::new(0) } };
}

/// The allocations of one thread. It may free what other threads allocated, so its live bytes can be negative.
struct Account {
    allocated: Cell<u64>,
    live: Cell<i64>,
    peak: Cell<i64>,
}

fn count_allocated(bytes: usize) {
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

fn count_freed(bytes: usize) {
    LIVE.fetch_sub(bytes as i64, Ordering::Relaxed);
    let _ = THREAD.try_with(|account| account.live.set(account.live.get() - bytes as i64));
}

// SAFETY: every call goes to the system's allocator with the same arguments, a failed one perhaps twice; neither
// counting nor the failure handler allocates or panics.
unsafe impl GlobalAlloc for CountingHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract is that of the system's allocator.
        let memory = with_second_try(layout.size(), || unsafe { System.alloc(layout) });
        if !memory.is_null() {
            count_allocated(layout.size());
        }
        memory
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let memory = with_second_try(layout.size(), || unsafe { System.alloc_zeroed(layout) });
        if !memory.is_null() {
            count_allocated(layout.size());
        }
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) };
        count_freed(layout.size());
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        let moved = with_second_try(size, || unsafe { System.realloc(memory, layout, size) });
        if !moved.is_null() {
            // It may have grown in place: only the difference counts.
            match size.checked_sub(layout.size()) {
                Some(more) => count_allocated(more),
                None => count_freed(layout.size() - size),
            }
        }
        moved
    }
}

/// Whether the program has installed the counters.
pub fn is_counted() -> bool {
    // Every program has allocated memory by now.
    PEAK.load(Ordering::Relaxed) > 0
}

/// The heap of the process now; `None` if it is not counted.
pub fn sample() -> Option<AllocatorSample> {
    is_counted().then(|| AllocatorSample {
        allocator: Allocator::Heap,
        live_bytes: LIVE.load(Ordering::Relaxed).max(0) as u64,
        peak_bytes: PEAK.load(Ordering::Relaxed).max(0) as u64,
        reserved_bytes: reserved_bytes(),
    })
}

/// The start of counting a thread's allocations. Checkpoints of one thread may nest.
#[derive(Debug, Clone, Copy)]
pub struct Checkpoint {
    allocated: u64,
    live: i64,
    /// The peak of the enclosing checkpoint.
    outer_peak: i64,
}

/// Starts counting the calling thread's allocations; `None` if the heap is not counted.
pub fn checkpoint() -> Option<Checkpoint> {
    if !is_counted() {
        return None;
    }
    THREAD
        .try_with(|account| {
            let (allocated, live) = (account.allocated.get(), account.live.get());
            Checkpoint { allocated, live, outer_peak: account.peak.replace(live) }
        })
        .ok()
}

impl Checkpoint {
    /// Bytes that the thread has allocated since the checkpoint and not freed.
    pub fn held_bytes(&self) -> u64 {
        THREAD.try_with(|account| (account.live.get() - self.live).max(0) as u64).unwrap_or(0)
    }

    /// The thread's allocations since the checkpoint. Call it once, on the thread that created the checkpoint, inner
    /// checkpoints first.
    pub fn growth(self) -> HeapGrowth {
        let growth = THREAD.try_with(|account| {
            let peak = account.peak.get();
            account.peak.set(peak.max(self.outer_peak));
            HeapGrowth {
                allocated_bytes: account.allocated.get().wrapping_sub(self.allocated),
                peak_bytes: (peak - self.live).max(0) as u64,
            }
        });
        growth.unwrap_or_default()
    }
}

/// Bytes that glibc has reserved from the system: its arenas and its mappings. Other C libraries do not report this.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn reserved_bytes() -> Option<u64> {
    use std::sync::OnceLock;

    use libloading::os::unix::Library;

    /// As in `malloc.h` since glibc 2.33.
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
    // SAFETY: it has no arguments, and locks what it reads.
    let info = unsafe { (*function)?() };
    Some((info.arena + info.hblkhd) as u64)
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn reserved_bytes() -> Option<u64> {
    None
}
