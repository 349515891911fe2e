//! The top of a report: the facts of a run, its verdict, and its numbers in a few tiles.

use jiff::Timestamp;

use super::{
    items::none,
    metrics::{energy_of, outcome},
    title,
};
use crate::state::RunState;
use llmprof_analysis::{
    distribution::Summary,
    throttle::{GpuActivity, Tone},
};
use llmprof_base::units::{binary_bytes, bytes, grouped, millis, three_digits};
use llmprof_event::{RunStarted, WorkKind};

/// A fact with its name.
pub(super) type Fact = (&'static str, String);

/// When, where and how the run was made. What was not recorded is left out.
pub(super) fn facts(state: &RunState) -> Vec<Fact> {
    let mut facts = Vec::new();
    if let Some(run) = &state.run {
        facts.extend(date(run).map(|date| ("Date", date)));
    }
    if let Some(host) = &state.host.info {
        let memory =
            host.mem_total_bytes.map_or_else(String::new, |total| format!(", {}", binary_bytes(total)));
        facts.push(("Host", format!("{}, {} cores{memory}, {}", host.cpu, host.cores, host.os)));
    }
    let watched = || state.main_gpu().filter(|_| !state.kind().has_workload() || state.server.is_local());
    match state.profiled_gpu().filter(|_| state.device().is_some()).or_else(watched) {
        Some(gpu) => {
            let info = &gpu.info;
            let memory =
                info.mem_total_bytes.map_or_else(String::new, |total| format!(", {}", binary_bytes(total)));
            let limit = info.power_limit_w.map_or_else(String::new, |watts| format!(", limit {watts:.0} W"));
            facts.push(("Card", format!("GPU {}: {}{memory}{limit}", info.index, info.name)));
            facts.push(("Driver", info.driver.clone()));
        }
        None => facts.extend(state.device().map(|device| ("Device", device.to_string()))),
    }
    if let Some(run) = &state.run {
        match run.kind {
            WorkKind::Program => facts.extend(program(run, state)),
            WorkKind::Server => facts.extend(server(run, state)),
            WorkKind::Model(_) | WorkKind::Sim | WorkKind::Python => facts.extend(workload(run)),
            WorkKind::Watch => {}
        }
    }
    let cause = state.finished.as_ref().and_then(|finished| finished.cause.as_deref());
    let cause = cause.map_or_else(String::new, |cause| format!(": {cause}"));
    let recorded = three_digits(state.now.secs());
    facts.push(("Outcome", format!("{}{cause}; {recorded} s recorded", outcome(state))));
    facts
}

/// Simulated runs have no date.
fn date(run: &RunStarted) -> Option<String> {
    let ms = i64::try_from(run.started_unix_ms).ok().filter(|ms| *ms > 0)?;
    let time = Timestamp::from_millisecond(ms).ok()?;
    Some(time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())
}

/// The address of a server, and its load.
fn server(run: &RunStarted, state: &RunState) -> Vec<Fact> {
    let server = &state.server;
    let mut facts = Vec::new();
    if let Some(found) = &server.found {
        facts.push(("Server", format!("{} at {}", found.kind, found.url)));
        facts.extend(found.model.clone().map(|model| ("Model", model)));
        let metrics = found.metrics.clone().unwrap_or_else(|| "none that this program reads".to_owned());
        facts.push(("Its metrics", metrics));
    }
    let failed = match server.failed {
        0 => String::new(),
        failed => format!(", {failed} of them failed"),
    };
    facts.extend(cold_start(state));
    let warmup = run.warmup;
    facts.push(("Requests", format!("{}{failed}, after {warmup} for warm-up", server.ended)));
    facts
}

/// The start-up time of the server, by stage.
fn cold_start(state: &RunState) -> Option<Fact> {
    Some(("Cold start", state.startup.describe()?))
}

/// Another program, and the basis of its steps.
fn program(run: &RunStarted, state: &RunState) -> Vec<Fact> {
    let mut facts = vec![("Program", run.command.clone().unwrap_or_else(|| run.model.clone()))];
    let processes = state.programs.all().iter().map(|known| known.process.pid.to_string());
    let processes = processes.collect::<Vec<_>>().join(", ");
    facts.push(("Processes with CUDA", if processes.is_empty() { "none".to_owned() } else { processes }));
    facts.extend(cold_start(state));
    if run.shape.is_some() {
        facts
            .push(("Model", format!("{}: {} parameters in {}", run.model, about(run.parameters), run.dtype)));
    }
    if state.total.itl.n() > 0 {
        facts.push(("Steps", "inferred from its kernels; a step counts as one token".to_owned()));
    }
    if !run.overrides.is_empty() {
        facts.push(("Overrides", run.overrides.join(" ")));
    }
    facts
}

fn workload(run: &RunStarted) -> Vec<Fact> {
    let weights = if run.synthetic_weights { "synthetic" } else { "trained" };
    let [prompt, output] = [run.prompt_tokens, run.output_tokens].map(|n| grouped(i64::from(n)));
    let mut facts = vec![
        (
            "Model",
            format!(
                "{}: {} parameters in {} ({}, {weights} weights)",
                run.model,
                about(run.parameters),
                run.dtype,
                bytes(run.weight_bytes)
            ),
        ),
        (
            "Configuration",
            format!(
                "engine {}, batch {}, {prompt} prompt tokens, {output} output tokens, {} requests (warm-up: {}), seed {}",
                run.kind, run.batch, run.requests, run.warmup, run.seed
            ),
        ),
    ];
    if !run.overrides.is_empty() {
        facts.push(("Overrides", run.overrides.join(" ")));
    }
    facts
}

/// `7.62 billion`.
pub(super) fn about(n: u64) -> String {
    match n as f64 {
        n if n >= 1e9 => format!("{} billion", three_digits(n / 1e9)),
        n if n >= 1e6 => format!("{} million", three_digits(n / 1e6)),
        _ => grouped(i64::try_from(n).unwrap_or(i64::MAX)),
    }
}

/// Warnings that apply to every number of the report.
pub(super) fn warnings(state: &RunState) -> Vec<String> {
    let Some(run) = &state.run else { return Vec::new() };
    let simulated = "Simulated: nothing in this report was measured.".to_owned();
    let perturbed = run.perturbed.as_ref().map(|tool| {
        format!(
            "Recorded under {tool}: every time in this report includes its overhead. Do not compare these times with other \
             runs."
        )
    });
    run.simulated.then_some(simulated).into_iter().chain(perturbed).collect()
}

/// A paragraph of the verdict: its first sentence, the others, and the severity.
pub(super) struct Paragraph {
    pub(super) first: String,
    pub(super) rest: String,
    pub(super) tone: Tone,
}

impl Paragraph {
    fn new(text: &str, tone: Tone) -> Paragraph {
        let (first, rest) = text.split_once(". ").map_or((text, ""), |(first, rest)| (first, rest));
        let stop = if first.ends_with('.') { "" } else { "." };
        Paragraph { first: format!("{first}{stop}"), rest: rest.trim().to_owned(), tone }
    }
}

/// The speed, and what limited the GPU.
pub(super) fn verdict(state: &RunState) -> Vec<Paragraph> {
    let failed = state
        .failure()
        .map(|cause| Paragraph::new(&format!("The run failed: {}.", cause.trim_end_matches('.')), Tone::Bad));
    // Nothing else is known about a run that failed before its first token.
    if failed.is_some() && state.has_no_tokens() {
        return failed.into_iter().collect();
    }
    let limit = state.limit().map(|limit| Paragraph::new(&limit, Tone::Note));
    let speed = state.verdict().map(|text| Paragraph::new(&text, Tone::Note));
    let limits = state.diagnosis().map(|diagnosis| Paragraph::new(&diagnosis.verdict, diagnosis.tone));
    failed.into_iter().chain(limit).chain(speed).chain(limits).collect()
}

/// A number with its name and sample count.
pub(super) struct Tile {
    pub(super) label: &'static str,
    pub(super) value: String,
    pub(super) note: String,
}

/// The most important numbers; none for a run without requests.
pub(super) fn tiles(state: &RunState) -> Vec<Tile> {
    if !state.run.as_ref().is_some_and(|run| run.kind.has_workload()) {
        return Vec::new();
    }
    let metrics = state.summary();
    let latency = |label: &'static str, summary: &Summary| {
        let (value, what) = match (summary.p50, summary.mean) {
            (Some(p50), _) => (millis(p50), "median"),
            (None, Some(mean)) => (millis(mean), "mean"),
            (None, None) => (none(), "not measured"),
        };
        let p90 = summary.p90.map_or_else(String::new, |p90| format!(", p90 {}", millis(p90)));
        Tile { label, value, note: format!("{what}{p90}, n = {}", grouped(summary.n as i64)) }
    };
    let rate = Tile {
        label: "Decode",
        value: metrics.decode_tok_s.map_or_else(none, |rate| format!("{} tok/s", three_digits(rate))),
        note: format!("mean, n = {} tokens", grouped(metrics.itl_ms.n as i64)),
    };
    vec![
        latency("TTFT", &metrics.ttft_ms),
        latency("TPOT", &metrics.tpot_ms),
        rate,
        power(state),
        trust(state),
    ]
}

fn power(state: &RunState) -> Tile {
    let watts = energy_of(state).and_then(|energy| energy.phase(GpuActivity::Decode)?.mean_w);
    let gpu = state.profiled_gpu();
    let samples = gpu.map_or(0, |gpu| gpu.ledger.account(GpuActivity::Decode).samples);
    let limit = gpu.and_then(|gpu| gpu.info.power_limit_w);
    let limit = limit.map_or_else(String::new, |watts| format!(" of {watts:.0} W"));
    Tile {
        label: "Power",
        value: watts.map_or_else(none, |watts| format!("{watts:.0} W")),
        note: match watts {
            Some(_) => format!("mean in decode{limit}, n = {} samples", grouped(samples as i64)),
            None => "not measured".to_owned(),
        },
    }
}

fn trust(state: &RunState) -> Tile {
    let n = format!("n = {} requests", grouped(state.total.tpot.n() as i64));
    match state.trust() {
        None => Tile { label: "Trust", value: none(), note: "not measured".to_owned() },
        Some(trust) => {
            let issue = match &trust.issues[..] {
                [] => "no issues".to_owned(),
                [_] => "1 issue".to_owned(),
                issues => format!("{} issues", issues.len()),
            };
            Tile {
                label: "Trust",
                value: format!("{} of {}", trust.score, trust.of),
                note: format!("{issue}, {n}"),
            }
        }
    }
}

/// The name of the workload, or its kind if it has no name.
pub(super) fn heading(state: &RunState) -> String {
    if state.kind().has_workload() { title(state) } else { "GPU monitoring".to_owned() }
}
