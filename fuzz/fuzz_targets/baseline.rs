//! Any bytes are read as a baseline or refused; what is read is listed without a panic.
#![no_main]

use std::env;

use libfuzzer_sys::fuzz_target;
use llmprof::compare::{baselines, baselines_text, run_spread};

fuzz_target!(|bytes: &[u8]| {
    llmprof_fuzz::file("baselines/any.json", bytes);
    env::set_current_dir(llmprof_fuzz::scratch()).expect("the directory");
    let found = baselines();
    assert_eq!(found.len(), 1);
    let _ = baselines_text(&found);
    if let Ok(saved) = &found[0].saved {
        let _ = run_spread(&found, &saved.sample.facts);
    }
});
