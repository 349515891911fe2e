//! Lanes and collectives as tables.

use super::{Clock, CollectiveTotals, LaneTotals, Totals};
use llmprof_base::units::{bytes, grouped, millis, percent, scaled};
use llmprof_event::ranks::RankLane;

/// A heading, then the collectives that took the most time first.
pub fn collective_rows(totals: &Totals) -> Vec<[String; 8]> {
    let heading = ["collective", "size", "ranks", "calls", "median", "algbw", "busbw", "wait each"];
    let rows = totals.by_time().into_iter().map(cells);
    [heading.map(str::to_owned)].into_iter().chain(rows).collect()
}

fn none() -> String {
    "–".to_owned()
}

fn cells(row: &CollectiveTotals) -> [String; 8] {
    let speed = |bytes_s: f64| scaled(bytes_s, "B/s");
    let bandwidth = row.bandwidth();
    [
        row.kind.to_string(),
        row.bytes.map_or_else(|| "unknown".to_owned(), bytes),
        row.ranks.to_string(),
        grouped(row.calls as i64),
        row.median_ns().map_or_else(none, |ns| millis(ns as f64 / 1e6)),
        bandwidth.map_or_else(none, |bandwidth| speed(bandwidth.algorithm)),
        bandwidth.map_or_else(none, |bandwidth| speed(bandwidth.bus)),
        row.wait_ns_each().map_or_else(none, |ns| millis(ns / 1e6)),
    ]
}

/// A column of the table of lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneColumn {
    Compute,
    Nccl,
    Waits,
    Idle,
    Step,
    LastIn,
    SmClock,
}

impl LaneColumn {
    pub const ALL: [LaneColumn; 7] = {
        use LaneColumn::{Compute, Idle, LastIn, Nccl, SmClock, Step, Waits};
        [Compute, Nccl, Waits, Idle, Step, LastIn, SmClock]
    };

    pub fn heading(self) -> &'static str {
        match self {
            LaneColumn::Compute => "compute",
            LaneColumn::Nccl => "NCCL",
            LaneColumn::Waits => "waits",
            LaneColumn::Idle => "idle",
            LaneColumn::Step => "step",
            LaneColumn::LastIn => "last in",
            LaneColumn::SmClock => "SM clock",
        }
    }

    /// `None` if it is not known.
    pub fn value(self, lane: &LaneTotals, clock: &Clock) -> Option<String> {
        let sums = &lane.sums;
        let share = |ns| lane.share(ns).map(|share| percent(100.0 * share));
        match self {
            LaneColumn::Compute => share(sums.compute_ns),
            LaneColumn::Nccl => share(sums.nccl_ns),
            LaneColumn::Waits => lane.wait_share().map(|share| percent(100.0 * share)),
            LaneColumn::Idle => share(sums.idle_ns),
            LaneColumn::Step => lane.step_ms().map(millis),
            LaneColumn::LastIn => {
                (sums.matched > 0).then(|| percent(100.0 * sums.last as f64 / sums.matched as f64))
            }
            LaneColumn::SmClock => clock.sm_mhz.map(|mhz| format!("{mhz:.0} MHz")),
        }
    }
}

/// A heading, then a row for each lane.
pub fn lane_rows(totals: &Totals, clock: impl Fn(&RankLane) -> Clock) -> Vec<[String; 9]> {
    let row = |name: String, gpu: String, value: &dyn Fn(LaneColumn) -> String| {
        let [a, b, c, d, e, f, g] = LaneColumn::ALL.map(value);
        [name, gpu, a, b, c, d, e, f, g]
    };
    let heading = row("lane".to_owned(), "GPU".to_owned(), &|column| column.heading().to_owned());
    let rows = totals.lanes.iter().map(|lane| {
        let clock = clock(lane.lane());
        let gpu = lane.lane().gpu.map_or_else(none, |gpu| gpu.to_string());
        row(lane.lane().to_string(), gpu, &|column| column.value(lane, &clock).unwrap_or_else(none))
    });
    [heading].into_iter().chain(rows).collect()
}
