//! Time between requests.

use llmprof_event::Stamp;

/// The time from the end of the last request to the start of the next, while there was none.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Idle {
    since: Option<Stamp>,
    pub(super) ns: u64,
}

impl Idle {
    /// The last request in progress has ended.
    pub(super) fn ended(&mut self, t: Stamp) {
        self.since = Some(t);
    }

    pub(super) fn began(&mut self, t: Stamp) {
        if let Some(since) = self.since.take() {
            self.ns += t.since(since).as_nanos() as u64;
        }
    }

    /// A pause of the workload is not idle time.
    pub(super) fn paused(&mut self) {
        self.since = None;
    }
}
