//! Any bytes are read as a recording of nsys or refused; what is read is shown without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmprof::kernels::{
    open,
    show::{RowQuery, TableView},
};

/// A small recording, of which the input replaces some bytes: a complete database is not found by chance.
const WHOLE: &[u8] = include_bytes!("../../tests/fixtures/nsys/kernels.sqlite");

fuzz_target!(|input: &[u8]| {
    let path = llmprof_fuzz::file("any.sqlite", &llmprof_fuzz::changed(WHOLE, input));
    for table in open(&path).into_iter().flatten() {
        let shown = TableView::new(&table, &RowQuery::default());
        let _ = (shown.text(), shown.json("any"));
    }
});
