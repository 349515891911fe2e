//! A fleet as a table and as JSON.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{
    gpu::{Counted, Gpu},
    recording::Header,
    verdict::{Fleet, Measure, Order, Row, State, limits},
};
use llmprof_base::{
    table::{Column, Table},
    units::{percent_digits, rough_seconds},
};
use llmprof_event::{
    readings::Reading,
    reasons::{self, ActiveReason},
};

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
    let mut silent: BTreeMap<&str, (usize, &Row)> = BTreeMap::new();
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

fn cells(fleet: &Fleet, row: &Row) -> [String; 12] {
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
pub fn limit_now(gpu: &Gpu, row: &Row) -> String {
    match row.loss.filter(|loss| loss.measure == Measure::MemoryClock) {
        Some(loss) => format!("memory {:.0} MHz", loss.clock_mhz),
        None => limits(gpu).unwrap_or_else(|| NONE.to_owned()),
    }
}

/// The errors of a GPU as a short text, the most severe first.
pub fn faults(row: &Row) -> String {
    let all: Vec<String> = row.faults.iter().map(ToString::to_string).collect();
    if all.is_empty() { NONE.to_owned() } else { all.join(", ") }
}

/// The time for which it has been slow or silent.
pub fn since(fleet: &Fleet, row: &Row) -> String {
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

/// One object: its keys are the same in every answer, and missing values are null.
pub fn json(fleet: &Fleet, header: &Header, order: Order) -> Value {
    let snapshot = &fleet.snapshot;
    let gpus: Vec<Value> =
        fleet.sorted(order, false).into_iter().map(|i| gpu_json(fleet, &fleet.rows[i])).collect();
    json!({
        "schema": 1,
        "prometheus": header.prometheus,
        "node_label": header.node_label,
        "match": header.matchers,
        "unix_s": snapshot.unix_s,
        "took_ms": snapshot.took_ms,
        "window_s": snapshot.window_s,
        "totals": fleet.totals,
        "gpus": gpus,
        "remarks": fleet.remarks,
    })
}

fn gpu_json(fleet: &Fleet, row: &Row) -> Value {
    let gpu = fleet.gpu(row);
    let errors = &gpu.errors;
    let counted =
        |counted: Option<Counted>| counted.map(|c| json!({"total": c.total, "in_window": c.recent}));
    let names = |bits: u64| reasons::active(bits).map(ActiveReason::name).collect::<Vec<_>>();
    let mut object = Map::new();
    let mut put = |key: &str, value: Value| drop(object.insert(key.to_owned(), value));
    put("node", json!(gpu.node));
    put("gpu", json!(gpu.gpu));
    put("mig", json!(gpu.mig));
    put("mig_profile", json!(gpu.mig_profile));
    put("uuid", json!(gpu.uuid));
    put("pci_bus_id", json!(gpu.pci_bus_id));
    put("model", json!(gpu.model));
    put("driver", json!(gpu.driver));
    put("work", json!(gpu.work));
    put("state", json!(row.state));
    put("lost_pct", json!(row.loss.map(|loss| loss.lost_pct)));
    put("loss", json!(row.loss));
    put("below_own_clock", json!(row.below_own_clock));
    put("not_compared", json!(row.not_compared.map(|why| why.to_string())));
    put("slow_since_unix_s", json!(gpu.slow_since.map(|since| since.unix_s)));
    put("slow_since_or_earlier", json!(gpu.slow_since.map(|since| since.or_earlier)));
    put("text", json!(fleet.sentence(row)));
    put("last_scrape_s_ago", json!(row.age_s));
    for (key, reading) in READINGS {
        put(key, json!(gpu.get(reading)));
    }
    put("reasons", json!(gpu.sample.reasons.map(names)));
    put("reason_bits", json!(gpu.sample.reasons));
    put("xid", json!(errors.xid));
    put("xid_is_new", json!(errors.xid_is_new));
    put("ecc_corrected", json!(counted(errors.ecc_corrected)));
    put("ecc_uncorrected", json!(counted(errors.ecc_uncorrected)));
    put("rows_remapped", json!(counted(errors.rows_remapped)));
    put("rows_remapped_uncorrectable", json!(counted(errors.rows_remapped_uncorrectable)));
    put("row_remap_failure", json!(counted(errors.row_remap_failure)));
    put("pcie_replays", json!(counted(errors.pcie_replays)));
    put("nvlink_crc", json!(counted(errors.nvlink_crc)));
    put("nvlink_replays", json!(counted(errors.nvlink_replays)));
    put("nvlink_recoveries", json!(counted(errors.nvlink_recoveries)));
    Value::Object(object)
}

const READINGS: [(&str, Reading); 15] = [
    ("sm_clock_mhz", Reading::SmClock),
    ("mem_clock_mhz", Reading::MemClock),
    ("sm_clock_max_mhz", Reading::SmClockMax),
    ("power_w", Reading::Power),
    ("power_limit_w", Reading::PowerLimit),
    ("temp_c", Reading::Temp),
    ("mem_temp_c", Reading::MemTemp),
    ("gpu_util_pct", Reading::GpuUtil),
    ("mem_util_pct", Reading::MemUtil),
    ("sm_active_pct", Reading::SmActive),
    ("tensor_pct", Reading::Tensor),
    ("dram_pct", Reading::Dram),
    ("mem_used_bytes", Reading::MemUsed),
    ("mem_total_bytes", Reading::MemTotal),
    ("fan_pct", Reading::Fan),
];

/// Whether the row of a GPU contains a text.
pub fn contains(fleet: &Fleet, row: &Row, text: &str) -> bool {
    let gpu: &Gpu = fleet.gpu(row);
    let text = text.to_lowercase();
    let named =
        [Some(&gpu.node), gpu.uuid.as_ref(), gpu.model.as_ref(), gpu.work.as_ref(), gpu.pci_bus_id.as_ref()];
    let state = row.state.to_string();
    let shown = [state, faults(row), limits(gpu).unwrap_or_default()];
    named.into_iter().flatten().chain(&shown).any(|part| part.to_lowercase().contains(&text))
}
