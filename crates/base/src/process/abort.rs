//! Handles aborts of a thread and exhausted memory: the run is closed as far as possible, the terminal is restored, and
//! a message reports the reason.

#![allow(unsafe_code)] // a signal handler, and memory that it releases

use std::{
    cell::Cell,
    fmt::{self, Write},
    io,
    ptr::{self, NonNull},
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use signal_hook::{consts::SIGABRT, low_level};

/// Reserved address space for closing the run when memory is exhausted. It uses no memory until then.
const RESERVE_BYTES: usize = 32 << 20;
/// A failed allocation up to this size is tried again with the reserve: the thread can continue until the run is
/// closed.
const SMALL_BYTES: usize = 1 << 20;
/// Time for the main thread to close the run after another thread has aborted.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);
/// Interval between two checks by the main thread.
const CHECK: Duration = Duration::from_millis(100);

static RESERVE: AtomicPtr<std::ffi::c_void> = AtomicPtr::new(ptr::null_mut());
/// The last allocation that failed.
static FAILED_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Whether the program has to end.
static ENDING: AtomicBool = AtomicBool::new(false);
static RESTORE_TERMINAL: OnceLock<fn()> = OnceLock::new();

thread_local! {
    /// Const-initialised and without a destructor, so that a signal handler may read it.
    static IS_MAIN: Cell<bool> = const { Cell::new(false) };
}

/// Installs the handler and reserves memory. The calling thread is the one that closes runs.
pub fn prepare() -> io::Result<()> {
    IS_MAIN.set(true);
    // SAFETY: a new mapping, which nothing reads or writes.
    let reserve = unsafe {
        mmap_anonymous(
            ptr::null_mut(),
            RESERVE_BYTES,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    };
    // Without the reserve, less memory is left for the end.
    RESERVE.store(reserve.unwrap_or(ptr::null_mut()), Ordering::Release);
    // SAFETY: the handler uses only atomics, unmaps, sleeps, writes and exits; it does not allocate.
    unsafe { low_level::register(SIGABRT, on_abort) }.map(drop)
}

/// Restores the terminal if the program aborts. It must not allocate.
pub fn restore_terminal_by(restore: fn()) {
    let _ = RESTORE_TERMINAL.set(restore);
}

/// Called when an allocation fails. Returns whether the allocator should try again; then the program ends soon.
pub fn allocation_failed(bytes: usize) -> bool {
    FAILED_BYTES.store(bytes, Ordering::Release);
    let again = bytes <= SMALL_BYTES && release_reserve();
    if again {
        ENDING.store(true, Ordering::Release);
    }
    again
}

/// Waits until the program has to end, and reports why.
pub async fn ending() -> String {
    while !ENDING.load(Ordering::Acquire) {
        tokio::time::sleep(CHECK).await;
    }
    Reason.to_string()
}

fn release_reserve() -> bool {
    let reserve = NonNull::new(RESERVE.swap(ptr::null_mut(), Ordering::AcqRel));
    // SAFETY: the mapping of `prepare`, taken out at most once.
    reserve.is_some_and(|reserve| unsafe { munmap(reserve.as_ptr(), RESERVE_BYTES) }.is_ok())
}

/// A thread other than the main one waits here until the run is closed: its stack is preserved.
fn on_abort() {
    release_reserve();
    ENDING.store(true, Ordering::Release);
    if !IS_MAIN.get() {
        thread::sleep(CLOSE_LIMIT);
    }
    if let Some(restore) = RESTORE_TERMINAL.get() {
        restore();
    }
    let mut words = FixedText { text: [0; 256], len: 0 };
    let _ = writeln!(words, "error: {Reason}");
    let _ = rustix::io::write(rustix::stdio::stderr(), &words.text[..words.len]);
    low_level::exit(1);
}

struct Reason;

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match FAILED_BYTES.load(Ordering::Acquire) {
            0 => f.write_str("a thread of the program aborted"),
            bytes => write!(
                f,
                "out of memory: {bytes} bytes could not be allocated; use a smaller model or batch, check the chat template, or raise the limit (ulimit -v)"
            ),
        }
    }
}

/// Text that is formatted without an allocation.
struct FixedText {
    text: [u8; 256],
    len: usize,
}

impl Write for FixedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.text.len() - self.len;
        let text = &text.as_bytes()[..text.len().min(room)];
        self.text[self.len..self.len + text.len()].copy_from_slice(text);
        self.len += text.len();
        Ok(())
    }
}
