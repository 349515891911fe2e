//! The documents of a run are the same whether written live or from a recording, and well-formed for any recording.

use std::{fs, path::Path};

use crate::common::markup::assert_well_formed;
use crate::common::{events, record, run};
use llmprof::{
    event::{Envelope, Event, WorkKind},
    report::{DEFINITIONS, Document, NAMES, documents},
    state::RunState,
};
use proptest::prelude::*;

const DEMOS: [&str; 4] =
    ["assets/demo", "assets/demo/h200_prefill", "assets/demo/h200_decode", "assets/demo/h200_kernels"];

fn demo(name: &str) -> Vec<Envelope> {
    events(&Path::new(env!("CARGO_MANIFEST_DIR")).join(name))
}

fn fold<'a>(events: impl IntoIterator<Item = &'a Envelope>) -> RunState {
    let mut state = RunState::default();
    events.into_iter().for_each(|envelope| state.apply(envelope));
    state
}

fn assert_well_formed_documents(state: &RunState) {
    for document in documents(state) {
        let (name, text) = (document.name, &document.content);
        assert!(text.ends_with('\n') || name.ends_with(".svg"), "{name}");
        match name.rsplit_once('.').unwrap().1 {
            "json" => drop(serde_json::from_str::<serde_json::Value>(text).unwrap()),
            "svg" | "html" => assert_well_formed(name, text),
            _ => {}
        }
        for bad in ["NaN", "inf ", "None", "Some("] {
            assert!(!text.contains(bad), "{name} has {bad}");
        }
    }
}

#[test]
fn every_demo_gives_every_document_and_the_command_writes_the_same() {
    for name in DEMOS {
        let state = fold(&demo(name));
        assert_well_formed_documents(&state);
        let made = documents(&state);
        let missing: Vec<&str> =
            NAMES.into_iter().filter(|name| made.iter().all(|document| document.name != *name)).collect();
        let kernels = state.kernels.decode.total.rows.is_empty().then_some("kernels.svg");
        // One demo has an ncu report.
        let counters = (!name.ends_with("h200_kernels")).then_some("counters.svg");
        let of_servers = ["profile_export_aiperf.json", "vllm_bench.json"];
        let expected: Vec<&str> = kernels.into_iter().chain(counters).chain(of_servers).collect();
        assert_eq!(missing, expected, "{name}");

        let dir = tempfile::tempdir().unwrap();
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        let output = run(dir.path(), &["report", from.to_str().unwrap(), "--out", "out", "--json"]);
        assert_eq!(output.code, 0, "{}", output.err);
        let summary: serde_json::Value = serde_json::from_str(&output.out).unwrap();
        let files: Vec<&str> = summary["files"].as_array().unwrap().iter().flat_map(|f| f.as_str()).collect();
        let names: Vec<&str> = made.iter().map(|document| document.name).chain(["trace.json"]).collect();
        assert_eq!(files, names);
        let trace = fs::read_to_string(dir.path().join("out/trace.json")).unwrap();
        drop(serde_json::from_str::<Vec<serde_json::Value>>(&trace).unwrap());
        for document in made {
            let written = fs::read_to_string(dir.path().join("out").join(document.name)).unwrap();
            assert!(written == document.content, "{} of {name}", document.name);
        }
    }
}

/// Deletes the documents of a run, writes them again, and compares each with the original.
fn assert_reported_again(recorded: &Path) {
    let names = || NAMES.into_iter().chain(["trace.json"]);
    let read = || names().map(|name| (name, fs::read(recorded.join(name)).ok())).collect::<Vec<_>>();
    let live = read();
    names().for_each(|name| drop(fs::remove_file(recorded.join(name))));
    let output = run(recorded, &["report", "."]);
    assert_eq!((output.code, output.err.as_str()), (0, ""), "{}", output.out);
    for ((name, live), (_, again)) in live.into_iter().zip(read()) {
        assert!(live == again, "{name} of {}", recorded.display());
    }
}

#[test]
fn a_run_is_reported_again_as_at_its_end() {
    let dir = tempfile::tempdir().unwrap();
    assert_reported_again(&record(dir.path(), &["runtime.requests=3"]));
}

#[test]
fn kernels_and_incidents_are_reported_again() {
    let dir = tempfile::tempdir().unwrap();
    let overrides = ["profiling.cupti.enable=true", "runtime.sim.scenario=power_cap", "runtime.requests=30"];
    let recorded = record(dir.path(), &overrides);
    let state = fold(&events(&recorded));
    assert!(!state.kernels.decode.total.rows.is_empty(), "there are kernels");
    assert!(!state.flight.incidents.is_empty(), "there are incidents");
    assert_reported_again(&recorded);
}

#[test]
fn a_directory_without_a_run_is_rejected_and_an_incomplete_run_is_remarked() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("events.ndjson");
    let report = || run(dir.path(), &["report", "."]);
    assert!(report().err.contains("a run is a directory with an events.ndjson"));
    for (content, words) in [
        ("", "is empty"),
        ("hello\n", "not a recording of this program"),
        ("{\"t\":0,\"e\":{\"run_started\":{\"schema\":0}}}\n", "schema 0"),
        ("{\"t\":0,\"e\":{\"run_started\":{\"schema\":99}}}\n", "newer version"),
    ] {
        fs::write(&file, content).unwrap();
        let output = report();
        assert!(output.code == 1 && output.err.contains(words), "{content}: {}", output.err);
        assert!(!dir.path().join("report.md").exists());
    }
    let recording =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/demo/events.ndjson")).unwrap();
    let first = recording.find('\n').unwrap() + 1;
    fs::write(&file, &recording[..first]).unwrap();
    let output = report();
    assert!(
        output.code == 0 && output.err.contains("no end") && output.err.contains("nothing was measured"),
        "{}",
        output.err
    );
    fs::write(&file, &recording[..recording.len() / 2]).unwrap();
    let output = report();
    assert!(
        output.code == 0 && output.err.contains("still being recorded, or was interrupted"),
        "{}",
        output.err
    );
    assert!(output.err.contains("ends in the middle of a line"), "{}", output.err);
}

#[test]
fn names_from_outside_stay_text() {
    let mut events = demo(DEMOS[3]);
    for envelope in &mut events {
        match &mut envelope.event {
            Event::RunStarted(run) => run.model = "<script>alert(\"x\")</script> & | `y`".to_owned(),
            Event::GpuFound(info) => info.name = "<b>&\u{1}".to_owned(),
            Event::Kernels(window) => window.rows.iter_mut().for_each(|row| row.family = "<f>&".to_owned()),
            _ => {}
        }
    }
    let state = fold(&events);
    assert_well_formed_documents(&state);
    for Document { name, content } in documents(&state) {
        if name.ends_with(".html") || name.ends_with(".svg") {
            assert!(!content.contains("<script") && !content.contains('\u{1}'), "{name}");
        }
    }
}

#[test]
fn every_number_is_defined_with_its_unit() {
    let metrics = documents(&fold(&demo(DEMOS[0]))).into_iter().find(|d| d.name == "metrics.json").unwrap();
    let metrics: serde_json::Value = serde_json::from_str(&metrics.content).unwrap();
    for (name, value) in metrics["metrics"].as_object().unwrap() {
        let counted = ["from_s", "to_s", "requests", "output_tokens"].contains(&name.as_str());
        assert!(counted || metrics["definitions"][name]["unit"].is_string(), "{name}: {value}");
    }
    assert!(DEFINITIONS.iter().all(|d| ![d.unit, d.formula, d.n].contains(&"")));
}

/// A technical term that a summary for everyone must not contain.
fn jargon(text: &str) -> Option<&str> {
    let words = [
        "MHz",
        "GHz",
        "TTFT",
        "TPOT",
        "ITL",
        "MFU",
        "MBU",
        "FLOP",
        "KV",
        "SM",
        "SMs",
        "CUDA",
        "GPM",
        "ECC",
        "PCIe",
        "NVML",
        "CV",
        "DRAM",
        "p50",
        "p90",
        "p99",
        "ms",
        "µs",
        "J",
        "W",
        "Wh",
        "kernel",
        "kernels",
        "prefill",
        "decode",
        "batch",
        "dtype",
        "throttled",
        "bandwidth",
        "nsys",
        "ncu",
        "bf16",
        "n",
    ];
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '=' || c == '.';
    let word = |token: &&str| words.contains(&token.trim_matches('.'));
    // `runtime.batch_size=1`, `profiling.cupti.enable`.
    let key = |token: &&str| {
        let dotted = token.trim_matches('.').split('.').filter(|part| part.starts_with(char::is_alphabetic));
        token.contains('=')
            || (dotted.count() > 1 && !token.ends_with(".md") && !token.contains("report.html"))
    };
    text.split(|c| !is_part(c)).find(|token| word(token) || key(token))
}

#[test]
fn the_summary_for_everyone_has_no_technical_terms() {
    assert_eq!(jargon("The SM clock"), Some("SM"));
    assert_eq!(jargon("set `profiling.cupti.enable` first"), Some("profiling.cupti.enable"));
    assert_eq!(jargon("see `operators.md`. 4.5 seconds."), None);
    let fixture = "tests/fixtures/h200_qwen2_5_7b";
    for name in DEMOS.into_iter().chain([fixture]) {
        let mut events = demo(name);
        // Names come from other vendors.
        for envelope in &mut events {
            match &mut envelope.event {
                Event::RunStarted(run) => run.model = "model".to_owned(),
                Event::GpuFound(info) => info.name = "card".to_owned(),
                _ => {}
            }
        }
        for part in [events.len() / 2, events.len()] {
            let documents = documents(&fold(&events[..part]));
            let summary = documents.iter().find(|d| d.name == "stakeholder_summary.md").unwrap();
            assert_eq!(jargon(&summary.content), None, "{name}: {}", summary.content);
            assert!(summary.content.lines().count() < 60, "one page: {}", summary.content);
            assert!(summary.content.contains("watt-hours"), "{name}: {}", summary.content);
        }
    }
}

#[test]
fn a_watch_is_summarised_without_requests() {
    let mut events = demo(DEMOS[0]);
    for envelope in &mut events {
        if let Event::RunStarted(run) = &mut envelope.event {
            run.kind = WorkKind::Watch;
        }
    }
    events.retain(|envelope| !matches!(envelope.event, Event::Token(_) | Event::RequestStarted(_)));
    let made = documents(&fold(&events));
    let content = |name: &str| &made.iter().find(|document| document.name == name).unwrap().content;
    let summary = content("stakeholder_summary.md");
    assert_eq!(jargon(&summary.replace("NVIDIA H200", "")), None, "{summary}");
    assert!(!summary.contains("fast") && summary.contains("The GPU was monitored"), "{summary}");
    assert!(!content("report.html").contains("class=\"tiles\""), "there is no latency");
}

/// The text of the first element with this tag.
fn element<'a>(html: &'a str, tag: &str) -> &'a str {
    let from = html.find(&format!("<{tag}")).unwrap_or_else(|| panic!("no {tag}"));
    let name = tag.split(' ').next().unwrap();
    let end = html[from..].find(&format!("</{name}>")).unwrap();
    &html[from..from + end]
}

#[test]
fn a_page_starts_with_the_facts_the_verdict_and_the_numbers() {
    let state = fold(&demo(DEMOS[2]));
    let html = documents(&state).into_iter().find(|d| d.name == "report.html").unwrap().content;
    let facts = element(&html, "dl");
    let info = &state.profiled_gpu().unwrap().info;
    let host = state.host.info.as_ref().unwrap();
    for fact in [&info.name, &info.driver, &host.cpu, "Configuration", "Date", "UTC", "batch 1,"] {
        assert!(facts.contains(fact), "{fact} in {facts}");
    }
    let tiles = element(&html, "ul class=\"tiles\"");
    let labels = ["TTFT", "TPOT", "Decode", "Power", "Trust"].map(|label| format!("<span>{label}</span>"));
    let at: Vec<usize> = labels.iter().map(|label| tiles.find(label).expect(label)).collect();
    assert!(at.is_sorted(), "{tiles}");
    assert_eq!(tiles.matches("n = ").count(), 5, "each has its n: {tiles}");
    let order = ["<dl", "<p class=\"verdict", "<strong>", "<ul class=\"tiles", "<table", "<h2>", "<figure"];
    let at: Vec<usize> = order.iter().map(|tag| html.find(tag).expect(tag)).collect();
    assert!(at.is_sorted(), "{at:?}");
    assert!(html.contains("Content-Security-Policy\" content=\"default-src 'none'"));
    for outside in ["http:", "https:", "src=", "@import", "url("] {
        assert!(!html.replace("http://www.w3.org/2000/svg", "").contains(outside), "{outside}");
    }
}

/// The smallest text of a plot in its units.
fn smallest_text(svg: &str) -> f64 {
    let sizes = svg.split("font-size=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
    sizes.map(|size| size.parse().unwrap()).fold(f64::INFINITY, f64::min)
}

#[test]
fn plots_have_readable_text_and_values_under_the_pointer() {
    for name in [DEMOS[0], DEMOS[3]] {
        let made = documents(&fold(&demo(name)));
        for plot in made.iter().filter(|document| document.name.ends_with(".svg")) {
            // A page of 900 px has 868 px for a plot of 1000 units.
            assert!(0.868 * smallest_text(&plot.content) >= 12.0, "{}", plot.name);
            assert!(plot.content.matches("<title>").count() >= 2, "{}", plot.name);
        }
        let html = &made.iter().find(|document| document.name == "report.html").unwrap().content;
        let wide = html.matches("<div class=\"page\"><svg width=\"1000\"").count();
        let narrow = html.matches("<div class=\"phone\"><svg width=\"360\"").count();
        assert!(wide == narrow && wide >= 5, "{wide} and {narrow}");
    }
}

#[test]
fn an_empty_state_gives_documents() {
    assert_well_formed_documents(&RunState::default());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any part of any recording, with or without its first event.
    #[test]
    fn any_state_gives_documents(which in 0usize..4, from in 0.0..1.0f64, share in 0.0..1.0f64, begun: bool) {
        let events = demo(DEMOS[which]);
        let from = (from * events.len() as f64) as usize;
        let to = from + (share * (events.len() - from) as f64) as usize;
        let head = if begun { &events[..1] } else { &[] };
        assert_well_formed_documents(&fold(head.iter().chain(&events[from..to])));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]

    /// For any simulated run, the documents written at its end equal those made from its events.
    #[test]
    fn any_run_is_reported_again(
        seed in 0u32..1000, batch in 1u32..5, requests in 1u32..12, tokens in 1u32..40, kernels: bool,
        scenario in prop::sample::select(vec!["mixed", "steady", "power_cap", "shared", "consumer"]),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let overrides = [
            format!("runtime.seed={seed}"),
            format!("runtime.batch_size={batch}"),
            format!("runtime.requests={requests}"),
            format!("infer.max_new_tokens={tokens}"),
            format!("profiling.cupti.enable={kernels}"),
            format!("runtime.sim.scenario={scenario}"),
        ];
        assert_reported_again(&record(dir.path(), &overrides.each_ref().map(String::as_str)));
    }
}
