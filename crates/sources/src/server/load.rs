//! Load-tests a server: sends requests at their planned moments, and reports each as events.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    time::Duration,
};

use thiserror::Error;
use tokio::{
    task::LocalSet,
    time::{Instant, sleep, sleep_until},
};

use super::{
    arrival::Schedule,
    client::{Arrived, Client, Exchange},
    openai::{Ask, Message, Role},
    plan::{Arrivals, LoadPlan, Prompts},
    ready,
    scrape::Scraper,
    tls::Tls,
    trace::TraceEntry,
    words::words,
};
use llmprof_analysis::distribution::Distribution;
use llmprof_base::units::grouped;
use llmprof_event::{
    ClientSample, Ending, Event, EventTx, HttpStep, Level, Prediction, RequestFailure, RequestFinished,
    RequestStarted, Stamp, Token,
};
use llmprof_workload::Control;

/// The interval at which the client's own delay is measured.
const LAG_TICK: Duration = Duration::from_millis(5);
const LAG_REPORT: Duration = Duration::from_secs(1);
/// The interval at which cancellation and pauses are checked.
const CONTROL_TICK: Duration = Duration::from_millis(20);
/// The first and the longest pause between two attempts while connections are refused.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Maximum failures of one kind that are logged individually.
const LOGGED_FAILURES: u32 = 5;
/// Maximum bytes of an answer that are kept for a conversation or a recording: a server may never stop.
const MAX_ANSWER_BYTES: usize = 4 << 20;
/// Maximum requests in flight, whatever the rate.
const MAX_IN_FLIGHT: usize = 20_000;

#[derive(Debug, Error)]
pub enum LoadError {
    #[error("{0}")]
    NotReady(#[from] ready::NotReady),
    #[error("{0}")]
    Tls(String),
    #[error("the client cannot start: {0}")]
    Runtime(#[from] std::io::Error),
    #[error("all {failed} requests failed; the last: {message}")]
    AllFailed { failed: u32, message: String },
    #[error("{failed} of {ended} requests failed; the last: {message}")]
    ManyFailed { failed: u32, ended: u32, message: String },
    #[error(
        "the server stopped answering at {at_s:.1} s ({message}): {} of {} requests failed, {} were not sent",
        grouped((*failed).into()), grouped((*ended).into()), grouped((*unsent).into())
    )]
    Gone { at_s: f64, message: String, failed: u32, ended: u32, unsent: u32 },
    #[error("cancelled")]
    Cancelled,
}

/// The part of the load test that a request belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    WarmUp,
    Measured,
    /// It keeps the server under load until the last measured request has ended.
    CoolDown,
}

/// A planned conversation.
struct Turn {
    part: Part,
    planned: Stamp,
    entry: Option<TraceEntry>,
}

struct LoadTest {
    plan: LoadPlan,
    model: String,
    client: Client,
    tx: EventTx,
    control: Control,
    next: Cell<u32>,
    in_flight: Cell<u32>,
    /// The number of measured requests that have not ended.
    pending: Cell<u32>,
    ended: Cell<u32>,
    failed: Cell<u32>,
    logged: RefCell<BTreeMap<RequestFailure, u32>>,
    last_failure: RefCell<String>,
    /// Words per token, from the server's counts.
    words_per_token: Cell<f64>,
    is_paused: Cell<bool>,
    /// Set while the server refuses connections.
    refused: Cell<Option<Refused>>,
    /// Whether a request is checking if the server still refuses.
    is_probed: Cell<bool>,
    /// The time at which it stopped answering, once it is given up.
    gone: Cell<Option<Stamp>>,
    nonce: u64,
}

/// The pause before the next attempt, after this many refused ones.
fn pause_after(times: u32) -> Duration {
    let doublings = times.saturating_sub(1).min(16);
    FIRST_PAUSE.saturating_mul(1 << doublings).min(LONGEST_PAUSE)
}

/// Since when connections are refused, and how often.
#[derive(Debug, Clone, Copy)]
struct Refused {
    at: Stamp,
    since: Instant,
    times: u32,
}

/// Runs until the end or until it is cancelled.
pub fn run(plan: LoadPlan, tx: EventTx, control: Control) -> Result<(), LoadError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tls = Tls::new(&plan.authorities).map_err(LoadError::Tls)?;
    LocalSet::new().block_on(&runtime, async move {
        let cancelled = control.clone();
        tokio::select! {
            done = load(plan, tls, tx, control) => done,
            () = async { while !cancelled.is_cancelled() { sleep(CONTROL_TICK).await } } => Err(LoadError::Cancelled),
        }
    })
}

async fn load(plan: LoadPlan, tls: Tls, tx: EventTx, control: Control) -> Result<(), LoadError> {
    let clock = tx.clock().clone();
    let client = Client::new(plan.endpoint.clone(), tls.clone(), plan.key.clone(), plan.timeout, clock);
    let found = ready::wait(&client, &plan, &tx).await?;
    let model = found.model.clone().unwrap_or_default();
    let scraper = Scraper::find(&plan, &tls, &found, &tx).await;
    let nonce = match plan.prompts {
        Prompts::Synthetic { nonce: true, .. } => std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64),
        _ => 0,
    };
    let work = Rc::new(LoadTest {
        model,
        client,
        tx,
        control,
        next: Cell::new(0),
        in_flight: Cell::new(0),
        pending: Cell::new(plan.requests),
        ended: Cell::new(0),
        failed: Cell::new(0),
        logged: RefCell::default(),
        last_failure: RefCell::default(),
        words_per_token: Cell::new(1.0),
        is_paused: Cell::new(false),
        refused: Cell::new(None),
        is_probed: Cell::new(false),
        gone: Cell::new(None),
        nonce,
        plan,
    });
    if let Some(scraper) = scraper {
        tokio::task::spawn_local(scraper.run(work.tx.clone()));
    }
    tokio::task::spawn_local(measure_lag(Rc::clone(&work)));
    work.warm_up().await;
    match work.plan.arrivals.clone() {
        Arrivals::Closed { concurrency } => closed(&work, concurrency).await,
        Arrivals::Open { gaps, rate, ramp_s, concurrency } => {
            let schedule = Schedule::new(gaps, rate, ramp_s, work.plan.seed).map(|at| (at, None));
            open(&work, schedule, concurrency, true).await;
        }
        Arrivals::Trace { entries, speed } => {
            let entries = entries.iter().take(work.plan.requests as usize).cloned();
            let schedule = entries.map(move |entry| (entry.at.div_f64(speed), Some(entry)));
            open(&work, schedule, None, false).await;
        }
    }
    let (failed, ended) = (work.failed.get(), work.ended.get());
    let message = work.last_failure.borrow().clone();
    if let Some(at) = work.gone.get() {
        let unsent = work.plan.requests.saturating_sub(ended);
        return Err(LoadError::Gone { at_s: at.secs(), message, failed, ended, unsent });
    }
    match failed {
        0 => Ok(()),
        failed if failed == ended => Err(LoadError::AllFailed { failed, message }),
        failed if f64::from(failed) > work.plan.max_failures * f64::from(ended) => {
            Err(LoadError::ManyFailed { failed, ended, message })
        }
        _ => Ok(()),
    }
}

/// `concurrency` conversations at a time, until the measured ones have ended.
async fn closed(work: &Rc<LoadTest>, concurrency: u32) {
    let left = Rc::new(Cell::new(work.plan.requests.div_ceil(work.plan.turns.max(1))));
    let workers: Vec<_> = (0..concurrency.max(1))
        .map(|_| {
            let (work, left) = (Rc::clone(work), Rc::clone(&left));
            tokio::task::spawn_local(async move {
                while work.pending.get() > 0 {
                    let probes = work.wait_for_server().await;
                    let part = match left.get() {
                        0 => Part::CoolDown,
                        n => {
                            left.set(n - 1);
                            Part::Measured
                        }
                    };
                    work.wait_while_paused().await;
                    let planned = work.tx.clock().now();
                    Rc::clone(&work).converse(Turn { part, planned, entry: None }).await;
                    if probes {
                        work.is_probed.set(false);
                    }
                }
            })
        })
        .collect();
    while work.pending.get() > 0 {
        sleep(Duration::from_millis(1)).await;
    }
    workers.iter().for_each(|worker| worker.abort());
}

/// Conversations at the times of a schedule.
async fn open(
    work: &Rc<LoadTest>,
    schedule: impl Iterator<Item = (Duration, Option<TraceEntry>)>,
    concurrency: Option<u32>,
    goes_on: bool,
) {
    let (begin, begin_stamp) = (Instant::now(), work.tx.clock().now());
    let mut left = work.plan.requests.div_ceil(work.plan.turns.max(1));
    let mut pause = Duration::ZERO;
    for (at, entry) in schedule {
        if left == 0 && !goes_on {
            break;
        }
        let due = begin + at + pause;
        // The end of the last measured request ends the load.
        while Instant::now() < due && work.pending.get() > 0 {
            sleep_until(due.min(Instant::now() + CONTROL_TICK)).await;
        }
        if work.pending.get() == 0 {
            return;
        }
        let paused = work.wait_while_paused().await;
        pause += paused;
        let limit = concurrency.unwrap_or(u32::MAX).min(MAX_IN_FLIGHT as u32);
        while work.in_flight.get() >= limit {
            sleep(Duration::from_millis(1)).await;
        }
        let part = if left > 0 { Part::Measured } else { Part::CoolDown };
        left = left.saturating_sub(1);
        let planned = begin_stamp + at + pause;
        tokio::task::spawn_local(Rc::clone(work).converse(Turn { part, planned, entry }));
    }
    while work.pending.get() > 0 {
        sleep(Duration::from_millis(1)).await;
    }
}

/// Measures the delay of the client's own loop.
async fn measure_lag(work: Rc<LoadTest>) {
    let mut lags = Distribution::default();
    let mut reported = Instant::now();
    loop {
        let due = Instant::now() + LAG_TICK;
        sleep_until(due).await;
        lags.record(due.elapsed().as_nanos() as u64);
        if reported.elapsed() >= LAG_REPORT {
            reported = Instant::now();
            let micros = |ms: Option<f64>| (ms.unwrap_or(0.0) * 1e3).min(f64::from(u32::MAX)) as u32;
            let max = lags.max_ms();
            work.tx.send(Event::ClientSample(ClientSample {
                streams: work.in_flight.get(),
                // A very late loop has too few values for a percentile.
                lag_p50_us: micros(lags.percentile_ms(50.0).or(max)),
                lag_p99_us: micros(lags.percentile_ms(99.0).or(max)),
                lag_max_us: micros(max),
            }));
            lags.clear();
        }
    }
}

impl LoadTest {
    /// Returns the duration of the pause.
    async fn wait_while_paused(&self) -> Duration {
        if !self.control.is_paused() {
            return Duration::ZERO;
        }
        let since = Instant::now();
        // Several conversations may wait; the pause is reported once.
        if !self.is_paused.replace(true) {
            self.tx.send(Event::WorkloadPaused);
        }
        while self.control.is_paused() {
            sleep(CONTROL_TICK).await;
        }
        if self.is_paused.replace(false) {
            self.tx.send(Event::WorkloadResumed);
        }
        since.elapsed()
    }

    /// While connections are refused, one request after a pause checks whether the server is back; the others wait for
    /// it. Returns whether this is that request.
    async fn wait_for_server(&self) -> bool {
        while let Some(refused) = self.refused.get().filter(|_| self.pending.get() > 0) {
            if !self.is_probed.replace(true) {
                sleep(pause_after(refused.times)).await;
                return true;
            }
            sleep(CONTROL_TICK).await;
        }
        false
    }

    /// A connection was refused. After a long time of refusals, the server is given up.
    fn refused(&self) {
        let first = Refused { at: self.tx.clock().now(), since: Instant::now(), times: 0 };
        let refused = self.refused.get().unwrap_or(first);
        if refused.times == 0 {
            self.tx.notice(
                Level::Warn,
                "server",
                "the server refuses connections: waiting for it".to_owned(),
            );
        }
        self.refused.set(Some(Refused { times: refused.times + 1, ..refused }));
        if refused.since.elapsed() >= self.plan.gives_up {
            self.gone.set(Some(refused.at));
            self.pending.set(0);
        }
    }

    /// One after the other: the first also measures the number of words per token.
    async fn warm_up(self: &Rc<Self>) {
        for _ in 0..self.plan.warmup {
            self.wait_while_paused().await;
            let planned = self.tx.clock().now();
            let entry = match &self.plan.arrivals {
                Arrivals::Trace { entries, .. } => entries.first().cloned(),
                _ => None,
            };
            Rc::clone(self).converse(Turn { part: Part::WarmUp, planned, entry }).await;
        }
    }

    /// The turns of a conversation, one after the other.
    async fn converse(self: Rc<Self>, turn: Turn) {
        let turns = if turn.part == Part::WarmUp { 1 } else { self.plan.turns.max(1) };
        let mut messages: Vec<Message> = Vec::new();
        let mut planned = turn.planned;
        for n in 0..turns {
            if turn.part == Part::Measured && self.pending.get() == 0 {
                return;
            }
            let request = self.next.get();
            self.next.set(request + 1);
            messages.push(self.message(request, turn.entry.as_ref()));
            let answer = self.request(request, &turn, planned, &messages).await;
            // The turns after a failed one are not sent.
            let ended = if answer.is_some() { 1 } else { turns - n };
            if turn.part == Part::Measured {
                self.pending.set(self.pending.get().saturating_sub(ended));
            }
            let Some(answer) = answer else { break };
            if n + 1 < turns {
                messages.push(Message { role: Role::Assistant, text: answer, images: Vec::new() });
                sleep(self.plan.think).await;
                planned = self.tx.clock().now();
            }
        }
    }

    fn message(&self, request: u32, entry: Option<&TraceEntry>) -> Message {
        let per_token = self.words_per_token.get();
        let count = |tokens: f64| ((tokens * per_token).round() as usize).max(1);
        let seed = self.plan.seed;
        let text = match (&self.plan.prompts, entry) {
            (_, Some(entry)) => entry.text(request, seed, per_token),
            (Prompts::Synthetic { tokens, shared, .. }, None) => {
                let common = (f64::from(*tokens) * shared).floor();
                let own = seed ^ self.nonce ^ (u64::from(request) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                let own = words(own, count(f64::from(*tokens) - common));
                if common > 0.0 { format!("{} {own}", words(seed, count(common))) } else { own }
            }
            (Prompts::Given(texts), None) => texts[request as usize % texts.len()].clone(),
        };
        let images = match self.plan.images.len() {
            0 => Vec::new(),
            n => vec![self.plan.images[request as usize % n].clone()],
        };
        Message { role: Role::User, text, images }
    }

    /// Sends one request and reports it. Returns the answer's text if a conversation or a recording needs it; `None` if
    /// it failed.
    async fn request(
        &self,
        request: u32,
        turn: &Turn,
        planned: Stamp,
        messages: &[Message],
    ) -> Option<String> {
        let plan = &self.plan;
        let max_tokens = turn.entry.as_ref().map_or(plan.max_tokens, |entry| entry.output_tokens);
        let ask = Ask {
            api: plan.api,
            model: &self.model,
            messages,
            max_tokens,
            ignore_eos: plan.ignore_eos,
            temperature: plan.temperature,
            top_p: plan.top_p,
            seed: plan.seed.wrapping_add(u64::from(request)),
            continuous_usage: plan.continuous_usage,
        };
        let body = ask.body();
        let keeps_text = plan.turns > 1 || plan.predictions || plan.tokenizer.is_some();
        let words = messages.iter().map(|message| message.text.split(' ').count()).sum::<usize>();
        let target = match (&plan.prompts, &turn.entry) {
            (_, Some(entry)) => entry.prompt_tokens,
            (Prompts::Synthetic { tokens, .. }, None) => *tokens,
            _ => 0,
        };
        self.tx.send(Event::RequestStarted(RequestStarted {
            request,
            warmup: turn.part == Part::WarmUp,
            cooldown: turn.part == Part::CoolDown,
            batch: 1,
            prompt_tokens: target,
            output_tokens: max_tokens,
            joined: false,
            images: 0,
        }));
        self.in_flight.set(self.in_flight.get() + 1);
        let mut text = String::new();
        let mut each = |t: Stamp, arrived: Arrived<'_>| {
            let token =
                Token { request, index: arrived.last_token, id: 0, device_ns: None, speculation: None };
            self.tx.send_at(t, Event::Token(token));
            if keeps_text && text.len() < MAX_ANSWER_BYTES {
                text.push_str(arrived.text);
            }
        };
        let Exchange { mut served, message, end } =
            self.client.stream(plan.api.path(), &body, planned, &mut each).await;
        self.in_flight.set(self.in_flight.get() - 1);
        let ok = served.failure.is_none();
        if ok && served.output_tokens.is_none() {
            served.output_tokens = self.count_tokens(&text).await;
            served.tokenized = served.output_tokens.is_some();
        }
        if turn.part == Part::WarmUp
            && let Some(tokens) = served.prompt_tokens.filter(|tokens| *tokens > 0 && messages.len() == 1)
            && matches!(plan.prompts, Prompts::Synthetic { .. })
        {
            self.words_per_token.set((words as f64 / f64::from(tokens)).clamp(0.05, 4.0));
        }
        match served.failure {
            Some(RequestFailure::Broken(HttpStep::Connect)) => self.refused(),
            None if self.refused.take().is_some() => {
                self.tx.notice(Level::Info, "server", "the server answers again".to_owned());
            }
            _ => {}
        }
        if let Some(failure) = served.failure {
            self.report_failure(request, failure, message.as_deref().unwrap_or_default());
        }
        if turn.part == Part::Measured {
            self.ended.set(self.ended.get() + 1);
            self.failed.set(self.failed.get() + u32::from(!ok));
        }
        if plan.predictions && ok && turn.part == Part::Measured {
            let prompt = messages.last().map(|message| message.text.clone()).unwrap_or_default();
            let output_tokens = served.output_tokens.unwrap_or(served.chunks);
            let ending = if output_tokens >= max_tokens { Ending::Length } else { Ending::Stop };
            self.tx.send(Event::Prediction(Box::new(Prediction {
                request: request.saturating_sub(plan.warmup),
                sequence: 0,
                prompt,
                text: self.client.without_key(text.clone()),
                prompt_tokens: served.prompt_tokens.unwrap_or(target),
                output_tokens,
                ending,
            })));
        }
        let finished = RequestFinished { request, complete: ok, served: Some(Box::new(served)) };
        self.tx.send_at(end, Event::RequestFinished(finished));
        ok.then_some(text)
    }

    /// The tokens of a complete answer by the model's tokenizer, outside of the loop that stamps chunks.
    async fn count_tokens(&self, text: &str) -> Option<u32> {
        let tokenizer = self.plan.tokenizer.clone().filter(|_| text.len() < MAX_ANSWER_BYTES)?;
        let text = text.to_owned();
        tokio::task::spawn_blocking(move || tokenizer.count(&text).ok()).await.ok()?
    }

    fn report_failure(&self, request: u32, failure: RequestFailure, message: &str) {
        *self.last_failure.borrow_mut() = message.to_owned();
        let mut logged = self.logged.borrow_mut();
        let count = logged.entry(failure).or_default();
        *count += 1;
        match *count {
            n if n < LOGGED_FAILURES => {
                self.tx.notice(Level::Warn, "server", format!("request {request} failed: {message}"))
            }
            LOGGED_FAILURES => {
                let text =
                    format!("request {request} failed: {message}. More of these are counted, not listed");
                self.tx.notice(Level::Warn, "server", text);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_between_refused_attempts_double_up_to_the_longest() {
        for (times, pause) in [
            (1, FIRST_PAUSE),
            (2, 2 * FIRST_PAUSE),
            (3, 4 * FIRST_PAUSE),
            (4, 8 * FIRST_PAUSE),
            (5, 16 * FIRST_PAUSE),
            (6, LONGEST_PAUSE),
            (7, LONGEST_PAUSE),
            (u32::MAX, LONGEST_PAUSE),
        ] {
            assert_eq!(pause_after(times), pause, "{times}");
        }
    }
}
