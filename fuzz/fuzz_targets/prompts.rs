//! Any bytes are read as a file of prompts or refused; what is read is never empty.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmprof::workload::text::prompts::load;

fuzz_target!(|bytes: &[u8]| {
    for name in ["any.jsonl", "any.json"] {
        if let Ok(samples) = load(&llmprof_fuzz::file(name, bytes)) {
            assert!(!samples.is_empty() && samples.iter().all(|sample| !sample.text.is_empty()));
        }
    }
});
