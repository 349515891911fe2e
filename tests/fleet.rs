//! Fleets: a stand-in for Prometheus and its failures, a recording on the screen, and, if installed
//! (`apt-get install prometheus`), the real one with an exporter that plays 64 GPUs.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use crate::common::terminal::Terminal;
use crate::common::{KilledOnDrop, ProgramOutput, eventually, program, said};
use llmprof::{
    analysis::fleet::{Fleet, from_recording},
    fleet::read_recording,
    tui::fleet::still,
};
use ratatui::layout::Rect;
use serde_json::{Value, json};

const RECORDING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/fleet/recording.ndjson");

/// A stand-in's response to a path with headers: a status and a body, after a wait.
type Answer = Arc<dyn Fn(&str) -> (String, String) + Send + Sync>;

/// A server that answers every request by `answer`. Returns its address.
fn stand_in(answer: Answer) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            thread::spawn(move || serve(client, &answer));
        }
    });
    address
}

fn serve(mut client: TcpStream, answer: &Answer) {
    let mut reader = BufReader::new(client.try_clone().unwrap());
    let mut request = String::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
            break;
        }
        request += &line;
    }
    let (status, body) = answer(&request);
    let _ = write!(
        client,
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
}

/// Responds to every query with `status` and `body`.
fn always(status: &'static str, body: &str) -> String {
    let body = body.to_owned();
    stand_in(Arc::new(move |_| (status.to_owned(), body.clone())))
}

/// A list of series as Prometheus returns it.
fn vector(series: &[(Value, &str)]) -> String {
    let result: Vec<Value> = series
        .iter()
        .map(|(labels, value)| json!({"metric": labels, "value": [1_700_000_000.0, value]}))
        .collect();
    json!({"status": "success", "data": {"resultType": "vector", "result": result}}).to_string()
}

/// Current series; everything else is empty.
fn of_now(series: Vec<(Value, &'static str)>) -> String {
    let (now, none) = (vector(&series), vector(&[]));
    stand_in(Arc::new(move |request| {
        let is_first = request.contains("query?query=%7B") && !request.contains("offset");
        ("200 OK".to_owned(), if is_first { now.clone() } else { none.clone() })
    }))
}

fn fleet(args: &[&str]) -> ProgramOutput {
    let dir = tempfile::tempdir().unwrap();
    said(program(dir.path()).arg("fleet").args(args).output().unwrap())
}

fn fleet_json(address: &str, args: &[&str]) -> Value {
    let said = fleet(&[&["--prometheus", address, "--json"], args].concat());
    assert_eq!(said.code, 0, "{}", said.err);
    serde_json::from_str(&said.out).unwrap()
}

#[track_caller]
fn fails_with(args: &[&str], code: i32, words: &[&str]) {
    let said = fleet(args);
    assert_eq!(said.code, code, "{}", said.err);
    for word in words {
        assert!(said.err.contains(word), "{:?} has no {word:?}", said.err);
    }
    assert!(!said.err.contains('\u{1b}') && said.out.is_empty());
}

#[test]
fn each_failure_has_a_message_and_a_remedy() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    fails_with(
        &["--prometheus", &closed],
        1,
        &["connecting failed", "check that Prometheus is running on that host"],
    );
    fails_with(
        &["--prometheus", "http://no-such-host.invalid:9090"],
        1,
        &["resolving the name", "check the name of the host"],
    );
    let page = always("200 OK", "<!DOCTYPE html><html>Grafana\u{1b}[2J</html>");
    fails_with(&["--prometheus", &page], 1, &["a web page", "not of Grafana or a login page"]);
    fails_with(
        &["--prometheus", &format!("https://{page}")],
        1,
        &["the TLS handshake failed", "check whether the server uses https"],
    );
    let refused = always(
        "422 Unprocessable Entity",
        r#"{"status":"error","errorType":"execution","error":"too many samples"}"#,
    );
    fails_with(&["--prometheus", &refused], 1, &["refuses the query (execution): too many samples"]);
    let bad =
        always("400 Bad Request", r#"{"status":"error","errorType":"bad_data","error":"unknown function"}"#);
    fails_with(&["--prometheus", &bad], 1, &["bad_data", "Prometheus 2.26 or later"]);
    let busy = always("503 Service Unavailable", "starting");
    fails_with(&["--prometheus", &busy], 1, &["cannot answer now (HTTP 503): starting"]);
    fails_with(&["--prometheus", &always("404 Not Found", "no")], 1, &["--web.route-prefix"]);
    fails_with(&["--prometheus", &always("401 Unauthorized", "")], 1, &["--bearer-token-file"]);
    fails_with(&["--prometheus", &always("200 OK", "SSH-2.0")], 1, &["not from Prometheus"]);
    let empty = always("200 OK", &vector(&[]));
    fails_with(
        &["--prometheus", &empty],
        1,
        &["no GPU metric", "DCGM_FI_DEV_SM_CLOCK", "llmprof_gpu_", "among its targets"],
    );
    fails_with(&["--prometheus", &empty, "--match", "a=b"], 1, &["with a=\"b\"", "check --match"]);
    let away = stand_in(Arc::new(|_| {
        ("302 Found\r\nLocation: http://u:secret@elsewhere/".to_owned(), String::new())
    }));
    fails_with(&["--prometheus", &away], 1, &["redirects to http://elsewhere, which is not followed"]);
}

#[test]
fn usage_is_checked_before_any_request() {
    fails_with(&[], 2, &["--prometheus"]);
    fails_with(&["--prometheus", "ftp://x"], 2, &["not an http or https URL"]);
    fails_with(&["--prometheus", "x", "--match", "nothing"], 2, &["write label=\"value\""]);
    fails_with(&["--prometheus", "x", "--node-label", "a b"], 2, &["cannot be the name of a label"]);
    fails_with(&["--prometheus", "x", "--window", "1y"], 2, &["write 30s, 15m, 1h or 2d"]);
    fails_with(
        &["--prometheus", "x", "--bearer-token-file", "/nonexistent"],
        2,
        &["--bearer-token-file /nonexistent"],
    );
    fails_with(&["--replay", RECORDING, "--prometheus", "x"], 2, &["cannot be used with"]);
    fails_with(&["--replay", "/dev/null"], 1, &["not a regular file"]);
    let said = fleet(&["--prometheus", "http://me:s3cret@", "--once"]);
    assert!(said.code == 2 && !said.err.contains("s3cret"), "{}", said.err);
}

#[test]
fn a_slow_prometheus_is_not_waited_for() {
    let slow = stand_in(Arc::new(|_| {
        // Longer than any test.
        thread::sleep(Duration::from_secs(3600));
        (String::new(), String::new())
    }));
    fails_with(&["--prometheus", &slow, "--timeout", "1s"], 1, &["timed out", "raise --timeout"]);
}

#[test]
fn logins_are_sent_and_never_shown() {
    let series = vector(&[(gpu("DCGM_FI_DEV_SM_CLOCK", "n1", "0"), "1980")]);
    let wants = |header: &'static str| {
        let series = series.clone();
        stand_in(Arc::new(move |request| match request.contains(header) {
            true => ("200 OK".to_owned(), series.clone()),
            false => ("401 Unauthorized".to_owned(), String::new()),
        }))
    };
    // "me:s3cret"
    let address = format!("http://me:s3cret@{}", wants("Authorization: Basic bWU6czNjcmV0"));
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| said(program(dir.path()).arg("fleet").args(args).output().unwrap());
    let basic = run(&["--prometheus", &address, "--json", "--record", "rec.ndjson"]);
    assert_eq!(basic.code, 0, "{}", basic.err);
    let recorded = fs::read_to_string(dir.path().join("rec.ndjson")).unwrap();
    for text in [&basic.out, &basic.err, &recorded] {
        assert!(!text.contains("s3cret") && !text.contains("czNjcmV0"), "{text}");
    }
    fs::write(dir.path().join("token"), "abc\n").unwrap();
    let bearer = wants("Authorization: Bearer abc");
    let said = run(&["--prometheus", &bearer, "--bearer-token-file", "token", "--once"]);
    assert!(said.code == 0 && said.out.contains("1 GPUs on 1 nodes"), "{} {}", said.out, said.err);
    fs::write(dir.path().join("token"), "a\r\nX: y").unwrap();
    let said = run(&["--prometheus", &bearer, "--bearer-token-file", "token", "--once"]);
    assert!(said.code == 2 && said.err.contains("one line with a token"), "{}", said.err);
}

fn gpu(name: &str, node: &str, index: &str) -> Value {
    json!({"__name__": name, "gpu": index, "UUID": format!("GPU-{node}-{index}"), "Hostname": node,
        "modelName": "NVIDIA H100 80GB HBM3", "job": "dcgm", "instance": format!("{node}:9400")})
}

fn with(mut labels: Value, more: &[(&str, &str)]) -> Value {
    more.iter().for_each(|(name, value)| labels[*name] = json!(value));
    labels
}

#[test]
fn odd_series_are_read_as_far_as_they_go() {
    let clock = "DCGM_FI_DEV_SM_CLOCK";
    let mig = |name, id: &str| with(gpu(name, "n1", "1"), &[("GPU_I_ID", id), ("GPU_I_PROFILE", "1g.10gb")]);
    let address = of_now(vec![
        (gpu(clock, "n1", "0"), "1980"),
        (with(gpu(clock, "n1", "0"), &[("job", "again")]), "1980"),
        (gpu("DCGM_FI_DEV_GPU_TEMP", "n1", "0"), "NaN"),
        (gpu("DCGM_FI_DEV_POWER_USAGE", "n1", "0"), "+Inf"),
        (gpu("DCGM_FI_DEV_GPU_UTIL", "n1", "0"), "9223372036854775792"),
        (mig(clock, "7"), "1755"),
        (mig("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "7"), "0.5"),
        (mig(clock, "8"), "1755"),
        (json!({"__name__": clock, "Hostname": "n1"}), "1"),
        (
            with(
                gpu(clock, "n2", "0"),
                &[("Hostname", "n2\u{1b}]0;owned\u{7}"), ("modelName", "H\u{202e}X")],
            ),
            "1000",
        ),
    ]);
    let found = fleet_json(&address, &[]);
    let gpus = found["gpus"].as_array().unwrap();
    assert_eq!(gpus.len(), 4);
    let of = |gpu: &str, mig: Value| {
        gpus.iter().find(|g| g["gpu"] == gpu && g["mig"] == mig && g["node"] == "n1").unwrap()
    };
    let whole = of("0", Value::Null);
    for key in [
        "temp_c",
        "power_w",
        "gpu_util_pct",
        "lost_pct",
        "reasons",
        "xid",
        "pcie_replays",
        "slow_since_unix_s",
    ] {
        assert_eq!(whole[key], Value::Null, "{key}");
        assert!(whole.as_object().unwrap().contains_key(key));
    }
    assert_eq!((&whole["sm_clock_mhz"], &whole["state"]), (&json!(1980.0), &json!("unknown")));
    assert_eq!(
        (&of("1", json!("7"))["gpu_util_pct"], &of("1", json!("8"))["mig_profile"]),
        (&json!(50.0), &json!("1g.10gb"))
    );
    let remarks = found["remarks"].to_string();
    assert!(remarks.contains("scraped twice") && remarks.contains("no label that names a GPU"), "{remarks}");
    assert!(remarks.contains("DCGM_FI_DEV_CLOCKS_EVENT_REASONS"), "{remarks}");
    let table = fleet(&["--prometheus", &address, "--once"]);
    assert!(table.code == 0 && table.out.contains("n2\\u001b]0;owned\\u0007"), "{}", table.out);
    assert!(!table.out.contains(['\u{1b}', '\u{202e}', '\u{7}']));
}

#[test]
fn labels_can_be_named() {
    let rack = |name: &str| with(gpu("DCGM_FI_DEV_SM_CLOCK", name, "0"), &[("rack", "r7")]);
    let address = of_now(vec![(rack("n1"), "1980")]);
    assert_eq!(fleet_json(&address, &["--node-label", "rack"])["gpus"][0]["node"], "r7");
    fails_with(
        &["--prometheus", &address, "--node-label", "shelf"],
        1,
        &["no series has the label \"shelf\"", "Hostname", "rack"],
    );
    let asked = stand_in(Arc::new(|request| {
        let selected = request.contains("cluster%3D%22a%5C%22%7D%22");
        let answer = vector(&[(gpu("DCGM_FI_DEV_SM_CLOCK", "n1", "0"), "1980")]);
        (if selected { "200 OK" } else { "400 Bad Request" }.to_owned(), answer)
    }));
    fleet_json(&asked, &["--match", "cluster=a\"}"]);
}

#[test]
fn a_recording_is_printed_and_shown() {
    let printed = fleet(&["--replay", RECORDING, "--once"]);
    assert_eq!(printed.code, 0, "{}", printed.err);
    assert!(
        printed.out.starts_with("64 GPUs on 8 nodes, 3 slow, 2 with errors, 8 silent, 8 idle"),
        "{}",
        printed.out
    );
    let as_json: Value = serde_json::from_str(&fleet(&["--replay", RECORDING, "--json"]).out).unwrap();
    let states: Vec<&str> =
        as_json["gpus"].as_array().unwrap().iter().filter_map(|gpu| gpu["state"].as_str()).collect();
    assert_eq!(&states[..6], ["slow", "slow", "slow", "errors", "errors", "silent"]);
    assert_eq!(as_json["schema"], 1);
    let dir = tempfile::tempdir().unwrap();
    let other = said(program(dir.path()).args(["replay", RECORDING]).output().unwrap());
    assert!(other.code == 2 && other.err.contains("llmprof-tui fleet --replay"), "{}", other.err);
    let keys: Vec<Vec<&String>> = as_json["gpus"]
        .as_array()
        .unwrap()
        .iter()
        .map(|gpu| gpu.as_object().unwrap().keys().collect())
        .collect();
    assert!(keys.windows(2).all(|pair| pair[0] == pair[1]), "every GPU has the same keys");
}

#[test]
fn screens() {
    let mut recorded = read_recording(Path::new(RECORDING)).unwrap();
    let fleet = Fleet::new(recorded.snapshot(2).unwrap());
    let capped = fleet.snapshot.gpus.iter().find(|gpu| gpu.node == "node1" && gpu.gpu == "3").unwrap();
    let history = from_recording(capped, recorded.up_to(2, 100).unwrap().iter());
    for (width, height) in [(80, 24), (120, 40), (30, 8)] {
        let area = Rect::new(0, 0, width, height);
        insta::assert_snapshot!(format!("fleet_{width}x{height}"), text(&still(&fleet, None, area)));
        // The pane contains the machine's time only if it is known.
        insta::assert_snapshot!(
            format!("fleet_history_{width}x{height}"),
            text(&still(&fleet, Some(&history), area))
        );
    }
    for width in (1..=220).step_by(7) {
        for height in [1, 4, 11, 19, 33, 50] {
            let area = Rect::new(0, 0, width, height);
            still(&fleet, None, area);
            still(&fleet, Some(&history), area);
        }
    }
}

fn text(buffer: &ratatui::buffer::Buffer) -> String {
    let width = buffer.area.width as usize;
    let line = |cells: &[ratatui::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect::<String>();
    buffer.content.chunks(width).map(|cells| line(cells).trim_end().to_owned() + "\n").collect()
}

/// Keys and the mouse, through a recording of two refreshes.
#[test]
fn a_recording_on_the_screen() {
    let dir = tempfile::tempdir().unwrap();
    let terminal = Terminal::start_in(dir, &["fleet", "--replay", RECORDING], &[], (120, 40));
    terminal.see("64 GPUs");
    terminal.see("refresh 2/2");
    terminal.press("\x1b[D", "refresh 1/2");
    terminal.press(">", "refresh 2/2");
    terminal.press("<", "refresh 1/2");
    terminal.press(".", "refresh 2/2");
    // The recording plays to its end. A refresh that is shown only briefly cannot be waited for.
    terminal.press("<", "refresh 1/2");
    terminal.press(" ", "refresh 2/2");
    terminal.press("j", "2 of 64");
    // The wheel moves, a click selects, and another click opens.
    terminal.send("\x1b[<65;20;10M");
    terminal.see("5 of 64");
    terminal.send("\x1b[<64;20;10M");
    terminal.see("2 of 64");
    // The text with the ellipsis is in the row, not in the finding below the list.
    terminal.click("thermal slowd…");
    terminal.see("3 of 64");
    terminal.click("thermal slowd…");
    terminal.see("fleet  node2 GPU 5");
    terminal.send("\x1b[<64;20;10M\x1b");
    terminal.see("3 of 64");
    terminal.press("n", "n GPUs");
    terminal.click("node3");
    terminal.press("\r", "of node3");
    terminal.press("?", "list nodes, or GPUs");
    terminal.send("\x1b[<65;20;10M?");
    terminal.see_no("list nodes, or GPUs");
    terminal.send("q");
    assert_eq!(terminal.exit_code(), 0);
}

/// A real Prometheus with an hour of history of `nodes` nodes, and an exporter that continues to play them.
struct Cluster {
    address: String,
    _exporter: KilledOnDrop,
    _prometheus: KilledOnDrop,
    _dir: tempfile::TempDir,
}

impl Cluster {
    fn start(nodes: usize, hours: &str) -> Cluster {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/standins/dcgm_exporter.py");
        let nodes = nodes.to_string();
        let dir = tempfile::tempdir().unwrap();
        let mut exporter = Command::new("python3")
            .args([script, "serve", "0", "--interval", "2s", "--nodes", &nodes])
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut port = String::new();
        BufReader::new(exporter.stdout.take().unwrap()).read_line(&mut port).unwrap();
        let (exporter, port) = (KilledOnDrop(exporter), port.trim().to_owned());
        let config = get(&format!("127.0.0.1:{port}"), "/config").unwrap();
        fs::write(dir.path().join("prometheus.yml"), config).unwrap();
        let past = fs::File::create(dir.path().join("past")).unwrap();
        let filled = Command::new("python3")
            .args([script, "backfill", hours, "--nodes", &nodes, "--port", &port])
            .stdout(past)
            .status();
        assert!(filled.unwrap().success());
        let blocks = Command::new("promtool")
            .args(["tsdb", "create-blocks-from", "openmetrics", "past", "data"])
            .current_dir(dir.path())
            .output()
            .expect("promtool");
        assert!(blocks.status.success(), "{}", String::from_utf8_lossy(&blocks.stderr));
        fs::remove_file(dir.path().join("past")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let prometheus = Command::new("prometheus")
            .current_dir(dir.path())
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus");
        let prometheus = KilledOnDrop(prometheus);
        eventually("a scrape of every node that can be", || {
            let answer: Value = serde_json::from_str(&get(&address, "/api/v1/query?query=sum(up)")?).ok()?;
            let up: usize = answer["data"]["result"][0]["value"][1].as_str()?.parse().ok()?;
            (up + 1 == nodes.parse::<usize>().unwrap()).then_some(())
        });
        Cluster { address, _exporter: exporter, _prometheus: prometheus, _dir: dir }
    }
}

fn get(address: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.lines().next()?.contains("200").then(|| body.to_owned())
}

/// Median and MAD of a metric over the GPUs that are busy and scraped, by promtool and Python's `statistics`.
fn by_others(address: &str, metric: &str) -> (f64, f64) {
    let query = format!("{metric}{{Hostname!~\"node5|node6\"}}");
    let found = Command::new("promtool")
        .args(["query", "instant", &format!("http://{address}"), &query])
        .output()
        .unwrap();
    let values: Vec<String> = String::from_utf8(found.stdout)
        .unwrap()
        .lines()
        .filter_map(|line| Some(line.split_once("=> ")?.1.split(' ').next()?.to_owned()))
        .collect();
    let script = "import sys,statistics as s; v=[float(x) for x in sys.argv[1:]]; m=s.median(v); print(m, s.median(abs(x-m) for x in v))";
    let out = Command::new("python3").args(["-c", script]).args(&values).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let (median, mad) = text.trim().split_once(' ').unwrap();
    (median.parse().unwrap(), mad.parse().unwrap())
}

#[test]
#[ignore = "needs prometheus and promtool; .ci/run installs them"]
fn a_real_prometheus_with_64_gpus() {
    let cluster = Cluster::start(8, "1.2");
    let found = fleet_json(&cluster.address, &[]);
    let totals = &found["totals"];
    for (key, n) in [("gpus", 64), ("nodes", 8), ("slow", 3), ("errors", 2), ("silent", 8), ("idle", 8)] {
        assert_eq!(totals[key], n, "{key}: {found}");
    }
    let of = |node: &str, gpu: &str| {
        found["gpus"].as_array().unwrap().iter().find(|g| g["node"] == node && g["gpu"] == gpu).unwrap()
    };
    let capped = of("node1", "3");
    assert_eq!((&capped["state"], &capped["loss"]["cause"]), (&json!("slow"), &json!("power_cap")));
    let now = found["unix_s"].as_f64().unwrap();
    let minutes = (now - capped["slow_since_unix_s"].as_f64().unwrap()) / 60.0;
    assert!(
        (19.0..23.0).contains(&minutes),
        "slow for {minutes} min, and it was 20 when the past was written"
    );
    assert_eq!(capped["slow_since_or_earlier"], false);
    let hot = of("node2", "5");
    assert_eq!((&hot["loss"]["cause"], &hot["slow_since_or_earlier"]), (&json!("thermal"), &json!(true)));
    assert_eq!(
        (&of("node7", "1")["loss"]["measure"], &of("node3", "0")["xid"]),
        (&json!("memory_clock"), &json!(79))
    );
    assert_eq!(of("node3", "0")["xid_is_new"], true);
    let replays = of("node4", "6")["pcie_replays"]["in_window"].as_f64().unwrap();
    assert!((175.0..190.0).contains(&replays), "one in 20 s, for an hour: {replays}");
    assert!(of("node6", "0")["last_scrape_s_ago"].as_f64().unwrap() >= 180.0);
    assert_eq!((&of("node5", "0")["state"], &of("node5", "0")["lost_pct"]), (&json!("idle"), &Value::Null));
    // Computed by other programs, over the values of the same scrape or the next: clocks move by one step of 15 MHz.
    let (median, mad) = by_others(&cluster.address, "DCGM_FI_DEV_SM_CLOCK");
    let loss = &capped["loss"];
    assert!((loss["median_mhz"].as_f64().unwrap() - median).abs() <= 15.0, "{loss}, and by others {median}");
    assert!((loss["mad_mhz"].as_f64().unwrap() - mad).abs() <= 15.0, "{loss}, and by others {mad}");
    let memory = by_others(&cluster.address, "DCGM_FI_DEV_MEM_CLOCK");
    assert_eq!(memory, (2619.0, 0.0));
    let lost = of("node7", "1")["lost_pct"].as_f64().unwrap();
    assert!((lost - 100.0 * (1.0 - 1593.0 / 2619.0)).abs() < 1e-9);
}

/// Runs openssl in `dir`.
fn openssl(dir: &Path, arguments: &str) {
    let done = Command::new("openssl").args(arguments.split(' ')).current_dir(dir).output().expect("openssl");
    assert!(done.status.success(), "{arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A certificate `name.pem` with its key for `alt`, signed by the authority `by`.
fn certificate(dir: &Path, name: &str, by: &str, alt: &str, days: &str) {
    openssl(dir, &format!("req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}"));
    fs::write(dir.join("alt"), format!("subjectAltName={alt}\n")).unwrap();
    openssl(
        dir,
        &format!(
            "x509 -req -in {name}.csr -CA {by}.pem -CAkey {by}.key -CAcreateserial -out {name}.pem -extfile alt {days}"
        ),
    );
}

fn authority(dir: &Path, name: &str) {
    openssl(
        dir,
        &format!(
            "req -x509 -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.pem -days 2 -subj /CN={name}"
        ),
    );
}

#[test]
#[ignore = "needs prometheus and openssl; .ci/run installs them"]
fn a_real_prometheus_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    authority(dir.path(), "ours");
    authority(dir.path(), "other");
    certificate(dir.path(), "good", "ours", "DNS:localhost", "-days 2");
    certificate(dir.path(), "elsewhere", "ours", "DNS:prometheus.example.com", "-days 2");
    // OpenSSL 3.0 accepts no date in the past except with -days.
    certificate(dir.path(), "old", "ours", "DNS:localhost", "-days -1");
    fs::write(dir.path().join("prometheus.yml"), "global:\n  scrape_interval: 2s\n").unwrap();
    let serve = |name: &str| {
        fs::write(
            dir.path().join("web.yml"),
            format!("tls_server_config:\n  cert_file: {name}.pem\n  key_file: {name}.key\n"),
        )
        .unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let prometheus = Command::new("prometheus")
            .current_dir(dir.path())
            .args(["--config.file=prometheus.yml", "--web.config.file=web.yml"])
            .args([
                format!("--storage.tsdb.path=data-{name}"),
                format!("--web.listen-address=127.0.0.1:{port}"),
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus");
        eventually("its port", || TcpStream::connect(("127.0.0.1", port)).ok());
        (KilledOnDrop(prometheus), format!("https://localhost:{port}"))
    };
    let (_good, url) = serve("good");
    // The server answers and has no GPU.
    for file in ["ours.pem", "good.pem"] {
        fails_with(&["--prometheus", &url, "--ca-file", &path(file)], 1, &["has no GPU metric"]);
    }
    fails_with(&["--prometheus", &url], 1, &["not of a known authority", "--ca-file names a file"]);
    fails_with(
        &["--prometheus", &url, "--ca-file", &path("other.pem")],
        1,
        &["not of a known authority", "none of the certificates in --ca-file has signed it"],
    );
    // Prometheus reports it and closes the connection; the message may be lost with it.
    let plain = fleet(&["--prometheus", &url.replace("https", "http"), "--ca-file", &path("ours.pem")]);
    assert!(plain.code == 1 && plain.err.to_lowercase().contains("https"), "{}", plain.err);
    fails_with(
        &["--prometheus", &url.replace("localhost", "127.0.0.1"), "--ca-file", &path("ours.pem")],
        1,
        &["its certificate is for localhost only", "a name that the certificate is for"],
    );
    fails_with(
        &["--prometheus", &url, "--ca-file", &path("good.key")],
        2,
        &["--ca-file", "it has no certificate"],
    );
    let (_elsewhere, url) = serve("elsewhere");
    fails_with(
        &["--prometheus", &url, "--ca-file", &path("ours.pem")],
        1,
        &["its certificate is for prometheus.example.com only"],
    );
    let (_old, url) = serve("old");
    fails_with(
        &["--prometheus", &url, "--ca-file", &path("ours.pem")],
        1,
        &["its certificate has expired", "renew it on the server"],
    );
    // Named directly, the certificate is trusted; it has still expired.
    fails_with(&["--prometheus", &url, "--ca-file", &path("old.pem")], 1, &["has expired"]);
}

#[test]
#[ignore = "needs prometheus and promtool; prints how long 1,000 GPUs take"]
fn a_thousand_gpus() {
    let cluster = Cluster::start(126, "0.2");
    let dir = tempfile::tempdir().unwrap();
    for i in 0..3 {
        let run =
            program(dir.path()).args(["fleet", "--json", "--prometheus", &cluster.address]).output().unwrap();
        let found: Value = serde_json::from_slice(&run.stdout).unwrap();
        assert_eq!(found["totals"]["gpus"], 1008);
        println!(
            "{} GPUs, refresh {}: {:.0} ms",
            found["totals"]["gpus"],
            i + 1,
            found["took_ms"].as_f64().unwrap()
        );
    }
}
