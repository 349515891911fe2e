//! Load tests of servers: a server with known timing, misbehaving servers, and what the run reports about both.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Command, Output, Stdio},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use llmprof::{
    base::units::grouped,
    event::{
        ClientSample, Envelope, Event, GpuInfo, GpuSample, Outcome, RequestFinished, RequestStarted,
        RunFinished, RunStarted, ServerFound, ServerKind, ServerSample, Stamp, Token, WorkKind,
        readings::Reading,
    },
    report::run_json,
    server::{KnownServer, Timing},
    state::RunState,
};
use serde_json::Value;

fn llmprof(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = crate::common::program(dir);
    command.args(arguments);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Load-tests `url` and returns the output.
fn load(dir: &Path, url: &str, more: &[&str]) -> Output {
    load_command(dir, url, more).output().unwrap()
}

fn load_command(dir: &Path, url: &str, more: &[&str]) -> Command {
    let url = format!("runtime.server.url={url}");
    let mut arguments =
        vec!["run", "--quiet", "--json", "runtime=openai", "telemetry=none", "profiling=none", &url];
    arguments.extend([
        "hydra.run.dir=run",
        "infer.max_new_tokens=8",
        "runtime.requests=6",
        "dataset.prompt_tokens=16",
    ]);
    arguments.extend(more);
    llmprof(dir, &arguments)
}

fn known() -> KnownServer {
    let timing =
        Timing { ttft: Duration::from_millis(40), itl: Duration::from_millis(10), tokens_per_chunk: 1 };
    KnownServer::start(timing).unwrap()
}

#[test]
fn latencies_are_those_of_the_server() {
    let server = known();
    let dir = tempfile::tempdir().unwrap();
    let output = load(dir.path(), &format!("http://{}", server.address), &["runtime.load.concurrency=2"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(run["server"]["requests"], 6);
    assert_eq!(run["server"]["failed"], 0);
    assert_eq!(run["server"]["output_tokens"], 48);
    let mean = |key: &str| run[key]["mean"].as_f64().unwrap();
    let n = |key: &str| run[key]["n"].as_f64().unwrap();
    // The server is never early: 40 ms to the first token, 70 ms more to the last. Neither the delay of a busy machine
    // nor its distribution between the two is asserted.
    assert!(mean("ttft_ms") >= 39.9, "{run}");
    assert!(mean("ttft_ms") + 7.0 * mean("tpot_ms") >= 109.9, "{run}");
    // Chunks that a busy machine reads together have no gap between them, and the gap before them belongs to several
    // tokens: neither is an ITL. All other gaps add up to the time from the first token to the last.
    let events = crate::common::events(&dir.path().join("run"));
    // A request sent after the last measured one has ended if the server was quick.
    let started = events.iter().filter_map(|envelope| match &envelope.event {
        Event::RequestStarted(started) if started.cooldown => Some(started.request),
        _ => None,
    });
    let after: Vec<u32> = started.collect();
    let served = events.iter().filter_map(|envelope| match &envelope.event {
        Event::RequestFinished(RequestFinished { request, served: Some(served), .. }) => {
            (!after.contains(request)).then_some(served)
        }
        _ => None,
    });
    let (chunks, together) = served
        .fold((0, 0), |(chunks, together), served| (chunks + served.chunks, together + served.together));
    assert_eq!(chunks, (6 + 2) * 8, "those of the two warm-up requests too");
    assert!(
        n("itl_ms") <= 42.0 && n("itl_ms") + 2.0 * f64::from(together) >= 42.0,
        "{together} together: {run}"
    );
    let (gaps_ms, decode_ms) = (mean("itl_ms") * n("itl_ms"), mean("tpot_ms") * 7.0 * 6.0);
    let share = gaps_ms / decode_ms;
    assert!(share < 1.02 && (share > 0.98 || n("itl_ms") < 42.0), "{gaps_ms} of {decode_ms} ms: {run}");
}

#[test]
fn open_loops_and_conversations_are_run() {
    let server = known();
    let url = format!("http://{}", server.address);
    for more in [
        &["runtime.load.arrivals=poisson", "runtime.load.rate=20"][..],
        &["runtime.load.turns=3"],
        &["runtime.load.arrivals=constant", "runtime.load.rate=50", "runtime.load.concurrency=2"],
    ] {
        let dir = tempfile::tempdir().unwrap();
        let output = load(dir.path(), &url, more);
        assert_eq!(output.status.code(), Some(0), "{more:?}: {}", text(&output.stderr));
        let run: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(run["server"]["requests"], 6, "{more:?}");
    }
}

#[test]
fn a_recording_is_a_trace() {
    let server = known();
    let url = format!("http://{}", server.address);
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(load(dir.path(), &url, &[]).status.code(), Some(0));
    let again = load(
        dir.path(),
        &url,
        &[
            "hydra.run.dir=again",
            "runtime.load.arrivals=trace",
            "runtime.load.trace=run/events.ndjson",
            "runtime.requests=null",
        ],
    );
    assert_eq!(again.status.code(), Some(0), "{}", text(&again.stderr));
    let run: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(run["server"]["requests"], 6);
}

/// Answers every request to `/v1/models` correctly, and every other with `script`.
fn bad_server(script: impl Fn(&mut TcpStream) + Send + Sync + 'static) -> String {
    scripted(move |stream, _| script(stream))
}

/// Like [`bad_server`], with the requested path.
fn scripted(script: impl Fn(&mut TcpStream, &str) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let script = std::sync::Arc::new(script);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, script) = (stream.unwrap(), std::sync::Arc::clone(&script));
            thread::spawn(move || answer(stream, &*script));
        }
    });
    url
}

/// Answers the one request of a connection, like [`scripted`].
fn answer(stream: TcpStream, script: &impl Fn(&mut TcpStream, &str)) {
    answer_listing(r#"{"data":[{"id":"m"}]}"#, stream, script);
}

/// The same with another list of models.
fn answer_listing(models: &str, mut stream: TcpStream, script: &impl Fn(&mut TcpStream, &str)) {
    let mut seen = Vec::new();
    let mut bytes = [0; 4096];
    while !seen.windows(4).any(|w| w == b"\r\n\r\n") {
        match stream.read(&mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(n) => seen.extend_from_slice(&bytes[..n]),
        }
    }
    if seen.starts_with(b"GET /v1/models") {
        let _ = write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{models}",
            models.len()
        );
    } else {
        let head = text(&seen);
        script(&mut stream, head.split(' ').nth(1).unwrap_or_default());
    }
}

const STREAM: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
const CHUNK: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";

/// Whatever a server does, the run ends, and reports the failures.
#[test]
fn bad_servers_are_named_and_never_hang() {
    type Script = fn(&mut TcpStream);
    let scripts: [(&str, Script); 10] = [
        ("HTTP 500", |s| drop(write!(s, "HTTP/1.1 500 Oh\r\nContent-Length: 4\r\n\r\noops"))),
        ("HTTP 429", |s| drop(write!(s, "HTTP/1.1 429 Busy\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"))),
        ("HTTP 302", |s| {
            drop(write!(s, "HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n"))
        }),
        ("not JSON", |s| drop(write!(s, "{STREAM}{CHUNK}data: {{oops\n\n"))),
        ("closed the connection", |s| drop(write!(s, "{STREAM}{CHUNK}"))),
        ("timed out", |s| {
            let _ = write!(s, "{STREAM}{CHUNK}");
            // Waits until the client disconnects.
            let _ = s.read(&mut [0]);
        }),
        ("is not HTTP", |s| drop(write!(s, "220 smtp ready\r\n\r\n"))),
        ("no text", |s| drop(write!(s, "{STREAM}data: [DONE]\n\n"))),
        ("out of memory", |s| {
            drop(write!(s, "{STREAM}{CHUNK}data: {{\"error\":{{\"message\":\"out of memory\"}}}}\n\n"))
        }),
        ("no text", |s| {
            let _ = write!(s, "{STREAM}data: ");
            let block = [b'x'; 65536];
            for _ in 0..64 {
                let _ = s.write_all(&block);
            }
            let _ = write!(s, "\n\ndata: [DONE]\n\n");
        }),
    ];
    for (words, script) in scripts {
        let url = bad_server(script);
        let dir = tempfile::tempdir().unwrap();
        let timeout =
            if words == "timed out" { "runtime.server.timeout_s=1" } else { "runtime.server.timeout_s=60" };
        let output = load(
            dir.path(),
            &url,
            &[timeout, "runtime.requests=2", "runtime.warmup=0", "runtime.load.concurrency=2"],
        );
        assert_eq!(output.status.code(), Some(1), "{words}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(words), "{words}: {}", text(&output.stderr));
    }
}

#[test]
fn an_absent_server_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let output = load(dir.path(), "http://127.0.0.1:9", &["runtime.server.ready_s=0.3"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("http://127.0.0.1:9 did not answer within"),
        "{}",
        text(&output.stderr)
    );
    assert!(text(&output.stderr).contains("connection refused"), "{}", text(&output.stderr));
    assert!(!dir.path().join("run").exists(), "a run that never began leaves nothing");
    let usual = [
        "run",
        "--quiet",
        "runtime=openai",
        "telemetry=none",
        "profiling=none",
        "runtime.server.url=http://127.0.0.1:9",
        "runtime.server.ready_s=0.3",
    ];
    let usual = llmprof(dir.path(), &usual).output().unwrap();
    assert_eq!(usual.status.code(), Some(1));
    assert!(text(&usual.stderr).contains("did not answer within"), "{}", text(&usual.stderr));
    assert!(!dir.path().join("runs").exists(), "nor does it where runs usually are");
    assert!(!text(&usual.stdout).contains('–'), "nothing was measured: {}", text(&usual.stdout));
    let none = llmprof(dir.path(), &["run", "runtime=openai"]).output().unwrap();
    assert_eq!(none.status.code(), Some(2));
    assert!(text(&none.stderr).contains("runtime.server.url"), "{}", text(&none.stderr));
    let endless = load(dir.path(), "http://127.0.0.1:9", &["runtime.requests=null"]);
    assert_eq!(endless.status.code(), Some(2));
    assert!(text(&endless.stderr).contains("give a number"), "{}", text(&endless.stderr));
}

/// stderr reports what is waited for, why, and for how much longer, while it is waited for.
#[test]
fn a_wait_for_a_server_reports_why_and_for_how_much_longer() {
    let dir = tempfile::tempdir().unwrap();
    // The run ends by itself even if the message never comes.
    let arguments = [
        "run",
        "runtime=openai",
        "telemetry=none",
        "profiling=none",
        "runtime.server.url=http://127.0.0.1:9",
        "runtime.server.ready_s=30",
    ];
    let mut child =
        llmprof(dir.path(), &arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut lines = std::io::BufReader::new(child.stderr.take().unwrap());
    while !said.contains("gives up in ") {
        let read = std::io::BufRead::read_line(&mut lines, &mut said).unwrap();
        assert!(read > 0, "{said}");
    }
    crate::common::signal(child.id(), "INT");
    lines.read_to_string(&mut said).unwrap();
    child.wait().unwrap();
    let words = "waiting for http://127.0.0.1:9: connection refused; gives up in ";
    let left = said.split_once(words).and_then(|(_, rest)| rest.split_once(" s"));
    let left: Option<u32> = left.and_then(|(seconds, _)| seconds.parse().ok());
    assert!(left.is_some_and(|seconds| seconds < 30), "{said}");
    assert!(!dir.path().join("runs").exists(), "a run that never began leaves nothing");
}

/// Answers every connection with `bytes`, without reading the request.
fn answering(bytes: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(bytes);
        }
    });
    address
}

/// A library with which no name resolves: the name does not exist, or with `NO_RESOLVER` no resolver answers.
fn without_addresses(dir: &Path) -> String {
    let (source, library) = (dir.join("names.c"), dir.join("names.so"));
    let code = r#"
        #include <netdb.h>
        #include <stdlib.h>
        int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
            return getenv("NO_RESOLVER") ? EAI_AGAIN : EAI_NONAME;
        }
    "#;
    fs::write(&source, code).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(built.unwrap().success());
    library.display().to_string()
}

/// If waiting cannot help, the run does not wait: these would wait for minutes.
#[test]
fn an_impossible_server_is_reported_immediately() {
    let not_found = answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let mail = answering(b"220 mail ready\r\n\r\n");
    let is_this = format!("HTTP 404 at http://{not_found}/v1/models: is this an OpenAI-compatible server?");
    for (url, words) in [
        (format!("http://{not_found}"), is_this.as_str()),
        (format!("https://{not_found}"), "does not speak TLS. Use http://"),
        (format!("http://{mail}"), "answers, but not with HTTP"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let output = load(dir.path(), &url, &["runtime.server.ready_s=86400"]);
        assert_eq!(output.status.code(), Some(1), "{url}");
        assert!(text(&output.stderr).contains(words), "{words}: {}", text(&output.stderr));
    }
    // The resolver's answer for such a name depends on this machine's network: both answers are tested without it.
    let dir = tempfile::tempdir().unwrap();
    let library = without_addresses(dir.path());
    for (resolver, cause) in
        [("RESOLVER", "Name or service not known"), ("NO_RESOLVER", "Temporary failure in name resolution")]
    {
        let mut command =
            load_command(dir.path(), "http://no.such.host.invalid", &["runtime.server.ready_s=86400"]);
        let output = command.env("LD_PRELOAD", &library).env(resolver, "1").output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{cause}");
        let said = text(&output.stderr);
        let words = "http://no.such.host.invalid: the host no.such.host.invalid is not known (";
        assert!(said.contains(words) && said.contains(cause), "{cause}: {said}");
        assert!(said.contains("Correct runtime.server.url"), "{said}");
    }
}

/// A server dies during a run: the remaining requests are not sent, and the run fails and reports since when.
#[test]
fn a_server_that_stops_answering_fails_the_run() {
    let closed = ["runtime.load.concurrency=4"];
    // At this rate the requests would take more than an hour.
    let open = ["runtime.load.arrivals=constant", "runtime.load.rate=25"];
    for load in [&closed[..], &open] {
        let server = known();
        let dir = tempfile::tempdir().unwrap();
        let more = [
            &["runtime.requests=100000", "runtime.load.gives_up_s=0.5", "runtime.load.max_failures=1"],
            load,
        ];
        let mut run = load_command(dir.path(), &format!("http://{}", server.address), &more.concat());
        let run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        crate::common::eventually("answers", || (server.chunks.load(Ordering::Relaxed) > 100).then_some(()));
        drop(server);
        let output = run.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{load:?}: {}", text(&output.stderr));
        let said = text(&output.stderr);
        for words in ["the server stopped answering at", " s (connection refused): ", "were not sent"] {
            assert!(said.contains(words), "{words}: {said}");
        }
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        let failed = result["server"]["failed"].as_u64().unwrap();
        assert!(failed < 100_000 && result["server"]["requests"].as_u64().unwrap() > 0, "{failed} failed");
        if load == closed {
            assert!(failed < 100, "{failed} of 100,000: the rest of the loop waits");
        }
        assert_eq!(result["outcome"], "failed");
        // The sentence has the numbers of the result.
        let ended = failed + result["server"]["requests"].as_u64().unwrap();
        let number = |n: u64| grouped(i64::try_from(n).unwrap());
        let counts = format!(
            "{} of {} requests failed, {} were not sent",
            number(failed),
            number(ended),
            number(100_000 - ended)
        );
        assert!(said.contains(&format!(" s (connection refused): {counts}")), "{counts}: {said}");
        let report = fs::read_to_string(dir.path().join("run/report.md")).unwrap();
        assert!(report.contains("**The run failed: the server stopped answering at"), "{report}");
        assert!(report.contains(&counts), "{counts}: {report}");
    }
}

/// A server that is restarted within the wait: the requests meanwhile have failed, the run has not.
#[test]
fn a_server_that_comes_back_in_time_does_not_fail_the_run() {
    // Other tests listen at 127.0.0.1: none of them takes this address while nothing listens on it.
    let listener = TcpListener::bind("127.0.0.9:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = |listener: TcpListener, connections: usize| {
        thread::spawn(move || {
            let script = |s: &mut TcpStream, _: &str| drop(write!(s, "{STREAM}{CHUNK}data: [DONE]\n\n"));
            listener.incoming().take(connections).for_each(|stream| answer(stream.unwrap(), &script));
        })
    };
    // The list of models and four requests.
    let first = serve(listener, 5);
    let dir = tempfile::tempdir().unwrap();
    let more = [
        "runtime.server.metrics=none",
        "runtime.warmup=0",
        "runtime.requests=200",
        "runtime.load.gives_up_s=600",
        "output.flush_ms=50",
    ];
    let mut command = load_command(dir.path(), &format!("http://{address}"), &more);
    let run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    crate::common::eventually("a refused connection", || {
        let recorded = fs::read_to_string(dir.path().join("run/events.ndjson")).unwrap_or_default();
        recorded.contains("the server refuses connections").then_some(())
    });
    first.join().unwrap();
    let again = crate::common::eventually("the address", || TcpListener::bind(address).ok());
    serve(again, usize::MAX);
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let events = crate::common::events(&dir.path().join("run"));
    let notices = notices(&events);
    let place = |words: &str| notices.iter().position(|text| text.contains(words));
    let (refused, answers) =
        (place("refuses connections: waiting for it"), place("the server answers again"));
    assert!(refused.is_some() && refused < answers, "{notices:?}");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["outcome"], "completed");
    let count = |key: &str| result["server"][key].as_u64().unwrap();
    assert!(count("failed") > 0 && count("failed") + count("requests") == 200, "{result}");
}

/// The texts of the notices among `events`.
fn notices(events: &[Envelope]) -> Vec<&str> {
    events
        .iter()
        .filter_map(|e| if let Event::Notice(notice) = &e.event { Some(notice.text.as_str()) } else { None })
        .collect()
}

/// If more than half of the requests are refused, there is no result.
#[test]
fn too_many_failures_fail_the_run() {
    let count = AtomicU32::new(0);
    let url = bad_server(move |s| {
        let _ = match count.fetch_add(1, Ordering::Relaxed) % 4 {
            0 => write!(s, "{STREAM}{CHUNK}data: [DONE]\n\n"),
            _ => write!(s, "HTTP/1.1 429 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
        };
    });
    let dir = tempfile::tempdir().unwrap();
    let more = ["runtime.requests=12", "runtime.warmup=0"];
    let output = load(dir.path(), &url, &more);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("9 of 12 requests failed"), "{}", text(&output.stderr));
    let output = load(
        dir.path(),
        &url,
        &[&more[..], &["runtime.load.max_failures=0.8", "hydra.run.dir=meant"]].concat(),
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

/// Every third request fails, and with it the rest of its conversation: the run still ends.
#[test]
fn a_failed_turn_ends_its_conversation_and_not_the_run() {
    let count = std::sync::atomic::AtomicU32::new(0);
    let url = bad_server(move |s| {
        let _ = match count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 3 {
            0 => write!(s, "HTTP/1.1 500 Oh\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
            _ => write!(s, "{STREAM}{CHUNK}data: [DONE]\n\n"),
        };
    });
    let dir = tempfile::tempdir().unwrap();
    let output = load(dir.path(), &url, &["runtime.load.turns=4", "runtime.requests=12", "runtime.warmup=0"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (done, failed) =
        (run["server"]["requests"].as_u64().unwrap(), run["server"]["failed"].as_u64().unwrap());
    assert!(failed > 0 && done > 0 && done + failed < 12, "{run}");
}

/// The paths and contents of all files below `dir`.
fn files_below(dir: &Path) -> Vec<(String, String)> {
    let (mut dirs, mut files) = (vec![dir.to_owned()], Vec::new());
    while let Some(next) = dirs.pop() {
        for path in fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
            match path.is_dir() {
                true => dirs.push(path),
                false => files.push((path.display().to_string(), text(&fs::read(&path).unwrap()))),
            }
        }
    }
    files
}

/// A key is sent and never recorded.
#[test]
fn a_key_is_never_recorded() {
    let url = bad_server(|s| drop(write!(s, "{STREAM}{CHUNK}data: [DONE]\n\n")));
    let dir = tempfile::tempdir().unwrap();
    let url = format!("runtime.server.url={url}");
    let output = llmprof(
        dir.path(),
        &["run", "runtime=openai", "telemetry=none", &url, "runtime.requests=2", "hydra.run.dir=run"],
    )
    .env("OPENAI_API_KEY", "sk-very-secret")
    .output()
    .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for (path, text) in files_below(dir.path()) {
        assert!(!text.contains("very-secret"), "{path}");
    }
    assert!(!text(&output.stderr).contains("very-secret") && !text(&output.stdout).contains("very-secret"));
}

/// A key that a server repeats in its errors is not recorded either.
#[test]
fn a_key_that_a_server_repeats_is_stripped() {
    let body = r#"{"error":{"message":"Incorrect API key provided: sk-very-secret"}}"#;
    let url = bad_server(move |s| {
        drop(write!(
            s,
            "HTTP/1.1 400 Bad\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        ))
    });
    let dir = tempfile::tempdir().unwrap();
    let url = format!("runtime.server.url={url}");
    let asked = ["run", "runtime=openai", "telemetry=none", &url, "runtime.requests=2", "hydra.run.dir=run"];
    let output = llmprof(dir.path(), &asked).env("OPENAI_API_KEY", "sk-very-secret").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(said.contains("Incorrect API key provided: (key)") && !said.contains("very-secret"), "{said}");
    for name in ["events.ndjson", "report.md", "llmprof.log", "metrics.json"] {
        let text = std::fs::read_to_string(dir.path().join("run").join(name)).unwrap_or_default();
        assert!(!text.contains("very-secret"), "{name}: {text}");
    }
}

/// A server may repeat the key anywhere: in the name of its model, in its metrics, in answers, and in every kind of
/// failure. Neither the key nor its beginning is in a file or in the output.
#[test]
fn a_key_that_a_server_repeats_anywhere_is_stripped() {
    // JSON may have any character as an escape.
    let models = r#"{"data":[{"id":"org/sk-very\u002dsecret","owned_by":"sk-very-secret"}]}"#;
    let page = "# HELP vllm:x sk-very-secret\nvllm:num_requests_running{model_name=\"sk-very-secret\"} 1\n\
                vllm:num_requests_waiting{sk-very-secret=\"sk-very-secret\"} 0\nvllm:sk-very-secret 1\n";
    let (asked, read) = (AtomicU32::new(0), AtomicU32::new(0));
    let script = move |stream: &mut TcpStream, path: &str| {
        if path == "/metrics" {
            send_page(stream, page);
            read.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let close = "Content-Length: 0\r\nConnection: close\r\n\r\n";
        let garbage = format!("{}sk-very-secret", "x".repeat(70));
        let _ = match asked.fetch_add(1, Ordering::Relaxed) {
            // Until several readings of the metrics are recorded.
            0 => {
                let _ = write!(stream, "{STREAM}{CHUNK}");
                let enough = || (read.load(Ordering::Relaxed) >= 4).then_some(());
                crate::common::eventually("readings", enough);
                write!(
                    stream,
                    "data: {{\"choices\":[{{\"delta\":{{\"content\":\"sk-very-secret\"}}}}]}}\n\ndata: [DONE]\n\n"
                )
            }
            1 => {
                write!(stream, "{STREAM}{CHUNK}data: {{\"error\":{{\"message\":\"no sk-very-secret\"}}}}\n\n")
            }
            2 => write!(
                stream,
                "{STREAM}{CHUNK}data: {{\"error\":{{\"message\":\"no sk-very\\u002dsecret\"}}}}\n\n"
            ),
            3 => write!(stream, "{STREAM}{CHUNK}data: {garbage}\n\n"),
            4 => write!(stream, "HTTP/1.1 302 Found\r\nLocation: http://elsewhere/sk-very-secret\r\n{close}"),
            5 => write!(stream, "HTTP/1.1 429 Busy\r\nRetry-After: sk-very-secret\r\n{close}"),
            _ => write!(
                stream,
                "HTTP/1.1 500 sk-very-secret\r\nContent-Length: 14\r\nConnection: close\r\n\r\nsk-very-secret"
            ),
        };
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("runtime.server.url=http://{}", listener.local_addr().unwrap());
    let script = Arc::new(script);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, script) = (stream.unwrap(), Arc::clone(&script));
            thread::spawn(move || answer_listing(models, stream, &*script));
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let asked = [
        "run",
        "--json",
        "runtime=openai",
        "telemetry=none",
        &url,
        "runtime.warmup=0",
        "runtime.requests=7",
        "runtime.load.max_failures=1",
        "output.predictions.enable=true",
        "hydra.run.dir=run",
    ];
    let output = llmprof(dir.path(), &asked).env("OPENAI_API_KEY", "sk-very-secret").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let events = crate::common::events(&dir.path().join("run"));
    assert!(events.iter().any(|e| matches!(e.event, Event::ServerSample(_))), "its metrics were read");
    let recorded = notices(&events).join("\n");
    for words in
        ["org/(key), owned by (key)", "no (key)", "not JSON: xxx", "elsewhere/(key)", "(retry after (key))"]
    {
        assert!(recorded.contains(words), "{words}: {recorded}");
    }
    let mut all = files_below(dir.path());
    assert!(
        all.iter().any(|(path, text)| path.contains("/predictions") && text.contains("a(key)")),
        "{all:?}"
    );
    all.push(("stdout".to_owned(), text(&output.stdout)));
    all.push(("stderr".to_owned(), text(&output.stderr)));
    for (path, text) in all {
        assert!(!path.contains("sk-very") && !text.contains("sk-very"), "{path}: {text}");
    }
}

/// Values that a server does not report are not invented.
#[test]
fn chunks_without_counts_and_held_back_answers_are_reported() {
    // In two parts: by the gap between them, the rate would be about 1,000 tok/s.
    let url = bad_server(move |s| {
        let _ = write!(s, "{STREAM}{}", CHUNK.repeat(39));
        thread::sleep(Duration::from_millis(1));
        let _ = write!(s, "{CHUNK}data: [DONE]\n\n");
    });
    let dir = tempfile::tempdir().unwrap();
    let output = load(dir.path(), &url, &["infer.max_new_tokens=40"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    let why = run["server"]["why"].to_string();
    assert!(why.contains("The answers are not streamed: "), "{why}");
    assert!(why.contains("each chunk counts as one token"), "{why}");
    // No decode rate is derived from the gaps between such chunks.
    assert_eq!(run["decode_tok_s"], Value::Null, "{run}");
    let read = |name: &str| fs::read_to_string(dir.path().join("run").join(name)).unwrap();
    let metrics: Value = serde_json::from_str(&read("metrics.json")).unwrap();
    assert_eq!(metrics["metrics"]["decode_tok_s"], Value::Null, "{metrics}");
    let report = read("report.md");
    assert!(report.contains(", decode –."), "{report}");
    let url = format!("runtime.server.url={url}");
    let asked = ["run", "--quiet", "runtime=openai", "telemetry=none", "profiling=none", &url];
    let said = text(&llmprof(dir.path(), &asked).output().unwrap().stdout);
    assert!(said.contains(", decode –\n"), "{said}");
}

/// llama.cpp's own server, started by the run: its counts, times and metrics are read, and it is ended.
#[test]
#[ignore = "needs LLMPROF_PYTHON, a Python with xllamacpp, gguf and numpy; .ci/run makes one"]
fn a_real_server_is_started_loaded_and_ended() {
    let python = std::env::var("LLMPROF_PYTHON").expect("LLMPROF_PYTHON");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real_servers/llama_cpp.py");
    let dir = tempfile::tempdir().unwrap();
    let command = format!("runtime.server.command='{python} {script} {port}'");
    let output = load(
        dir.path(),
        &format!("http://127.0.0.1:{port}"),
        &[
            "runtime=llamacpp",
            &command,
            "runtime.load.concurrency=4",
            "runtime.requests=40",
            "dataset.prompt_tokens=64",
            "infer.max_new_tokens=64",
        ],
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    let server = &run["server"];
    assert_eq!((server["requests"].as_u64(), server["failed"].as_u64()), (Some(40), Some(0)), "{run}");
    assert_eq!(server["output_tokens"], 40 * 64, "as the server counts, however many tokens a chunk has");
    assert_eq!(server["kind"], "llamacpp", "recognised by its metrics");
    assert!(server["ttft_parts_ms"]["prefill"]["n"].as_u64() == Some(40), "its own times: {run}");
    let prompt = server["prompt_tokens"].as_f64().unwrap() / 40.0;
    assert!((48.0..=80.0).contains(&prompt), "the warm-up has shown what a token is: {prompt}");
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "it was ended with the run");
}

/// The process id that a script has written, once it exists.
fn written_pid(path: &Path) -> i32 {
    crate::common::eventually("the script's process", || fs::read_to_string(path).ok()?.trim().parse().ok())
}

fn is_alive(pid: i32) -> bool {
    // A zombie has ended.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// The child processes of a server end with it, and a server ends with the run that started it, however that ends.
#[test]
fn no_process_of_a_server_is_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    let pid_file = dir.path().join("pid");
    let run = |script: &str| {
        let _ = fs::remove_file(&pid_file);
        let path = dir.path().join("serve.sh");
        fs::write(&path, script).unwrap();
        let command = format!("runtime.server.command='sh {}'", path.display());
        let given = [
            "run",
            "-q",
            "runtime=openai",
            "runtime.server.url=http://127.0.0.1:9",
            "telemetry=none",
            "profiling=none",
            &command,
        ];
        llmprof(dir.path(), &given)
    };
    let output = run("sleep 600 & echo $! > pid; exit 3").output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let helper = written_pid(&pid_file);
    crate::common::eventually("the end of the helper", || (!is_alive(helper)).then_some(()));

    let mut killed = run("echo $$ > pid; exec sleep 600").spawn().unwrap();
    let server = written_pid(&pid_file);
    killed.kill().unwrap();
    killed.wait().unwrap();
    crate::common::eventually("the end of the server", || (!is_alive(server)).then_some(()));
}

/// On this server, every rate keeps TTFT 10 s and none keeps 1 ms.
#[test]
fn a_knee_needs_slos_and_its_absence_is_reported() {
    let server = known();
    let dir = tempfile::tempdir().unwrap();
    let url = format!("runtime.server.url=http://{}", server.address);
    let base = [
        "knee",
        "-q",
        "--json",
        "runtime=openai",
        "telemetry=none",
        "profiling=none",
        "infer.max_new_tokens=2",
        &url,
    ];
    let knee = |more: &[&str]| llmprof(dir.path(), &[&base[..], more].concat()).output().unwrap();
    let without = knee(&[]);
    assert_eq!(without.status.code(), Some(2));
    assert!(text(&without.stderr).contains("slo.ttft_p99_ms"), "{}", text(&without.stderr));
    for (slo, kept) in [("slo.ttft_p99_ms=10000", true), ("slo.ttft_p99_ms=1", false)] {
        let output = knee(&[slo, "runtime.load.rate=100", "--runs", "1", "--seconds", "1"]);
        assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (found["found"].as_bool(), found["steps"][0]["kept"].as_bool()),
            (Some(false), Some(kept)),
            "{found}"
        );
    }
}

fn send_page(stream: &mut TcpStream, body: &str) {
    let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
}

/// A DCGM exporter's page for a GPU at its power limit.
fn dcgm_page(sm_clock_mhz: u32) -> String {
    let label = r#"gpu="0",UUID="GPU-1",modelName="NVIDIA H200""#;
    format!(
        "DCGM_FI_DEV_SM_CLOCK{{{label}}} {sm_clock_mhz}\nDCGM_FI_DEV_GPU_UTIL{{{label}}} 100\nDCGM_FI_DEV_POWER_USAGE{{{label}}} 699\n\
         DCGM_FI_DEV_MAX_SM_CLOCK{{{label}}} 1980\nDCGM_FI_DEV_CLOCKS_EVENT_REASONS{{{label}}} 4\n"
    )
}

#[test]
fn gpus_are_read_from_a_dcgm_exporter() {
    let readings = Arc::new(AtomicU32::new(0));
    let served = Arc::clone(&readings);
    let url = bad_server(move |stream| {
        send_page(stream, &dcgm_page(1400 + served.fetch_add(1, Ordering::Relaxed)));
    });
    let dir = tempfile::tempdir().unwrap();
    let mut watch = llmprof(dir.path(), &["watch", "--dcgm", &url, "--for", "600"]);
    watch.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let child = watch.spawn().unwrap();
    // The answer to the last of them may still be in flight: one more than needed.
    crate::common::eventually("readings", || (readings.load(Ordering::Relaxed) >= 4).then_some(()));
    crate::common::signal(child.id(), "INT");
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stdout);
    assert!(said.contains("NVIDIA H200") && said.contains("power-capped"), "{said}{}", text(&output.stderr));
    let nothing =
        llmprof(dir.path(), &["watch", "--dcgm", "http://127.0.0.1:1", "--for", "1"]).output().unwrap();
    assert_eq!(nothing.status.code(), Some(1));
    assert!(text(&nothing.stderr).contains("DCGM"), "{}", text(&nothing.stderr));
}

/// Server behaviour that makes some chunks late.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Trouble {
    /// It stalls at times, for no visible reason.
    Stands,
    Preempts,
    FullCache,
    Throttled,
    SlightlyCapped,
    /// A prompt stops all other answers until its first token.
    Prefill,
    /// The more answers in progress, the longer a step takes.
    LargerBatch,
}

/// The events of a run on a server with one trouble, by a simulated clock: a step of 10 ms returns a chunk for each
/// answer, and some steps take 150 ms more.
fn troubled(trouble: Trouble) -> Vec<Envelope> {
    const TOKENS: u32 = 120;
    let arrivals_ms: &[f64] = match trouble {
        Trouble::Prefill => &[0.0, 700.0, 1400.0, 2100.0],
        // One at a time for several seconds, then three together.
        Trouble::LargerBatch => &[0.0, 1500.0, 3000.0, 4500.0, 4600.0, 4700.0],
        _ => &[0.0, 1800.0, 3600.0, 5400.0],
    };
    let mut events: Vec<(f64, Event)> = Vec::new();
    let (mut t, mut steps, mut stalls_ms, mut next) = (0.0, 0, Vec::new(), 0);
    let mut answers: Vec<(u32, u32)> = Vec::new();
    while next < arrivals_ms.len() || !answers.is_empty() {
        if answers.is_empty() {
            t = f64::max(t, arrivals_ms[next]);
        }
        let has_new = arrivals_ms.get(next).is_some_and(|arrival| *arrival <= t);
        if has_new {
            let request = next as u32;
            let started = RequestStarted {
                request,
                warmup: false,
                batch: 1,
                prompt_tokens: 16,
                output_tokens: TOKENS,
                cooldown: false,
                joined: false,
                images: 0,
            };
            events.push((arrivals_ms[next], Event::RequestStarted(started)));
            answers.insert(0, (request, 0));
            next += 1;
        }
        steps += 1;
        let stands = match trouble {
            Trouble::Prefill => has_new,
            Trouble::LargerBatch => false,
            // A cache that is always full explains nothing.
            Trouble::FullCache => steps % 200 == 30,
            _ => steps % 40 == 30,
        };
        let others = answers.len().saturating_sub(1) as f64;
        t += 10.0 + if trouble == Trouble::LargerBatch { 30.0 * others } else { 0.0 };
        if stands {
            stalls_ms.push(t);
            t += 150.0;
        }
        // The first token of a new answer is sent shortly before those of the others.
        for (place, (request, index)) in answers.iter_mut().enumerate() {
            let sent = t + 0.1 * place as f64;
            let token = Token { request: *request, index: *index, id: 0, device_ns: None, speculation: None };
            events.push((sent, Event::Token(token)));
            *index += 1;
            if *index == TOKENS {
                let finished = RequestFinished { request: *request, complete: true, served: None };
                events.push((sent + 0.01, Event::RequestFinished(finished)));
            }
        }
        answers.retain(|(_, index)| *index < TOKENS);
    }
    for reading in 1..=(t / 500.0) as u32 {
        let (from, to) = (500.0 * f64::from(reading - 1), 500.0 * f64::from(reading));
        let stalls = stalls_ms.iter().filter(|at| (from..to).contains(*at)).count();
        let sample = ServerSample {
            running: Some(1.0),
            kv_used: Some(if trouble == Trouble::FullCache && stalls > 0 { 0.99 } else { 0.2 }),
            preemptions: Some(if trouble == Trouble::Preempts { stalls as f64 } else { 0.0 }),
            ..ServerSample::default()
        };
        events.push((to, Event::ServerSample(Box::new(sample))));
        let client = ClientSample { streams: 1, lag_p50_us: 50, lag_p99_us: 200, lag_max_us: 900 };
        events.push((to, Event::ClientSample(client)));
    }
    for reading in 1..=(t / 100.0) as u32 {
        let (reasons, clock_mhz) = match trouble {
            Trouble::Throttled => (4, 120.0),
            Trouble::SlightlyCapped => (4, 1950.0),
            _ => (0, 1980.0),
        };
        let mut sample = GpuSample::new(0).with_reasons(reasons);
        sample.set(Reading::SmClock, Some(clock_mhz));
        events.push((100.0 * f64::from(reading), Event::GpuSample(Box::new(sample))));
    }
    events.sort_by(|a, b| a.0.total_cmp(&b.0));
    let begin = [
        Event::RunStarted(Box::new(RunStarted {
            kind: WorkKind::Server,
            requests: arrivals_ms.len() as u32,
            ..crate::screens::run_started()
        })),
        Event::ServerFound(Box::new(ServerFound {
            server: 0,
            url: "http://127.0.0.1:8000".into(),
            kind: ServerKind::Vllm,
            model: None,
            metrics: None,
            load: None,
        })),
        Event::GpuFound(Box::new(GpuInfo {
            name: "NVIDIA H200".into(),
            profiled: true,
            sm_clock_max_mhz: Some(1980),
            ..GpuInfo::default()
        })),
    ];
    let end = Event::RunFinished(RunFinished { outcome: Outcome::Completed, cause: None });
    let begin = begin.into_iter().map(|event| (0.0, event));
    begin
        .chain(events)
        .chain([(t + 1.0, end)])
        .map(|(ms, event)| Envelope { t: Stamp((ms * 1e6) as u64), event })
        .collect()
}

#[test]
fn late_chunks_are_attributed_to_the_servers_behaviour() {
    for (trouble, cause) in [
        (Trouble::Stands, "unknown"),
        (Trouble::Preempts, "preemption"),
        (Trouble::FullCache, "kv_pressure"),
        (Trouble::Throttled, "throttling"),
        // A clock that is 1.5 % lower does not explain 150 ms.
        (Trouble::SlightlyCapped, "unknown"),
        (Trouble::Prefill, "prefill"),
        (Trouble::LargerBatch, "batch_growth"),
    ] {
        let mut state = RunState::default();
        troubled(trouble).iter().for_each(|envelope| state.apply(envelope));
        let run = run_json(&state, None);
        let late = &run["server"]["late_chunks"];
        let share = late["share"].as_f64().unwrap_or_default();
        assert!((0.02..0.9).contains(&share), "{trouble:?}: {late}");
        let lost = |cause: &Value| cause["lost_ms"].as_f64().unwrap();
        let causes = late["causes"].as_object().unwrap();
        let most = causes.iter().max_by(|a, b| lost(a.1).total_cmp(&lost(b.1)));
        assert_eq!(most.map(|(name, _)| name.as_str()), Some(cause), "{trouble:?}: {late}");
    }
}

/// The readings from which causes are found: those of the server and of an exporter, at their intervals.
#[test]
fn readings_of_a_server_and_its_gpus_are_recorded() {
    let read = Arc::new((Mutex::new([0u32; 2]), Condvar::new()));
    let served = Arc::clone(&read);
    let count = move |which: usize| {
        served.0.lock().unwrap()[which] += 1;
        served.1.notify_all();
    };
    let url = scripted(move |stream, path| match path {
        "/metrics" => {
            let n = read.0.lock().unwrap()[0];
            let page = format!(
                "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.99\n\
                 vllm:num_preemptions_total {}\n",
                3 * n
            );
            send_page(stream, &page);
            count(0);
        }
        "/dcgm" => {
            send_page(stream, &dcgm_page(1400));
            count(1);
        }
        _ => {
            let _ = write!(stream, "{STREAM}{CHUNK}");
            // Until both pages have been read several times: counters need two readings.
            let few = |read: &mut [u32; 2]| read.iter().any(|n| *n < 5);
            drop(read.1.wait_timeout_while(read.0.lock().unwrap(), crate::common::PATIENCE, few));
            let _ = write!(stream, "{CHUNK}data: [DONE]\n\n");
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let dcgm = format!("telemetry.dcgm={url}/dcgm");
    let output = load(dir.path(), &url, &[&dcgm, "runtime.warmup=0", "runtime.requests=1"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let events = crate::common::events(&dir.path().join("run"));
    let servers: Vec<&ServerSample> = events
        .iter()
        .filter_map(|e| if let Event::ServerSample(sample) = &e.event { Some(&**sample) } else { None })
        .collect();
    assert!(servers.len() >= 2 && servers.iter().all(|sample| sample.kv_used == Some(0.99)), "{servers:?}");
    assert!(servers.iter().any(|sample| sample.preemptions.is_some_and(|n| n >= 3.0)), "{servers:?}");
    let capped = |e: &&Envelope| matches!(&e.event, Event::GpuSample(sample) if sample.reasons == Some(4));
    assert!(events.iter().filter(capped).count() >= 2, "{events:?}");
}

/// The events of a run with one request, which is answered until the server's metrics were read `times` times. `page`
/// sends them, given the number of earlier readings.
fn while_metrics_are_read(
    times: u32,
    page: impl Fn(&mut TcpStream, u32) + Send + Sync + 'static,
) -> Vec<Envelope> {
    let read = (Mutex::new(0u32), Condvar::new());
    let url = scripted(move |stream, path| match path {
        "/metrics" => {
            let n = *read.0.lock().unwrap();
            page(stream, n);
            *read.0.lock().unwrap() = n + 1;
            read.1.notify_all();
        }
        _ => {
            let _ = write!(stream, "{STREAM}{CHUNK}");
            let few = |read: &mut u32| *read < times;
            drop(read.1.wait_timeout_while(read.0.lock().unwrap(), crate::common::PATIENCE, few));
            let _ = write!(stream, "{CHUNK}data: [DONE]\n\n");
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let output = load(dir.path(), &url, &["runtime.warmup=0", "runtime.requests=1"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    crate::common::events(&dir.path().join("run"))
}

/// A page that cannot be read temporarily ends neither the run nor the readings.
#[test]
fn recovered_metrics_are_a_line() {
    let events = while_metrics_are_read(5, |stream, n| match n {
        2 => drop(write!(stream, "HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n")),
        _ => send_page(stream, "vllm:num_requests_running 1\n"),
    });
    let notices = notices(&events);
    let place = |words: &str| notices.iter().position(|text| text.contains(words));
    let (lost, again) = (place("cannot be read: HTTP 500 at /metrics"), place("can be read again"));
    assert!(lost.is_some() && lost < again, "{notices:?}");
}

/// llama.cpp counts tokens when their request ends: while one runs, an unchanged counter does not mean a rate of 0.
#[test]
fn the_rate_of_llama_cpp_is_unknown_while_no_request_has_ended() {
    let events = while_metrics_are_read(6, |stream, n| {
        let predicted = if n < 4 { 100 } else { 500 };
        let page = format!(
            "llamacpp:requests_processing 1\nllamacpp:prompt_tokens_total 7\nllamacpp:tokens_predicted_total {predicted}\n"
        );
        send_page(stream, &page);
    });
    let samples: Vec<&ServerSample> = events
        .iter()
        .filter_map(|e| if let Event::ServerSample(sample) = &e.event { Some(&**sample) } else { None })
        .collect();
    // The counter of prompt tokens does not change either, and that is a rate of 0.
    let is_read = |sample: &&ServerSample| sample.running == Some(1.0) && sample.prompt_tok_s == Some(0.0);
    assert!(samples.iter().all(is_read), "{samples:?}");
    assert_eq!(samples.first().map(|sample| sample.output_tok_s), Some(None), "{samples:?}");
    let mut rates = samples.iter().filter_map(|sample| sample.output_tok_s).peekable();
    assert!(rates.peek().is_some() && rates.all(|rate| rate > 0.0), "{samples:?}");
}

/// A vLLM server with `queued` queued requests.
fn queueing(queued: u32) -> String {
    scripted(move |stream, path| {
        if path == "/metrics" {
            send_page(stream, &format!("vllm:num_requests_running 1\nvllm:num_requests_waiting {queued}\n"));
        }
    })
}

/// A monitored server that ends and is started again: both are lines, and the readings continue.
#[test]
fn a_watched_server_that_comes_back_is_a_line() {
    // No other test listens at this address: nothing takes it while the server is gone.
    let listener = TcpListener::bind("127.0.0.10:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answered = Arc::new(AtomicU32::new(0));
    let serve = |listener: TcpListener, connections: usize| {
        let answered = Arc::clone(&answered);
        thread::spawn(move || {
            let script = |stream: &mut TcpStream, _: &str| {
                send_page(stream, "vllm:num_requests_running 1\n");
                answered.fetch_add(1, Ordering::Relaxed);
            };
            listener.incoming().take(connections).for_each(|stream| answer(stream.unwrap(), &script));
        })
    };
    let first = serve(listener, 3);
    let dir = tempfile::tempdir().unwrap();
    let url = format!("http://{address}");
    let arguments = ["watch", "telemetry=none", "--record", "--for", "600", &url, "output.flush_ms=50"];
    let mut command = llmprof(dir.path(), &arguments);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let recorded = |words: &str| {
        crate::common::eventually(words, || {
            let run = crate::common::run_dirs(dir.path()).pop()?;
            fs::read_to_string(run.join("events.ndjson")).ok()?.contains(words).then_some(())
        });
    };
    first.join().unwrap();
    recorded(&format!("the metrics of {url} cannot be read: connection refused"));
    let again = crate::common::eventually("the address", || TcpListener::bind(address).ok());
    serve(again, usize::MAX);
    recorded(&format!("the metrics of {url} can be read again"));
    let before = answered.load(Ordering::Relaxed);
    crate::common::eventually("readings", || (answered.load(Ordering::Relaxed) > before + 2).then_some(()));
    crate::common::signal(child.id(), "INT");
    let output = child.wait_with_output().unwrap();
    assert!(!text(&output.stderr).contains("no answer for"), "it answers: {}", text(&output.stderr));
}

/// Each of the two causes separately, and neither. If a watch was too short for a busy machine to read everything, it
/// is repeated with a longer one.
#[test]
fn an_alert_or_a_silent_server_alone_sets_the_exit_code_of_a_watch() {
    let (idle, busy, gone) = (queueing(0), queueing(14), "http://127.0.0.1:1");
    let watch = |arguments: &[&str], crosses: bool, falls_silent: bool| {
        let dir = tempfile::tempdir().unwrap();
        let mut said = String::new();
        for seconds in ["3", "12", "48"] {
            let mut command = llmprof(dir.path(), &["watch", "telemetry=none", "--json", "--for", seconds]);
            let output = command.args(arguments).output().unwrap();
            let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            said = format!("{json} {}", text(&output.stderr));
            let servers = json["servers"].as_array().map_or(&[][..], Vec::as_slice);
            let is_silent = |server: &Value| server["silent"].is_string();
            let are_read = servers.len() == 2
                && servers.iter().all(|server| is_silent(server) || server["last_sample"].is_object());
            let has_crossed = json["alerts"].as_array().is_some_and(|alerts| !alerts.is_empty());
            if are_read && (has_crossed, servers.iter().any(is_silent)) == (crosses, falls_silent) {
                return (output.status.code(), said);
            }
        }
        panic!("{arguments:?}: {said}");
    };
    let cases: [(&[&str], bool, bool, i32); 4] = [
        (&[&idle, &busy, "--alert", "queued>3"], true, false, 1),
        (&[&idle, gone], false, true, 1),
        (&[&idle, &busy, "--alert", "queued>30"], false, false, 0),
        (&[&idle, &busy], false, false, 0),
    ];
    thread::scope(|scope| {
        for (arguments, crosses, falls_silent, code) in cases {
            let watch = &watch;
            scope.spawn(move || {
                let (ended, said) = watch(arguments, crosses, falls_silent);
                assert_eq!(ended, Some(code), "{arguments:?}: {said}");
            });
        }
    });
}

/// One of three servers has a queue, one has none, and one does not answer.
#[test]
fn several_servers_are_watched_and_an_alert_sets_the_exit_code() {
    let (idle, busy, gone) = (queueing(0), queueing(14), "http://127.0.0.1:1");
    let dir = tempfile::tempdir().unwrap();
    let watch = |more: &[&str]| {
        let arguments = ["watch", "telemetry=none", "--for", "600", "--json", &idle, &busy];
        let mut command = llmprof(dir.path(), &arguments);
        command.args(more).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = String::new();
        let mut lines = std::io::BufReader::new(child.stderr.take().unwrap());
        // Until the alert, however long it takes.
        while !said.contains("alert queued>3") {
            let read = std::io::BufRead::read_line(&mut lines, &mut said).unwrap();
            assert!(read > 0, "{said}");
        }
        crate::common::signal(child.id(), "INT");
        lines.read_to_string(&mut said).unwrap();
        let output = child.wait_with_output().unwrap();
        (output.status.code(), said, serde_json::from_slice::<Value>(&output.stdout).unwrap())
    };
    let (code, said, json) = watch(&["--alert", "queued>3", gone]);
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(said.matches("alert queued>3").count(), 1, "once: {said}");
    assert!(said.contains(&format!("alert queued>3: 14.0 ({busy})")), "{said}");
    assert!(said.contains(&format!("error: {gone}: no answer for")), "{said}");
    let servers = json["servers"].as_array().unwrap();
    let urls: Vec<&str> = servers.iter().map(|server| server["url"].as_str().unwrap()).collect();
    assert_eq!(urls, [idle.as_str(), busy.as_str(), gone]);
    assert_eq!(servers[1]["last_sample"]["queued"], 14.0);
    assert_eq!((&servers[2]["server"], servers[2]["silent"].is_string()), (&Value::Null, true));
    assert_eq!(json["alerts"][0]["alert"]["alert"], "queued>3");
    let wrong =
        llmprof(dir.path(), &["watch", "--for", "1", "--alert", "ttft_p99_ms=500", &idle]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("no > or <"), "{}", text(&wrong.stderr));
}

/// The mean time from the first to the last chunk of the answers of a run, in milliseconds.
fn answered_in_ms(run: &Path) -> f64 {
    let mut answers: BTreeMap<u32, (Stamp, Stamp)> = BTreeMap::new();
    for envelope in crate::common::events(run) {
        if let Event::Token(token) = envelope.event {
            answers.entry(token.request).or_insert((envelope.t, envelope.t)).1 = envelope.t;
        }
    }
    let all: f64 = answers.values().map(|(first, last)| last.since(*first).as_secs_f64()).sum();
    1e3 * all / answers.len() as f64
}

/// Four tokens in each of eight chunks, a chunk every 40.8 ms, and no `usage`.
#[test]
fn tokens_are_counted_by_the_tokenizer_if_the_server_counts_none() {
    let chunk = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hello world hello end \"}}]}\n\n";
    let url = scripted(move |stream, path| {
        if path.ends_with("/metrics") {
            return;
        }
        let _ = stream.set_nodelay(true);
        let _ = write!(stream, "{STREAM}{chunk}");
        for _ in 1..8 {
            thread::sleep(Duration::from_micros(40_800));
            let _ = write!(stream, "{chunk}");
        }
        let _ = write!(stream, "data: [DONE]\n\n");
    });
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = serde_json::json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "hello": 1, "world": 2, "end": 3}}
    });
    fs::create_dir(dir.path().join("model")).unwrap();
    fs::write(dir.path().join("model/tokenizer.json"), tokenizer.to_string()).unwrap();
    // The result, and TPOT times the number of tokens after the first in the time of an answer.
    let run = |more: &[&str]| -> (Value, f64) {
        let output = load(dir.path(), &url, &[&["runtime.warmup=0"], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        let answered_in_ms = answered_in_ms(&dir.path().join("run"));
        let _ = fs::remove_dir_all(dir.path().join("run"));
        let tokens = answered_in_ms / result["tpot_ms"]["mean"].as_f64().unwrap();
        (result, tokens)
    };
    let (counted, tokens) = run(&["runtime.server.tokenizer=model"]);
    // The time of 32 tokens and not of 8 chunks.
    assert!((tokens - 31.0).abs() < 0.1, "{tokens}");
    // The server is never early; a busy machine may be late, also with the first chunk.
    let mean = |key: &str| counted[key]["mean"].as_f64().unwrap();
    assert!(mean("ttft_ms") + 31.0 * mean("tpot_ms") >= 0.99 * 7.0 * 40.8, "{counted}");
    let server = &counted["server"];
    assert_eq!(
        (&server["tokens_per_chunk"], &server["tokens_counted_by_tokenizer"]),
        (&4.0.into(), &true.into())
    );
    let why = server["why"].to_string();
    assert!(why.contains("counted by the model's tokenizer") && !why.contains("each chunk counts"), "{why}");
    assert!(!counted["trust"].to_string().contains("each chunk counts as a token"), "{}", counted["trust"]);
    let (chunks, tokens) = run(&[]);
    assert!((tokens - 7.0).abs() < 0.1, "{tokens}");
    assert_eq!(chunks["server"]["tokens_per_chunk"], 1.0);
    assert!(chunks["server"]["why"].to_string().contains("runtime.server.tokenizer"), "{}", chunks["server"]);
    let missing = load(dir.path(), &url, &["runtime.server.tokenizer=nowhere"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(
        text(&missing.stderr).contains("runtime.server.tokenizer: cannot read"),
        "{}",
        text(&missing.stderr)
    );
}
