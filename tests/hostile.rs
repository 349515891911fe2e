//! Directories, names and recordings from other users: nothing is written through links, nothing waits for a FIFO, and
//! no text acts on the terminal or in a document.

use std::{
    collections::HashMap,
    fs,
    os::unix::{fs::symlink, net::UnixListener},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use crate::common::{ProgramOutput, eventually, program, record, run, run_dirs, said};
use llmprof::{
    base::foreign::is_hidden,
    cli::commands_markdown,
    config::ThemeName,
    event::Envelope,
    report::NAMES,
    server::{KnownServer, Timing},
    state::RunState,
    tui::{
        export::Contents,
        theme::{Depth, Glyphs, Theme},
        ui::{Pane, UiState},
        view::View,
    },
};

use pulldown_cmark::{Event, Options, Parser};
use ratatui::layout::Rect;
use serde_json::Value;

const DEMO: &str = include_str!("../assets/demo/h200_kernels/events.ndjson");

/// Sets a title, clears the screen, hides a link, turns the direction, runs a script, ends a line.
const HOSTILE: &str = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\u{1b}]8;;http://evil.example\u{1b}\\\u{202e}\u{2066}\u{200f}\u{200b}\
                       <script>alert(1)</script><img src=x onerror=y>`|\r\n# owned\n";

/// The location of a string in an event.
type Pointer = (String, String);

/// The recording with every free-form string replaced by a hostile one.
fn hostile_recording() -> String {
    hostile(DEMO, 15)
}

/// The same for any recording with more than `fields` such strings.
fn hostile(recording: &str, fields: usize) -> String {
    let mut may_be_anything: HashMap<Pointer, bool> = HashMap::new();
    let mut out = String::new();
    for line in recording.lines() {
        let mut value: Value = serde_json::from_str(line).unwrap();
        let kind = value["e"].as_object().and_then(|event| event.keys().next().cloned()).unwrap_or_default();
        for path in strings(&value) {
            let text = value.pointer(&path).and_then(Value::as_str).unwrap_or_default().to_owned();
            let hostile = Value::from(format!("=1+{text}{HOSTILE}"));
            // The same field of another element of a list is of the same type.
            let field: String = path.split('/').filter(|part| part.parse::<u32>().is_err()).collect();
            let any = may_be_anything.entry((kind.clone(), field)).or_insert_with(|| {
                let mut changed = value.clone();
                *changed.pointer_mut(&path).unwrap() = hostile.clone();
                serde_json::from_value::<Envelope>(changed).is_ok()
            });
            if *any {
                *value.pointer_mut(&path).unwrap() = hostile;
            }
        }
        out += &value.to_string();
        out.push('\n');
    }
    let hostile = may_be_anything.values().filter(|any| **any).count();
    assert!(hostile > fields, "only {hostile} fields of the recording are text");
    out
}

/// The JSON pointers of all strings in `value`.
fn strings(value: &Value) -> Vec<String> {
    match value {
        Value::String(_) => vec![String::new()],
        Value::Array(items) => items
            .iter()
            .enumerate()
            .flat_map(|(i, item)| strings(item).into_iter().map(move |rest| format!("/{i}{rest}")))
            .collect(),
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(name, item)| {
                let name = name.replace('~', "~0").replace('/', "~1");
                strings(item).into_iter().map(move |rest| format!("/{name}{rest}"))
            })
            .collect(),
        _ => Vec::new(),
    }
}

fn run_of(dir: &Path, events: &str) -> PathBuf {
    fs::create_dir_all(dir).unwrap();
    fs::write(dir.join("events.ndjson"), events).unwrap();
    dir.to_owned()
}

#[track_caller]
fn assert_safe(what: &str, text: &str) {
    if let Some(found) = text.find(is_hidden) {
        let around: String = text[found..].chars().take(40).collect();
        panic!("{what} has {around:?}");
    }
}

#[track_caller]
fn assert_safe_document(name: &str, text: &str) {
    assert_safe(name, text);
    if [".md", ".html", ".svg"].iter().any(|extension| name.ends_with(extension)) {
        assert!(!text.contains("<script"), "{name} has a script");
        assert!(!text.lines().any(|line| line.starts_with("# owned")), "{name} has a heading of others");
    }
    if name.ends_with(".md") {
        let mut events = Parser::new_ext(text, Options::ENABLE_TABLES);
        let html = events.find(|event| matches!(event, Event::Html(_) | Event::InlineHtml(_)));
        assert_eq!(html, None, "{name} has HTML of others");
    } else if [".html", ".svg"].iter().any(|extension| name.ends_with(extension)) {
        assert!(!text.contains("<img"), "{name} has a picture of others");
    }
    if name.ends_with(".csv") {
        for record in csv::ReaderBuilder::new().flexible(true).from_reader(text.as_bytes()).records() {
            for cell in &record.unwrap() {
                let formula = cell.starts_with(['=', '+', '-', '@']) && cell.parse::<f64>().is_err();
                assert!(!formula, "{name} has the formula {cell:?}");
            }
        }
    }
}

/// The documents that the program wrote below `dir`.
fn assert_safe_documents(dir: &Path) -> usize {
    let mut n = 0;
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if NAMES.contains(&name.as_str())
            || ["sweep.csv", "compare.md", "llmprof.log", "trace.json"].contains(&name.as_str())
        {
            assert_safe_document(&name, &fs::read_to_string(entry.path()).unwrap());
            n += 1;
        }
    }
    n
}

#[test]
fn no_command_prints_or_writes_hostile_text() {
    let dir = tempfile::tempdir().unwrap();
    let events = hostile_recording();
    let name = |text: &str| dir.path().join(format!("{text}{}", HOSTILE.replace('/', "_")));
    let (a, b) = (run_of(&name("a"), &events), run_of(&name("b"), &events));
    let (a, b) = (a.to_str().unwrap().to_owned(), b.to_str().unwrap().to_owned());
    let missing = format!("missing{}", HOSTILE.replace('/', "_"));
    let kernels = name("kernels.csv");
    let header = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n";
    fs::write(&kernels, format!("{header}100.0,2000,2,1000.0,1000.0,1000,1000,0.0,\"=gemm{HOSTILE}\"\n"))
        .unwrap();
    let log = name("smi.csv");
    fs::write(
        &log,
        format!(
            "timestamp, index, name, power.draw [W]\n2026/01/01 00:00:00.000, 0, \"A{HOSTILE}\", 100.00 W\n"
        ),
    )
    .unwrap();
    let garbage = name("garbage");
    fs::write(&garbage, format!("{HOSTILE}{}", "x".repeat(6000))).unwrap();
    fs::write(dir.path().join("shape.json"), serde_json::json!({"model_type": HOSTILE}).to_string()).unwrap();
    fs::create_dir_all(dir.path().join("datasets").join(missing.trim_end())).unwrap();
    fs::create_dir_all(dir.path().join("third_party")).unwrap();
    let pins = serde_json::json!({ "sources": [{ "name": HOSTILE, "kind": "git", "url": HOSTILE, "commit": HOSTILE }] });
    fs::write(dir.path().join("third_party/third_party.yaml"), pins.to_string()).unwrap();
    let (kernels, log) = (kernels.to_str().unwrap(), log.to_str().unwrap());
    let garbage = garbage.to_str().unwrap();
    let hostile_model = format!("model={HOSTILE}");
    let quoted = format!("experiment.name='x{}'", HOSTILE.replace(['\n', '\r'], ""));
    let commands: Vec<Vec<&str>> = vec![
        vec!["report", &a],
        vec!["report", &a, "--json"],
        vec!["report", &b],
        vec!["report", &missing],
        vec!["report", garbage],
        vec!["diagnose", &a],
        vec!["diagnose", &a, "--json"],
        vec!["diagnose", log],
        vec!["diagnose", garbage],
        vec!["diagnose", &missing],
        vec!["compare", &a, &b],
        vec!["compare", &a, &b, "--json"],
        vec!["compare", &a, &b, "--md"],
        vec!["compare", &a, &b, "--html"],
        vec!["compare", &missing, &b],
        vec!["baseline", "save", "hostile", &a],
        vec!["baseline", "save", &missing, &a],
        vec!["baseline", "list"],
        vec!["compare", "hostile", &b],
        vec!["replay", &a],
        vec!["replay", &missing],
        vec!["kernels", kernels],
        vec!["kernels", kernels, "--json"],
        vec!["kernels", "top", "--from", kernels],
        vec!["kernels", garbage],
        vec!["kernels", &missing],
        vec!["config", &quoted],
        vec!["config", &quoted, "--json"],
        vec!["config", &hostile_model],
        vec!["config", HOSTILE],
        vec!["cost", "model.config_json=shape.json", &quoted],
        vec!["cost", &hostile_model],
        vec!["cost", "--gpu", HOSTILE],
        vec!["run", HOSTILE],
        vec![
            "run",
            "--quiet",
            "runtime=sim",
            "runtime.sim.speed=0",
            "runtime.requests=1",
            "infer.max_new_tokens=4",
            &quoted,
        ],
        vec!["run", "--resume", &a],
        vec!["dataset", "list"],
        vec!["dataset", "list", "--json"],
        vec!["dataset", "prepare", HOSTILE],
        vec!["third-party", "status"],
        vec!["bootstrap", "--dry-run", HOSTILE],
        vec!["fetch", HOSTILE],
        vec!["doctor", &quoted],
        vec!["doctor", HOSTILE],
        vec!["watch", HOSTILE],
        vec!["fleet", "--once", "--prometheus", HOSTILE],
        vec!["fleet", "--once", "--replay", HOSTILE],
        vec!["knee", HOSTILE],
        vec!["exec", "--headless", "telemetry=none", "--", HOSTILE],
        vec!["exec", "--headless", "telemetry=none", "--", "true", HOSTILE],
        vec!["exec", "--json", "telemetry=none", "--", "true", HOSTILE],
        vec!["attach", HOSTILE],
        vec!["attach", "1", HOSTILE],
        vec!["inject", "--print-env", "--format", HOSTILE],
        vec!["demo", HOSTILE],
        vec!["completion", HOSTILE],
        vec!["__complete", "fish", "report", ""],
        vec![HOSTILE],
    ];
    for line in commands_markdown().lines().skip(3) {
        let name = line.trim_start_matches("| `llmprof-tui ").split('`').next().unwrap();
        assert!(commands.iter().any(|command| command[0] == name), "{name} is not walked");
    }
    for command in commands {
        let mut program = program(dir.path());
        program.args(&command).env("HF_ENDPOINT", "http://127.0.0.1:9").env("HF_HOME", dir.path().join("hf"));
        program.env("XDG_DATA_HOME", dir.path());
        let said = said(program.output().unwrap());
        let what = &command[..2.min(command.len())];
        assert_safe(&format!("stdout of {what:?}"), &said.out);
        assert_safe(&format!("stderr of {what:?}"), &said.err);
        assert!(!said.err.contains("panicked"), "{what:?}: {}", said.err);
        for line in said.err.lines() {
            assert!(
                line.chars().count() <= 2_001,
                "{what:?} prints a line of {} characters",
                line.chars().count()
            );
        }
        match &command[..] {
            [.., "--html"] => assert_safe_document("compare.html", &said.out),
            [.., "--md"] => assert_safe_document("compare.md", &said.out),
            [.., "--json"] if said.code == 0 => {
                drop(serde_json::from_str::<Value>(&said.out).expect(&said.out))
            }
            _ => {}
        }
    }
    for dir in [&a, &b] {
        // Without the two of servers.
        assert_eq!(
            assert_safe_documents(Path::new(dir)),
            NAMES.len() - 2 + 1,
            "every document and the trace were written"
        );
    }
    for run in run_dirs(dir.path()) {
        assert!(assert_safe_documents(&run) > 5);
    }
}

#[test]
fn no_screen_shows_hostile_text() {
    assert_safe_screens(&hostile_recording());
}

/// Names, errors and metrics of servers are untrusted text too.
#[test]
fn no_text_of_a_server_acts() {
    let timing =
        Timing { ttft: Duration::from_millis(5), itl: Duration::from_millis(2), tokens_per_chunk: 1 };
    let server = KnownServer::start(timing).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let url = format!("runtime.server.url=http://{}", server.address);
    let load = ["run", "--quiet", "runtime=openai", "telemetry=none", "profiling=none", "runtime.requests=8"];
    let more = ["infer.max_new_tokens=8", "hydra.run.dir=load", &url];
    assert_eq!(run(dir.path(), &[&load[..], &more].concat()).code, 0);
    let events = hostile(&fs::read_to_string(dir.path().join("load/events.ndjson")).unwrap(), 8);
    // Other kinds of engines have no such documents.
    let events = events.replacen(&kind_of_engine(&events), "server", 1);
    assert_safe_screens(&events);
    run_of(&dir.path().join("foreign"), &events);
    let said = run(dir.path(), &["report", "foreign"]);
    assert_eq!(said.code, 0, "{}", said.err);
    assert_safe("report", &(said.out + &said.err));
    assert!(assert_safe_documents(&dir.path().join("foreign")) > 8);
    assert!(dir.path().join("foreign/vllm_bench.json").exists(), "with those of servers");
    for command in [&["compare", "foreign", "load"][..], &["replay", "foreign", "--headless"]] {
        let said = run(dir.path(), command);
        assert_safe(&command.join(" "), &(said.out + &said.err));
    }
}

/// As the first event has it, in JSON.
fn kind_of_engine(events: &str) -> String {
    let start: Value = serde_json::from_str(events.lines().next().unwrap()).unwrap();
    let kind = start.pointer("/e/run_started/engine").and_then(Value::as_str).expect("an engine");
    serde_json::to_string(kind).unwrap().trim_matches('"').to_owned()
}

fn assert_safe_screens(recording: &str) {
    let mut state = RunState::default();
    for line in recording.lines() {
        state.apply(&serde_json::from_str::<Envelope>(line).unwrap());
    }
    let theme = Theme::new(ThemeName::Dark, Depth::True, Glyphs::UNICODE);
    for pane in Pane::ALL {
        let ui = UiState { pane, ..UiState::new(ThemeName::Dark) };
        let view = View::new(&state, &ui, &theme);
        let Contents { svg, text, csv } = Contents::new(&view, Rect::new(0, 0, 160, 50));
        assert_safe_document("screen.svg", &svg);
        assert_safe("screen.txt", &text);
        assert_safe_document("screen.csv", &csv);
    }
}

/// A file that must not change.
fn precious(dir: &Path) -> PathBuf {
    let path = dir.join("precious");
    fs::write(&path, "precious").unwrap();
    path
}

#[test]
fn reports_are_never_written_through_links() {
    let dir = tempfile::tempdir().unwrap();
    let precious = precious(dir.path());
    let run_dir = run_of(&dir.path().join("foreign"), DEMO);
    for name in NAMES.into_iter().chain(["trace.json", "trace.json.part", "report.md.new"]) {
        symlink(&precious, run_dir.join(name)).unwrap();
    }
    let said = run(dir.path(), &["report", "foreign"]);
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    assert!(fs::symlink_metadata(run_dir.join("report.md")).unwrap().is_file());
    assert!(fs::read_to_string(run_dir.join("report.md")).unwrap().contains("## Definitions"));
    let left = fs::read_dir(&run_dir).unwrap().flatten();
    assert!(left.into_iter().all(|entry| !entry.file_name().to_string_lossy().starts_with(".llmprof")));

    // The directory chosen by the user may be a link; its contents may not.
    symlink("foreign", dir.path().join("link")).unwrap();
    assert_eq!(run(dir.path(), &["report", "link"]).code, 0);

    fs::remove_file(run_dir.join("ops.csv")).unwrap();
    make_fifo(&run_dir.join("ops.csv"));
    let said = run(dir.path(), &["report", "foreign"]);
    assert_eq!((said.code, said.err.contains("ops.csv: it is a FIFO")), (1, true), "{}", said.err);
}

#[test]
fn costs_and_baselines_are_never_written_through_links() {
    let dir = tempfile::tempdir().unwrap();
    let precious = precious(dir.path());
    let run_dir = record(dir.path(), &["runtime.requests=5", "infer.max_new_tokens=8"]);
    for (folder, names) in [
        ("baselines", ["main.json", "main.json.new"]),
        ("costs", ["static_compute.json", "static_compute.md"]),
    ] {
        fs::create_dir(dir.path().join(folder)).unwrap();
        for name in names {
            symlink(&precious, dir.path().join(folder).join(name)).unwrap();
        }
    }
    let said = run(dir.path(), &["baseline", "save", "main", run_dir.to_str().unwrap()]);
    assert_eq!(said.code, 0, "{}", said.err);
    let said = run(dir.path(), &["cost", "--out", "costs"]);
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
}

#[test]
fn a_sweep_with_links_is_not_written_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let precious = precious(dir.path());
    let sweep = [
        "run",
        "-m",
        "--quiet",
        "runtime=sim",
        "runtime.sim.speed=0",
        "runtime.requests=2",
        "infer.max_new_tokens=4,6",
        "hydra.sweep.dir=sweep",
    ];
    let said = run(dir.path(), &sweep);
    assert_eq!(said.code, 0, "{}", said.err);
    let at = |name: &str| dir.path().join("sweep").join(name);
    fs::remove_file(at("sweep.csv")).unwrap();
    for name in ["sweep.csv", "sweep.csv.new", "sweep.json.new"] {
        symlink(&precious, at(name)).unwrap();
    }
    let said = run(dir.path(), &["report", "sweep"]);
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    assert!(fs::read_to_string(at("sweep.csv")).unwrap().starts_with("job,"));

    let elsewhere = dir.path().join("elsewhere");
    fs::rename(at("1"), &elsewhere).unwrap();
    symlink(&elsewhere, at("1")).unwrap();
    for command in [vec!["report", "sweep"], vec!["run", "--resume", "sweep"]] {
        let said = run(dir.path(), &command);
        assert_ne!(said.code, 0);
        assert!(said.err.contains("the directory of job 2 is a link: sweep/1"), "{}", said.err);
    }
}

fn make_fifo(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
}

/// Ends the command if it waits, instead of the whole test.
fn ends(dir: &Path, args: &[&str]) -> ProgramOutput {
    let mut command = program(dir);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        eventually(&format!("the end of {args:?}"), || child.try_wait().unwrap());
    }));
    let _ = child.kill();
    waited.unwrap();
    said(child.wait_with_output().unwrap())
}

#[test]
fn no_reader_waits_for_a_special_file() {
    let dir = tempfile::tempdir().unwrap();
    let good = run_of(&dir.path().join("good"), DEMO);
    let at = |name: &str| {
        let path = dir.path().join("runs").join(name);
        fs::create_dir_all(&path).unwrap();
        path
    };
    make_fifo(&at("fifo").join("events.ndjson"));
    symlink("/dev/zero", at("device").join("events.ndjson")).unwrap();
    let _socket = UnixListener::bind(at("socket").join("events.ndjson")).unwrap();
    for (name, kind) in [("fifo", "a FIFO"), ("device", "a device"), ("socket", "a socket")] {
        let path = format!("runs/{name}");
        let good = good.to_str().unwrap();
        for command in [
            vec!["report", &path],
            vec!["diagnose", &path],
            vec!["replay", &path],
            vec!["compare", &path, good],
            vec!["baseline", "save", "x", &path],
        ] {
            let said = ends(dir.path(), &command);
            assert_ne!(said.code, 0);
            assert!(
                said.err.contains(&format!("it is {kind}, not a regular file")),
                "{command:?}: {}",
                said.err
            );
        }
    }
    for name in ["metrics.json", "sweep.json"] {
        let run = run_of(&at(name), DEMO);
        make_fifo(&run.join(name));
    }
    let said = ends(dir.path(), &["report", "latest", "--out", "out"]);
    assert!(!said.err.contains("panicked"), "{}", said.err);
    fs::create_dir(dir.path().join("sweep")).unwrap();
    make_fifo(&dir.path().join("sweep/sweep.json"));
    ends(dir.path(), &["run", "--resume", "sweep"]);
    ends(dir.path(), &["report", "sweep"]);
}

#[test]
fn a_deleted_directory_is_not_reported_to_have_the_recording() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = program(dir.path());
    command.args([
        "run",
        "--quiet",
        "runtime=sim",
        "runtime.requests=200",
        "infer=long",
        "hydra.run.dir=run",
    ]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let run = dir.path().join("run");
    eventually("the recording", || run.join("llmprof.log").is_file().then_some(()));
    eventually("the end of the directory", || fs::remove_dir_all(&run).ok());
    crate::common::signal(child.id(), "TERM");
    let said = said(child.wait_with_output().unwrap());
    assert_eq!(said.code, 143, "{}", said.err);
    assert!(!said.out.contains("recorded in"), "{}", said.out);
    assert!(said.err.contains("run was moved or deleted during the run"), "{}", said.err);
}
