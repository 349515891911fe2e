//! Any bytes are read as a summary of nsys or refused; what is read is never empty, and is shown without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmprof::kernels::{
    nsys::{read_csv, read_json},
    show::{RowQuery, TableView},
};

const HEADER: &str = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),GridXYZ,BlockXYZ,Name\n";

fuzz_target!(|rows: &[u8]| {
    let _ = read_json("any", rows);
    let whole = [HEADER.as_bytes(), rows].concat();
    for bytes in [rows, &whole] {
        let Ok(tables) = read_csv("any", bytes) else { continue };
        assert!(!tables.is_empty());
        for table in &tables {
            assert!(!table.rows.is_empty());
            let _ = TableView::new(table, &RowQuery::default()).text();
        }
    }
});
