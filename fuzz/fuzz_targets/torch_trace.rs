//! Any bytes are read as a trace of PyTorch or refused; what is read is never empty, and is shown without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmprof::kernels::{
    show::{Asked, Shown},
    torch::{read_compressed, read_trace},
};

/// A small trace, of which the input replaces some bytes: a complete one is not found by chance.
const WHOLE: &[u8] = include_bytes!("../../tests/fixtures/torch/gpu_rank1.json");

fuzz_target!(|input: &[u8]| {
    let _ = read_compressed("any", input);
    let mut changed = WHOLE.to_vec();
    for change in input.chunks_exact(4) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % changed.len();
        changed[at] = change[2];
        if change[3] == 0 {
            changed.truncate(at.max(1));
        }
    }
    let events = [&b"{\"traceEvents\": ["[..], input, &b"]}"[..]].concat();
    for bytes in [input, &events, &changed] {
        let Ok(tables) = read_trace("any", bytes) else { continue };
        assert!(!tables.is_empty());
        for table in &tables {
            assert!(!table.rows.is_empty());
            let shown = Shown::new(table, &Asked::default());
            let _ = (shown.text(), shown.json("any"));
        }
    }
});
