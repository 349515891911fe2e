//! Any bytes are read as a profile or as layer information of trtexec, or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmprof::kernels::tensorrt::{read_layer_info, read_profile};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(table) = read_profile("any", bytes) {
        assert!(!table.rows.is_empty() && table.rows.iter().all(|row| row.calls > 0));
    }
    let _ = read_layer_info("any", bytes);
});
