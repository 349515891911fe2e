//! Kernel files: tables of this program compared with nsys's own reports of the same recording, and the command.
//!
//! `fixtures/nsys/kernels.sqlite` has the schema of nsys 2022.4; the CSV and JSON files next to it are the reports of
//! that nsys (`nsys stats -r REPORT -f csv kernels.sqlite`).

use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use crate::common::run;
use llmprof::{
    base::gz,
    config::parse_yaml,
    event::kernels::{Group, KernelRow, KernelTable, Kind},
    kernels::open,
};
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn tables(name: &str) -> Vec<KernelTable> {
    open(&fixture(name)).unwrap()
}

fn recorded(kind: Kind) -> KernelTable {
    tables("nsys/kernels.sqlite").into_iter().find(|table| table.kind == kind).unwrap()
}

fn reported(name: &str) -> KernelTable {
    let mut all = tables(&format!("nsys/{name}"));
    assert_eq!(all.len(), 1);
    all.remove(0)
}

/// nsys rounds to a tenth.
#[track_caller]
fn assert_near(what: &str, ours: Option<f64>, theirs: Option<f64>) {
    let (ours, theirs) = (ours.unwrap(), theirs.unwrap());
    assert!((ours - theirs).abs() <= 0.051, "{what}: {ours} and {theirs}");
}

#[test]
fn kernels_match_the_report_of_nsys() {
    let (ours, theirs) = (recorded(Kind::Kernels), reported("gpukernsum_2022_4.csv"));
    // That report does not distinguish ranges.
    let ours = ours.grouped(Group::Name);
    assert_eq!(ours.rows.len(), theirs.rows.len());
    for theirs in &theirs.rows {
        let ours = ours.rows.iter().find(|row| row.name == theirs.name).unwrap();
        assert_eq!((ours.calls, ours.grid, ours.block), (theirs.calls, theirs.grid, theirs.block));
        assert_eq!(
            (ours.total_ns, ours.min_ns, ours.max_ns),
            (theirs.total_ns, theirs.min_ns, theirs.max_ns)
        );
        assert_near("mean", ours.mean_ns, theirs.mean_ns);
        assert_near("standard deviation", ours.stddev_ns, theirs.stddev_ns);
    }
}

/// Rows by name: calls and time.
fn sums(table: &KernelTable) -> BTreeMap<String, (u64, f64)> {
    let rows = table.grouped(Group::Name).rows.into_iter();
    rows.map(|row| (row.name, (row.calls, row.total_ns.unwrap()))).collect()
}

#[test]
fn the_same_kernels_in_every_report_and_format() {
    let wanted = recorded(Kind::Kernels);
    let summary = reported("gpukernsum_2022_4.csv");
    for name in ["gpukernsum_2022_4_column.txt", "gpukernsum_2022_4_table.txt"] {
        let table = reported(name);
        assert_eq!((table.kind, table.rows.len()), (Kind::Kernels, summary.rows.len()), "{name}");
        for (ours, theirs) in table.rows.iter().zip(&summary.rows) {
            // Names are cut to at most a hundred characters.
            let shared: String = theirs.name.chars().take(80).collect();
            let named = |row: &KernelRow| KernelRow { name: shared.clone(), ..row.clone() };
            assert!(ours.name.starts_with(&shared), "{}", ours.name);
            assert_eq!(named(ours), named(theirs), "{name}");
        }
    }
    let trace = tables("nsys/gputrace_2022_4.csv");
    assert_eq!(sums(&trace[0]), sums(&wanted));
    assert_eq!((trace[0].busy, trace[0].device.as_deref()), (wanted.busy, Some("NVIDIA H200 (0)")));
    assert_eq!(trace[1].total(), recorded(Kind::MemoryTime).total());
    let launches = reported("kernexecsum_2022_4.csv");
    for (name, (calls, total)) in sums(&launches) {
        let (wanted_calls, wanted_total) = sums(&wanted)[&name];
        // Means of launches, rounded to a tenth.
        assert!((total - wanted_total).abs() <= 0.051 * calls as f64, "{name}: {total} and {wanted_total}");
        assert_eq!(calls, wanted_calls, "{name}");
    }
    for table in [&launches, &trace[0], &wanted] {
        assert_eq!(table.has_graphs(), Some(true));
    }
    let several = tables("nsys/apigpusum_2022_4.csv");
    let kinds: Vec<Kind> = several.iter().map(|table| table.kind).collect();
    assert_eq!(kinds, [Kind::Kernels, Kind::ApiCalls, Kind::MemoryTime]);
    assert_eq!(sums(&several[0]), sums(&wanted));
    // Every start and end of the recording, by hand: kernels never overlap, and their times add up.
    assert_eq!(wanted.busy.unwrap().busy_ns, wanted.total().unwrap());
}

#[test]
fn kernels_by_range_match_the_report_of_nsys() {
    // nsys counts a kernel in every range that encloses its launch; this program counts it in the innermost, with its
    // path.
    let mut ours: BTreeMap<(String, String), (u64, f64)> = BTreeMap::new();
    for row in &recorded(Kind::Kernels).rows {
        for range in row.range.as_deref().into_iter().flat_map(|path| path.split('/')) {
            let sum = ours.entry((range.to_owned(), row.name.clone())).or_default();
            sum.0 += row.calls;
            sum.1 += row.total_ns.unwrap();
        }
    }
    let theirs: BTreeMap<(String, String), (u64, f64)> = reported("nvtxkernsum_2022_4.csv")
        .rows
        .iter()
        .map(|row| {
            let range = row.range.as_deref().unwrap().rsplit(':').next().unwrap().to_owned();
            ((range, row.name.clone()), (row.calls, row.total_ns.unwrap()))
        })
        .collect();
    assert_eq!(ours, theirs);
    assert_eq!(ours.len(), 17);
}

#[test]
fn medians_by_range_match_the_report_of_nsys() {
    let theirs = reported("nvtxkernsum_2022_4.csv");
    for ours in
        recorded(Kind::Kernels).rows.iter().filter(|row| row.range.as_deref() == Some("whole/prefill"))
    {
        let same = |name: &str, range: &str| name == ours.name && range == "llmprof:prefill";
        let theirs = theirs.rows.iter().find(|row| same(&row.name, row.range.as_deref().unwrap())).unwrap();
        assert_eq!((ours.median_ns, ours.calls), (theirs.median_ns, theirs.calls));
    }
}

#[test]
fn json_and_csv_of_one_report_are_equal() {
    assert_eq!(reported("nvtxkernsum_2022_4.json"), reported("nvtxkernsum_2022_4.csv"));
}

#[test]
fn calls_copies_and_ranges_match_the_reports_of_nsys() {
    let calls = recorded(Kind::ApiCalls);
    for theirs in &reported("cudaapisum_2022_4.csv").rows {
        let bare = theirs.name.split("_v").next().unwrap();
        let ours = calls.rows.iter().find(|row| row.name == bare).unwrap();
        assert_eq!(
            (ours.calls, ours.total_ns, ours.median_ns),
            (theirs.calls, theirs.total_ns, theirs.median_ns)
        );
    }
    let memory = recorded(Kind::MemoryTime);
    let (times, sizes) = (reported("gpumemtimesum_2022_4.csv"), reported("gpumemsizesum_2022_4.csv"));
    for (ours, theirs) in [
        ("Host-to-Device", "[CUDA memcpy HtoD]"),
        ("Device-to-Host", "[CUDA memcpy DtoH]"),
        ("memset", "[CUDA memset]"),
    ] {
        let ours = memory.rows.iter().find(|row| row.name.contains(ours)).unwrap();
        let time = times.rows.iter().find(|row| row.name == theirs).unwrap();
        let size = sizes.rows.iter().find(|row| row.name == theirs).unwrap();
        assert_eq!((ours.calls, ours.total_ns), (time.calls, time.total_ns));
        assert!((ours.bytes.unwrap() - size.bytes.unwrap()).abs() <= 500.0, "{ours:?}");
    }
    let ranges = recorded(Kind::Ranges);
    for theirs in &reported("nvtxppsum_2022_4.csv").rows {
        let name = theirs.name.rsplit(':').next().unwrap();
        let ours = ranges.rows.iter().find(|row| row.family == name).unwrap();
        assert_eq!((ours.calls, ours.total_ns), (theirs.calls, theirs.total_ns));
    }
}

#[test]
fn a_recording_without_kernels_shows_its_ranges_with_a_note() {
    let all = tables("nsys/nvtx_only_2022_4.sqlite");
    assert_eq!(all[0].kind, Kind::Ranges);
    let names: Vec<&str> = all[0].rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["decode", "decode/decode_step", "prefill", "request"]);
    assert_eq!(all[0].rows[1].calls, 5);
    assert!(all[0].notes[0].contains("no kernels were recorded"), "{:?}", all[0].notes);
}

#[test]
fn the_command_prints_hints_and_a_table() {
    let dir = tempfile::tempdir().unwrap();
    let raw = fixture("h200_ncu_raw.csv");
    let output = run(dir.path(), &["kernels", raw.to_str().unwrap(), "-k", "5"]);
    assert_eq!((output.code, output.err.as_str()), (0, ""));
    for words in [
        "NVIDIA H200",
        "16 kernels in 60 launches",
        "rmsnorm_bf16 is latency-bound",
        "… and 11 more",
        "share",
    ] {
        assert!(output.out.contains(words), "{words}: {}", output.out);
    }
    let output =
        run(dir.path(), &["kernels", raw.to_str().unwrap(), "--group", "family", "--filter", "NVJET"]);
    let rows: Vec<&str> = output.out.lines().filter(|line| line.ends_with("nvjet_sm90_tst")).collect();
    assert!(rows.len() == 1 && !output.out.contains("rope"), "{}", output.out);
    assert!(rows[0].split_whitespace().any(|cell| cell == "18"), "{}", rows[0]);
    let output = run(dir.path(), &["kernels", fixture("nsys/kernels.sqlite").to_str().unwrap()]);
    for words in [
        "nsys SQLite, kernels",
        "NVTX ranges",
        "CUDA calls",
        "memory operations",
        "kernel time",
        "gemv_kernel",
    ] {
        assert!(output.out.contains(words), "{words}: {}", output.out);
    }
}

#[test]
fn the_kernels_of_a_recorded_run_are_read_from_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/demo");
    let output = run(dir.path(), &["kernels", demo.join("h200_kernels").to_str().unwrap(), "-k", "3"]);
    assert_eq!((output.code, output.err.as_str()), (0, ""));
    for words in ["CUPTI", "decode", "share"] {
        assert!(output.out.contains(words), "{words}: {}", output.out);
    }
    let output = run(dir.path(), &["kernels", demo.join("h200_prefill").to_str().unwrap()]);
    assert_eq!(output.code, 1);
    assert!(
        output.err.contains("recorded no kernels; run with profiling.cupti.enable=true"),
        "{}",
        output.err
    );
}

#[test]
fn a_trace_of_pytorch_is_shown_by_operator() {
    let dir = tempfile::tempdir().unwrap();
    let trace = fixture("torch/gpu_rank1.json");
    let output = run(dir.path(), &["kernels", trace.to_str().unwrap()]);
    assert_eq!((output.code, output.err.as_str()), (0, ""));
    for words in [
        "PyTorch trace, kernels on NVIDIA H200",
        "rank 1 of 2",
        "GPU busy",
        "already launches CUDA graphs",
        "in ProfilerStep/decode/aten::addmm",
        "6 operators in 32 calls",
        "Memcpy HtoD (Pinned -> Device)",
        "stream 20",
        "GPU 1: at most 1.05 MB in use",
    ] {
        assert!(output.out.contains(words), "{words}: {}", output.out);
    }
    let args = ["kernels", "top", "--from", trace.to_str().unwrap(), "-k", "1"];
    assert!(run(dir.path(), &args).out.contains("regex: ^ncclDevKernel_AllReduce_Sum_bf16_RING_LL$"));
    fs::write(dir.path().join("other.json"), "{\"a\": 1}").unwrap();
    let output = run(dir.path(), &["kernels", "other.json"]);
    assert_eq!(output.code, 1);
    assert!(output.err.contains("PyTorch (trace (.json.gz), trace (.json))"), "{}", output.err);
}

/// One second of vLLM 0.24.0 on an H200, joined while it served. The sums were computed from the events by hand.
#[test]
fn lines_of_a_real_vllm() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("run")).unwrap();
    let recording = fs::read(fixture("engines/vllm_lines.ndjson.gz")).unwrap();
    let mut events = String::new();
    gz::decompressed(recording.as_slice()).read_to_string(&mut events).unwrap();
    fs::write(dir.path().join("run/events.ndjson"), events).unwrap();
    let output = run(dir.path(), &["kernels", "run", "--by", "line", "--json"]);
    assert_eq!((output.code, output.err.as_str()), (0, ""));
    let json: Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!((&json["launches"], &json["gpu_ms"]), (&8278.into(), &199.707101.into()));
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 17);
    for (row, (place, launches, gpu_ms)) in rows.iter().zip([
        ("vllm/compilation/piecewise_backend.py:380 PiecewiseBackend.__call__", 450, 98.398158),
        ("vllm/compilation/cuda_graph.py:360 CUDAGraphWrapper.__call__", 7300, 90.437721),
        ("model_executor/layers/utils.py:98 default_unquantized_gemm", 23, 5.818841),
    ]) {
        assert_eq!((&row["place"], &row["launches"]), (&place.into(), &launches.into()));
        assert_eq!(row["gpu_ms"], gpu_ms);
    }
    let output = run(dir.path(), &["kernels", "run", "--by", "module", "-k", "1"]);
    assert!(
        output.out.contains("98.4 ms       450  vllm/compilation/piecewise_backend.py"),
        "{}",
        output.out
    );
    let output = run(dir.path(), &["kernels", "run", "--stacks", "out.json"]);
    assert_eq!(output.code, 0, "{}", output.err);
    let stacks: Value = serde_json::from_slice(&fs::read(dir.path().join("out.json")).unwrap()).unwrap();
    assert_eq!(stacks["profiles"][0]["endValue"], 199_707_101);
    let output = run(dir.path(), &["kernels", "out.json", "--by", "line"]);
    assert_eq!((output.code, output.err.contains("is not a recorded run")), (2, true), "{}", output.err);
}

/// A trace of an H200. The totals are those of PyTorch's own table of the same run.
#[test]
fn a_trace_of_a_gpu_has_the_totals_of_pytorch() {
    let dir = tempfile::tempdir().unwrap();
    let trace = fixture("torch/h200.json.gz");
    let output = run(dir.path(), &["kernels", "--json", trace.to_str().unwrap()]);
    assert_eq!((output.code, output.err.as_str()), (0, ""));
    let json: Value = serde_json::from_str(&output.out).unwrap();
    let total_us = |kernel: &str| {
        let tables = json["tables"].as_array().unwrap().iter();
        let rows = tables.flat_map(|table| table["rows"].as_array().unwrap());
        let row = rows.into_iter().find(|row| row["name"].as_str().unwrap().contains(kernel));
        let number = |key: &str| row.unwrap_or_else(|| panic!("{kernel}"))[key].as_f64().unwrap();
        number("mean_ns") * number("calls") / 1e3
    };
    for (kernel, expected) in [
        ("nvjet_sm90_hsh_64x16_64x16_4x1_v_bz_splitK_bias_TNT", 26.399),
        ("nvjet_sm90_hsh_64x8_64x16_1x2_h_bz_bias_TNT", 25.377),
        ("splitKreduce_kernel", 12.161),
        ("GeluCUDAKernelImpl", 7.424),
    ] {
        assert!((total_us(kernel) - expected).abs() < 0.002, "{kernel}: {}", total_us(kernel));
    }
}

/// A recording with changed bytes or a cut end is read or rejected with a message, never a panic.
#[test]
fn a_broken_recording_is_read_or_rejected() {
    let recording = fs::read(fixture("nsys/kernels.sqlite")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("broken.sqlite");
    let (mut read, mut rejected) = (0, 0);
    for seed in 0..150u64 {
        let random = |n: u64| llmprof::base::noise::bits(seed, n) as usize;
        let mut bytes = recording.clone();
        for change in 0..1 + seed % 40 {
            let at = random(2 * change) % bytes.len();
            bytes[at] = random(2 * change + 1) as u8;
        }
        if seed % 3 == 0 {
            bytes.truncate(random(1000) % bytes.len());
        }
        fs::write(&path, &bytes).unwrap();
        match open(&path) {
            Ok(tables) => read += usize::from(!tables.is_empty()),
            Err(e) => rejected += usize::from(!e.to_string().is_empty()),
        }
    }
    assert!(read > 0 && rejected > 0, "{read} read, {rejected} rejected");
    assert_eq!(read + rejected, 150, "tables or an error");
}

/// Counters of a built-in kernel on an H200, recorded by `run profiling=ncu`.
#[test]
fn counters_of_a_built_in_kernel() {
    let table = &tables("h200_logits_ncu_raw.csv")[0].grouped(Group::Name);
    let [row] = &table.rows[..] else { panic!("{table:?}") };
    assert_eq!((row.name.as_str(), row.calls), ("skinny_logits_8_bf16", 3));
    assert_eq!(row.range.as_deref(), Some("request/decode/decode_step"));
    let known = row.known();
    assert!((240e3..260e3).contains(&known.duration_ns.unwrap()), "{known:?}");
    assert!((90.0..94.0).contains(&known.dram_pct.unwrap()), "{known:?}");
    // Weights of 152,064 × 3,584 in bf16 are 1.09 GB, and each is read once.
    assert!((1.08e9..1.10e9).contains(&known.dram_bytes.unwrap()), "{known:?}");
    assert_eq!(llmprof::analysis::classify::verdict(row).unwrap().class.word(), "memory");
}

#[test]
fn the_command_prints_json() {
    let dir = tempfile::tempdir().unwrap();
    let (raw, sums) = (fixture("h200_ncu_raw.csv"), fixture("nsys/gpukernsum_2022_4.csv"));
    let output = run(
        dir.path(),
        &["kernels", raw.to_str().unwrap(), sums.to_str().unwrap(), "--json", "--sort", "calls"],
    );
    assert_eq!((output.code, output.err.as_str()), (0, ""));
    let json: Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!((&json["schema"], json["tables"].as_array().unwrap().len()), (&Value::from(1), 2));
    let rows = json["tables"][1]["rows"].as_array().unwrap();
    assert_eq!((&rows[0]["name"], &rows[0]["calls"]), (&Value::from("rope_bf16"), &Value::from(18)));
    assert_eq!(rows[0]["class"], Value::Null, "no class without counters");
}

#[test]
fn a_list_of_the_top_kernels() {
    let dir = tempfile::tempdir().unwrap();
    let from = fixture("nsys/kernels.sqlite");
    let args = ["kernels", "top", "--from", from.to_str().unwrap(), "-k", "2", "-o", "top-kernels.yaml"];
    let output = run(dir.path(), &args);
    assert_eq!((output.code, output.out.as_str()), (0, ""), "{}", output.err);
    let text = fs::read_to_string(dir.path().join("top-kernels.yaml")).unwrap();
    let list: Value = parse_yaml(&text, Path::new("top-kernels.yaml")).unwrap();
    assert_eq!(list["kernels"].as_array().unwrap().len(), 2);
    let first = &list["kernels"][0];
    assert_eq!(
        (&first["family"], &first["regex"]),
        (&Value::from("gemv_kernel"), &Value::from("^gemv_kernel$"))
    );
    assert_eq!((&first["launches"], &first["total_ns"]), (&Value::from(9), &Value::from(286_360.0)));
    let output = run(dir.path(), &args[..6]);
    assert!(output.out.contains("regex: ^gemv_kernel$"), "{}", output.out);
    let calls = fixture("nsys/cudaapisum_2022_4.csv");
    let output = run(dir.path(), &["kernels", "top", "--from", calls.to_str().unwrap()]);
    assert_eq!(output.code, 1);
    assert!(output.err.contains("cudaapisum_2022_4.csv has no kernels to list"), "{}", output.err);
}

#[test]
fn unreadable_files_are_named_and_the_others_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::write(dir.path().join("empty.csv"), "").unwrap();
    fs::write(dir.path().join("skipped.csv"), "SKIPPED: out.sqlite does not contain CUDA kernel data.\n")
        .unwrap();
    for (name, words) in [
        ("empty.csv", "empty.csv is empty"),
        ("skipped.csv", "does not contain CUDA kernel data"),
        ("nowhere.csv", "cannot read"),
    ] {
        let output = run(dir.path(), &["kernels", &path(name)]);
        assert_eq!((output.code, output.out.as_str()), (1, ""), "{name}");
        assert!(output.err.contains(words), "{}", output.err);
    }
    let raw = fixture("h200_ncu_raw.csv");
    let output = run(dir.path(), &["kernels", &path("empty.csv"), raw.to_str().unwrap()]);
    assert_eq!(output.code, 1);
    assert!(output.out.contains("rmsnorm_bf16") && output.err.contains("empty.csv"), "{}", output.err);
    assert_eq!(run(dir.path(), &["kernels"]).code, 2);
    assert_eq!(run(dir.path(), &["kernels", "x", "--group", "colour"]).code, 2);
}
