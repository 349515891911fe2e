//! A run on a server in the formats of other clients, AIPerf and vLLM, each number by their definition.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::metrics::outcome;
use crate::state::RunState;
use llmprof_analysis::distribution::Distribution;

/// Seconds of the measured window.
fn seconds(state: &RunState) -> f64 {
    state.total.wall_ns as f64 / 1e9
}

fn rate(n: u64, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then(|| n as f64 / seconds)
}

/// The content of `profile_export_aiperf.json`. AIPerf's inter-token latency is llmprof-tui's TPOT; the gaps between
/// chunks are its inter-chunk latency.
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

/// The result in the format of `vllm bench serve --save-result`, with every field that it always has; null if not
/// known. vLLM's TTFT ends with the first chunk that has choices, llmprof-tui's with the first that has text.
pub fn vllm_json(state: &RunState) -> Value {
    let (total, server) = (&state.total, &state.server);
    let (run, found) = (state.run.as_ref(), server.found.as_ref());
    let seconds = seconds(state);
    let done = server.ended.saturating_sub(server.failed);
    let load = found.and_then(|found| found.load);
    let mut result = json!({
        "date": run.and_then(|run| date(run.started_unix_ms)),
        "endpoint_type": "openai",
        "backend": "openai",
        "label": null,
        "model_id": found.and_then(|found| found.model.as_ref()),
        "tokenizer_id": null,
        "num_prompts": run.map(|run| run.requests),
        // A closed loop has no rate.
        "request_rate": load.map(|load| load.rate.map_or_else(|| json!("inf"), |rate| json!(rate))),
        "burstiness": load.and_then(|load| load.burstiness),
        "max_concurrency": load.and_then(|load| load.concurrency),
        "duration": seconds,
        "completed": done,
        "failed": server.failed,
        "total_input_tokens": server.prompt_tokens,
        "total_output_tokens": server.output_tokens,
        "request_throughput": rate(done, seconds),
        "request_goodput": server.slo().and_then(|_| rate(server.good, seconds)),
        "output_throughput": rate(server.output_tokens, seconds),
        "total_token_throughput": rate(server.output_tokens + server.prompt_tokens, seconds),
        "max_output_tokens_per_s": server.tokens_per_s.most(),
        "max_concurrent_requests": server.most_at_a_time,
        // The real-time factor of transcriptions: vLLM writes 0 without them.
        "rtfx": 0.0,
    });
    for (name, d) in [("ttft", &total.ttft), ("tpot", &total.tpot), ("itl", &total.itl), ("e2el", &total.e2e)]
    {
        result[format!("mean_{name}_ms")] = json!(d.mean_ms());
        result[format!("median_{name}_ms")] = json!(d.percentile_ms(50.0));
        result[format!("std_{name}_ms")] = json!(d.deviation_ms());
        result[format!("p99_{name}_ms")] = json!(d.percentile_ms(99.0));
    }
    result
}

/// `20260131-120059`, in UTC; simulated runs have no date.
fn date(unix_ms: u64) -> Option<String> {
    let ms = i64::try_from(unix_ms).ok().filter(|ms| *ms > 0)?;
    Some(Timestamp::from_millisecond(ms).ok()?.strftime("%Y%m%d-%H%M%S").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_event::{Envelope, Event, OfferedLoad, ServerFound, ServerKind, Stamp};

    /// A file that `vllm bench serve --save-result` of vLLM 0.24.0 wrote on an H200.
    const OF_VLLM: &str = include_str!("../../../../tests/fixtures/vllm_bench.json");

    fn exported(load: Option<OfferedLoad>) -> Value {
        let mut state = RunState::default();
        let found = ServerFound {
            server: 0,
            url: "http://localhost:8000".into(),
            kind: ServerKind::Vllm,
            model: Some("org/model".into()),
            metrics: None,
            load,
        };
        state.apply(&Envelope { t: Stamp(0), event: Event::ServerFound(Box::new(found)) });
        vllm_json(&state)
    }

    #[test]
    fn every_field_that_vllm_always_writes_is_there() {
        let json = exported(None);
        let of_vllm: serde_json::Map<String, Value> = serde_json::from_str(OF_VLLM).unwrap();
        assert!(of_vllm.len() > 30, "{of_vllm:?}");
        for (key, theirs) in &of_vllm {
            let ours = json.get(key).unwrap_or_else(|| panic!("no {key}: {json}"));
            // Unknown values are null.
            let is_same_kind = std::mem::discriminant(ours) == std::mem::discriminant(theirs);
            assert!(is_same_kind || ours.is_null() || theirs.is_null(), "{key}: {ours} and {theirs}");
        }
        assert_eq!(json["request_rate"], Value::Null, "a trace, or a server that is watched");
        assert_eq!(date(1_769_860_859_000).as_deref(), Some("20260131-120059"));
        assert_eq!(date(0), None);
    }

    #[test]
    fn the_offered_load_has_the_terms_of_vllm() {
        let closed = exported(Some(OfferedLoad { rate: None, burstiness: Some(1.0), concurrency: Some(8) }));
        assert_eq!((&closed["request_rate"], &closed["max_concurrency"]), (&json!("inf"), &json!(8)));
        let open = exported(Some(OfferedLoad { rate: Some(2.5), burstiness: Some(0.5), concurrency: None }));
        assert_eq!((&open["request_rate"], &open["burstiness"]), (&json!(2.5), &json!(0.5)));
        assert_eq!(open["max_concurrency"], Value::Null);
    }
}
