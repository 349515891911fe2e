//! Several GPUs of one program: scripted ranks (`tests/standins/ranks.c`), databases of nsys, traces of PyTorch, logs of NCCL.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

use crate::common::{compiled_standin, program};
use proptest::prelude::*;
use serde_json::{Value, json};

/// The scripted program, compiled once.
fn standin() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compiled_standin("ranks.c"))
}

fn llmprof(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = program(dir);
    command.env("HOME", dir).env("XDG_RUNTIME_DIR", dir).env_remove("XDG_DATA_HOME").args(arguments);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{}", text(&output.stdout), text(&output.stderr)))
}

/// Runs the scripted ranks under `exec` and returns the result, whose `ranks` are tested.
fn ranks(dir: &Path, options: &[&str], arguments: &[&str], code: i32) -> Value {
    let mut command = llmprof(dir, &["exec", "--json", "telemetry=none", "hydra.run.dir=run"]);
    command.args(options).arg("--").arg(standin()).args(arguments);
    let done = command.output().unwrap();
    assert_eq!(done.status.code(), Some(code), "{}", text(&done.stderr));
    json_of(&done)
}

fn lanes(result: &Value) -> Vec<Value> {
    result["ranks"]["lanes"].as_array().cloned().unwrap_or_default()
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} in {value}"))
}

#[test]
fn each_rank_is_a_lane_and_the_late_one_is_named() {
    let dir = tempfile::tempdir().unwrap();
    // Rank 3 computes 150 µs longer than 100 in each of 16 layers. With pauses, even a busy machine loses no records.
    let result = ranks(dir.path(), &["profiling.cupti.duty=1.0"], &["80", "0", "4", "3", "150", "p"], 0);
    let lanes = lanes(&result);
    let names: Vec<Option<u64>> = lanes.iter().map(|lane| lane["rank"].as_u64()).collect();
    assert_eq!(names, [Some(0), Some(1), Some(2), Some(3)], "{result}");
    assert_eq!(lanes[2]["gpu"], 2, "by CUDA_VISIBLE_DEVICES");
    let [row] = result["ranks"]["collectives"].as_array().unwrap().as_slice() else { panic!("{result}") };
    // Known from the payload of NCCL's ranges; 20 µs after the last start.
    assert_eq!(
        (&row["kind"], &row["bytes"], &row["ranks"]),
        (&json!("all_reduce"), &json!(1 << 20), &json!(4)),
        "{row}"
    );
    assert!((number(row, "median_us") - 20.0).abs() < 0.5, "{row}");
    let busbw = 1.5 * (1 << 20) as f64 / 20e-6;
    assert!((number(row, "busbw_bytes_s") / busbw - 1.0).abs() < 0.03, "{row}");
    for (rank, lane) in lanes.iter().enumerate() {
        // The other ranks wait 150 µs in each collective.
        let waited = number(lane, "wait_ns") / number(lane, "matched");
        let wanted = if rank == 3 { 0.0 } else { 150_000.0 };
        assert!((waited - wanted).abs() < 300.0, "rank {rank} waits {waited} ns in each: {lane}");
        let parts = ["compute_ns", "nccl_ns", "copy_ns", "idle_ns"].map(|key| number(lane, key));
        assert_eq!(parts.iter().sum::<f64>(), number(lane, "span_ns"));
        // Every layer and the rest of a step, with its pause: 10 × (16 × 272 µs + 0.3 ms).
        assert!((number(lane, "step_ms") - 46.52).abs() < 0.05, "{lane}");
    }
    let late = &result["ranks"]["straggler"];
    assert_eq!((&late["rank"], &late["gpu"]), (&json!(3), &json!(3)), "{result}");
    // 16 × 150 µs of 46.52 ms, but no pause after the last step; a smaller share if a busy machine paused between the
    // steps.
    let of_all_time = 150_000.0 * number(&lanes[0], "matched") / number(&lanes[0], "span_ns");
    let behind = number(late, "behind");
    assert!(behind > 0.98 * of_all_time && behind < 1.02 * 0.0534, "{of_all_time}: {late}");
    assert!(late["reason"].as_str().unwrap().contains("clocks are not known"), "{late}");
    // The recording has the same result.
    let report = fs::read_to_string(dir.path().join("run/report.md")).unwrap();
    assert!(report.contains("## Ranks") && report.contains("all-reduce"), "{report}");
    let again = llmprof(dir.path(), &["report", "run"]).output().unwrap();
    assert_eq!(again.status.code(), Some(0), "{}", text(&again.stderr));
    assert_eq!(fs::read_to_string(dir.path().join("run/report.md")).unwrap(), report);
}

#[test]
fn ranks_are_recorded_at_the_same_time_in_bursts() {
    let dir = tempfile::tempdir().unwrap();
    let result = ranks(dir.path(), &["profiling.cupti.duty=0.3"], &["1600", "0", "2", "1", "20", "h"], 0);
    let lanes = lanes(&result);
    assert_eq!(lanes.len(), 2, "{result}");
    assert!(number(&lanes[0], "matched") >= 200.0, "{result}");
    let late = &result["ranks"]["straggler"];
    assert_eq!(late["rank"], 1, "{result}");
    assert!(late["reason"].as_str().unwrap().starts_with("slow host"), "{late}");
}

#[test]
fn ranks_that_die_join_late_or_do_nothing() {
    let all = ["profiling.cupti.duty=1.0"];
    let dir = tempfile::tempdir().unwrap();
    let dies = ranks(dir.path(), &all, &["70", "0", "3", "1", "10", "dp"], 0);
    let seen = lanes(&dies);
    assert_eq!(seen.len(), 3, "{dies}");
    // It dies after half of the steps, however long they take.
    let shares = |seen: &[Value], rank: usize| number(&seen[rank], "matched") / number(&seen[0], "matched");
    assert!(shares(&seen, 1) < 0.8, "the others continue: {seen:?}");
    assert!(number(&seen[1], "span_ns") < number(&seen[0], "span_ns"), "{dies}");

    let dir = tempfile::tempdir().unwrap();
    let joins = ranks(dir.path(), &all, &["150", "0", "3", "1", "10", "lp"], 0);
    let seen = lanes(&joins);
    assert_eq!(seen.len(), 3, "{joins}");
    assert!(shares(&seen, 2) < 0.8, "{seen:?}");
    assert!(number(&seen[2], "span_ns") < number(&seen[0], "span_ns"), "{joins}");

    let dir = tempfile::tempdir().unwrap();
    let silent = ranks(dir.path(), &all, &["70", "0", "3", "1", "10", "sp"], 0);
    assert_eq!((lanes(&silent).len(), &silent["ranks"]["silent_ranks"]), (2, &json!([2])), "{silent}");
}

#[test]
fn one_process_may_drive_several_gpus_and_one_rank_has_nobody_to_wait_for() {
    let all = ["profiling.cupti.duty=1.0"];
    let dir = tempfile::tempdir().unwrap();
    let several = ranks(dir.path(), &all, &["600", "0", "2", "1", "12", "g"], 0);
    let seen = lanes(&several);
    assert_eq!(
        seen.iter().map(|lane| lane["device"].as_u64().unwrap()).collect::<Vec<_>>(),
        [0, 1],
        "{several}"
    );
    assert!(number(&seen[0], "wait_ns") > 0.0 && number(&seen[1], "wait_ns") == 0.0, "{several}");

    let dir = tempfile::tempdir().unwrap();
    let alone = ranks(dir.path(), &all, &["600", "0", "1", "0", "0"], 0);
    let seen = lanes(&alone);
    assert_eq!(
        (seen.len(), &seen[0]["wait_ns"], &seen[0]["matched"]),
        (1, &Value::Null, &json!(0)),
        "{alone}"
    );
    assert_eq!(alone["ranks"]["straggler"], Value::Null);
    assert_eq!(alone["ranks"]["collectives"][0]["busbw_bytes_s"], Value::Null, "not 0");
}

#[test]
fn sizes_that_vary_are_paired_by_order_or_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let result = ranks(dir.path(), &["profiling.cupti.duty=1.0"], &["700", "0", "2", "1", "10", "v"], 0);
    let rows = result["ranks"]["collectives"].as_array().unwrap();
    for row in rows {
        assert!([json!(8192), json!(1 << 20), Value::Null].contains(&row["bytes"]), "{row}");
    }
}

/// A database in nsys's export format: GPUs of one process, one of which is slower.
fn database(path: &Path, gpus: i64, late: i64, extra_ns: i64) {
    let base = rusqlite::Connection::open(path).unwrap();
    base.execute_batch(
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
         INSERT INTO StringIds VALUES (1, 'void gemm()'), (2, 'ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)');
         CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);
         CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, globalPid INTEGER, demangledName INTEGER,
             shortName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER);
         BEGIN",
    )
    .unwrap();
    for gpu in 0..gpus {
        base.execute("INSERT INTO TARGET_INFO_GPU VALUES (?1, 'NVIDIA H100')", [gpu]).unwrap();
        let mut at = 1_000_000i64;
        for _ in 0..200 {
            let arrives = at + 100_000 + if gpu == late { extra_ns } else { 0 };
            let end = at + 100_000 + extra_ns + 30_000;
            for (start, end, name) in [(at, arrives, 1), (arrives, end, 2)] {
                base.execute(
                    "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?1, ?2, ?3, ?4, ?5, ?5, 1, 1, 1, 32, 1, 1)",
                    [start, end, gpu, 77 << 24, name],
                )
                .unwrap();
            }
            at = end + 2_000;
        }
    }
    base.execute_batch("COMMIT").unwrap();
}

#[test]
fn gpus_of_an_nsys_database_are_lanes() {
    let dir = tempfile::tempdir().unwrap();
    database(&dir.path().join("four.sqlite"), 4, 2, 18_000);
    let shown = llmprof(dir.path(), &["kernels", "four.sqlite", "--json"]).output().unwrap();
    let result = json_of(&shown);
    let kernels =
        result["tables"].as_array().unwrap().iter().filter(|table| table["kind"] == "kernels").count();
    assert_eq!(kernels, 4, "a table for each GPU: {result}");
    let lanes = lanes(&result);
    let waits: Vec<f64> = lanes.iter().map(|lane| number(lane, "wait_ns")).collect();
    assert_eq!(waits, [3_600_000.0, 3_600_000.0, 0.0, 3_600_000.0], "200 × 18 µs");
    assert_eq!(result["ranks"]["straggler"]["gpu"], 2);
    let row = &result["ranks"]["collectives"][0];
    assert_eq!(
        (number(row, "median_us"), &row["bytes"]),
        (30.0, &Value::Null),
        "sizes are not in the file: {row}"
    );
    let printed = llmprof(dir.path(), &["kernels", "four.sqlite", "--text", "-k", "2"]).output().unwrap();
    let printed = text(&printed.stdout);
    assert!(
        printed.contains("unknown") && printed.contains("GPU 2 is 12 % behind, last in 100 %"),
        "{printed}"
    );
}

/// A trace as torch.profiler writes it, whose clock is `offset_ns` ahead.
fn trace(rank: u32, steps: u32, compute_us: f64, last_us: f64, offset_ns: i64) -> String {
    let base: i64 = 1_790_000_000_000_000_000;
    let mut events = Vec::new();
    let mut at = 5_000.0 + offset_ns as f64 / 1e3;
    for _ in 0..steps {
        for (name, start, end) in [
            ("gemm", at, at + compute_us),
            (
                "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                at + compute_us,
                at + last_us + 40.0,
            ),
        ] {
            let mut args = json!({"device": 0, "stream": 7, "grid": [1, 1, 1], "block": [32, 1, 1]});
            if name.starts_with("nccl") {
                for (key, value) in [
                    ("Collective name", json!("_allgather_base")),
                    ("In msg nelems", json!(1000)),
                    ("Out msg nelems", json!(2000)),
                    ("Group size", json!(2)),
                    ("dtype", json!("BFloat16")),
                    ("Process Group Ranks", json!("[0, 1]")),
                ] {
                    args[key] = value;
                }
            }
            events.push(json!({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": start, "dur": end - start, "args": args}));
        }
        at += last_us + 43.0;
    }
    json!({"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
        "baseTimeNanoseconds": base, "traceEvents": events})
    .to_string()
}

#[test]
fn traces_of_several_clocks_are_merged() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("traces")).unwrap();
    fs::write(dir.path().join("traces/rank0.json"), trace(0, 100, 100.0, 125.0, 0)).unwrap();
    fs::write(dir.path().join("traces/rank1.json"), trace(1, 100, 125.0, 125.0, 7_000_000)).unwrap();
    let shown = llmprof(dir.path(), &["kernels", "traces", "--json"]).output().unwrap();
    let result = json_of(&shown);
    let lanes = lanes(&result);
    assert_eq!((&lanes[0]["rank"], &lanes[1]["rank"]), (&json!(0), &json!(1)), "{result}");
    // Both ranks end a collective at the same time: the offset is found exactly, with an error bound of 40 to 65 µs.
    let error = number(&result["ranks"], "clock_error_ns");
    assert!((40_000.0..=65_000.0).contains(&error), "{error}");
    assert!((number(&lanes[0], "wait_ns") / number(&lanes[0], "matched") - 25_000.0).abs() < 2.0, "{result}");
    let row = &result["ranks"]["collectives"][0];
    assert_eq!(
        (&row["kind"], &row["bytes"], &row["ranks"]),
        (&json!("all_gather"), &json!(4000), &json!(2)),
        "{row}"
    );
    let notes = result["ranks"]["notes"].to_string();
    assert!(notes.contains("its clock is moved by -7.00 ms"), "{notes}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// For any offset, the result is within its stated error.
    #[test]
    fn offsets_are_within_their_error(offset in -50_000_000i64..50_000_000, compute in 50.0f64..150.0, steps in 3u32..60) {
        let dir = tempfile::tempdir().unwrap();
        let paths = [dir.path().join("a.json"), dir.path().join("b.json")];
        fs::write(&paths[0], trace(0, steps, compute.min(120.0), compute.max(120.0), 0)).unwrap();
        fs::write(&paths[1], trace(1, steps, compute.max(120.0), compute.max(120.0), offset)).unwrap();
        let traces = paths.iter().map(|path| llmprof::kernels::open_all(path).unwrap().ranks.unwrap());
        let lanes: Vec<_> = traces.map(|trace| trace.lanes[0].clone()).collect();
        let found = llmprof::analysis::ranks::align(&lanes[0], &lanes[1]);
        prop_assert!((found.offset_ns + offset).unsigned_abs() <= found.error_ns.unwrap() + 1, "{found:?}");
    }
}

/// Two ranks of NCCL 2.30 on one H200, recorded by torch.profiler, rank 1 with more work.
#[test]
fn real_traces_of_two_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/torch");
    let files: Vec<String> = (0..2)
        .map(|rank| fixtures.join(format!("h200_ranks_{rank}.json.gz")).display().to_string())
        .collect();
    let shown = llmprof(dir.path(), &["kernels", "--json", &files[1], &files[0]]).output().unwrap();
    let result = json_of(&shown);
    let row = &result["ranks"]["collectives"][0];
    // 8 × 2,048 numbers of 2 bytes.
    assert_eq!((&row["bytes"], &row["ranks"]), (&json!(32_768), &json!(2)), "{row}");
    assert_eq!(row["calls"], row["matched"], "{row}");
    assert_eq!(result["ranks"]["straggler"]["rank"], 1, "{}", result["ranks"]);
    // All but one of the collectives begin on rank 1 last, so they bound its clock from one side only.
    assert!(number(&result["ranks"], "clock_error_ns") < 1e6, "{}", result["ranks"]);
}

#[test]
fn logs_of_nccl_become_messages() {
    let dir = tempfile::tempdir().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/nccl");
    let file = |name: &str| fixtures.join(name).display().to_string();
    let words = |name: &str| {
        let shown = llmprof(dir.path(), &["kernels", "--text", &file(name)]).output().unwrap();
        assert_eq!(shown.status.code(), Some(0), "{}", text(&shown.stderr));
        text(&shown.stdout)
    };
    let sockets = words("h200_2ranks_2_28.log");
    for said in [
        "NCCL 2.28.9+cuda13.0, 2 ranks on 2 nodes, network Socket.",
        "8 connections over sockets.",
        "2 rings (0 1)",
    ] {
        assert!(sockets.contains(said), "{said}: {sockets}");
    }
    let shared = words("h200_2ranks_2_30.log");
    for said in
        ["NCCL 2.30.7+cuda13.3, 2 ranks on 1 node", "2 ranks share 1 GPU.", "algorithm RING, protocol LL"]
    {
        assert!(shared.contains(said), "{said}: {shared}");
    }
    let shown = llmprof(dir.path(), &["kernels", "--json", &file("h200_2ranks_2_30.log")]).output().unwrap();
    assert_eq!(json_of(&shown)["ranks"]["nccl"]["version"], "2.30.7+cuda13.3");
    let empty = dir.path().join("nothing");
    fs::create_dir(&empty).unwrap();
    let refused = llmprof(dir.path(), &["kernels", "nothing"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("no files of profilers"), "{}", text(&refused.stderr));
}
