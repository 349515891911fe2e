//! The ledger as a table.

use super::Cause;
use llmprof_base::{
    table::aligned,
    units::{grouped, percent, three_digits},
};

pub const COLUMNS: [&str; 8] = ["limit", "phase", "active", "of the phase", "by", "SM MHz", "cost", "lost"];

/// The cells of a cause, in the order of [`COLUMNS`].
pub fn cells(cause: &Cause) -> [String; 8] {
    let none = || "–".to_owned();
    let clock = match (cause.free_clock, cause.clock_mhz) {
        (Some(free), Some(clock)) => format!("{free} → {clock:.0}"),
        (None, Some(clock)) => format!("{clock:.0}"),
        _ => none(),
    };
    let cost = match (cause.cost, cause.ms_per_token) {
        (Some(cost), Some(ms)) => format!("{cost}, {} ms/token", three_digits(ms)),
        (Some(cost), None) => cost.to_string(),
        (None, _) => none(),
    };
    [
        cause.reason.clone(),
        cause.phase.to_string(),
        format!("{} s", three_digits(cause.active_s)),
        percent(100.0 * cause.time_share),
        cause.time_source.to_string(),
        clock,
        cost,
        cause.tokens_lost.map_or_else(none, |tokens| format!("{} tokens", grouped(tokens.round() as i64))),
    ]
}

/// The columns that are dropped first if space is insufficient.
const DISPENSABLE: [usize; 3] = [7, 4, 2];

/// The causes as an aligned text table.
pub fn text(causes: &[Cause]) -> String {
    text_within(causes, usize::MAX)
}

/// The same with lines of at most `max_width` characters; the least important columns are dropped.
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
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| shown.iter().map(|i| row[*i].clone()).collect()).collect();
    aligned(&rows, |_| false)
}

/// The causes as a Markdown table.
pub fn markdown(causes: &[Cause]) -> String {
    let mut out = format!("| {} |\n|---|---|---:|---:|---|---:|---:|---:|\n", COLUMNS.join(" | "));
    for cause in causes {
        out += &format!("| {} |\n", cells(cause).join(" | "));
    }
    out
}
