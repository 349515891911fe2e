//! Time stamps and the clocks that produce them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

/// Nanoseconds since the run's clock started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stamp(pub u64);

impl Stamp {
    pub fn from_secs_f64(secs: f64) -> Self {
        Stamp((secs * 1e9) as u64)
    }

    pub fn secs(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Time since `earlier`; zero if `earlier` is later than this.
    pub fn since(self, earlier: Stamp) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Stamp {
    type Output = Stamp;

    fn add(self, rhs: Duration) -> Stamp {
        Stamp(self.0.saturating_add(rhs.as_nanos() as u64))
    }
}

impl std::ops::Sub<Duration> for Stamp {
    type Output = Stamp;

    fn sub(self, rhs: Duration) -> Stamp {
        Stamp(self.0.saturating_sub(rhs.as_nanos() as u64))
    }
}

/// The source of time stamps: the machine's monotonic clock, or a simulated one that is advanced by hand.
#[derive(Debug, Clone)]
pub enum Clock {
    Wall(Instant),
    Virtual(Arc<AtomicU64>),
}

impl Clock {
    pub fn wall() -> Self {
        Clock::Wall(Instant::now())
    }

    pub fn virtual_clock() -> Self {
        Clock::Virtual(Arc::default())
    }

    pub fn now(&self) -> Stamp {
        match self {
            Clock::Wall(start) => Stamp(start.elapsed().as_nanos() as u64),
            Clock::Virtual(ns) => Stamp(ns.load(Ordering::Acquire)),
        }
    }

    /// Advances a virtual clock; has no effect on a wall clock.
    pub fn advance(&self, by: Duration) {
        if let Clock::Virtual(ns) = self {
            ns.fetch_add(by.as_nanos() as u64, Ordering::AcqRel);
        }
    }
}
