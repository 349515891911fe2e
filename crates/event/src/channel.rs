//! The one channel between the producers of events and their consumer. Its backlog is bounded.

use std::sync::{
    Arc, Condvar, Mutex, PoisonError,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use tokio::sync::mpsc::{self, error::TryRecvError};

use super::{Activity, Clock, Envelope, Event, Level, Notice, Stamp};

/// Maximum backlog of a channel that loses events: minutes of tokens of a fast engine, in a few tens of megabytes.
const LOSSY_BACKLOG: usize = 1 << 17;
/// Maximum backlog of a channel whose senders wait.
const PATIENT_BACKLOG: usize = 1 << 11;

/// The behaviour of a sender while the consumer is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WhenFull {
    /// Measurements are lost and counted: nothing may delay inference.
    Lose,
    /// Simulated time does not advance while a simulated engine waits.
    Wait,
}

/// The backlog at which `event` is lost. Measurements come first, then requests: without its start, a request's other
/// events are ignored. All other events are rare, and the rest could not be read without them.
fn room_for(event: &Event) -> usize {
    match event {
        Event::Preparing(_)
        | Event::PrefillProgress(_)
        | Event::Token(_)
        | Event::Prediction(_)
        | Event::GpuSample(_)
        | Event::GpuProcesses(_)
        | Event::SamplerCost(_)
        | Event::Kernels(_)
        | Event::StepTimeline(_)
        | Event::Operators(_)
        | Event::HostTimeline(_)
        | Event::Allocator(_)
        | Event::Experts(_)
        | Event::HostSample(_)
        | Event::ServerSample(_)
        | Event::ClientSample(_) => LOSSY_BACKLOG,
        Event::RequestStarted(_) | Event::ImagesEncoded(_) | Event::RequestFinished(_) => 2 * LOSSY_BACKLOG,
        _ => usize::MAX,
    }
}

/// The state shared by both ends.
#[derive(Debug)]
struct Backlog {
    when_full: WhenFull,
    waiting: AtomicUsize,
    lost: AtomicU64,
    /// The consumer is gone.
    closed: Mutex<bool>,
    taken: Condvar,
}

impl Backlog {
    /// Whether `event` may be sent. Waits for room if the sender waits.
    fn admits(&self, event: &Event) -> bool {
        match self.when_full {
            WhenFull::Lose => {
                let lost = self.waiting.load(Ordering::Relaxed) >= room_for(event);
                self.lost.fetch_add(u64::from(lost), Ordering::Relaxed);
                !lost
            }
            WhenFull::Wait => {
                if self.waiting.load(Ordering::Acquire) >= PATIENT_BACKLOG {
                    let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
                    let full = |closed: &mut bool| {
                        !*closed && self.waiting.load(Ordering::Acquire) >= PATIENT_BACKLOG
                    };
                    drop(self.taken.wait_while(closed, full).unwrap_or_else(PoisonError::into_inner));
                }
                true
            }
        }
    }

    fn take(&self, count: usize) {
        let before = self.waiting.fetch_sub(count, Ordering::AcqRel);
        if self.when_full == WhenFull::Wait && before >= PATIENT_BACKLOG {
            // Locked, so that no sender is between its check and its wait.
            drop(self.closed.lock().unwrap_or_else(PoisonError::into_inner));
            self.taken.notify_all();
        }
    }
}

/// The sending end. Once the consumer is gone, sending has no effect.
#[derive(Debug, Clone)]
pub struct EventTx {
    clock: Clock,
    tx: mpsc::UnboundedSender<Envelope>,
    activity: Activity,
    backlog: Arc<Backlog>,
}

/// The receiving end.
#[derive(Debug)]
pub struct EventRx {
    rx: mpsc::UnboundedReceiver<Envelope>,
    backlog: Arc<Backlog>,
}

/// A channel for anything that is measured: sending never blocks. While the consumer is far behind, measurements are lost and
/// counted.
pub fn channel(clock: Clock) -> (EventTx, EventRx) {
    new(clock, WhenFull::Lose)
}

/// A channel for a simulation: a sender waits while the consumer is behind, and nothing is lost.
pub fn patient_channel(clock: Clock) -> (EventTx, EventRx) {
    new(clock, WhenFull::Wait)
}

fn new(clock: Clock, when_full: WhenFull) -> (EventTx, EventRx) {
    let (tx, rx) = mpsc::unbounded_channel();
    let backlog = Arc::new(Backlog {
        when_full,
        waiting: AtomicUsize::new(0),
        lost: AtomicU64::new(0),
        closed: Mutex::new(false),
        taken: Condvar::new(),
    });
    let sender = EventTx { clock, tx, activity: Activity::default(), backlog: Arc::clone(&backlog) };
    (sender, EventRx { rx, backlog })
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
        if self.backlog.admits(&event) {
            self.deliver(Envelope { t, event });
        }
        t
    }

    /// Sends an event that happened at `t`, a moment ago: the work of a GPU is known when its records arrive. Never in
    /// the future.
    pub fn send_at(&self, t: Stamp, event: Event) {
        let t = t.min(self.clock.now());
        self.activity.apply(&event);
        if self.backlog.admits(&event) {
            self.deliver(Envelope { t, event });
        }
    }

    /// As [`send`](Self::send), for the thread of the consumer: it neither waits nor loses the event.
    pub fn send_as_consumer(&self, event: Event) {
        self.activity.apply(&event);
        self.deliver(Envelope { t: self.clock.now(), event });
    }

    fn deliver(&self, envelope: Envelope) {
        self.backlog.waiting.fetch_add(1, Ordering::AcqRel);
        let _ = self.tx.send(envelope);
    }

    pub fn notice(&self, level: Level, source: &str, text: impl Into<String>) {
        self.send(Event::Notice(Notice { level, source: source.to_owned(), text: text.into() }));
    }
}

impl EventRx {
    /// Waits for events and appends up to `limit` of them. Returns their number; 0 once all senders are gone.
    pub async fn recv_many(&mut self, batch: &mut Vec<Envelope>, limit: usize) -> usize {
        let received = self.rx.recv_many(batch, limit).await;
        self.backlog.take(received);
        received
    }

    pub fn try_recv(&mut self) -> Result<Envelope, TryRecvError> {
        let envelope = self.rx.try_recv()?;
        self.backlog.take(1);
        Ok(envelope)
    }

    pub fn blocking_recv(&mut self) -> Option<Envelope> {
        let envelope = self.rx.blocking_recv()?;
        self.backlog.take(1);
        Some(envelope)
    }

    /// Appends the events that are waiting now. Later events wait for the next call.
    pub fn take_waiting(&mut self, batch: &mut Vec<Envelope>) {
        for _ in 0..self.rx.len() {
            batch.extend(self.try_recv());
        }
    }

    /// The number of waiting events.
    pub fn len(&self) -> usize {
        self.rx.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rx.is_empty()
    }

    /// The number of events that were lost because the backlog was full.
    pub fn lost(&self) -> u64 {
        self.backlog.lost.load(Ordering::Relaxed)
    }
}

impl Drop for EventRx {
    fn drop(&mut self) {
        *self.backlog.closed.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.backlog.taken.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::{Outcome, RunFinished, Token};

    fn token(index: u32) -> Event {
        Event::Token(Token { request: 0, index, id: 1, device_ns: None, speculation: None })
    }

    fn finished() -> Event {
        Event::RunFinished(RunFinished { outcome: Outcome::Completed, cause: None })
    }

    #[test]
    fn without_a_consumer_measurements_are_lost_and_counted() {
        let (tx, mut rx) = channel(Clock::wall());
        for index in 0..LOSSY_BACKLOG as u32 + 1000 {
            tx.send(token(index));
        }
        tx.send(finished());
        assert_eq!((rx.len(), rx.lost()), (LOSSY_BACKLOG + 1, 1000));
        let mut batch = Vec::new();
        rx.take_waiting(&mut batch);
        assert_eq!(batch.last().map(|envelope| &envelope.event), Some(&finished()));
        tx.send(token(7));
        assert_eq!((rx.len(), rx.lost()), (1, 1000));
    }

    #[test]
    fn a_simulation_waits_for_its_consumer() {
        let (tx, mut rx) = patient_channel(Clock::virtual_clock());
        let total = 5 * PATIENT_BACKLOG as u32;
        let sender = thread::spawn(move || {
            (0..total).for_each(|index| {
                tx.send(token(index));
            })
        });
        for expected in 0..total {
            assert!(rx.len() <= PATIENT_BACKLOG);
            let Event::Token(token) = rx.blocking_recv().unwrap().event else { panic!("a token") };
            assert_eq!(token.index, expected);
        }
        sender.join().unwrap();
        assert_eq!((rx.len(), rx.lost()), (0, 0));
    }

    #[test]
    fn the_consumer_itself_never_waits_and_its_end_frees_the_senders() {
        let (tx, rx) = patient_channel(Clock::virtual_clock());
        for index in 0..2 * PATIENT_BACKLOG as u32 {
            tx.send_as_consumer(token(index));
        }
        let sender = thread::spawn(move || tx.send(finished()));
        drop(rx);
        sender.join().unwrap();
    }
}
