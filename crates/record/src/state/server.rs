//! A server: its requests, its own metrics, and the delay of the client.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use super::{ActiveRequest, Series, push_bounded};
use llmprof_analysis::{
    compare::{BROKEN_SLO, BlockHistogram, KEPT_SLO, SLO_LIMIT, ratio},
    distribution::Distribution,
    interval::ConfidenceInterval,
    late::LateChunks,
    server::NOT_STREAMED,
};
use llmprof_base::foreign::line;
use llmprof_event::{
    ClientSample, RequestFailure, Served, ServerFound, ServerSample, ServerSilent, Slo, Stamp,
};

/// Maximum requests that are kept individually.
const KEPT_LANES: usize = 2048;

/// A request from its start to its end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lane {
    pub request: u32,
    /// The row in which it is drawn.
    pub stream: u32,
    pub start: Stamp,
    pub first: Option<Stamp>,
    pub end: Stamp,
    pub failed: bool,
    pub measured: bool,
}

/// The parts of TTFT, in order of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TtftPart {
    /// The client's delay before the start. Not part of TTFT, which counts from the start.
    ClientLag,
    Connect,
    Send,
    /// By the server's clock.
    Queue,
    Prefill,
    /// The remainder, or the time after sending if the server reports no times.
    Wait,
}

impl TtftPart {
    pub const ALL: [TtftPart; 6] = [
        TtftPart::ClientLag,
        TtftPart::Connect,
        TtftPart::Send,
        TtftPart::Queue,
        TtftPart::Prefill,
        TtftPart::Wait,
    ];

    pub fn name(self) -> &'static str {
        match self {
            TtftPart::ClientLag => "client lag",
            TtftPart::Connect => "connect",
            TtftPart::Send => "send",
            TtftPart::Queue => "queue",
            TtftPart::Prefill => "prefill",
            TtftPart::Wait => "wait",
        }
    }
}

/// A part of the TTFT of the measured requests.
#[derive(Debug, Clone, Copy)]
pub struct PartTimes<'a> {
    pub part: TtftPart,
    /// `None` for the remainder if the server's means exceed the whole.
    pub mean_ms: Option<f64>,
    pub of: MeanOf<'a>,
}

/// The requests over which the mean of a part of TTFT is taken.
#[derive(Debug, Clone, Copy)]
pub enum MeanOf<'a> {
    /// Each measured request.
    Requests(&'a Distribution),
    /// Each measured request, of which only some report the part: for the others it is in the wait.
    SomeRequests,
    /// The server's requests, including those of other clients, of the warm-up and without an end.
    ServerRequests,
    /// The remainder of the wait after the means of the server.
    Rest,
}

impl<'a> PartTimes<'a> {
    /// `None` if only the mean is known.
    pub fn distribution(&self) -> Option<&'a Distribution> {
        match self.of {
            MeanOf::Requests(distribution) => Some(distribution),
            _ => None,
        }
    }
}

/// A mean over requests, from sums that the server reports.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct OwnMean {
    sum_ms: f64,
    requests: f64,
}

impl OwnMean {
    fn add(&mut self, mean_ms: Option<f64>, requests: Option<f64>) {
        if let (Some(ms), Some(n)) = (mean_ms, requests) {
            self.sum_ms += ms * n;
            self.requests += n;
        }
    }

    fn ms(self) -> Option<f64> {
        (self.requests > 0.0).then(|| self.sum_ms / self.requests)
    }
}

#[derive(Debug, Clone, Default)]
pub struct ServerState {
    pub found: Option<ServerFound>,
    /// The URL of a monitored server that has never answered.
    unanswered_url: Option<String>,
    /// It answers, without metrics that this program knows.
    pub has_unknown_metrics: bool,
    pub latest: Option<ServerSample>,
    /// When its metrics became unreadable, and why.
    pub silent: Option<(Stamp, String)>,
    pub running: Series,
    pub queued: Series,
    pub kv_used: Series,
    pub batch: Series,
    pub output_tok_s: Series,
    pub preemptions: f64,
    /// Preemptions while requests were measured.
    pub measured_preemptions: f64,
    pub client: Option<ClientSample>,
    /// The client's delay, in milliseconds.
    pub lag_ms: Series,
    pub failures: BTreeMap<RequestFailure, u64>,
    /// Measured requests that failed, of those that ended.
    pub failed: u64,
    pub ended: u64,
    pub reconnected: u64,
    /// The parts of the TTFT of measured requests.
    parts: [Distribution; TtftPart::ALL.len()],
    /// By the server's own histograms, while requests were measured.
    own_queue: OwnMean,
    own_prefill: OwnMean,
    /// From the planned moment to the first chunk.
    pub ttft_from_planned: Distribution,
    pub chunks: u64,
    /// Chunks that arrived together with an earlier one.
    pub together: u64,
    /// Measured requests that ended without a count of tokens.
    pub uncounted: u64,
    /// Measured requests whose tokens were counted by the model's tokenizer.
    pub tokenized: u64,
    /// As counted by the server, if it counts them.
    pub output_tokens: u64,
    pub prompt_tokens: u64,
    pub cached_tokens: Option<u64>,
    pub lanes: VecDeque<Lane>,
    pub late: LateChunks,
    /// Measured requests that kept every SLO.
    pub good: u64,
    /// All measured requests: [`KEPT_SLO`] or [`BROKEN_SLO`].
    outcomes: BlockHistogram,
    /// The maximum number of concurrent measured requests.
    pub most_at_a_time: usize,
    pub tokens_per_s: PerSecond,
    slo: Slo,
}

const SECOND_NS: u64 = 1_000_000_000;

/// Events per second of the run.
#[derive(Debug, Clone, Default)]
pub struct PerSecond {
    second: u64,
    count: u64,
    most: u64,
    /// The counts of past seconds, each at its end.
    over: Series,
}

impl PerSecond {
    pub(super) fn add(&mut self, t: Stamp, n: u64) {
        let second = t.0 / SECOND_NS;
        if second > self.second {
            let end = |second: u64| Stamp((second + 1) * SECOND_NS);
            if self.count > 0 {
                self.over.push(end(self.second), self.count as f32);
                // The first and the last of the seconds without events; those between follow from them.
                (self.second + 1 < second).then(|| self.over.push(end(self.second + 1), 0.0));
                (self.second + 2 < second).then(|| self.over.push(end(second - 1), 0.0));
            }
            (self.second, self.count) = (second, 0);
        }
        self.count += n;
        self.most = self.most.max(self.count);
    }

    /// The counts of past seconds.
    pub fn over(&self) -> &Series {
        &self.over
    }

    /// The largest count; `None` without events.
    pub fn most(&self) -> Option<u64> {
        (self.most > 0).then_some(self.most)
    }
}

impl ServerState {
    pub(super) fn set_slo(&mut self, slo: Slo) {
        self.slo = slo;
    }

    /// The SLOs, if there are any.
    pub fn slo(&self) -> Option<Slo> {
        Some(self.slo).filter(|slo| *slo != Slo::default())
    }

    /// Whether its address is on this machine.
    pub fn is_local(&self) -> bool {
        let host = self.found.as_ref().and_then(|found| found.url.split_once("://")).map(|(_, host)| host);
        host.is_some_and(|host| ["localhost", "127.", "[::1]"].iter().any(|local| host.starts_with(local)))
    }

    /// Whether there is something to show.
    pub fn is_there(&self) -> bool {
        self.found.is_some()
    }

    pub fn url(&self) -> Option<&str> {
        self.found.as_ref().map(|found| found.url.as_str()).or(self.unanswered_url.as_deref())
    }

    /// The time since its last answer.
    pub fn silent_for(&self, now: Stamp) -> Option<Duration> {
        let silent = self.silent.as_ref().filter(|_| !self.has_unknown_metrics);
        silent.map(|(since, _)| now.since(*since))
    }

    pub(super) fn found(&mut self, found: &ServerFound) {
        self.found = Some(found.clone());
        self.silent = None;
    }

    /// `measures`: whether requests are being measured.
    pub(super) fn sample(&mut self, t: Stamp, sample: &ServerSample, measures: bool) {
        let series = [
            (&mut self.running, sample.running),
            (&mut self.queued, sample.queued),
            (&mut self.kv_used, sample.kv_used.map(|share| 100.0 * share)),
            (&mut self.batch, sample.batch),
            (&mut self.output_tok_s, sample.output_tok_s),
        ];
        for (series, value) in series {
            value.into_iter().for_each(|value| series.push(t, value as f32));
        }
        if measures {
            self.measured_preemptions += sample.preemptions.unwrap_or(0.0);
            self.own_queue.add(sample.queue_ms, sample.timed_requests);
            self.own_prefill.add(sample.prefill_ms, sample.timed_requests);
        }
        self.late.server(t, sample.preemptions, sample.kv_used);
        self.preemptions += sample.preemptions.unwrap_or(0.0);
        self.latest = Some(sample.clone());
        self.silent = None;
    }

    pub(super) fn silent(&mut self, t: Stamp, silent: &ServerSilent) {
        self.has_unknown_metrics = silent.answers;
        self.unanswered_url = silent.url.clone().or(self.unanswered_url.take());
        let since = self.silent.as_ref().map_or(t, |(since, _)| *since);
        self.silent = Some((since, silent.why.clone()));
    }

    /// "no answer for 14 s: connection refused".
    pub fn silence(&self, now: Stamp) -> Option<String> {
        let (_, why) = self.silent.as_ref()?;
        if self.has_unknown_metrics {
            return Some(line(why, 80));
        }
        Some(format!("no answer for {:.0} s: {}", self.silent_for(now)?.as_secs_f64(), line(why, 80)))
    }

    pub(super) fn client(&mut self, t: Stamp, sample: &ClientSample) {
        self.late.client(t, Duration::from_micros(sample.lag_max_us.into()));
        self.lag_ms.push(t, sample.lag_p99_us as f32 / 1e3);
        self.client = Some(*sample);
    }

    /// Adds a request that has ended.
    pub(super) fn served(&mut self, t: Stamp, active: &ActiveRequest, served: &Served) {
        let lane = Lane {
            request: active.started.request,
            stream: active.stream,
            start: active.start(),
            first: active.first_token,
            end: t,
            failed: served.failure.is_some(),
            measured: active.started.is_measured(),
        };
        push_bounded(&mut self.lanes, KEPT_LANES, lane);
        if active.started.is_measured() {
            self.measured(active, served);
        }
    }

    fn measured(&mut self, active: &ActiveRequest, served: &Served) {
        self.ended += 1;
        self.reconnected += u64::from(served.reconnected);
        if let Some(failure) = served.failure {
            self.failed += 1;
            *self.failures.entry(failure).or_default() += 1;
            self.count_outcome(false);
            return;
        }
        self.chunks += u64::from(served.chunks);
        self.together += u64::from(served.together);
        self.tokenized += u64::from(served.tokenized);
        self.uncounted += u64::from(served.output_tokens.is_none());
        self.output_tokens += u64::from(served.output_tokens.unwrap_or(served.chunks));
        self.prompt_tokens += u64::from(served.prompt_tokens.unwrap_or(0));
        if let Some(cached) = served.cached_tokens {
            *self.cached_tokens.get_or_insert(0) += u64::from(cached);
        }
        let Some(first) = active.first_token else { return };
        let ttft_ns = first.since(active.start()).as_nanos() as u64;
        self.ttft_from_planned.record(ttft_ns.saturating_add(served.late_ns));
        self.divide_ttft(ttft_ns, served);
        let good = self.keeps_slo(ttft_ns, active.tpot_ns(), active.e2e_ns());
        self.good += u64::from(good);
        self.count_outcome(good);
    }

    /// Adds the parts of a TTFT.
    fn divide_ttft(&mut self, ttft_ns: u64, served: &Served) {
        let ns = |ms: f64| (ms * 1e6) as u64;
        let connect_ns = served.connecting.map_or(0, |connecting| connecting.total_ns());
        let after = ttft_ns.saturating_sub(connect_ns).saturating_sub(served.send_ns);
        // The server's clock may disagree with the client's: its parts never exceed the whole.
        let queue = served.server.queue_ms.map(|ms| ns(ms).min(after));
        let prefill = served.server.prefill_ms.map(|ms| ns(ms).min(after - queue.unwrap_or(0)));
        let wait = after - queue.unwrap_or(0) - prefill.unwrap_or(0);
        let parts = [
            (TtftPart::ClientLag, Some(served.late_ns)),
            (TtftPart::Connect, Some(connect_ns)),
            (TtftPart::Send, Some(served.send_ns)),
            (TtftPart::Queue, queue),
            (TtftPart::Prefill, prefill),
            (TtftPart::Wait, Some(wait)),
        ];
        for (part, ns) in parts {
            ns.into_iter().for_each(|ns| self.parts[part as usize].record(ns));
        }
    }

    fn count_outcome(&mut self, good: bool) {
        self.outcomes.record(if good { KEPT_SLO } else { BROKEN_SLO });
        self.outcomes.close();
    }

    /// The share of the measured requests that kept every SLO; `None` without SLOs or requests.
    pub fn good_share(&self) -> Option<ConfidenceInterval> {
        self.slo()?;
        let ConfidenceInterval { low, high, .. } = ratio::of_share(&self.outcomes, SLO_LIMIT)?;
        // The last requests may not be in a complete block yet.
        let estimate = self.good as f64 / self.ended as f64;
        Some(ConfidenceInterval { estimate, low: low.min(estimate), high: high.max(estimate) })
    }

    /// The measured requests: which of them kept every SLO; `None` without SLOs or requests.
    pub fn kept_slos(&self) -> Option<&BlockHistogram> {
        self.slo()?;
        Some(&self.outcomes).filter(|outcomes| outcomes.n() > 0)
    }

    fn keeps_slo(&self, ttft_ns: u64, tpot_ns: Option<u64>, e2e_ns: Option<u64>) -> bool {
        let within = |ns: Option<u64>, limit: Option<f64>| match (ns, limit) {
            (Some(ns), Some(limit)) => ns as f64 / 1e6 <= limit,
            _ => true,
        };
        within(Some(ttft_ns), self.slo.ttft_p99_ms)
            && within(tpot_ns, self.slo.tpot_p99_ms)
            && within(e2e_ns, self.slo.e2e_p99_ms)
    }

    pub fn part(&self, part: TtftPart) -> &Distribution {
        &self.parts[part as usize]
    }

    /// The known parts of TTFT, in order of time. If only the server's own metrics have queue and prefill, these are
    /// the server's means, and the wait is the remainder.
    pub fn ttft_parts(&self) -> Vec<PartTimes<'_>> {
        let all = self.part(TtftPart::Wait).n();
        let Some(wait_ms) = self.part(TtftPart::Wait).mean_ms() else { return Vec::new() };
        let own = |part: TtftPart| match part {
            _ if self.part(part).n() > 0 => None,
            TtftPart::Queue => self.own_queue.ms(),
            TtftPart::Prefill => self.own_prefill.ms(),
            _ => None,
        };
        let of_server: Vec<f64> = TtftPart::ALL.into_iter().filter_map(own).collect();
        let rest_ms = wait_ms - of_server.iter().sum::<f64>();
        let times = |part: TtftPart| {
            let times = self.part(part);
            Some(match own(part) {
                Some(ms) => PartTimes { part, mean_ms: Some(ms), of: MeanOf::ServerRequests },
                None if times.n() == 0 => return None,
                None if part == TtftPart::Wait && !of_server.is_empty() => {
                    PartTimes { part, mean_ms: Some(rest_ms).filter(|ms| *ms >= 0.0), of: MeanOf::Rest }
                }
                None => {
                    // Over all requests, so that the means add up.
                    let mean_ms = Some(1e3 * times.sum_secs() / all as f64);
                    let of = if times.n() == all { MeanOf::Requests(times) } else { MeanOf::SomeRequests };
                    PartTimes { part, mean_ms, of }
                }
            })
        };
        TtftPart::ALL.into_iter().filter_map(times).collect()
    }

    /// The mean of a part of TTFT; `None` if it is the server's mean instead of that of the measured requests.
    pub fn part_mean_ms(&self, part: TtftPart) -> Option<f64> {
        let parts = self.ttft_parts();
        let means_fit = parts.iter().all(|times| times.mean_ms.is_some());
        let times = parts.into_iter().find(|times| times.part == part)?;
        times.mean_ms.filter(|_| means_fit || !matches!(times.of, MeanOf::ServerRequests))
    }

    /// TTFT of the requests with known parts.
    pub fn ttft_mean_ms(&self) -> Option<f64> {
        let n = self.part(TtftPart::Wait).n();
        let sum_s: f64 = TtftPart::ALL[1..].iter().map(|part| self.part(*part).sum_secs()).sum();
        (n > 0).then(|| 1e3 * sum_s / n as f64)
    }

    /// Mean tokens per chunk, by the server's count.
    pub fn tokens_per_chunk(&self) -> Option<f64> {
        (self.chunks > 0).then(|| self.output_tokens as f64 / self.chunks as f64)
    }

    /// The share of chunks that arrived together with an earlier one; `None` if the answers have few chunks.
    pub fn together_share(&self) -> Option<f64> {
        let done = self.ended.saturating_sub(self.failed);
        (self.chunks > 3 * done).then(|| self.together as f64 / self.chunks as f64)
    }

    /// Whether its answers are not streamed, so that the gaps between chunks say nothing about tokens.
    pub fn is_held_back(&self) -> bool {
        self.together_share().is_some_and(|share| share >= NOT_STREAMED)
    }

    /// Whether chunks have one token each, so that the gaps between them are ITL.
    pub fn gaps_are_itl(&self) -> bool {
        self.tokens_per_chunk().is_none_or(|tokens| (0.98..1.02).contains(&tokens))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_that_of_one_second() {
        let mut tokens = PerSecond::default();
        assert_eq!(tokens.most(), None);
        for (ms, n) in [(100, 3), (900, 2), (1000, 4), (2999, 1), (3000, 4)] {
            tokens.add(Stamp(ms * 1_000_000), n);
        }
        assert_eq!(tokens.most(), Some(5));
    }

    #[test]
    fn seconds_without_tokens_are_zero() {
        let mut tokens = PerSecond::default();
        for (ms, n) in [(100, 3), (900, 2), (1000, 4), (5500, 7), (6000, 1)] {
            tokens.add(Stamp(ms * 1_000_000), n);
        }
        let over: Vec<(u64, f32)> = tokens
            .over()
            .within(Stamp(0), Stamp(10 * SECOND_NS))
            .map(|(t, bucket)| (t.0 / SECOND_NS, bucket.mean()))
            .collect();
        assert_eq!(over, [(1, 5.0), (2, 4.0), (3, 0.0), (5, 0.0), (6, 7.0)]);
    }

    #[test]
    fn the_share_of_good_requests_has_an_exact_interval() {
        let mut server = ServerState::default();
        let count = |server: &mut ServerState, good: bool| {
            (server.ended, server.good) = (server.ended + 1, server.good + u64::from(good));
            server.count_outcome(good);
        };
        for nth in 0..10 {
            count(&mut server, nth % 2 == 0);
        }
        assert_eq!(server.good_share(), None, "nothing is promised");
        server.set_slo(Slo { ttft_p99_ms: Some(50.0), ..Slo::default() });
        let share = server.good_share().unwrap();
        // The Clopper-Pearson interval for 5 of 10.
        assert!((share.low - 0.1871).abs() < 1e-4 && (share.high - 0.8129).abs() < 1e-4, "{share:?}");
        // More requests than there are blocks: the share is still that of all.
        for nth in 0..1001 {
            count(&mut server, nth % 10 != 0);
        }
        let share = server.good_share().unwrap();
        assert_eq!(share.estimate, 905.0 / 1011.0);
        assert!(
            share.low < share.estimate && share.estimate < share.high && share.high - share.low < 0.06,
            "{share:?}"
        );
    }
}
