//! The active request.

use std::time::Duration;

use crate::{
    analysis::compare::RequestSample,
    event::{PrefillProgress, RequestStarted, Stamp},
};

/// Tokens from which the length of a request can be estimated.
const MIN_TOKENS: u32 = 8;

#[derive(Debug, Clone, PartialEq)]
pub struct ActiveRequest {
    pub started: RequestStarted,
    pub tokens: u32,
    /// The last report of a long prefill.
    pub prefill: Option<PrefillProgress>,
    start: Stamp,
    pub first_token: Option<Stamp>,
    last_token: Stamp,
    /// Kernels were recorded during a part of it.
    pub(super) recorded: bool,
}

impl ActiveRequest {
    pub(super) fn new(t: Stamp, started: RequestStarted) -> Self {
        ActiveRequest {
            started,
            tokens: 0,
            prefill: None,
            start: t,
            first_token: None,
            last_token: t,
            recorded: false,
        }
    }

    /// Counts a token; returns the time since the previous one, or since the start.
    pub(super) fn token(&mut self, t: Stamp) -> u64 {
        let gap = t.since(self.last_token).as_nanos() as u64;
        self.first_token.get_or_insert(t);
        self.last_token = t;
        self.tokens += 1;
        gap
    }

    /// Excludes a pause of the workload from all latencies.
    pub(super) fn leave_out(&mut self, pause: Duration) {
        self.last_token = self.last_token + pause;
        self.start = self.start + pause;
        if let Some(first) = &mut self.first_token {
            *first = *first + pause;
        }
    }

    /// Time per output token after the first, when there was more than one.
    pub(super) fn tpot_ns(&self) -> Option<u64> {
        let first = self.first_token.filter(|_| self.tokens > 1)?;
        Some(self.last_token.since(first).as_nanos() as u64 / u64::from(self.tokens - 1))
    }

    /// How long it takes in all, from its first tokens; `None` before there are enough of them.
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
            ttft_ns: first.since(self.start).as_nanos() as u64,
            decode_ns: self.last_token.since(first).as_nanos() as u64,
            steps: self.tokens.saturating_sub(1),
            batch: self.started.batch,
            prompt_tokens: self.started.prompt_tokens,
            decode_mcycles: None,
            decode_j: None,
        })
    }
}
