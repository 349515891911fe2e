//! The fold of a token: into the server, the GPUs, the trail, the traces and the metrics.

use super::{Measured, RunState, TokenMark, requests::Gap};
use llmprof_event::{Speculation, Stamp, Token};

/// A token with what its request and the recording of kernels tell about it.
#[derive(Debug, Clone, Copy)]
struct TimedToken {
    t: Stamp,
    /// Start of the gap before it.
    from: Stamp,
    gap_ns: u64,
    /// Tokens in the gap: more than one if tokens were lost or arrived together.
    tokens: u32,
    /// Tokens of its step.
    together: u32,
    /// Whether the gap is the latency of this token.
    is_latency: bool,
    /// The first of its request.
    first: bool,
    warmup: bool,
    /// Kernels were recorded during the gap.
    recorded: bool,
    request: u32,
    /// The start of its request.
    began: Stamp,
    stream: u32,
    id: u32,
    batch: u64,
    prompt: u64,
    /// Positions before it.
    context: u64,
    /// The part of the gap until images were embeddings, and the same by the device's clock.
    vision: Option<(u64, Option<u64>)>,
    speculation: Option<Speculation>,
    device_ns: Option<u64>,
}

impl RunState {
    pub(super) fn token(&mut self, t: Stamp, token: &Token) {
        let Some(timed) = self.timed(t, token) else { return };
        self.token_on_bill(&timed);
        self.token_of_server(&timed);
        self.token_on_gpus(&timed);
        self.token_in_trail(&timed);
        self.token_in_traces(&timed);
        self.token_in_metrics(&timed);
    }

    /// Adds the token to its request; `None` if the request is not active.
    fn timed(&mut self, t: Stamp, token: &Token) -> Option<TimedToken> {
        let is_concurrent = self.kind().has_concurrent_requests();
        let active = self.active.get_mut(token.request)?;
        let first = active.first_token.is_none();
        let Gap { ns: gap_ns, tokens, is_latency } =
            active.token(t, token.index, token.speculation.is_some());
        // The first token that was seen is not the first of a request that began earlier. A server may send several
        // tokens at first.
        let is_latency = match first {
            true if is_concurrent => !active.stopped,
            true => is_latency && !active.started.joined,
            false => is_latency,
        };
        let from = Stamp(t.0.saturating_sub(gap_ns));
        let recorded = match is_concurrent {
            true => self.kernels.recording.dominates(from, t),
            false => self.kernels.recording.overlaps(from, t),
        };
        active.recorded |= recorded;
        let prompt = u64::from(active.started.prompt_tokens);
        let timed = TimedToken {
            t,
            from,
            gap_ns,
            tokens,
            together: if token.speculation.is_some() { tokens } else { 1 },
            is_latency,
            first,
            warmup: !active.started.is_measured(),
            recorded,
            request: token.request,
            began: active.start(),
            stream: active.stream,
            id: token.id,
            batch: u64::from(active.started.batch),
            prompt,
            context: prompt + u64::from(active.tokens) - 1,
            vision: active.vision_ns.map(|ns| (ns.min(gap_ns), active.vision_device_ns)),
            speculation: token.speculation,
            device_ns: token.device_ns,
        };
        if first {
            self.active.is_answered();
        }
        Some(timed)
    }

    fn token_on_bill(&mut self, token: &TimedToken) {
        let TimedToken { request, gap_ns, context, .. } = *token;
        // All sequences of the request.
        let batch = token.batch.max(1) as u32;
        let streams = self.active.answered().saturating_mul(batch as usize);
        match token.first {
            true => self.bill.first_token(request, (token.prompt as u32).saturating_mul(batch), gap_ns),
            false => self.bill.tokens(request, token.tokens.saturating_mul(batch), context, gap_ns, streams),
        }
    }

    fn token_of_server(&mut self, token: &TimedToken) {
        if self.load_tested().is_none() {
            return;
        }
        let TimedToken { t, from, request, .. } = *token;
        if !token.warmup {
            self.server.tokens_per_s.add(t, u64::from(token.tokens));
        }
        match token.first {
            _ if !token.is_latency => {}
            true => self.server.late.first_chunk(t, request, token.began),
            false if token.warmup || token.recorded => {}
            false => self.server.late.chunk(from, t, request, self.active.answered()),
        }
    }

    fn token_on_gpus(&mut self, token: &TimedToken) {
        let TimedToken { t, first, gap_ns, batch, context, .. } = *token;
        if !first && token.is_latency {
            self.kernels.recording.step(token.from, t);
        }
        // Slow because of recording or of a stop, not because of the GPU.
        let left_out = !token.is_latency || (token.recorded && !self.total.without.is_empty());
        // Tokens that arrived together are of one step; lost ones are of other steps.
        let of_step = batch * u64::from(token.together);
        let processed = if first { token.prompt * batch } else { of_step };
        // The steps of other programs depend on other requests.
        let is_comparable = !token.warmup && !left_out && !self.kind().infers_steps();
        for gpu in self.gpus.iter_mut().filter(|gpu| gpu.info.profiled) {
            if !first && !left_out {
                gpu.heat.token(t, gap_ns);
            }
            gpu.ledger.token(t, first, gap_ns, processed, is_comparable.then_some(context));
            gpu.ledger.generated(of_step);
        }
    }

    fn token_in_trail(&mut self, token: &TimedToken) {
        let TimedToken { t, gap_ns, id, request, stream, together: tokens, first, warmup, recorded, .. } =
            *token;
        let mark = TokenMark { t, gap_ns, id, request, stream, tokens, first, warmup, recorded };
        self.flight.token(mark, self.trail.count());
        self.trail.push(mark);
        match first {
            _ if !token.is_latency => {}
            true => self.ttft_ms.push(t, gap_ns as f32 / 1e6),
            false => self.itl_ms.push(t, gap_ns as f32 / 1e6),
        }
    }

    fn token_in_traces(&mut self, token: &TimedToken) {
        let TimedToken { t, first, gap_ns, is_latency, .. } = *token;
        if token.warmup {
            return;
        }
        // Concurrent requests share the energy of the GPU.
        let has_own_energy = is_latency && !self.kind().has_concurrent_requests();
        for trace in self.traces() {
            if is_latency {
                trace.token(t, first, gap_ns);
            }
            if !has_own_energy {
                trace.paused();
            }
        }
        if !first && is_latency {
            let ns = gap_ns / u64::from(token.together.max(1));
            self.by_context.half_mut(token.recorded).token(token.context, ns);
        }
        if let Some(speculation) = token.speculation.filter(|_| !first) {
            self.speculation.get_or_insert_default().add(speculation, token.tokens);
        }
    }

    fn token_in_metrics(&mut self, token: &TimedToken) {
        let TimedToken { t, first, gap_ns, batch, .. } = *token;
        if token.warmup {
            return;
        }
        // TTFT of a server includes the queue.
        let prefilled = if self.load_tested().is_some() { 0 } else { token.prompt };
        let wall_ns = self.counted_to.replace(t).map_or(0, |to| t.since(to).as_nanos() as u64);
        for metrics in [&mut self.total, &mut self.window].map(|metrics| metrics.half_mut(token.recorded)) {
            metrics.wall_ns += wall_ns;
            if !token.is_latency {
                metrics.unmeasured_tokens(batch * u64::from(token.tokens));
                continue;
            }
            match first {
                true => {
                    token
                        .vision
                        .into_iter()
                        .for_each(|(ns, device_ns)| metrics.images_encoded(ns, device_ns));
                    metrics.first_token(gap_ns, prefilled, batch);
                    metrics.unmeasured_tokens(batch * u64::from(token.tokens - 1));
                }
                false => metrics.next_token(gap_ns, batch * u64::from(token.together)),
            }
            if let Some(ns) = token.device_ns {
                metrics.on_device(first, ns, gap_ns);
            }
        }
    }
}
