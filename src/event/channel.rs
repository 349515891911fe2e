//! The one channel between the producers of events and their consumer.

use tokio::sync::mpsc;

use super::{Activity, Clock, Envelope, Event, Level, Notice, Stamp};

/// The sending end. Sending never blocks; once the consumer is gone it has no effect.
#[derive(Debug, Clone)]
pub struct EventTx {
    clock: Clock,
    tx: mpsc::UnboundedSender<Envelope>,
    activity: Activity,
}

pub type EventRx = mpsc::UnboundedReceiver<Envelope>;

pub fn channel(clock: Clock) -> (EventTx, EventRx) {
    let (tx, rx) = mpsc::unbounded_channel();
    (EventTx { clock, tx, activity: Activity::default() }, rx)
}

impl EventTx {
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The phase of the workload whose events are sent here.
    pub fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Sends `event` stamped with the current time, which is returned.
    pub fn send(&self, event: Event) -> Stamp {
        let t = self.clock.now();
        self.activity.apply(&event);
        let _ = self.tx.send(Envelope { t, event });
        t
    }

    pub fn notice(&self, level: Level, source: &str, text: impl Into<String>) {
        self.send(Event::Notice(Notice { level, source: source.to_owned(), text: text.into() }));
    }
}
