//! Any line is a report of a PyTorch worker or is not; what is read is printed without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmprof::pytorch::parts;

fuzz_target!(|bytes: &[u8]| {
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Some(report) = parts::parse(line) {
            let _ = format!("{report:?}");
        }
    }
});
