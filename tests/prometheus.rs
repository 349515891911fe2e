//! The metrics of a run, read by a real Prometheus: `apt-get install prometheus`.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::Duration,
};

use crate::common::{eventually, program};
use serde_json::Value;

/// A child process that is ended with the test, however that ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The body of a page, once there is one.
fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.lines().next()?.contains("200").then(|| body.to_owned())
}

#[test]
#[ignore = "needs prometheus and promtool; .ci/run installs them"]
fn prometheus_reads_the_metrics_of_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (free_port(), free_port());
    let mut run = program(dir.path());
    run.args(["run", "--quiet", "runtime=sim", "runtime.requests=100000", "--metrics"]);
    run.arg(format!("127.0.0.1:{ours}")).stdout(Stdio::null()).stderr(Stdio::null());
    let _run = Ended(run.spawn().unwrap());
    let page = eventually("a page with a finished request", || {
        get(ours, "/metrics").filter(|page| page.contains("llmprof_gpu_power_watts{"))
    });

    let mut check = Command::new("promtool");
    check.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut check = check.spawn().expect("promtool");
    check.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let checked = check.wait_with_output().unwrap();
    let remarks = [checked.stdout, checked.stderr].concat();
    assert!(checked.status.success() && remarks.is_empty(), "{}", String::from_utf8_lossy(&remarks));

    let config = format!(
        "global: {{scrape_interval: 1s}}\nscrape_configs:\n- job_name: ours\n  static_configs:\n  - targets: ['127.0.0.1:{ours}']\n"
    );
    fs::write(dir.path().join("prometheus.yml"), config).unwrap();
    let prometheus = Command::new("prometheus")
        .current_dir(dir.path())
        .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
        .arg(format!("--web.listen-address=127.0.0.1:{theirs}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _prometheus = Ended(prometheus.expect("prometheus"));
    let query = |text: &str| -> Option<f64> {
        let answer: Value =
            serde_json::from_str(&get(theirs, &format!("/api/v1/query?query={text}"))?).ok()?;
        answer["data"]["result"][0]["value"][1].as_str()?.parse().ok()
    };
    // The machine generates 2,000 tokens per second; two scrapes show that they are counted.
    let speed = eventually("a rate of tokens", || {
        query("rate(llmprof_output_tokens_total[10s])").filter(|&speed| speed > 0.0)
    });
    assert!((100.0..10_000.0).contains(&speed), "{speed} tokens a second");
    assert_eq!(query("up"), Some(1.0));
    let name = |line: &str| line.split([' ', '{']).next().unwrap_or_default().to_owned();
    for name in page.lines().filter(|line| !line.starts_with('#')).map(name) {
        assert!(query(&name).is_some(), "Prometheus has no {name}");
    }
    let median = query("llmprof_time_per_output_token_seconds{quantile=\"0.5\"}").unwrap();
    assert!((1e-4..1e-2).contains(&median), "TPOT {median} s");
}
