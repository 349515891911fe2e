//! The bill: the GPU's time and energy, shared among the requests in progress. What no request used is an entry of its own.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use crate::roofline::Roof;
use llm_cost::{Shape, Step};
use llmprof_event::Stamp;

/// A part of the GPU's time and energy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Charge {
    pub gpu_ms: f64,
    pub joules: f64,
}

impl Charge {
    fn add(&mut self, other: Charge, share: f64) {
        self.gpu_ms += other.gpu_ms * share;
        self.joules += other.joules * share;
    }

    pub fn plus(self, other: Charge) -> Charge {
        Charge { gpu_ms: self.gpu_ms + other.gpu_ms, joules: self.joules + other.joules }
    }

    /// Its price, with `per_hour` for an hour of the GPU.
    pub fn price(&self, per_hour: f64) -> f64 {
        self.gpu_ms / 3.6e6 * per_hour
    }
}

/// The charge of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Billed {
    pub request: u32,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    /// For its prompt, and for its output.
    pub prompt: Charge,
    pub output: Charge,
}

impl Billed {
    pub fn total(&self) -> Charge {
        self.prompt.plus(self.output)
    }
}

/// How much of the GPU's time a token needs in comparison with others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// Seconds of arithmetic per token.
    token_s: f64,
    /// Seconds to read the weights once.
    weights_s: f64,
    /// Seconds to read the cache of one position.
    position_s: f64,
}

impl Weights {
    /// By the model's shape and the peaks of the GPU.
    pub fn new(shape: &Shape, roof: &Roof) -> Weights {
        let [first, later] = [1, 1025].map(|context| shape.cost(Step::decode(1, context)).total());
        let positions = 1024.0;
        Weights {
            token_s: first.flops() / roof.flops,
            weights_s: first.weight_bytes / roof.bytes_per_s,
            position_s: (later.kv_read_bytes - first.kv_read_bytes) / positions / roof.bytes_per_s,
        }
    }

    /// A prompt: its arithmetic, and at least one read of the weights.
    fn prompt(&self, tokens: u32) -> f64 {
        (f64::from(tokens) * self.token_s).max(self.weights_s)
    }

    /// A token of one of `batch` sequences, which share the read of the weights.
    fn token(&self, batch: usize, context: u64) -> f64 {
        (self.weights_s / batch.max(1) as f64 + context as f64 * self.position_s).max(self.token_s)
    }
}

/// The source of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// The FLOPs and bytes of the model's shape.
    Shape,
    /// The shape is not known: the duration of each gap between tokens, shared among the streams.
    #[default]
    Time,
}

/// The work of a request since the last reading of the GPU.
#[derive(Debug, Clone, Copy, Default)]
struct Pending {
    prompt: f64,
    output: f64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Open {
    billed: Billed,
    pending: Pending,
    has_token: bool,
    ended: bool,
}

/// Sums over complete requests.
#[derive(Debug, Clone, Copy, Default)]
struct Complete {
    requests: u64,
    prompt_tokens: u64,
    output_tokens: u64,
    prompt: Charge,
    output: Charge,
}

/// Requests that are kept one by one; of more, the newest.
const KEPT: usize = 1 << 14;

/// A fold of requests, tokens and readings of the GPU, in order of time.
#[derive(Debug, Clone, Default)]
pub struct Bill {
    weights: Option<Weights>,
    open: BTreeMap<u32, Open>,
    /// Requests in progress.
    active: usize,
    active_since: Option<Stamp>,
    active_ns: u64,
    last: Option<(Stamp, f64)>,
    total: Charge,
    idle: Charge,
    prompt: Charge,
    output: Charge,
    /// The complete requests: their tokens and charges.
    complete: Complete,
    done: VecDeque<Billed>,
}

impl Bill {
    pub fn set_weights(&mut self, weights: Option<Weights>) {
        self.weights = weights;
    }

    fn method(&self) -> Method {
        if self.weights.is_some() { Method::Shape } else { Method::Time }
    }

    /// Starts at the last reading: earlier requests are not billed.
    pub fn restart(&mut self) {
        let (weights, last, open) = (self.weights, self.last, std::mem::take(&mut self.open));
        *self = Bill { weights, last, ..Bill::default() };
        // Requests in progress keep nothing of their earlier charge.
        for (request, known) in open.into_iter().filter(|(_, known)| !known.ended) {
            let billed = Billed { request, ..Billed::default() };
            self.open.insert(request, Open { billed, pending: Pending::default(), ..known });
            self.active += 1;
        }
        self.active_since = last.map(|(t, _)| t).filter(|_| self.active > 0);
    }

    pub fn began(&mut self, t: Stamp, request: u32) {
        if self.open.len() >= KEPT {
            return;
        }
        let billed = Billed { request, ..Billed::default() };
        let before = self.open.insert(request, Open { billed, ..Open::default() });
        if before.is_none_or(|before| before.ended) {
            self.active += 1;
            self.active_since.get_or_insert(t);
        }
    }

    /// The first token of a request, `ns` after its start.
    pub fn first_token(&mut self, request: u32, prompt_tokens: u32, ns: u64) {
        let weight = match self.weights {
            Some(weights) => weights.prompt(prompt_tokens),
            None => ns as f64 / 1e9 / self.active.max(1) as f64,
        };
        if let Some(open) = self.open.get_mut(&request) {
            open.pending.prompt += weight;
            open.has_token = true;
        }
    }

    /// `tokens` of a request, `ns` after the one before, while `streams` were being answered.
    pub fn tokens(&mut self, request: u32, tokens: u32, context: u64, ns: u64, streams: usize) {
        let weight = match self.weights {
            Some(weights) => f64::from(tokens) * weights.token(streams, context),
            None => ns as f64 / 1e9 / streams.max(1) as f64,
        };
        if let Some(open) = self.open.get_mut(&request) {
            open.pending.output += weight;
        }
    }

    pub fn ended(&mut self, t: Stamp, request: u32, prompt_tokens: u32, output_tokens: u32) {
        let Some(open) = self.open.get_mut(&request).filter(|open| !open.ended) else { return };
        open.ended = true;
        (open.billed.prompt_tokens, open.billed.output_tokens) = (prompt_tokens, output_tokens);
        self.active -= 1;
        if self.active == 0
            && let Some(since) = self.active_since.take()
        {
            self.active_ns += t.since(since).as_nanos() as u64;
        }
    }

    /// A reading of the GPU's power: settles the time since the last one.
    pub fn sample(&mut self, t: Stamp, watts: f64) {
        let Some((last, watts_before)) = self.last.replace((t, watts)) else { return };
        if let Some(since) = &mut self.active_since {
            self.active_ns += t.since((*since).max(last)).as_nanos() as u64;
            *since = t;
        }
        let ns = t.since(last).as_nanos() as u64;
        let active_ns = std::mem::take(&mut self.active_ns).min(ns);
        if ns == 0 {
            return;
        }
        let ms = ns as f64 / 1e6;
        let whole = Charge { gpu_ms: ms, joules: ms / 1e3 * 0.5 * (watts + watts_before) };
        let active = active_ns as f64 / ns as f64;
        self.total.add(whole, 1.0);
        let charged = self.distribute(whole, active);
        self.idle.add(whole, 1.0 - charged);
        self.close();
    }

    /// The run ends at `t`: settles the time since the last reading.
    pub fn end(&mut self, t: Stamp) {
        if let Some((_, watts)) = self.last {
            self.sample(t, watts);
        }
    }

    /// Shares `active` of `whole` among the open requests by their work; returns what they got of it.
    fn distribute(&mut self, whole: Charge, active: f64) -> f64 {
        if active <= 0.0 || self.open.is_empty() {
            return 0.0;
        }
        let weight: f64 = self.open.values().map(|open| open.pending.prompt + open.pending.output).sum();
        // A prefill that takes longer than a sample has no token yet.
        let waiting = self.open.values().filter(|open| !open.has_token && !open.ended).count();
        if weight <= 0.0 && waiting == 0 {
            return self.distribute_equally(whole, active);
        }
        for open in self.open.values_mut() {
            let pending = std::mem::take(&mut open.pending);
            let [prompt, output] = match weight > 0.0 {
                true => [pending.prompt / weight, pending.output / weight],
                false if !open.has_token && !open.ended => [1.0 / waiting as f64, 0.0],
                false => [0.0, 0.0],
            };
            for (charge, sum, share) in [
                (&mut open.billed.prompt, &mut self.prompt, prompt),
                (&mut open.billed.output, &mut self.output, output),
            ] {
                charge.add(whole, share * active);
                sum.add(whole, share * active);
            }
        }
        active
    }

    /// No token arrived: every open request has the same share, for its output.
    fn distribute_equally(&mut self, whole: Charge, active: f64) -> f64 {
        let share = active / self.open.len() as f64;
        for open in self.open.values_mut() {
            open.billed.output.add(whole, share);
            self.output.add(whole, share);
        }
        active
    }

    /// Requests that have ended are complete.
    fn close(&mut self) {
        let ended: Vec<u32> =
            self.open.iter().filter(|(_, open)| open.ended).map(|(request, _)| *request).collect();
        for open in ended.into_iter().filter_map(|request| self.open.remove(&request)) {
            let Complete { requests, prompt_tokens, output_tokens, prompt, output } = &mut self.complete;
            *requests += 1;
            *prompt_tokens += u64::from(open.billed.prompt_tokens);
            *output_tokens += u64::from(open.billed.output_tokens);
            prompt.add(open.billed.prompt, 1.0);
            output.add(open.billed.output, 1.0);
            if self.done.len() >= KEPT {
                self.done.pop_front();
            }
            self.done.push_back(open.billed);
        }
    }

    /// The complete requests, oldest first.
    pub fn requests(&self) -> impl Iterator<Item = &Billed> {
        self.done.iter()
    }

    /// The sums; `None` before the first complete request.
    pub fn summary(&self) -> Option<BillSummary> {
        (self.complete.requests > 0).then_some(BillSummary {
            method: self.method(),
            complete: self.complete,
            total: self.total,
            prompt: self.prompt,
            output: self.output,
            idle: self.idle,
        })
    }
}

/// The sums of a bill: prompt, output and idle add up to the total.
#[derive(Debug, Clone, Copy)]
pub struct BillSummary {
    pub method: Method,
    complete: Complete,
    pub total: Charge,
    pub prompt: Charge,
    pub output: Charge,
    pub idle: Charge,
}

impl BillSummary {
    pub fn requests(&self) -> u64 {
        self.complete.requests
    }

    /// For a million prompt tokens; `None` if their number is not known.
    pub fn per_million_prompt(&self) -> Option<Charge> {
        per_million(self.complete.prompt, self.complete.prompt_tokens)
    }

    pub fn per_million_output(&self) -> Option<Charge> {
        per_million(self.complete.output, self.complete.output_tokens)
    }

    /// A mean request, without idle time.
    pub fn per_request(&self) -> Charge {
        let mut mean = Charge::default();
        mean.add(self.complete.prompt.plus(self.complete.output), 1.0 / self.complete.requests as f64);
        mean
    }
}

fn per_million(charge: Charge, tokens: u64) -> Option<Charge> {
    let mut scaled = Charge::default();
    scaled.add(charge, 1e6 / tokens as f64);
    (tokens > 0).then_some(scaled)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> Stamp {
        Stamp(ms * 1_000_000)
    }

    const WEIGHTS: Weights = Weights { token_s: 15e-6, weights_s: 3e-3, position_s: 12e-9 };

    /// One request of 100 ms prefill and 400 ms decode, then 500 ms of nothing, at 500 W.
    #[test]
    fn a_request_alone_pays_for_its_time_and_idle_is_an_entry() {
        let mut bill = Bill::default();
        bill.set_weights(Some(WEIGHTS));
        bill.sample(at(0), 500.0);
        bill.began(at(0), 1);
        for ms in (100..=1000).step_by(100) {
            if ms == 100 {
                bill.first_token(1, 512, 100_000_000);
            } else if ms <= 500 {
                bill.tokens(1, 20, 512, 5_000_000, 1);
            }
            if ms == 500 {
                bill.ended(at(ms), 1, 512, 81);
            }
            bill.sample(at(ms), 500.0);
        }
        let summary = bill.summary().unwrap();
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} {b}");
        near(summary.total.gpu_ms, 1000.0);
        near(summary.idle.gpu_ms, 500.0);
        near(summary.prompt.gpu_ms, 100.0);
        near(summary.output.gpu_ms, 400.0);
        near(summary.total.joules, 500.0);
        let billed = bill.requests().next().unwrap();
        near(billed.total().joules, 250.0);
        assert_eq!((billed.prompt_tokens, billed.output_tokens), (512, 81));
        near(summary.per_million_output().unwrap().gpu_ms, 400.0 / 81.0 * 1e6);
        near(billed.total().price(3.6), 500.0 / 1e6);
    }

    #[test]
    fn a_long_prefill_pays_before_its_first_token() {
        let mut bill = Bill::default();
        bill.sample(at(0), 300.0);
        bill.began(at(0), 7);
        bill.sample(at(100), 300.0);
        bill.sample(at(200), 300.0);
        bill.first_token(7, 9000, 250_000_000);
        bill.ended(at(250), 7, 9000, 1);
        bill.sample(at(300), 300.0);
        let billed = *bill.requests().next().unwrap();
        assert!((billed.prompt.gpu_ms - 250.0).abs() < 1e-6, "{billed:?}");
        assert!((bill.summary().unwrap().idle.gpu_ms - 50.0).abs() < 1e-6);
    }

    #[test]
    fn prompts_pay_by_flops_and_tokens_by_bytes() {
        let mut bill = Bill::default();
        bill.set_weights(Some(WEIGHTS));
        bill.sample(at(0), 400.0);
        for request in 0..2 {
            bill.began(at(0), request);
        }
        // 2,000 prompt tokens are 30 ms of arithmetic, 20 tokens of one stream 60 ms of reading.
        bill.first_token(0, 2000, 1);
        bill.tokens(1, 20, 0, 1, 1);
        bill.ended(at(90), 0, 2000, 1);
        bill.ended(at(90), 1, 1, 20);
        bill.sample(at(90), 400.0);
        let charges: Vec<f64> = bill.requests().map(|billed| billed.total().gpu_ms).collect();
        assert!((charges[0] - 30.0).abs() < 1e-6 && (charges[1] - 60.0).abs() < 1e-6, "{charges:?}");
    }

    proptest! {
        #[test]
        fn requests_and_idle_time_add_up(events in prop::collection::vec((0u8..5, 0u32..6, 1u64..80, 1u32..4000), 1..300), with_weights in any::<bool>()) {
            let mut bill = Bill::default();
            bill.set_weights(with_weights.then_some(WEIGHTS));
            bill.sample(at(0), 300.0);
            let mut t = 0;
            for (what, request, ms, tokens) in events {
                t += ms;
                match what {
                    0 => bill.began(at(t), request),
                    1 => bill.first_token(request, tokens, ms * 1_000_000),
                    2 => bill.tokens(request, 1, tokens.into(), ms * 1_000_000, 2),
                    3 => bill.ended(at(t), request, tokens, tokens),
                    _ => bill.sample(at(t), 300.0 + f64::from(tokens) / 100.0),
                }
            }
            bill.sample(at(t + 1), 300.0);
            let all: Charge = [bill.prompt, bill.output, bill.idle].into_iter().fold(Charge::default(), Charge::plus);
            prop_assert!((all.gpu_ms - bill.total.gpu_ms).abs() <= 0.01 * bill.total.gpu_ms);
            prop_assert!((all.joules - bill.total.joules).abs() <= 0.01 * bill.total.joules);
            prop_assert!(bill.idle.gpu_ms >= -1e-9);
            let one_by_one: f64 = bill.done.iter().map(|billed| billed.total().gpu_ms).sum();
            let open: f64 = bill.open.values().map(|open| open.billed.total().gpu_ms).sum();
            // A request that begins again under the same number loses its first charge.
            prop_assert!(one_by_one + open <= all.gpu_ms - bill.idle.gpu_ms + 1e-6);
        }
    }
}
