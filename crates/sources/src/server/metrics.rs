//! Maps the metrics of each kind of server to one schema.

use super::exposition::Exposition;
use llmprof_event::{ServerKind, ServerSample};

/// A sum and its count.
type Mean = Option<(f64, f64)>;

/// One page of metrics. Counters count since the server's start.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    running: Option<f64>,
    queued: Option<f64>,
    kv_used: Option<f64>,
    batch: Option<f64>,
    output_tok_s: Option<f64>,
    prefix_hits: Option<f64>,
    preemptions: Option<f64>,
    prefix: Mean,
    prompt_tokens: Option<f64>,
    output_tokens: Option<f64>,
    requests: Option<f64>,
    step_tokens: Mean,
    batches: Mean,
    queue_s: Mean,
    prefill_s: Mean,
    decode_s: Mean,
    ttft_s: Mean,
    tpot_s: Mean,
    accepted: Mean,
}

/// The kind of server by the names of its metrics.
pub fn kind_of(page: &Exposition) -> Option<ServerKind> {
    let kinds = [
        ("vllm:", ServerKind::Vllm),
        ("sglang:", ServerKind::Sglang),
        ("trtllm_", ServerKind::TensorRtLlm),
        ("llamacpp:", ServerKind::LlamaCpp),
        ("tgi_", ServerKind::Tgi),
        ("nv_inference_", ServerKind::Triton),
    ];
    kinds.into_iter().find(|(prefix, _)| page.has_prefix(prefix)).map(|(_, kind)| kind)
}

/// The paths at which a kind of server has its metrics.
pub fn paths_of(kind: &ServerKind) -> &'static [&'static str] {
    match kind {
        // Its /metrics is JSON.
        ServerKind::TensorRtLlm => &["/prometheus/metrics"],
        _ => &["/metrics", "/prometheus/metrics"],
    }
}

impl Reading {
    pub fn from_page(kind: &ServerKind, page: &Exposition) -> Reading {
        let (sum, max, mean) = (|n: &str| page.sum(n), |n: &str| page.max(n), |n: &str| page.mean_parts(n));
        let both = |a: &str, b: &str| page.sum(a).zip(page.sum(b));
        match kind {
            ServerKind::Vllm => Reading {
                running: sum("vllm:num_requests_running"),
                queued: sum("vllm:num_requests_waiting"),
                kv_used: max("vllm:kv_cache_usage_perc").or_else(|| max("vllm:gpu_cache_usage_perc")),
                preemptions: sum("vllm:num_preemptions"),
                prefix: both("vllm:prefix_cache_hits", "vllm:prefix_cache_queries")
                    .or_else(|| both("vllm:gpu_prefix_cache_hits", "vllm:gpu_prefix_cache_queries")),
                prefix_hits: max("vllm:gpu_prefix_cache_hit_rate").filter(|share| *share >= 0.0),
                prompt_tokens: sum("vllm:prompt_tokens"),
                output_tokens: sum("vllm:generation_tokens"),
                requests: sum("vllm:request_success"),
                step_tokens: mean("vllm:iteration_tokens_total"),
                queue_s: mean("vllm:request_queue_time_seconds"),
                prefill_s: mean("vllm:request_prefill_time_seconds"),
                decode_s: mean("vllm:request_decode_time_seconds"),
                ttft_s: mean("vllm:time_to_first_token_seconds"),
                // Before 0.10, and in NIM, it has this name.
                tpot_s: mean("vllm:request_time_per_output_token_seconds")
                    .or_else(|| mean("vllm:time_per_output_token_seconds")),
                accepted: both("vllm:spec_decode_num_accepted_tokens", "vllm:spec_decode_num_draft_tokens"),
                ..Reading::default()
            },
            ServerKind::Sglang => Reading {
                running: sum("sglang:num_running_reqs"),
                queued: sum("sglang:num_queue_reqs"),
                kv_used: max("sglang:token_usage"),
                preemptions: sum("sglang:num_retracted_requests_total"),
                prefix_hits: max("sglang:cache_hit_rate"),
                prompt_tokens: sum("sglang:prompt_tokens_total"),
                output_tokens: sum("sglang:generation_tokens_total"),
                requests: sum("sglang:num_requests_total"),
                output_tok_s: sum("sglang:gen_throughput"),
                queue_s: mean("sglang:queue_time_seconds"),
                prefill_s: page
                    .mean_parts_of("sglang:per_stage_req_latency_seconds", ("stage", "prefill_forward")),
                ttft_s: mean("sglang:time_to_first_token_seconds"),
                tpot_s: mean("sglang:inter_token_latency_seconds"),
                ..Reading::default()
            },
            ServerKind::TensorRtLlm => Reading {
                running: sum("trtllm_num_requests_running"),
                queued: sum("trtllm_num_requests_waiting"),
                kv_used: max("trtllm_kv_cache_utilization"),
                prefix_hits: max("trtllm_kv_cache_hit_rate"),
                preemptions: sum("trtllm_num_paused_requests"),
                batch: max("trtllm_scheduled_batch_size"),
                requests: sum("trtllm_request_success"),
                queue_s: mean("trtllm_request_queue_time_seconds"),
                prefill_s: mean("trtllm_request_prefill_time_seconds"),
                ttft_s: mean("trtllm_time_to_first_token_seconds"),
                tpot_s: mean("trtllm_time_per_output_token_seconds"),
                ..Reading::default()
            },
            ServerKind::LlamaCpp => Reading {
                running: sum("llamacpp:requests_processing"),
                queued: sum("llamacpp:requests_deferred"),
                kv_used: max("llamacpp:kv_cache_usage_ratio"),
                prompt_tokens: sum("llamacpp:prompt_tokens_total"),
                output_tokens: sum("llamacpp:tokens_predicted_total"),
                batch: sum("llamacpp:n_busy_slots_per_decode"),
                ..Reading::default()
            },
            ServerKind::Tgi => Reading {
                queued: sum("tgi_queue_size"),
                batch: max("tgi_batch_current_size"),
                requests: sum("tgi_request_success"),
                queue_s: mean("tgi_request_queue_duration"),
                tpot_s: mean("tgi_request_mean_time_per_token_duration"),
                ..Reading::default()
            },
            ServerKind::Triton => {
                let micros = |name: &str| sum(name).map(|us| us / 1e6);
                let count = sum("nv_inference_count");
                Reading {
                    queued: sum("nv_inference_pending_request_count"),
                    requests: sum("nv_inference_request_success"),
                    batches: both("nv_inference_count", "nv_inference_exec_count"),
                    queue_s: micros("nv_inference_queue_duration_us")
                        .zip(sum("nv_inference_request_success")),
                    decode_s: micros("nv_inference_compute_infer_duration_us").zip(count),
                    ..Reading::default()
                }
            }
            ServerKind::OpenAi | ServerKind::Other(_) => Reading::default(),
        }
    }

    /// Running requests, and tokens generated since the server's start.
    pub fn generated(&self) -> (Option<f64>, Option<f64>) {
        (self.running, self.output_tokens)
    }

    /// The differences since `earlier`, `seconds` ago. A counter that decreased belongs to a restarted server.
    pub fn since(&self, earlier: &Reading, seconds: f64, scrape_ms: f64) -> ServerSample {
        let counted = |now: Option<f64>, then: Option<f64>| Some(now? - then?).filter(|n| *n >= 0.0);
        let rate = |now, then| counted(now, then).filter(|_| seconds > 0.0).map(|n| n / seconds);
        let mean = |now: Mean, then: Mean| {
            let ((a, n), (b, m)) = (now?, then?);
            (n > m && a >= b).then(|| (a - b) / (n - m))
        };
        let ms = |now, then| mean(now, then).map(|s| s * 1e3);
        ServerSample {
            server: 0,
            running: self.running,
            queued: self.queued,
            kv_used: self.kv_used,
            preemptions: counted(self.preemptions, earlier.preemptions),
            prefix_hits: mean(self.prefix, earlier.prefix).or(self.prefix_hits),
            prompt_tok_s: rate(self.prompt_tokens, earlier.prompt_tokens),
            output_tok_s: rate(self.output_tokens, earlier.output_tokens).or(self.output_tok_s),
            requests_s: rate(self.requests, earlier.requests),
            batch: mean(self.batches, earlier.batches).or(self.batch),
            step_tokens: mean(self.step_tokens, earlier.step_tokens),
            timed_requests: counted(self.queue_s.map(|s| s.1), earlier.queue_s.map(|s| s.1))
                .filter(|n| *n > 0.0),
            queue_ms: ms(self.queue_s, earlier.queue_s),
            prefill_ms: ms(self.prefill_s, earlier.prefill_s),
            decode_ms: ms(self.decode_s, earlier.decode_s),
            ttft_ms: ms(self.ttft_s, earlier.ttft_s),
            tpot_ms: ms(self.tpot_s, earlier.tpot_s),
            accepted: mean(self.accepted, earlier.accepted),
            scrape_ms,
        }
    }
}

/// The rate of a counter that increases when a request ends, e.g. of llama.cpp: its tokens were generated since its
/// last increase, or since the server became busy.
#[derive(Debug, Default)]
pub struct AtTheEnd {
    /// The time in seconds and the value of the last increase.
    last: Option<(f64, f64)>,
}

impl AtTheEnd {
    /// `None` while requests run and none has ended, because the number of their tokens is not known.
    pub fn rate(&mut self, now_s: f64, running: Option<f64>, tokens: Option<f64>) -> Option<f64> {
        let tokens = tokens?;
        let (since, before) = *self.last.get_or_insert((now_s, tokens));
        let is_idle = running == Some(0.0);
        if tokens != before || is_idle {
            self.last = Some((now_s, tokens));
        }
        let passed = now_s - since;
        match tokens > before && passed > 0.0 {
            true => Some((tokens - before) / passed),
            false => is_idle.then_some(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_counted_at_the_end_were_generated_before() {
        let mut counter = AtTheEnd::default();
        let mut rate = |t: f64, running: f64, tokens: f64| counter.rate(t, Some(running), Some(tokens));
        assert_eq!(rate(0.0, 0.0, 100.0), Some(0.0), "nothing runs");
        assert_eq!((rate(1.0, 2.0, 100.0), rate(2.0, 2.0, 100.0)), (None, None), "it generates");
        assert_eq!(rate(4.0, 1.0, 300.0), Some(50.0), "200 tokens in 4 s");
        assert_eq!(rate(5.0, 1.0, 300.0), None);
        assert_eq!(rate(6.0, 0.0, 400.0), Some(50.0));
        assert_eq!(
            (rate(7.0, 0.0, 400.0), rate(8.0, 0.0, 7.0)),
            (Some(0.0), Some(0.0)),
            "a new server begins at 0"
        );
        assert_eq!(counter.rate(9.0, None, None), None);
    }

    /// The same figures under the names of Ray, of NIM and of vLLM before 0.10.
    #[test]
    fn other_names_of_the_same_metric() {
        let page = "vllm:num_requests_running{engine=\"0\"} 3\nvllm:kv_cache_usage_perc 0.5\nvllm:generation_tokens_total 7\n\
                    vllm:request_time_per_output_token_seconds_sum 2\nvllm:request_time_per_output_token_seconds_count 4\n\
                    vllm:time_to_first_token_seconds_sum 1\nvllm:time_to_first_token_seconds_count 4\n";
        let read = |text: &str| {
            let page = Exposition::read(text);
            let kind = kind_of(&page).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(kind, ServerKind::Vllm, "{text}");
            Reading::from_page(&kind, &page)
        };
        let wanted = read(page);
        assert_eq!((wanted.running, wanted.kv_used, wanted.tpot_s), (Some(3.0), Some(0.5), Some((2.0, 4.0))));
        let old = page.replace("kv_cache", "gpu_cache").replace("request_time_per_output", "time_per_output");
        for text in [
            page.replace("vllm:", "ray_vllm:"),
            page.replace("vllm:", "ray_vllm_"),
            old.clone(),
            old.replace("vllm:", ""),
        ] {
            assert_eq!(read(&text), wanted, "{text}");
        }
    }

    #[test]
    fn differences_between_two_pages_are_rates_and_means() {
        let page = |n: f64| {
            Exposition::read(&format!(
                "vllm:num_requests_running 3\nvllm:kv_cache_usage_perc{{engine=\"0\"}} 0.5\nvllm:num_preemptions_total {n}\n\
                 vllm:generation_tokens_total {}\nvllm:request_queue_time_seconds_sum {}\nvllm:request_queue_time_seconds_count {}\n\
                 vllm:prefix_cache_hits_total {}\nvllm:prefix_cache_queries_total {}\n",
                100.0 * n,
                0.2 * n,
                n,
                3.0 * n,
                4.0 * n
            ))
        };
        let (first, second) = (page(2.0), page(6.0));
        assert_eq!(kind_of(&first), Some(ServerKind::Vllm));
        let read = |page: &Exposition| Reading::from_page(&ServerKind::Vllm, page);
        let sample = read(&second).since(&read(&first), 2.0, 1.0);
        assert_eq!(sample.output_tok_s, Some(200.0));
        assert_eq!(
            (sample.preemptions, sample.prefix_hits, sample.kv_used),
            (Some(4.0), Some(0.75), Some(0.5))
        );
        assert!((sample.queue_ms.unwrap() - 200.0).abs() < 1e-9);
        assert_eq!((sample.queued, sample.prefill_ms), (None, None), "absent is not 0");
        let restarted = read(&first).since(&read(&second), 2.0, 1.0);
        assert_eq!((restarted.output_tok_s, restarted.queue_ms), (None, None));
    }
}
