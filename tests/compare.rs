//! `compare` and `baseline`: their output on recordings, and their exit codes.

use std::{fs, io::Write, path::Path};

use crate::common::{ProgramOutput, record, run};
use serde_json::Value;

const STEADY: [&str; 3] = ["runtime.requests=16", "infer=short", "runtime.sim.scenario=steady"];

/// A simulated run on a GPU that is not throttled, moved to `name`.
fn recorded(dir: &Path, name: &str, overrides: &[&str]) {
    let all: Vec<&str> = STEADY.iter().chain(overrides).copied().collect();
    fs::rename(record(dir, &all), dir.join(name)).unwrap();
}

fn object(output: &ProgramOutput) -> Value {
    serde_json::from_str(&output.out).unwrap_or_else(|e| panic!("{e}: {}{}", output.out, output.err))
}

/// The verdict of a metric.
fn verdict(object: &Value, metric: &str) -> String {
    let rows = object["rows"].as_array().unwrap();
    rows.iter().find(|row| row["metric"] == metric).unwrap()["verdict"].as_str().unwrap().to_owned()
}

#[test]
fn a_faster_run_is_found_and_only_the_clocks_are_excluded() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    recorded(dir, "a", &[]);
    recorded(dir, "b", &["runtime.seed=4", "runtime.sim.itl_ms=3.6"]);
    let text = run(dir, &["compare", "a", "b"]);
    assert_eq!(text.code, 0, "{}", text.err);
    assert!(text.out.starts_with("FASTER: TPOT of B is 5."), "{}", text.out);
    for part in [
        "not because of the clocks",
        "TPOT mean",
        " lower in these two runs (95 % CI: ",
        "n = 16 and 16 requests",
        "→ the interval does not include the variation from run to run.",
        "Differences:",
        "runtime.sim.itl_ms: 3.8 → 3.6",
        "TPOT mean is tested at 5 %: expect 1 false positive in 20. The other ",
        " rows are corrected together (Holm), at 5 % for all of them.",
    ] {
        assert!(text.out.contains(part), "{part}: {}", text.out);
    }
    // Runs of one program differ from run to run too.
    assert!(!text.out.to_lowercase().contains("cause is the code"), "{}", text.out);
    let json = object(&run(dir, &["compare", "a", "b", "--json"]));
    assert_eq!((&json["schema"], &json["word"]), (&Value::from(1), &Value::from("FASTER")));
    assert_eq!(
        (verdict(&json, "decode_tok_s"), verdict(&json, "peak_memory")),
        ("better".into(), "same".into())
    );
    let markdown = run(dir, &["compare", "a", "b", "--md", "--metric", "tpot.p50,itl.p90"]);
    assert!(markdown.out.starts_with("**FASTER**: ") && !markdown.out.contains("TTFT"), "{}", markdown.out);
    let page = run(dir, &["compare", "a", "b", "--html"]);
    assert!(page.out.starts_with("<!doctype html>") && page.out.ends_with("</html>\n"), "{}", page.out);
    assert!(!page.out.contains("://"), "the page is self-contained: {}", page.out);
}

#[test]
fn the_clock_is_not_the_code() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    recorded(dir, "cool", &[]);
    recorded(dir, "throttled", &["runtime.seed=4", "runtime.sim.scenario=locked_clocks"]);
    for (a, b, word) in [("cool", "throttled", "lower"), ("throttled", "cool", "higher")] {
        let output = run(dir, &["compare", a, b]);
        assert_eq!(output.code, 3, "{}", output.out);
        assert!(output.out.contains(&format!("the clock was {word} (")), "{}", output.out);
        assert!(output.out.contains("not the code"), "{}", output.out);
        // The clock during the prefills is unknown.
        for line in output.out.lines().filter(|line| line.starts_with("TPOT")) {
            assert!(!line.contains("SLOWER") && !line.contains("FASTER"), "{line}");
        }
    }
}

#[test]
fn the_clock_of_a_short_prefill_is_not_that_of_the_decode() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    // Prefills of 3 ms contain hardly any sample.
    let long = ["runtime.requests=60", "infer.max_new_tokens=128"];
    recorded(dir, "cool", &long);
    recorded(dir, "capped", &[long[0], long[1], "runtime.sim.scenario=power_cap"]);
    for (a, b, code, verdict) in [("cool", "capped", 1, "worse"), ("capped", "cool", 0, "better")] {
        let args = ["compare", a, b, "--metric", "ttft.p50", "--gate", "ttft.p50<=+5%", "--json"];
        let output = run(dir, &args);
        assert_eq!(output.code, code, "{}{}", output.out, output.err);
        let json = object(&output);
        // The difference was measured; the clock that would explain it was not.
        let row = &json["rows"][0];
        assert_eq!((&row["verdict"], &row["cause"]), (&verdict.into(), &"unclear".into()), "{row}");
        assert!(
            json["sentence"].as_str().unwrap().contains("the cause is unknown: "),
            "{}",
            json["sentence"]
        );
        let change = row["ratio"]["estimate"].as_f64().unwrap();
        assert!((change - 1.0).abs() > 0.25, "the cap is visible: {change}");
    }
}

#[test]
fn gates_have_exit_codes() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    recorded(dir, "a", &[]);
    recorded(dir, "same", &["runtime.seed=4"]);
    recorded(dir, "slower", &["runtime.seed=5", "runtime.sim.itl_ms=4.2"]);
    let code = |b: &str, gates: &[&str]| {
        let gates = gates.iter().flat_map(|gate| ["--gate", gate]);
        run(dir, &["compare", "a", b].into_iter().chain(gates).collect::<Vec<_>>()).code
    };
    assert_eq!(code("same", &["tpot.p50<=+2%", "decode_tok_s>=-2%"]), 0);
    assert_eq!(code("slower", &["tpot.p50<=+2%"]), 1);
    assert_eq!(code("slower", &["tpot.p50<=+50%"]), 0);
    // Sixteen requests are too few for a p90, and a broken gate takes precedence.
    assert_eq!(code("same", &["tpot.p90<=+2%"]), 3);
    assert_eq!(code("slower", &["tpot.p90<=+2%", "tpot.p50<=+2%"]), 1);
    for (gate, word) in [("tpot<=2", "at character 7"), ("tpto<=2%", "no metric"), ("tpot", "no <= or >=")] {
        let output = run(dir, &["compare", "a", "same", "--gate", gate]);
        assert_eq!(output.code, 2, "{gate}");
        assert!(output.err.contains(word), "{gate}: {}", output.err);
    }
}

#[test]
fn baselines_are_saved_listed_and_compared_with() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    assert_eq!(run(dir, &["baseline", "save", "main"]).code, 2, "there is no run yet");
    let newest = record(dir, &STEADY);
    let unasked = run(dir, &["baseline", "save", "main"]);
    assert_eq!(unasked.code, 2, "{}", unasked.out);
    assert!(unasked.err.contains("is simulated; pass the one to save"), "{}", unasked.err);
    let saved = run(dir, &["baseline", "save", "main", "latest"]);
    assert_eq!(saved.code, 0, "{}", saved.err);
    assert!(saved.out.starts_with("saved runs/"), "{}", saved.out);
    assert!(saved.out.contains(" as baselines/main.json (16 requests)"), "{}", saved.out);
    assert!(fs::metadata(dir.join("baselines/main.json")).unwrap().len() < 100_000);
    let list = run(dir, &["baseline", "list"]);
    assert!(list.out.contains("main  smollm2_135m as bf16 on"), "{}", list.out);
    assert!(saved.err.contains("note: the run is simulated"), "{}", saved.err);
    assert!(list.out.trim_end().ends_with("16 requests, simulated"), "{}", list.out);
    let same = run(dir, &["compare", "main", newest.to_str().unwrap(), "--gate", "tpot<=+2%"]);
    assert_eq!(same.code, 0, "{}{}", same.out, same.err);
    assert!(same.out.starts_with("SAME: "), "{}", same.out);
    for bad in ["../x", "", ".hidden", "a/b"] {
        assert_eq!(run(dir, &["baseline", "save", bad]).code, 2, "{bad}");
    }
    fs::write(dir.join("baselines/odd.json"), "{\"schema\": 1}").unwrap();
    fs::write(dir.join("baselines/new.json"), "{\"schema\": 99}").unwrap();
    for (name, word) in [("odd", "is not a baseline"), ("new", "newer version")] {
        let output = run(dir, &["compare", name, "main"]);
        assert_eq!(output.code, 2, "{}", output.err);
        assert!(output.err.contains(word), "{}", output.err);
    }
    assert!(run(dir, &["baseline", "list"]).out.contains("odd   baselines/odd.json is not a baseline"));
    // A baseline that cannot be written leaves no file.
    fs::create_dir(dir.join("baselines/taken.json")).unwrap();
    let failed = run(dir, &["baseline", "save", "taken", "latest"]);
    assert_eq!(failed.code, 1, "{}", failed.err);
    assert!(failed.err.contains("baselines/taken.json"), "{}", failed.err);
    let left = fs::read_dir(dir.join("baselines")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut left: Vec<_> = left.collect();
    left.sort();
    assert_eq!(left, ["main.json", "new.json", "odd.json", "taken.json"]);
}

#[test]
fn a_run_that_cannot_be_trusted_is_saved_as_a_baseline_with_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    recorded(dir, "whole", &[]);
    // A line that is not an event counts as lost.
    let events = fs::read_to_string(dir.join("whole/events.ndjson")).unwrap();
    fs::create_dir(dir.join("holed")).unwrap();
    fs::write(dir.join("holed/events.ndjson"), events + "{\"t\":NaN}\n").unwrap();
    for (run_name, is_noted) in [("whole", false), ("holed", true)] {
        let saved = run(dir, &["baseline", "save", "main", run_name]);
        assert_eq!(saved.code, 0, "{}", saved.err);
        let expected = format!("saved {run_name} as baselines/main.json (16 requests)");
        assert!(saved.out.starts_with(&expected), "{}", saved.out);
        let note = "note: trust 0 of 5: 1 event was lost\n";
        assert_eq!(saved.err.contains(note), is_noted, "{run_name}: {}", saved.err);
    }
}

/// Makes a simulated recording look like a measured one.
fn as_measured(run: &Path) {
    for name in ["events.ndjson", "metrics.json"] {
        let text = fs::read_to_string(run.join(name)).unwrap();
        let text = text.replacen("\"simulated\":true", "\"simulated\":false", 1);
        fs::write(run.join(name), text.replacen("\"simulated\": true", "\"simulated\": false", 1)).unwrap();
    }
}

#[test]
fn the_newest_run_is_saved_unless_it_is_part_of_a_sweep() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    as_measured(&record(dir, &STEADY));
    let saved = run(dir, &["baseline", "save", "main"]);
    assert!(saved.out.starts_with("saved the newest run, runs/"), "{}{}", saved.out, saved.err);
    let mut args =
        vec!["run", "-m", "--quiet", "runtime=sim", "runtime.sim.speed=0", "runtime.batch_size=1,2"];
    args.extend(STEADY);
    args.push("hardware.cooldown_s=0");
    assert_eq!(run(dir, &args).code, 0);
    crate::common::run_dirs(dir).iter().take(2).for_each(|job| as_measured(job));
    let refused = run(dir, &["baseline", "save", "main"]);
    assert_eq!(refused.code, 2, "{}", refused.out);
    assert!(refused.err.contains("is a job of a sweep"), "{}", refused.err);
    assert!(refused.err.contains("; the newest other one is runs/"), "{}", refused.err);
}

#[test]
fn saved_runs_show_the_variation_from_run_to_run() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    // The runs differ by 2 % and more: a difference of 2 % between two of them is not significant.
    for (seed, itl_ms) in [(1, 3.8), (2, 3.9), (3, 3.75), (4, 3.85)] {
        let overrides = [format!("runtime.seed={seed}"), format!("runtime.sim.itl_ms={itl_ms}")];
        recorded(dir, &format!("run{seed}"), &overrides.each_ref().map(String::as_str));
        let events = dir.join(format!("run{seed}/events.ndjson"));
        // The workload is the same, by its overrides.
        let text = fs::read_to_string(&events).unwrap();
        fs::write(&events, text.replacen(&format!(",\"{}\"", overrides[1]), "", 1)).unwrap();
    }
    let alone = run(dir, &["compare", "run1", "run2"]);
    assert!(alone.out.starts_with("SLOWER: ") && alone.out.contains("in these two runs"), "{}", alone.out);
    for nth in 1..=4 {
        let saved = run(dir, &["baseline", "save", "main", &format!("run{nth}")]);
        assert_eq!(saved.code, 0, "{}", saved.err);
        assert_eq!(saved.out.contains("4 runs of this workload are saved"), nth == 4, "{}", saved.out);
    }
    let known = run(dir, &["compare", "run1", "run2"]);
    assert!(known.out.starts_with("UNDECIDED: ") || known.out.starts_with("SAME: "), "{}", known.out);
    let json = object(&run(dir, &["compare", "run1", "run2", "--json"]));
    assert_eq!(json["run_spread"]["runs"], 4, "{json}");
    assert!(run(dir, &["baseline", "list"]).out.contains(" from run to run in 4 saved runs"));
}

#[test]
fn a_file_that_cannot_be_read_is_a_mistake_of_the_caller() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("bad")).unwrap();
    fs::write(dir.path().join("bad/sweep.json"), "{").unwrap();
    let said = run(dir.path(), &["compare", "bad", "bad"]);
    assert_eq!(said.code, 2, "{}", said.err);
    assert!(said.err.contains("sweep.json cannot be read"), "{}", said.err);
}

#[test]
fn runs_have_short_names() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (first, second) = (record(dir, &STEADY), record(dir, &["runtime.seed=4"]));
    let json = object(&run(dir, &["compare", "latest~1", "latest", "--json"]));
    let name = |run: &Path| run.strip_prefix(dir).unwrap().display().to_string();
    assert_eq!((&json["a"]["name"], &json["b"]["name"]), (&name(&first).into(), &name(&second).into()));
    let part = first.file_name().unwrap().to_str().unwrap();
    let report = run(dir, &["report", "latest", "--json"]);
    assert!(report.code == 0 && report.out.contains(&name(&second)), "{}{}", report.out, report.err);
    let diagnosed = run(dir, &["diagnose", "latest"]);
    assert!(diagnosed.code == 0 && !diagnosed.out.is_empty(), "{}", diagnosed.err);
    // Simulated runs have no kernels: the error names the run, not the file.
    let kernels = run(dir, &["kernels", "latest", "--text"]);
    assert!(!kernels.err.contains("No such file"), "{}", kernels.err);
    // One recording under two names.
    let newest = name(&second);
    // Two parts of its path.
    let short = second.file_name().unwrap().to_str().unwrap();
    let long = format!("{}/{short}", second.parent().unwrap().file_name().unwrap().to_str().unwrap());
    for (a, b) in [
        ("latest", "latest"),
        ("latest", newest.as_str()),
        (newest.as_str(), "latest~0"),
        (short, long.as_str()),
    ] {
        let itself = run(dir, &["compare", a, b]);
        assert!(itself.err.contains("note: A and B are the same recording, "), "{a} {b}: {}", itself.err);
    }
    let others = run(dir, &["compare", "latest~1", "latest"]);
    assert!(!others.err.contains("the same recording"), "{}", others.err);
    // The second run may have the first one's name with a number.
    let whole = format!("{}/{part}", first.parent().unwrap().file_name().unwrap().to_str().unwrap());
    let ambiguous = run(dir, &["compare", "smollm2", "latest"]);
    assert_eq!(ambiguous.code, 2, "{}", ambiguous.out);
    assert!(ambiguous.err.contains("is a part of 2 paths"), "{}", ambiguous.err);
    assert!(run(dir, &["compare", "latest~2", "latest"]).err.contains("only 2 runs are below"), "{whole}");
}

#[test]
fn pairs_differ_by_their_seed_and_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let side = ["runtime=sim", "runtime.sim.speed=0", "runtime.requests=10", "infer=short"];
    let mut args = vec!["compare", "--repeat", "3", "--json", "--"];
    args.extend(side);
    args.extend(["runtime.seed=1", "vs"]);
    args.extend(side);
    args.push("runtime.seed=2");
    let output = run(dir, &args);
    assert!(
        output.err.contains("--repeat 3: an interval needs at least 5 pairs, so 5 are run"),
        "{}",
        output.err
    );
    assert!(output.err.contains("pair 4 of 5: ") && output.err.contains(" left"), "{}", output.err);
    let json = object(&output);
    assert_eq!(json["pairs"], 5, "{json}");
    let ratio =
        &json["rows"].as_array().unwrap().iter().find(|row| row["metric"] == "tpot.mean").unwrap()["ratio"];
    assert!(ratio["low"].as_f64() < ratio["high"].as_f64(), "pairs are no copies: {ratio}");
    let kept = fs::read_dir(dir.join("runs/compare")).unwrap().next().unwrap().unwrap().path();
    let seed = |name: &str| {
        let events = fs::read_to_string(kept.join(name).join("events.ndjson")).unwrap();
        let first: Value = serde_json::from_str(events.lines().next().unwrap()).unwrap();
        first["e"]["run_started"]["seed"].as_u64().unwrap()
    };
    assert_eq!(["a-01", "b-01", "a-05", "b-05"].map(seed), [1, 2, 4001, 4002]);
}

#[test]
fn both_sides_are_run_interleaved() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let common = [
        "runtime=sim",
        "runtime.sim.speed=0",
        "runtime.requests=10",
        "infer=short",
        "runtime.sim.scenario=steady",
    ];
    let mut args = vec!["compare", "--repeat", "6", "--gate", "tpot<=+2%", "--"];
    args.extend(common);
    args.push("runtime.sim.itl_ms=3.8");
    args.push("vs");
    args.extend(common);
    args.push("runtime.sim.itl_ms=4.1");
    let output = run(dir, &args);
    assert_eq!(output.code, 1, "{}{}", output.out, output.err);
    assert!(output.out.starts_with("SLOWER: TPOT of B is 7.9 % higher"), "{}", output.out);
    assert!(output.err.contains("pair 5 of 6: TPOT A "), "{}", output.err);
    assert!(output.err.contains("pair 6 of 6: TPOT A "), "{}", output.err);
    let kept = fs::read_dir(dir.join("runs/compare")).unwrap().next().unwrap().unwrap().path();
    for name in ["a-01/events.ndjson", "b-05/events.ndjson", "compare.json", "compare.md"] {
        assert!(kept.join(name).exists(), "{name}");
    }
    for (args, word) in [
        (&["compare", "--repeat", "5", "--", "runtime=sim"][..], "vs"),
        (
            &["compare", "--repeat", "5", "--", "runtime=sim", "vs", "runtime=sim"][..],
            "both sides are the same",
        ),
        (&["compare", "--repeat", "5", "--", "runtime=sim", "vs", "runtime=smi"][..], "smi"),
        (&["compare", "a"][..], "<B>"),
    ] {
        let output = run(dir, args);
        assert_eq!(output.code, 2, "{args:?}: {}", output.err);
        assert!(output.err.contains(word), "{args:?}: {}", output.err);
    }
}

#[test]
fn sweeps_are_compared_job_by_job() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut args =
        vec!["run", "-m", "--quiet", "runtime=sim", "runtime.sim.speed=0", "runtime.batch_size=1,2"];
    args.extend(STEADY);
    args.push("hardware.cooldown_s=0");
    for name in ["one", "two"] {
        let output = run(dir, &args);
        assert_eq!(output.code, 0, "{}", output.err);
        let made = fs::read_dir(dir.join("runs/baseline/multirun")).unwrap().next().unwrap().unwrap().path();
        fs::rename(made, dir.join(name)).unwrap();
    }
    let json = object(&run(dir, &["compare", "one", "two", "--json"]));
    let comparisons = json["comparisons"].as_array().unwrap();
    assert_eq!(comparisons.len(), 2, "{json}");
    assert!(comparisons.iter().all(|one| one["word"] == "SAME"), "{json}");
}

#[test]
fn what_is_not_a_run_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    recorded(dir, "a", &[]);
    let events = fs::read_to_string(dir.join("a/events.ndjson")).unwrap();
    let made = |name: &str, text: &str| {
        fs::create_dir(dir.join(name)).unwrap();
        fs::write(dir.join(name).join("events.ndjson"), text).unwrap();
    };
    fs::create_dir(dir.join("nothing")).unwrap();
    made("empty", "");
    made("garbage", "NaN\n\0\n");
    made("newer", &events.replacen("\"schema\":1", "\"schema\":7", 1));
    made("older", &events.replacen("\"schema\":1", "\"schema\":0", 1));
    for (b, word) in [
        ("nothing", "is not a run"),
        ("empty", "is empty"),
        ("garbage", "is not a recording of this program"),
        ("newer", "newer version (schema 7"),
        ("older", "schema 0"),
        ("absent", "absent: no run, snapshot, sweep or baseline"),
        ("a/snapshots/x.json", "has no snapshot \"x\""),
    ] {
        let output = run(dir, &["compare", "a", b]);
        assert_eq!((output.code, output.out.as_str()), (2, ""), "{b}: {}", output.err);
        assert!(output.err.contains(word), "{b}: {}", output.err);
    }
    // A run without an end, and one that ends in the middle of a line, are compared up to that point.
    let lines: Vec<&str> = events.lines().collect();
    let half = lines[..lines.len() / 2].join("\n") + "\n{\"t\":12,\"e\":{\"tok";
    made("growing", &half);
    let growing = run(dir, &["compare", "a", "growing"]);
    assert!(
        growing.out.contains("the run has no end: it is still being written, or was killed"),
        "{}",
        growing.out
    );
    // A line that is not an event counts as lost: such a run is not trusted, neither by `compare` nor in its reports.
    made("holed", &events);
    let mut file = fs::OpenOptions::new().append(true).open(dir.join("holed/events.ndjson")).unwrap();
    file.write_all(b"{\"t\":NaN}\n").unwrap();
    let holed = run(dir, &["compare", "a", "holed"]);
    assert_eq!(holed.code, 3, "{}", holed.out);
    assert!(holed.out.contains("B cannot be trusted: 1 event was lost"), "{}", holed.out);
    assert_eq!(run(dir, &["report", "holed"]).code, 0);
    let metrics: Value =
        serde_json::from_str(&fs::read_to_string(dir.join("holed/metrics.json")).unwrap()).unwrap();
    assert_eq!(
        (&metrics["trust"]["score"], &metrics["trust"]["doubts"][0]),
        (&0.into(), &"1 event was lost".into())
    );
    // A profiler changes the times.
    made("under_nsys", &events.replacen("\"seed\":", "\"perturbed\":\"nsys\",\"seed\":", 1));
    let under = run(dir, &["compare", "a", "under_nsys"]);
    assert!(under.out.contains("it ran under nsys"), "{}", under.out);
    // Requests of one token have a TTFT and no TPOT.
    recorded(dir, "short", &["infer.max_new_tokens=1"]);
    let short = run(dir, &["compare", "short", "short"]);
    assert_eq!(short.code, 3, "{}", short.out);
    assert!(short.out.contains("no request of A has more than one token"), "{}", short.out);
}

#[test]
fn an_intended_change_of_the_workload_comes_first_and_gates_ask_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    recorded(dir, "one", &[]);
    recorded(dir, "four", &["runtime.batch_size=4"]);
    let text = run(dir, &["compare", "one", "four"]);
    assert!(
        text.out.starts_with("FASTER: A and B differ in batch (1 → 4). decode tok/s of B is "),
        "{}",
        text.out
    );
    assert!(!text.out.contains("not because of the clocks"), "{}", text.out);
    let gated = run(dir, &["compare", "one", "four", "--gate", "tpot<=+50%"]);
    assert_eq!(gated.code, 3, "{}", gated.out);
    assert!(gated.out.contains("pass --meant 'batch'"), "{}", gated.out);
    for (change, what) in [
        ("model=qwen3_0_6b", "model"),
        ("model.dtype=f32", "dtype"),
        ("dataset.prompt_tokens=300", "prompt tokens"),
        ("infer.max_new_tokens=20", "output tokens"),
    ] {
        recorded(dir, what, &[change]);
        let gated = run(dir, &["compare", "one", what, "--gate", "tpot<=+500%"]);
        assert_eq!(gated.code, 3, "{what}: {}", gated.out);
        for words in [format!(": A and B differ in {what} ("), format!("pass --meant '{what}'")] {
            assert!(gated.out.contains(&words), "{words}: {}", gated.out);
        }
        assert!(!gated.out.contains("not because of the clocks"), "{what}: {}", gated.out);
    }
    // A GPU that an override chose.
    recorded(dir, "gpu", &["runtime.seed=4"]);
    let path = dir.join("gpu/events.ndjson");
    let events = fs::read_to_string(&path).unwrap();
    for (from, to) in [
        ("\"NVIDIA H200\"", "\"NVIDIA A100-SXM4-80GB\""),
        ("\"overrides\":[", "\"overrides\":[\"hardware.device_index=1\","),
    ] {
        assert!(events.contains(from), "{from}: {events}");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace(from, to)).unwrap();
    }
    let gate = ["compare", "one", "gpu", "--gate", "tpot<=+500%"];
    let gated = run(dir, &gate);
    assert_eq!(gated.code, 3, "{}", gated.out);
    for words in [": A and B differ in gpu (NVIDIA H200 → NVIDIA A100-SXM4-80GB). ", "pass --meant 'gpu'"] {
        assert!(gated.out.contains(words), "{words}: {}", gated.out);
    }
    assert!(!gated.out.contains("not because of the clocks"), "{}", gated.out);
    let meant = run(dir, &[&gate[..], &["--meant", "gpu"]].concat());
    assert_eq!(meant.code, 0, "{}", meant.out);
    let meant = run(dir, &["compare", "one", "four", "--gate", "decode_tok_s>=+50%", "--meant", "batch"]);
    assert_eq!(meant.code, 0, "{}", meant.out);
    let by_metric = run(dir, &["compare", "one", "four", "--metric", "ttft", "--gate", "tpot<=+50%"]);
    assert!(
        by_metric.out.contains("TTFT of B") || by_metric.out.contains("TTFT is the same"),
        "{}",
        by_metric.out
    );
}
