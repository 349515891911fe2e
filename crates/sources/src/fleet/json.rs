//! A fleet as JSON.

use serde_json::{Map, Value, json};

use super::recording::Header;
use llmprof_analysis::fleet::{Counted, Fleet, GpuVerdict, Order};
use llmprof_event::{
    readings::Reading,
    reasons::{self, ActiveReason},
};

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

fn gpu_json(fleet: &Fleet, row: &GpuVerdict) -> Value {
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
