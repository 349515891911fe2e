//! The operator profile of real runs: times that add up, memory that was counted, rows and traces that read back.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::common::{events, program, record, run_dirs, tiny_model};
use llmprof::{
    event::{Event, Phase},
    report::OPS_COLUMNS,
    state::{OperatorBasis, RunState},
};
use serde_json::Value;

fn measured(dir: &Path, more: &[&str]) -> PathBuf {
    tiny_model(dir, |_| ());
    let mut run = program(dir);
    run.args(["run", "--quiet", "model.config_json=tiny.json", "runtime.requests=3", "runtime.warmup=1"]);
    run.args(["infer.max_new_tokens=20", "dataset.prompt_tokens=8"]).args(more);
    let output = run.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    run_dirs(dir).pop().unwrap()
}

fn folded(run: &Path) -> RunState {
    let mut state = RunState::default();
    events(run).iter().for_each(|envelope| state.apply(envelope));
    state
}

fn rows(run: &Path) -> Vec<std::collections::BTreeMap<String, String>> {
    let mut reader = csv::Reader::from_path(run.join("ops.csv")).unwrap();
    let header: Vec<String> = reader.headers().unwrap().iter().map(str::to_owned).collect();
    assert_eq!(header, OPS_COLUMNS);
    let named = |row: csv::StringRecord| header.iter().cloned().zip(row.iter().map(str::to_owned)).collect();
    reader.records().map(|row| named(row.unwrap())).collect()
}

#[test]
fn operators_of_a_run_on_the_cpu_add_up() {
    let dir = tempfile::tempdir().unwrap();
    let run = measured(dir.path(), &[]);
    let state = folded(&run);
    // Not all decode steps as short as these need be timed; warm-up is left out.
    for (phase, timed) in [(Phase::Prefill, 3..=3), (Phase::Decode, 1..=3 * 19)] {
        let host = state.operators.phase(phase).unwrap();
        let steps = host.steps;
        assert!(timed.contains(&steps) && host.unattributed_steps == 0, "{steps} of {timed:?}");
        let inside: u64 = host.times.iter().map(|time| time.ns).sum();
        assert!(inside > 0 && inside <= host.host_ns, "{inside} of {}", host.host_ns);
        assert_eq!(inside + host.self_ns(), host.host_ns);
        assert!(host.times.iter().all(|time| time.min_ns <= time.max_ns && time.calls % steps == 0));
        // The program counts its heap: every operator allocates.
        let allocated = |bytes: Option<u64>| bytes.unwrap_or(0) > 0;
        assert!(host.times.iter().all(|time| allocated(time.heap.map(|heap| heap.allocated_bytes))));
        assert!(allocated(host.heap.map(|heap| heap.peak_bytes)));
        assert_eq!(state.operator_basis(phase), Some((OperatorBasis::WallTime, steps)));
        assert!(host.timeline.as_ref().is_some_and(|timeline| !timeline.spans.is_empty()));
    }
    assert!((2..=20).contains(&state.operators.warmup_steps), "{}", state.operators.warmup_steps);

    let rows = rows(&run);
    for phase in ["prefill", "decode"] {
        let of_phase: Vec<_> = rows.iter().filter(|row| row["phase"] == phase).collect();
        let number =
            |row: &std::collections::BTreeMap<String, String>, key: &str| row[key].parse::<f64>().unwrap();
        let (step, operators) = of_phase.split_first().unwrap();
        assert_eq!(step["operator"], "(step)");
        let inside: f64 = operators.iter().map(|row| number(row, "host_total_ms")).sum();
        let whole = number(step, "host_total_ms");
        assert!((inside + number(step, "host_self_ms") - whole).abs() < 1e-4, "{inside} of {whole}");
        assert!(operators.iter().all(|row| row["shapes"].contains('×') && row["device_total_ms"].is_empty()));
        assert!(operators.iter().any(|row| row["operator"] == "attention"));
    }
    let report = fs::read_to_string(run.join("operators.md")).unwrap();
    let timed = state.operators.phase(Phase::Decode).unwrap().steps;
    assert!(report.contains(&format!("## decode: wall time of {timed} steps")), "{report}");
    assert!(!report.contains("not measured"), "{report}");
}

#[test]
fn the_trace_of_a_run_has_its_requests_and_operators() {
    let dir = tempfile::tempdir().unwrap();
    let run = measured(dir.path(), &[]);
    let trace: Vec<Value> = serde_json::from_slice(&fs::read(run.join("trace.json")).unwrap()).unwrap();
    let count = |name: &str| trace.iter().filter(|event| event["name"] == name).count();
    assert_eq!((count("warm-up 0"), count("request 1"), count("request 3")), (1, 1, 1));
    assert_eq!(count("decode_step"), 3 * 19);
    assert_eq!(count("qkv"), 2 * count("lm_head"), "a tiny model has two layers");
    assert_eq!(trace.last().unwrap()["name"], "completed");
}

#[test]
fn disabled_profiles_are_absent() {
    let dir = tempfile::tempdir().unwrap();
    let run = measured(dir.path(), &["profiling.operators.enable=false", "output.trace=false"]);
    assert!(!run.join("trace.json").exists());
    let told = |event: &Event| matches!(event, Event::Operators(_) | Event::HostTimeline(_));
    assert!(events(&run).iter().all(|envelope| !told(&envelope.event)));
    let report = fs::read_to_string(run.join("operators.md")).unwrap();
    assert!(report.contains("`profiling.operators.enable=true` times them"), "{report}");
    assert!(rows(&run).iter().all(|row| row["host_total_ms"].is_empty()));
}

#[test]
fn a_simulated_run_has_kernels_where_they_belong() {
    let dir = tempfile::tempdir().unwrap();
    let run = record(
        dir.path(),
        &["runtime.requests=2", "profiling.cupti.enable=true", "model=qwen2_5_7b", "model.dtype=bf16"],
    );
    let trace: Vec<Value> = serde_json::from_slice(&fs::read(run.join("trace.json")).unwrap()).unwrap();
    let stamps = |name: &str| -> Vec<f64> {
        trace.iter().filter(|event| event["name"] == name).filter_map(|event| event["ts"].as_f64()).collect()
    };
    let kernels: Vec<&Value> = trace.iter().filter(|event| event["args"]["operator"] == "gate_up").collect();
    assert!(!kernels.is_empty());
    assert!(
        kernels.iter().all(
            |kernel| kernel["ts"].as_f64().unwrap() >= stamps("request 1")[0].min(stamps("warm-up 0")[0])
        )
    );
    let device: f64 = rows(&run).iter().filter_map(|row| row["device_pct"].parse::<f64>().ok()).sum();
    // Each phase's step, and its operators once more.
    assert!((device - 400.0).abs() < 1.0, "{device}");
}
