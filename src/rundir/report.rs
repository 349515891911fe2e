//! A run in words and numbers: `report.md`, `metrics.json`, and what `run --json` prints.

use std::{fmt::Write, path::Path};

use serde_json::{Value, json};

use crate::{
    analysis::{
        distribution::Summary,
        energy::{Energy, energy},
        throttle::table,
        units::{bytes, grouped, millis, scaled, three_digits},
        verdict,
    },
    event::{KernelReport, Phase, SCHEMA},
    kernels::show::{Asked, Shown},
    state::{RunState, Used},
};

use super::roofline_svg::has_points;

/// Version of `metrics.json` and `run --json`.
pub const METRICS_SCHEMA: u32 = 1;

/// What each number means, carried along with the numbers.
const DEFINITIONS: [(&str, &str); 11] = [
    ("ttft_ms", "request start to the first token id on the host, milliseconds, per request"),
    ("tpot_ms", "(last token time - first token time) / (output tokens - 1), milliseconds, per request"),
    ("itl_ms", "gap between two consecutive tokens on the host, milliseconds, per token"),
    ("device_prefill_ms", "a prefill by the device's own clock, milliseconds, where it has one"),
    ("device_step_ms", "a decode step by the device's own clock, milliseconds, where it has one"),
    (
        "device_share",
        "sum of device_step_ms / sum of ITL: the part of the decode time in which the device worked",
    ),
    ("prefill_tok_s", "prompt tokens of all sequences / sum of TTFT"),
    ("decode_tok_s", "tokens after the first of all sequences / sum of ITL"),
    (
        "mfu",
        "FLOPs of a prefill, from the model's shape / mean TTFT / dense peak FLOP/s of the type; null where no peak is known",
    ),
    (
        "mbu",
        "bytes of weights and cache that a decode step reads, from the model's shape / mean ITL / peak memory bandwidth",
    ),
    ("percentiles", "null where there are too few samples: p50 needs 2, p90 10, p99 100"),
];

/// The outcome as one word; a run without an end was cut off.
fn outcome(state: &RunState) -> String {
    state.finished.as_ref().map_or_else(|| "interrupted".to_owned(), |f| f.outcome.to_string())
}

/// `metrics.json`: a pure function of the events.
pub fn metrics_json(state: &RunState) -> Value {
    let run = state.run.as_ref();
    let definitions: serde_json::Map<String, Value> =
        DEFINITIONS.iter().map(|(name, text)| ((*name).to_owned(), json!(text))).collect();
    json!({
        "schema": METRICS_SCHEMA,
        "event_schema": SCHEMA,
        "outcome": outcome(state),
        "cause": state.finished.as_ref().and_then(|f| f.cause.clone()),
        "run": run,
        "warmup_requests_excluded": state.warmup_done,
        "prepare_ms": state.prepare_ms,
        "duration_s": state.now.secs(),
        "metrics": state.total.summary(),
        "snapshots": state.snapshots,
        "diagnosis": state.diagnosis(),
        "heat": state.profiled_gpu().and_then(|gpu| gpu.heat()),
        "energy": energy_of(state),
        "efficiency": efficiency_json(state),
        "trust": state.trust(),
        "definitions": definitions,
    })
}

/// One object for machines. What is not known is null, never zero.
pub fn run_json(state: &RunState, run_dir: Option<&Path>) -> Value {
    let run = state.run.as_ref();
    let metrics = state.total.summary();
    let latency = |s: Summary| json!({"n": s.n, "mean": s.mean, "p50": s.p50, "p90": s.p90, "p99": s.p99});
    json!({
        "schema": METRICS_SCHEMA,
        "run_dir": run_dir,
        "outcome": outcome(state),
        "cause": state.finished.as_ref().and_then(|f| f.cause.clone()),
        "model": run.map(|r| &r.model),
        "dtype": run.map(|r| &r.dtype),
        "engine": run.map(|r| &r.engine),
        "device": run.map(|r| &r.device),
        "simulated": run.map(|r| r.simulated),
        "perturbed": run.and_then(|r| r.perturbed.as_deref()),
        "requests": metrics.requests,
        "ttft_ms": latency(metrics.ttft_ms),
        "tpot_ms": latency(metrics.tpot_ms),
        "itl_ms": latency(metrics.itl_ms),
        "device_prefill_ms": metrics.device_prefill_ms.map(latency),
        "device_step_ms": metrics.device_step_ms.map(latency),
        "device_share": metrics.device_share,
        "prefill_tok_s": metrics.prefill_tok_s,
        "decode_tok_s": metrics.decode_tok_s,
        "energy_j_per_token": energy_of(state).and_then(|energy| energy.of("decode")?.j_per_token),
        "mfu": state.mfu().map(|used| used.share),
        "mbu": state.mbu().map(|used| used.share),
        "trust": state.trust(),
        "kernel_reports": state.kernels.reports.iter().map(kernel_report).collect::<Vec<_>>(),
    })
}

/// What a tool wrote, as the command `kernels` tells it.
fn kernel_report(report: &KernelReport) -> Value {
    let shown = report.tables.iter().map(|table| Shown::new(table, &Asked::default()).json(&report.file));
    json!({
        "tool": report.tool,
        "phase": report.phase,
        "file": report.file,
        "tables": shown.collect::<Vec<_>>(),
    })
}

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
            run.prompt_tokens,
            run.output_tokens
        );
    }
    let cause = state
        .finished
        .as_ref()
        .and_then(|f| f.cause.as_deref())
        .map_or_else(String::new, |c| format!(": {c}"));
    let _ =
        writeln!(out, "Outcome: {}{cause}. {} s recorded.\n", outcome(state), three_digits(state.now.secs()));
    let _ = writeln!(out, "| | n | mean | p50 | p90 | p99 | min | max |\n|---|---|---|---|---|---|---|---|");
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
    efficiency(&mut out, state);
    card(&mut out, state);
    tools(&mut out, state);
    snapshots(&mut out, state);
    notices(&mut out, state);
    let _ = writeln!(out, "## What the words mean\n");
    for (name, text) in DEFINITIONS {
        let _ = writeln!(out, "- `{name}`: {text}");
    }
    let _ = writeln!(out, "- Warm-up requests ({}) are in none of these numbers.", state.warmup_done);
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
            .filter(|_| run.device == "cpu"),
        simulated: run.simulated,
    })
}

/// How much of the device was used, and by which operators.
fn efficiency_json(state: &RunState) -> Value {
    let roofline = state.roofline();
    let (peaks, no_peaks) = match &roofline.peaks {
        Ok(peaks) => (Some(peaks), None),
        Err(why) => (None, Some(why)),
    };
    let used =
        |used: Option<Used>| used.map(|used| json!({"share": used.share, "achieved_per_s": used.achieved}));
    json!({
        "mfu": used(state.mfu()),
        "mbu": used(state.mbu()),
        "peaks": peaks,
        "no_peaks": no_peaks,
        "sm_clock_mhz": roofline.clock_mhz,
        "points": roofline.points,
        "hints": all_hints(state),
    })
}

fn all_hints(state: &RunState) -> Vec<String> {
    [Phase::Decode, Phase::Prefill].into_iter().flat_map(|phase| state.kernel_hints(phase)).collect()
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
            let _ = writeln!(out, "{name} {} %.", three_digits(used.share * 100.0));
        }
    }
    let _ = writeln!(
        out,
        "\n| | FLOP/B | FLOP/s | B/s | of roof | class | time |\n|---|---|---|---|---|---|---|"
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
            scaled(point.timed.flop_per_s(), ""),
            scaled(point.timed.bytes_per_s(), ""),
            share.map_or_else(none, |pct| format!("{} %", three_digits(pct))),
            class.unwrap_or_else(none),
            point.time_pct.map_or_else(none, |pct| format!("{} %", three_digits(pct)))
        );
    }
    out.push('\n');
    for hint in all_hints(state) {
        let _ = writeln!(out, "- {hint}.");
    }
    let mut bases: Vec<&str> = roofline.points.iter().map(|point| point.basis.as_str()).collect();
    bases.dedup();
    let _ = writeln!(out, "\nBy {}. Classes without counters are estimates.\n", bases.join("; "));
    if has_points(&roofline) {
        let _ = writeln!(out, "![Roofline](roofline.svg)\n");
    }
}

fn energy_of(state: &RunState) -> Option<Energy> {
    state.profiled_gpu().and_then(|gpu| energy(&gpu.ledger))
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
        out.push('\n');
    }
    if let Some(energy) = energy_of(state) {
        let _ =
            writeln!(out, "## Energy\n\n| phase | J | mean W | tokens | J/token |\n|---|---|---|---|---|");
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
        let _ = writeln!(out, "Trust: {} of {}: {doubts}.\n", trust.score, trust.of);
    }
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
    let _ =
        writeln!(out, "## Snapshots\n\n| name | from | to | ITL p50 | decode tok/s |\n|---|---|---|---|---|");
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
