//! A run on a server under the names of other clients, each number with their definition: AIPerf's and vLLM's.

use serde_json::{Value, json};

use super::metrics::outcome;
use crate::{analysis::distribution::Distribution, state::RunState};

/// Seconds of the measured window.
fn seconds(state: &RunState) -> f64 {
    state.total.wall_ns as f64 / 1e9
}

fn rate(n: u64, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then(|| n as f64 / seconds)
}

/// As `profile_export_aiperf.json`. AIPerf's inter-token latency is our TPOT; the gaps between chunks are its inter-chunk latency.
pub fn aiperf_json(state: &RunState) -> Value {
    let (total, server) = (&state.total, &state.server);
    let times = |d: &Distribution| {
        let at = |p: f64| d.percentile_ms(p);
        json!({
            "unit": "ms", "avg": d.mean_ms(), "min": d.min_ms(), "max": d.max_ms(),
            "p50": at(50.0), "p75": at(75.0), "p90": at(90.0), "p95": at(95.0), "p99": at(99.0),
        })
    };
    let one = |unit: &str, value: Option<f64>| json!({"unit": unit, "avg": value});
    let done = server.ended.saturating_sub(server.failed);
    let per_request = |n: u64| (done > 0).then(|| n as f64 / done as f64);
    let seconds = seconds(state);
    json!({
        "request_count": one("requests", Some(done as f64)),
        "error_request_count": one("requests", Some(server.failed as f64)),
        "benchmark_duration": one("sec", Some(seconds)),
        "request_throughput": one("requests/sec", rate(done, seconds)),
        "good_request_count": one("requests", server.slo().map(|_| server.good as f64)),
        "goodput": one("requests/sec", server.slo().and_then(|_| rate(server.good, seconds))),
        "output_token_throughput": one("tokens/sec", rate(server.output_tokens, seconds)),
        "total_token_throughput": one("tokens/sec", rate(server.output_tokens + server.prompt_tokens, seconds)),
        "time_to_first_token": times(&total.ttft),
        "inter_token_latency": times(&total.tpot),
        "inter_chunk_latency": times(&total.itl),
        "request_latency": times(&total.e2e),
        "input_sequence_length": one("tokens", per_request(server.prompt_tokens)),
        "output_sequence_length": one("tokens", per_request(server.output_tokens)),
        "llmprof": {
            "outcome": outcome(state),
            "definitions": "time_to_first_token: start of the request to the first chunk with text. inter_token_latency: (last − first chunk) / (output tokens − 1) \
                            of a request. Percentiles that need more samples are null.",
        },
    })
}

/// As the result of `vllm bench serve`. Its TTFT ends with the first chunk that has choices, ours with the first that has text.
pub fn vllm_json(state: &RunState) -> Value {
    let (total, server) = (&state.total, &state.server);
    let seconds = seconds(state);
    let done = server.ended.saturating_sub(server.failed);
    let mut result = json!({
        "backend": "openai",
        "model_id": server.found.as_ref().and_then(|found| found.model.as_ref()),
        "duration": seconds,
        "completed": done,
        "failed": server.failed,
        "total_input_tokens": server.prompt_tokens,
        "total_output_tokens": server.output_tokens,
        "request_throughput": rate(done, seconds),
        "request_goodput": server.slo().and_then(|_| rate(server.good, seconds)),
        "output_throughput": rate(server.output_tokens, seconds),
        "total_token_throughput": rate(server.output_tokens + server.prompt_tokens, seconds),
    });
    for (name, d) in [("ttft", &total.ttft), ("tpot", &total.tpot), ("itl", &total.itl), ("e2el", &total.e2e)]
    {
        result[format!("mean_{name}_ms")] = json!(d.mean_ms());
        result[format!("median_{name}_ms")] = json!(d.percentile_ms(50.0));
        result[format!("p99_{name}_ms")] = json!(d.percentile_ms(99.0));
    }
    result
}
