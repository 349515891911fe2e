//! A CPU run under the real nsys, gated by NVTX ranges, parsed and shown.
//!
//! On CI (`CI=true`) nsys is installed from Debian's packages where it is missing;
//! elsewhere the test reports that it is skipped.

mod common;

use std::{fs, path::Path, process::Command};

use common::{program, said, tiny_model};
use serde_json::Value;

fn has_nsys() -> bool {
    Command::new("nsys").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Debian's nsys, with the link that is missing from its package.
const INSTALL: &str = "\
    set -e
    . /etc/os-release
    mirror=$(apt-get indextargets --format '$(REPO_URI)' | head -n 1)
    [ -n \"$mirror\" ]
    # apt refuses all sources where two entries of one name different keys.
    key=$(sed -n 's/^Signed-By: *//p' /etc/apt/sources.list.d/*.sources 2>/dev/null | head -n 1)
    list=/etc/apt/sources.list.d/nsight.list
    echo \"deb ${key:+[signed-by=$key]} $mirror $VERSION_CODENAME contrib non-free\" > $list
    apt-get update -qq || { rm $list; exit 1; }
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nsight-systems
    for kind in /usr/lib/nsight-systems/host-linux-*; do
        ln -sfn $kind /usr/lib/$(uname -m)-linux-gnu/nsight-systems/$(basename $kind)
    done";

/// Why nsys is not available.
fn unavailable() -> Option<String> {
    if has_nsys() {
        return None;
    }
    if std::env::var("CI").is_ok_and(|value| value == "true") {
        let installed = Command::new("sh").args(["-c", INSTALL]).output();
        return match installed {
            _ if has_nsys() => None,
            Ok(output) => Some(format!(
                "nsys cannot be installed: {}",
                String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or("no message")
            )),
            Err(e) => Some(format!("nsys cannot be installed: {e}")),
        };
    }
    Some("nsys is not installed".to_owned())
}

fn skipped(test: &str) -> bool {
    let reason = unavailable();
    if let Some(reason) = &reason {
        eprintln!("skipped: {test}: {reason}");
    }
    reason.is_some()
}

/// `run profiling=nsys` of a tiny model in `dir`; the object it prints.
fn under_nsys(dir: &Path, more: &[&str]) -> Value {
    tiny_model(dir, |_| {});
    let mut run = program(dir);
    run.args([
        "run",
        "--json",
        "--quiet",
        "profiling=nsys",
        "model.config_json=tiny.json",
        "hydra.run.dir=r",
    ]);
    let done =
        said(run.args(["dataset.prompt_tokens=8", "infer.max_new_tokens=6"]).args(more).output().unwrap());
    assert_eq!(done.code, 0, "{}", done.err);
    serde_json::from_str(&done.out).unwrap()
}

/// The calls of each range, by the names around it.
fn ranges(object: &Value) -> Vec<(String, u64)> {
    let report = &object["kernel_reports"][0];
    let table = report["tables"].as_array().unwrap().iter().find(|table| table["kind"] == "ranges").unwrap();
    let row = |row: &Value| (row["name"].as_str().unwrap().to_owned(), row["calls"].as_u64().unwrap());
    table["rows"].as_array().unwrap().iter().map(row).collect()
}

#[test]
fn a_cpu_run_under_nsys_is_gated_parsed_and_shown() {
    if skipped("a_cpu_run_under_nsys_is_gated_parsed_and_shown") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let object = under_nsys(dir.path(), &["profiling.nvtx.detail=op"]);
    assert_eq!(
        (&object["outcome"], &object["kernel_reports"][0]["phase"]),
        (&"completed".into(), &"decode".into())
    );
    let found = ranges(&object);
    let calls = |name: &str| {
        found.iter().filter(|(path, _)| path.rsplit('/').next() == Some(name)).map(|(_, n)| n).sum::<u64>()
    };
    // Six tokens: one of the prefill, five steps, two layers. Warm-up and prefill are outside of the gate.
    assert_eq!(calls("decode_step"), 5, "{found:?}");
    assert_eq!((calls("prefill"), calls("warmup")), (0, 0), "{found:?}");
    assert_eq!((calls("layer 0"), calls("layer 1"), calls("layer 2")), (5, 5, 0), "{found:?}");
    assert_eq!((calls("qkv"), calls("lm_head")), (10, 5), "{found:?}");
    let command = fs::read_to_string(dir.path().join("r/nsys/cmd.txt")).unwrap();
    assert!(command.contains("-p decode@llmprof") && command.contains("exit status: 0"), "{command}");
    // The ranges are in the report, and can be read again from the file.
    assert!(fs::read_to_string(dir.path().join("r/report.md")).unwrap().contains("decode_step"));
    let shown = common::run(dir.path(), &["kernels", "r/nsys/report.nsys-rep"]);
    assert!(shown.code == 0 && shown.out.contains("decode_step"), "{}", shown.err);
}

#[test]
fn several_prefills_are_captured_one_by_one() {
    if skipped("several_prefills_are_captured_one_by_one") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let object = under_nsys(dir.path(), &["profiling.nsys.phase=prefill", "profiling.nsys.requests=2"]);
    let found = ranges(&object);
    let prefills: u64 = found.iter().filter(|(path, _)| path.ends_with("prefill")).map(|(_, n)| n).sum();
    assert_eq!(prefills, 2, "{found:?}");
    assert!(!found.iter().any(|(path, _)| path.contains("decode_step")), "{found:?}");
}
