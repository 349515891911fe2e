//! Keeps the first panic of any thread, so that the run is closed in order and the panic is reported at the end.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{LazyLock, Mutex, PoisonError},
};

use tokio::sync::Notify;

static FIRST_PANIC: Mutex<Option<String>> = Mutex::new(None);
static PANICKED: LazyLock<Notify> = LazyLock::new(Notify::new);

thread_local! {
    /// Whether this thread is inside [`contained`].
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Keeps panics from now on instead of printing them: the TUI may be open, and the run must be closed first.
pub fn keep_panics() {
    std::panic::set_hook(Box::new(|info| {
        if is_contained() {
            return;
        }
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed").to_owned();
        let message = info.payload_as_str().unwrap_or("no message");
        let location = info.location().map_or_else(String::new, |l| format!(" at {}:{}", l.file(), l.line()));
        let text = format!("thread {name} panicked{location}: {message}");
        tracing::error!("{text}\n{}", std::backtrace::Backtrace::force_capture());
        FIRST_PANIC.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(text);
        PANICKED.notify_one();
    }));
}

/// Whether this thread is inside [`contained`], where a panic does not end the program.
pub fn is_contained() -> bool {
    CONTAINED.get()
}

/// Calls code of other crates that may panic on bad input. A panic becomes an error with its message and does not end
/// the program.
pub fn contained<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let outer = CONTAINED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    CONTAINED.set(outer);
    result.map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
    })
}

/// The thread, location and message of the first panic.
pub fn first_panic() -> Option<String> {
    FIRST_PANIC.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Waits for a panic in any thread.
pub async fn panicked() -> String {
    loop {
        if let Some(text) = first_panic() {
            return text;
        }
        PANICKED.notified().await;
    }
}

/// Whether this build can make parts of the program fail: tests can, releases cannot.
pub const FAULT_INJECTION: bool = cfg!(fault_injection);

/// Whether `LLMPROF_FAULT` requests the fault of that name.
pub fn fault_requested(fault: &str) -> bool {
    static FAULT: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("LLMPROF_FAULT").ok());
    FAULT_INJECTION && FAULT.as_deref() == Some(fault)
}

/// Panics if `LLMPROF_FAULT=panic:<point>` requests it; fails an allocation if `allocation:<point>` does.
pub fn fault_point(point: &str) {
    if !FAULT_INJECTION {
        return;
    }
    if fault_requested(&format!("panic:{point}")) {
        panic!("requested by LLMPROF_FAULT");
    }
    if fault_requested(&format!("allocation:{point}")) {
        std::hint::black_box(Vec::<u8>::with_capacity(isize::MAX as usize));
    }
}
