//! The library in the other program. It delays the program's start by some milliseconds, blocks none of its threads
//! afterwards, prints nothing, and lets no panic escape.

#![allow(unsafe_code)] // it is called by the driver and calls CUPTI, both in C

mod c;
mod cupti;
mod descriptor;
mod devices;
mod door;
mod frames;
#[allow(dead_code)] // the built-in engine's half
mod functions;
#[allow(dead_code)] // the built-in engine's half
mod layout;
mod nvtx;
mod payload;
mod ring;
mod session;
#[allow(dead_code)] // the profiler's half
mod wire;

use std::{
    ffi::{c_char, c_int, c_void},
    panic, ptr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use ring::Lane;

static WORK: Lane = Lane::new();
static RANGES: Lane = Lane::new();
static RECORDING: AtomicBool = AtomicBool::new(false);
static STARTED: AtomicBool = AtomicBool::new(false);

fn is_recording() -> bool {
    RECORDING.load(Ordering::Relaxed)
}

fn set_recording(on: bool) {
    RECORDING.store(on, Ordering::Relaxed);
}

/// Called by the driver while it initialises CUDA, in this process or in the child of a fork.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeInjection() -> c_int {
    let _ = panic::catch_unwind(|| start(session::begin));
    1
}

/// Called in a thread of its own after the library was loaded into a running process.
#[unsafe(no_mangle)]
pub extern "C" fn llmprof_join(_argument: *const c_char) -> c_int {
    let joined = panic::catch_unwind(|| {
        if !STARTED.load(Ordering::Acquire) && !session::open_door() {
            return false;
        }
        start(|| None);
        true
    });
    c_int::from(!joined.unwrap_or(false))
}

/// Called by each copy of NVTX's header at its first use.
///
/// # Safety
/// `export_table` is NVTX's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeInjectionNvtx2(
    export_table: unsafe extern "C" fn(u32) -> *const c_void,
) -> c_int {
    // SAFETY: as above.
    let _ = panic::catch_unwind(|| unsafe { nvtx::install(export_table) });
    1
}

/// Called by each copy of NVTX's extensions at its first use.
///
/// # Safety
/// `info` is NVTX's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeInjectionNvtxExtension(info: *const c_void) -> c_int {
    // SAFETY: as above.
    let _ = panic::catch_unwind(|| unsafe { payload::install(info.cast()) });
    1
}

/// `begin` runs in this thread, before the library's own.
fn start(begin: fn() -> Option<session::Session>) {
    if STARTED.swap(true, Ordering::AcqRel) {
        return;
    }
    panic::set_hook(Box::new(|_| {}));
    let (all, mut before) = (c::Signals([0xff; 128]), c::Signals([0; 128]));
    // SAFETY: sets of signals of glibc's size; the functions live as long as the library, which is never unloaded.
    unsafe {
        c::pthread_atfork(None, None, Some(forked));
        c::atexit(session::finish);
        // The thread inherits the mask, so that the program's signals are not delivered to it.
        c::pthread_sigmask(c::SIG_SETMASK, &all, &mut before);
    }
    let begun = panic::catch_unwind(begin).ok().flatten();
    let _ = thread::Builder::new().name("llmprof".to_owned()).stack_size(256 << 10).spawn(|| {
        let _ = panic::catch_unwind(panic::AssertUnwindSafe(|| session::run(begun)));
    });
    // SAFETY: restores the previous mask.
    unsafe { c::pthread_sigmask(c::SIG_SETMASK, &before, ptr::null_mut()) };
}

/// The child of a fork has no thread of this library, and the connection is the parent's. If the child initialises CUDA
/// itself, the library starts again.
extern "C" fn forked() {
    set_recording(false);
    // The end of the child has nothing to wait for.
    session::FINISHED.store(true, Ordering::Relaxed);
    descriptor::forget();
    cupti::Cupti::forget();
    STARTED.store(false, Ordering::Release);
}
