//! Development builds can make parts of the program fail (`LLMPROF_FAULT`); release builds can if `LLMPROF_FAULTS=1` is
//! set while they are built.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=LLMPROF_FAULTS");
    println!("cargo::rustc-check-cfg=cfg(fault_injection)");
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if !is_release || env::var_os("LLMPROF_FAULTS").is_some() {
        println!("cargo::rustc-cfg=fault_injection");
    }
}
