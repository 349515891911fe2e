//! The export of every pane: a well-formed SVG, the text of the screen, and data that reads back.

use std::{collections::HashMap, fs, path::Path};

use llmprof::{
    rundir::list_runs,
    tui::{
        export::{Contents, export},
        run_tree::RunTree,
        ui::{Arrangement, SelectedToken},
    },
};
use ratatui::layout::Rect;

use super::*;
use crate::common::markup::assert_well_formed;

const DEMOS: [&str; 4] = ["", "h200_prefill/", "h200_decode/", "h200_kernels/"];

fn demo(name: &str) -> RunState {
    let path = format!("{}/assets/demo/{name}events.ndjson", env!("CARGO_MANIFEST_DIR"));
    let mut player = Player::open(move || EventReader::open(path.as_ref())).unwrap();
    player.seek(Stamp::from_secs_f64(f64::MAX / 1e10)).unwrap();
    player.state().clone()
}

/// The table as a CSV reader sees it.
fn read(csv: &str) -> (Vec<String>, Vec<HashMap<String, String>>) {
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let titles: Vec<String> = reader.headers().unwrap().iter().map(str::to_owned).collect();
    let rows = reader.records().map(|row| {
        let row = row.unwrap();
        assert_eq!(row.len(), titles.len(), "{row:?}");
        titles.iter().cloned().zip(row.iter().map(str::to_owned)).collect()
    });
    let rows = rows.collect();
    (titles, rows)
}

fn numbers(rows: &[HashMap<String, String>], title: &str) -> Vec<f64> {
    rows.iter().filter(|row| !row[title].is_empty()).map(|row| row[title].parse().unwrap()).collect()
}

fn with_view<T>(state: &RunState, ui: &UiState, use_it: impl FnOnce(&View<'_>) -> T) -> T {
    let theme = Theme::new(ui.theme, Depth::True, Glyphs::UNICODE);
    let snapshots: Vec<Snapshot> = state.snapshots.iter().cloned().collect();
    let comparison = match &snapshots[..] {
        [.., a, b] => a
            .sample
            .as_ref()
            .zip(b.sample.as_ref())
            .map(|(a, b)| compare(a, b, &Options { subject: Subject::Snapshots, ..Options::default() })),
        _ => None,
    };
    let view =
        View { snapshots: &snapshots, comparison: comparison.as_ref(), ..View::new(state, ui, &theme) };
    use_it(&view)
}

fn contents(state: &RunState, ui: &UiState, (width, height): (u16, u16)) -> Contents {
    with_view(state, ui, |view| Contents::new(view, Rect::new(0, 0, width, height)))
}

/// As the test backend prints it, without quotes and trailing blanks.
fn plain(screen: &str) -> String {
    let line = |line: &str| line.trim_matches('"').trim_end().to_owned() + "\n";
    screen.lines().map(line).collect()
}

#[test]
fn every_pane_of_every_recording_is_exported() {
    let mut states: Vec<(String, RunState)> =
        DEMOS.iter().map(|name| (format!("demo {name}"), demo(name))).collect();
    states.push(("no data".into(), RunState::default()));
    states.push(("no gpu".into(), without_gpu()));
    states.push(("several gpus".into(), several_gpus()));
    states.push(("kernels".into(), with_kernels(true)));
    states.push(("snapshots".into(), two_snapshots(1.2)));
    for (of, state) in &states {
        for pane in Pane::ALL {
            for size in [(120, 40), (30, 8), (1, 1)] {
                let mut ui = showing(pane);
                let screen = drawn(state, &ui, Glyphs::UNICODE, size);
                // Overlays and messages are not exported.
                ui.overlay = Overlay::Help { scroll: 0 };
                ui.message = Some("a message".into());
                let made = contents(state, &ui, size);
                assert_well_formed(of, &made.svg);
                assert_eq!(made.text, plain(&screen), "{of} {pane:?}");
                let (titles, rows) = read(&made.csv);
                assert!(titles.len() > 1 && titles.iter().all(|title| !title.is_empty()), "{of} {pane:?}");
                let odd = ["NaN", "inf", "-inf", "None"];
                assert!(rows.iter().flat_map(|row| row.values()).all(|cell| !odd.contains(&cell.as_str())));
            }
        }
    }
}

#[test]
fn exported_numbers_equal_those_of_the_state() {
    let state = demo("h200_decode/");
    let rows_of = |state: &RunState, pane| read(&contents(state, &showing(pane), (120, 40)).csv).1;

    let overview = rows_of(&state, Pane::Overview);
    let value = |part: &str, name: &str, what: &str| -> Option<f64> {
        let row =
            overview.iter().find(|row| row["part"] == part && row["name"] == name && row["what"] == what)?;
        row["value"].parse().ok()
    };
    let total = state.total.summary();
    assert!(total.itl_ms.p99.is_some());
    assert_eq!(value("latency", "ITL", "p99"), total.itl_ms.p99);
    assert_eq!(value("latency", "TTFT", "n"), Some(total.ttft_ms.n as f64));
    assert_eq!(value("throughput", "decode", "mean"), total.decode_tok_s);
    assert_eq!(value("throughput", "MFU", "share"), state.mfu().map(|used| used.share));
    let verdict = overview.iter().find(|row| row["part"] == "verdict").unwrap();
    assert!(verdict["value"].contains("Decode"), "{verdict:?}");

    let gpu = state.main_gpu().unwrap();
    let power: Vec<_> =
        rows_of(&state, Pane::Gpu).into_iter().filter(|row| row["reading"] == "power_w").collect();
    let ui = showing(Pane::Gpu);
    let (from, to) = with_view(&state, &ui, |view| view.time_range());
    let kept: Vec<f64> = gpu
        .series(Reading::Power)
        .within(from, to)
        .map(|(_, b)| b.max.to_string().parse().unwrap())
        .collect();
    assert!(!kept.is_empty());
    assert_eq!(numbers(&power, "max"), kept);
    assert!(numbers(&power, "t_s").iter().all(|t| (from.secs()..=to.secs()).contains(t)));

    let tokens = rows_of(&state, Pane::Tokens);
    let marks: Vec<_> = state.trail.window(0, usize::MAX).collect();
    assert_eq!(tokens.len(), marks.len());
    let gaps: Vec<f64> = marks.iter().map(|mark| mark.gap_ns as f64 / 1e6).collect();
    assert_eq!(numbers(&tokens, "since_last_ms"), gaps);
    assert_eq!(tokens.last().unwrap()["token"], (state.trail.count() - 1).to_string());
    let marked = tokens.iter().filter(|row| !row["incident"].is_empty()).count();
    assert!(marked <= state.flight.incidents.len());

    let points = state.roofline().points;
    let rows = rows_of(&state, Pane::Roofline);
    let (ceilings, rows): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row["kind"] == "ceiling");
    assert_eq!((ceilings.len(), rows.len()), (2, points.len()));
    assert_eq!(numbers(&rows, "seconds"), points.iter().map(|point| point.timed.seconds).collect::<Vec<_>>());

    assert_eq!(rows_of(&state, Pane::Log).len(), state.log.len());
}

#[test]
fn the_export_follows_selection_and_filter() {
    // The source, the grouping and the filter of kernels.
    let state = with_kernels(true);
    let mut ui = showing(Pane::Kernels);
    let counted = read(&contents(&state, &ui, (120, 40)).csv);
    assert!(counted.0.iter().any(|title| title.starts_with("dram__")), "{:?}", counted.0);
    assert!(counted.1.iter().all(|row| row["source"] == "ncu decode kernels"));
    ui.kernels.source = Some(1);
    let (titles, live) = read(&contents(&state, &ui, (120, 40)).csv);
    assert_eq!(titles.last().unwrap(), "class");
    assert!(live.iter().all(|row| row["source"] == "live decode" && row["steps"] == "500"), "{live:?}");
    assert!((numbers(&live, "share_pct").iter().sum::<f64>() - 100.0).abs() < 1e-6);
    assert!(live.iter().any(|row| row["class"] == "memory"), "{live:?}");
    ui.kernels.filter = "gate_up".into();
    let found = read(&contents(&state, &ui, (120, 40)).csv).1;
    assert_eq!((found.len(), found[0]["name"].as_str()), (1, "gate_up"));

    // The lines of the log.
    let state = without_gpu();
    let mut ui = showing(Pane::Log);
    ui.log_filter = "no line has this".into();
    assert_eq!(read(&contents(&state, &ui, (80, 24)).csv).1.len(), 0);

    // The seconds around an incident, and tokens up to the last one of the strip.
    let state = running();
    let incident = state.flight.incidents.last().unwrap();
    let ui = UiState { incident_open: Some(incident.at), ..showing(Pane::Tokens) };
    let around = read(&contents(&state, &ui, (80, 24)).csv).1;
    assert_eq!(around.len(), incident.tokens.len());
    let at = around.iter().find(|row| row["token"] == incident.token.to_string());
    assert!(at.is_none_or(|row| row["incident"] == incident.describe()), "{at:?}");
    let ui = UiState {
        token: Some(SelectedToken { number: state.trail.count() - 30, end: state.trail.count() - 10 }),
        ..showing(Pane::Tokens)
    };
    let before = read(&contents(&state, &ui, (80, 24)).csv).1;
    assert_eq!(before.last().unwrap()["token"], (state.trail.count() - 10).to_string());

    // The comparison, or one snapshot and the time since.
    let mut state = two_snapshots(1.2);
    let judged = read(&contents(&state, &showing(Pane::Compare), (120, 40)).csv).1;
    let tpot = judged.iter().find(|row| row["metric"] == "tpot.mean").unwrap();
    assert_eq!((tpot["verdict"].as_str(), tpot["unit"].as_str()), ("slower", "ms"));
    assert!((tpot["ratio"].parse::<f64>().unwrap() - 1.2).abs() < 0.01, "{tpot:?}");
    assert_eq!((tpot["a_name"].as_str(), tpot["b_name"].as_str()), ("before", "after"));
    state.snapshots.pop_back();
    let (titles, _) = read(&contents(&state, &showing(Pane::Compare), (120, 40)).csv);
    assert_eq!(titles, ["metric", "unit", "before", "since then"]);
}

#[test]
fn a_sweep_without_snapshots_exports_its_jobs() {
    let mut state = running();
    state.snapshots.clear();
    let (ui, working) = (showing(Pane::Compare), sweep(true));
    let csv = with_view(&state, &ui, |view| {
        let view = View {
            sweep: Some(SweepView { sweep: &working, cooling: None, elsewhere: None, progress: None }),
            ..*view
        };
        Contents::new(&view, Rect::new(0, 0, 120, 40)).csv
    });
    let (_, rows) = read(&csv);
    assert_eq!(rows.len(), 3, "jobs that have ended");
    assert_eq!((rows[0]["model"].as_str(), rows[2]["outcome"].as_str()), ("smollm2_135m", "failed"));
}

#[test]
fn runs_are_exported_as_listed() {
    let runs = list_runs(&Path::new(env!("CARGO_MANIFEST_DIR")).join("assets"));
    assert!(!runs.is_empty());
    let tree = RunTree::new(runs, Arrangement::default());
    let (state, ui) = (RunState::default(), showing(Pane::Runs));
    let csv = with_view(&state, &ui, |view| {
        Contents::new(&View { runs: &tree, ..*view }, Rect::new(0, 0, 120, 40)).csv
    });
    let (_, rows) = read(&csv);
    assert_eq!(rows.len(), tree.entries().len());
    // A recording without a result has empty cells.
    assert!(rows.iter().all(|row| row["decode_tok_s"].is_empty() && row["outcome"].is_empty()), "{rows:?}");
    assert!(rows[0]["recorded"].parse::<jiff::Timestamp>().is_ok());
}

#[test]
fn files_are_in_the_run_directory_and_named_by_time() {
    let run = tempfile::tempdir().unwrap();
    let state = running();
    let ui = showing(Pane::Overview);
    let write =
        || with_view(&state, &ui, |view| export(view, Rect::new(0, 0, 80, 24), Some(run.path())).unwrap());
    let (first, second) = (write(), write());
    let name = format!("overview-{:.3}s", state.now.secs());
    assert_eq!((first.name.as_str(), second.name), (name.as_str(), format!("{name}-2")));
    assert!(first.to_string().contains(&*run.path().join("exports").to_string_lossy()), "{first}");
    let made = contents(&state, &ui, (80, 24));
    for (ending, content) in [("svg", made.svg), ("txt", made.text), ("csv", made.csv)] {
        let kept = fs::read_to_string(first.dir.join(format!("{name}.{ending}"))).unwrap();
        assert!(kept == content, "{ending}");
    }
}
