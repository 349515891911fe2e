//! Any lines are read as NCCL's or not at all; what is said of them is bounded and has no control characters.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmprof::analysis::ranks::NcclLog;

fuzz_target!(|bytes: &[u8]| {
    let mut log = NcclLog::default();
    for line in String::from_utf8_lossy(bytes).lines() {
        log.line(line);
    }
    for words in log.words() {
        assert!(words.len() < 4096 && !words.chars().any(char::is_control));
    }
    let mut twice = log.clone();
    twice.add(log);
    let _ = twice.words();
});
