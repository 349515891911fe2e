//! Lanes and collectives as tables.

use super::{Clock, Totals};
use llmprof_base::{
    cells,
    table::{Cell, Column, Table, Tone},
    units::{Unit, bytes},
};
use llmprof_event::ranks::RankLane;

/// From this share of its time on, a lane that waits is marked.
const LONG_WAIT: f64 = 0.05;

/// The collectives that took the most time first.
pub fn collective_table(totals: &Totals) -> Table {
    let mut table = Table::new([
        Column::text("collective").key("name"),
        Column::data("bytes"),
        Column::number("size").key("size"),
        Column::number("ranks").key("ranks"),
        Column::number("calls").key("calls").unit(Unit::Count),
        Column::number("median").key("median_us").unit(Unit::Micros),
        Column::number("algbw").key("algbw_b_s").unit(Unit::Scaled("B/s")),
        Column::number("busbw").key("busbw_b_s").unit(Unit::Scaled("B/s")),
        Column::number("wait each").key("wait_us_each").unit(Unit::Micros),
    ]);
    for row in totals.by_time() {
        let bandwidth = row.bandwidth();
        table.push(cells![
            row.kind.to_string(),
            row.bytes,
            row.bytes.map_or_else(|| "unknown".to_owned(), bytes),
            row.ranks,
            row.calls,
            row.median_ns().map(|ns| ns as f64 / 1e3),
            bandwidth.map(|bandwidth| bandwidth.algorithm),
            bandwidth.map(|bandwidth| bandwidth.bus),
            row.wait_ns_each().map(|ns| ns / 1e3),
        ]);
    }
    table
}

/// A row for each lane: the shares of its time, and its clock.
pub fn lane_table(totals: &Totals, clock: impl Fn(&RankLane) -> Clock) -> Table {
    let number = |title: &'static str, unit| Column::number(title).key(title).unit(unit);
    let mut table = Table::new([
        Column::text("lane").key("lane"),
        number("GPU", Unit::None),
        number("compute", Unit::Share),
        number("NCCL", Unit::Share),
        number("waits", Unit::Share),
        number("idle", Unit::Share),
        number("step", Unit::Millis),
        number("last in", Unit::Share),
        number("SM clock", Unit::Whole("MHz")),
    ]);
    for lane in &totals.lanes {
        let (of, sums) = (lane.lane(), &lane.sums);
        let is_waiting = lane.wait_share().is_some_and(|share| share >= LONG_WAIT);
        let last = (sums.matched > 0).then(|| sums.last as f64 / sums.matched as f64);
        table.push(cells![
            of.to_string(),
            of.gpu,
            lane.share(sums.compute_ns),
            lane.share(sums.nccl_ns),
            Cell::from(lane.wait_share()).tone(if is_waiting { Tone::Warn } else { Tone::Plain }),
            lane.share(sums.idle_ns),
            lane.step_ms(),
            last,
            clock(of).sm_mhz,
        ]);
    }
    table
}
