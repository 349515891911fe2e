//! Sums of windows, in bounded memory.

use std::collections::VecDeque;

use serde::Serialize;

use llmprof_event::ranks::{Collective, CollectiveWindow, LaneSums, RankLane, RanksWindow};

/// More than programs on one machine have.
const MAX_LANES: usize = 64;
const MAX_COLLECTIVES: usize = 64;
/// Maximum times of a collective, or of the steps of a lane, for the median.
const KEPT_TIMES: usize = 2048;

/// A lane over all windows.
#[derive(Debug, Clone, Default)]
pub struct LaneTotals {
    /// Its own span: lanes may join late and leave early.
    pub span_ns: u64,
    /// The part of it in which its collectives were found on all ranks, and its waiting is therefore known.
    pub matched_ns: u64,
    /// Sums, and the timeline of the last window that has one.
    pub sums: LaneSums,
    step_times_ns: VecDeque<u64>,
}

impl LaneTotals {
    pub fn lane(&self) -> &RankLane {
        &self.sums.lane
    }

    pub fn share(&self, ns: u64) -> Option<f64> {
        (self.span_ns > 0).then(|| ns as f64 / self.span_ns as f64)
    }

    /// Share of the time in which it waits for others.
    pub fn wait_share(&self) -> Option<f64> {
        (self.matched_ns > 0).then(|| self.sums.wait_ns as f64 / self.matched_ns as f64)
    }

    /// Median time between the starts of two steps; the mean if a recording has no single times.
    pub fn step_ms(&self) -> Option<f64> {
        let mean = || (self.sums.steps > 0).then(|| self.sums.step_ns as f64 / self.sums.steps as f64);
        let ns = median(&self.step_times_ns).map(|ns| ns as f64).or_else(mean)?;
        Some(ns / 1e6)
    }

    fn add(&mut self, span_ns: u64, window: &LaneSums) {
        self.span_ns += span_ns;
        if window.matched > 0 {
            self.matched_ns += span_ns;
        }
        let sums = &mut self.sums;
        sums.lane = window.lane.clone();
        for (sum, value) in [
            (&mut sums.compute_ns, window.compute_ns),
            (&mut sums.nccl_ns, window.nccl_ns),
            (&mut sums.wait_ns, window.wait_ns),
            (&mut sums.copy_ns, window.copy_ns),
            (&mut sums.idle_ns, window.idle_ns),
            (&mut sums.kernels, window.kernels),
            (&mut sums.collectives, window.collectives),
            (&mut sums.last, window.last),
            (&mut sums.matched, window.matched),
            (&mut sums.caused_ns, window.caused_ns),
            (&mut sums.steps, window.steps),
            (&mut sums.step_ns, window.step_ns),
        ] {
            *sum = sum.saturating_add(value);
        }
        if !window.picture.is_empty() {
            sums.picture.clone_from(&window.picture);
        }
        keep(&mut self.step_times_ns, &window.step_times_ns);
    }
}

/// Adds the times of a window, and discards the oldest beyond a limit.
fn keep(times: &mut VecDeque<u64>, window: &[u64]) {
    times.extend(window.iter().take(64));
    let over = times.len().saturating_sub(KEPT_TIMES);
    times.drain(..over);
}

fn median(times: &VecDeque<u64>) -> Option<u64> {
    let mut times: Vec<u64> = times.iter().copied().collect();
    let middle = times.len().checked_sub(1)? / 2;
    Some(*times.select_nth_unstable(middle).1)
}

/// Collectives of one kind, size and number of ranks over all windows.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectiveTotals {
    pub kind: Collective,
    pub bytes: Option<u64>,
    pub ranks: u32,
    pub calls: u64,
    pub matched: u64,
    pub wait_ns: u64,
    times_ns: VecDeque<u64>,
}

/// Bandwidths of a collective in bytes per second, as defined by nccl-tests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bandwidth {
    pub algorithm: f64,
    pub bus: f64,
}

impl CollectiveTotals {
    /// The median time from the start on the last rank to the end on all; for single kernels if ranks do not depend on
    /// each other.
    pub fn median_ns(&self) -> Option<u64> {
        median(&self.times_ns)
    }

    /// `None` if size or time is not known.
    pub fn bandwidth(&self) -> Option<Bandwidth> {
        let (bytes, ns) = (self.bytes?, self.median_ns().filter(|ns| *ns > 0)?);
        let algorithm = bytes as f64 / (ns as f64 / 1e9);
        Some(Bandwidth { algorithm, bus: algorithm * self.kind.bus_factor(self.ranks)? })
    }

    /// The mean waiting time of a rank per collective.
    pub fn wait_ns_each(&self) -> Option<f64> {
        let kernels = self.matched * u64::from(self.ranks);
        (kernels > 0).then(|| self.wait_ns as f64 / kernels as f64)
    }
}

/// All windows of a run, or the recent ones.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    pub lanes: Vec<LaneTotals>,
    pub collectives: Vec<CollectiveTotals>,
    pub windows: u64,
    pub clock_error_ns: Option<u64>,
}

impl Totals {
    pub fn is_empty(&self) -> bool {
        self.windows == 0
    }

    pub fn add(&mut self, window: &RanksWindow) {
        self.windows += 1;
        self.clock_error_ns = self.clock_error_ns.max(window.clock_error_ns);
        for lane in &window.lanes {
            let at = self.lanes.iter().position(|known| known.lane().is(&lane.lane));
            let at = match at {
                None if self.lanes.len() >= MAX_LANES => continue,
                None => {
                    self.lanes.push(LaneTotals::default());
                    self.lanes.len() - 1
                }
                Some(at) => at,
            };
            self.lanes[at].add(window.span_ns, lane);
        }
        self.lanes.sort_by_key(|lane| {
            let lane = lane.lane();
            (lane.rank.unwrap_or(u32::MAX), lane.pid, lane.device)
        });
        window.collectives.iter().for_each(|row| self.collective(row));
    }

    fn collective(&mut self, row: &CollectiveWindow) {
        let same = |known: &CollectiveTotals| {
            (known.kind, known.bytes, known.ranks) == (row.kind, row.bytes, row.ranks)
        };
        let at = match self.collectives.iter().position(same) {
            None if self.collectives.len() >= MAX_COLLECTIVES => return,
            None => {
                self.collectives.push(CollectiveTotals {
                    kind: row.kind,
                    bytes: row.bytes,
                    ranks: row.ranks,
                    calls: 0,
                    matched: 0,
                    wait_ns: 0,
                    times_ns: VecDeque::new(),
                });
                self.collectives.len() - 1
            }
            Some(at) => at,
        };
        let known = &mut self.collectives[at];
        known.calls = known.calls.saturating_add(row.calls);
        known.matched = known.matched.saturating_add(row.matched);
        known.wait_ns = known.wait_ns.saturating_add(row.wait_ns);
        keep(&mut known.times_ns, &row.times_ns);
    }

    /// The collectives that took the most time first.
    pub fn by_time(&self) -> Vec<&CollectiveTotals> {
        let mut rows: Vec<&CollectiveTotals> = self.collectives.iter().collect();
        let time = |row: &CollectiveTotals| row.calls.saturating_mul(row.median_ns().unwrap_or(0));
        rows.sort_by_key(|row| std::cmp::Reverse((time(row), row.calls, row.bytes)));
        rows
    }

    /// Share of the time in collectives that no computation overlaps, over all lanes.
    pub fn nccl_share(&self) -> Option<f64> {
        let span: u64 = self.lanes.iter().map(|lane| lane.span_ns).sum();
        let nccl: u64 = self.lanes.iter().map(|lane| lane.sums.nccl_ns).sum();
        (span > 0).then(|| nccl as f64 / span as f64)
    }
}
