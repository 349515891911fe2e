//! Any bytes are read as columns or a table of nsys or refused; what is read is never empty, and is shown without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmprof::kernels::{
    nsys::{is_layout, read_layout},
    show::{RowQuery, TableView},
};

const HEADER: &str = " Time (%)  Total Time (ns)  Instances  Avg (ns)  Name\n --------  ---------------  ---------  --------  ----\n";

fuzz_target!(|rows: &[u8]| {
    let whole = [HEADER.as_bytes(), rows].concat();
    for bytes in [rows, &whole] {
        is_layout(bytes);
        for table in read_layout("any", bytes).into_iter().flatten() {
            assert!(!table.rows.is_empty());
            let _ = TableView::new(&table, &RowQuery::default()).text();
        }
    }
});
