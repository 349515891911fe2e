//! A recording contains the complete run: its replay equals the live state.

use std::{
    cell::RefCell,
    fs::{self, OpenOptions},
    io::Write,
    path::Path,
    time::Duration,
};

use crate::common::{events, program, record, run_dirs, tiny_model};
use llmprof::{
    chrome_trace::ChromeTrace,
    event::{Envelope, Event, Stamp},
    report::{documents, metrics_json, report_md},
    rundir::{EventReader, Next, Player},
    state::RunState,
};
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, TestRunner},
};

fn fold<'a>(events: impl IntoIterator<Item = &'a Envelope>) -> RunState {
    let mut state = RunState::default();
    events.into_iter().for_each(|envelope| state.apply(envelope));
    state
}

fn assert_reports_match(run: &Path) {
    let state = fold(&events(run));
    for document in documents(&state) {
        let written = fs::read_to_string(run.join(document.name)).unwrap();
        assert!(written == document.content, "{} of {}", document.name, run.display());
    }
    let mut trace = ChromeTrace::default();
    let lines: String = events(run).iter().map(|envelope| trace.lines_of(envelope)).collect();
    assert!(fs::read_to_string(run.join("trace.json")).unwrap() == lines, "trace.json of {}", run.display());
}

#[test]
fn reports_of_a_simulated_run_follow_from_its_events() {
    let dir = tempfile::tempdir().unwrap();
    for overrides in [
        &["runtime.requests=30"][..],
        &["runtime.batch_size=3", "runtime.requests=2"],
        &["infer=long", "runtime.requests=5"],
    ] {
        assert_reports_match(&record(dir.path(), overrides));
    }
}

#[test]
fn reports_of_a_measured_run_follow_from_its_events() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path(), |_| ());
    for _ in 0..5 {
        let mut run = program(dir.path());
        run.args(["run", "--quiet", "model.config_json=tiny.json", "runtime.requests=3"]);
        run.args(["infer.max_new_tokens=20", "dataset.prompt_tokens=8"]);
        assert!(run.output().unwrap().status.success());
    }
    let runs = run_dirs(dir.path());
    assert_eq!(runs.len(), 5);
    runs.iter().for_each(|run| assert_reports_match(run));
}

#[test]
fn equal_seeds_give_equal_recordings() {
    let recorded = |overrides: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        let run = record(dir.path(), overrides);
        let mut events = events(&run);
        events.retain(|envelope| !matches!(envelope.event, Event::Observer(_)));
        for envelope in &mut events {
            if let Event::RunStarted(started) = &mut envelope.event {
                (started.started_unix_ms, started.overrides) = (0, Vec::new());
            }
        }
        events
    };
    let (first, again) = (recorded(&["runtime.requests=20"]), recorded(&["runtime.requests=20"]));
    assert_eq!(first, again);
    assert_ne!(first, recorded(&["runtime.requests=20", "runtime.seed=1"]));
}

/// A recording whose lines `change` has modified.
fn changed(change: impl FnOnce(&mut Vec<Vec<u8>>)) -> (tempfile::TempDir, RunState, RunState, EventReader) {
    let dir = tempfile::tempdir().unwrap();
    let run = record(dir.path(), &["runtime.requests=3"]);
    let file = run.join("events.ndjson");
    let live = fold(&events(&run));
    let mut lines: Vec<Vec<u8>> =
        fs::read(&file).unwrap().split_inclusive(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
    change(&mut lines);
    fs::write(&file, lines.concat()).unwrap();
    let mut reader = EventReader::open(&file).unwrap();
    let mut state = RunState::default();
    while let Next::Event(envelope) = reader.read_next().unwrap() {
        state.apply(&envelope);
    }
    (dir, live, state, reader)
}

#[test]
fn a_torn_last_line_loses_only_that_line() {
    let (_dir, live, read, reader) = changed(|lines| {
        let last = lines.last_mut().unwrap();
        last.truncate(last.len() / 2);
    });
    assert!(reader.is_torn());
    assert_eq!((read.events, reader.skipped()), (live.events - 1, 0));
    assert!(read.finished.is_none());
    assert_eq!(metrics_json(&read)["outcome"], "interrupted");
    assert_eq!(metrics_json(&read)["metrics"], metrics_json(&live)["metrics"]);
}

#[test]
fn garbage_is_skipped_and_counted() {
    let garbage: [&[u8]; 6] = [
        b"\n",
        b"{\n",
        b"\xff\xfe\x00\n",
        b"null\n",
        b"{\"t\":1,\"e\":{\"unheard_of\":{}}}\n",
        b"{\"t\":-1,\"e\":\"x\"}\n",
    ];
    let (_dir, live, read, reader) = changed(|lines| {
        for (i, line) in garbage.iter().enumerate() {
            lines.insert(10 * (i + 1), line.to_vec());
        }
    });
    assert_eq!(reader.skipped(), garbage.len() as u64);
    assert_eq!(report_md(&read), report_md(&live));
    assert_eq!(metrics_json(&read), metrics_json(&live));
}

#[test]
fn other_files_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("events.ndjson");
    let cases = [
        ("", "is empty"),
        ("\n", "not a recording of this program"),
        ("hello\n", "not a recording of this program"),
        ("{\"t\":0,\"e\":{\"ready\":{\"prepare_ms\":1}}}\n", "not a recording of this program"),
        (
            "{\"t\":0,\"e\":{\"run_started\":{\"schema\":2,\"new\":true}}}\n",
            "schema 2, this program reads up to 1",
        ),
    ];
    for (content, message) in cases {
        fs::write(&file, content).unwrap();
        let refused = EventReader::open(&file).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(refused.contains(message) && refused.contains("events.ndjson"), "{content:?}: {refused}");
    }
    let missing = EventReader::open(&dir.path().join("none/events.ndjson")).err().unwrap().to_string();
    assert!(missing.contains("none/events.ndjson"), "{missing}");
}

#[test]
fn a_growing_file_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let run = record(dir.path(), &["runtime.requests=1"]);
    let whole = fs::read(run.join("events.ndjson")).unwrap();
    let grown = dir.path().join("events.ndjson");
    let first = whole.iter().position(|b| *b == b'\n').unwrap() + 1;
    fs::write(&grown, &whole[..first]).unwrap();
    let mut reader = EventReader::open(&grown).unwrap();
    let mut out = OpenOptions::new().append(true).open(&grown).unwrap();
    let mut read = Vec::new();
    // Pieces that mostly end within a line.
    for piece in whole[first..].chunks(37) {
        while let Next::Event(envelope) = reader.read_next().unwrap() {
            read.push(envelope);
        }
        out.write_all(piece).unwrap();
    }
    while let Next::Event(envelope) = reader.read_next().unwrap() {
        read.push(envelope);
    }
    assert_eq!(read, events(&run));
    assert_eq!(reader.skipped(), 0);
}

#[derive(Debug, Clone)]
enum Step {
    Seek(f64),
    Advance(u64),
    Faster,
    Slower,
    TogglePlay,
    End,
}

#[test]
fn the_player_shows_the_fold_up_to_its_position() {
    let dir = tempfile::tempdir().unwrap();
    // Long enough for a few checkpoints.
    let run = record(dir.path(), &["infer=long", "runtime.requests=90"]);
    let events = events(&run);
    let end = events.last().unwrap().t;
    let file = run.join("events.ndjson");
    assert!(fs::metadata(&file).unwrap().len() > 3 << 20);
    let mut player = Player::open(move || EventReader::open(&file)).unwrap();
    while player.load(Duration::from_secs(1)).unwrap() {}
    assert!(player.complete() && player.warning().is_none());
    assert_eq!(player.state().events, fold(events.iter().take_while(|e| e.t <= Stamp::default())).events);
    let player = RefCell::new(player);
    let step = prop_oneof![
        4 => (0.0..1.1).prop_map(Step::Seek),
        3 => (0u64..20_000).prop_map(Step::Advance),
        1 => Just(Step::Faster),
        1 => Just(Step::Slower),
        1 => Just(Step::TogglePlay),
        1 => Just(Step::End),
    ];
    let mut runner = TestRunner::new(Config { cases: 8, failure_persistence: None, ..Config::default() });
    // One player for all cases: its earlier position must not matter.
    let outcome = runner.run(&vec(step, 1..6), |steps| {
        let mut player = player.borrow_mut();
        for step in steps {
            match step {
                Step::Seek(share) => player.seek(Stamp::from_secs_f64(share * end.secs())).unwrap(),
                Step::Advance(ms) => drop(player.advance(Duration::from_millis(ms)).unwrap()),
                Step::Faster => player.faster(),
                Step::Slower => player.slower(),
                Step::TogglePlay => player.toggle_play().unwrap(),
                Step::End => player.to_end(),
            }
        }
        let at = player.position().at;
        let expected = fold(events.iter().take_while(|envelope| envelope.t <= at));
        prop_assert_eq!(player.state().events, expected.events, "at {:?}", at);
        prop_assert!(format!("{:?}", player.state()) == format!("{expected:?}"), "at {:?}", at);
        Ok(())
    });
    outcome.unwrap();
}

/// Qwen2.5-7B, recorded on an H200.
#[test]
fn a_recording_from_a_gpu_has_its_measurements() {
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/h200_qwen2_5_7b");
    let state = fold(&events(&run));
    let metrics = state.total.summary();
    assert_eq!((metrics.requests, metrics.itl_ms.n), (12, 6132));
    // The GPU's clock and the host's agree on the step, and the GPU was hardly idle.
    let (host, device) = (metrics.itl_ms.p50.unwrap(), metrics.device_step_ms.unwrap().p50.unwrap());
    assert!((host / device - 1.0).abs() < 0.01, "{host} {device}");
    assert!(metrics.device_share.unwrap() > 0.97);
    // Prefills reach the power limit.
    let gpu = state.profiled_gpu().unwrap();
    assert!(gpu.reasons.iter().any(|(bit, _)| *bit == 0x4));
    let report = report_md(&state);
    assert!(
        report.contains("| GPU step | 6,132 |") && report.contains("| steps beyond the bound | "),
        "{report}"
    );
}
