//! A monitored server: its own metrics, as text and as JSON.

use serde_json::{Value, json};

use super::list_item;

use crate::state::{MeanOf, RunState, Series, ServerState};
use llmprof_analysis::late::{FACTOR, LATE};
use llmprof_base::{
    cells,
    table::{Cell, Table},
    units::{Unit, grouped, millis, percent, three_digits},
};
use llmprof_event::{AlertChanged, Stamp};

/// A name, its values, and their unit.
type ServerMetric<'a> = (&'static str, &'a Series, Unit);

/// The metrics of a server that are shown.
fn rows(server: &ServerState) -> Vec<ServerMetric<'_>> {
    let all: [ServerMetric<'_>; 5] = [
        ("running", &server.running, Unit::None),
        ("queued", &server.queued, Unit::None),
        ("KV cache", &server.kv_used, Unit::Percent),
        ("batch", &server.batch, Unit::None),
        ("output tok/s", &server.output_tok_s, Unit::None),
    ];
    all.into_iter().filter(|(_, series, _)| !series.is_empty()).collect()
}

fn mean(state: &RunState, series: &Series) -> Option<f64> {
    let all = series.columns(llmprof_event::Stamp(0), state.now, 1).into_iter().next().flatten();
    all.map(|bucket| f64::from(bucket.mean()))
}

/// The monitored servers that have answered.
pub fn watched_server_text(state: &RunState) -> String {
    let texts = state.servers().map(|server| server_text(state, server));
    texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n")
}

fn server_text(state: &RunState, server: &ServerState) -> String {
    let Some(found) = &server.found else { return String::new() };
    let mut table = Table::labelled("", ["mean", "min", "max", "last"]);
    for (name, series, unit) in rows(server) {
        let range = series.range();
        let last = series.last().map(|(_, value)| value);
        let last =
            [range.map(|(min, _)| min), range.map(|(_, max)| max), last].map(|value| value.map(f64::from));
        let values = [mean(state, series)].into_iter().chain(last).map(|value| unit.cell(value));
        table.push([Cell::from(name)].into_iter().chain(values));
    }
    let mut text = format!("{} at {}, {} s\n\n", found.kind, found.url, three_digits(state.now.secs()));
    match table.rows.is_empty() {
        true => text += "It reported nothing between two readings.",
        false => text += &table.text(),
    }
    for remark in state.remarks_on(server) {
        text += &format!("\n\n{remark}");
    }
    text
}

/// One server as an object, several under `servers`.
pub fn watched_server_json(state: &RunState) -> Value {
    let mut object = match state.more_servers.is_empty() {
        true => server_json(state, &state.server),
        false => {
            json!({"servers": state.servers().map(|server| server_json(state, server)).collect::<Vec<_>>()})
        }
    };
    object["schema"] = json!(1);
    object["seconds"] = json!(state.now.secs());
    let alert = |(t, alert): &(Stamp, AlertChanged)| json!({"seconds": t.secs(), "alert": alert});
    object["alerts"] = state.alerts.iter().map(alert).collect();
    object
}

fn server_json(state: &RunState, server: &ServerState) -> Value {
    let series = rows(server).into_iter().map(|(name, series, _)| {
        let range = series.range();
        let value =
            json!({"mean": mean(state, series), "min": range.map(|r| r.0), "max": range.map(|r| r.1)});
        (name.to_owned(), value)
    });
    json!({
        "server": server.found,
        "url": server.url(),
        "silent": server.silence(state.now),
        "metrics": series.collect::<serde_json::Map<_, _>>(),
        "preemptions": server.latest.as_ref().and_then(|latest| latest.preemptions).map(|_| server.preemptions),
        "last_sample": server.latest,
        "why": state.remarks_on(server).iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

/// The section of `report.md` on a load-tested server.
pub(super) fn server_md(state: &RunState) -> String {
    let Some(server) = state.load_tested().filter(|server| server.ended > 0) else { return String::new() };
    let text = |ms: Option<f64>| ms.map_or_else(|| "–".to_owned(), millis);
    let mut table = Table::labelled("part of TTFT", ["mean", "p50", "p90", "p99", "n"]);
    let parts = server.ttft_parts();
    for times in &parts {
        let distribution = times.distribution();
        let at = |p: f64| distribution.and_then(|d| d.percentile_ms(p));
        let ms = [times.mean_ms, at(50.0), at(90.0), at(99.0)].map(|ms| Unit::Millis.cell(ms));
        let n = Unit::Count.cell(distribution.map(|d| d.n()));
        table.push([Cell::from(times.part.name())].into_iter().chain(ms).chain([n]));
    }
    let mut out = format!("## Server\n\n{}\n", table.markdown());
    out += "Client lag precedes the start, from which TTFT is counted. Queue and prefill are measured by the server's \
            clock.\n\n";
    let has = |kind: fn(&MeanOf<'_>) -> bool| parts.iter().any(|times| kind(&times.of));
    if has(|of| matches!(of, MeanOf::SomeRequests)) {
        out += "Not all requests report the parts without percentiles: their means are over all requests, and if a \
                request does not report a part, the wait includes it.\n\n";
    }
    if has(|of| matches!(of, MeanOf::ServerRequests)) {
        out += "Queue and prefill without percentiles are the server's means over all of its requests, including \
                those that were not measured. The wait is the rest of TTFT; it is unknown if they exceed TTFT.\n\n";
    }
    let late = server.late.by_cause();
    if let Some(share) = server.late.share().filter(|_| !late.is_empty()) {
        let mut table = Table::labelled("late chunks by concurrent event", ["chunks", "time lost"]);
        for (cause, lost) in late {
            let (chunks, time) = (Unit::Count.cell(lost.chunks), Unit::Millis.cell(lost.ns as f64 / 1e6));
            table.push(cells![cause.to_string(), chunks, time]);
        }
        out += &table.markdown();
        out += &format!(
            "\nLate: more than {FACTOR} times the median gap ({}) and {} longer. They cost {} of the time between chunks.\n\n",
            text(server.late.usual_ms()),
            millis(LATE.as_secs_f64() * 1e3),
            percent(100.0 * share)
        );
    }
    for (failure, n) in &server.failures {
        out += &list_item(&format!("{} requests failed: {failure}", grouped(*n as i64)));
    }
    if server.reconnected > 0 {
        out += &list_item(&format!(
            "{} requests found their connection closed and were sent on a new one",
            grouped(server.reconnected as i64)
        ));
    }
    if let Some(tokens) = server.tokens_per_chunk() {
        out += &list_item(&format!("{} tokens in a chunk on average", three_digits(tokens)));
    }
    if let Some(client) = &server.client {
        out += &list_item(&format!(
            "the client was {} late (p99) in the last second",
            millis(f64::from(client.lag_p99_us) / 1e3)
        ));
    }
    out + "\n"
}
