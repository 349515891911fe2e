//! Any text parses as a gate or is refused; what parses is written out and reads back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmprof::analysis::compare::Gate;

fuzz_target!(|text: &str| {
    if let Ok(gate) = text.parse::<Gate>() {
        assert_eq!(gate.to_string().parse::<Gate>(), Ok(gate), "{text:?}");
    }
});
