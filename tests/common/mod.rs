//! Helpers of the end-to-end tests: they run the program in its own directory and read its output.

pub mod h200_step;
pub mod manual;
pub mod markup;
pub mod terminal;

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::Read,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use llmprof::{
    event::{Envelope, Event, RunFinished},
    rundir::{EventReader, Next, ReadError, RunEntry, list_runs},
};
use nix::{
    sys::signal::{SigHandler, Signal, kill},
    unistd::Pid,
};
use rustix::fs::Mode;
use serde_json::Value;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_llmprof-tui");

/// A test that takes longer than this hangs. It is no measure of speed: no test waits so long when it passes.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The program in `dir`, unaffected by the environment of the tests.
pub fn program(dir: &Path) -> Command {
    command(PROGRAM, dir)
}

/// A program in `dir` with the same surroundings wherever the tests run: default signals (a background job and `nohup` ignore
/// SIGINT and SIGHUP), umask 022, English in UTF-8, UTC, `dir` as home, and nothing else of the tests' environment.
pub fn command(name: impl AsRef<OsStr>, dir: &Path) -> Command {
    let mut command = Command::new(name);
    command.current_dir(dir).env_clear().envs(environment(dir));
    // SAFETY: the closure runs between fork and exec and makes system calls only; it neither allocates nor locks.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(|| {
            for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGTSTP]
            {
                nix::sys::signal::signal(signal, SigHandler::SigDfl)?;
            }
            rustix::process::umask(Mode::from_raw_mode(0o022));
            Ok(())
        })
    };
    command
}

/// The environment of [`command`]; the paths of programs and libraries are those of the tests' environment.
pub fn environment(home: &Path) -> Vec<(&'static str, OsString)> {
    let mut variables = vec![
        ("HOME", home.into()),
        ("LANG", "C.UTF-8".into()),
        ("LC_ALL", "C.UTF-8".into()),
        ("TZ", "UTC".into()),
        ("TMPDIR", env!("CARGO_TARGET_TMPDIR").into()),
    ];
    let inherited = ["PATH", "LD_LIBRARY_PATH", "RUST_BACKTRACE"].into_iter();
    variables.extend(inherited.filter_map(|name| Some((name, std::env::var_os(name)?))));
    variables
}

/// The output and exit code of the program.
pub struct ProgramOutput {
    pub code: i32,
    pub out: String,
    pub err: String,
}

pub fn said(output: Output) -> ProgramOutput {
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    ProgramOutput {
        code: output.status.code().expect("an exit code"),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

/// Runs the program in `dir` to its end.
#[track_caller]
pub fn run(dir: &Path, args: &[&str]) -> ProgramOutput {
    said(output(program(dir).args(args)))
}

/// A child process that is killed when its test ends, also after a panic.
pub struct KilledOnDrop(pub Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for the end of a child process. One that hangs is killed, and fails the test.
#[track_caller]
pub fn ended(child: &mut Child) -> ExitStatus {
    // It may wait for the end of its input.
    drop(child.stdin.take());
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            panic!("process {} did not end within {PATIENCE:?}", child.id());
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Like [`ended`], with the output of the streams that are piped.
#[track_caller]
pub fn ended_with_output(child: &mut Child) -> Output {
    let (stdout, stderr) = (reading(child.stdout.take()), reading(child.stderr.take()));
    let status = ended(child);
    // Orphaned processes may keep the pipes open.
    let (stdout, stderr) = (stdout.recv_timeout(PATIENCE), stderr.recv_timeout(PATIENCE));
    Output { status, stdout: stdout.expect("the end of stdout"), stderr: stderr.expect("the end of stderr") }
}

/// Reads a pipe in a thread: a process whose pipe is full does not end.
fn reading(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (send, read) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(&mut bytes).unwrap();
        }
        let _ = send.send(bytes);
    });
    read
}

/// Like [`Command::output`], with the limit of [`ended`].
#[track_caller]
pub fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    ended_with_output(&mut command.spawn().unwrap())
}

/// Runs the program in `dir` with a limit in the syntax of the shell's `ulimit`.
#[track_caller]
pub fn limited(dir: &Path, limit: &str, args: &[&str]) -> ProgramOutput {
    let mut shell = command("sh", dir);
    shell.args(["-c", &format!("ulimit {limit}; exec \"$@\""), "sh", PROGRAM]).args(args);
    said(output(&mut shell))
}

/// Durations of a 7B model on an H200, whichever model is simulated.
pub const SIM_TIMES: [&str; 2] = ["runtime.sim.prefill_tok_s=47000", "runtime.sim.itl_ms=3.8"];

/// A finished simulated run below `dir`, with [`SIM_TIMES`] unless `overrides` set them; returns its directory.
pub fn record(dir: &Path, overrides: &[&str]) -> PathBuf {
    let before = run_dirs(dir);
    let mut run = program(dir);
    let key = |text: &str| text.split('=').next().unwrap_or_default().to_owned();
    let times = SIM_TIMES.into_iter().filter(|time| overrides.iter().all(|other| key(other) != key(time)));
    let run = run.args(["run", "--quiet", "runtime=sim", "runtime.sim.speed=0"]).args(times);
    let done = output(run.args(overrides));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    run_dirs(dir).into_iter().find(|run| !before.contains(run)).expect("a new run directory")
}

/// The run directories below `dir`, newest first.
pub fn run_dirs(dir: &Path) -> Vec<PathBuf> {
    listed_runs(&dir.join("runs")).iter().map(|run| run.dir.path().to_owned()).collect()
}

/// The runs below `root`. On a busy machine, a directory may at first be listed as one that does not answer.
pub fn listed_runs(root: &Path) -> Vec<RunEntry> {
    eventually("an answer of every directory", || {
        let runs = list_runs(root);
        runs.iter().all(|run| run.answers).then_some(runs)
    })
}

/// All readable events of a run.
pub fn events(run: &Path) -> Vec<Envelope> {
    let mut reader = match EventReader::open(&run.join("events.ndjson")) {
        Err(ReadError::Empty { .. }) => return Vec::new(),
        reader => reader.unwrap(),
    };
    let mut events = Vec::new();
    while let Next::Event(envelope) = reader.read_next().unwrap() {
        events.push(envelope);
    }
    events
}

/// How a run ended: the last event of its recording.
pub fn finished(run: &Path) -> RunFinished {
    match events(run).pop().map(|envelope| envelope.event) {
        Some(Event::RunFinished(finished)) => finished,
        last => panic!("{} ends with {last:?}", run.display()),
    }
}

/// Writes the shape of a model that runs in no time; `edit` may invalidate it.
pub fn tiny_model(dir: &Path, edit: impl FnOnce(&mut serde_json::Value)) {
    let mut shape = serde_json::json!({
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": true, "max_position_embeddings": 256,
    });
    edit(&mut shape);
    fs::write(dir.join("tiny.json"), shape.to_string()).unwrap();
}

/// Polls until `found` returns a value.
#[track_caller]
pub fn eventually<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(thing) = found() {
            return thing;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until the process handles SIGINT itself.
pub fn until_it_handles_interrupts(pid: u32) {
    eventually("a handler of SIGINT", || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
        let caught = u64::from_str_radix(caught.trim(), 16).ok()?;
        (caught & (1 << (Signal::SIGINT as u32 - 1)) != 0).then_some(())
    });
}

/// Writes a shell script. Another process writes it: a file that this process has open for writing cannot be started by
/// its other threads.
pub fn script(path: &Path, lines: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let write = "printf '#!/bin/sh\n%s\n' \"$2\" > \"$1\" && chmod 755 \"$1\"";
    let written = Command::new("sh").args(["-c", write, "sh"]).arg(path).arg(lines).status();
    assert!(written.unwrap().success());
}

/// Sends a signal by name.
#[track_caller]
pub fn signal(pid: u32, name: &str) {
    assert!(signalled(pid, name), "kill -{name} {pid}");
}

/// Whether there was a process to signal.
pub fn signalled(pid: u32, name: &str) -> bool {
    let signal: Signal = format!("SIG{name}").parse().expect("the name of a signal");
    let pid = i32::try_from(pid).expect("the number of a process");
    kill(Pid::from_raw(pid), signal).is_ok()
}

/// A program of `tests/standins`, compiled into its own directory with a stand-in for CUPTI.
pub fn compiled_standin(source: &str) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/standins");
    let name = source.trim_end_matches(".c");
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let (library, driver, binary) = (dir.join("libcupti.so.13"), dir.join("libcuda.so.1"), dir.join(name));
    let cc = |arguments: &[&str], files: &[&Path]| {
        let built = Command::new("cc")
            .args(["-O1", "-w"])
            .args(arguments)
            .args(files)
            .args(["-ldl", "-lpthread"])
            .status();
        assert!(built.unwrap().success());
    };
    let soname = "-Wl,-soname,libcupti.so.13";
    cc(&["-shared", "-fPIC", soname, "-o", library.to_str().unwrap()], &[&sources.join("cupti.c")]);
    let soname = "-Wl,-soname,libcuda.so.1";
    cc(&["-shared", "-fPIC", soname, "-o", driver.to_str().unwrap()], &[&sources.join("cuda.c")]);
    let rpath = format!("-Wl,-rpath,{}", dir.display());
    // The program calls no function of the driver.
    let link = ["-Wl,--no-as-needed", &rpath, "-o", binary.to_str().unwrap()];
    cc(&link, &[&sources.join(source), &library, &driver]);
    binary
}

/// The rows of `sweep.csv` by their headings.
pub fn rows(sweep: &Path) -> Vec<Value> {
    let mut reader = csv::Reader::from_path(sweep.join("sweep.csv")).unwrap();
    let headings = reader.headers().unwrap().clone();
    let row = |row: csv::StringRecord| {
        headings.iter().map(str::to_owned).zip(row.iter().map(Value::from)).collect::<Value>()
    };
    reader.records().map(|record| row(record.unwrap())).collect()
}

/// A column of the rows.
pub fn column(rows: &[Value], name: &str) -> Vec<String> {
    rows.iter().map(|row| row[name].as_str().expect("a cell").to_owned()).collect()
}
