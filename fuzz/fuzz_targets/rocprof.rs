//! Any bytes are read as a kernel trace of rocprofv3 or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmprof::kernels::rocprof::read_kernel_trace;

const HEADER: &str = "\"Kind\",\"Agent_Id\",\"Kernel_Name\",\"Start_Timestamp\",\"End_Timestamp\",\"LDS_Block_Size\",\"VGPR_Count\",\
                      \"Workgroup_Size_X\",\"Workgroup_Size_Y\",\"Workgroup_Size_Z\",\"Grid_Size_X\",\"Grid_Size_Y\",\"Grid_Size_Z\"\n";

fuzz_target!(|rows: &[u8]| {
    let whole = [HEADER.as_bytes(), rows].concat();
    for table in [rows, &whole].into_iter().flat_map(|bytes| read_kernel_trace("any", bytes)).flatten() {
        assert!(!table.rows.is_empty() && table.rows.iter().all(|row| row.calls > 0));
    }
});
