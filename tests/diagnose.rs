//! Verdicts on a real capture, on every scripted scenario, and on nvidia-smi logs.

mod logs;

use std::{fs, path::Path};

use crate::common::{record, run};
use llmprof::event::{Event, readings::Reading};
use serde_json::Value;

const TRACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/h200_nvml_trace.csv");

fn diagnosed(dir: &Path, path: &str) -> Value {
    let output = run(dir, &["diagnose", path, "--json"]);
    assert_eq!((output.code, output.err.as_str()), (0, ""));
    serde_json::from_str(&output.out).unwrap()
}

/// The verdict on a simulated run of `scenario`.
fn verdict_on(scenario: &str, overrides: &[&str]) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let scenario = format!("runtime.sim.scenario={scenario}");
    let overrides: Vec<&str> = [&[scenario.as_str(), "runtime.requests=90"], overrides].concat();
    let recorded = record(dir.path(), &overrides);
    diagnosed(dir.path(), recorded.to_str().unwrap())
}

fn cause<'a>(of: &'a Value, reason: &str, phase: &str) -> &'a Value {
    let causes = of["causes"].as_array().unwrap();
    let found = causes.iter().find(|cause| cause["reason"] == reason && cause["phase"] == phase);
    found.unwrap_or_else(|| panic!("{reason} in {phase}: {causes:#?}"))
}

#[test]
fn a_real_capture_is_diagnosed() {
    let dir = tempfile::tempdir().unwrap();
    let found = diagnosed(dir.path(), TRACE);
    let verdict = found["verdict"].as_str().unwrap();
    assert!(
        verdict.starts_with("Prefill is power-capped: 100 % of the time, SM 1980 → 14")
            && verdict.contains("MHz, about 27 % slower; decode is not affected."),
        "{verdict}"
    );
    let cap = cause(&found, "power cap", "prefill");
    assert_eq!((cap["time_source"].as_str(), cap["fault"].as_bool()), (Some("counter"), Some(true)));
    let near = |key: &str, wanted: f64, by: f64| {
        let value = cap[key].as_f64().unwrap();
        assert!((value - wanted).abs() <= by, "{key}: {value}, not {wanted}");
    };
    near("time_share", 0.99, 0.01);
    near("clock_mhz", 1442.0, 10.0);
    near("clock_free_mhz", 1980.0, 1.0);
    near("cost_pct", 27.0, 1.0);
    // The growth of the counter, and the estimate from samples only.
    near("active_s", 40.0, 0.4);
    near("sampled_s", 40.0, 2.0);
    assert!(cap["basis"].as_str().unwrap().contains("compute-bound (tensor pipe 9"), "{cap}");
    assert!(!found["advice"].as_array().unwrap().is_empty());
    // 85 s of a GPU that drew 125 W, 690 W and 590 W.
    let decode =
        found["energy"]["phases"].as_array().unwrap().iter().find(|phase| phase["phase"] == "decode");
    assert!((decode.unwrap()["mean_w"].as_f64().unwrap() - 590.0).abs() < 15.0, "{decode:?}");
}

/// Recorded on an H200: the ledger's time under the power cap equals the growth of the GPU's counter.
#[test]
fn the_ledger_agrees_with_the_gpus_counter() {
    let dir = tempfile::tempdir().unwrap();
    for (name, verdict) in [
        ("h200_prefill", "Prefill is power-capped: 100 %"),
        ("h200_decode", "Not slowed down: the power cap"),
    ] {
        let recorded = format!("{}/assets/demo/{name}", env!("CARGO_MANIFEST_DIR"));
        let found = diagnosed(dir.path(), &recorded);
        assert!(found["verdict"].as_str().unwrap().starts_with(verdict), "{}", found["verdict"]);
        let counter: Vec<f64> = crate::common::events(Path::new(&recorded))
            .iter()
            .filter_map(|envelope| match &envelope.event {
                Event::GpuSample(sample) => sample.get(Reading::PowerCapNs),
                _ => None,
            })
            .collect();
        let grown_s = (counter[counter.len() - 1] - counter[0]) / 1e9;
        let causes =
            found["causes"].as_array().unwrap().iter().filter(|cause| cause["reason"] == "power cap");
        let ledger_s: f64 = causes.map(|cause| cause["active_s"].as_f64().unwrap()).sum();
        assert!((ledger_s / grown_s - 1.0).abs() < 0.05, "{name}: {ledger_s} s, the counter {grown_s} s");
    }
}

/// A limit without a loss does not reduce the trust in a run; one with a loss does.
#[test]
fn trust_agrees_with_the_verdict() {
    let dir = tempfile::tempdir().unwrap();
    for (name, throttled) in [("h200_prefill", true), ("h200_decode", false)] {
        let recorded = format!("{}/assets/demo/{name}", env!("CARGO_MANIFEST_DIR"));
        let output = run(dir.path(), &["report", &recorded, "--out", name]);
        assert_eq!(output.code, 0, "{}", output.err);
        let metrics = fs::read_to_string(dir.path().join(name).join("metrics.json")).unwrap();
        let metrics: Value = serde_json::from_str(&metrics).unwrap();
        let slowed = !metrics["diagnosis"]["verdict"].as_str().unwrap().starts_with("Not slowed down");
        let doubted = metrics["trust"]["doubts"].to_string().contains("throttled");
        assert_eq!((slowed, doubted), (throttled, throttled), "{name}: {metrics:#}");
        let compared = run(dir.path(), &["compare", &recorded, &recorded]);
        assert!(
            compared.out.contains("clock limited in") && !compared.out.contains("throttled"),
            "{}",
            compared.out
        );
    }
}

#[test]
fn every_scenario_has_its_verdict() {
    let cases: [(&str, &[&str], &str, &str); 8] = [
        ("steady", &[], "Not throttled (SM clock 1980 of 1980 MHz).", ""),
        (
            "power_cap",
            &[],
            "Prefill is power-capped: 100 % of the time, SM 1980 → 14",
            "decode is not affected. The 700 W limit is the GPU's maximum.",
        ),
        ("thermal", &["runtime.requests=700"], "ecode is thermally throttled:", "% slower (measured)"),
        ("power_brake", &[], "Prefill is throttled by power brake:", "decode is throttled by power brake:"),
        ("locked_clocks", &[], "Not throttled", "The SM clock is set to 1410 of 1980 MHz"),
        ("narrow_pcie", &[], "Not throttled", "The PCIe link runs at x4 instead of x16."),
        ("shared", &[], "Not throttled", "The GPU is shared with python3 (pid 4711, 9216 MiB)"),
        ("consumer", &[], "Throttling unknown: this GPU does not report clock event reasons (SM clock", ""),
    ];
    for (scenario, overrides, begins, contains) in cases {
        let found = verdict_on(scenario, overrides);
        let verdict = found["verdict"].as_str().unwrap();
        assert!(verdict.contains(begins) && verdict.contains(contains), "{scenario}: {verdict}");
        let calm = matches!(scenario, "steady" | "consumer");
        assert_eq!(found["advice"].as_array().unwrap().is_empty(), calm, "{scenario}: {}", found["advice"]);
    }
}

#[test]
fn the_cost_of_a_limit_is_measured_where_possible() {
    let found = verdict_on("power_brake", &["dataset.prompt_tokens=8000"]);
    let decode = cause(&found, "power brake", "decode");
    // The script makes a step 1.24 times as long from second 2 on.
    let share = decode["time_share"].as_f64().unwrap();
    let lost = decode["cost_pct"].as_f64().unwrap() / 100.0 / share;
    assert!((1.0 / (1.0 - lost) - 1.2425).abs() < 0.01, "{decode:#}");
    assert!(decode["basis"].as_str().unwrap().starts_with("measured"), "{decode:#}");
    // Prefills are short: their share of the counter follows the samples in them, not the number of samples.
    let prefill = cause(&found, "power brake", "prefill");
    assert!((prefill["time_share"].as_f64().unwrap() - share).abs() < 0.2, "{prefill:#}");
    assert!(prefill["basis"].as_str().unwrap().starts_with("estimated: compute-bound"), "{prefill:#}");
    // The brake is a hardware slowdown: one cause, one loss.
    assert!(!found["causes"].to_string().contains("hardware slowdown"), "{found:#}");
}

#[test]
fn a_gpu_that_vanishes_is_reported_and_the_run_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(
        dir.path(),
        &[
            "run",
            "--quiet",
            "runtime=sim",
            "runtime.sim.speed=0",
            "runtime.sim.scenario=vanished",
            "runtime.requests=200",
        ],
    );
    assert_eq!(output.code, 1, "{}", output.err);
    let recorded = crate::common::run_dirs(dir.path()).remove(0);
    let found = diagnosed(dir.path(), recorded.to_str().unwrap());
    assert_eq!(found["verdict"], "GPU 0 is lost: fell off the bus (simulated).");
    assert!(found["advice"][0].as_str().unwrap().contains("Xid"), "{found:#}");
    let report = fs::read_to_string(recorded.join("report.md")).unwrap();
    assert!(report.contains("3.000 s: GPU 0 is lost"), "{report}");
}

#[test]
fn the_csv_of_a_run_gives_the_same_diagnosis_as_its_events() {
    let dir = tempfile::tempdir().unwrap();
    let recorded = record(
        dir.path(),
        &["runtime.sim.scenario=power_cap", "runtime.requests=60", "dataset.prompt_tokens=8000"],
    );
    let events = diagnosed(dir.path(), recorded.to_str().unwrap());
    let csv = diagnosed(dir.path(), recorded.join("nvml.csv").to_str().unwrap());
    let (from_events, from_csv) =
        (cause(&events, "power cap", "prefill"), cause(&csv, "power cap", "prefill"));
    // The CSV has a phase only for intervals with a sample, so its times are coarser.
    for key in ["time_share", "clock_mhz", "clock_free_mhz", "cost_pct"] {
        let (a, b) = (from_events[key].as_f64().unwrap(), from_csv[key].as_f64().unwrap());
        assert!((a - b).abs() <= 0.06 * a, "{key}: {a} and {b}");
    }
    assert!(csv["verdict"].as_str().unwrap().contains("decode is not affected"), "{csv:#}");
}

#[test]
fn an_nvidia_smi_log_is_diagnosed() {
    let dir = tempfile::tempdir().unwrap();
    let mut text = String::from(
        "timestamp, index, name, utilization.gpu [%], utilization.memory [%], clocks.current.sm [MHz], power.draw [W], \
         temperature.gpu, clocks_event_reasons.active, power.limit [W], power.default_limit [W], power.max_limit [W], \
         clocks.max.sm [MHz], fan.speed [%]\n",
    );
    for i in 0..60 {
        let (mhz, bits) = if i < 20 { (1980, 0) } else { (1500, 4) };
        text += &format!(
            "2026/11/15 08:00:{i:02}.000, 0, NVIDIA H200, 99 %, 20 %, {mhz} MHz, 498.10 W, 58, 0x{bits:016x}, \
             500.00 W, 700.00 W, 700.00 W, 1980 MHz, [N/A]\n"
        );
    }
    let path = dir.path().join("gpu.csv");
    fs::write(&path, text).unwrap();
    let output = run(dir.path(), &["diagnose", "gpu.csv"]);
    assert_eq!(output.code, 0, "{}", output.err);
    for expected in [
        "The GPU is power-capped: 6",
        "SM 1980 → 1500 MHz",
        "The limit is 500 W; the default is 700 W.",
        "`sudo nvidia-smi -i 0 -pl 700`",
    ] {
        assert!(output.out.contains(expected), "{expected}: {}", output.out);
    }
}

/// Ten hours in rows of 10 s, one hour of them hot: the time of the limit, and its loss during that time.
#[test]
fn the_hot_hour_of_a_night_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let night = |header: &str, time: &dyn Fn(u32) -> String| {
        let mut text =
            format!("{header},utilization.gpu [%],clocks.current.sm [MHz],clocks_event_reasons.active\n");
        for i in 0..3600 {
            let (mhz, bits) = if (1440..1800).contains(&i) { (1386, 0x20) } else { (1980, 0) };
            text += &format!("{},99 %,{mhz} MHz,0x{bits:x}\n", time(10 * i));
        }
        fs::write(dir.path().join("night.csv"), text).unwrap();
        run(dir.path(), &["diagnose", "night.csv"]).out
    };
    let dated = night("timestamp", &|s| {
        let s = s + 22 * 3600;
        format!("2026/11/{} {:02}:{:02}:{:02}.000", 14 + s / 86_400, s / 3600 % 24, s / 60 % 60, s % 60)
    });
    for expected in [
        "The GPU is thermally throttled: 10 % of the time, SM 1980 → 1386 MHz, about 3.0 % slower.",
        "The limit was active only from 2026-11-15 02:00:00 to 02:59:50 (about 30 % slower).",
    ] {
        assert!(dated.contains(expected), "{expected}: {dated}");
    }
    let counted = night("t_s", &|s| s.to_string());
    let expected = "only from 4:00:00 to 4:59:50 after the start (about 30 % slower).";
    assert!(counted.contains(expected), "{counted}");
}

/// A log of one GPU with one row per second.
fn log_of(rows: impl IntoIterator<Item = (u32, u32, u32)>, extra: &str) -> String {
    let mut text = format!("t_s,utilization.gpu [%],clocks.sm [MHz],clocks_event_reasons.active{extra}\n");
    let more = extra.split(',').count() - 1;
    for (i, (used, mhz, bits)) in rows.into_iter().enumerate() {
        text += &format!("{i},{used} %,{mhz} MHz,{bits:#x}{}\n", ",0".repeat(more));
    }
    text
}

fn verdict_of(text: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("log.csv"), text).unwrap();
    diagnosed(dir.path(), "log.csv")["verdict"].as_str().unwrap().to_owned()
}

#[test]
fn a_verdict_is_not_misled() {
    let capped = || (0..60).map(|_| (99, 1440, 4));
    // A counter that does not increase although every sample has the limit.
    let dead = verdict_of(&log_of(capped(), ",viol_power_ns"));
    assert!(dead.starts_with("The GPU is power-capped: 100 % of the time"), "{dead}");
    // A light load at a low clock does not reveal the clock without a limit.
    let light = verdict_of(&log_of((0..60).map(|_| (20, 600, 1)).chain(capped()), ""));
    assert!(light.contains("power-capped") && !light.contains("600"), "{light}");
    // The loss of a cap is relative to a set clock.
    let locked = (0..60).map(|_| (99, 1410, 2)).chain((0..60).map(|_| (99, 1380, 6)));
    let locked = verdict_of(&log_of(locked, ""));
    assert!(locked.contains("SM 1410 → 1380 MHz, about 1.1 % slower"), "{locked}");
    // A limit that begins in the last sample is reported.
    let late = verdict_of(&log_of((0..900).map(|_| (99, 1980, 0)).chain([(99, 990, 0x48)]), ""));
    assert!(late.starts_with("Limited by the hardware thermal slowdown now"), "{late}");
}

#[test]
fn files_that_cannot_be_diagnosed_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("other.csv"), "a,b\n1,2\n").unwrap();
    fs::write(dir.path().join("binary.csv"), [0xff, 0xfe, 0, 1, 2]).unwrap();
    for (path, expected) in [
        ("nowhere.csv", "diagnose reads a run directory"),
        ("other.csv", "no time column"),
        ("binary.csv", "no time column"),
        (".", "events.ndjson"),
    ] {
        let output = run(dir.path(), &["diagnose", path]);
        assert_eq!(output.code, 1, "{path}");
        assert!(output.err.contains(expected), "{path}: {}", output.err);
    }
    let cpu = record(dir.path(), &["telemetry.probe=none", "runtime.requests=1"]);
    let output = run(dir.path(), &["diagnose", cpu.to_str().unwrap()]);
    assert!(output.code == 1 && output.err.contains("has no GPU samples"), "{}", output.err);
}

#[test]
fn watch_monitors_without_a_workload() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(
        dir.path(),
        &["watch", "--for", "1.2", "--json", "telemetry=sim", "telemetry.scenario=locked_clocks"],
    );
    assert_eq!(output.code, 0, "{}", output.err);
    let found: Value = serde_json::from_str(&output.out).unwrap();
    assert!(found["verdict"].as_str().unwrap().contains("The SM clock is set"), "{found:#}");
    assert_eq!(cause(&found, "application clocks", "load")["fault"], false);
    assert!(crate::common::run_dirs(dir.path()).is_empty(), "nothing is recorded without --record");
}

#[test]
fn a_run_may_last_until_steady_state() {
    let dir = tempfile::tempdir().unwrap();
    let recorded =
        record(dir.path(), &["runtime.sim.scenario=steady", "runtime.requests=2", "runtime.until=steady"]);
    let metrics: Value =
        serde_json::from_str(&fs::read_to_string(recorded.join("metrics.json")).unwrap()).unwrap();
    assert_eq!(metrics["heat"]["steady"], true);
    assert!(metrics["duration_s"].as_f64().unwrap() > 40.0, "{}", metrics["duration_s"]);
    assert!(metrics["metrics"]["requests"].as_u64().unwrap() > 50);
}
