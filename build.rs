//! Tells the program which commit and compiler it was made from.

use std::process::Command;

fn main() {
    // Moves with every commit and checkout. A packaged source has none, and watching what is not there would
    // build anew every time.
    let moves = ".git/logs/HEAD";
    if std::fs::exists(moves).unwrap_or(false) {
        println!("cargo::rerun-if-changed={moves}");
    }
    println!("cargo::rerun-if-changed=conf");
    println!("cargo::rerun-if-changed=assets");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    println!("cargo::rustc-env=LLMPROF_COMMIT={}", said("git", &["rev-parse", "--short=12", "HEAD"]));
    println!("cargo::rustc-env=LLMPROF_RUSTC={}", said(&rustc, &["--version"]));
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
