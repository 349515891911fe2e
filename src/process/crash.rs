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

static FAULT: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("LLMPROF_FAULT").ok());

/// Tests ask for a fault by its name: `LLMPROF_FAULT=<name>`.
pub fn is_asked_for(fault: &str) -> bool {
    FAULT.as_deref() == Some(fault)
}

/// A place where tests make the program fall over: `LLMPROF_FAULT=panic:<place>`.
pub fn fault_point(place: &str) {
    if FAULT.as_deref().and_then(|fault| fault.strip_prefix("panic:")) == Some(place) {
        panic!("asked to by LLMPROF_FAULT");
    }
}
