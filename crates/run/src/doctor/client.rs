//! The latency that the load-test client adds: load on a server of known timing, in this process.

use std::{collections::HashMap, thread, time::Duration};

use serde_json::{Value, json};
use thiserror::Error;

use llmprof_analysis::distribution::Distribution;
use llmprof_base::{
    table::{Cell, Table},
    units::{Unit, grouped},
};
use llmprof_config::Api;
use llmprof_event as event;
use llmprof_event::{Clock, Envelope, Event, ServerKind, Stamp};
use llmprof_sources::server::{
    Arrivals, Endpoint, EndpointError, Gaps, KnownServer, LoadError, LoadPlan, Prompts, Timing,
};
use llmprof_workload::Control;

const TTFT: Duration = Duration::from_millis(50);
const ITL: Duration = Duration::from_millis(10);
const TOKENS: u32 = 200;
/// The time for which events are collected before they are counted.
const BATCH: Duration = Duration::from_millis(5);

#[derive(Debug, Error)]
pub enum ClientError {
    #[error("the server of known timing cannot be started: {0}")]
    Server(#[from] std::io::Error),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
}

/// Latencies beyond those of the server.
pub struct ClientReport {
    streams: u32,
    seconds: f64,
    requests: usize,
    failed: u32,
    chunks: u64,
    /// TTFT minus that of the server.
    ttft_error: Distribution,
    itl: Distribution,
    lost: u64,
}

/// Load-tests the server with about `streams` concurrent requests for `time`.
pub fn measure(streams: u32, time: Duration, control: &Control) -> Result<ClientReport, ClientError> {
    let server = KnownServer::start(Timing { ttft: TTFT, itl: ITL, tokens_per_chunk: 1 })?;
    let request_s = (TTFT + ITL * (TOKENS - 1)).as_secs_f64();
    let rate = f64::from(streams) / request_s;
    let requests = (rate * (time.as_secs_f64() + request_s)).ceil() as u32;
    let plan = LoadPlan {
        endpoint: Endpoint::read(&format!("http://{}", server.address))?,
        kind: ServerKind::OpenAi,
        api: Api::Chat,
        model: None,
        key: None,
        authorities: Vec::new(),
        timeout: Duration::from_secs(60),
        ready: Duration::from_secs(5),
        metrics: None,
        arrivals: Arrivals::Open { gaps: Gaps::Constant, rate, ramp_s: 0.0, concurrency: None },
        warmup: 1,
        requests,
        prompts: Prompts::Synthetic { tokens: 16, shared: 0.0, nonce: false },
        images: Default::default(),
        max_tokens: TOKENS,
        ignore_eos: false,
        temperature: None,
        top_p: None,
        continuous_usage: false,
        turns: 1,
        think: Duration::ZERO,
        max_failures: 1.0,
        gives_up: Duration::from_secs(10),
        seed: 0,
        predictions: false,
        tokenizer: None,
    };
    let (tx, mut rx) = event::channel(Clock::wall());
    let cancel = control.clone();
    let load = thread::Builder::new()
        .name("llmprof-load".to_owned())
        .spawn(move || llmprof_sources::server::run(plan, tx, cancel))?;
    let mut report = ClientReport {
        streams,
        seconds: time.as_secs_f64(),
        requests: 0,
        failed: 0,
        chunks: 0,
        ttft_error: Distribution::default(),
        itl: Distribution::default(),
        lost: 0,
    };
    // Nothing counts until the number of concurrent requests is reached.
    let mut begin: Option<Stamp> = None;
    let mut open: HashMap<u32, (Stamp, Option<Stamp>)> = HashMap::new();
    let mut batch = Vec::new();
    while let Some(first) = rx.blocking_recv() {
        // Waking up for each event would take more time than the client.
        thread::sleep(BATCH);
        batch.push(first);
        rx.take_waiting(&mut batch);
        for Envelope { t, event } in batch.drain(..) {
            match event {
                Event::RequestStarted(started) if !started.warmup => {
                    let begin = *begin.get_or_insert(t);
                    if t.since(begin).as_secs_f64() >= request_s {
                        open.insert(started.request, (t, None));
                    }
                }
                Event::Token(token) => {
                    let Some((start, last)) = open.get_mut(&token.request) else { continue };
                    report.chunks += 1;
                    match last.replace(t) {
                        None => {
                            let beyond = t.since(*start).saturating_sub(TTFT);
                            report.ttft_error.record(beyond.as_nanos() as u64);
                        }
                        Some(last) => report.itl.record(t.since(last).as_nanos() as u64),
                    }
                }
                Event::RequestFinished(finished) if open.remove(&finished.request).is_some() => {
                    report.requests += 1;
                    report.failed += u32::from(!finished.complete);
                }
                _ => {}
            }
        }
    }
    report.lost = rx.lost();
    load.join().unwrap_or(Err(LoadError::Cancelled))?;
    Ok(report)
}

impl ClientReport {
    pub fn json(&self) -> Value {
        let latency = |d: &Distribution| json!({"n": d.n(), "mean": d.mean_ms(), "p50": d.percentile_ms(50.0), "p99": d.percentile_ms(99.0), "max": d.max_ms()});
        json!({
            "streams": self.streams,
            "seconds": self.seconds,
            "requests": self.requests,
            "failed": self.failed,
            "chunks": self.chunks,
            "lost_events": self.lost,
            "ttft_error_ms": latency(&self.ttft_error),
            "itl_ms": latency(&self.itl),
            "true_itl_ms": ITL.as_secs_f64() * 1e3,
        })
    }

    pub fn text(&self) -> String {
        let mut table = Table::labelled("", ["p50", "p99", "max", "n"]);
        for (name, d) in
            [("TTFT beyond the server's 50 ms", &self.ttft_error), ("ITL (true value 10 ms)", &self.itl)]
        {
            let times = [d.percentile_ms(50.0), d.percentile_ms(99.0), d.max_ms()];
            let times = times.map(|ms| Unit::Millis.cell(ms)).into_iter();
            table.push([Cell::from(name)].into_iter().chain(times).chain([Unit::Count.cell(d.n())]));
        }
        let head = format!(
            "{} streams, {} chunks in about {:.0} s, {} failed, {} events lost. Client and server share this machine.",
            grouped(self.streams.into()),
            grouped(self.chunks as i64),
            self.seconds,
            self.failed,
            self.lost
        );
        format!("{head}\n\n{}", table.text())
    }
}
