//! Memory does not grow with the length of a run, neither while it is monitored nor during replay.

use std::{path::Path, time::Duration};

use crate::support::MadeUpRun;
use llmprof::{
    event::Stamp,
    rundir::{EventReader, Player, Recorder, RunDir},
    state::RunState,
    workload::heap,
};

/// At most 32 checkpoints, and the two states at head and view.
const MOST_STATES: usize = 34;

/// Heap bytes held by the result of `make` and allocated by this thread.
fn held_bytes<T>(make: impl FnOnce() -> T) -> usize {
    let before = heap::checkpoint().unwrap();
    let made = make();
    let held = before.held_bytes();
    drop(made);
    held as usize
}

fn folded(run: MadeUpRun) -> RunState {
    let mut state = RunState::default();
    run.for_each(|envelope| state.apply(&envelope));
    state
}

fn recorded(run: MadeUpRun, below: &Path) -> RunDir {
    let dir = RunDir::create(&below.join("run")).unwrap();
    let mut recorder = Recorder::create(&dir, 0, Duration::from_secs(1)).unwrap();
    run.for_each(|envelope| recorder.record(&envelope));
    recorder.flush();
    dir
}

fn played(run: &RunDir) -> Player {
    let events = run.events();
    let mut player = Player::open(move || EventReader::open(&events)).unwrap();
    while player.load(Duration::from_secs(1)).unwrap() {}
    player.seek(Stamp(player.position().end.0 / 2)).unwrap();
    player
}

#[test]
fn an_hour_takes_no_more_than_ten_minutes() {
    let lasting = |secs| MadeUpRun { tokens_per_s: 12, secs };
    let ten_minutes = held_bytes(|| folded(lasting(600))) as f64;
    let hour = held_bytes(|| folded(lasting(3600))) as f64;
    assert!(
        (hour / ten_minutes - 1.0).abs() < 0.05,
        "{ten_minutes} bytes after ten minutes, {hour} after an hour"
    );

    // A GPU that is monitored for a night.
    let watched = |secs| MadeUpRun { tokens_per_s: 1, secs };
    let (hour_watched, night) =
        (held_bytes(|| folded(watched(3600))), held_bytes(|| folded(watched(6 * 3600))));
    let grown = night as f64 / hour_watched as f64 - 1.0;
    assert!(grown.abs() < 0.05, "{hour_watched} bytes after an hour, {night} after six");

    let dir = tempfile::tempdir().unwrap();
    let run = recorded(MadeUpRun { tokens_per_s: 5, secs: 3600 }, dir.path());
    let replay = held_bytes(|| played(&run));
    let most = MOST_STATES * hour as usize + (1 << 20);
    assert!(replay < most, "{replay} bytes for a replay, {most} at most");
}
