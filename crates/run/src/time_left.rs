//! The remaining time of work in equal parts.

use std::{
    fmt,
    time::{Duration, Instant},
};

use llmprof_base::units::clock;

/// Less work is too little for an estimate.
const MIN_ELAPSED: Duration = Duration::from_secs(2);
const MIN_PARTS_DONE: f64 = 0.02;
/// A shorter time is not reported.
const SHORTEST: Duration = Duration::from_secs(1);

/// Work in parts that take about the same time each: jobs of a sweep, pairs of runs.
#[derive(Debug, Clone)]
pub struct TimeLeft {
    done: usize,
    started: Instant,
}

/// An estimate, printed as `about 02:10 left`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate(pub Duration);

impl TimeLeft {
    /// Starts the clock.
    pub fn start() -> TimeLeft {
        TimeLeft { done: 0, started: Instant::now() }
    }

    pub fn part_done(&mut self) {
        self.done += 1;
    }

    /// The time for `parts` more, of which the current one is done to this share. `None` if too little is done for an
    /// estimate, or nothing is left.
    pub fn estimate(&self, parts: usize, share: f64) -> Option<Estimate> {
        let share = share.clamp(0.0, 1.0);
        estimate(self.done as f64 + share, parts as f64 - share, self.started.elapsed())
    }
}

fn estimate(done: f64, left: f64, elapsed: Duration) -> Option<Estimate> {
    let enough = elapsed >= MIN_ELAPSED && done >= MIN_PARTS_DONE;
    let estimate = Estimate(elapsed.mul_f64(if enough { left.max(0.0) / done } else { 0.0 }));
    (estimate.0 >= SHORTEST).then_some(estimate)
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "about {} left", clock(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remaining_work_takes_as_long_as_the_completed_work() {
        let table = [
            (2.0, 4.0, 20.0, Some("about 00:40 left")),
            (2.5, 3.5, 25.0, Some("about 00:35 left")),
            (0.25, 0.75, 60.0, Some("about 03:00 left")),
            (1.0, 399.0, 60.0, Some("about 6:39:00 left")),
            // Too little done, and nothing left.
            (2.0, 4.0, 1.9, None),
            (0.0, 6.0, 60.0, None),
            (6.0, 0.0, 60.0, None),
        ];
        for (done, left, elapsed_s, wanted) in table {
            let estimate = estimate(done, left, Duration::from_secs_f64(elapsed_s));
            assert_eq!(estimate.map(|e| e.to_string()).as_deref(), wanted, "{done} done, {left} left");
        }
    }
}
