//! A run as numbers: `metrics.json`, and the output of `run --json`.

use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use super::{account::account_json, bill::bill_json, items::all_hints};
use crate::state::{
    MeanOf, Measured, Programs, RecordedSpan, RunState, ServerState, SpeculationTally, Utilisation,
    VisionTally,
};
use gpu_traces::show::{RowQuery, TableView};
use llmprof_analysis::{
    distribution::{Distribution, Summary},
    energy::Energy,
    late::LateChunks,
    metrics::MetricsSummary,
    throttle::GpuActivity,
};
use llmprof_event::{AllocatorSample, KernelReport, Phase, SCHEMA, Stamp};

/// Version of `metrics.json`.
const METRICS_SCHEMA: u32 = 2;
/// Version of the output of `run --json`.
const RUN_SCHEMA: u32 = 1;

/// The definition of a number, written next to the numbers.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Definition {
    #[serde(skip)]
    pub name: &'static str,
    pub unit: &'static str,
    pub formula: &'static str,
    /// The unit of one sample.
    pub n: &'static str,
}

impl Definition {
    /// One line of Markdown.
    pub(super) fn markdown(&self) -> String {
        let Definition { name, unit, formula, n } = self;
        format!("`{name}` [{unit}]: {formula}; n: {n}")
    }
}

const fn define(
    name: &'static str,
    unit: &'static str,
    formula: &'static str,
    n: &'static str,
) -> Definition {
    Definition { name, unit, formula, n }
}

pub const DEFINITIONS: &[Definition] = &[
    define("ttft_ms", "ms", "request start to the first token id on the host", "measured requests"),
    define(
        "tpot_ms",
        "ms",
        "(last token time - first token time) / (output tokens - 1)",
        "complete measured requests of two tokens or more",
    ),
    define(
        "itl_ms",
        "ms",
        "time between two consecutive tokens on the host; pauses of the workload are excluded",
        "measured tokens after the first of a request",
    ),
    define(
        "e2e_ms",
        "ms",
        "end-to-end latency: request start to the last token on the host; pauses of the workload are excluded",
        "complete measured requests",
    ),
    define(
        "device_prefill_ms",
        "ms",
        "duration of a prefill by the device's clock, if it has one",
        "measured requests",
    ),
    define(
        "device_step_ms",
        "ms",
        "duration of a decode step by the device's clock, if it has one",
        "measured tokens after the first of a request",
    ),
    define(
        "device_share",
        "1",
        "sum of device_step_ms / sum of ITL: the share of the decode time in which a step runs on the device; the device also \
         waits within a step that is not one CUDA graph",
        "as device_step_ms",
    ),
    define(
        "gpu_idle",
        "1",
        "share of the decode time in which nothing runs on the GPU; basis kernels: gaps between recorded kernels, copies and \
         memsets / time from the first to the last; basis steps: 1 - device_share, a lower bound",
        "decode steps",
    ),
    define(
        "prefill_tok_s",
        "tokens/s",
        "prompt tokens of all sequences / sum of TTFT; null for a server, whose TTFT includes the queue",
        "as ttft_ms",
    ),
    define("decode_tok_s", "tokens/s", "tokens after the first of all sequences / sum of ITL", "as itl_ms"),
    define(
        "output_tok_s",
        "tokens/s",
        "wall-clock output throughput: output tokens of all sequences / time from the start of the first measured request to \
         the last token; prefills and the time between requests are included, pauses of the workload are not",
        "output tokens of all sequences",
    ),
    define(
        "mfu",
        "1",
        "FLOPs of a prefill (from the model's shape) / mean TTFT / dense peak FLOP/s of the data type; null if the peak is \
         unknown",
        "as ttft_ms",
    ),
    define(
        "mbu",
        "1",
        "bytes of weights and cache that a decode step reads (from the model's shape) / mean ITL / peak memory bandwidth; \
         null if the peak is unknown",
        "as itl_ms",
    ),
    define(
        "j_per_output_token",
        "J",
        "energy of all requests (prefill and decode) / their output tokens; warm-up is included, loading and idle time \
         are not; energy_j_per_token of run --json",
        "output tokens of all sequences",
    ),
    define(
        "j_per_token",
        "J",
        "energy of a phase / tokens of the phase: prompt tokens for prefill, generated tokens after the first for decode; \
         warm-up is included",
        "tokens of the phase",
    ),
    define(
        "cost_pct",
        "%",
        "slowdown of a phase by a limit: measured if the phase also ran without the limit, otherwise estimated; the field \
         basis says which; the middle of cost_range_pct if it is a range",
        "samples of the GPU",
    ),
    define(
        "host_ns",
        "ns",
        "time of operators or steps on the engine's thread: the work itself on the CPU, launches on a GPU",
        "calls in measured requests",
    ),
    define(
        "allocated_bytes",
        "B",
        "bytes the engine's thread requested from the heap within an operator or step, freed or not; null if the heap is \
         not counted",
        "calls in measured requests",
    ),
    define(
        "peak_bytes",
        "B",
        "operator or step: the maximum that one call held beyond what was held at its start; allocator: the maximum it \
         held",
        "calls in measured requests; the run",
    ),
    define(
        "fragmentation",
        "1",
        "1 - live_bytes / reserved_bytes of an allocator; null if it does not report reserved bytes",
        "the last sample",
    ),
    define(
        "trust",
        "points of 5",
        "5 minus the number of issues; 0 if an issue blocks a comparison",
        "one per run",
    ),
    define(
        "percentiles",
        "as their metric",
        "linear interpolation between the two nearest ranks, at rank p / 100 * (n - 1) counted from 0 (the default of \
         numpy.percentile); exact up to 1,024 samples, to 0.1 % beyond; null if there are too few samples: p50 needs 2, p90 \
         10, p99 100",
        "as their metric",
    ),
    define(
        "kernel_recording",
        "as their metric",
        "measurements while single kernels were recorded (key K, profiling.cupti.enable), which makes steps longer. \
         Metrics leave them out unless there are no others; a request counts as recorded if a part of it is. cost_pct \
         compares the median step of each span with those of up to 64 steps before and after it",
        "decode steps in the spans",
    ),
];

/// The outcome as one word; a recording without an end was interrupted.
pub(super) fn outcome(state: &RunState) -> String {
    state.finished.as_ref().map_or_else(|| "interrupted".to_owned(), |f| f.outcome.to_string())
}

/// `metrics.json`: a pure function of the events.
pub fn metrics_json(state: &RunState) -> Value {
    let run = state.run.as_ref();
    let definitions: serde_json::Map<String, Value> =
        DEFINITIONS.iter().map(|definition| (definition.name.to_owned(), json!(definition))).collect();
    json!({
        "schema": METRICS_SCHEMA,
        "event_schema": SCHEMA,
        "outcome": outcome(state),
        "cause": state.finished.as_ref().and_then(|f| f.cause.clone()),
        "run": run,
        "warmup_requests_excluded": state.warmup_done,
        "prepare_ms": state.prepare_ms,
        "cold_start_s": state.startup.seconds(),
        "cold_start_stages": state.startup.stages().map(|(stage, s)| json!({"stage": stage, "seconds": s})).collect::<Vec<_>>(),
        "duration_s": state.now.secs(),
        "metrics": state.summary(),
        "account": account_json(state),
        "bill": bill_json(state),
        "kernel_recording": recording_json(state),
        "snapshots": state.snapshots,
        "diagnosis": state.diagnosis(),
        "heat": state.profiled_gpu().and_then(|gpu| gpu.heat()),
        "energy": energy_of(state),
        "efficiency": efficiency_json(state),
        "operators": {
            "prefill": operators_json(state, Phase::Prefill),
            "decode": operators_json(state, Phase::Decode),
        },
        "allocators": state.allocators.all().map(allocator_json).collect::<Vec<_>>(),
        "trust": state.trust(),
        "definitions": definitions,
    })
}

/// Another program: what it is, how its steps are known, and what limits them.
fn program_json(state: &RunState, programs: &Programs) -> Value {
    let processes = programs.all().iter().map(|known| &known.process).collect::<Vec<_>>();
    let recorded =
        |phase| state.kernels.live(phase).map(|live| &live.total).filter(|window| window.steps > 0);
    let kernels = |phase| {
        let window = recorded(phase)?;
        Some(
            json!({"steps": window.steps, "launches": window.launches, "busy_ns": window.busy_ns, "span_ns": window.span_ns,
                    "between_ns": window.between_ns, "dropped": window.dropped,
                    "unmeasured": window.unmeasured, "prompt_tokens": window.prompt_tokens, "remarks": state.kernel_hints(phase)}),
        )
    };
    json!({
        "command": state.run.as_ref().and_then(|run| run.command.as_deref()),
        "processes": processes,
        "steps": programs.finding,
        "prefill": kernels(Phase::Prefill),
        "mixed": kernels(Phase::Mixed),
        "decode": kernels(Phase::Decode),
        "without_steps": state.kernels.without_steps().map(|live| {
            let window = &live.total;
            json!({"launches": window.launches, "busy_ns": window.busy_ns, "span_ns": window.span_ns, "dropped": window.dropped,
                    "unmeasured": window.unmeasured})
        }),
        "summary": state.verdict(),
    })
}

/// The output of `run --json`. Unknown values are null, never zero.
pub fn run_json(state: &RunState, run_dir: Option<&Path>) -> Value {
    let run = state.run.as_ref();
    let metrics = state.summary();
    let diagnosis = state.workload_diagnosis();
    let energy = energy_of(state);
    let phase_energy =
        |phase: GpuActivity| energy.as_ref().and_then(|energy| energy.phase(phase)?.j_per_token);
    let mut object = json!({
        "schema": RUN_SCHEMA,
        "run_dir": run_dir,
        "outcome": outcome(state),
        "cause": state.finished.as_ref().and_then(|f| f.cause.clone()),
        "model": run.map(|r| &r.model),
        "dtype": run.map(|r| &r.dtype),
        "engine": run.map(|r| &r.kind),
        "device": state.device(),
        "simulated": run.map(|r| r.simulated),
        "perturbed": run.and_then(|r| r.perturbed.as_deref()),
        "program": state.followed().map(|programs| program_json(state, programs)),
        "ranks": super::ranks::ranks_json(state),
        "server": state.load_tested().map(|server| server_json(state, server)),
        "requests": metrics.requests,
        "ttft_ms": latency(metrics.ttft_ms),
        "tpot_ms": latency(metrics.tpot_ms),
        "itl_ms": latency(metrics.itl_ms),
        "e2e_ms": metrics.e2e_ms.map(latency),
        "device_prefill_ms": metrics.device_prefill_ms.map(latency),
        "device_step_ms": metrics.device_step_ms.map(latency),
        "device_share": metrics.device_share,
        "prefill_tok_s": metrics.prefill_tok_s,
        "decode_tok_s": metrics.decode_tok_s,
        "output_tok_s": metrics.output_tok_s,
        "kernel_recording": recording_json(state),
        "energy_j_per_token": energy.as_ref().and_then(|energy| Some(energy.requests?.j_per_output_token)),
        "energy_prefill_j_per_token": phase_energy(GpuActivity::Prefill),
        "energy_decode_j_per_token": phase_energy(GpuActivity::Decode),
        "mfu": state.mfu().map(|used| used.share),
        "mbu": state.mbu().map(|used| used.share),
        "verdict": diagnosis.as_ref().map(|diagnosis| &diagnosis.verdict),
        "causes": diagnosis.as_ref().map(|diagnosis| &diagnosis.causes),
        "advice": diagnosis.as_ref().map(|diagnosis| &diagnosis.advice),
        "gpu_idle": state.gpu_idle().map(|idle| idle.share),
        "limit": state.limit(),
        "experts": state.experts,
        "speculation": state.speculation.map(speculation_json),
        "vision": state.vision.as_ref().map(|tally| vision_json(tally, metrics)),
        "trust": state.trust(),
        "kernel_reports": state.kernels.reports.iter().map(|report| kernel_report(report)).collect::<Vec<_>>(),
    });
    object["account"] = account_json(state);
    object["bill"] = bill_json(state);
    object
}

/// The images of measured requests.
fn vision_json(tally: &VisionTally, metrics: MetricsSummary) -> Value {
    json!({
        "images": tally.images,
        "tokens": tally.tokens,
        "tokens_per_image": tally.tokens_per_image(),
        "patches_per_image": tally.patches_per_image(),
        "ms": metrics.vision_ms.map(latency),
        "device_ms": metrics.device_vision_ms.map(latency),
    })
}

/// The yield of speculative decoding.
fn speculation_json(tally: SpeculationTally) -> Value {
    json!({
        "steps": tally.steps,
        "proposed": tally.proposed,
        "accepted": tally.accepted,
        "tokens": tally.tokens,
        "tokens_per_step": tally.tokens_per_step(),
        "acceptance": tally.acceptance(),
    })
}

fn latency(s: Summary) -> Value {
    json!({"n": s.n, "mean": s.mean, "p50": s.p50, "p90": s.p90, "p99": s.p99})
}

/// A load-tested server: its requests, by the client's clock and by its own.
fn server_json(state: &RunState, server: &ServerState) -> Value {
    let latency = |d: &Distribution| latency(d.summary());
    let seconds = state.total.wall_ns as f64 / 1e9;
    let rate = |n: u64| (seconds > 0.0).then(|| n as f64 / seconds);
    let failures = server.failures.iter().map(|(failure, n)| (failure.to_string(), json!(n)));
    let parts = server.ttft_parts().into_iter().map(|times| {
        let by = |of: &str| json!({"mean": times.mean_ms, "by": of});
        let value = match times.of {
            MeanOf::Requests(distribution) => latency(distribution),
            MeanOf::SomeRequests => by("some requests"),
            MeanOf::ServerRequests => by("server"),
            MeanOf::Rest => by("rest"),
        };
        (times.part.name().to_owned(), value)
    });
    json!({
        "url": server.found.as_ref().map(|found| &found.url),
        "kind": server.found.as_ref().map(|found| &found.kind),
        "model": server.found.as_ref().map(|found| &found.model),
        "metrics_url": server.found.as_ref().map(|found| &found.metrics),
        "requests": server.ended - server.failed,
        "failed": server.failed,
        "failures": failures.collect::<serde_json::Map<_, _>>(),
        "reconnected": server.reconnected,
        "requests_per_s": rate(server.ended - server.failed),
        "goodput_per_s": server.slo().and_then(|_| rate(server.good)),
        "good": server.slo().map(|_| server.good),
        "good_share": server.good_share(),
        "slo": server.slo(),
        "prompt_tokens": server.prompt_tokens,
        "output_tokens": server.output_tokens,
        "cached_tokens": server.cached_tokens,
        "tokens_per_chunk": server.tokens_per_chunk(),
        "tokens_counted_by_tokenizer": server.tokenized > 0,
        "gaps_are_itl": server.gaps_are_itl(),
        "ttft_from_planned_ms": latency(&server.ttft_from_planned),
        "ttft_parts_ms": parts.collect::<serde_json::Map<_, _>>(),
        "late_chunks": late_json(&server.late),
        "batch": state.server_batch(),
        "preemptions": server.latest.as_ref().map(|_| server.preemptions),
        "last_sample": server.latest,
        "client": server.client,
        "why": state.server_remarks().iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

/// The time lost to late chunks, by cause; null before the median gap is known.
fn late_json(late: &LateChunks) -> Value {
    let causes = late.by_cause().into_iter().map(|(cause, lost)| {
        (cause.key().to_owned(), json!({"chunks": lost.chunks, "lost_ms": lost.ns as f64 / 1e6}))
    });
    let causes = causes.collect::<serde_json::Map<_, _>>();
    json!(late.share().map(|share| json!({"share": share, "usual_ms": late.usual_ms(), "causes": causes})))
}

/// The spans in which kernels were recorded, their overhead, and the values without them; null without any.
fn recording_json(state: &RunState) -> Value {
    let recording = &state.kernels.recording;
    if !recording.is_used() {
        return Value::Null;
    }
    let span = |span: RecordedSpan| json!({"from_s": span.from.secs(), "to_s": span.to.map(Stamp::secs)});
    json!({
        "spans": recording.spans().map(span).collect::<Vec<_>>(),
        "decode_time_share": state.total.recorded_share(),
        "cost": recording.cost(),
        "left_out_of_metrics": !state.total.is_recorded(),
        "metrics": (!state.total.with.is_empty()).then(|| state.summary_of(&state.total.with)),
    })
}

/// The report of a profiler, in the form of `kernels --json`.
fn kernel_report(report: &KernelReport) -> Value {
    let shown =
        report.tables.iter().map(|table| TableView::new(table, &RowQuery::default()).json(&report.file));
    json!({
        "tool": report.tool,
        "phase": report.phase,
        "file": report.file,
        "tables": shown.collect::<Vec<_>>(),
    })
}

/// Utilisation of the device, with the points of the roofline.
fn efficiency_json(state: &RunState) -> Value {
    let roofline = state.roofline();
    let (peaks, no_peaks) = match &roofline.peaks {
        Ok(peaks) => (Some(peaks), None),
        Err(why) => (None, Some(why)),
    };
    let used = |used: Option<Utilisation>| {
        used.map(|used| json!({"share": used.share, "achieved_per_s": used.achieved}))
    };
    json!({
        "mfu": used(state.mfu()),
        "mbu": used(state.mbu()),
        "gpu_idle": state.gpu_idle(),
        "peaks": peaks,
        "no_peaks": no_peaks,
        "sm_clock_mhz": roofline.clock_mhz,
        "points": roofline.points,
        "hints": all_hints(state),
    })
}

/// Operator times of a phase on the host; null if they were not timed.
fn operators_json(state: &RunState, phase: Phase) -> Value {
    let Some(host) = state.operators.phase(phase).filter(|host| host.steps > 0) else { return Value::Null };
    json!({
        "steps": host.steps,
        "host_ns": host.host_ns,
        "untold_steps": host.unattributed_steps,
        "untold_ns": host.unattributed_ns,
        "self_ns": Some(host.self_ns()).filter(|_| host.attributed_steps() > 0),
        "heap": host.heap,
        "operators": host.times,
    })
}

fn allocator_json(sample: &AllocatorSample) -> Value {
    json!({
        "allocator": sample.allocator.name(),
        "live_bytes": sample.live_bytes,
        "peak_bytes": sample.peak_bytes,
        "reserved_bytes": sample.reserved_bytes,
        "fragmentation": sample.fragmentation(),
    })
}

pub(super) fn energy_of(state: &RunState) -> Option<Energy> {
    state.energy(state.profiled_gpu()?)
}
