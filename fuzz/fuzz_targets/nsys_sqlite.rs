//! Any bytes are read as a recording of nsys or refused; what is read is shown without a panic.
#![no_main]

use std::{fs, process};

use libfuzzer_sys::fuzz_target;
use llmprof::kernels::{
    open,
    show::{Asked, Shown},
};

/// A small recording, of which the input replaces some bytes: a complete database is not found by chance.
const WHOLE: &[u8] = include_bytes!("../../tests/fixtures/nsys/kernels.sqlite");

fuzz_target!(|changes: &[u8]| {
    let mut bytes = WHOLE.to_vec();
    for change in changes.chunks_exact(4) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) * 2 % bytes.len();
        bytes[at] = change[2];
        if change[3] == 0 {
            bytes.truncate(at.max(1));
        }
    }
    let path = std::env::temp_dir().join(format!("llmprof-fuzz-{}.sqlite", process::id()));
    if fs::write(&path, &bytes).is_err() {
        return;
    }
    for table in open(&path).into_iter().flatten() {
        let shown = Shown::new(&table, &Asked::default());
        let _ = (shown.text(), shown.json("any"));
    }
});
