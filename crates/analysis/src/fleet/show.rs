//! A fleet as text.

use std::collections::BTreeMap;

use super::{
    gpu::Gpu,
    verdict::{Fleet, GpuVerdict, Measure, Order, State, limits},
};
use llmprof_base::{
    table::{Column, Table},
    units::{percent_digits, rough_seconds},
};
use llmprof_event::readings::Reading;

/// Maximum limited GPUs with a sentence each: a remark has the number of all.
const MAX_LIMITED: usize = 8;

/// The rows as aligned text: those that need attention, or all of them with `all`. Missing values are dashes.
pub fn table(fleet: &Fleet, order: Order) -> String {
    let names = ["node", "GPU", "model", "state"].map(Column::text);
    let numbers = ["lost %", "MHz", "W", "°C", "use %"].map(Column::number);
    let reasons = ["limit now", "errors", "slow since"].map(Column::text);
    let mut table = Table::new(names.into_iter().chain(numbers).chain(reasons));
    fleet.sorted(order, false).into_iter().for_each(|row| table.push(cells(fleet, &fleet.rows[row])));
    let mut text = table.text();
    text += "\n";
    // The GPUs of a node become silent together.
    let mut silent: BTreeMap<&str, (usize, &GpuVerdict)> = BTreeMap::new();
    let mut limited = 0;
    for row in &fleet.rows {
        let gpu = fleet.gpu(row);
        match row.state {
            State::Slow | State::Errors => {
                text += &format!("\n{} GPU {}: {}", gpu.node, gpu.index(), fleet.sentence(row));
            }
            State::Limited if row.below_own_clock.is_some() && limited < MAX_LIMITED => {
                limited += 1;
                text += &format!("\n{} GPU {}: {}", gpu.node, gpu.index(), fleet.sentence(row));
            }
            State::Silent => silent.entry(&gpu.node).or_insert((0, row)).0 += 1,
            _ => {}
        }
    }
    for (node, (n, row)) in silent {
        text += &format!("\n{node}, {n} GPUs: {}", fleet.sentence(row));
    }
    for remark in &fleet.remarks {
        text += &format!("\nNote: {remark}.");
    }
    text
}

/// A summary on one line.
pub fn summary(fleet: &Fleet) -> String {
    let totals = &fleet.totals;
    let mut parts = vec![format!("{} GPUs on {} nodes", totals.gpus, totals.nodes)];
    let counts = [
        (totals.slow, "slow"),
        (totals.errors, "with errors"),
        (totals.silent, "silent"),
        (totals.limited, "limited"),
        (totals.unknown, "unknown"),
        (totals.idle, "idle"),
    ];
    parts.extend(counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")));
    parts.join(", ")
}

const NONE: &str = "–";

fn cells(fleet: &Fleet, row: &GpuVerdict) -> [String; 12] {
    let gpu = fleet.gpu(row);
    let number = |reading| gpu.get(reading).map_or_else(|| NONE.to_owned(), |value| format!("{value:.0}"));
    [
        gpu.node.clone(),
        gpu.index(),
        gpu.short_model().to_owned(),
        row.state.to_string(),
        row.loss.map_or_else(|| NONE.to_owned(), |loss| percent_digits(loss.lost_pct)),
        number(Reading::SmClock),
        number(Reading::Power),
        number(Reading::Temp),
        number(Reading::GpuUtil),
        limit_now(gpu, row),
        faults(row),
        since(fleet, row),
    ]
}

/// The current limit of the clock; for a slow memory clock, that clock.
pub fn limit_now(gpu: &Gpu, row: &GpuVerdict) -> String {
    match row.loss.filter(|loss| loss.measure == Measure::MemoryClock) {
        Some(loss) => format!("memory {:.0} MHz", loss.clock_mhz),
        None => limits(gpu).unwrap_or_else(|| NONE.to_owned()),
    }
}

/// The errors of a GPU as a short text, the most severe first.
pub fn faults(row: &GpuVerdict) -> String {
    let all: Vec<String> = row.faults.iter().map(ToString::to_string).collect();
    if all.is_empty() { NONE.to_owned() } else { all.join(", ") }
}

/// The time for which it has been slow or silent.
pub fn since(fleet: &Fleet, row: &GpuVerdict) -> String {
    let gpu = fleet.gpu(row);
    match (row.state, gpu.slow_since, row.age_s) {
        (State::Slow, Some(since), _) => {
            let ago = rough_seconds((fleet.snapshot.unix_s - since.unix_s).max(0.0));
            if since.or_earlier { format!("> {ago}") } else { ago }
        }
        (State::Silent, _, Some(age)) => rough_seconds(age),
        _ => NONE.to_owned(),
    }
}

/// Whether the row of a GPU contains a text.
pub fn contains(fleet: &Fleet, row: &GpuVerdict, text: &str) -> bool {
    let gpu: &Gpu = fleet.gpu(row);
    let text = text.to_lowercase();
    let named =
        [Some(&gpu.node), gpu.uuid.as_ref(), gpu.model.as_ref(), gpu.work.as_ref(), gpu.pci_bus_id.as_ref()];
    let state = row.state.to_string();
    let shown = [state, faults(row), limits(gpu).unwrap_or_default()];
    named.into_iter().flatten().chain(&shown).any(|part| part.to_lowercase().contains(&text))
}
