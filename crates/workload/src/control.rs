//! Pauses and cancels work from another thread.

use std::sync::{
    Arc, Condvar, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

/// Pauses, resumes and cancels the workload. It takes effect between tokens.
#[derive(Debug, Clone, Default)]
pub struct Control(Arc<Switches>);

#[derive(Debug, Default)]
struct Switches {
    cancelled: Arc<AtomicBool>,
    finishing: AtomicBool,
    paused: Mutex<bool>,
    changed: Condvar,
}

impl Control {
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Release);
        self.set_paused(false);
    }

    /// Ends an open-ended workload after its current request.
    pub fn finish(&self) {
        self.0.finishing.store(true, Ordering::Release);
    }

    pub fn is_finishing(&self) -> bool {
        self.0.finishing.load(Ordering::Acquire)
    }

    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// Set when the workload is cancelled.
    pub fn cancel_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0.cancelled)
    }

    pub fn is_paused(&self) -> bool {
        *self.0.paused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_paused(&self, paused: bool) {
        *self.0.paused.lock().unwrap_or_else(PoisonError::into_inner) = paused;
        self.0.changed.notify_all();
    }

    pub(crate) fn wait_while_paused(&self) {
        let paused = self.0.paused.lock().unwrap_or_else(PoisonError::into_inner);
        let still = |paused: &mut bool| *paused && !self.is_cancelled();
        drop(self.0.changed.wait_while(paused, still).unwrap_or_else(PoisonError::into_inner));
    }
}
