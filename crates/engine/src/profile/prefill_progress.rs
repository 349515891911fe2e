//! Reports the progress of a long prefill, by its layers.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use llmprof_event::{Event, EventTx, Phase, PrefillProgress};
use llmprof_workload::listener::{Listener, OperatorInstance, Span};

/// The interval between two reports. Shorter prefills have none.
const INTERVAL: Duration = Duration::from_millis(500);

/// A [`Listener`] of an engine that computes on the thread that calls it. It does not suit a GPU, whose launches are
/// ahead of its work.
pub struct PrefillReporter {
    tx: EventTx,
    layers: u16,
    /// The time of the last report, or of the start of the prefill, in nanoseconds; 0 outside a prefill. Used only by
    /// the engine's thread.
    reported_ns: AtomicU64,
}

impl PrefillReporter {
    pub fn new(tx: EventTx, layers: u16) -> PrefillReporter {
        PrefillReporter { tx, layers, reported_ns: AtomicU64::new(0) }
    }
}

impl Listener for PrefillReporter {
    fn begins(&self, span: Span) {
        if span == Span::Step(Phase::Prefill) {
            self.reported_ns.store(self.tx.clock().now().0.max(1), Ordering::Relaxed);
        }
    }

    fn ends(&self, span: Span) {
        match span {
            Span::Step(Phase::Prefill) => self.reported_ns.store(0, Ordering::Relaxed),
            Span::Operator(OperatorInstance { layer: Some(layer), .. }) => {
                let last = self.reported_ns.load(Ordering::Relaxed);
                if last == 0 {
                    return;
                }
                let now = self.tx.clock().now().0;
                if now.saturating_sub(last) >= INTERVAL.as_nanos() as u64 {
                    self.reported_ns.store(now, Ordering::Relaxed);
                    self.tx.send(Event::PrefillProgress(PrefillProgress { layer, layers: self.layers }));
                }
            }
            _ => {}
        }
    }
}
