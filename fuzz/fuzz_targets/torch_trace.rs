//! Any bytes are read as a trace of PyTorch or refused; what is read is never empty, and is shown without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmprof::kernels::{
    show::{RowQuery, TableView},
    torch::{read_compressed, read_trace},
};

/// A small trace, of which the input replaces some bytes: a complete one is not found by chance.
const WHOLE: &[u8] = include_bytes!("../../tests/fixtures/torch/gpu_rank1.json");

fuzz_target!(|input: &[u8]| {
    let _ = read_compressed("any", input);
    let changed = llmprof_fuzz::changed(WHOLE, input);
    let events = [&b"{\"traceEvents\": ["[..], input, &b"]}"[..]].concat();
    for bytes in [input, &events, &changed] {
        let Ok(tables) = read_trace("any", bytes) else { continue };
        assert!(!tables.is_empty());
        for table in &tables {
            assert!(!table.rows.is_empty());
            let shown = TableView::new(table, &RowQuery::default());
            let _ = (shown.text(), shown.json("any"));
        }
    }
});
