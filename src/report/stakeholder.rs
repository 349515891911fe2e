//! One page for someone who does not profile: `stakeholder_summary.md`.

use std::fmt::Write;

use super::metrics::{energy_of, outcome};
use crate::{
    analysis::{
        roofline::PointKind,
        units::{grouped, millis, three_digits},
    },
    state::RunState,
};

/// What was run, how fast, what limits it, what to do.
pub(super) fn summary_md(state: &RunState) -> String {
    let title = state.run.as_ref().map_or("a run", |run| &run.model);
    let mut out = format!("# {title}: summary\n\n");
    section(&mut out, "What was run", &what_was_run(state));
    section(&mut out, "How fast", &how_fast(state));
    section(&mut out, "What limits it", &limits(state));
    section(&mut out, "What to do", &to_do(state));
    section(&mut out, "How far to trust this", &trust(state));
    out.push_str("All numbers, with what they mean: `report.md` (or `report.html`) and `metrics.json`.\n");
    out
}

fn section(out: &mut String, title: &str, lines: &[String]) {
    let _ = writeln!(out, "## {title}\n");
    for line in lines {
        let _ = writeln!(out, "- {line}");
    }
    out.push('\n');
}

fn what_was_run(state: &RunState) -> Vec<String> {
    let Some(run) = &state.run else {
        return vec!["There was no run: these are files of a tool.".to_owned()];
    };
    if state.watches() {
        return vec!["No workload of ours: the card was watched while others used it.".to_owned()];
    }
    let gpu = state.profiled_gpu().map_or(run.device.as_str(), |gpu| gpu.info.name.as_str());
    let weights =
        if run.synthetic_weights { "random weights of its true shape" } else { "its trained weights" };
    let mut lines = vec![
        format!(
            "The language model {} ({} parameters as {}, {weights}) on {gpu}.",
            run.model,
            grouped(run.parameters as i64),
            run.dtype
        ),
        format!(
            "{} of {} requests were measured, after {} for warm-up. Each has {} at a time, about {} tokens of question \
             and up to {} of answer.",
            state.total.requests,
            run.requests,
            state.warmup_done,
            if run.batch == 1 { "one sequence".to_owned() } else { format!("{} sequences", run.batch) },
            run.prompt_tokens,
            run.output_tokens
        ),
    ];
    if run.simulated {
        lines.insert(0, "**Simulated: nothing here was measured.**".to_owned());
    }
    if let Some(tool) = &run.perturbed {
        lines.insert(
            0,
            format!("**Under {tool}, which slows it down: the times are not those of the workload.**"),
        );
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

fn how_fast(state: &RunState) -> Vec<String> {
    let metrics = state.total.summary();
    let mut lines = Vec::new();
    let typical = |summary: &crate::analysis::distribution::Summary| summary.p50.or(summary.mean);
    if let Some(ms) = typical(&metrics.ttft_ms) {
        lines.push(format!("The answer begins after {} (typical of {}).", millis(ms), metrics.ttft_ms.n));
    }
    if let Some(rate) = metrics.decode_tok_s {
        let each = rate / f64::from(state.batch());
        let all = match state.batch() {
            1 => String::new(),
            batch => format!(", {} over all {batch} sequences", three_digits(rate)),
        };
        lines.push(format!("It then comes at {} tokens a second{all}.", three_digits(each)));
    }
    if let Some(joules) = energy_of(state).and_then(|energy| energy.of("decode")?.j_per_token) {
        lines.push(format!("A token of the answer costs {} J of the card's energy.", three_digits(joules)));
    }
    if lines.is_empty() {
        lines.push("Nothing was measured.".to_owned());
    }
    lines
}

fn limits(state: &RunState) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(used) = state.mbu() {
        lines.push(format!(
            "While answering, {} % of the card's memory bandwidth is used{}.",
            three_digits(used.share * 100.0),
            near(used.share)
        ));
    }
    if let Some(used) = state.mfu() {
        lines.push(format!(
            "While reading the question, {} % of its arithmetic is used{}.",
            three_digits(used.share * 100.0),
            near(used.share)
        ));
    }
    for point in state.roofline().points.iter().filter(|point| point.kind == PointKind::Phase) {
        if let Some(verdict) = &point.verdict {
            lines.push(format!("The {} is bound by {} (estimated).", point.name, verdict.class.word()));
        }
    }
    lines.extend(state.diagnosis().map(|diagnosis| diagnosis.verdict));
    if lines.is_empty() {
        lines.push(match state.peaks() {
            Err(why) => format!("Not known: {why}."),
            Ok(_) => "Not known: nothing was measured.".to_owned(),
        });
    }
    lines
}

fn near(share: f64) -> &'static str {
    match share {
        s if s >= 0.8 => ": near the limit, little is left to gain without other hardware or fewer bytes",
        s if s >= 0.5 => ": more than half of what is possible",
        _ => ": far from the limit, software can gain most",
    }
}

fn to_do(state: &RunState) -> Vec<String> {
    let mut lines: Vec<String> = state.diagnosis().map_or_else(Vec::new, |diagnosis| {
        diagnosis.advice.iter().map(|advice| format!("{advice}.")).collect()
    });
    lines.extend(super::markdown::all_hints(state).into_iter().take(3).map(|hint| format!("{hint}.")));
    if state.batch() == 1 && state.mbu().is_some_and(|used| used.share >= 0.5) {
        lines.push(
            "To serve more with the same card: larger batches share each reading of the weights; quantised weights are \
             fewer bytes to read."
                .to_owned(),
        );
    }
    if lines.is_empty() {
        lines.push("Nothing stands out.".to_owned());
    }
    lines
}

fn trust(state: &RunState) -> Vec<String> {
    let Some(trust) = state.trust() else { return vec!["Nothing was measured.".to_owned()] };
    let mut lines = vec![format!("{} of {} points.", trust.score, trust.of)];
    lines.extend(trust.doubts.iter().map(|doubt| format!("Against it: {doubt}.")));
    lines
}
