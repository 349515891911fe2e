//! Several GPUs in one run, as text and as JSON.

use serde_json::{Value, json};

use super::{list_item, paragraph};
use crate::state::RunState;
use llmprof_analysis::ranks::{Late, collective_table, lane_table};
use llmprof_base::{
    table::Table,
    units::{millis, percent},
};

/// Information that is not in the tables.
fn remarks(state: &RunState) -> Vec<String> {
    let mut all = Vec::new();
    let totals = state.ranks.total();
    if !totals.is_empty() {
        all.push(state.late_rank_of_run().to_string());
    }
    if let Some(share) = totals.nccl_share() {
        all.push(format!(
            "Exposed NCCL (not overlapped by computation): {} of the time in which all lanes were recorded ({}).",
            percent(100.0 * share),
            millis(totals.lanes.iter().map(|lane| lane.span_ns).max().unwrap_or(0) as f64 / 1e6)
        ));
    }
    let silent: Vec<String> = state.silent_ranks().iter().map(u32::to_string).collect();
    if !silent.is_empty() {
        all.push(format!("No kernels of rank {} were recorded.", silent.join(", ")));
    }
    if let Some(error) = totals.clock_error_ns {
        all.push(format!("The clocks of the ranks agree to {}.", millis(error as f64 / 1e6)));
    }
    all.extend(state.ranks.nccl.words());
    all
}

/// The lanes and the collectives, if there are any.
fn tables(state: &RunState) -> impl Iterator<Item = Table> {
    let totals = state.ranks.total();
    let lanes = (!totals.is_empty()).then(|| lane_table(totals, |lane| state.rank_clock(lane)));
    let collectives = (!totals.collectives.is_empty()).then(|| collective_table(totals));
    lanes.into_iter().chain(collectives)
}

/// The section of `report.md`.
pub(super) fn ranks_md(state: &RunState) -> String {
    if !state.ranks.is_there() {
        return String::new();
    }
    let mut out = "## Ranks\n\n".to_owned();
    tables(state).for_each(|table| out += &(table.markdown() + "\n"));
    for remark in remarks(state) {
        out += &list_item(&remark);
    }
    out.push('\n');
    out + &paragraph(
        "A rank waits from the start of its kernel of a collective until the last rank begins it. A collective's time counts from then on. \
         algbw and busbw as nccl-tests define them. Where computation runs at the same time, waiting and NCCL are not counted.",
    )
}

/// The same for a terminal; empty without ranks.
pub fn ranks_text(state: &RunState) -> String {
    if !state.ranks.is_there() {
        return String::new();
    }
    let mut parts: Vec<String> = tables(state).map(|table| table.text()).collect();
    parts.push(remarks(state).join("\n"));
    parts.join("\n\n")
}

/// Unknown values are null.
pub fn ranks_json(state: &RunState) -> Option<Value> {
    let ranks = &state.ranks;
    if !ranks.is_there() {
        return None;
    }
    let totals = ranks.total();
    let lanes = totals.lanes.iter().map(|lane| {
        let (sums, clock) = (&lane.sums, state.rank_clock(lane.lane()));
        json!({
            "rank": lane.lane().rank, "pid": lane.lane().pid, "device": lane.lane().device, "gpu": lane.lane().gpu,
            "uuid": lane.lane().uuid, "span_ns": lane.span_ns, "compute_ns": sums.compute_ns, "nccl_ns": sums.nccl_ns,
            "wait_ns": (sums.matched > 0).then_some(sums.wait_ns), "copy_ns": sums.copy_ns, "idle_ns": sums.idle_ns,
            "kernels": sums.kernels, "collectives": sums.collectives, "matched": sums.matched, "last": sums.last,
            "caused_ns": sums.caused_ns, "steps": sums.steps, "step_ms": lane.step_ms(), "sm_clock_mhz": clock.sm_mhz,
            "limits": clock.limits,
        })
    });
    let collectives = totals.by_time().into_iter().map(|row| {
        let bandwidth = row.bandwidth();
        json!({
            "kind": row.kind, "bytes": row.bytes, "ranks": row.ranks, "calls": row.calls, "matched": row.matched,
            "median_us": row.median_ns().map(|ns| ns as f64 / 1e3), "wait_us_each": row.wait_ns_each().map(|ns| ns / 1e3),
            "algbw_bytes_s": bandwidth.map(|bandwidth| bandwidth.algorithm), "busbw_bytes_s": bandwidth.map(|bandwidth| bandwidth.bus),
        })
    });
    let late = state.late_rank_of_run();
    let straggler = match &late {
        Late::Straggler(found) => Some(json!({
            "rank": found.lane.rank, "pid": found.lane.pid, "gpu": found.lane.gpu, "behind": found.behind,
            "last": found.last, "reason": found.reason.to_string(),
        })),
        _ => None,
    };
    Some(json!({
        "lanes": lanes.collect::<Vec<_>>(),
        "collectives": collectives.collect::<Vec<_>>(),
        "nccl_share": totals.nccl_share(),
        "straggler": straggler,
        "verdict": (!totals.is_empty()).then(|| late.to_string()),
        "clock_error_ns": totals.clock_error_ns,
        "silent_ranks": state.silent_ranks(),
        "nccl": (!ranks.nccl.is_empty()).then_some(&ranks.nccl),
    }))
}
