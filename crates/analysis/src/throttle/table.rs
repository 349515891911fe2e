//! The ledger as a table.

use super::Cause;
use llmprof_base::{
    cells,
    table::{Column, Table},
    units::{Unit, grouped, three_digits},
};

/// The columns that are dropped first if space is insufficient.
pub const DISPENSABLE: [&str; 3] = ["lost", "by", "active"];

/// A row per cause.
pub fn table(causes: &[Cause]) -> Table {
    let number = |title: &'static str, unit| Column::number(title).key(title).unit(unit);
    let text = |title: &'static str| Column::text(title).key(title);
    let mut table = Table::new([
        text("limit"),
        text("phase"),
        number("active", Unit::Of("s")),
        number("of the phase", Unit::Share),
        text("by"),
        number("SM MHz", Unit::None),
        text("cost"),
        number("lost", Unit::None),
    ]);
    for cause in causes {
        let clock = cause.clock_mhz.map(|clock| match cause.free_clock {
            Some(free) => format!("{free} → {clock:.0}"),
            None => format!("{clock:.0}"),
        });
        let cost = cause.cost.map(|cost| match cause.ms_per_token {
            Some(ms) => format!("{cost}, {} ms/token", three_digits(ms)),
            None => cost.to_string(),
        });
        let lost = cause.tokens_lost.map(|tokens| format!("{} tokens", grouped(tokens.round() as i64)));
        table.push(cells![
            cause.reason.as_str(),
            cause.phase.to_string(),
            cause.active_s,
            cause.time_share,
            cause.time_source.to_string(),
            clock,
            cost,
            lost,
        ]);
    }
    table
}
