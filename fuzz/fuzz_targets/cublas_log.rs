//! Any bytes are read as a log of cuBLAS or refused; every product that is read has operations that can be counted.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmprof::kernels::cublas::read_log;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(table) = read_log("any", bytes) {
        assert!(table.rows.iter().all(|row| row.calls > 0 && row.flops.is_some_and(f64::is_finite)));
    }
});
