//! Any page of metrics is read; sums of what it has are finite.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmprof::server::parts::{Exposition, gpus_of_page};

fuzz_target!(|text: &str| {
    let page = Exposition::read(text);
    let _ = gpus_of_page(&page);
    for name in ["vllm:num_requests_running", "a", "DCGM_FI_DEV_SM_CLOCK"] {
        let _ = (page.sum(name), page.max(name), page.mean_parts(name));
    }
});
