//! Latency and throughput over a stretch of a run, and their summary.

use serde::{Deserialize, Serialize};

use super::distribution::{Distribution, Summary};
use crate::event::Stamp;

/// What was measured between two moments. Warm-up is never in it.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    pub from: Stamp,
    pub to: Stamp,
    pub ttft: Distribution,
    pub tpot: Distribution,
    pub itl: Distribution,
    pub requests: u64,
    /// Prompt tokens of all sequences whose first token arrived.
    pub prompt_tokens: u64,
    /// Tokens that ended an ITL, of all sequences.
    pub decode_tokens: u64,
    /// Tokens of all sequences, first ones included.
    pub output_tokens: u64,
}

impl Metrics {
    /// Starts over at `now`.
    pub fn restart(&mut self, now: Stamp) {
        self.ttft.clear();
        self.tpot.clear();
        self.itl.clear();
        (self.from, self.to) = (now, now);
        (self.requests, self.prompt_tokens, self.decode_tokens, self.output_tokens) = (0, 0, 0, 0);
    }

    pub fn first_token(&mut self, ttft_ns: u64, prompt_tokens: u64, batch: u64) {
        self.ttft.record(ttft_ns);
        self.prompt_tokens += prompt_tokens * batch;
        self.output_tokens += batch;
    }

    pub fn next_token(&mut self, itl_ns: u64, batch: u64) {
        self.itl.record(itl_ns);
        self.decode_tokens += batch;
        self.output_tokens += batch;
    }

    /// Prompt tokens over the time until the first token was there.
    pub fn prefill_tok_s(&self) -> Option<f64> {
        rate(self.prompt_tokens, self.ttft.sum_secs())
    }

    pub fn decode_tok_s(&self) -> Option<f64> {
        rate(self.decode_tokens, self.itl.sum_secs())
    }

    pub fn summary(&self) -> MetricsSummary {
        MetricsSummary {
            from_s: self.from.secs(),
            to_s: self.to.secs(),
            requests: self.requests,
            output_tokens: self.output_tokens,
            ttft_ms: self.ttft.summary(),
            tpot_ms: self.tpot.summary(),
            itl_ms: self.itl.summary(),
            prefill_tok_s: self.prefill_tok_s(),
            decode_tok_s: self.decode_tok_s(),
        }
    }
}

fn rate(tokens: u64, secs: f64) -> Option<f64> {
    (tokens > 0 && secs > 0.0).then(|| tokens as f64 / secs)
}

/// [`Metrics`] as numbers: what `metrics.json`, snapshots and `--json` carry.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MetricsSummary {
    pub from_s: f64,
    pub to_s: f64,
    pub requests: u64,
    pub output_tokens: u64,
    pub ttft_ms: Summary,
    pub tpot_ms: Summary,
    pub itl_ms: Summary,
    pub prefill_tok_s: Option<f64>,
    pub decode_tok_s: Option<f64>,
}
