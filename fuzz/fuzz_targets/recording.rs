//! Any bytes are read as a recording or refused; what is read is folded and reported without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmprof::{
    report::report_md,
    rundir::{EventReader, Next, Player},
    state::RunState,
};

/// A small recording, of which the input replaces some bytes, and to which it adds lines.
const WHOLE: &[u8] = include_bytes!("../seeds/recording.ndjson");

fuzz_target!(|input: &[u8]| {
    for bytes in [llmprof_fuzz::changed(WHOLE, input), [WHOLE, input, b"\n"].concat()] {
        let path = llmprof_fuzz::file("run/events.ndjson", &bytes);
        let Ok(mut reader) = EventReader::open(&path) else { continue };
        let mut state = RunState::default();
        while let Ok(Next::Event(envelope)) = reader.read_next() {
            state.apply(&envelope);
        }
        let _ = report_md(&state);
        if let Ok(mut player) = Player::open(move || EventReader::open(&path)) {
            player.to_end();
            let _ = player.seek_by(-1.0);
        }
    }
});
