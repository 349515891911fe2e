//! The data of the pane, for an export.

use super::{ROWS, side_by_side, unjudged_rows};
use crate::{export::key_of, view::View};
use llmprof_analysis::{
    compare::{Comparison, Metric},
    interval::ConfidenceInterval,
};
use llmprof_base::{
    cells,
    table::{Cell, Column, Table},
};
use llmprof_record::state::Snapshot;
use llmprof_record::sweep::ended_jobs;

/// The displayed comparison, otherwise snapshots side by side, otherwise the jobs of a sweep.
pub fn compared(view: &View<'_>) -> Table {
    if let Some(comparison) = view.comparison {
        return judged(view, comparison);
    }
    match (side_by_side(view), view.sweep) {
        (None, Some(shown)) if view.replay.is_none() => ended_jobs(shown.sweep),
        (None, _) => Table::keyed("metric,unit,a,b"),
        (Some((a, b)), _) => both_snapshots(&a, &b),
    }
}

fn judged(view: &View<'_>, comparison: &Comparison) -> Table {
    let mut table = Table::keyed(
        "metric,unit,a,b,ratio,ratio_low,ratio_high,cycles_ratio,cycles_low,cycles_high,code_ratio,code_low,code_high,\
         verdict,cause,reason,a_name,b_name",
    );
    let names = [&comparison.a.name, &comparison.b.name].map(Clone::clone);
    let interval = |interval: Option<ConfidenceInterval>| {
        let part = |of: fn(ConfidenceInterval) -> f64| Cell::from(interval.map(of));
        [part(|i| i.estimate), part(|i| i.low), part(|i| i.high)]
    };
    let unjudged = unjudged_rows(view, comparison);
    let judged = comparison.rows.iter().filter(|row| {
        (row.a.is_some() || row.b.is_some()) && unjudged.iter().all(|other| other.name != row.label)
    });
    for row in judged {
        let mut cells = cells![row.metric.to_string(), unit(row.metric), row.a, row.b];
        cells.extend([row.ratio, row.in_cycles, row.code].into_iter().flat_map(interval));
        cells.extend(cells![
            row.word.to_lowercase(),
            row.cause.as_ref().and_then(key_of),
            row.reason.clone()
        ]);
        table.push(cells.into_iter().chain(names.clone().map(Cell::from)));
    }
    for row in unjudged.iter().filter(|row| row.a.is_some() || row.b.is_some()) {
        let mut cells = cells![row.name, row.unit, row.a, row.b];
        cells.resize(table.columns.len() - names.len(), Cell::default());
        table.push(cells.into_iter().chain(names.clone().map(Cell::from)));
    }
    table
}

/// The unit of [`Metric::value`].
fn unit(metric: Metric) -> &'static str {
    match metric {
        Metric::Ttft(_) | Metric::Tpot(_) | Metric::Itl(_) => "ms",
        Metric::DecodeTokS | Metric::PrefillTokS => "tok/s",
        Metric::Goodput => "1",
        Metric::JPerToken => "J/token",
        Metric::PeakMemory => "B",
        Metric::KernelsPerToken => "1/token",
    }
}

fn both_snapshots(a: &Snapshot, b: &Snapshot) -> Table {
    let mut table = Table::keyed("metric,unit");
    table.columns.extend([a.name.clone(), b.name.clone()].map(Column::data));
    for (name, unit, value) in ROWS {
        if value(a).is_some() || value(b).is_some() {
            table.push(cells![name, unit, value(a), value(b)]);
        }
    }
    let mut add = |name: &str, unit: &str, value: fn(&Snapshot) -> Cell| {
        table.push(cells![name, unit, value(a), value(b)]);
    };
    add("from", "s", |s| s.metrics.from_s.into());
    add("to", "s", |s| s.metrics.to_s.into());
    add("requests", "n", |s| s.metrics.requests.into());
    add("tokens", "n", |s| s.metrics.output_tokens.into());
    add("model", "", |s| s.model.clone().into());
    add("overrides", "", |s| s.overrides.join(" ").into());
    table
}
