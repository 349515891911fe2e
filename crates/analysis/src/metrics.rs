//! Latency and throughput over a window of a run, and their summary.

use serde::{Deserialize, Serialize};

use super::distribution::{Distribution, Summary};
use llmprof_event::Stamp;

/// The measurements between two times, without warm-up.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    pub from: Stamp,
    pub to: Stamp,
    pub ttft: Distribution,
    /// The part of TTFT in which images become embeddings.
    pub vision: Distribution,
    pub tpot: Distribution,
    pub itl: Distribution,
    /// Complete requests from their start to the last token.
    pub e2e: Distribution,
    /// Steps by the device's own clock, if it has one: prefills, and decode steps.
    pub device_vision: Distribution,
    pub device_prefill: Distribution,
    pub device_step: Distribution,
    /// Host times of the decode steps that the device has timed.
    pub device_host_ns: u64,
    pub requests: u64,
    /// Prompt tokens of all sequences whose first token has arrived, if TTFT is the time of their prefill; not for a
    /// server, whose TTFT includes the queue.
    pub prompt_tokens: u64,
    /// Time of prefills whose prompts have an unknown length.
    pub unsized_prefill_ns: u64,
    /// Tokens of all sequences except first ones.
    pub decode_tokens: u64,
    /// Tokens of all sequences including first ones.
    pub output_tokens: u64,
    /// Within `from..to`, up to the last token, without pauses of the workload.
    pub wall_ns: u64,
}

impl Metrics {
    /// Starts a new window at `now`, reusing the memory.
    pub fn restart(&mut self, now: Stamp) {
        self.ttft.clear();
        self.vision.clear();
        self.device_vision.clear();
        self.tpot.clear();
        self.itl.clear();
        self.e2e.clear();
        self.device_prefill.clear();
        self.device_step.clear();
        (self.from, self.to) = (now, now);
        (self.requests, self.prompt_tokens, self.decode_tokens, self.output_tokens) = (0, 0, 0, 0);
        self.unsized_prefill_ns = 0;
        (self.wall_ns, self.device_host_ns) = (0, 0);
    }

    pub fn first_token(&mut self, ttft_ns: u64, prompt_tokens: u64, batch: u64) {
        self.ttft.record(ttft_ns);
        self.prompt_tokens += prompt_tokens * batch;
        self.unsized_prefill_ns += if prompt_tokens == 0 { ttft_ns } else { 0 };
        self.output_tokens += batch;
    }

    /// The images of a request became embeddings `ns` after its start.
    pub fn images_encoded(&mut self, ns: u64, device_ns: Option<u64>) {
        self.vision.record(ns);
        device_ns.into_iter().for_each(|ns| self.device_vision.record(ns));
    }

    /// The time from prompts, or the embeddings of their images, to first tokens.
    pub fn prefill_secs(&self) -> f64 {
        (self.ttft.sum_secs() - self.vision.sum_secs()).max(0.0)
    }

    /// The mean of the prefill time.
    pub fn prefill_ms(&self) -> Option<f64> {
        (self.ttft.n() > 0).then(|| self.prefill_secs() * 1e3 / self.ttft.n() as f64)
    }

    pub fn next_token(&mut self, itl_ns: u64, batch: u64) {
        self.itl.record(itl_ns);
        self.decode_tokens += batch;
        self.output_tokens += batch;
    }

    /// Tokens whose latency is not known.
    pub fn unmeasured_tokens(&mut self, tokens: u64) {
        self.output_tokens = self.output_tokens.saturating_add(tokens);
    }

    /// The duration of a step on the device, and of the same step on the host; `first` for a prefill.
    pub fn on_device(&mut self, first: bool, ns: u64, host_ns: u64) {
        if first {
            self.device_prefill.record(ns);
        } else {
            self.device_step.record(ns);
            self.device_host_ns += host_ns;
        }
    }

    /// The measured latencies by name: those of the host, then those of the device if it has any. `gaps` is the name of
    /// the gaps between tokens.
    pub fn latencies(&self, gaps: &'static str) -> Vec<(&'static str, &Distribution)> {
        let mut all = vec![("TTFT", &self.ttft), ("TPOT", &self.tpot), (gaps, &self.itl), ("E2E", &self.e2e)];
        if self.vision.n() > 0 {
            all.insert(1, ("vision", &self.vision));
        }
        let device = [
            ("GPU vision", &self.device_vision),
            ("GPU prefill", &self.device_prefill),
            ("GPU step", &self.device_step),
        ];
        all.extend(device.into_iter().filter(|(_, d)| d.n() > 0));
        all
    }

    /// The share of the decode time in which a step was on the device, including waits for launches within the step.
    pub fn device_share(&self) -> Option<f64> {
        let (device, host) = (self.device_step.sum_secs(), self.device_host_ns as f64 / 1e9);
        (self.device_step.n() > 0 && host > 0.0).then(|| (device / host).min(1.0))
    }

    /// Prompt tokens over the time to the first token, without that of images; `None` for a server.
    pub fn prefill_tok_s(&self) -> Option<f64> {
        rate(self.prompt_tokens, self.prefill_secs() - self.unsized_prefill_ns as f64 / 1e9)
    }

    pub fn decode_tok_s(&self) -> Option<f64> {
        rate(self.decode_tokens, self.itl.sum_secs())
    }

    /// All output tokens per elapsed time, including prefills and the time between requests.
    pub fn output_tok_s(&self) -> Option<f64> {
        rate(self.output_tokens, self.wall_ns as f64 / 1e9)
    }

    pub fn summary(&self) -> MetricsSummary {
        MetricsSummary {
            from_s: self.from.secs(),
            to_s: self.to.secs(),
            requests: self.requests,
            output_tokens: self.output_tokens,
            ttft_ms: self.ttft.summary(),
            vision_ms: (self.vision.n() > 0).then(|| self.vision.summary()),
            device_vision_ms: (self.device_vision.n() > 0).then(|| self.device_vision.summary()),
            tpot_ms: self.tpot.summary(),
            itl_ms: self.itl.summary(),
            e2e_ms: (self.e2e.n() > 0).then(|| self.e2e.summary()),
            device_prefill_ms: (self.device_prefill.n() > 0).then(|| self.device_prefill.summary()),
            device_step_ms: (self.device_step.n() > 0).then(|| self.device_step.summary()),
            device_share: self.device_share(),
            prefill_tok_s: self.prefill_tok_s(),
            decode_tok_s: self.decode_tok_s(),
            output_tok_s: self.output_tok_s(),
        }
    }
}

fn rate(tokens: u64, secs: f64) -> Option<f64> {
    (tokens > 0 && secs > 0.0).then(|| tokens as f64 / secs)
}

/// [`Metrics`] as numbers, for `metrics.json`, snapshots and `--json`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MetricsSummary {
    pub from_s: f64,
    pub to_s: f64,
    pub requests: u64,
    pub output_tokens: u64,
    pub ttft_ms: Summary,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vision_ms: Option<Summary>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_vision_ms: Option<Summary>,
    pub tpot_ms: Summary,
    pub itl_ms: Summary,
    #[serde(default)]
    pub e2e_ms: Option<Summary>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_prefill_ms: Option<Summary>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_step_ms: Option<Summary>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_share: Option<f64>,
    pub prefill_tok_s: Option<f64>,
    pub decode_tok_s: Option<f64>,
    #[serde(default)]
    pub output_tok_s: Option<f64>,
}
