//! A run as a page of metrics for Prometheus, in base units.

use std::fmt::Write;

use crate::state::{RunState, Series};
use llmprof_analysis::distribution::Distribution;
use llmprof_event::readings::PROMETHEUS;

/// A page with the current state.
pub fn prometheus_text(state: &RunState) -> String {
    let mut page = Page::default();
    if let Some(run) = &state.run {
        let labels = [
            ("model", run.model.as_str()),
            ("engine", &run.kind.to_string()),
            ("device", &state.device().map_or_else(String::new, ToString::to_string)),
        ];
        page.family("llmprof_run_info", "gauge", "The run that is measured.");
        page.sample("llmprof_run_info", &labels, 1.0);
    }
    let total = &state.total;
    page.value(
        "llmprof_requests_total",
        "counter",
        "Measured requests that were completed.",
        Some(total.requests as f64),
    );
    page.value(
        "llmprof_output_tokens_total",
        "counter",
        "Output tokens of measured requests.",
        Some(total.output_tokens as f64),
    );
    page.value(
        "llmprof_requests_in_flight",
        "gauge",
        "Requests that have not ended.",
        Some(state.active.count() as f64),
    );
    page.summary(
        "llmprof_time_to_first_token_seconds",
        "Start of a request to its first token.",
        &total.ttft,
    );
    page.summary(
        "llmprof_time_per_output_token_seconds",
        "Time per output token after the first, by request.",
        &total.tpot,
    );
    page.summary("llmprof_inter_token_latency_seconds", "Gap between two tokens of a request.", &total.itl);
    page.summary("llmprof_request_duration_seconds", "Start of a request to its last token.", &total.e2e);
    gpus(&mut page, state);
    let server = &state.server;
    if server.is_there() {
        if state.load_tested().is_some() {
            page.value(
                "llmprof_request_failures_total",
                "counter",
                "Measured requests that failed.",
                Some(server.failed as f64),
            );
        }
        let last = |series: &Series| series.last().map(|(_, value)| f64::from(value));
        page.value(
            "llmprof_server_running_requests",
            "gauge",
            "Requests that the server runs.",
            last(&server.running),
        );
        page.value(
            "llmprof_server_queued_requests",
            "gauge",
            "Requests that wait in the server's queue.",
            last(&server.queued),
        );
        page.value(
            "llmprof_server_kv_cache_usage_ratio",
            "gauge",
            "Share of the server's KV cache in use.",
            last(&server.kv_used).map(|percent| percent / 100.0),
        );
        let lag = server.client.map(|client| f64::from(client.lag_p99_us) / 1e6);
        page.value(
            "llmprof_client_lag_seconds",
            "gauge",
            "Delay of the client's own loop (p99 of the last second).",
            lag,
        );
    }
    page.text
}

fn gpus(page: &mut Page, state: &RunState) {
    for (reading, name, unit, help) in PROMETHEUS {
        let values = state.gpus.iter().filter_map(|gpu| Some((&gpu.info, gpu.series(reading).last()?.1)));
        let values: Vec<_> = values.collect();
        if values.is_empty() {
            continue;
        }
        page.family(name, "gauge", help);
        for (info, value) in values {
            page.sample(
                name,
                &[("gpu", &info.index.to_string()), ("name", &info.name)],
                f64::from(value) * unit,
            );
        }
    }
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let label = |(name, value): &(&str, &str)| {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            format!("{name}=\"{value}\"")
        };
        let labels = labels.iter().map(label).collect::<Vec<_>>().join(",");
        let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
        let _ = writeln!(self.text, "{name}{labels} {value}");
    }

    /// Unknown values are left out.
    fn value(&mut self, name: &str, kind: &str, help: &str, value: Option<f64>) {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            self.family(name, kind, help);
            self.sample(name, &[], value);
        }
    }

    fn summary(&mut self, name: &str, help: &str, d: &Distribution) {
        self.family(name, "summary", help);
        for (quantile, percentile) in [("0.5", 50.0), ("0.9", 90.0), ("0.99", 99.0)] {
            if let Some(ms) = d.percentile_ms(percentile) {
                self.sample(name, &[("quantile", quantile)], ms / 1e3);
            }
        }
        self.sample(&format!("{name}_sum"), &[], d.sum_secs());
        self.sample(&format!("{name}_count"), &[], d.n() as f64);
    }
}
