//! One page for readers who do not profile: `stakeholder_summary.md`.

use std::fmt::Write;

use super::{
    list_item,
    metrics::{energy_of, outcome},
    title,
};
use crate::{
    analysis::{classify::Class, roofline::PointKind, throttle::Work},
    base::units::{grouped, millis, percent, three_digits},
    event::Phase,
    state::RunState,
};

/// What was run, how fast, what limits it, what to do.
pub(super) fn summary_md(state: &RunState) -> String {
    let title = title(state);
    let mut out = format!("# {title}: summary\n\n");
    section(&mut out, "What was run", &what_was_run(state));
    section(&mut out, "How fast", &how_fast(state));
    section(&mut out, "What limits it", &limits(state));
    section(&mut out, "What to do", &to_do(state));
    section(&mut out, "Trust", &trust(state));
    out.push_str("All numbers and their definitions: `report.md` (or `report.html`) and `metrics.json`.\n");
    out
}

fn section(out: &mut String, title: &str, lines: &[String]) {
    let _ = writeln!(out, "## {title}\n");
    for line in lines {
        *out += &list_item(line);
    }
    out.push('\n');
}

fn what_was_run(state: &RunState) -> Vec<String> {
    let Some(run) = &state.run else {
        return vec!["There was no run: these are files of a profiler.".to_owned()];
    };
    if state.watches() {
        return vec!["No workload: the GPU was monitored while other programs used it.".to_owned()];
    }
    let gpu = state.profiled_gpu().map_or_else(|| run.device.to_string(), |gpu| gpu.info.name.clone());
    let weights = if run.synthetic_weights { "random weights in its real shape" } else { "trained weights" };
    let mut lines = vec![
        format!(
            "The language model {} ({} parameters in {}, {weights}) on {gpu}.",
            run.model,
            about(run.parameters),
            run.dtype
        ),
        format!(
            "{} of {} requests were measured (warm-up: {}). Each request has {} of about {} tokens and \
             generates up to {} tokens{}. A token is a word or a part of one.",
            state.total.requests,
            run.requests,
            state.warmup_done,
            if run.batch == 1 { "one prompt".to_owned() } else { format!("{} prompts at once", run.batch) },
            grouped(i64::from(run.prompt_tokens)),
            grouped(i64::from(run.output_tokens)),
            if run.batch == 1 { "" } else { " for each" }
        ),
    ];
    if run.simulated {
        lines.insert(0, "**Simulated: nothing here was measured.**".to_owned());
    }
    if let Some(tool) = &run.perturbed {
        lines.insert(0, format!("**Recorded under {tool}, whose overhead is part of every time.**"));
    }
    match outcome(state).as_str() {
        "completed" => {}
        other => {
            let cause = state.finished.as_ref().and_then(|finished| finished.cause.clone());
            lines.push(format!("The run did not complete: {}.", cause.unwrap_or_else(|| other.to_owned())));
        }
    }
    lines
}

/// `7.62 billion`.
fn about(n: u64) -> String {
    match n as f64 {
        n if n >= 1e9 => format!("{} billion", three_digits(n / 1e9)),
        n if n >= 1e6 => format!("{} million", three_digits(n / 1e6)),
        _ => grouped(i64::try_from(n).unwrap_or(i64::MAX)),
    }
}

fn how_fast(state: &RunState) -> Vec<String> {
    let metrics = state.total.summary();
    let mut lines = Vec::new();
    let typical = |summary: &crate::analysis::distribution::Summary| summary.p50.or(summary.mean);
    if let Some(ms) = typical(&metrics.ttft_ms) {
        lines.push(format!(
            "The first token arrives after {} (median of {}).",
            millis(ms),
            metrics.ttft_ms.n
        ));
    }
    if let Some(rate) = metrics.decode_tok_s {
        let each = rate / f64::from(state.batch());
        let all = match state.batch() {
            1 => String::new(),
            batch => format!(", {} for all {batch} answers together", three_digits(rate)),
        };
        lines.push(format!("Then {} tokens per second follow{all}.", three_digits(each)));
    }
    if let Some(ms) = metrics.e2e_ms.as_ref().and_then(typical) {
        lines.push(format!("A whole request takes {} (median of {}).", millis(ms), metrics.requests));
    }
    if let Some(rate) = metrics.output_tok_s {
        lines.push(format!(
            "From the first request to the last token, {} tokens per second are generated.",
            three_digits(rate)
        ));
    }
    if let Some(energy) = energy_of(state)
        && let Some(requests) = energy.requests
    {
        let decode = energy.of(Work::Decode).and_then(|decode| decode.j_per_token);
        let decode = decode.map(|joules| format!("; generating alone, {} J", three_digits(joules)));
        lines.push(format!(
            "Each output token uses {} J of GPU energy, reading the prompt included{}.",
            three_digits(requests.j_per_output_token),
            decode.unwrap_or_default()
        ));
    }
    if lines.is_empty() {
        lines.push("Nothing was measured.".to_owned());
    }
    lines
}

fn limits(state: &RunState) -> Vec<String> {
    let mut lines = Vec::new();
    let points = state.roofline().points;
    let phases = [
        ("prefill", "While reading the prompt (prefill)", "arithmetic throughput", state.mfu()),
        ("decode", "While generating (decode)", "memory bandwidth", state.mbu()),
    ];
    for (phase, when, what, used) in phases {
        let bound = points
            .iter()
            .find(|point| point.kind == PointKind::Phase && point.phase == phase)
            .and_then(|point| Some(bound(point.verdict.as_ref()?.class)));
        let line = match (used, bound) {
            (Some(used), bound) => {
                let bound = bound.map_or_else(String::new, |bound| format!("; estimated bound: {bound}"));
                let share = percent(used.share * 100.0);
                format!("{when}, {share} of the GPU's {what} is used: {}{bound}.", near(used.share))
            }
            (None, Some(bound)) => format!("{when}, estimated bound: {bound}."),
            (None, None) => continue,
        };
        lines.push(line);
    }
    lines.extend(state.diagnosis().map(|diagnosis| diagnosis.verdict));
    if lines.is_empty() {
        lines.push(match state.peaks() {
            Err(why) => format!("Unknown: {why}."),
            Ok(_) => "Unknown: nothing was measured.".to_owned(),
        });
    }
    lines
}

/// What bounds a phase, for readers who do not know the classes.
fn bound(class: Class) -> &'static str {
    match class {
        Class::Memory => "memory bandwidth",
        Class::Compute => "arithmetic",
        Class::Balanced => "memory and arithmetic equally",
        Class::Latency => {
            "latency (neither memory nor arithmetic is near its limit: the kernels are too small, or wait for each other)"
        }
        Class::Launch => "launches (the kernels are too short: starting one takes as long as running it)",
    }
}

fn near(share: f64) -> &'static str {
    match share {
        s if s >= 0.8 => "close to the limit, little can be gained without other hardware or fewer bytes",
        s if s >= 0.5 => "more than half of what is possible",
        _ => "far from the limit, software changes can gain the most",
    }
}

/// Smaller shares of the time are not mentioned.
const MIN_SHARE: f64 = 0.05;

fn to_do(state: &RunState) -> Vec<String> {
    let mut lines: Vec<String> = state.diagnosis().map_or_else(Vec::new, |diagnosis| {
        diagnosis.advice.iter().map(|advice| format!("{advice}.")).collect()
    });
    let phases = [Phase::Decode, Phase::Prefill];
    for phase in phases {
        let name = phase.name();
        let waits = |class: &Class| matches!(class, Class::Latency | Class::Launch);
        let rows = state.operator_rows(phase);
        let waiting = rows.iter().filter(|row| row.verdict.as_ref().is_ok_and(|found| waits(&found.class)));
        let share: f64 = waiting.map(|row| row.share).sum();
        if share >= MIN_SHARE {
            lines.push(format!(
                "{} of the {name} time is spent in kernels too small to use the GPU's memory or arithmetic fully. Fusing \
                 kernels can save part of it; `operators.md` lists them.",
                percent(share * 100.0)
            ));
        }
        let meter = state.kernels.live(phase).and_then(|live| live.launch_meter());
        let saved = meter.and_then(|meter| Some(meter.saved_by_graphs_ns()? / meter.step_ns()));
        if let Some(saved) = saved.filter(|saved| *saved >= MIN_SHARE) {
            lines.push(format!(
                "With a CUDA graph, {name} would take about {} less time (an estimate).",
                percent(saved * 100.0)
            ));
        }
    }
    if state.batch() == 1 && state.mbu().is_some_and(|used| used.share >= 0.5) {
        lines.push(
            "To serve more requests on the same GPU: larger batches read the weights once for several requests; \
             quantised weights are fewer bytes to read."
                .to_owned(),
        );
    }
    if lines.is_empty() {
        let far = [state.mbu(), state.mfu()].into_iter().flatten().any(|used| used.share < 0.5);
        lines.push(
            match far && state.operator_rows(Phase::Decode).is_empty() {
                true => "Record kernels (`profiling.cupti.enable=true`) to see where the time goes.",
                false => "Nothing stands out.",
            }
            .to_owned(),
        );
    }
    lines
}

fn trust(state: &RunState) -> Vec<String> {
    let Some(trust) = state.trust() else { return vec!["Nothing was measured.".to_owned()] };
    let mut lines = vec![format!("{} of {} points.", trust.score, trust.of)];
    if trust.issues.is_empty() {
        lines.push("No issues: it can be compared with other runs.".to_owned());
    }
    lines.extend(trust.issues.iter().map(|issue| format!("Issue: {issue}.")));
    lines
}
