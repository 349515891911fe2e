//! The events of a run on their way from its threads to the session.

use std::time::{Duration, Instant};

use llmprof_event::{self as event, Clock, Envelope, EventRx, EventTx};

/// Maximum events per batch, so that signals, keys and frames are processed in between.
const BATCH_EVENTS: usize = 1024;
/// Events are collected for this time: a wake-up for every token costs more than processing it.
const GATHER: Duration = Duration::from_millis(20);

pub(super) struct Inbox {
    pub(super) tx: EventTx,
    pub(super) rx: EventRx,
    /// The events that were received and not processed.
    pub(super) batch: Vec<Envelope>,
    /// The earliest time of the next batch.
    next_batch: Instant,
}

impl Inbox {
    /// In a simulated run, senders wait for the session and time is virtual.
    pub(super) fn new(simulated: bool) -> Inbox {
        let (tx, rx) = match simulated {
            true => event::patient_channel(Clock::virtual_clock()),
            false => event::channel(Clock::wall()),
        };
        Inbox { tx, rx, batch: Vec::with_capacity(BATCH_EVENTS), next_batch: Instant::now() }
    }

    /// Receives events, and waits for them at most for `timeout`. Returns their number.
    pub(super) async fn receive(&mut self, timeout: Duration) -> usize {
        tokio::time::sleep_until(self.next_batch.into()).await;
        let received = self.rx.recv_many(&mut self.batch, BATCH_EVENTS);
        let received = tokio::time::timeout(timeout, received).await.unwrap_or(0);
        self.next_batch = Instant::now() + if received < BATCH_EVENTS { GATHER } else { Duration::ZERO };
        received
    }
}
