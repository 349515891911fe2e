//! The active requests, and the fold of their start and end.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::RunState;
use llmprof_analysis::compare::RequestSample;
use llmprof_event::{ImagesEncoded, PrefillProgress, RequestFinished, RequestStarted, Served, Stamp};

/// A recording may start any number of requests.
const MAX_ACTIVE: usize = 1 << 16;
/// The number of tokens from which the length of a request can be estimated.
const MIN_TOKENS: u32 = 8;

#[derive(Debug, Clone, PartialEq)]
pub struct ActiveRequest {
    pub started: RequestStarted,
    /// The row in which it is drawn: the lowest free one at its start.
    pub stream: u32,
    pub tokens: u32,
    /// The last report of a long prefill.
    pub prefill: Option<PrefillProgress>,
    pub(super) start: Stamp,
    pub first_token: Option<Stamp>,
    /// From its start until its images were embeddings, and by the device's clock.
    pub(super) vision_ns: Option<u64>,
    pub(super) vision_device_ns: Option<u64>,
    last_token: Stamp,
    /// Kernels were recorded during a part of it.
    pub(super) recorded: bool,
    /// The process was stopped during a part of it: its latencies are not known.
    pub(super) stopped: bool,
    /// The process was stopped since the last token.
    stopped_since_token: bool,
}

/// The time before a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gap {
    /// Since the previous step, or since the start. A mean if tokens before it were lost.
    pub(super) ns: u64,
    /// The tokens in it: more than one if tokens were lost or arrived together.
    pub(super) tokens: u32,
    /// Whether it is the latency of this one token.
    pub(super) is_latency: bool,
}

/// One request for an engine, any number for a server.
#[derive(Debug, Clone, Default)]
pub struct ActiveRequests {
    by_number: BTreeMap<u32, ActiveRequest>,
    /// The number of requests whose first token has arrived.
    answered: usize,
    /// Free streams below the highest one.
    free: BTreeSet<u32>,
}

impl ActiveRequests {
    /// The request that started last.
    pub fn latest(&self) -> Option<&ActiveRequest> {
        self.by_number.values().next_back()
    }

    /// The number of requests whose first token has arrived.
    pub(super) fn answered(&self) -> usize {
        self.answered
    }

    /// Called when the first token of a request has arrived.
    pub(super) fn is_answered(&mut self) {
        self.answered += 1;
    }

    pub fn count(&self) -> usize {
        self.by_number.len()
    }

    pub(super) fn start(&mut self, mut request: ActiveRequest) {
        if self.by_number.len() >= MAX_ACTIVE {
            let oldest = self.by_number.first_key_value().map(|(number, _)| *number);
            oldest.and_then(|number| self.end(number));
        }
        self.end(request.started.request);
        request.stream = self.free.pop_first().unwrap_or(self.by_number.len() as u32);
        self.by_number.insert(request.started.request, request);
    }

    pub fn iter(&self) -> impl Iterator<Item = &ActiveRequest> {
        self.by_number.values()
    }

    pub(super) fn get_mut(&mut self, request: u32) -> Option<&mut ActiveRequest> {
        self.by_number.get_mut(&request)
    }

    pub(super) fn end(&mut self, request: u32) -> Option<ActiveRequest> {
        let ended = self.by_number.remove(&request)?;
        self.answered -= usize::from(ended.first_token.is_some());
        self.free.insert(ended.stream);
        Some(ended)
    }

    /// A report of the prefill in progress.
    pub(super) fn prefill_progress(&mut self, _: Stamp, progress: &PrefillProgress) {
        self.all().for_each(|active| active.prefill = Some(*progress));
    }

    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut ActiveRequest> {
        self.by_number.values_mut()
    }

    pub(super) fn clear(&mut self) {
        self.by_number.clear();
        self.free.clear();
        self.answered = 0;
    }
}

impl ActiveRequest {
    pub(super) fn new(t: Stamp, started: RequestStarted) -> Self {
        ActiveRequest {
            started,
            stream: 0,
            tokens: 0,
            prefill: None,
            start: t,
            first_token: None,
            vision_ns: None,
            vision_device_ns: None,
            last_token: t,
            recorded: false,
            stopped: false,
            stopped_since_token: false,
        }
    }

    /// Counts token `index`, and lost tokens before it; or tokens that arrived `together` with it, in one step.
    pub(super) fn token(&mut self, t: Stamp, index: u32, together: bool) -> Gap {
        let known = index < self.started.output_tokens;
        let steps = if known { (index + 1).saturating_sub(self.tokens).max(1) } else { 1 };
        let since = t.since(self.last_token).as_nanos() as u64;
        // The first of several tokens that arrive together determines the time of all of them.
        let ns = if self.tokens == 0 || together { since } else { since / u64::from(steps) };
        let stopped = std::mem::take(&mut self.stopped_since_token);
        self.first_token.get_or_insert(t);
        self.last_token = t;
        self.tokens = self.tokens.saturating_add(steps);
        Gap { ns, tokens: steps, is_latency: (steps == 1 || together) && !stopped }
    }

    /// The server has counted its tokens: a chunk may have had several. Returns the difference to the number of chunks.
    pub(super) fn counted(&mut self, served: &Served) -> u32 {
        if let Some(tokens) = served.prompt_tokens {
            self.started.prompt_tokens = tokens;
        }
        let seen = self.tokens;
        if let Some(tokens) = served.output_tokens.filter(|_| seen > 0) {
            self.tokens = tokens.max(1);
        }
        self.tokens.saturating_sub(seen)
    }

    /// Its start, without the pauses since then.
    pub fn start(&self) -> Stamp {
        self.start
    }

    /// The process was stopped for a part of `time`, which is excluded from all latencies.
    pub(super) fn stopped(&mut self, time: Duration) {
        self.leave_out(time);
        (self.stopped, self.stopped_since_token) = (true, true);
    }

    /// Excludes a pause of the workload from all latencies.
    pub(super) fn leave_out(&mut self, pause: Duration) {
        self.last_token = self.last_token + pause;
        self.start = self.start + pause;
        if let Some(first) = &mut self.first_token {
            *first = *first + pause;
        }
    }

    /// Time per output token after the first, if there was more than one.
    pub(super) fn tpot_ns(&self) -> Option<u64> {
        let first = self.first_token.filter(|_| self.tokens > 1)?;
        Some(self.last_token.since(first).as_nanos() as u64 / u64::from(self.tokens - 1))
    }

    /// The estimated duration of the request, from its first tokens; `None` before there are enough of them.
    pub(super) fn expected_s(&self) -> Option<f64> {
        let tpot = self.tpot_ns().filter(|_| self.tokens > MIN_TOKENS)? as f64;
        let ttft = self.first_token?.since(self.start).as_secs_f64();
        Some(ttft + f64::from(self.started.output_tokens.saturating_sub(1)) * tpot / 1e9)
    }

    /// From its start to its last token; `None` before its first.
    pub(super) fn e2e_ns(&self) -> Option<u64> {
        self.first_token.map(|_| self.last_token.since(self.start).as_nanos() as u64)
    }

    /// Its data for comparisons; `None` before its first token.
    pub(super) fn sample(&self) -> Option<RequestSample> {
        let first = self.first_token?;
        Some(RequestSample {
            ttft_ns: (!self.started.joined).then(|| first.since(self.start).as_nanos() as u64),
            decode_ns: self.last_token.since(first).as_nanos() as u64,
            steps: self.tokens.saturating_sub(1),
            batch: self.started.batch,
            prompt_tokens: self.started.prompt_tokens,
            decode_mcycles: None,
            decode_j: None,
        })
    }
}

impl RunState {
    pub(super) fn request_started(&mut self, t: Stamp, started: &RequestStarted) {
        self.first_request_at.get_or_insert(t);
        if !self.kind().has_concurrent_requests() {
            self.active.clear();
        }
        self.idle.began(t);
        self.active.start(ActiveRequest::new(t, started.clone()));
        let measured = self.active.iter().filter(|active| active.started.is_measured()).count();
        self.server.most_at_a_time = self.server.most_at_a_time.max(measured);
        if started.is_measured() && self.counted_to.is_none() {
            // Measurement starts here; earlier time belongs to no window.
            self.metrics().for_each(|metrics| metrics.from = t);
            self.counted_to = Some(t);
            self.bill_starts();
        }
        if started.is_measured() {
            self.bill.began(t, started.request);
        }
    }

    pub(super) fn images_encoded(&mut self, t: Stamp, encoded: &ImagesEncoded) {
        let Some(active) = self.active.get_mut(encoded.request) else { return };
        if active.vision_ns.is_some() || active.tokens > 0 {
            return;
        }
        let ns = t.since(active.start()).as_nanos() as u64;
        active.vision_ns = Some(ns);
        active.vision_device_ns = encoded.device_ns;
        if active.started.is_measured() {
            let (batch, shape) =
                (active.started.batch, self.run.as_ref().and_then(|run| run.shape.as_deref()));
            self.vision.get_or_insert_default().add(encoded, batch, shape);
        }
    }

    pub(super) fn request_finished(&mut self, t: Stamp, finished: &RequestFinished) {
        let RequestFinished { request, complete, served } = finished;
        let Some(mut active) = self.active.end(*request) else { return };
        if self.active.count() == 0 && active.started.is_measured() {
            self.idle.ended(t);
        }
        let complete = *complete;
        let uncounted = served.as_deref().map_or(0, |served| active.counted(served));
        if let Some(served) = served.as_deref() {
            self.server.served(t, &active, served);
        }
        let all = |tokens: u32| tokens.saturating_mul(active.started.batch.max(1));
        self.bill.ended(t, *request, all(active.started.prompt_tokens), all(active.tokens));
        if !active.started.is_measured() {
            self.warmup_done += u32::from(active.started.warmup);
            return;
        }
        let measured = complete && !active.stopped;
        let sample = active.sample().filter(|_| measured);
        let recorded = match served {
            Some(_) => self.kernels.recording.dominates(active.start, t),
            None => active.recorded,
        };
        // Requests of another program are inferred in parts, so the duration of a whole request is not known.
        let e2e_ns = active.e2e_ns().filter(|_| !self.kind().infers_steps());
        for trace in self.full_trace.as_deref_mut().into_iter().chain([&mut self.trace]) {
            trace.half_mut(recorded).request_ended(sample);
            trace.half_mut(!recorded).request_ended(None);
        }
        if complete {
            self.requests_done += 1;
            let tpots_ns = self.tpots_ns.half_mut(recorded);
            sample.and_then(|sample| sample.tpot_ns()).into_iter().for_each(|ns| tpots_ns.push(ns));
            for metrics in [&mut self.total, &mut self.window].map(|metrics| metrics.half_mut(recorded)) {
                metrics.requests += 1;
                metrics.unmeasured_tokens(u64::from(uncounted));
                if !measured {
                    continue;
                }
                active.tpot_ns().into_iter().for_each(|ns| metrics.tpot.record(ns));
                e2e_ns.into_iter().for_each(|ns| metrics.e2e.record(ns));
            }
        }
    }
}
