//! Any text is read as the answer of any of Slurm's commands.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmprof::slurm::{
    parse_accounting, parse_commands, parse_control, parse_max_array_size, parse_queue, parse_submitted, waiting_reason,
};

fuzz_target!(|text: &str| {
    for task in parse_queue(text) {
        assert!(!waiting_reason(&task.reason).contains('\u{1b}'));
        assert!(!task.nodes.unwrap_or_default().contains('\u{1b}'));
    }
    let _ = (parse_control(text), parse_accounting(text));
    let _ = (parse_max_array_size(text), parse_submitted(text), parse_commands(text, "/a.sh"));
});
