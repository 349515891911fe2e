//! A CPU run under the real nsys, gated by NVTX ranges, parsed and shown.
//!
//! If nsys is not installed, it is unpacked from Debian's packages.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use crate::common::{said, tiny_model};
use serde_json::Value;

fn works(nsys: &Path) -> bool {
    Command::new(nsys).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Debian's nsys, unpacked below `$1`, with the link that is missing from its packages. It is not installed: it depends on NVIDIA's driver, which other tests
/// expect not to be there.
const UNPACK: &str = "\
    set -e
    . /etc/os-release
    mirror=$(apt-get indextargets --format '$(REPO_URI)' | head -n 1)
    [ -n \"$mirror\" ]
    # apt refuses all sources where two entries of one name different keys.
    key=$(sed -n 's/^Signed-By: *//p' /etc/apt/sources.list.d/*.sources 2>/dev/null | head -n 1)
    list=/etc/apt/sources.list.d/nsight.list
    trap 'rm -f $list' EXIT
    echo \"deb ${key:+[signed-by=$key]} $mirror $VERSION_CODENAME contrib non-free\" > $list
    apt-get update -qq
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y -qq --no-install-recommends libssh-4 libpfm4 libgssapi-krb5-2
    rm -rf $1 && mkdir -p $1 && cd $1
    apt-get download -qq nsight-systems nsight-systems-target
    for package in *.deb; do dpkg -x $package . && rm $package; done
    for kind in usr/lib/nsight-systems/host-linux-*; do
        ln -sfn $PWD/$kind usr/lib/$(uname -m)-linux-gnu/nsight-systems/$(basename $kind)
        ln -sfn /usr/lib/$(uname -m)-linux-gnu/libssh.so.4 $kind/libssh.so
    done
    ln -sfn usr/lib/$(uname -m)-linux-gnu/nsight-systems/target-linux-x64 bin";

/// The directory of nsys if it is not on the path, or why there is none.
fn nsys() -> &'static Result<Option<PathBuf>, String> {
    static FOUND: OnceLock<Result<Option<PathBuf>, String>> = OnceLock::new();
    FOUND.get_or_init(|| {
        if works(Path::new("nsys")) {
            return Ok(None);
        }
        let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nsys");
        let unpacked = || works(&to.join("bin/nsys")).then(|| Some(to.join("bin")));
        if let Some(found) = unpacked() {
            return Ok(found);
        }
        let done = Command::new("sh").args(["-c", UNPACK, "sh"]).arg(&to).output();
        unpacked().ok_or_else(|| match done {
            Ok(output) => format!(
                "nsys cannot be unpacked: {}",
                String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or("no message")
            ),
            Err(e) => format!("nsys cannot be unpacked: {e}"),
        })
    })
}

/// The program in an environment in which it finds nsys.
fn program(dir: &Path) -> Command {
    with_nsys(crate::common::program(dir))
}

fn with_nsys(mut command: Command) -> Command {
    let found = nsys().as_ref().unwrap_or_else(|reason| panic!("{reason}"));
    if let Some(found) = found {
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", found.display()));
    }
    command
}

/// Runs `run profiling=nsys` with a tiny model in `dir`; returns the printed JSON object.
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

/// The calls of each range, by the names of its enclosing ranges.
fn ranges(object: &Value) -> Vec<(String, u64)> {
    let report = &object["kernel_reports"][0];
    let table = report["tables"].as_array().unwrap().iter().find(|table| table["kind"] == "ranges").unwrap();
    let row = |row: &Value| (row["name"].as_str().unwrap().to_owned(), row["calls"].as_u64().unwrap());
    table["rows"].as_array().unwrap().iter().map(row).collect()
}

#[test]
#[ignore = "needs nsys, or root and apt-get to unpack it; .ci/run runs it"]
fn a_cpu_run_under_nsys_is_gated_parsed_and_shown() {
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
    // Six tokens: one of the prefill, five steps, two layers. Warm-up and prefill are outside the gate.
    assert_eq!(calls("decode_step"), 5, "{found:?}");
    assert_eq!((calls("prefill"), calls("warmup")), (0, 0), "{found:?}");
    assert_eq!((calls("layer 0"), calls("layer 1"), calls("layer 2")), (5, 5, 0), "{found:?}");
    assert_eq!((calls("qkv"), calls("lm_head")), (10, 5), "{found:?}");
    let command = fs::read_to_string(dir.path().join("r/nsys/cmd.txt")).unwrap();
    assert!(command.contains("-p decode@llmprof") && command.contains("exit status: 0"), "{command}");
    // The ranges are in the report, and can be read again from the file.
    assert!(fs::read_to_string(dir.path().join("r/report.md")).unwrap().contains("decode_step"));
    let shown = said(program(dir.path()).args(["kernels", "r/nsys/report.nsys-rep"]).output().unwrap());
    assert!(shown.code == 0 && shown.out.contains("decode_step"), "{}", shown.err);
}

#[test]
#[ignore = "needs nsys, or root and apt-get to unpack it; .ci/run runs it"]
fn several_prefills_are_captured_one_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let object = under_nsys(dir.path(), &["profiling.nsys.phase=prefill", "profiling.nsys.requests=2"]);
    let found = ranges(&object);
    let prefills: u64 = found.iter().filter(|(path, _)| path.ends_with("prefill")).map(|(_, n)| n).sum();
    assert_eq!(prefills, 2, "{found:?}");
    assert!(!found.iter().any(|(path, _)| path.contains("decode_step")), "{found:?}");
}

#[test]
#[ignore = "needs nsys, or root and apt-get to unpack it; .ci/run runs it"]
fn a_report_is_converted_by_the_installed_profiler() {
    let dir = tempfile::tempdir().unwrap();
    let args =
        ["nsys", "profile", "-t", "nvtx", "-s", "none", "--cpuctxsw=none", "-f", "true", "-o", "out", "true"];
    // A shell starts it by the path that it is given.
    let mut profile = with_nsys(crate::common::command("sh", dir.path()));
    let done = said(profile.args(["-c", "exec \"$@\"", "sh"]).args(args).output().unwrap());
    assert_eq!(done.code, 0, "{}", done.err);
    let output = said(program(dir.path()).args(["kernels", "out.nsys-rep"]).output().unwrap());
    assert_eq!((output.code, output.out.as_str()), (1, ""));
    // It was exported and read: a program that does nothing has neither kernels nor ranges.
    assert!(output.err.contains("out.nsys-rep has neither kernels nor ranges"), "{}", output.err);
}
