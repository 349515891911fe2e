//! Any bytes are read as a page of ncu or refused; what is read is classified and shown without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmprof::kernels::{
    ncu::{read_details, read_raw},
    show::{RowQuery, TableView},
};

const RAW: &str = "\"ID\",\"Kernel Name\",\"Block Size\",\"Grid Size\",\"gpu__time_duration.sum\",\"dram__bytes.sum\",\
                   \"gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed\",\"sm__throughput.avg.pct_of_peak_sustained_elapsed\"\n";
const DETAILS: &str = "\"ID\",\"Kernel Name\",\"Block Size\",\"Grid Size\",\"Section Name\",\"Metric Name\",\"Metric Unit\",\
                       \"Metric Value\",\"Rule Name\",\"Rule Type\",\"Rule Description\"\n";

fuzz_target!(|rows: &[u8]| {
    let raw = [RAW.as_bytes(), rows].concat();
    let details = [DETAILS.as_bytes(), rows].concat();
    let read = [read_raw("any", rows), read_raw("any", raw.as_slice()), read_details("any", details.as_slice())];
    for table in read.into_iter().flatten() {
        assert!(!table.rows.is_empty());
        let shown = TableView::new(&table, &RowQuery::default());
        let _ = (shown.text(), shown.json("any"));
    }
});
