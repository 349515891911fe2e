//! Any bytes are read as a `sweep.json` or refused; what is read is shown without a panic, and resumed or refused.
#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;
use llmprof::{
    config::built_in,
    run::sweep::{Runner, SweepError, open_sweep},
    sweep::{ended_jobs, sweep_json, table_text},
};

fuzz_target!(|bytes: &[u8]| {
    let plan = llmprof_fuzz::file("sweep/sweep.json", bytes);
    let dir = plan.parent().expect("a directory");
    if let Ok(sweep) = open_sweep(dir) {
        let _ = (table_text(&sweep), sweep_json(&sweep), ended_jobs(&sweep).csv());
        let refuse = |_: &_| Err(SweepError::NoJobs);
        let _ = Runner::resume(dir, |_| Ok::<_, SweepError>(built_in()), refuse);
    }
    let names: Vec<String> = fs::read_dir(llmprof_fuzz::scratch())
        .expect("the directory")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(names, ["sweep"], "nothing is written beside the sweep");
});
