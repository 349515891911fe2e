//! A run as text: `report.md`.

use std::fmt::Write;

use super::{
    head::{facts, heading, verdict, warnings},
    items::{all_hints, list, none},
    list_item,
    metrics::{DEFINITIONS, energy_of},
    paragraph,
    plots::{self, Plot},
};
use crate::state::{LogLine, RunState};
use gpu_traces::show::{RowQuery, TableView};
use llmprof_analysis::{distribution::Distribution, throttle};
use llmprof_base::{
    cells,
    foreign::{MAX_LINE, line},
    table::{Cell, Column, Table},
    units::{Unit, grouped, percent, scaled, three_digits},
};
use llmprof_event::{Level, Notice, Phase, kernels::Group};

/// The tables of nsys and ncu, `rows` of each.
pub fn kernels_text(state: &RunState, rows: usize) -> String {
    let asked = RowQuery { rows: Some(rows), ..RowQuery::default() };
    let mut parts = Vec::new();
    // All kernels of a followed program come first, because the user asked for them.
    let is_followed = state.followed().is_some();
    if let Some(live) = state.kernels.without_steps().filter(|_| is_followed) {
        parts.push("all recorded work:".to_owned());
        parts.push(TableView::new(&live.table("as recorded"), &asked).text());
    }
    for phase in Phase::WORK.into_iter().filter(|_| is_followed) {
        let Some(live) = state.kernels.live(phase).filter(|live| live.total.steps > 0) else { continue };
        let by_operator = RowQuery { group: Group::Operator, ..asked.clone() };
        let steps = grouped(i64::try_from(live.total.steps).unwrap_or(i64::MAX));
        parts.push(format!("{} ({steps} recorded steps):", phase.name()));
        parts.push(TableView::new(&live.table("as recorded"), &by_operator).text());
    }
    for report in &state.kernels.reports {
        let phase = report.phase.map(|phase| format!(", {}", phase.name())).unwrap_or_default();
        parts.push(line(&format!("{}{phase} ({}):", report.tool, report.file), MAX_LINE));
        parts.extend(report.tables.iter().map(|table| TableView::new(table, &asked).text()));
    }
    parts.join("\n\n")
}

/// `report.md`: a pure function of the events.
pub fn report_md(state: &RunState) -> String {
    report_with_plots(state, &plots::all(state))
}

pub(super) fn report_with_plots(state: &RunState, plots: &[Plot]) -> String {
    let images: String = plots.iter().map(|plot| format!("![{}]({})\n\n", plot.title, plot.name)).collect();
    head_md(state)
        + &latencies_md(state)
        + &super::account::account_md(state)
        + &super::bill::bill_md(state)
        + &super::server::server_md(state)
        + &super::ranks::ranks_md(state)
        + &images
        + &details_md(state)
}

/// The facts of the run and its verdict.
fn head_md(state: &RunState) -> String {
    let mut out = format!("# {}\n\n", heading(state));
    for warning in warnings(state) {
        out += &paragraph(&format!("**{warning}**"));
    }
    for (name, fact) in facts(state) {
        out += &list_item(&format!("{name}: {fact}"));
    }
    out.push('\n');
    for verdict in verdict(state) {
        out += &paragraph(&format!("**{}** {}", verdict.first, verdict.rest));
    }
    out
}

/// The latencies of the measured requests.
pub fn latency_table(state: &RunState) -> Table {
    let first = [Column::text("").key("name"), Column::number("n").key("n").unit(Unit::Count)];
    let times = ["mean", "p50", "p90", "p99", "min", "max"];
    let times = times.map(|key| Column::number(key).key(key).unit(Unit::Millis));
    let mut table = Table::new(first.into_iter().chain(times));
    for (name, distribution) in state.latencies(&state.total) {
        table.push(latency(name.to_owned(), distribution));
    }
    table
}

fn latency(name: String, distribution: &Distribution) -> Vec<Cell> {
    let s = distribution.summary();
    cells![name, s.n, s.mean, s.p50, s.p90, s.p99, s.min, s.max]
}

/// Latencies and rates: the part before the plots.
pub(super) fn latencies_md(state: &RunState) -> String {
    let Some(run) = state.run.as_ref().filter(|run| run.kind.has_workload()) else { return String::new() };
    let is_inferred = run.kind.infers_steps();
    if state.has_no_tokens() && (is_inferred || state.failure().is_some()) {
        return String::new();
    }
    let mut out = String::new();
    let with_recording = state.total.left_out().into_iter().flat_map(|metrics| state.latencies(metrics));
    let with_recording = with_recording
        .map(|(name, distribution)| (format!("{name} while kernels were recorded"), distribution));
    let mut table = latency_table(state);
    with_recording.for_each(|(name, distribution)| table.push(latency(name, distribution)));
    out += &table.markdown();
    let rate = |tok_s: Option<f64>| tok_s.map_or_else(none, |v| format!("{} tok/s", three_digits(v)));
    let total = &state.total;
    let _ = match is_inferred {
        // Steps are observed only part of the time, and the number of tokens per step is not known.
        true => {
            let decode = state.decode_tok_s().map_or_else(none, three_digits);
            writeln!(out, "\nDecode {decode} steps/s. The number of tokens per step is unknown.\n")
        }
        false => writeln!(
            out,
            "\nOutput {} by the wall clock, from the first request to the last token. Prefill {}, decode {}.\n",
            rate(total.output_tok_s()),
            rate(total.prefill_tok_s()),
            rate(state.decode_tok_s())
        ),
    };
    if let Some(tally) = &state.vision {
        let _ = writeln!(
            out,
            "Vision: {tally}. `vision` is the part of TTFT in which images are encoded; prefill follows it.\n"
        );
    }
    if let Some(tally) = state.speculation {
        let _ = writeln!(
            out,
            "Speculative decoding: {tally}. TPOT is per token, `step` is the time between steps.\n"
        );
    }
    out
}

/// Efficiency, throttling, energy, memory, kernels, notices and definitions: the part after the plots.
pub(super) fn details_md(state: &RunState) -> String {
    let mut out = String::new();
    efficiency(&mut out, state);
    gpu(&mut out, state);
    memory(&mut out, state);
    kernel_reports(&mut out, state);
    snapshots(&mut out, state);
    notices(&mut out, state);
    let _ = writeln!(out, "## Definitions\n");
    for definition in DEFINITIONS {
        let _ = writeln!(out, "- {}", definition.markdown());
    }
    let _ = writeln!(
        out,
        "- Warm-up requests ({}) are excluded from latencies and rates. Energy and kernels include them.",
        state.warmup_done
    );
    out
}

/// MFU, MBU, and the points of the roofline.
fn efficiency(out: &mut String, state: &RunState) {
    let roofline = state.roofline();
    if roofline.points.is_empty() {
        return;
    }
    let _ = writeln!(out, "## Efficiency\n");
    let peaks = match &roofline.peaks {
        Ok(peaks) => {
            let clock =
                peaks.clock_mhz.map_or_else(String::new, |mhz| format!(" at {} MHz", three_digits(mhz)));
            let (flops, bytes) = (scaled(peaks.flops, "FLOP/s"), scaled(peaks.bytes_per_s, "B/s"));
            format!("Peaks: {flops}{clock}, {bytes} ({}).", peaks.source)
        }
        Err(reason) => format!("Peaks unknown: {reason}."),
    };
    let _ = writeln!(out, "{}", line(&peaks, MAX_LINE));
    if let (Some(now), Some(mhz)) = (roofline.now(), roofline.clock_mhz) {
        let flops = scaled(now.flops, "FLOP/s");
        let _ = writeln!(out, "Peak at the run's SM clock of {} MHz: {flops}.", three_digits(mhz));
    }
    for (name, used) in [("Decode MBU", state.mbu()), ("Prefill MFU", state.mfu())] {
        if let Some(used) = used {
            let _ = writeln!(out, "{name}: {}.", percent(used.share * 100.0));
        }
    }
    let _ = writeln!(out, "\n{}", roofline.table().markdown());
    list(out, &all_hints(state));
    let mut bases: Vec<String> = roofline.points.iter().map(|point| point.basis.to_string()).collect();
    bases.dedup();
    let basis = bases.join("; ");
    *out += &paragraph(&format!("Basis: {basis}. Classes without hardware counters are estimates."));
}

/// Throttling, energy, incidents, trust.
fn gpu(out: &mut String, state: &RunState) {
    if let Some(diagnosis) = state.diagnosis() {
        let _ = write!(out, "## Throttling\n\n{}", paragraph(&diagnosis.verdict.to_string()));
        if !diagnosis.causes.is_empty() {
            let _ = writeln!(out, "{}", throttle::table::table(&diagnosis.causes).markdown());
            for cause in diagnosis.causes.iter().filter(|cause| cause.cost_pct.is_some()) {
                *out += &list_item(&format!("{}, {}: {}", cause.phase, cause.reason, cause.basis));
            }
            out.push('\n');
        }
        let advice = diagnosis.advice.iter().map(|advice| format!("Action: {advice}"));
        list(out, &advice.collect::<Vec<_>>());
    }
    if let Some(energy) = energy_of(state) {
        let mut table = Table::labelled("", ["J", "mean W", "tokens", "J/token"]);
        if let Some(requests) = energy.requests {
            table.push(cells![
                "requests: prefill and decode",
                requests.joules,
                Cell::default(),
                format!("{} output", grouped(requests.output_tokens as i64)),
                requests.j_per_output_token,
            ]);
        }
        for phase in &energy.phases {
            let tokens = Unit::Count.cell(phase.tokens);
            table.push(cells![
                phase.phase.to_string(),
                phase.joules,
                phase.mean_w,
                tokens,
                phase.j_per_token
            ]);
        }
        let table = table.markdown();
        let method =
            format!("Method: {}. Uncertainty: {}. Warm-up is included.", energy.method, energy.uncertainty);
        let _ = write!(out, "## Energy\n\n{table}\n{}", paragraph(&method));
    }
    if !state.flight.incidents.is_empty() {
        let _ = writeln!(out, "## Incidents\n");
        for incident in &state.flight.incidents {
            let meanwhile = Some(incident.meanwhile()).filter(|text| !text.is_empty());
            let meanwhile = meanwhile.map_or_else(String::new, |text| format!(" ({text})"));
            *out += &list_item(&format!("{:.3} s: {}{meanwhile}", incident.at.secs(), incident.describe()));
        }
        out.push('\n');
    }
    if let Some(cost) = state.kernels.recording.cost() {
        let _ = write!(out, "## Recording of kernels\n\n{}", paragraph(&format!("Cost: {cost}.")));
    }
    if let Some(trust) = state.trust() {
        let issues: Vec<String> = trust.issues.iter().map(ToString::to_string).collect();
        let issues = if issues.is_empty() { "no issues".to_owned() } else { issues.join("; ") };
        let text = format!("{} of {} points: {issues}.", trust.score, trust.of);
        let _ = write!(out, "## Trust\n\n{}", paragraph(&text));
    }
}

/// The memory of allocators, if they are counted.
fn memory(out: &mut String, state: &RunState) {
    let mut table = Table::labelled("allocator", ["live", "peak", "reserved", "fragmentation"]);
    for sample in state.allocators.all() {
        let held = [Some(sample.live_bytes), Some(sample.peak_bytes), sample.reserved_bytes];
        let row =
            [Cell::from(sample.allocator.name())].into_iter().chain(held.map(|n| Unit::Scaled("B").cell(n)));
        table.push(row.chain([Unit::Share.cell(sample.fragmentation())]));
    }
    if !table.rows.is_empty() {
        let table = table.markdown();
        let _ = writeln!(out, "## Memory\n\n{table}\nLive and reserved: at the last sample.\n");
    }
}

/// What nsys and ncu reported about the run, the longest rows of each table.
fn kernel_reports(out: &mut String, state: &RunState) {
    const ROWS: usize = 10;
    let tables = kernels_text(state, ROWS);
    let title = if state.kernels.reports.is_empty() { "Kernels" } else { "Reports of profilers" };
    if !tables.is_empty() {
        let _ = writeln!(out, "## {title}\n\n```text\n{tables}\n```\n");
    }
}

fn snapshots(out: &mut String, state: &RunState) {
    if state.snapshots.is_empty() {
        return;
    }
    let mut table = Table::labelled("name", ["from", "to", "ITL p50", "decode tok/s"]);
    for s in &state.snapshots {
        table.push(cells![
            s.name.clone(),
            format!("{:.1} s", s.metrics.from_s),
            format!("{:.1} s", s.metrics.to_s),
            Unit::Millis.cell(s.metrics.itl_ms.p50),
            s.metrics.decode_tok_s,
        ]);
    }
    let _ = writeln!(out, "## Snapshots\n\n{}", table.markdown());
}

fn notices(out: &mut String, state: &RunState) {
    // From the output of another program, only errors are reported.
    let is_reported = |notice: &Notice| {
        let least = if notice.is_output() { Level::Error } else { Level::Warn };
        notice.level >= least
    };
    let mut notices = state.log.iter().filter(|line| is_reported(&line.notice)).peekable();
    if notices.peek().is_none() {
        return;
    }
    let _ = writeln!(out, "## Notices\n");
    for LogLine { t, notice, times, .. } in notices {
        let times = if *times > 1 { format!(" (×{times})") } else { String::new() };
        *out += &list_item(&format!("{:.1} s, {}: {}{times}", t.secs(), notice.source, notice.text));
    }
    out.push('\n');
}
