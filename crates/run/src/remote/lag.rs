//! The lag of this end behind the run, from pings whose answers follow the events in the pipe.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

const PING_EVERY: Duration = Duration::from_secs(1);
/// The number of measurements whose median is shown.
const KEPT: usize = 5;
/// A longer age is an error of a clock.
const MAX_AGE_MS: f64 = 1e9;

#[derive(Debug)]
pub struct Lag {
    /// The unanswered pings.
    pings: VecDeque<(u64, Instant)>,
    sent: u64,
    next: Instant,
    shortest_trip_ms: f64,
    lags_ms: VecDeque<f64>,
}

impl Lag {
    pub fn new(now: Instant) -> Lag {
        Lag {
            pings: VecDeque::new(),
            sent: 0,
            next: now,
            shortest_trip_ms: f64::INFINITY,
            lags_ms: VecDeque::new(),
        }
    }

    /// Starts with a new connection, or without one.
    pub fn begin(&mut self, now: Instant) {
        self.pings.clear();
        self.lags_ms.clear();
        self.next = now;
    }

    /// When the next ping is due.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// The number of the ping that is due.
    pub fn due(&mut self, now: Instant) -> Option<u64> {
        if now < self.next {
            return None;
        }
        self.sent += 1;
        self.pings.push_back((self.sent, now));
        self.next = now + PING_EVERY;
        Some(self.sent)
    }

    /// The answer to a ping, with the age of the newest event when it was sent. The way to the remote host takes half
    /// of the shortest round trip; in the rest of its time the answer was queued behind the events.
    pub fn answered(&mut self, n: u64, age_ms: Option<f64>, now: Instant) {
        while let Some((number, sent)) = self.pings.front().copied().filter(|(number, _)| *number <= n) {
            self.pings.pop_front();
            if number == n {
                let trip_ms = now.saturating_duration_since(sent).as_secs_f64() * 1e3;
                self.shortest_trip_ms = self.shortest_trip_ms.min(trip_ms);
                let age_ms = age_ms.filter(|age| (0.0..MAX_AGE_MS).contains(age)).unwrap_or(0.0);
                self.lags_ms.push_back(trip_ms - self.shortest_trip_ms / 2.0 + age_ms);
                self.lags_ms.drain(..self.lags_ms.len().saturating_sub(KEPT));
            }
        }
    }

    /// The median of the last measurements.
    pub fn behind_ms(&self) -> Option<f64> {
        let mut lags: Vec<f64> = self.lags_ms.iter().copied().collect();
        lags.sort_by(f64::total_cmp);
        lags.get(lags.len() / 2).copied()
    }

    /// The time since the oldest unanswered ping.
    pub fn silence(&self, now: Instant) -> Duration {
        self.pings.front().map(|(_, sent)| now.saturating_duration_since(*sent)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lag_is_the_way_back_and_the_age_of_the_event() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut lag = Lag::new(start);
        assert_eq!((lag.due(at(0)), lag.due(at(500)), lag.behind_ms()), (Some(1), None, None));
        lag.answered(1, None, at(20));
        assert_eq!(lag.behind_ms(), Some(10.0));
        // Queued behind 80 ms of events; the event itself was 30 ms old.
        assert_eq!(lag.due(at(1000)), Some(2));
        lag.answered(2, Some(30.0), at(1100));
        assert_eq!(lag.lags_ms, [10.0, 120.0]);
        // An answer to an unknown ping, or a second one to the same ping, does not count.
        lag.answered(2, None, at(1200));
        lag.answered(99, Some(f64::NAN), at(1200));
        assert_eq!(lag.lags_ms.len(), 2);
        assert_eq!((lag.due(at(2000)), lag.silence(at(6000))), (Some(3), Duration::from_secs(4)));
        lag.begin(at(6000));
        assert_eq!((lag.silence(at(9000)), lag.behind_ms()), (Duration::ZERO, None));
    }
}
