//! The ledger as a table.

use super::Cause;
use crate::base::units::{grouped, three_digits};

pub const COLUMNS: [&str; 8] = ["limit", "phase", "active", "of the phase", "by", "SM MHz", "cost", "lost"];

/// The cells of a cause, in the order of [`COLUMNS`].
pub fn cells(cause: &Cause) -> [String; 8] {
    let none = || "–".to_owned();
    let clock = match (cause.clock_free_mhz, cause.clock_mhz) {
        (Some(free), Some(clock)) => format!("{free:.0} → {clock:.0}"),
        (None, Some(clock)) => format!("{clock:.0}"),
        _ => none(),
    };
    let cost = match (cause.cost_pct, cause.ms_per_token) {
        (Some(pct), Some(ms)) => format!("{pct:.1} %, {} ms/token", three_digits(ms)),
        (Some(pct), None) => format!("{pct:.1} %"),
        (None, _) => none(),
    };
    [
        cause.reason.clone(),
        cause.phase.to_string(),
        format!("{} s", three_digits(cause.active_s)),
        format!("{:.1} %", 100.0 * cause.time_share),
        cause.time_source.to_string(),
        clock,
        cost,
        cause.tokens_lost.map_or_else(none, |tokens| format!("{} tokens", grouped(tokens.round() as i64))),
    ]
}

/// The columns that are dropped first where space is short.
const DISPENSABLE: [usize; 3] = [7, 4, 2];

/// The causes as an aligned text table.
pub fn text(causes: &[Cause]) -> String {
    text_within(causes, usize::MAX)
}

/// The same in lines of at most `max_width` characters; the least important columns are dropped.
pub fn text_within(causes: &[Cause], max_width: usize) -> String {
    let mut rows = vec![COLUMNS.map(str::to_owned)];
    rows.extend(causes.iter().map(cells));
    let width = |i: &usize| rows.iter().map(|row| row[*i].chars().count()).max().unwrap_or(0);
    let mut shown: Vec<usize> = (0..COLUMNS.len()).collect();
    for column in DISPENSABLE {
        if shown.iter().map(|i| width(i) + 2).sum::<usize>() - 2 > max_width {
            shown.retain(|i| *i != column);
        }
    }
    let line = |row: &[String; 8]| {
        let cells = shown.iter().map(|i| format!("{:<1$}", row[*i], width(i)));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The causes as a Markdown table.
pub fn markdown(causes: &[Cause]) -> String {
    let mut out = format!("| {} |\n|---|---|---:|---:|---|---:|---:|---:|\n", COLUMNS.join(" | "));
    for cause in causes {
        out += &format!("| {} |\n", cells(cause).join(" | "));
    }
    out
}
