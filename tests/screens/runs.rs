//! The Runs pane: a tree of recorded runs, its questions and its columns.

use std::path::{Path, PathBuf};

use llmprof::{
    rundir::{RecordedKind, RunEntry, RunKind},
    tui::{
        run_tree::{Item, RunTree},
        ui::{Arrangement, Deletion, GroupKey},
    },
};
use serde_json::json;

use super::*;

/// A run below `runs/EXPERIMENT/MODEL/NAME`.
fn entry(experiment: &str, model: &str, name: &str, overrides: &[&str]) -> RunEntry {
    let dir = Path::new("runs").join(experiment).join(model).join(name);
    let kind = RunKind {
        dtype: Some("bf16".into()),
        batch: Some(1),
        overrides: overrides.iter().map(|text| (*text).to_owned()).collect(),
        ..RunKind::default()
    };
    RunEntry {
        experiment: experiment.into(),
        model: model.into(),
        name: name.into(),
        kind,
        answers: true,
        ..RunEntry::silent(Path::new("runs"), &dir)
    }
}

/// With a result; `loss_pct` of the power cap.
fn ended(entry: RunEntry, outcome: &str, (ttft, tpot): (f64, f64), loss_pct: Option<f64>) -> RunEntry {
    let latency =
        |ms: f64| json!({"n": 20, "mean": ms, "p50": ms, "p90": ms, "p99": null, "min": ms, "max": ms});
    let causes: Vec<_> = loss_pct
        .map(|pct| json!({"reason": "power cap", "fault": true, "cost_pct": pct}))
        .into_iter()
        .collect();
    let doubts = if loss_pct.is_some() { vec!["the GPU was throttled"] } else { vec![] };
    let verdict = match loss_pct {
        Some(_) => "Prefill is power-capped: about 16 % slower than without the cap.",
        None => "Not throttled.",
    };
    let result = json!({
        "outcome": outcome,
        "metrics": {
            "from_s": 0.0, "to_s": 9.0, "requests": 20, "output_tokens": 1280, "ttft_ms": latency(ttft),
            "tpot_ms": latency(tpot), "itl_ms": latency(tpot), "prefill_tok_s": null, "decode_tok_s": 1000.0 / tpot,
        },
        "diagnosis": {"verdict": verdict, "throttled": loss_pct.is_some(), "causes": causes},
        "trust": {"score": 5 - doubts.len(), "of": 5, "doubts": doubts},
    });
    RunEntry { result: Some(serde_json::from_value(result).unwrap()), ..entry }
}

fn sweep_dir() -> PathBuf {
    "runs/baseline/multirun/2026-11-15_21-24-58".into()
}

fn tree(arrangement: Arrangement) -> RunTree {
    let live =
        entry("baseline", "qwen2_5_7b", "2026-11-16_03-45-28", &["runtime.cuda_graphs=true", "seed=1"]);
    let mut runs = vec![
        RunEntry { running: true, ..live },
        ended(
            entry("baseline", "qwen2_5_7b", "2026-11-16_03-12-01", &["runtime.cuda_graphs=false", "seed=1"]),
            "completed",
            (43.1, 3.79),
            Some(15.7),
        ),
        ended(entry("baseline", "qwen2_5_7b", "before the fix", &["seed=1"]), "completed", (42.9, 4.4), None),
        entry("baseline", "qwen2_5_7b", "2026-11-15_23-00-00", &["seed=1"]),
    ];
    for (nth, batch) in [1, 4, 16].into_iter().enumerate() {
        let swept = format!("runtime.batch_size={batch}");
        let run = entry("baseline", "qwen2_5_7b", &nth.to_string(), &["seed=1", &swept]);
        let run = ended(run, "completed", (43.0 * f64::from(batch), 3.7 + 0.1 * f64::from(batch)), None);
        let kind = RunKind { batch: Some(batch), ..run.kind.clone() };
        runs.push(RunEntry { sweep: Some(sweep_dir()), kind, ..run });
    }
    let simulated =
        entry("baseline", "smollm2_135m", "2026-11-14_10-00-00", &["model=smollm2_135m", "runtime=sim"]);
    let kind = RunKind { simulated: true, ..simulated.kind.clone() };
    runs.push(ended(RunEntry { kind, ..simulated }, "interrupted", (3.7, 3.8), None));
    runs.push(ended(
        entry("quantised", "qwen3_8b", "2026-11-13_10-00-00", &["model.quant=int4"]),
        "failed",
        (120.0, 12.3),
        None,
    ));
    runs.push(RunEntry::silent(Path::new("runs"), Path::new("runs/far/away")));
    RunTree::new(runs, arrangement)
}

fn runs_drawn(tree: &RunTree, ui: &UiState, glyphs: Glyphs, (width, height): (u16, u16)) -> String {
    let theme = Theme::new(ui.theme, Depth::True, glyphs);
    let state = RunState::default();
    let view = View { runs: tree, ..View::new(&state, ui, &theme) };
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| frame.render_widget(Frame(view), frame.area())).unwrap();
    terminal.backend().to_string()
}

#[test]
fn runs_are_a_tree() {
    let at_all = |tree: &RunTree, ui: &UiState| {
        let screen = |size: (u16, u16)| {
            format!("{}x{}\n{}", size.0, size.1, runs_drawn(tree, ui, Glyphs::UNICODE, size))
        };
        [(80, 24), (160, 30), (30, 8)].map(screen).join("\n")
    };
    let mut ui = showing(Pane::Runs);
    ui.runs.marked = Some("runs/baseline/qwen2_5_7b/before the fix".into());
    let folded = tree(Arrangement::default());
    ui.runs.row = folded
        .rows()
        .iter()
        .position(|row| matches!(&row.item, Item::Run(run) if run.title == "11-16 03:12:01"));
    insta::assert_snapshot!("runs_tree", at_all(&folded, &ui));
    let toggled = [GroupKey::Sweep(sweep_dir())].into();
    let unfolded = tree(Arrangement { toggled, ..Arrangement::default() });
    ui.runs.row = unfolded
        .rows()
        .iter()
        .position(|row| matches!(&row.item, Item::Group(group) if matches!(group.key, GroupKey::Sweep(_))));
    insta::assert_snapshot!("runs_sweep", at_all(&unfolded, &ui));
    for (width, height) in
        [(200, 50), (120, 40), (100, 20), (80, 24), (60, 16), (44, 10), (30, 8), (13, 4), (1, 1)]
    {
        for row in 0..unfolded.rows().len() {
            ui.runs.row = Some(row);
            let ascii = runs_drawn(&unfolded, &ui, Glyphs::ASCII, (width, height));
            assert!(ascii.is_ascii(), "{ascii}");
        }
    }
}

#[test]
fn a_deletion_names_the_deleted_runs() {
    let tree = tree(Arrangement::default());
    let mut ui = showing(Pane::Runs);
    for (kind, words) in [
        (RecordedKind::Run, "Delete the run runs/"),
        (RecordedKind::Job, "It is a job of a sweep"),
        (RecordedKind::Sweep, "with all its runs"),
    ] {
        let path = "runs/baseline/qwen2_5_7b/2026-11-16_03-12-01".into();
        ui.overlay = Overlay::ConfirmDelete(Deletion { path, kind, bytes: 1_460_000 });
        let screen = runs_drawn(&tree, &ui, Glyphs::UNICODE, (120, 40));
        assert!(screen.contains(words) && screen.contains("(1.46 MB)?"), "{screen}");
        assert!(runs_drawn(&tree, &ui, Glyphs::ASCII, (30, 8)).is_ascii());
    }
}

#[test]
fn empty_panes_of_a_watch_have_no_tab() {
    let mut state = RunState::default();
    let t = Stamp(1);
    let mut apply = |event: Event| state.apply(&Envelope { t, event });
    apply(Event::RunStarted(Box::new(RunStarted { kind: WorkKind::Watch, ..run_started() })));
    apply(Event::GpuFound(Box::new(GpuInfo { name: "NVIDIA H200".into(), ..GpuInfo::default() })));
    let ui = showing(Pane::Gpu);
    let footer = |screen: &str| screen.lines().last().unwrap_or_default().to_owned();
    let wide = footer(&drawn(&state, &ui, Glyphs::UNICODE, (120, 40)));
    assert!(wide.contains("2 GPU") && wide.contains("+8 empty"), "{wide}");
    assert!(
        !wide.contains("Overview")
            && !wide.contains("Tokens")
            && !wide.contains("pause")
            && wide.contains("q quit"),
        "{wide}"
    );
    let help = UiState { overlay: Overlay::Help { scroll: 0 }, ..ui.clone() };
    let help = drawn(&state, &help, Glyphs::UNICODE, (120, 40));
    assert!(help.contains("with power and clock (empty)"), "{help}");
    let notice = Notice { level: Level::Info, source: "gpu".into(), text: "a message".into() };
    state.apply(&Envelope { t, event: Event::Notice(notice) });
    let footer = footer(&drawn(&state, &ui, Glyphs::UNICODE, (80, 24)));
    assert!(footer.contains("8 Log") && footer.contains("+7 empty"), "{footer}");
}
