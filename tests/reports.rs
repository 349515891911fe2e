//! The documents of a run: the same however they are made, whole whatever the recording is like.

mod common;
#[path = "common/markup.rs"]
mod markup;

use std::{fs, path::Path};

use common::{events, record, run};
use llmprof::{
    event::{Envelope, Event},
    report::{DEFINITIONS, Document, NAMES, documents},
    state::RunState,
};
use markup::assert_well_formed;
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

fn assert_whole(state: &RunState) {
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
        assert_whole(&state);
        let made = documents(&state);
        let missing: Vec<&str> =
            NAMES.into_iter().filter(|name| made.iter().all(|document| document.name != *name)).collect();
        let no_kernels = state.kernels.decode.rows.is_empty();
        assert_eq!(missing, if no_kernels { vec!["kernels.svg"] } else { vec![] }, "{name}");

        let dir = tempfile::tempdir().unwrap();
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        let said = run(dir.path(), &["report", from.to_str().unwrap(), "--out", "out", "--json"]);
        assert_eq!(said.code, 0, "{}", said.err);
        let told: serde_json::Value = serde_json::from_str(&said.out).unwrap();
        let files: Vec<&str> = told["files"].as_array().unwrap().iter().flat_map(|f| f.as_str()).collect();
        let names: Vec<&str> = made.iter().map(|document| document.name).chain(["trace.json"]).collect();
        assert_eq!(files, names);
        let trace = fs::read_to_string(dir.path().join("out/trace.json")).unwrap();
        drop(serde_json::from_str::<Vec<serde_json::Value>>(&trace).unwrap());
        for document in made {
            let kept = fs::read_to_string(dir.path().join("out").join(document.name)).unwrap();
            assert!(kept == document.content, "{} of {name}", document.name);
        }
    }
}

/// Removes the documents of a run, has them made anew, and holds each against what was there.
fn assert_reported_anew(recorded: &Path) {
    let names = || NAMES.into_iter().chain(["trace.json"]);
    let read = || names().map(|name| (name, fs::read(recorded.join(name)).ok())).collect::<Vec<_>>();
    let live = read();
    names().for_each(|name| drop(fs::remove_file(recorded.join(name))));
    let said = run(recorded, &["report", "."]);
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{}", said.out);
    for ((name, live), (_, anew)) in live.into_iter().zip(read()) {
        assert!(live == anew, "{name} of {}", recorded.display());
    }
}

#[test]
fn a_run_is_reported_anew_as_it_was_at_its_end() {
    let dir = tempfile::tempdir().unwrap();
    assert_reported_anew(&record(dir.path(), &["runtime.requests=3"]));
}

#[test]
fn kernels_and_incidents_are_reported_anew_too() {
    let dir = tempfile::tempdir().unwrap();
    let overrides = ["profiling.cupti.enable=true", "runtime.sim.scenario=power_cap", "runtime.requests=30"];
    let recorded = record(dir.path(), &overrides);
    let state = fold(&events(&recorded));
    assert!(!state.kernels.decode.rows.is_empty(), "there are kernels");
    assert!(!state.flight.incidents.is_empty(), "there are incidents");
    assert_reported_anew(&recorded);
}

#[test]
fn what_is_no_run_is_refused_by_name_and_what_is_half_a_run_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("events.ndjson");
    let report = || run(dir.path(), &["report", "."]);
    assert!(report().err.contains("a run is a directory with an events.ndjson in it"));
    for (content, words) in [
        ("", "is empty"),
        ("hello\n", "not a recording of this program"),
        ("{\"t\":0,\"e\":{\"run_started\":{\"schema\":0}}}\n", "schema 0"),
        ("{\"t\":0,\"e\":{\"run_started\":{\"schema\":99}}}\n", "newer version"),
    ] {
        fs::write(&file, content).unwrap();
        let said = report();
        assert!(said.code == 1 && said.err.contains(words), "{content}: {}", said.err);
        assert!(!dir.path().join("report.md").exists());
    }
    let whole =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/demo/events.ndjson")).unwrap();
    let first = whole.find('\n').unwrap() + 1;
    fs::write(&file, &whole[..first]).unwrap();
    let said = report();
    assert!(
        said.code == 0 && said.err.contains("no end") && said.err.contains("nothing was measured"),
        "{}",
        said.err
    );
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let said = report();
    assert!(said.code == 0 && said.err.contains("still being written, or was cut off"), "{}", said.err);
    assert!(said.err.contains("ends within a line"), "{}", said.err);
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
    assert_whole(&state);
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

#[test]
fn nothing_at_all_gives_documents_too() {
    assert_whole(&RunState::default());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any piece of any recording, its beginning kept or not.
    #[test]
    fn any_state_gives_documents(which in 0usize..4, from in 0.0..1.0f64, share in 0.0..1.0f64, begun: bool) {
        let events = demo(DEMOS[which]);
        let from = (from * events.len() as f64) as usize;
        let to = from + (share * (events.len() - from) as f64) as usize;
        let head = if begun { &events[..1] } else { &[] };
        assert_whole(&fold(head.iter().chain(&events[from..to])));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any simulated run: what it wrote at its end is what its events give.
    #[test]
    fn any_run_is_reported_anew(
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
        assert_reported_anew(&record(dir.path(), &overrides.each_ref().map(String::as_str)));
    }
}
