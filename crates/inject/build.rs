//! Compiles the library for other programs. It is a separate file, linked only against the C library, so rustc is
//! called directly.

use std::{env, path::PathBuf, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=src");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("libllmprof_inject.so");
    let rustc = env::var_os("RUSTC").expect("cargo sets RUSTC");
    let target = env::var("TARGET").expect("cargo sets TARGET");
    let mut command = Command::new(rustc);
    command.args(["--crate-name", "llmprof_inject", "--crate-type", "cdylib", "--edition", "2024"]);
    command.args([
        "-C",
        "opt-level=3",
        "-C",
        "codegen-units=1",
        "-C",
        "strip=symbols",
        "-C",
        "overflow-checks=off",
    ]);
    command.args(["-C", "relocation-model=pic", "--cap-lints", "allow", "--target", &target]);
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        command.arg("-C").arg({
            let mut option = std::ffi::OsString::from("linker=");
            option.push(linker);
            option
        });
    }
    command.arg("-o").arg(&out).arg("src/library.rs");
    let done = command.status().expect("rustc can be started");
    assert!(done.success(), "the library for other programs does not compile");
}
