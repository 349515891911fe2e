//! `knee`: the highest rate at which a server keeps its SLOs.

use clap::Args;
use serde_json::{Value, json};

use super::{Failure, args::ConfigArgs, print, print_json};
use crate::{
    analysis::knee::KneeSearch,
    base::{
        table::aligned,
        units::{millis, percent, three_digits},
    },
    config::ArrivalKind,
    event::Outcome,
    process::eprint_line,
    run::headless,
    state::RunState,
};

pub(super) const EXAMPLES: &str = "\
Examples:
  llmprof-tui knee runtime=vllm runtime.server.url=http://localhost:8000 slo.ttft_p99_ms=500 slo.tpot_p99_ms=50
  llmprof-tui knee runtime=vllm runtime.server.url=http://localhost:8000 slo.ttft_p99_ms=500 runtime.load.rate=8 --seconds 60

Each rate is a run of its own. A rate keeps the SLOs where 99 % of its requests do.

Exit codes: 0 the knee was found, 1 a run failed, 3 it was not found within --runs.";

/// Of the requests at a rate.
const KEPT_SHARE: f64 = 0.99;
/// Fewer say nothing of 99 %.
const MIN_REQUESTS: f64 = 100.0;

#[derive(Debug, Args)]
pub(super) struct KneeArgs {
    #[command(flatten)]
    pub(super) config: ConfigArgs,
    /// How long a rate is tried; longer where it would have fewer than 100 requests
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
    /// The interval of the knee is no wider than this share
    #[arg(long, default_value_t = 0.1)]
    precision: f64,
    /// The most rates that are tried
    #[arg(long, default_value_t = 12)]
    runs: u32,
    /// Print one JSON object on stdout instead of text
    #[arg(long)]
    pub(super) json: bool,
    /// Print no progress on stderr
    #[arg(long, short)]
    quiet: bool,
}

/// A rate and how it went.
struct Step {
    rate: f64,
    kept: bool,
    share: f64,
    state: RunState,
}

pub(super) async fn run(args: KneeArgs) -> Result<u8, Failure> {
    let plan = args.config.plan()?;
    let config = &plan.composed.config;
    let Some(load) = config.runtime.load.as_ref().filter(|_| config.runtime.name.is_server()) else {
        return Err(Failure::usage(
            "knee is for servers: use runtime=openai, vllm, sglang, tensorrtllm or llamacpp",
        ));
    };
    if config.slo == Default::default() {
        return Err(Failure::usage(
            "knee needs what the server promises: slo.ttft_p99_ms=…, slo.tpot_p99_ms=… or slo.e2e_p99_ms=…",
        ));
    }
    if !(args.seconds > 0.0 && args.seconds < 1e6 && args.precision > 0.0) {
        return Err(Failure::usage("--seconds and --precision are numbers above 0"));
    }
    let arrivals = match load.arrivals {
        ArrivalKind::Constant | ArrivalKind::Poisson | ArrivalKind::Gamma => None,
        ArrivalKind::Closed | ArrivalKind::Trace => Some("runtime.load.arrivals=poisson".to_owned()),
    };
    let mut search = KneeSearch::new(load.rate.unwrap_or(1.0), args.precision);
    let mut steps: Vec<Step> = Vec::new();
    while let Some(rate) = search.next_rate().filter(|_| steps.len() < args.runs as usize) {
        let mut config = args.config.clone();
        let requests = (rate * args.seconds).ceil().max(MIN_REQUESTS);
        config.overrides.extend(arrivals.clone());
        config
            .overrides
            .extend([format!("runtime.load.rate={rate}"), format!("runtime.requests={requests}")]);
        let finished = headless::run(config.plan()?, args.quiet).await?;
        if let Some(cause) = &finished.cause {
            eprint_line(format_args!("interrupted: {cause}"));
            return Ok(cause.exit_code());
        }
        let server = &finished.state.server;
        if finished.summary.finished.outcome != Outcome::Completed && server.ended == 0 {
            return Ok(super::run::report_end(&finished.summary));
        }
        let share = server.good as f64 / (server.ended as f64).max(1.0);
        let kept = share >= KEPT_SHARE;
        search.add(rate, kept);
        steps.push(Step { rate, kept, share, state: finished.state });
        if !args.quiet {
            let word = if kept { "kept" } else { "not kept" };
            eprint_line(format_args!(
                "{} requests/s: {word} ({} of the requests)",
                three_digits(rate),
                percent(100.0 * share)
            ));
        }
    }
    match args.json {
        true => print_json(&knee_json(&search, &steps))?,
        false => print(&knee_text(&search, &steps))?,
    }
    Ok(if search.next_rate().is_none() { 0 } else { 3 })
}

/// Why the lowest rate that was not kept was not.
fn cause(steps: &[Step], broken: Option<f64>) -> Option<String> {
    let step = steps.iter().find(|step| Some(step.rate) == broken)?;
    let remarks = step.state.server_remarks().iter().map(ToString::to_string).take(2).collect::<Vec<_>>();
    Some(remarks.join(" ")).filter(|text| !text.is_empty())
}

fn knee_text(search: &KneeSearch, steps: &[Step]) -> String {
    let text = |ms: Option<f64>| ms.map_or_else(|| "–".to_owned(), millis);
    let mut rows =
        vec![["rate/s", "requests", "TTFT p50", "p99", "TPOT p50", "p99", "good", "SLOs"].map(str::to_owned)];
    let mut sorted: Vec<&Step> = steps.iter().collect();
    sorted.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    for step in sorted {
        let total = &step.state.total;
        rows.push([
            three_digits(step.rate),
            step.state.server.ended.to_string(),
            text(total.ttft.percentile_ms(50.0)),
            text(total.ttft.percentile_ms(99.0)),
            text(total.tpot.percentile_ms(50.0)),
            text(total.tpot.percentile_ms(99.0)),
            percent(100.0 * step.share),
            if step.kept { "kept" } else { "not kept" }.to_owned(),
        ]);
    }
    let (kept, broken) = search.interval();
    let verdict = match (kept, broken) {
        (Some(kept), Some(broken)) => format!(
            "The server keeps its SLOs up to {} requests/s, and not at {}.",
            three_digits(kept),
            three_digits(broken)
        ),
        (Some(kept), None) => format!(
            "The server keeps its SLOs at {} requests/s, the highest rate tried: raise --runs.",
            three_digits(kept)
        ),
        (None, Some(broken)) => format!(
            "The server does not keep its SLOs at {} requests/s, the lowest rate tried.",
            three_digits(broken)
        ),
        (None, None) => "No rate was tried.".to_owned(),
    };
    let cause = cause(steps, broken).map(|cause| format!(" Above that: {cause}")).unwrap_or_default();
    format!("{}\n\n{verdict}{cause}", aligned(&rows, |column| column < 7))
}

fn knee_json(search: &KneeSearch, steps: &[Step]) -> Value {
    let (kept, broken) = search.interval();
    let step = |step: &Step| {
        let total = step.state.total.summary();
        json!({"rate": step.rate, "kept": step.kept, "good": step.share, "ttft_ms": total.ttft_ms, "tpot_ms": total.tpot_ms})
    };
    json!({
        "schema": 1,
        "kept_per_s": kept,
        "not_kept_per_s": broken,
        "found": search.next_rate().is_none(),
        "cause": cause(steps, broken),
        "steps": steps.iter().map(step).collect::<Vec<_>>(),
    })
}
