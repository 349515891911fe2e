//! A CPU run under the real nsys, gated by NVTX ranges, parsed and shown.
//!
//! On CI (`CI=true`) nsys is unpacked from Debian's packages where it is missing;
//! elsewhere the test reports that it is skipped.

mod common;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use common::{said, tiny_model};
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

/// The directory of nsys where it is not on the path, or why there is none.
fn nsys() -> &'static Result<Option<PathBuf>, String> {
    static FOUND: OnceLock<Result<Option<PathBuf>, String>> = OnceLock::new();
    FOUND.get_or_init(|| {
        if works(Path::new("nsys")) {
            return Ok(None);
        }
        if std::env::var("CI").as_deref() != Ok("true") {
            return Err("nsys is not installed".to_owned());
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

/// The program, which finds nsys.
fn program(dir: &Path) -> Command {
    let mut program = common::program(dir);
    if let Ok(Some(found)) = nsys() {
        let path = std::env::var("PATH").unwrap_or_default();
        program.env("PATH", format!("{}:{path}", found.display()));
    }
    program
}

fn skipped(test: &str) -> bool {
    if let Err(reason) = nsys() {
        eprintln!("skipped: {test}: {reason}");
    }
    nsys().is_err()
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
    let shown = said(program(dir.path()).args(["kernels", "r/nsys/report.nsys-rep"]).output().unwrap());
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
