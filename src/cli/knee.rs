//! `knee`: the highest rate at which a server meets its SLOs.

use clap::Args;
use serde_json::{Value, json};

use super::{
    Failure,
    args::{ConfigArgs, ConfigRequest},
    launch::measure,
    outcome::report_end,
    print, print_json,
};
use llmprof_analysis::{interval::ConfidenceInterval, knee::KneeSearch, server::ServerRemark};
use llmprof_base::{
    cells,
    process::eprint_line,
    table::{Column, Table},
    units::{Unit, millis, percent, three_digits},
};
use llmprof_config::{ArrivalKind, Element, Override};
use llmprof_event::Outcome;
use llmprof_record::state::RunState;

pub(super) const EXAMPLES: &str = "\
Examples:
  llmprof-tui knee http://localhost:8000 slo.ttft_p99_ms=500 slo.tpot_p99_ms=50
  llmprof-tui knee runtime=vllm runtime.server.url=http://localhost:8000 slo.ttft_p99_ms=500 runtime.load.rate=8 --seconds 60

Each rate is a separate run. A rate meets the SLOs if 99 % of its requests do.

Exit codes: 0 the knee was found, 1 a run failed, 3 it was not found within --runs.";

/// The minimum share of a rate's requests that must meet the SLOs.
const KEPT_SHARE: f64 = 0.99;
/// The minimum number of requests per rate: fewer cannot show a share of 99 %.
const MIN_REQUESTS: f64 = 100.0;

#[derive(Debug, Args)]
pub(super) struct KneeArgs {
    #[command(flatten)]
    pub(super) config: ConfigArgs,
    /// Try each rate for SECONDS, or longer if it would have fewer than 100 requests
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
    /// Stop when the interval of the knee is no wider than this share
    #[arg(long, default_value_t = 0.1)]
    precision: f64,
    /// Try at most N rates
    #[arg(long, default_value_t = 12)]
    runs: u32,
    /// Print one JSON object on stdout instead of text
    #[arg(long)]
    pub(super) json: bool,
    /// Print no progress on stderr
    #[arg(long, short)]
    quiet: bool,
}

/// A rate and its result.
struct Step {
    rate: f64,
    kept: bool,
    share: ConfidenceInterval,
    state: RunState,
}

impl Step {
    /// Requests per second that met the SLOs.
    fn good_per_s(&self) -> Option<f64> {
        let seconds = self.state.total.wall_ns as f64 / 1e9;
        (seconds > 0.0).then(|| self.state.server.good as f64 / seconds)
    }
}

impl KneeArgs {
    /// The configuration; a URL is the address of the server.
    fn server_config(&self) -> Result<ConfigRequest, Failure> {
        let (mut request, urls) = self.config.request_and_urls()?;
        if let Some(url) = urls.last() {
            let server = (!request.sets("runtime")).then(|| Override::of_text("runtime", "openai"));
            request.preset(server.into_iter().chain([Override::of_text("runtime.server.url", url)]));
        }
        Ok(request)
    }
}

pub(super) async fn run(args: KneeArgs) -> Result<u8, Failure> {
    let server_config = args.server_config()?;
    let plan = server_config.plan()?;
    let config = &plan.composed.config;
    let Some(load) = config.runtime.load() else {
        return Err(Failure::usage(
            "knee is for servers: use runtime=openai, vllm, sglang, tensorrtllm or llamacpp",
        ));
    };
    if config.slo == Default::default() {
        return Err(Failure::usage(
            "knee needs at least one SLO: slo.ttft_p99_ms=…, slo.tpot_p99_ms=… or slo.e2e_p99_ms=…",
        ));
    }
    if !(args.seconds > 0.0 && args.seconds < 1e6 && args.precision > 0.0) {
        return Err(Failure::usage("--seconds and --precision are numbers above 0"));
    }
    let arrivals = match load.arrivals {
        ArrivalKind::Constant | ArrivalKind::Poisson | ArrivalKind::Gamma => None,
        ArrivalKind::Closed | ArrivalKind::Trace => {
            Some(Override::of_text("runtime.load.arrivals", "poisson"))
        }
    };
    let mut search = KneeSearch::new(load.rate.unwrap_or(1.0), args.precision);
    let mut steps: Vec<Step> = Vec::new();
    while let Some(rate) = search.next_rate().filter(|_| steps.len() < args.runs as usize) {
        let mut config = server_config.clone();
        let requests = (rate * args.seconds).ceil().max(MIN_REQUESTS);
        config.overrides.extend(arrivals.clone());
        config.overrides.extend([
            Override::parse(&format!("runtime.load.rate={rate}")).map_err(Failure::usage)?,
            Override::new("runtime.requests", Element::Int(requests as i128)),
        ]);
        let name = format!("{} requests/s", three_digits(rate));
        let finished = measure(config.plan()?, args.quiet, &name).await?;
        if let Some(cause) = &finished.cause {
            show(&search, &steps, args.json)?;
            eprint_line(format_args!("interrupted at {name}: {cause}"));
            return Ok(cause.exit_code());
        }
        let server = &finished.state.server;
        // A rate at which the server disappeared does not count as failed.
        let is_whole = server.ended as f64 >= requests;
        if finished.summary.finished.outcome != Outcome::Completed && !is_whole {
            if !steps.is_empty() {
                show(&search, &steps, args.json)?;
            }
            return Ok(report_end(&finished.summary));
        }
        let share = server.good_share().unwrap_or(ConfidenceInterval { estimate: 0.0, low: 0.0, high: 1.0 });
        let kept = share.estimate >= KEPT_SHARE;
        search.add(rate, kept);
        steps.push(Step { rate, kept, share, state: finished.state });
        if !args.quiet {
            let word = if kept { "SLOs met" } else { "SLOs not met" };
            eprint_line(format_args!(
                "{} requests/s: {word} ({} of the requests, 95 % CI: {} to {})",
                three_digits(rate),
                percent(100.0 * share.estimate),
                percent(100.0 * share.low),
                percent(100.0 * share.high)
            ));
        }
    }
    show(&search, &steps, args.json)?;
    Ok(if search.next_rate().is_none() { 0 } else { 3 })
}

/// Prints the result, or the results so far after an early end.
fn show(search: &KneeSearch, steps: &[Step], json: bool) -> Result<(), Failure> {
    match json {
        true => print_json(&knee_json(search, steps)),
        false => print(&knee_text(search, steps)),
    }
}

/// A latency that grows by at least this factor is the cause.
const GROWS: f64 = 1.2;

/// Why the lowest failed rate did not meet the SLOs, from its requests.
fn cause(steps: &[Step], (kept, broken): (Option<f64>, Option<f64>)) -> Option<String> {
    let of = |rate: Option<f64>| steps.iter().find(|step| Some(step.rate) == rate);
    let step = of(broken)?;
    let remarks = step.state.server_remarks();
    if let Some(failures) = remarks.iter().find(|remark| matches!(remark, ServerRemark::Failures { .. })) {
        return Some(failures.to_string());
    }
    let first = || remarks.first().map(ToString::to_string);
    let Some(before) = of(kept) else { return first() };
    let p99 = |of: fn(&RunState) -> Option<f64>| Some((of(&before.state)?, of(&step.state)?));
    let ttft = p99(|state| state.total.ttft.percentile_ms(99.0));
    let tpot = p99(|state| state.total.tpot.percentile_ms(99.0));
    growth(ttft, tpot).or_else(first)
}

/// The p99 that grew from one rate to the next, and its meaning.
fn growth(ttft: Option<(f64, f64)>, tpot: Option<(f64, f64)>) -> Option<String> {
    let by = |p99: Option<(f64, f64)>| p99.map_or(0.0, |(from, to)| to / from.max(1e-9));
    let text = |p99: Option<(f64, f64)>| {
        p99.map(|(from, to)| format!("{} → {}", millis(from), millis(to))).unwrap_or_default()
    };
    let (ttft_by, ttft_text, tpot_by, tpot_text) = (by(ttft), text(ttft), by(tpot), text(tpot));
    match (ttft_by >= GROWS, tpot_by >= GROWS) {
        (true, false) => Some(format!(
            "TTFT p99 grows ({ttft_text}), TPOT does not: requests wait before they are processed."
        )),
        (false, true) => Some(format!("TPOT p99 grows ({tpot_text}): the batches are larger.")),
        (true, true) if tpot_by >= ttft_by => {
            Some(format!("TPOT p99 grows ({tpot_text}), and TTFT ({ttft_text}): the batches are larger."))
        }
        (true, true) => Some(format!(
            "TTFT p99 grows ({ttft_text}), and TPOT ({tpot_text}): requests wait, and the batches are larger."
        )),
        (false, false) => None,
    }
}

/// A bar for a rate, in eighths of a cell.
fn bar(share: f64) -> String {
    const CELLS: f64 = 20.0;
    let eighths = (share.clamp(0.0, 1.0) * CELLS * 8.0).round() as usize;
    let part = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    format!("{}{part}", "█".repeat(eighths / 8))
}

fn knee_text(search: &KneeSearch, steps: &[Step]) -> String {
    let ms = |ms: Option<f64>| Unit::Millis.cell(ms);
    let numbers = ["rate/s", "requests", "TTFT p50", "p99", "TPOT p50", "p99", "good", "good/s"];
    let mut table = Table::new(numbers.map(Column::number).into_iter().chain(["SLOs", ""].map(Column::text)));
    let most = steps.iter().filter_map(Step::good_per_s).fold(0.0, f64::max);
    let mut sorted: Vec<&Step> = steps.iter().collect();
    sorted.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    for step in sorted {
        let total = &step.state.total;
        table.push(cells![
            step.rate,
            step.state.server.ended,
            ms(total.ttft.percentile_ms(50.0)),
            ms(total.ttft.percentile_ms(99.0)),
            ms(total.tpot.percentile_ms(50.0)),
            ms(total.tpot.percentile_ms(99.0)),
            Unit::Share.cell(step.share.estimate),
            step.good_per_s(),
            if step.kept { "met" } else { "not met" },
            step.good_per_s().map_or_else(String::new, |good| bar(good / most.max(1e-9))),
        ]);
    }
    let (kept, broken) = search.interval();
    let verdict = match (kept, broken) {
        (Some(kept), Some(broken)) => format!(
            "The server meets its SLOs up to {} requests/s, but not at {}.",
            three_digits(kept),
            three_digits(broken)
        ),
        (Some(kept), None) => format!(
            "The server meets its SLOs at {} requests/s, the highest rate tried: raise --runs.",
            three_digits(kept)
        ),
        (None, Some(broken)) => format!(
            "The server does not meet its SLOs at {} requests/s, the lowest rate tried.",
            three_digits(broken)
        ),
        (None, None) => "No rate was tried.".to_owned(),
    };
    let cause = cause(steps, (kept, broken)).map(|cause| format!(" Above that: {cause}")).unwrap_or_default();
    format!("{}\n\n{verdict}{cause}", table.text())
}

fn knee_json(search: &KneeSearch, steps: &[Step]) -> Value {
    let (kept, broken) = search.interval();
    let step = |step: &Step| {
        let total = step.state.summary();
        json!({"rate": step.rate, "kept": step.kept, "good": step.share.estimate, "good_ci": [step.share.low, step.share.high], "ttft_ms": total.ttft_ms, "tpot_ms": total.tpot_ms})
    };
    json!({
        "schema": 1,
        "kept_per_s": kept,
        "not_kept_per_s": broken,
        "found": search.next_rate().is_none(),
        "cause": cause(steps, (kept, broken)),
        "steps": steps.iter().map(step).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_event::{
        ClientSample, Envelope, Event, RequestFinished, RequestStarted, Served, ServerTimes, Stamp, Token,
    };

    /// A rate with 200 requests of these latencies, and a client whose own loop is late by `lag_ms`.
    fn step(rate: f64, kept: bool, (ttft_ms, tpot_ms): (f64, f64), lag_ms: f64) -> Step {
        let mut state = RunState::default();
        let mut apply = |ms: f64, event: Event| state.apply(&Envelope { t: Stamp((ms * 1e6) as u64), event });
        let served = Served {
            late_ns: 0,
            connecting: None,
            send_ns: 0,
            head_ns: None,
            chunks: 3,
            together: 0,
            prompt_tokens: Some(16),
            output_tokens: Some(3),
            tokenized: false,
            cached_tokens: None,
            server: ServerTimes::default(),
            reconnected: false,
            failure: None,
        };
        for request in 0..200 {
            let start = 2000.0 * f64::from(request);
            let started = RequestStarted {
                request,
                warmup: false,
                batch: 1,
                prompt_tokens: 16,
                output_tokens: 3,
                cooldown: false,
                joined: false,
                images: 0,
            };
            apply(start, Event::RequestStarted(started));
            for index in 0..3 {
                let at = start + ttft_ms + tpot_ms * f64::from(index);
                let token = Token { request, index, id: 0, device_ns: None, speculation: None };
                apply(at, Event::Token(token));
            }
            let end = start + ttft_ms + 2.0 * tpot_ms;
            let served = Some(Box::new(served.clone()));
            apply(end, Event::RequestFinished(RequestFinished { request, complete: true, served }));
            let lag_us = (1e3 * lag_ms) as u32;
            let client =
                ClientSample { streams: 1, lag_p50_us: lag_us, lag_p99_us: lag_us, lag_max_us: lag_us };
            apply(end + 1.0, Event::ClientSample(client));
        }
        let good = f64::from(u8::from(kept));
        Step { rate, kept, share: ConfidenceInterval { estimate: good, low: good, high: good }, state }
    }

    /// Requests that wait make the client's loop late too: the requests show the cause.
    #[test]
    fn a_latency_that_grows_is_named_before_a_late_client() {
        let kept = || step(4.0, true, (51.0, 10.0), 0.2);
        let bracket = (Some(4.0), Some(8.0));
        let waits = step(8.0, false, (1021.0, 10.0), 30.0);
        let remarks = waits.state.server_remarks();
        assert!(matches!(remarks.first(), Some(ServerRemark::ClientLate { .. })), "{remarks:?}");
        let said = cause(&[kept(), waits], bracket).unwrap();
        assert!(said.starts_with("TTFT p99 grows (51.0 ms → 1,021 ms), TPOT does not"), "{said}");
        assert!(!said.contains("client"), "{said}");
        // If no latency grows, the client is the cause.
        let late = cause(&[kept(), step(8.0, false, (52.0, 10.0), 30.0)], bracket).unwrap();
        assert!(late.starts_with("The client is 30.0 ms late"), "{late}");
    }

    #[test]
    fn a_failed_rate_is_explained_by_its_requests() {
        let text = |ttft, tpot| growth(Some(ttft), Some(tpot)).unwrap_or_default();
        let waits = text((51.0, 1021.0), (10.2, 10.3));
        assert!(waits.contains("51.0 ms → 1,021 ms") && waits.contains("requests wait"), "{waits}");
        assert!(text((51.0, 52.0), (10.0, 40.0)).contains("the batches are larger"));
        assert!(text((50.0, 500.0), (10.0, 20.0)).contains("requests wait, and the batches are larger"));
        assert!(text((50.0, 70.0), (10.0, 40.0)).starts_with("TPOT p99 grows"));
        assert_eq!(text((50.0, 51.0), (10.0, 10.1)), "", "neither has grown");
        assert_eq!(growth(None, None), None);
    }
}
