//! Keeps the first panic of any thread, so that the run is closed in order and the panic is reported at the end.

use std::sync::{LazyLock, Mutex, PoisonError};

use tokio::sync::Notify;

static FIRST_PANIC: Mutex<Option<String>> = Mutex::new(None);
static PANICKED: LazyLock<Notify> = LazyLock::new(Notify::new);

/// From now on panics are kept instead of printed: the TUI may be open, and the run has to be closed first.
pub fn keep_panics() {
    std::panic::set_hook(Box::new(|info| {
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

#[cfg(any(debug_assertions, feature = "fault-injection"))]
static FAULT: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("LLMPROF_FAULT").ok());
#[cfg(not(any(debug_assertions, feature = "fault-injection")))]
static FAULT: Option<String> = None;

/// Whether a test has requested this fault: `LLMPROF_FAULT=<name>`. Never in a release build without the feature
/// `fault-injection`.
pub fn is_requested(fault: &str) -> bool {
    FAULT.as_deref() == Some(fault)
}

/// Panics where a test has requested it: `LLMPROF_FAULT=panic:<point>`.
pub fn fault_point(point: &str) {
    if FAULT.as_deref().and_then(|fault| fault.strip_prefix("panic:")) == Some(point) {
        panic!("requested by LLMPROF_FAULT");
    }
}
