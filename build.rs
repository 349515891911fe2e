//! Gives the program its commit and compiler version.

use std::{env, fs, process::Command};

fn main() {
    // Changes with every commit and checkout. A packaged source has no such file, and watching a missing file would
    // rebuild every time.
    let head_log = first_line("git", &["rev-parse", "--git-path", "logs/HEAD"]);
    if fs::exists(&head_log).unwrap_or(false) {
        println!("cargo::rerun-if-changed={head_log}");
    }
    println!("cargo::rerun-if-changed=conf");
    println!("cargo::rerun-if-changed=assets");
    let rustc = env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    println!("cargo::rustc-env=LLMPROF_COMMIT={}", first_line("git", &["rev-parse", "--short=12", "HEAD"]));
    println!("cargo::rustc-env=LLMPROF_RUSTC={}", first_line(&rustc, &["--version"]));
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
