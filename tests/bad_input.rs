//! Invalid, truncated and corrupt runs, given to every command that reads runs. Expected: an error that names the file
//! and the remedy, or a result with a note; a documented exit code; never a panic, never 0 for a missing value.

use std::{fs, path::Path};

use crate::common::{ProgramOutput, program, record, run, said};
use serde_json::Value;

const DEMO: &str = include_str!("../assets/demo/events.ndjson");

/// The expected exit code of a command, and expected text on either stream.
type Expected = (i32, &'static str);

struct Case {
    name: &'static str,
    make: fn(&Path),
    report: Expected,
    diagnose: Expected,
    /// With a complete run.
    compare: Expected,
    baseline: Expected,
    /// Refused without a terminal.
    replay: Expected,
}

const PLAYED: Expected = (2, "not a terminal");

fn lines(n: usize) -> String {
    DEMO.lines().take(n).flat_map(|line| [line, "\n"]).collect()
}

fn keep(dir: &Path, events: impl AsRef<[u8]>) {
    fs::create_dir_all(dir).unwrap();
    fs::write(dir.join("events.ndjson"), events).unwrap();
}

/// Six header lines, one measured request, the end.
fn requests_of(tokens: u64) -> String {
    let started = DEMO.lines().filter(|line| !line.contains("\"snapshot\"")).take(4);
    let mut events: Vec<String> = started.map(str::to_owned).collect();
    events.push(r#"{"t":1000,"e":{"request_started":{"request":0,"warmup":false,"batch":1,"prompt_tokens":4,"output_tokens":1}}}"#.into());
    events.extend(
        (0..tokens).map(|i| format!(r#"{{"t":{},"e":{{"token":{{"r":0,"i":{i},"id":7}}}}}}"#, 2_000_000 + i)),
    );
    events.push(r#"{"t":3000000,"e":{"request_finished":{"request":0,"complete":true}}}"#.into());
    events.push(r#"{"t":4000000,"e":{"run_finished":{"outcome":"completed"}}}"#.into());
    events.join("\n") + "\n"
}

fn schema(n: u32) -> String {
    lines(40).replacen("\"schema\":1", &format!("\"schema\":{n}"), 1)
}

const CASES: [Case; 16] = [
    Case {
        name: "schema 0",
        make: |dir| keep(dir, schema(0)),
        report: (1, "record the run again"),
        diagnose: (1, "has schema 0"),
        compare: (2, "has schema 0"),
        baseline: (2, "has schema 0"),
        replay: (1, "has schema 0"),
    },
    Case {
        name: "schema 99",
        make: |dir| keep(dir, schema(99)),
        report: (1, "update llmprof-tui"),
        diagnose: (1, "schema 99"),
        compare: (2, "schema 99"),
        baseline: (2, "schema 99"),
        replay: (1, "schema 99"),
    },
    Case {
        name: "an empty directory",
        make: |dir| fs::create_dir(dir).unwrap(),
        report: (1, "a run is a directory with an events.ndjson"),
        diagnose: (1, "a run is a directory with"),
        compare: (2, "runs are below runs/"),
        baseline: (2, "a run is a directory with"),
        replay: (1, "a run is a directory with"),
    },
    Case {
        name: "no events",
        make: |dir| keep(dir, ""),
        report: (1, "is empty: the run ended before its first event was written; record it again"),
        diagnose: (1, "is empty"),
        compare: (2, "is empty"),
        baseline: (2, "is empty"),
        replay: (1, "is empty"),
    },
    Case {
        name: "only the first line",
        make: |dir| keep(dir, lines(1)),
        report: (0, "nothing was measured"),
        diagnose: (1, "has no GPU samples"),
        compare: (3, "A has no completed request"),
        baseline: (2, "nothing was measured"),
        replay: PLAYED,
    },
    Case {
        name: "half of the first line",
        make: |dir| keep(dir, &lines(1)[..200]),
        report: (1, "not a recording of this program"),
        diagnose: (1, "not a recording of this program"),
        compare: (2, "not a recording of this program"),
        baseline: (2, "not a recording of this program"),
        replay: (1, "not a recording of this program"),
    },
    Case {
        name: "a first line that lacks most fields",
        make: |dir| keep(dir, format!("{}\n{}", r#"{"t":0,"e":{"run_started":{"schema":1}}}"#, lines(90))),
        report: (1, "its first line cannot be read (missing field"),
        diagnose: (1, "its first line cannot be read"),
        compare: (2, "its first line cannot be read"),
        baseline: (2, "its first line cannot be read"),
        replay: (1, "its first line cannot be read"),
    },
    Case {
        name: "one token",
        make: |dir| keep(dir, requests_of(1)),
        report: (0, "report.md"),
        diagnose: (1, "has no GPU samples"),
        compare: (3, "UNDECIDED"),
        baseline: (0, "1 requests"),
        replay: PLAYED,
    },
    Case {
        name: "values that are not numbers",
        make: |dir| {
            let mut n = 0;
            let spoilt = DEMO.lines().take(1200).map(|line| {
                let bad = ["NaN", "-Infinity", "1e999", "\"x\""];
                n += usize::from(line.contains("\"power_w\":"));
                match line.split_once("\"power_w\":").filter(|_| n % 3 == 0) {
                    Some((before, after)) => {
                        let rest = after.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
                        format!("{before}\"power_w\":{}{rest}\n", bad[n / 3 % bad.len()])
                    }
                    None => format!("{line}\n"),
                }
            });
            keep(dir, spoilt.collect::<String>());
        },
        report: (0, "unreadable lines of the recording were skipped"),
        diagnose: (0, "unreadable lines skipped"),
        compare: (3, "UNDECIDED"),
        baseline: (0, "the recording has no end"),
        replay: PLAYED,
    },
    Case {
        name: "the largest time",
        make: |dir| {
            keep(
                dir,
                lines(1200) + "{\"t\":18446744073709551615,\"e\":{\"token\":{\"r\":1,\"i\":9,\"id\":7}}}\n",
            )
        },
        report: (0, "the recording has no end"),
        diagnose: (0, "without an end: the run is still being recorded, or was interrupted"),
        compare: (3, "UNDECIDED"),
        baseline: (0, "the recording has no end"),
        replay: PLAYED,
    },
    Case {
        name: "half a last line",
        make: |dir| keep(dir, lines(1200) + "{\"t\":99999999999,\"e\":{\"tok"),
        report: (0, "ends in the middle of a line"),
        diagnose: (0, "without an end: the run is still being recorded, or was interrupted"),
        compare: (3, "UNDECIDED"),
        baseline: (0, "the recording has no end"),
        replay: PLAYED,
    },
    Case {
        name: "still being written",
        make: |dir| keep(dir, lines(1200)),
        report: (0, "the run is still being recorded, or was interrupted"),
        diagnose: (0, "without an end: the run is still being recorded, or was interrupted"),
        compare: (3, "UNDECIDED"),
        baseline: (0, "the run is still being recorded, or was interrupted"),
        replay: PLAYED,
    },
    Case {
        name: "a directory of something else",
        make: |dir| {
            fs::create_dir(dir).unwrap();
            fs::write(dir.join("notes.txt"), "hello").unwrap();
        },
        report: (1, "a run is a directory with an events.ndjson"),
        diagnose: (1, "a run is a directory with"),
        compare: (2, "is not a run"),
        baseline: (2, "a run is a directory with"),
        replay: (1, "a run is a directory with"),
    },
    Case {
        name: "a file",
        make: |dir| fs::write(dir, "hello\n").unwrap(),
        report: (1, "a run is a directory with an events.ndjson"),
        diagnose: (1, "has no time column"),
        compare: (2, "a run is a directory with"),
        baseline: (2, "a run is a directory with"),
        replay: (1, "a run is a directory with"),
    },
    Case {
        name: "nothing",
        make: |_| {},
        report: (1, "a run is a directory with an events.ndjson"),
        diagnose: (1, "diagnose reads a run directory"),
        compare: (2, "no run, snapshot, sweep or baseline has this name"),
        baseline: (2, "a run is a directory with"),
        replay: (1, "a run is a directory with"),
    },
    Case {
        name: "garbage",
        make: |dir| {
            let mut word = 88_172_645_463_325_252u64;
            let noise = (0..20_000).flat_map(|_| {
                word ^= word << 13;
                word ^= word >> 7;
                word ^= word << 17;
                word.to_le_bytes()
            });
            keep(dir, noise.collect::<Vec<u8>>());
        },
        report: (1, "not a recording of this program"),
        diagnose: (1, "not a recording of this program"),
        compare: (2, "not a recording of this program"),
        baseline: (2, "not a recording of this program"),
        replay: (1, "not a recording of this program"),
    },
];

fn check(what: &str, name: &str, output: &ProgramOutput, (code, expected): Expected) {
    let all = format!("{what} of {name}: exit code {}\n{}\n{}", output.code, output.out, output.err);
    assert_eq!(output.code, code, "{all}");
    assert!(output.out.contains(expected) || output.err.contains(expected), "{expected:?} is not in\n{all}");
    assert!(!output.err.contains("panicked"), "{all}");
    // The message names what failed.
    assert!(output.code != 1 || output.err.contains(" x") || output.err.contains(" sweep"), "{all}");
}

#[test]
fn every_command_reports_the_error() {
    let dir = tempfile::tempdir().unwrap();
    keep(&dir.path().join("whole"), DEMO);
    for case in &CASES {
        let path = dir.path().join("x");
        (case.make)(&path);
        let ran = |args: &[&str]| run(dir.path(), args);
        check("report", case.name, &ran(&["report", "x", "--out", "out"]), case.report);
        check("diagnose", case.name, &ran(&["diagnose", "x"]), case.diagnose);
        check("compare", case.name, &ran(&["compare", "x", "whole"]), case.compare);
        check("compare", case.name, &ran(&["compare", "whole", "x"]), (case.compare.0, ""));
        check("baseline", case.name, &ran(&["baseline", "save", "b", "x"]), case.baseline);
        check("replay", case.name, &ran(&["replay", "x"]), case.replay);
        // A path is not an override.
        check("cost", case.name, &ran(&["cost", "x"]), (2, "x"));
        match path.is_dir() {
            true => fs::remove_dir_all(&path).unwrap(),
            false => drop(fs::remove_file(&path)),
        }
        let _ = fs::remove_dir_all(dir.path().join("out"));
        let _ = fs::remove_dir_all(dir.path().join("baselines"));
    }
}

#[test]
fn values_that_were_not_measured_are_null_and_never_0() {
    let dir = tempfile::tempdir().unwrap();
    let metrics_of = |events: String| -> Value {
        keep(&dir.path().join("x"), events);
        assert_eq!(run(dir.path(), &["report", "x"]).code, 0);
        let text = fs::read(dir.path().join("x/metrics.json")).unwrap();
        serde_json::from_slice(&text).unwrap()
    };
    let begun = metrics_of(lines(1));
    for name in ["prefill_tok_s", "decode_tok_s"] {
        assert_eq!(begun["metrics"][name], Value::Null, "{name}");
    }
    assert_eq!(begun["metrics"]["ttft_ms"]["mean"], Value::Null);
    let one = metrics_of(requests_of(1));
    assert!(one["metrics"]["ttft_ms"]["mean"].is_number());
    assert_eq!(one["metrics"]["ttft_ms"]["p50"], Value::Null, "one value has no median");
    assert_eq!(one["metrics"]["itl_ms"]["mean"], Value::Null);
    assert_eq!(one["metrics"]["decode_tok_s"], Value::Null);
    assert_eq!(one["energy"], Value::Null);
}

#[test]
fn a_sweep_is_reported_job_by_job() {
    let dir = tempfile::tempdir().unwrap();
    let swept = said(
        program(dir.path())
            .args(["run", "-m", "--quiet", "runtime=sim", "runtime.sim.speed=0", "runtime.requests=2"])
            .args(["hardware.cooldown_s=0", "hydra.sweep.dir=sweep", "runtime.batch_size=1,2"])
            .output()
            .unwrap(),
    );
    assert_eq!(swept.code, 0, "{}", swept.err);
    let sweep = dir.path().join("sweep");
    let jobs: Vec<_> = ["0", "1"].map(|job| sweep.join(job)).into_iter().collect();
    let kept = |path: &Path| fs::read(path).unwrap();
    let before: Vec<_> = jobs.iter().map(|job| kept(&job.join("report.html"))).collect();
    let csv = kept(&sweep.join("sweep.csv"));
    for path in jobs.iter().map(|job| job.join("report.html")).chain([sweep.join("sweep.csv")]) {
        fs::remove_file(path).unwrap();
    }
    let output = run(dir.path(), &["report", "sweep"]);
    assert_eq!(output.code, 0, "{}", output.err);
    assert!(
        output.err.contains("job 2") && output.out.contains("sweep/sweep.csv"),
        "{} {}",
        output.out,
        output.err
    );
    assert!(jobs.iter().map(|job| kept(&job.join("report.html"))).eq(before));
    assert!(kept(&sweep.join("sweep.csv")) == csv);

    // A job that cannot be read does not stop the others.
    fs::write(jobs[0].join("events.ndjson"), "hello\n").unwrap();
    let output = run(dir.path(), &["report", "sweep", "--out", "out", "--json"]);
    assert_eq!(output.code, 1);
    let object: Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!(
        (object["jobs"].as_array().unwrap().len(), object["errors"].as_array().unwrap().len()),
        (1, 1)
    );
    assert!(dir.path().join("out/1/report.md").is_file() && dir.path().join("out/sweep.csv").is_file());
    for (args, code) in [(["diagnose", "sweep"], 1), (["replay", "sweep"], 1)] {
        check(args[0], "a sweep", &run(dir.path(), &args), (code, "a run is a directory with"));
    }
    fs::write(sweep.join("sweep.json"), "{").unwrap();
    check("report", "a sweep", &run(dir.path(), &["report", "sweep"]), (1, "sweep.json is invalid"));
}

#[test]
fn a_complete_run_is_read_without_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let recorded = record(dir.path(), &["runtime.requests=2"]);
    let run_dir = recorded.to_str().unwrap();
    for args in [vec!["report", run_dir], vec!["diagnose", run_dir]] {
        let output = run(dir.path(), &args);
        assert_eq!((output.code, output.err.as_str()), (0, ""), "{args:?}");
    }
    // `baseline save` prints the warning that a comparison with the baseline would print.
    let output = run(dir.path(), &["baseline", "save", "b", run_dir]);
    assert_eq!(output.code, 0, "{}", output.err);
    assert!(
        output.err.starts_with("note: the run is simulated, not measured\nnote: trust "),
        "{}",
        output.err
    );
    assert!(!output.err.contains("no end"), "{}", output.err);
}
