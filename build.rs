//! Tells the program which commit and compiler it was made from, and compiles its kernels.

use std::{env, fs, path::Path, process::Command};

const KERNELS: &str = "src/engine/cuda/kernels";

fn main() {
    // Moves with every commit and checkout. A packaged source has none, and watching what is not there would
    // build anew every time.
    let moves = ".git/logs/HEAD";
    if fs::exists(moves).unwrap_or(false) {
        println!("cargo::rerun-if-changed={moves}");
    }
    println!("cargo::rerun-if-changed=conf");
    println!("cargo::rerun-if-changed=assets");
    let rustc = env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    println!("cargo::rustc-env=LLMPROF_COMMIT={}", said("git", &["rev-parse", "--short=12", "HEAD"]));
    println!("cargo::rustc-env=LLMPROF_RUSTC={}", said(&rustc, &["--version"]));
    if env::var_os("CARGO_FEATURE_CUDA").is_some() {
        kernels();
    }
}

/// Compiles the kernels for the GPU's compute capability: machine code, and PTX for later chips.
fn kernels() {
    for name in ["NVCC", "CUDA_HOME", "CUDA_COMPUTE_CAP"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    println!("cargo::rerun-if-changed={KERNELS}");
    let in_home = env::var("CUDA_HOME").map(|home| format!("{home}/bin/nvcc"));
    let nvcc = env::var("NVCC").or(in_home).unwrap_or_else(|_| "nvcc".into());
    let capability = env::var("CUDA_COMPUTE_CAP").unwrap_or_else(|_| {
        // Several GPUs answer with a line each, and the least of them has to be served.
        let all =
            Command::new("nvidia-smi").args(["--query-gpu=compute_cap", "--format=csv,noheader"]).output();
        let all = all.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
        let least = all.lines().filter_map(|line| line.trim().replace('.', "").parse::<u32>().ok()).min();
        least
            .expect("no GPU here to build for; set CUDA_COMPUTE_CAP, such as 90 for H100 and H200")
            .to_string()
    });
    let number: u32 = capability.parse().expect("CUDA_COMPUTE_CAP is a number such as 90");
    assert!(number >= 80, "the kernels need compute capability 8.0 or later, this is {number}");
    println!("cargo::rustc-env=LLMPROF_CUDA_CAP={capability}");
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    for entry in fs::read_dir(KERNELS).expect("the kernels are part of the source").flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "cu") {
            continue;
        }
        let target = Path::new(&out).join(path.with_extension("fatbin").file_name().expect("a file's name"));
        let arch = format!("-gencode=arch=compute_{number},code=[sm_{number},compute_{number}]");
        let mut command = Command::new(&nvcc);
        command.args(["-fatbin", "-O3", "-std=c++17", &arch, "-o"]).arg(&target).arg(&path);
        let done = command.status().unwrap_or_else(|e| {
            panic!("{nvcc} can't be run ({e}); install CUDA, or eval \"$(third_party/cuda/bootstrap.sh)\"")
        });
        assert!(done.success(), "{nvcc} failed on {}", path.display());
    }
}

/// The first line a command prints, or "unknown".
fn said(program: &str, args: &[&str]) -> String {
    Command::new(program)
        .args(args)
        .output()
        .ok()
        .filter(|out| out.status.success())
        .and_then(|out| String::from_utf8(out.stdout).ok())
        .and_then(|text| text.lines().next().map(str::to_owned))
        .unwrap_or_else(|| "unknown".into())
}
