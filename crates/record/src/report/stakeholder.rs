//! One page for readers who do not profile: `stakeholder_summary.md`. Plain language, no abbreviations.

use std::fmt::Write;

use super::{
    head::{about, heading},
    list_item,
    metrics::{energy_of, outcome},
    paragraph,
};
use crate::state::{RunState, Utilisation};
use llmprof_analysis::{
    account::Group,
    classify::Class,
    distribution::Summary,
    roofline::PointKind,
    throttle::{Cause, GpuActivity, Limit, Tone},
    trust::{MIN_REQUESTS, Severity, Trust, TrustIssue},
};
use llmprof_base::units::{grouped, percent, three_digits};
use llmprof_event::{Phase, reasons::SW_POWER_CAP};

/// The measurement, the speed, its limit, the energy, trust, and what to do.
pub(super) fn summary_md(state: &RunState) -> String {
    let has_workload = state.kind().has_workload();
    let heading = if has_workload { heading(state) } else { "GPU".to_owned() };
    let mut out = format!("# {heading}: summary\n\n");
    let lead = lead(state);
    if !lead.is_empty() {
        out += &paragraph(&format!("**{}**", lead.join(" ")));
    }
    section(&mut out, "What was measured", &what_was_measured(state));
    if has_workload {
        section(&mut out, "Is it fast?", &is_it_fast(state));
    }
    section(&mut out, "What limits it?", &limits(state));
    if has_workload {
        section(&mut out, "What does it cost?", &costs(state));
        section(&mut out, "Can the numbers be trusted?", &trust(state));
    }
    section(&mut out, "What to do next", &to_do(state));
    out.push_str("All numbers and how they are defined: `report.html`.\n");
    out
}

fn section(out: &mut String, title: &str, lines: &[String]) {
    let _ = writeln!(out, "## {title}\n");
    for line in lines {
        *out += &list_item(line);
    }
    out.push('\n');
}

/// The reading speed of a person in tokens per second: about 240 words per minute, and four tokens for three words.
const READING_TOK_S: f64 = 5.0;

/// The answer in at most three sentences.
fn lead(state: &RunState) -> Vec<String> {
    let speed = each_tok_s(state).map(|rate| {
        let subject = if state.kind().infers_steps() { "Each sequence of the program" } else { "An answer" };
        format!("{subject} grows by {} tokens per second, {}.", three_digits(rate), as_fast_as_reading(rate))
    });
    let limit = match (main_cause(state), state.mbu()) {
        (Some(cause), _) => Some(format!("The GPU is slowed down by {}.", limited_by(cause.limit))),
        (None, Some(used)) if speed.is_some() => {
            Some(format!("That is {} of what the GPU's memory allows.", percent(used.share * 100.0)))
        }
        _ => None,
    };
    let trust = state.trust().map(|trust| format!("{}.", trust_in_a_word(&trust)));
    [speed, limit, trust].into_iter().flatten().collect()
}

fn as_fast_as_reading(tok_s: f64) -> String {
    match tok_s / READING_TOK_S {
        ratio if ratio >= 1.5 => format!("about {ratio:.0} times as fast as a person reads"),
        ratio if ratio >= 0.75 => "about as fast as a person reads".to_owned(),
        _ => "slower than a person reads".to_owned(),
    }
}

/// Tokens per second of one sequence.
fn each_tok_s(state: &RunState) -> Option<f64> {
    Some(state.decode_tok_s()? / f64::from(state.batch()))
}

fn what_was_measured(state: &RunState) -> Vec<String> {
    let Some(run) = &state.run else {
        return vec!["There was no run: these are files of another profiler.".to_owned()];
    };
    if !run.kind.has_workload() {
        return vec!["The GPU was monitored while other programs used it. No model was run.".to_owned()];
    }
    let card = match state.profiled_gpu() {
        Some(gpu) => format!("the GPU {}", gpu.info.name),
        None if run.device.is_cpu() => "the CPU, without a GPU".to_owned(),
        None => run.device.to_string(),
    };
    let weights =
        if run.synthetic_weights { ", with random weights, so its answers have no meaning" } else { "" };
    let (prompts, each) = match run.batch {
        1 => ("one prompt".to_owned(), ""),
        batch => (format!("{batch} prompts at once"), " for each"),
    };
    if let Some(command) = run.command.as_ref().filter(|_| run.kind.infers_steps()) {
        return vec![
            format!("The program `{}` on {card}, observed while it ran.", command.replace('`', "'")),
            format!(
                "{} steps were observed. A step produces one token per sequence; a token is a word or a part of one. \
                 The steps were inferred from the work of the GPU.",
                grouped(state.total.all_output_tokens() as i64)
            ),
        ];
    }
    let mut lines = vec![
        format!(
            "The language model {} ({} parameters{weights}) on {card}.",
            run.model,
            about(run.parameters)
        ),
        format!(
            "{} of {} requests. Each has {prompts} of about {} tokens, and up to {} tokens are generated{each}. A token is a \
             word or a part of one.",
            grouped(state.total.requests as i64),
            grouped(i64::from(run.requests)),
            grouped(i64::from(run.prompt_tokens)),
            grouped(i64::from(run.output_tokens)),
        ),
    ];
    if run.simulated {
        lines.insert(0, "**A simulation: nothing in this report was measured.**".to_owned());
    }
    if let Some(tool) = &run.perturbed {
        lines.insert(0, format!("**It ran under {tool}, a profiler that slows it down.**"));
    }
    if outcome(state) != "completed" {
        lines.push("The run did not reach its end; the numbers cover the part before that.".to_owned());
    }
    lines
}

fn seconds(ms: f64) -> String {
    format!("{} seconds", three_digits(ms / 1e3))
}

fn is_it_fast(state: &RunState) -> Vec<String> {
    let metrics = state.summary();
    let mut lines = Vec::new();
    let typical = |summary: &Summary| summary.p50.or(summary.mean);
    if let Some(ms) = typical(&metrics.ttft_ms) {
        lines.push(format!(
            "The first token arrives after {} (typical of {} requests).",
            seconds(ms),
            grouped(metrics.ttft_ms.n as i64)
        ));
    }
    if let (Some(rate), Some(each)) = (metrics.decode_tok_s, each_tok_s(state)) {
        let all = match state.batch() {
            1 => String::new(),
            batch => format!("; {} for all {batch} answers together", three_digits(rate)),
        };
        lines.push(format!(
            "Then {} tokens follow per second, {}{all}.",
            three_digits(each),
            as_fast_as_reading(each)
        ));
    }
    if let Some(ms) = metrics.e2e_ms.as_ref().and_then(typical) {
        lines.push(format!("A whole request takes {}.", seconds(ms)));
    }
    if let Some(used) = state.mbu() {
        lines.push(format!(
            "While it generates, it reaches {} of what the GPU's memory allows: {}.",
            percent(used.share * 100.0),
            near(used)
        ));
    }
    if lines.is_empty() {
        lines.push("No request was measured.".to_owned());
    }
    lines
}

fn near(used: Utilisation) -> &'static str {
    match used.share {
        share if share >= 0.8 => "close to the limit of this GPU",
        share if share >= 0.5 => "more than half of the limit of this GPU",
        _ => "far from the limit of this GPU",
    }
}

/// A limit that costs less of the speed is not mentioned.
const MIN_COST_PCT: f64 = 0.5;
/// A limit that was active for a smaller share of the time is not mentioned.
const MIN_TIME: f64 = 0.05;

/// The limits that slowed the GPU down, the most expensive first, each pair of work and limit only once.
fn causes(state: &RunState) -> Vec<Cause> {
    let Some(diagnosis) = state.diagnosis() else { return Vec::new() };
    let relevant = |cause: &Cause| {
        cause.fault == Some(true)
            && cause.phase.is_load()
            && cause.time_share >= MIN_TIME
            && cause.cost_pct.is_some_and(|pct| pct >= MIN_COST_PCT)
    };
    diagnosis.causes.into_iter().filter(relevant).collect()
}

fn main_cause(state: &RunState) -> Option<Cause> {
    causes(state).into_iter().next()
}

fn limited_by(limit: Limit) -> &'static str {
    limit.known().map_or("an unknown limit", |limit| limit.plain)
}

/// The activity in plain language, for readers who do not know the phases.
fn while_working(work: GpuActivity) -> &'static str {
    match work {
        GpuActivity::Vision => "While it encodes images",
        GpuActivity::Prefill => "While it reads the prompt",
        GpuActivity::Decode => "While it generates",
        _ => "While it works",
    }
}

fn limits(state: &RunState) -> Vec<String> {
    let mut lines: Vec<String> = where_time_goes(state)
        .into_iter()
        .chain(causes(state).iter().map(|cause| {
            let cost = cause.cost.map_or_else(String::new, |cost| cost.to_string());
            let about = if cause.cost_range_pct.is_some() { "" } else { "about " };
            format!(
                "{}, the GPU is slowed down by {} in {} of the time: {about}{cost} slower.",
                while_working(cause.phase),
                limited_by(cause.limit),
                percent(100.0 * cause.time_share),
            )
        }))
        .collect();
    let points = state.roofline().points;
    for (phase, work) in [("prefill", GpuActivity::Prefill), ("decode", GpuActivity::Decode)] {
        let found = points.iter().find(|point| point.kind == PointKind::Phase && point.phase == phase);
        let class = found.and_then(|point| point.verdict.as_ref()).map(|verdict| verdict.class);
        let used = state.mbu().filter(|used| work == GpuActivity::Decode && used.share >= 0.5);
        match (class, used) {
            (Some(class), _) => {
                lines.push(format!("{}, {} (an estimate).", while_working(work), bound(class)));
            }
            (None, Some(used)) => lines.push(format!(
                "{}, {}: {} of it is used.",
                while_working(work),
                bound(Class::Memory),
                percent(used.share * 100.0)
            )),
            (None, None) => {}
        }
    }
    let others = state.profiled_gpu().map_or(0, |gpu| gpu.processes_seen.len());
    if others > 0 {
        lines.push(format!("{} used the GPU at the same time.", programs(others)));
    }
    if lines.is_empty() {
        lines.push(match state.diagnosis().map(|diagnosis| diagnosis.tone) {
            Some(Tone::Fine | Tone::Note) => "No limit slowed the GPU down.".to_owned(),
            _ => "Unknown: the limits of this device are unknown, or were not read.".to_owned(),
        });
    }
    lines
}

/// How the time of a token is divided, the largest part first; `None` before the first token.
fn where_time_goes(state: &RunState) -> Option<String> {
    let account = state.decode_account().filter(|account| account.total_ns > 0.0)?;
    let mut groups = account.groups();
    groups.sort_by(|a, b| b.1.total_cmp(&a.1));
    let part = |(group, ns): (Group, f64)| {
        let what = match group {
            Group::Bound => "the minimum that this model needs on this GPU",
            Group::Gpu => "further work of the GPU",
            Group::Clock => "a lowered clock",
            Group::Gaps => "the GPU waiting for the CPU",
            Group::Others => "other requests",
            Group::Outside => "the network and the measurement",
            Group::ModelStart | Group::ProcessStart => "the start of the server",
            Group::Unexplained => "not explained by the measurements",
        };
        format!("{} are {what}", percent(100.0 * account.share(ns)))
    };
    let shown = groups.into_iter().filter(|(_, ns)| account.share(*ns) >= 0.01).map(part);
    let parts: Vec<String> = shown.collect();
    (!parts.is_empty()).then(|| format!("Of the time per token, {}.", parts.join(", ")))
}

fn programs(n: usize) -> String {
    match n {
        1 => "Another program".to_owned(),
        n => format!("{n} other programs"),
    }
}

/// The bound of a phase in plain language.
fn bound(class: Class) -> &'static str {
    match class {
        Class::Memory => "the speed of the memory is the limit",
        Class::Compute => "the speed of the arithmetic is the limit",
        Class::Balanced => "memory and arithmetic are the limit in equal parts",
        Class::Latency => {
            "neither memory nor arithmetic is used fully: the steps are too small, or wait for each other"
        }
        Class::Launch => "the steps are so short that launching one takes as long as computing it",
    }
}

const JOULES_PER_WATT_HOUR: f64 = 3600.0;

fn costs(state: &RunState) -> Vec<String> {
    let Some(requests) = energy_of(state).and_then(|energy| energy.requests) else {
        return vec!["Energy was not measured.".to_owned()];
    };
    let watt_hours = 1000.0 * requests.j_per_output_token / JOULES_PER_WATT_HOUR;
    vec![format!(
        "1,000 generated tokens use {} watt-hours of the GPU's energy, reading the prompts included. The rest of the \
         machine is not included.",
        three_digits(watt_hours)
    )]
}

fn trust_in_a_word(trust: &Trust) -> &'static str {
    match trust.severity {
        None => "The numbers can be trusted",
        Some(Severity::LowersTrust) => "The numbers can be used with caution",
        Some(Severity::BlocksComparison) => "Do not compare these numbers with others",
    }
}

fn trust(state: &RunState) -> Vec<String> {
    let Some(trust) = state.trust() else { return vec!["Nothing was measured.".to_owned()] };
    let mut lines = vec![format!("{}: {} of {} points.", trust_in_a_word(&trust), trust.score, trust.of)];
    lines.extend(trust.issues.iter().map(doubt));
    lines
}

fn doubt(issue: &TrustIssue) -> String {
    match issue {
        TrustIssue::RanUnderTool(tool) => {
            format!("It ran under {tool}, a profiler that slows it down.")
        }
        TrustIssue::RunFailed => "The run failed.".to_owned(),
        TrustIssue::SharedGpu(n) => format!("{} used the GPU at the same time.", programs(*n as usize)),
        TrustIssue::ExternalCpuLoad(share) => {
            format!("Other programs used {} of the CPU.", percent(100.0 * share))
        }
        TrustIssue::LostEvents(n) => format!("{} measurements were lost.", grouped(*n as i64)),
        TrustIssue::FailedRequests { failed, of } => format!("{failed} of {of} requests failed."),
        TrustIssue::LateClient(ms) => {
            format!("The load generator itself was {ms:.0} ms late: run it on another machine.")
        }
        TrustIssue::ChunksForTokens => {
            "The server does not report how many tokens its answers have: pieces of text are counted instead."
                .to_owned()
        }
        TrustIssue::Drift(change) | TrustIssue::ServedDrift(change) => format!(
            "The time per token changed by {} from the first requests to the last.",
            percent(100.0 * change.abs())
        ),
        TrustIssue::UnstableTpot(variation) | TrustIssue::UnevenTpot(variation) => {
            format!("The speed differs by about {} between requests.", percent(100.0 * variation))
        }
        TrustIssue::FewRequests(n) => {
            format!("Only {n} complete requests were measured; {MIN_REQUESTS} are needed.")
        }
        TrustIssue::Throttled => "The GPU was slowed down; see above.".to_owned(),
        TrustIssue::KernelsRecorded(_) => {
            "A detailed recording ran at the same time, which slows it down.".to_owned()
        }
    }
}

/// A smaller share of the time is not mentioned.
const MIN_SHARE: f64 = 0.05;

fn to_do(state: &RunState) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let unknown = || {
        "The driver names a limit of the clock that this program does not know; `nvidia-smi -q -d PERFORMANCE` shows it.".to_owned()
    };
    for remedy in causes(state).iter().map(|cause| remedy(state, cause.limit).unwrap_or_else(unknown)) {
        if !lines.contains(&remedy) {
            lines.push(remedy);
        }
    }
    for phase in [Phase::Decode, Phase::Prefill] {
        let task = if phase == Phase::Decode { "generating" } else { "reading the prompt" };
        let waits = |class: &Class| matches!(class, Class::Latency | Class::Launch);
        let rows = state.operator_rows(phase);
        let waiting = rows.iter().filter(|row| row.verdict.as_ref().is_ok_and(|found| waits(&found.class)));
        let share: f64 = waiting.map(|row| row.share).sum();
        if share >= MIN_SHARE {
            lines.push(format!(
                "{} of the time for {task} goes to steps that are too small to use the GPU fully. Fusing them can \
                 save part of it; `operators.md` lists them for the engineers.",
                percent(share * 100.0)
            ));
        }
        let meter = state.kernels.live(phase).and_then(|live| live.launch_meter());
        let saved = meter.and_then(|meter| Some(meter.saved_by_graphs_ns()? / meter.step_ns()));
        if let Some(saved) = saved.filter(|saved| *saved >= MIN_SHARE) {
            lines.push(format!(
                "Launching all steps of a token at once, not one by one, would save about {} of the time for {task} \
                 (an estimate).",
                percent(saved * 100.0)
            ));
        }
    }
    if state.batch() == 1 && state.mbu().is_some_and(|used| used.share >= 0.5) {
        lines.push(
            "To serve more users on the same GPU: answer several requests at once, which reads the model once for all \
             of them, or use a model with quantised weights."
                .to_owned(),
        );
    }
    let blocked = state.trust().is_some_and(|trust| trust.blocks_comparison());
    if blocked {
        lines.push(
            "Measure again after the points above are resolved, before numbers are compared.".to_owned(),
        );
    }
    if lines.is_empty() {
        let far = [state.mbu(), state.mfu()].into_iter().flatten().any(|used| used.share < 0.5);
        lines.push(
            match far {
                true => "Have the engineers record where the time goes: much of the GPU is unused.",
                false => "No action is needed.",
            }
            .to_owned(),
        );
    }
    lines
}

/// The remedy for a limit; `None` for one that is not known.
fn remedy(state: &RunState, limit: Limit) -> Option<String> {
    let info = state.profiled_gpu().or_else(|| state.main_gpu()).map(|gpu| &gpu.info);
    let power = info.and_then(|info| Some((info.power_limit_w?, info.power_limit_max_w?)));
    Some(match (limit, power) {
        (Limit::Bit(SW_POWER_CAP), Some((limit, max))) if limit < max - 0.5 => format!(
            "Raise the power limit of the GPU from {limit:.0} to {max:.0} watts, after a check of the power supply and the \
             cooling."
        ),
        (Limit::Bit(SW_POWER_CAP), Some(_)) => {
            "The power limit cannot be raised. A model with quantised weights needs less power per token."
                .to_owned()
        }
        (limit, _) => limit.known()?.plain_remedy.to_owned(),
    })
}
