//! Planted host faults: after a second of samples the planted line comes first among the main thread's rows, with its state.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use host_stacks::State;

use crate::common::{Program, alone, attach, describe, fault, main_rows, planted};

fn check(name: &str, expected: fn(&State) -> bool) {
    check_with("python3", name, expected);
}

fn check_with(python: &str, name: &str, expected: fn(&State) -> bool) {
    let _alone = alone();
    let script = fault(name);
    let program = Program::start(python, &script);
    judge(python, name, &script, &program, expected);
}

fn judge(python: &str, name: &str, script: &Path, program: &Program, expected: fn(&State) -> bool) {
    let mut sampler = attach(program.pid(), script).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let mut rows = main_rows(&mut sampler, Duration::from_secs(1));
    let text = describe(&rows);
    println!("{name} ({python}):\n{text}");
    // How long a thread waits for a CPU depends on what else this machine does.
    rows.retain(|row| row.state != State::Descheduled || expected(&State::Descheduled));
    let first = &rows[0];
    let frame = first.frame.as_ref().unwrap();
    assert_eq!((Path::new(&*frame.file), frame.line), (script, planted(script)), "{python} {name}\n{text}");
    assert!(expected(&first.state), "{python} {name}\n{text}");
}

/// On a busy machine a thread that computes waits for a CPU most of the time.
fn computes(state: &State) -> bool {
    matches!(state, State::RunningPython | State::Descheduled)
}

fn waits_for_the_gil(state: &State) -> bool {
    matches!(state, State::WaitingForGil { .. })
}

fn calls(state: &State, names: &[&str]) -> bool {
    matches!(state, State::SystemCall(call) if call.name().is_some_and(|name| names.contains(&name)))
}

#[test]
fn sleep_in_the_loop() {
    check("sleep", |state| *state == State::Sleeping);
}

#[test]
fn pure_python_computation() {
    check("compute", computes);
}

#[test]
fn gil_held_by_other_threads() {
    check("gil", waits_for_the_gil);
}

#[test]
fn lock_held_by_another_thread() {
    check("lock", |state| *state == State::WaitingForLock);
}

#[test]
fn log_to_a_slow_pipe() {
    check("log_to_slow_pipe", |state| calls(state, &["write"]));
}

#[test]
fn queue_without_an_item() {
    check("queue_get", |state| *state == State::WaitingForLock);
}

#[test]
fn read_of_a_slow_pipe() {
    check("slow_read", |state| calls(state, &["read"]));
}

#[test]
fn wait_for_a_subprocess() {
    check("subprocess_wait", |state| calls(state, &["wait4", "waitid"]));
}

#[test]
fn json_in_the_loop() {
    check("json_encode", computes);
}

#[test]
fn import_in_the_loop() {
    check("import_in_loop", computes);
}

#[test]
fn garbage_collection_in_the_loop() {
    check("gc_collect", computes);
}

#[test]
fn more_busy_processes_than_cores() {
    check("cpu_contention", |state| *state == State::Descheduled);
}

/// A library with the name of CUDA's driver that waits as the driver does: blocked in `poll`, or spinning.
#[test]
fn synchronisation_with_the_gpu() {
    let directory = std::env::temp_dir().join(format!("host-stacks-cuda-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let library = directory.join("libcuda.so.1");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(fault("libcuda").with_extension("c"));
    assert!(compiler.status().unwrap().success());
    for name in ["gpu_blocked", "gpu_spinning"] {
        let _alone = alone();
        let script = fault(name);
        let program = Program::start_with("python3", &script, &library);
        judge("python3", name, &script, &program, |state| *state == State::WaitingForGpu);
    }
    std::fs::remove_dir_all(directory).unwrap();
}

/// Every CPython that is installed here, by pyenv or by the system.
#[test]
fn each_installed_version() {
    let home = std::env::var("HOME").unwrap_or_default();
    let versions = std::fs::read_dir(format!("{home}/.pyenv/versions")).into_iter().flatten().flatten();
    let mut pythons: Vec<String> =
        versions.map(|entry| entry.path().join("bin/python3").display().to_string()).collect();
    pythons.push("/usr/bin/python3".to_owned());
    pythons.retain(|python| Path::new(python).exists());
    pythons.sort();
    let minors: Vec<u8> = pythons.iter().map(|python| minor(python)).collect();
    for (python, minor) in pythons.iter().zip(&minors) {
        match minor {
            8..=15 => check_version(python),
            _ => refused(python),
        }
    }
    let absent: Vec<u8> = (8..=15).filter(|minor| !minors.contains(minor)).collect();
    println!("not installed here, so not run: CPython 3.{absent:?}");
}

fn check_version(python: &str) {
    check_with(python, "sleep", |state| *state == State::Sleeping);
    check_with(python, "gil", waits_for_the_gil);
    check_with(python, "lock", |state| *state == State::WaitingForLock);
    check_with(python, "json_encode", computes);
}

fn refused(python: &str) {
    let script = fault("sleep");
    let program = Program::start(python, &script);
    std::thread::sleep(Duration::from_millis(300));
    let refusal = host_stacks::Sampler::new(program.pid()).err();
    println!("{python}: {}", refusal.as_ref().unwrap());
    assert!(matches!(
        refusal,
        Some(host_stacks::Refusal::UnknownVersion { .. } | host_stacks::Refusal::NotPython { .. })
    ));
}

fn minor(python: &str) -> u8 {
    let program = "import sys; print(sys.version_info[1] if sys.version_info[0] == 3 else 0)";
    let output = Command::new(python).args(["-c", program]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}
