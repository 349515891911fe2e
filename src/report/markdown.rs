//! A run in words: `report.md`.

use std::fmt::Write;

use super::{
    metrics::{DEFINITIONS, energy_of, outcome},
    plots::{self, Plot},
};
use crate::{
    analysis::{throttle::table, verdict},
    base::units::{bytes, grouped, millis, percent, scaled, three_digits},
    event::Phase,
    kernels::show::{Asked, Shown},
    state::RunState,
};

/// What tools wrote, in words.
pub fn kernels_text(state: &RunState, rows: usize) -> String {
    let asked = Asked { rows: Some(rows), ..Asked::default() };
    let mut parts = Vec::new();
    for report in &state.kernels.reports {
        let phase = report.phase.map(|phase| format!(", {}", phase.name())).unwrap_or_default();
        parts.push(format!("{}{phase} ({}):", report.tool, report.file));
        parts.extend(report.tables.iter().map(|table| Shown::new(table, &asked).text()));
    }
    parts.join("\n\n")
}

/// `report.md`: a pure function of the events.
pub fn report_md(state: &RunState) -> String {
    with_plots(state, &plots::all(state))
}

/// The same, of a run whose pictures are made already.
pub(super) fn with_plots(state: &RunState, plots: &[Plot]) -> String {
    let mut out = String::new();
    let metrics = state.total.summary();
    let title = state.run.as_ref().map_or("a run", |r| &r.model);
    let _ = writeln!(out, "# {title}\n");
    if let Some(run) = &state.run {
        if run.simulated {
            let _ = writeln!(out, "**Simulated: nothing in this report was measured.**\n");
        }
        if let Some(tool) = &run.perturbed {
            let _ = writeln!(
                out,
                "**Under {tool}: the times in this report are not those of the workload by itself, and not to be compared.**\n"
            );
        }
        let weights = if run.synthetic_weights { "synthetic weights" } else { "trained weights" };
        let _ = writeln!(
            out,
            "{} parameters as {} ({}, {weights}), engine {}, device {}. {} requests after {} for warm-up, batch {}, \
             {} prompt tokens, {} output tokens.\n",
            grouped(run.parameters as i64),
            run.dtype,
            bytes(run.weight_bytes),
            run.engine,
            run.device,
            run.requests,
            run.warmup,
            run.batch,
            grouped(i64::from(run.prompt_tokens)),
            grouped(i64::from(run.output_tokens))
        );
    }
    let cause = state
        .finished
        .as_ref()
        .and_then(|f| f.cause.as_deref())
        .map_or_else(String::new, |c| format!(": {c}"));
    let _ =
        writeln!(out, "Outcome: {}{cause}. {} s recorded.\n", outcome(state), three_digits(state.now.secs()));
    let _ = writeln!(
        out,
        "| | n | mean | p50 | p90 | p99 | min | max |\n|---|---:|---:|---:|---:|---:|---:|---:|"
    );
    for (name, d) in state.total.latencies() {
        let s = d.summary();
        let cells =
            [s.mean, s.p50, s.p90, s.p99, s.min, s.max].map(|v| v.map_or_else(|| "–".to_owned(), millis));
        let _ = writeln!(out, "| {name} | {} | {} |", grouped(s.n as i64), cells.join(" | "));
    }
    let rate = |v: Option<f64>| v.map_or_else(|| "–".to_owned(), |v| format!("{} tok/s", three_digits(v)));
    let _ =
        writeln!(out, "\nPrefill {}, decode {}.\n", rate(metrics.prefill_tok_s), rate(metrics.decode_tok_s));
    if let Some(sentence) = verdict_of(state) {
        let _ = writeln!(out, "{sentence}\n");
    }
    for plot in plots {
        let _ = writeln!(out, "![{}]({})\n", plot.title, plot.name);
    }
    efficiency(&mut out, state);
    card(&mut out, state);
    memory(&mut out, state);
    tools(&mut out, state);
    snapshots(&mut out, state);
    notices(&mut out, state);
    let _ = writeln!(out, "## What the words mean\n");
    for definition in DEFINITIONS {
        let _ = writeln!(out, "- {}", definition.words());
    }
    let _ = writeln!(
        out,
        "- Warm-up requests ({}) are in no latency and no rate; in energy and kernels they are.",
        state.warmup_done
    );
    out
}

/// The verdict on the whole run.
pub fn verdict_of(state: &RunState) -> Option<String> {
    let run = state.run.as_ref()?;
    verdict::sentence(&verdict::Evidence {
        metrics: &state.total,
        batch: run.batch,
        step_bytes: state.decode_step_bytes(),
        cpu_taken_by_others: state
            .host
            .taken_by_others(state.total.from, state.now)
            .filter(|_| run.device.is_cpu()),
        simulated: run.simulated,
    })
}

/// What the kernels say, without a stop at the end.
pub(super) fn all_hints(state: &RunState) -> Vec<String> {
    [Phase::Decode, Phase::Prefill].into_iter().flat_map(|phase| hints(state, phase)).collect()
}

pub(super) fn hints(state: &RunState, phase: Phase) -> Vec<String> {
    state.kernel_hints(phase).iter().map(|hint| hint.trim_end_matches('.').to_owned()).collect()
}

/// MFU, MBU, and the points of the roofline.
fn efficiency(out: &mut String, state: &RunState) {
    let roofline = state.roofline();
    if roofline.points.is_empty() {
        return;
    }
    let _ = writeln!(out, "## How near the limit\n");
    match &roofline.peaks {
        Ok(peaks) => {
            let clock =
                peaks.clock_mhz.map_or_else(String::new, |mhz| format!(" at {} MHz", three_digits(mhz)));
            let _ = writeln!(
                out,
                "Ceilings: {}{clock}, {} ({}).",
                scaled(peaks.flops, "FLOP/s"),
                scaled(peaks.bytes_per_s, "B/s"),
                peaks.source
            );
        }
        Err(why) => {
            let _ = writeln!(out, "No ceilings: {why}.");
        }
    }
    if let (Some(now), Some(mhz)) = (roofline.now(), roofline.clock_mhz) {
        let _ = writeln!(
            out,
            "At the SM clock of the run, {} MHz: {}.",
            three_digits(mhz),
            scaled(now.flops, "FLOP/s")
        );
    }
    for (name, used) in [("Decode: MBU", state.mbu()), ("Prefill: MFU", state.mfu())] {
        if let Some(used) = used {
            let _ = writeln!(out, "{name} {}.", percent(used.share * 100.0));
        }
    }
    let _ = writeln!(
        out,
        "\n| | FLOP/B | FLOP/s | B/s | of roof | class | time |\n|---|---:|---:|---:|---:|---|---:|"
    );
    for point in &roofline.points {
        let none = || "–".to_owned();
        let share = point.share.map(|share| share.most());
        let class = point.verdict.as_ref().map(|verdict| verdict.class.word().to_owned());
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} |",
            point.label(),
            point.timed.flop_per_byte().map_or_else(none, three_digits),
            scaled(point.timed.flop_per_s(), "").trim_end(),
            scaled(point.timed.bytes_per_s(), "").trim_end(),
            share.map_or_else(none, percent),
            class.unwrap_or_else(none),
            point.time_pct.map_or_else(none, percent)
        );
    }
    let hints = all_hints(state);
    if !hints.is_empty() {
        out.push('\n');
    }
    for hint in hints {
        let _ = writeln!(out, "- {hint}.");
    }
    let mut bases: Vec<&str> = roofline.points.iter().map(|point| point.basis.as_str()).collect();
    bases.dedup();
    let _ = writeln!(
        out,
        "\nWhere these come from: {}. Classes without counters are estimates.\n",
        bases.join("; ")
    );
}

/// What held the card back, what it spent, and whether that may be trusted.
fn card(out: &mut String, state: &RunState) {
    if let Some(diagnosis) = state.diagnosis() {
        let _ = writeln!(out, "## What held the card back\n\n{}\n", diagnosis.verdict);
        if !diagnosis.causes.is_empty() {
            let _ = writeln!(out, "{}", table::markdown(&diagnosis.causes));
            for cause in diagnosis.causes.iter().filter(|cause| cause.cost_pct.is_some()) {
                let _ = writeln!(out, "- {}, {}: {}", cause.phase, cause.reason, cause.basis);
            }
            out.push('\n');
        }
        for advice in &diagnosis.advice {
            let _ = writeln!(out, "- To do: {advice}.");
        }
        if !diagnosis.advice.is_empty() {
            out.push('\n');
        }
    }
    if let Some(energy) = energy_of(state) {
        let _ = writeln!(
            out,
            "## Energy\n\n| phase | J | mean W | tokens | J/token |\n|---|---:|---:|---:|---:|"
        );
        for phase in &energy.phases {
            let number = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), three_digits);
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {} |",
                phase.phase,
                three_digits(phase.joules),
                number(phase.mean_w),
                grouped(phase.tokens as i64),
                number(phase.j_per_token)
            );
        }
        let _ = writeln!(
            out,
            "\nBy {}. Uncertain by {}. Warm-up is counted in.\n",
            energy.method, energy.uncertainty
        );
    }
    if !state.flight.incidents.is_empty() {
        let _ = writeln!(out, "## Incidents\n");
        for incident in &state.flight.incidents {
            let meanwhile = Some(incident.meanwhile()).filter(|words| !words.is_empty());
            let meanwhile = meanwhile.map_or_else(String::new, |words| format!(" ({words})"));
            let _ = writeln!(out, "- {:.3} s: {}{meanwhile}", incident.at.secs(), incident.words());
        }
        out.push('\n');
    }
    if let Some(trust) = state.trust() {
        let doubts = if trust.doubts.is_empty() {
            "nothing speaks against it".to_owned()
        } else {
            trust.doubts.join("; ")
        };
        let _ =
            writeln!(out, "## How far to trust it\n\n{} of {} points: {doubts}.\n", trust.score, trust.of);
    }
}

/// What allocators held, where they are counted.
fn memory(out: &mut String, state: &RunState) {
    if state.allocators.all().next().is_none() {
        return;
    }
    let _ = writeln!(
        out,
        "## Memory\n\n| allocator | live | peak | reserved | fragmentation |\n|---|---|---|---|---|"
    );
    for sample in state.allocators.all() {
        let none = || "not told".to_owned();
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} |",
            sample.allocator.name(),
            scaled(sample.live_bytes as f64, "B"),
            scaled(sample.peak_bytes as f64, "B"),
            sample.reserved_bytes.map_or_else(none, |bytes| scaled(bytes as f64, "B")),
            sample.fragmentation().map_or_else(none, |share| percent(share * 100.0))
        );
    }
    let _ = writeln!(out, "\nLive and reserved are as of the last look.\n");
}

/// What nsys and ncu wrote of the run, the longest rows of each table.
fn tools(out: &mut String, state: &RunState) {
    if state.kernels.reports.is_empty() {
        return;
    }
    let _ = writeln!(out, "## Under tools\n");
    let _ = writeln!(out, "```text\n{}\n```\n", kernels_text(state, REPORT_ROWS));
}

/// Rows of a table in a report.
const REPORT_ROWS: usize = 10;

fn snapshots(out: &mut String, state: &RunState) {
    if state.snapshots.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "## Snapshots\n\n| name | from | to | ITL p50 | decode tok/s |\n|---|---:|---:|---:|---:|"
    );
    for s in &state.snapshots {
        let _ = writeln!(
            out,
            "| {} | {:.1} s | {:.1} s | {} | {} |",
            s.name,
            s.metrics.from_s,
            s.metrics.to_s,
            s.metrics.itl_ms.p50.map_or_else(|| "–".into(), millis),
            s.metrics.decode_tok_s.map_or_else(|| "–".into(), three_digits)
        );
    }
    out.push('\n');
}

fn notices(out: &mut String, state: &RunState) {
    let bad: Vec<_> = state.log.iter().filter(|(_, n)| n.level > crate::event::Level::Info).collect();
    if bad.is_empty() {
        return;
    }
    let _ = writeln!(out, "## Notices\n");
    for (t, notice) in bad {
        let _ = writeln!(out, "- {:.1} s, {}: {}", t.secs(), notice.source, notice.text);
    }
    out.push('\n');
}
