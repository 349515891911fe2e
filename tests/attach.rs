//! `exec` and `attach` on other programs: a scripted program with a stand-in for CUPTI (`tests/standins`).

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Lines},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
    sync::OnceLock,
};

use crate::common::{
    KilledOnDrop, PROGRAM, command, compiled_standin, ended, eventually, program, run_dirs, signal, signalled,
};
use llmprof::event::{Envelope, Event};
use serde_json::Value;

/// The scripted program, compiled once.
fn standin() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compiled_standin("program.c"))
}

/// `llmprof-tui` with its own home and runtime directory.
fn llmprof(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = program(dir);
    command.env("HOME", dir).env("XDG_RUNTIME_DIR", dir).env_remove("XDG_DATA_HOME").args(arguments);
    command
}

fn exec(dir: &Path, options: &[&str], standin_arguments: &[&str]) -> Output {
    let mut command = llmprof(dir, &["exec", "telemetry=none"]);
    command.args(options).arg("--").arg(standin()).args(standin_arguments);
    command.env("STANDIN_WAITS", "1").output().unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{}", text(&output.stdout), text(&output.stderr)))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The events of the only run in a directory.
fn events(dir: &Path) -> Vec<Value> {
    let run = fs::read_dir(dir.join("runs/baseline")).unwrap().flatten().next().unwrap().path();
    let run = fs::read_dir(run).unwrap().flatten().next().unwrap().path();
    let lines = fs::read_to_string(run.join("events.ndjson")).unwrap();
    lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn count(events: &[Value], kind: &str) -> usize {
    events.iter().filter(|event| event["e"].get(kind).is_some()).count()
}

fn notices(events: &[Value]) -> Vec<String> {
    let text =
        |event: &Value| event["e"].get("notice").map(|notice| notice["text"].as_str().unwrap().to_owned());
    events.iter().filter_map(text).collect()
}

#[test]
fn the_program_keeps_its_output_and_its_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let done = exec(dir.path(), &["--headless"], &["eager", "200", "7"]);
    assert_eq!(done.status.code(), Some(7), "{}", text(&done.stderr));
    assert_eq!(text(&done.stdout), "200 steps\n");
    let summary = text(&done.stderr);
    assert!(summary.contains("inferred steps") && summary.contains("gate_up"), "{summary}");
}

/// The program handles a signal that was sent only to the profiler.
#[test]
fn signals_reach_the_program_once() {
    let script = "trap 'echo user' USR1; trap 'echo hang-up; exit 4' HUP; trap 'echo interrupt; exit 3' INT; \
                  trap 'echo terminate; exit 5' TERM; echo ready; while :; do sleep 0.05; done";
    for (last, said, code) in [("INT", "interrupt", 3), ("HUP", "hang-up", 4), ("TERM", "terminate", 5)] {
        let dir = tempfile::tempdir().unwrap();
        let mut command =
            llmprof(dir.path(), &["exec", "--headless", "telemetry=none", "output.record=false"]);
        let mut exec = command
            .args(["--", "sh", "-c", script])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(exec.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert_eq!(lines.next().as_deref(), Some("ready"));
        signal(exec.id(), "USR1");
        assert_eq!(lines.next().as_deref(), Some("user"));
        signal(exec.id(), last);
        assert_eq!(lines.collect::<Vec<_>>(), [said]);
        assert_eq!(exec.wait().unwrap().code(), Some(code));
    }
}

#[test]
fn cupti_is_switched_on_before_a_program_makes_its_contexts_and_left_alone_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    for duty in ["0.3", "1.0"] {
        let duty = format!("profiling.cupti.duty={duty}");
        let done = exec(dir.path(), &["--headless", &duty], &["eager:c", "200"]);
        let out = text(&done.stdout);
        let both = "recording when CUDA was ready: 1, 0 calls of CUPTI before the first kernel";
        assert!(out.contains(both), "{out}{}", text(&done.stderr));
    }
}

#[test]
fn steps_kernels_and_operators_are_found() {
    for mode in ["graph", "eager"] {
        let dir = tempfile::tempdir().unwrap();
        let done = exec(dir.path(), &["--json", "profiling.cupti.duty=1.0"], &[mode, "300"]);
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        let result = json(&done);
        assert_eq!(result["engine"], "program", "{result}");
        let remarks = result["program"]["decode"]["remarks"].to_string();
        assert!(remarks.contains("The GPU is idle 9"), "{remarks}");
        let events = events(dir.path());
        let tokens = count(&events, "token");
        assert_eq!(tokens, 300, "{mode}: every step is found where every kernel is recorded");
        let starts: Vec<&Value> =
            events.iter().filter_map(|event| event["e"].get("request_started")).collect();
        assert!(starts.len() >= 4, "a prefill every 64 steps: {starts:?}");
        let windows = events.iter().filter_map(|event| event["e"].get("kernels"));
        let decode: Vec<&Value> = windows.filter(|window| window["phase"] == "decode").collect();
        let sum = |key: &str| decode.iter().map(|window| window[key].as_u64().unwrap()).sum::<u64>();
        assert_eq!(sum("launches") / sum("steps"), 41, "{mode}");
        let row =
            decode[0]["rows"].as_array().unwrap().iter().find(|row| row["operator"] == "gate_up").unwrap();
        assert_eq!(row["mean_ns"], 40_000.0, "{row}");
    }
}

#[test]
fn steps_continue_between_bursts() {
    let dir = tempfile::tempdir().unwrap();
    let done = exec(dir.path(), &["--json"], &["graph", "900"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let events = events(dir.path());
    let tokens = count(&events, "token");
    // Before the first burst has shown what a step is, no step is reported.
    let windows = events.iter().filter_map(|event| event["e"].get("kernels"));
    let recorded: u64 = windows.map(|window| window["steps"].as_u64().unwrap()).sum();
    let switches = count(&events, "kernel_trace");
    // A step during which recording is switched may be found twice: by its kernels and by its copy.
    assert!(
        recorded > 0 && tokens as u64 > recorded && tokens <= 900 + switches,
        "{tokens}, {recorded} in bursts, {switches} switches"
    );
    assert!(switches >= 4);
}

#[test]
fn workers_are_followed() {
    let dir = tempfile::tempdir().unwrap();
    let done = exec(dir.path(), &["--json"], &["graph:w", "200"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let events = events(dir.path());
    let joined: Vec<&Value> = events.iter().filter_map(|event| event["e"].get("process_joined")).collect();
    let mut ranks: Vec<&str> = joined.iter().filter_map(|process| process["rank"].as_str()).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, ["0", "1"], "{joined:?}");
    assert_eq!(count(&events, "process_left"), 2);
}

#[test]
fn sudden_ends_lose_little_and_change_nothing() {
    for (mode, code) in [("graph:k", 137), ("graph:x", 5), ("eager:f", 5)] {
        let dir = tempfile::tempdir().unwrap();
        let done = exec(dir.path(), &["--json", "profiling.cupti.duty=1.0"], &[mode, "200", "5"]);
        assert_eq!(done.status.code(), Some(code), "{mode}: {}", text(&done.stderr));
        let tokens = count(&events(dir.path()), "token");
        assert!((199..=200).contains(&tokens), "{mode}: {tokens}");
    }
}

#[test]
fn a_program_that_profiles_itself_is_left_alone_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let done = exec(dir.path(), &["--json"], &["graph:p", "600"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let events = events(dir.path());
    let said = notices(&events);
    assert!(said.iter().any(|text| text.contains("profiles itself")), "{said:?}");
    // The program continues afterwards.
    let is_it = |event: &Value| {
        event["e"]["notice"]["text"].as_str().is_some_and(|text| text.contains("profiles itself"))
    };
    let since = events.iter().find(|event| is_it(event)).unwrap()["t"].as_u64().unwrap();
    let after =
        events.iter().filter(|event| event["e"].get("token").is_some() && event["t"].as_u64() > Some(since));
    assert!(after.count() >= 50, "{since}");
}

#[test]
fn any_number_of_kernel_names_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let done = exec(dir.path(), &["--json", "profiling.cupti.duty=1.0"], &["eager:n", "100"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
}

#[test]
fn programs_without_cuda_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = llmprof(
        dir.path(),
        &["exec", "--headless", "telemetry=none", "--", "sh", "-c", "echo hello; exit 3"],
    );
    let done = command.output().unwrap();
    assert_eq!((done.status.code(), text(&done.stdout).as_str()), (Some(3), "hello\n"));
    assert!(notices(&events(dir.path())).iter().any(|text| text.contains("did not use CUDA")));
    let mut last =
        llmprof(dir.path(), &["exec", "--headless", "telemetry=none", "--", "sh", "-c", "exit 255"]);
    assert_eq!(last.output().unwrap().status.code(), Some(255));
    let missing = llmprof(dir.path(), &["exec", "--headless", "telemetry=none", "--", "/nowhere/at/all"])
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("/nowhere/at/all cannot be started"), "{}", text(&missing.stderr));
}

#[test]
fn another_tool_that_was_first_stays() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = llmprof(
        dir.path(),
        &["exec", "--headless", "telemetry=none", "--", "printenv", "CUDA_INJECTION64_PATH"],
    );
    let done = command.env("CUDA_INJECTION64_PATH", "/opt/nsys/libToolsInjection64.so").output().unwrap();
    assert_eq!(text(&done.stdout), "/opt/nsys/libToolsInjection64.so\n");
    assert!(
        notices(&events(dir.path())).iter().any(|text| text.contains("is injected into the program already"))
    );
}

/// A program with its child processes, which are killed at the end.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.0.wait();
    }
}

/// Starts a program that runs until SIGTERM, and waits until it is ready.
fn endless(mut program: Command) -> (Running, Lines<BufReader<ChildStdout>>) {
    let mut target = program.process_group(0).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(target.stdout.take().unwrap()).lines();
    let target = Running(target);
    assert_eq!(said.next().unwrap().unwrap(), "ready");
    (target, said)
}

/// Joins a running program twice, and leaves it.
fn is_joined_and_left(dir: &Path, Running(target): &mut Running) {
    for turn in ["first", "second"] {
        let pid = target.id().to_string();
        let run = format!("hydra.run.dir={turn}");
        let mut joined = llmprof(dir, &["attach", &pid, "--json", "--headless", "telemetry=none", &run]);
        let joined = joined.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let recording = dir.join(turn).join("events.ndjson");
        eventually("kernels of decode steps", || {
            let events = fs::read_to_string(&recording).unwrap_or_default();
            events.lines().any(|line| line.contains(r#""kernels":{"phase":"decode""#)).then_some(())
        });
        signal(joined.id(), "INT");
        let joined = joined.wait_with_output().unwrap();
        assert_eq!(joined.status.code(), Some(130), "{}", text(&joined.stderr));
        let decode = &json(&joined)["program"]["decode"];
        let [launches, steps] = ["launches", "steps"].map(|name| decode[name].as_u64().unwrap());
        assert!(steps > 0 && launches >= 10 * steps, "{decode}");
    }
    assert!(target.try_wait().unwrap().is_none(), "it goes on");
    signal(target.id(), "TERM");
    assert_eq!(target.wait().unwrap().code(), Some(4), "to its end");
}

#[test]
fn a_prepared_program_is_joined_and_left() {
    let dir = tempfile::tempdir().unwrap();
    let printed = llmprof(dir.path(), &["inject", "--print-env"]).output().unwrap();
    let variables: Vec<(String, String)> = text(&printed.stdout)
        .lines()
        .map(|line| line.strip_prefix("export ").unwrap().split_once('=').unwrap())
        .map(|(name, value)| (name.to_owned(), value.trim_matches('\'').to_owned()))
        .collect();
    assert_eq!(variables.len(), 4, "{variables:?}");
    let mut target = command(standin(), dir.path());
    // Its environment cannot be read any more, like that of the workers of vLLM and SGLang.
    target.args(["graph:ut", "1400", "4"]).envs(variables);
    let (mut target, mut said) = endless(target);
    is_joined_and_left(dir.path(), &mut target);
    assert_eq!(said.next().unwrap().unwrap(), "1400 steps");
}

/// The library is loaded into the running process, once.
#[test]
fn a_program_without_preparation_is_joined_and_left() {
    let dir = tempfile::tempdir().unwrap();
    let mut target = command(standin(), dir.path());
    target.args(["graph:u", "1400", "4"]);
    let (mut target, mut said) = endless(target);
    is_joined_and_left(dir.path(), &mut target);
    assert_eq!(said.next().unwrap().unwrap(), "1400 steps");
}

#[test]
fn a_python_program_is_joined_and_left() {
    let dir = tempfile::tempdir().unwrap();
    let mut target = command("python3", dir.path());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/standins/program.py");
    let libraries = ["libcupti.so.13", "libcuda.so.1"].map(|name| standin().with_file_name(name));
    target.arg(script).args(libraries);
    let (mut target, mut said) = endless(target);
    is_joined_and_left(dir.path(), &mut target);
    assert_eq!(said.next().unwrap().unwrap(), "True", "it has made steps");
    // The lines of both threads are recorded.
    let recording = fs::read_to_string(dir.path().join("second/events.ndjson")).unwrap();
    let events = recording.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let windows: Vec<Value> = events.filter_map(|event| event["e"].get("host_stacks").cloned()).collect();
    let rows = windows.iter().flat_map(|window| window["rows"].as_array().unwrap());
    let places: Vec<(&str, &str)> =
        rows.map(|row| (row["thread"].as_str().unwrap(), row["line"].as_str().unwrap())).collect();
    for thread in ["main", "decode"] {
        let has = |(of, line): &(&str, &str)| *of == thread && line.contains("standins/program.py:");
        assert!(places.iter().any(has), "{thread}: {places:?}");
    }
    let report = fs::read_to_string(dir.path().join("second/report.md")).unwrap();
    assert!(report.contains("### What the host did") && report.contains("program.py:"), "{report}");
    assert!(report.contains("### Kernels by line"), "{report}");
    // Of 466 µs of a step, four layers launch 99 each, the head 68 and the embedding 2.
    let printed = llmprof(dir.path(), &["kernels", "second", "--by", "line", "--json"]).output().unwrap();
    let table: Value = serde_json::from_slice(&printed.stdout).unwrap();
    let mut shares = BTreeMap::new();
    for row in table["rows"].as_array().unwrap() {
        let place = row["place"].as_str().unwrap_or("outside of Python");
        // Since CPython 3.11 with the class.
        let function = place.rsplit([' ', '.']).next().unwrap();
        *shares.entry(function).or_insert(0.0) += row["share"].as_f64().unwrap();
    }
    for (function, us) in [("layer", 396.0), ("head", 68.0), ("embed", 2.0)] {
        let found = shares.get(function).copied().unwrap_or(0.0);
        assert!((found - us / 466.0).abs() < 0.02, "{function}: {shares:?}");
    }
    let stacks = llmprof(dir.path(), &["kernels", "second", "--stacks", "stacks.txt"]).output().unwrap();
    assert_eq!(stacks.status.code(), Some(0), "{}", text(&stacks.stderr));
    let stacks = fs::read_to_string(dir.path().join("stacks.txt")).unwrap();
    assert!(stacks.lines().any(|line| line.contains(" decode;") && line.contains("head;")), "{stacks}");
}

/// The process that a server is known by has no work: its child processes have.
#[test]
fn the_processes_of_a_program_that_use_cuda_are_joined_together() {
    let dir = tempfile::tempdir().unwrap();
    let script = format!("echo ready; '{0}' graph:u 1 & '{0}' graph:u 1 & wait", standin().display());
    let mut target = command("sh", dir.path());
    target.args(["-c", &script]);
    let (target, _said) = endless(target);
    let pid = target.0.id().to_string();
    let children = || {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let pids = children.split_whitespace().map(str::to_owned);
        let uses_cuda = |pid: &String| {
            fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains("libcupti"))
        };
        let children: Vec<String> = pids.filter(uses_cuda).collect();
        (children.len() == 2).then_some(children)
    };
    let children = eventually("both children", children);
    let done =
        llmprof(dir.path(), &["attach", &pid, "--json", "--for", "3", "telemetry=none"]).output().unwrap();
    let said = text(&done.stderr);
    for child in &children {
        assert!(said.contains(&format!("loaded into process {child}")), "{said}");
    }
    assert!(!said.contains(&format!("process {pid} ")), "the shell is left alone: {said}");
    let joined = count(&events(dir.path()), "process_joined");
    assert_eq!(joined, 2, "{said}");
}

#[test]
fn what_cannot_be_joined_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let attach = |process: &str| llmprof(dir.path(), &["attach", process, "--for", "1"]).output().unwrap();
    let mut plain = command("sleep", dir.path()).arg("600").spawn().unwrap();
    let outside = attach(&plain.id().to_string());
    let _ = plain.kill();
    let _ = plain.wait();
    assert_ne!(outside.status.code(), Some(2), "it is watched from outside");
    assert!(text(&outside.stderr).contains("has not loaded CUDA"), "{}", text(&outside.stderr));
    let nobody = attach("no-such-program");
    assert!(text(&nobody.stderr).contains("there is no process no-such-program"), "{}", text(&nobody.stderr));
    // Two programs of one name.
    let program = dir.path().join("two-of-a-name");
    fs::hard_link(standin(), &program).or_else(|_| fs::copy(standin(), &program).map(|_| ())).unwrap();
    let both = [(); 2].map(|()| {
        let mut target = command(&program, dir.path());
        target.args(["graph:u", "1"]);
        endless(target).0
    });
    let several = attach("two-of-a-name");
    let said = text(&several.stderr);
    assert_eq!(several.status.code(), Some(2), "{said}");
    assert!(
        both.iter().all(|target| said.contains(&target.0.id().to_string())) && said.contains("by its PID"),
        "{said}"
    );
    // A stopped process.
    signal(both[0].0.id(), "STOP");
    let stopped = attach(&both[0].0.id().to_string());
    assert!(text(&stopped.stderr).contains("cannot be joined"), "{}", text(&stopped.stderr));
}

/// A process that is killed at the end of its test.
struct LeftBehind(u32);

impl Drop for LeftBehind {
    fn drop(&mut self) {
        signalled(self.0, "KILL");
    }
}

/// The program ends, and a process that it leaves behind never stops writing records.
#[test]
fn a_process_that_works_after_the_programs_end_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let script = "\"$0\" graph:u 1400 >said & echo $! >pid; until test -e go; do sleep 0.05; done; exit 4";
    let options = ["exec", "--headless", "telemetry=none", "profiling.cupti.duty=1.0"];
    let mut exec = llmprof(dir.path(), &options);
    exec.args(["--", "sh", "-c", script]).arg(standin()).env("STANDIN_WAITS", "1");
    let exec = exec.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut exec = KilledOnDrop(exec);
    let pid = || fs::read_to_string(dir.path().join("pid")).ok()?.trim().parse().ok();
    let left = LeftBehind(eventually("its process", pid));
    eventually("steps of its process", || {
        let run = run_dirs(dir.path()).pop()?;
        let is_token = |envelope: &Envelope| matches!(envelope.event, Event::Token(_));
        crate::common::events(&run).iter().any(is_token).then_some(())
    });
    fs::write(dir.path().join("go"), "").unwrap();
    assert_eq!(ended(&mut exec.0).code(), Some(4));
    let command = fs::read_to_string(format!("/proc/{}/cmdline", left.0)).unwrap_or_default();
    assert!(command.contains("graph:u"), "it continues, as in a shell");
}

/// The program is unaffected when the profiler is killed or stopped.
#[test]
fn the_program_outlives_the_profiler() {
    for name in ["KILL", "STOP"] {
        let dir = tempfile::tempdir().unwrap();
        let marker = dir.path().join("done");
        let script = format!("{} graph 600 0 && touch {}", standin().display(), marker.display());
        let mut profiler =
            llmprof(dir.path(), &["exec", "--headless", "telemetry=none", "--", "sh", "-c", &script])
                .env("STANDIN_WAITS", "1")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
        eventually("steps of the program", || {
            let run = run_dirs(dir.path()).pop()?;
            let is_token = |envelope: &Envelope| matches!(envelope.event, Event::Token(_));
            crate::common::events(&run).iter().any(is_token).then_some(())
        });
        signal(profiler.id(), name);
        eventually("the end of the program by itself", || marker.exists().then_some(()));
        let _ = profiler.kill();
        let _ = profiler.wait();
    }
}

/// One umask removes this user's permissions too, the other removes none.
#[test]
fn the_socket_is_private_and_the_program_is_followed_whatever_the_umask_is() {
    for umask in ["0277", "0"] {
        let dir = tempfile::tempdir().unwrap();
        let mut shell = command("sh", dir.path());
        shell.env("XDG_RUNTIME_DIR", dir.path()).env("STANDIN_WAITS", "1");
        shell.args(["-c", &format!("umask {umask}; exec \"$@\""), "sh", PROGRAM]);
        shell.args([
            "exec",
            "--json",
            "telemetry=none",
            "output.record=false",
            "profiling.cupti.duty=1.0",
            "--",
        ]);
        // The program prints the modes of the directory and of the socket. With --json, its stdout goes to stderr.
        let script = "stat -c %a \"$LLMPROF_ATTACH\" \"$LLMPROF_ATTACH/socket\"; exec \"$0\" graph 300";
        let done = shell.args(["sh", "-c", script]).arg(standin()).output().unwrap();
        assert_eq!(done.status.code(), Some(0), "umask {umask}: {}", text(&done.stderr));
        assert!(text(&done.stderr).contains("700\n700\n"), "umask {umask}: {}", text(&done.stderr));
        let decode = &json(&done)["program"]["decode"];
        let [launches, steps] = ["launches", "steps"].map(|name| decode[name].as_u64());
        assert!(steps > Some(0) && launches > steps, "umask {umask}: {decode}");
    }
}

/// A process in a separate session is in no process group of the program.
#[test]
fn the_program_and_its_detached_processes_end_after_its_time() {
    let command_line = |pid: u32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    // If the machine was too busy to start the program, it gets more time.
    for seconds in ["3", "10", "60"] {
        let dir = tempfile::tempdir().unwrap();
        let options = ["exec", "--for", seconds, "telemetry=none", "output.record=false", "--", "sh", "-c"];
        let mut command = llmprof(dir.path(), &options);
        // The parent of the process ends immediately.
        command
            .arg("(setsid sleep 7291 & echo $! > pid); while :; do sleep 1; done")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut exec = command.spawn().unwrap();
        let is_detached = || {
            let pid = fs::read_to_string(dir.path().join("pid")).ok()?.trim().parse::<u32>().ok()?;
            command_line(pid).starts_with("sleep").then_some(pid)
        };
        let detached = eventually("a detached process, or the end", || {
            let ended = exec.try_wait().unwrap().is_some();
            is_detached().map(Some).or(ended.then_some(None))
        });
        let code = exec.wait().unwrap().code();
        let Some(pid) = detached else { continue };
        let is_left = command_line(pid).contains("7291");
        if is_left {
            signal(pid, "KILL");
        }
        assert!(!is_left, "process {pid} still runs");
        // Ended by SIGTERM, or by SIGKILL if that took too long.
        assert!(matches!(code, Some(143 | 137)), "{code:?}");
        return;
    }
    panic!("the program did not start its process within a minute");
}
