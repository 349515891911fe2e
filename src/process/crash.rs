//! Remembers the first panic of any thread, so that it ends the program in order and is told at the end.

use std::sync::{LazyLock, Mutex, PoisonError};

use tokio::sync::Notify;

static FIRST: Mutex<Option<String>> = Mutex::new(None);
static HAPPENED: LazyLock<Notify> = LazyLock::new(Notify::new);

/// From now on a panic is kept instead of printed: a screen may be up, and the run has to be closed first.
pub fn keep_panics() {
    std::panic::set_hook(Box::new(|info| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed").to_owned();
        let said = info.payload_as_str().unwrap_or("without words");
        let place = info.location().map_or_else(String::new, |l| format!(" at {}:{}", l.file(), l.line()));
        let text = format!("thread {name} panicked{place}: {said}");
        tracing::error!("{text}\n{}", std::backtrace::Backtrace::force_capture());
        FIRST.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(text);
        HAPPENED.notify_one();
    }));
}

/// What the first panic said.
pub fn first_panic() -> Option<String> {
    FIRST.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Waits for a panic in any thread.
pub async fn panicked() -> String {
    loop {
        if let Some(text) = first_panic() {
            return text;
        }
        HAPPENED.notified().await;
    }
}

/// Whether `LLMPROF_FAULT` requests the fault of that name.
#[cfg(feature = "fault-injection")]
pub fn fault_requested(fault: &str) -> bool {
    static FAULT: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("LLMPROF_FAULT").ok());
    FAULT.as_deref() == Some(fault)
}

/// Panics where `LLMPROF_FAULT=panic:<point>` requests it; does nothing in a build without the feature `fault-injection`.
pub fn fault_point(_point: &str) {
    #[cfg(feature = "fault-injection")]
    if fault_requested(&format!("panic:{_point}")) {
        panic!("requested by LLMPROF_FAULT");
    }
}
