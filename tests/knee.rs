//! `knee`: the rates it tries, its output, and what is kept if it ends early.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use llmprof::server::{KnownServer, Timing};

use crate::common::{program, run, signal};

fn known() -> KnownServer {
    let timing =
        Timing { ttft: Duration::from_millis(5), itl: Duration::from_millis(1), tokens_per_chunk: 1 };
    KnownServer::start(timing).unwrap()
}

const BASE: [&str; 5] = ["knee", "telemetry=none", "profiling=none", "infer.max_new_tokens=2", "--seconds=1"];

fn knee(dir: &Path, url: &str, more: &[&str]) -> Command {
    let mut command = program(dir);
    command.args(BASE).arg(url).args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Reads its stderr until a rate has been judged; returns the text so far, and a reader for the rest.
fn until_a_rate_is_judged(child: &mut Child) -> (String, impl BufRead + use<>) {
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut seen = String::new();
    while !seen.contains("95 % CI") {
        assert!(lines.read_line(&mut seen).unwrap() > 0, "{seen}");
    }
    (seen, lines)
}

fn ended(mut child: Child) -> (i32, String) {
    let mut printed = String::new();
    child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    (child.wait().unwrap().code().unwrap(), printed)
}

#[test]
fn every_rate_is_a_row_with_a_bar() {
    let server = known();
    let dir = tempfile::tempdir().unwrap();
    let url = format!("http://{}", server.address);
    let promises = ["slo.ttft_p99_ms=100000", "runtime.load.rate=200", "--runs=2"];
    let output = knee(dir.path(), &url, &promises).output().unwrap();
    let (printed, progress) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(3), "{progress}");
    let rows: Vec<&str> = printed.lines().collect();
    assert!(rows[0].contains("TTFT p50") && rows[0].contains("good/s"), "{printed}");
    for (row, rate) in rows[1..3].iter().zip(["200", "400"]) {
        assert!(row.trim_start().starts_with(rate) && row.contains("met") && row.contains('█'), "{printed}");
    }
    assert!(printed.contains("at 400 requests/s, the highest rate tried: raise --runs"), "{printed}");
    // The work in progress is named by its rate.
    assert!(progress.lines().any(|line| line.starts_with("200 requests/s  ")), "{progress}");
}

/// Every rate fails, so each is half of the previous one, and takes twice the time.
const IMPOSSIBLE: [&str; 2] = ["slo.ttft_p99_ms=0.001", "runtime.load.rate=64"];

#[test]
fn rates_tried_before_an_interrupt_are_printed() {
    let server = known();
    let dir = tempfile::tempdir().unwrap();
    let url = format!("http://{}", server.address);
    let mut child = knee(dir.path(), &url, &IMPOSSIBLE).spawn().unwrap();
    let (_, mut rest) = until_a_rate_is_judged(&mut child);
    signal(child.id(), "INT");
    let mut said = String::new();
    rest.read_to_string(&mut said).unwrap();
    let (code, printed) = ended(child);
    assert_eq!(code, 130, "{said}");
    assert!(printed.contains("64.0") && printed.contains("not met"), "{printed}");
    assert!(said.contains("interrupted at "), "{said}");
}

#[test]
fn rates_tried_before_the_server_ended_are_printed() {
    let server = known();
    let dir = tempfile::tempdir().unwrap();
    let url = format!("http://{}", server.address);
    let limits = ["runtime.load.gives_up_s=0.2", "runtime.server.ready_s=0.2"];
    let mut child = knee(dir.path(), &url, &[&IMPOSSIBLE[..], &limits].concat()).spawn().unwrap();
    let (_, mut rest) = until_a_rate_is_judged(&mut child);
    drop(server);
    let mut said = String::new();
    rest.read_to_string(&mut said).unwrap();
    let (code, printed) = ended(child);
    assert_eq!(code, 1, "{said}");
    assert!(printed.contains("64.0") && printed.contains("not met"), "{printed}");
    assert!(said.contains("refused"), "{said}");
}

#[test]
fn a_server_that_never_answers_leaves_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let said = run(
        dir.path(),
        &[&BASE[..], &["http://127.0.0.1:9", "slo.ttft_p99_ms=1", "runtime.server.ready_s=0.2"]].concat(),
    );
    assert_eq!(said.code, 1, "{}", said.err);
    assert!(said.err.contains("refused") && !dir.path().join("runs").exists(), "{}", said.err);
}
