//! A seek, forwards or backwards, shows the state at that moment.

use std::time::Duration;

use crate::support::MadeUpRun;
use llmprof::{
    base::noise,
    event::Stamp,
    rundir::{EventReader, Player, Recorder, RunDir},
    state::RunState,
};

/// Several checkpoints long.
const RUN: MadeUpRun = MadeUpRun { tokens_per_s: 200, secs: 400 };

fn state_at(t: Stamp) -> RunState {
    let mut state = RunState::default();
    RUN.for_each(|envelope| {
        if envelope.t <= t {
            state.apply(&envelope);
        }
    });
    state
}

#[test]
fn a_seek_shows_the_state_at_that_moment() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::create(&dir.path().join("run")).unwrap();
    let mut recorder = Recorder::create(&run, 0, Duration::from_secs(1)).unwrap();
    RUN.for_each(|envelope| recorder.record(&envelope));
    recorder.flush();
    let events = run.events();
    let mut player = Player::open(move || EventReader::open(&events)).unwrap();
    while player.load(Duration::from_secs(1)).unwrap() {}
    for nth in 0..6 {
        let to = Stamp(noise::bits(3, nth) % player.position().end.0);
        player.seek(to).unwrap();
        let (shown, expected) = (player.state(), state_at(to));
        assert_eq!((shown.events, shown.now), (expected.events, expected.now), "at {to:?}");
        assert_eq!(shown.total.summary(), expected.total.summary(), "at {to:?}");
        if nth % 3 == 2 {
            player.to_end();
        }
    }
}
