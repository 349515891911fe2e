//! Traces made for one case each, and garbage.

use std::{collections::HashMap, io::Write};

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::show::{RowQuery, TableView};
use llmprof_event::kernels::{Group, KernelRow, Kind};

fn read(text: &str) -> Result<Vec<KernelTable>, KernelsError> {
    read_trace("trace.json", text.as_bytes())
}

/// A trace of `events`, with the keys that Kineto writes around them.
fn trace(events: &str) -> String {
    format!(
        r#"
  {{
    "schemaVersion": 1,
    "deviceProperties": [
    {{
      "id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150754820096,
      "computeMajor": 9, "computeMinor": 0, "numSms": 132
    }}
    ],
    "distributedInfo": {{"backend": "nccl", "rank": 3, "world_size": 16}},
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1700000000000000000,
  "traceEvents": [{events}
  {{
    "name": "Record Window End", "ph": "i", "s": "g",
    "pid": "", "tid": "", "ts": 1000.000
  }}
  ],
  "traceName": "trace.json"
}}"#
    )
}

fn host(category: &str, name: &str, start: f64, duration: f64, id: u64) -> String {
    format!(
        r#"{{"ph": "X", "cat": "{category}", "name": "{name}", "pid": 7, "tid": 7, "ts": {start:.3}, "dur": {duration:.3},
            "args": {{"External id": {id}, "Record function id": 0, "Ev Idx": 1}}}},"#
    )
}

fn call(name: &str, start: f64, correlation: u64, external: u64) -> String {
    format!(
        r#"{{"ph": "X", "cat": "cuda_runtime", "name": "{name}", "pid": 7, "tid": 7, "ts": {start:.3}, "dur": 2.000,
            "args": {{"External id": {external}, "cbid": 211, "correlation": {correlation}}}}},
           {{"ph": "s", "id": {correlation}, "pid": 7, "tid": 7, "ts": {start:.3}, "cat": "ac2g", "name": "ac2g"}},"#
    )
}

fn kernel(name: &str, start: f64, duration: f64, correlation: u64, more: &str) -> String {
    format!(
        r#"{{"ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": 7, "ts": {start:.3}, "dur": {duration:.3},
            "args": {{{more} "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": {correlation},
            "registers per thread": 40, "shared memory": 1024, "blocks per SM": inf, "warps per SM": 2.5,
            "grid": [8, 2, 1], "block": [128, 1, 1], "est. achieved occupancy %": 12}}}},
           {{"ph": "f", "id": {correlation}, "pid": 0, "tid": 7, "ts": {start:.3}, "cat": "ac2g", "name": "ac2g", "bp": "e"}},"#
    )
}

fn of_kind(tables: &[KernelTable], kind: Kind) -> &KernelTable {
    tables.iter().find(|table| table.kind == kind).unwrap_or_else(|| panic!("no {kind:?}: {tables:#?}"))
}

fn row<'t>(table: &'t KernelTable, name: &str) -> &'t KernelRow {
    table.rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no {name}: {table:#?}"))
}

fn step() -> [String; 3] {
    let host = [
        host("user_annotation", "ProfilerStep#1", 0.0, 100.0, 1),
        host("user_annotation", "decode", 5.0, 90.0, 2),
        host("cpu_op", "aten::linear", 10.0, 40.0, 3),
        host("cpu_op", "aten::addmm", 12.0, 30.0, 4),
        host("cpu_op", "aten::relu", 60.0, 10.0, 5),
    ];
    let calls = [call("cudaLaunchKernel", 20.0, 901, 4), call("cudaLaunchKernel", 62.0, 902, 5)];
    let kernels = [
        kernel("void gemm<4>(int)", 30.0, 20.0, 901, "\"External id\": 4,"),
        kernel("relu", 70.0, 5.5, 902, ""),
    ];
    [host.concat(), calls.concat(), kernels.concat()]
}

#[test]
fn kernels_operators_and_annotations() {
    let tables = read(&trace(&step().concat())).unwrap();
    let kinds: Vec<Kind> = tables.iter().map(|table| table.kind).collect();
    assert_eq!(kinds, [Kind::Kernels, Kind::Operators, Kind::Ranges, Kind::ApiCalls, Kind::Streams]);
    let kernels = &tables[0];
    assert_eq!(kernels.device.as_deref(), Some("NVIDIA H200"));
    let gemm = row(kernels, "void gemm<4>(int)");
    assert_eq!((gemm.family.as_str(), gemm.calls, gemm.total_ns), ("gemm", 1, Some(20_000.0)));
    assert_eq!((gemm.grid, gemm.block), (Some([8, 2, 1]), Some([128, 1, 1])));
    assert_eq!((gemm.registers, gemm.shared_bytes), (Some(40), Some(1024)));
    assert_eq!(gemm.range.as_deref(), Some("ProfilerStep/decode/aten::addmm"));
    assert_eq!(gemm.counters.mean("est. achieved occupancy"), Some(12.0));
    assert_eq!(gemm.counters.mean("from the call to the start"), Some(10_000.0));
    // Its operator is known only through the call.
    assert_eq!(row(kernels, "relu").range.as_deref(), Some("ProfilerStep/decode/aten::relu"));
    // From 30 to 75.5 µs.
    let busy = kernels.busy.unwrap();
    assert_eq!((busy.busy_ns, busy.span_ns), (25_500.0, 45_500.0));
    assert_eq!(kernels.notes, ["rank 3 of 16 of a distributed run"]);
    let operators = of_kind(&tables, Kind::Operators);
    let linear = row(operators, "aten::linear");
    assert_eq!((linear.total_ns, linear.counters.mean("with children")), (Some(10_000.0), Some(40_000.0)));
    assert_eq!(linear.counters.mean("kernel time"), None);
    assert_eq!(row(operators, "aten::addmm").counters.mean("kernel time"), Some(20_000.0));
    let decode = row(of_kind(&tables, Kind::Ranges), "ProfilerStep/decode");
    assert_eq!((decode.total_ns, decode.counters.mean("kernel time")), (Some(90_000.0), Some(25_500.0)));
    let launch = row(of_kind(&tables, Kind::ApiCalls), "cudaLaunchKernel");
    assert_eq!((launch.calls, launch.total_ns), (2, Some(4000.0)));
    assert_eq!(row(of_kind(&tables, Kind::Streams), "stream 7").calls, 2);
}

#[test]
fn the_order_of_the_sections_does_not_matter() {
    let [host, calls, kernels] = step();
    let wanted = read(&trace(&[host.as_str(), &calls, &kernels].concat())).unwrap();
    let tables = read(&trace(&[kernels, calls, host].concat())).unwrap();
    for kind in [Kind::Operators, Kind::Ranges] {
        assert_eq!(of_kind(&tables, kind).rows, of_kind(&wanted, kind).rows);
    }
    assert_eq!(tables[0].total(), wanted[0].total());
}

/// As PyTorch wrote traces in 2021: an operator after it has ended, a kernel before its call.
#[test]
fn operators_in_the_order_of_their_end() {
    let events = [
        host("Operator", "aten::t", 1.0, 3.0, 2),
        host("Operator", "aten::addmm", 12.0, 30.0, 4),
        host("Operator", "aten::linear", 10.0, 40.0, 3),
        host("user_annotation", "decode", 0.0, 60.0, 1),
        kernel("volta_sgemm_128x32_nt", 30.0, 20.0, 901, "").replace("\"kernel\"", "\"Kernel\""),
        call("cudaLaunchKernel", 20.0, 901, 4)
            .replace("External id", "external id")
            .replace("cuda_runtime", "Runtime"),
    ];
    let text = trace(&events.concat()).replace("deviceProperties", "computeProperties");
    let tables = read(&text).unwrap();
    assert_eq!(tables[0].device.as_deref(), Some("NVIDIA H200"));
    assert_eq!(row(&tables[0], "volta_sgemm_128x32_nt").total_ns, Some(20_000.0));
    let operators = of_kind(&tables, Kind::Operators);
    let linear = row(operators, "aten::linear");
    assert_eq!((linear.total_ns, linear.counters.mean("with children")), (Some(10_000.0), Some(40_000.0)));
    assert_eq!(row(operators, "aten::addmm").counters.mean("kernel time"), Some(20_000.0));
    assert_eq!(row(operators, "aten::t").total_ns, Some(3000.0));
}

#[test]
fn operators_in_no_order_have_no_time_of_their_own() {
    let events = [
        host("cpu_op", "aten::linear", 10.0, 40.0, 3),
        host("cpu_op", "aten::relu", 60.0, 10.0, 5),
        host("cpu_op", "aten::addmm", 12.0, 30.0, 4),
    ];
    let tables = read(&trace(&events.concat())).unwrap();
    let linear = row(&tables[0], "aten::linear");
    assert_eq!((linear.calls, linear.total_ns), (1, None));
    assert_eq!(linear.counters.mean("with children"), Some(40_000.0));
    assert!(tables[0].notes.iter().any(|note| note.contains("own time is unknown")), "{:?}", tables[0].notes);
    assert!(
        tables[0].notes.iter().any(|note| note.contains("ProfilerActivity.CUDA")),
        "{:?}",
        tables[0].notes
    );
}

/// PyTorch 2.3 writes µs since 1970. Operators that follow each other do not enclose each other.
#[test]
fn times_since_1970_are_exact() {
    let events: Vec<String> = (0..100)
        .map(|n| host("cpu_op", &format!("op{}", n % 3), 1_794_786_671_253_840.0 + f64::from(n), 1.0, 1))
        .collect();
    let tables = read(&trace(&events.concat())).unwrap();
    assert_eq!(tables[0].total(), Some(100_000.0));
    assert!(tables[0].rows.iter().all(|row| row.min_ns == Some(1000.0) && row.max_ns == Some(1000.0)));
}

#[test]
fn copies_memory_collectives_graphs_and_two_gpus() {
    let collective = "\"External id\": 4, \"graph node id\": 17, \"Collective name\": \"allreduce\", \"In msg nelems\": 1000, \
                      \"Out msg nelems\": 1000, \"Group size\": 16, \"dtype\": \"BFloat16\",";
    let events = [
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 10.0, 30.0, 1, collective),
        kernel("k", 50.0, 10.0, 2, "").replace("\"device\": 0", "\"device\": 1"),
        r#"{"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "pid": 0, "tid": 20, "ts": 5, "dur": 4,
            "args": {"device": 0, "context": 1, "stream": 20, "correlation": 9, "bytes": 4096, "memory bandwidth (GB/s)": 1.0}},
           {"ph": "X", "cat": "gpu_user_annotation", "name": "decode", "pid": 0, "tid": 7, "ts": 9, "dur": 60},
           {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 7, "tid": 7, "ts": 3.5,
            "args": {"Total Reserved": 4096, "Total Allocated": 2048, "Bytes": 1024, "Addr": 1, "Device Id": 0, "Device Type": 1}},
           {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 7, "tid": 7, "ts": 4.5,
            "args": {"Total Reserved": 4096, "Total Allocated": 1024, "Bytes": -1024, "Addr": 1, "Device Id": 0, "Device Type": 1}},"#
            .to_owned(),
    ];
    let tables = read(&trace(&events.concat())).unwrap();
    let devices: Vec<Option<&str>> = tables
        .iter()
        .filter(|table| table.kind == Kind::Kernels)
        .map(|table| table.device.as_deref())
        .collect();
    assert_eq!(devices, [Some("NVIDIA H200 (GPU 0)"), Some("GPU 1")]);
    let nccl = &tables[0].rows[0];
    assert_eq!((nccl.bytes, nccl.graph_calls), (Some(2000.0), Some(1)));
    assert_eq!(tables[0].has_graphs(), Some(true));
    assert_ne!(tables[1].has_graphs(), Some(true));
    assert!(
        tables[0].notes.iter().any(|note| note.starts_with("1 kernel of NCCL takes 100 %")),
        "{:?}",
        tables[0].notes
    );
    let copy = &of_kind(&tables, Kind::MemoryTime).rows[0];
    assert_eq!((copy.bytes, copy.total_ns), (Some(4096.0), Some(4000.0)));
    let memory = of_kind(&tables, Kind::Allocations);
    assert_eq!((row(memory, "GPU 0, allocated").bytes, row(memory, "GPU 0, freed").calls), (Some(1024.0), 1));
    assert!(memory.notes[0].starts_with("GPU 0: at most 2.05 kB in use"), "{:?}", memory.notes);
    assert_eq!(row(of_kind(&tables, Kind::Streams), "GPU 0, stream 20").calls, 1);
    assert_eq!(row(of_kind(&tables, Kind::Ranges), "decode").total_ns, Some(60_000.0));
}

#[test]
fn traces_of_rocm_have_the_terms_of_amd() {
    let [hosts, calls, kernels] = step();
    let text = trace(&[hosts, calls.replace("cudaLaunch", "hipLaunch"), kernels].concat());
    let tables = read(&text.replace("NVIDIA H200", "")).unwrap();
    assert_eq!(tables[0].device.as_deref(), Some("GPU 0"), "the properties have an empty name");
    let shown: Vec<String> =
        tables.iter().map(|table| TableView::new(table, &RowQuery::default()).text()).collect();
    let shown = shown.join("\n");
    assert!(shown.contains("HIP calls") && shown.contains("HIP function"), "{shown}");
    assert!(shown.contains("requires counters (rocprofv3 --pmc)"), "{shown}");
    assert!(!shown.contains("CUDA") && !shown.contains("ncu"), "{shown}");
}

#[test]
fn events_of_mtia_are_device_work() {
    let [hosts, calls, kernels] = step();
    let calls = calls.replace("cuda_runtime", "mtia_runtime").replace("cudaLaunchKernel", "mtiaLaunch");
    let kernels = kernels.replace("\"kernel\"", "\"mtia_ccp_events\"");
    let tables = read(&trace(&[hosts, calls, kernels].concat())).unwrap();
    assert_eq!((tables[0].kind, tables[0].calls()), (Kind::Kernels, 2));
    assert!(tables[0].busy.is_some());
    assert_eq!(of_kind(&tables, Kind::ApiCalls).source, "PyTorch trace, calls of the runtime");
}

/// vLLM and SGLang name every step with its requests and tokens: the steps of a phase are one row.
#[test]
fn steps_that_engines_name_are_rows_by_phase() {
    let step = |name: &str, at: f64, us: f64| {
        format!(
            r#"{{"ph": "X", "cat": "gpu_user_annotation", "name": "{name}", "pid": 0, "tid": 7, "ts": {at}, "dur": {us}}},"#
        )
    };
    let events = [
        kernel("k", 1.0, 10.0, 1, ""),
        step("execute_16_context_0(sq0sk0)_generation_16(sq16sk8401)", 0.0, 50.0),
        step("execute_17_context_0(sq0sk0)_generation_17(sq17sk8999)", 60.0, 52.0),
        step("step[DECODE bs=16]", 120.0, 48.0),
        step("step[EXTEND bs=2 toks=600]", 200.0, 300.0),
        step("execute_515_context_1(sq512sk512)_generation_3(sq3sk90)", 600.0, 90.0),
        step("my range", 800.0, 5.0),
    ];
    let tables = read(&trace(&events.concat())).unwrap();
    let ranges = of_kind(&tables, Kind::Ranges);
    let rows: Vec<(&str, u64, Option<f64>)> =
        ranges.rows.iter().map(|row| (row.name.as_str(), row.calls, row.total_ns)).collect();
    assert_eq!(
        rows,
        [
            ("prefill steps", 1, Some(300_000.0)),
            ("decode steps", 3, Some(150_000.0)),
            ("mixed steps", 1, Some(90_000.0)),
            ("my range", 1, Some(5_000.0)),
        ]
    );
}

#[test]
fn the_trace_of_nccl_has_pairs_and_bare_words() {
    let text = r#"[
{"name": "Group API", "cat": "GROUP_API", "ph": "b", "id": 0, "pid": 9, "tid": 1, "ts": 10.5, "args": {"groupApiId": 0}},
{"name": "AllReduce", "cat": "COLL_API", "ph": "b", "id": 0, "pid": 9, "tid": 1, "ts": 20.0, "args": {"datatype": ncclFloat32, "Stream": 0x262ca50}},
{"name": "AllReduce", "cat": "COLL_API", "ph": "e", "id": 0, "pid": 9, "tid": 1, "ts": 32.0},
{"name": "Group API", "cat": "GROUP_API", "ph": "e", "id": 0, "pid": 9, "tid": 1, "ts": 40.5},
{}]"#;
    let table = read(text).unwrap().remove(0);
    assert_eq!(row(&table, "COLL_API AllReduce").total_ns, Some(12_000.0));
    assert_eq!(row(&table, "GROUP_API Group API").total_ns, Some(30_000.0));
}

#[test]
fn the_profiler_before_kineto_has_no_categories() {
    let text = r#"[{"name": "aten::add", "ph": "X", "ts": 1.5, "dur": 2, "tid": 1, "pid": "CPU functions", "args": {}},
                   {"name": "k", "ph": "X", "ts": 2, "dur": 3, "tid": 0, "pid": "CUDA functions", "args": {}}]"#;
    let tables = read(text).unwrap();
    assert_eq!(
        (row(&tables[0], "k").total_ns, row(&tables[1], "aten::add").total_ns),
        (Some(3000.0), Some(2000.0))
    );
}

#[test]
fn a_trace_that_ends_early_is_read_up_to_there() {
    let whole = trace(&step().concat());
    let end = whole.find("void gemm").unwrap();
    let tables = read(&whole[..end]).unwrap();
    assert_eq!(tables[0].kind, Kind::Operators);
    assert!(
        tables[0].notes.iter().any(|note| note.contains("only the first 9 events")),
        "{:?}",
        tables[0].notes
    );
}

#[test]
fn other_files_are_refused_with_the_known_formats() {
    for (text, words) in [
        ("{}", "JSON without traceEvents"),
        ("{\"a\": [1, {\"b\": 2}]}", "JSON without traceEvents"),
        ("{\"traceEvents\": 5}", "not a trace of events"),
        ("{ no json", "not a trace of events"),
    ] {
        let e = read(text).unwrap_err().to_string();
        assert!(e.contains("trace.json") && e.contains(words) && e.contains("PyTorch (trace"), "{e}");
    }
    let e = read("{\"traceEvents\": [{\"ph\": \"X\", \"cat\": \"other\"}]}").unwrap_err().to_string();
    assert!(
        e.contains("1 events of a trace, none of PyTorch's profiler") && e.contains("torch.profiler"),
        "{e}"
    );
}

#[test]
fn a_compressed_trace() {
    let text = trace(&step().concat());
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    assert_eq!(read_compressed("x.gz", gzip.as_slice()).unwrap().0, read(&text).unwrap());
    let cut = read_compressed("x.gz", &gzip[..gzip.len() * 3 / 4]);
    assert!(cut.is_err_and(|e| e.to_string().contains("x.gz")) || gzip.len() > 100);
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read_trace("any", bytes.as_slice());
        let _ = read_compressed("any", bytes.as_slice());
    }

    #[test]
    fn a_changed_or_cut_trace_is_read_or_rejected(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6), end in any::<prop::sample::Index>(),
    ) {
        let mut bytes = trace(&step().concat()).into_bytes();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(end.index(bytes.len()) + 1);
        if let Ok(tables) = read_trace("any", bytes.as_slice()) {
            prop_assert!(!tables.is_empty() && tables.iter().all(|table| !table.rows.is_empty()));
            for table in &tables {
                let _ = crate::show::TableView::new(table, &Default::default()).text();
            }
        }
    }
}

/// Traces of PyTorch 2.3 on the CPU, and one of a GPU in Kineto's format, compared with a plain reading of the whole JSON.
#[test]
fn totals_are_those_of_a_plain_reading() {
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/torch");
    for name in ["cpu_2_3.json", "backward_2_3.json.gz", "gpu_rank1.json"] {
        let path = fixtures.join(name);
        let tables = crate::open(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let json: Value = match name.ends_with(".gz") {
            true => serde_json::from_reader(gz::decompressed(bytes.as_slice())).unwrap(),
            false => serde_json::from_slice(&bytes).unwrap(),
        };
        let events = json["traceEvents"].as_array().unwrap();
        let kernels = kernel_totals(events);
        let shown = tables.iter().find(|table| table.kind == Kind::Kernels);
        assert_eq!(shown.is_some(), !kernels.is_empty(), "{name}");
        for row in shown.map(|table| table.grouped(Group::Name).rows).unwrap_or_default() {
            assert_eq!((row.calls, row.total_ns.unwrap()), kernels[&row.name], "{name}: {}", row.name);
        }
        let operators = operator_totals(events);
        let shown = of_kind(&tables, Kind::Operators);
        assert_eq!(shown.rows.len(), operators.len());
        for row in &shown.rows {
            let (calls, own, with_children) = operators[&row.name];
            assert_eq!((row.calls, row.total_ns), (calls, Some(own)), "{name}: {}", row.name);
            assert_eq!(row.counters.mean("with children"), Some(with_children), "{name}: {}", row.name);
        }
        assert!(
            !tables[0].notes.iter().any(|note| note.contains("could not")),
            "{name}: {:?}",
            tables[0].notes
        );
    }
}

fn ns(value: &Value) -> f64 {
    (value.as_f64().unwrap() * 1000.0).round()
}

fn kernel_totals(events: &[Value]) -> HashMap<String, (u64, f64)> {
    let mut totals: HashMap<String, (u64, f64)> = HashMap::new();
    for event in events.iter().filter(|event| event["cat"] == "kernel") {
        let (calls, sum) = totals.entry(event["name"].as_str().unwrap().to_owned()).or_default();
        *calls += 1;
        *sum += ns(&event["dur"]);
    }
    totals
}

/// Calls, own time and time with children: an operator is within the shortest other event of its thread that encloses it.
fn operator_totals(events: &[Value]) -> HashMap<String, (u64, f64, f64)> {
    let is_host = |event: &&Value| event["cat"] == "cpu_op" || event["cat"] == "user_annotation";
    let host: Vec<&Value> = events.iter().filter(is_host).collect();
    let span = |event: &Value| {
        let start = event["ts"].as_f64().unwrap();
        (start, start + event["dur"].as_f64().unwrap())
    };
    let mut totals: HashMap<String, (u64, f64, f64)> = HashMap::new();
    for (at, event) in host.iter().enumerate() {
        let (start, end) = span(event);
        let encloses = |(other_at, other): &(usize, &&Value)| {
            let (first, last) = span(other);
            // If events have the same times, the first one encloses the others.
            let is_same = (first, last) == (start, end);
            other["tid"] == event["tid"]
                && first <= start
                && end <= last + 1e-6
                && start < last
                && if is_same { *other_at < at } else { true }
        };
        let inner = host.iter().enumerate().filter(encloses).min_by(|(a, x), (b, y)| {
            let length = |event: &Value| event["dur"].as_f64().unwrap();
            length(x).total_cmp(&length(y)).then(b.cmp(a))
        });
        let duration = ns(&event["dur"]);
        if let Some((_, around)) = inner.filter(|(_, around)| around["cat"] == "cpu_op") {
            totals.entry(around["name"].as_str().unwrap().to_owned()).or_default().1 -= duration;
        }
        if event["cat"] == "cpu_op" {
            let (calls, own, all) = totals.entry(event["name"].as_str().unwrap().to_owned()).or_default();
            *calls += 1;
            *own += duration;
            *all += duration;
        }
    }
    totals
}
