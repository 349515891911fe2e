//! Gives the program its commit and compiler version, and compiles its kernels.

use std::{env, fs, path::Path, process::Command};

const KERNEL_DIR: &str = "src/engine/cuda/kernels";

fn main() {
    // Changes with every commit and checkout. A packaged source has no such file, and watching a missing file would
    // rebuild every time.
    let head_log = ".git/logs/HEAD";
    if fs::exists(head_log).unwrap_or(false) {
        println!("cargo::rerun-if-changed={head_log}");
    }
    println!("cargo::rerun-if-changed=conf");
    println!("cargo::rerun-if-changed=assets");
    let rustc = env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    println!("cargo::rustc-env=LLMPROF_COMMIT={}", first_line("git", &["rev-parse", "--short=12", "HEAD"]));
    println!("cargo::rustc-env=LLMPROF_RUSTC={}", first_line(&rustc, &["--version"]));
    if env::var_os("CARGO_FEATURE_CUDA").is_some() {
        compile_kernels();
    }
}

/// Compiles the kernels for the GPU's compute capability: machine code, and PTX for later chips.
fn compile_kernels() {
    for name in ["NVCC", "CUDA_HOME", "CUDA_COMPUTE_CAP"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    println!("cargo::rerun-if-changed={KERNEL_DIR}");
    let in_home = env::var("CUDA_HOME").map(|home| format!("{home}/bin/nvcc"));
    let nvcc = env::var("NVCC").or(in_home).unwrap_or_else(|_| "nvcc".into());
    let capability = env::var("CUDA_COMPUTE_CAP").unwrap_or_else(|_| {
        // A line for each GPU; the lowest capability is built for.
        let output =
            Command::new("nvidia-smi").args(["--query-gpu=compute_cap", "--format=csv,noheader"]).output();
        let text = output.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
        let lowest = text.lines().filter_map(|line| line.trim().replace('.', "").parse::<u32>().ok()).min();
        lowest
            .expect("no GPU found to build for; set CUDA_COMPUTE_CAP, such as 90 for H100 and H200")
            .to_string()
    });
    let number: u32 = capability.parse().expect("CUDA_COMPUTE_CAP is a number such as 90");
    assert!(number >= 80, "the kernels need compute capability 8.0 or later, this is {number}");
    println!("cargo::rustc-env=LLMPROF_CUDA_CAP={capability}");
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    for entry in fs::read_dir(KERNEL_DIR).expect("the kernels are part of the source").flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "cu") {
            continue;
        }
        let target = Path::new(&out).join(path.with_extension("fatbin").file_name().expect("a file's name"));
        let arch = format!("-gencode=arch=compute_{number},code=[sm_{number},compute_{number}]");
        let mut command = Command::new(&nvcc);
        command.args(["-fatbin", "-O3", "-std=c++17", &arch, "-o"]).arg(&target).arg(&path);
        let done = command.status().unwrap_or_else(|e| {
            panic!("{nvcc} cannot be run ({e}); install CUDA, or eval \"$(third_party/cuda/bootstrap.sh)\"")
        });
        assert!(done.success(), "{nvcc} failed on {}", path.display());
    }
}

/// The first line a command prints, or "unknown".
fn first_line(program: &str, args: &[&str]) -> String {
    Command::new(program)
        .args(args)
        .output()
        .ok()
        .filter(|out| out.status.success())
        .and_then(|out| String::from_utf8(out.stdout).ok())
        .and_then(|text| text.lines().next().map(str::to_owned))
        .unwrap_or_else(|| "unknown".into())
}
