//! What cannot be loaded into is refused with its reason.

#![allow(unsafe_code)] // a seccomp filter

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::{env, fs, thread};

use ptrace_load::{Refusal, check};

use crate::programs::{Program, compile, load};

const NOBODY: u32 = 65534;

fn refusal(pid: u32) -> Refusal {
    let refusal = check(pid).unwrap_err();
    println!("{refusal}");
    assert!(refusal.to_string().ends_with('.'));
    assert_eq!(load(pid, "length", "").unwrap_err().to_string(), refusal.to_string());
    refusal
}

fn signal(name: &str, pid: u32) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

fn is_root() -> bool {
    let root = fs::metadata("/proc/self/status").unwrap().uid() == 0;
    if !root {
        println!("skipped: this needs root");
    }
    root
}

#[test]
fn no_process() {
    for pid in [0, u32::MAX, i32::MAX as u32] {
        assert!(matches!(refusal(pid), Refusal::NoProcess { .. }));
    }
}

#[test]
fn ourselves() {
    assert!(matches!(refusal(std::process::id()), Refusal::Ourselves { .. }));
    thread::spawn(|| {
        let thread = fs::read_link("/proc/thread-self").unwrap();
        let thread = thread.file_name().unwrap().to_str().unwrap().parse().unwrap();
        assert!(matches!(refusal(thread), Refusal::Ourselves { .. }));
    })
    .join()
    .unwrap();
}

#[test]
fn threads_of_processes() {
    let program = Program::start(compile("busy", &[]), &[]);
    let thread = fs::read_dir(format!("/proc/{}/task", program.pid())).unwrap().last().unwrap().unwrap();
    let thread: u32 = thread.file_name().to_str().unwrap().parse().unwrap();
    assert!(matches!(refusal(thread), Refusal::Thread { process, .. } if process == program.pid()));
    assert!(program.end().success());
}

#[test]
fn kernel_threads() {
    match fs::read_to_string("/proc/2/comm") {
        Ok(name) if name.trim() == "kthreadd" => assert!(matches!(refusal(2), Refusal::Kernel { .. })),
        other => println!("skipped: PID 2 is not a thread of the kernel: {other:?}"),
    }
}

#[test]
fn states_of_processes() {
    let states = compile("states", &[]);
    for kind in ["traced", "zombie", "vfork"] {
        let program = Program::start(&states, &[kind]);
        let pid = program.first.parse().unwrap();
        let refusal = refusal(pid);
        match kind {
            "traced" => assert!(
                matches!(&refusal, Refusal::Traced { tracer, name, .. } if *tracer == program.pid() && name.starts_with("states")),
                "{refusal:?}"
            ),
            "zombie" => assert!(matches!(refusal, Refusal::Zombie { .. })),
            _ => assert!(matches!(refusal, Refusal::Vfork { parent, .. } if parent == program.pid())),
        }
        program.end();
    }
}

#[test]
fn stopped_processes_stay_stopped() {
    let program = Program::start(compile("states", &[]), &[]);
    signal("-STOP", program.pid());
    while !fs::read_to_string(format!("/proc/{}/stat", program.pid())).unwrap().contains(") T ") {
        thread::yield_now();
    }
    assert!(matches!(refusal(program.pid()), Refusal::Stopped { .. }));
    signal("-CONT", program.pid());
    while fs::read_to_string(format!("/proc/{}/stat", program.pid())).unwrap().contains(") T ") {
        thread::yield_now();
    }
    assert_eq!(load(program.pid(), "length", "a").unwrap().result, 1);
    assert!(program.end().success());
}

#[test]
fn static_programs() {
    let program = Program::start(compile("states", &["-static"]), &[]);
    assert!(matches!(refusal(program.pid()), Refusal::Static { .. }));
    assert!(program.end().success());
}

/// Executed by another user in the tests below, as a process of its own.
#[test]
fn helper() {
    if let Ok(pid) = env::var("PTRACE_LOAD_PID") {
        println!("refusal: {:?}", check(pid.parse().unwrap()).map(drop));
    }
}

/// Executed by the test below, as a process of its own that is not allowed to call ptrace.
#[test]
fn helper_without_ptrace() {
    let Ok(pid) = env::var("PTRACE_LOAD_SECCOMP") else { return };
    let statement = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        statement(0x20, 0, 0, 0),
        statement(0x15, 0, 1, libc::SYS_ptrace as u32),
        statement(0x06, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the filter is valid during the call, and concerns only this thread.
    let status = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(status, 0);
    println!("refusal: {:?}", check(pid.parse().unwrap()).map(drop));
}

#[test]
fn a_seccomp_filter_of_our_own() {
    let program = Program::start(compile("states", &[]), &[]);
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "refusals::helper_without_ptrace", "--nocapture"])
        .env("PTRACE_LOAD_SECCOMP", program.pid().to_string())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("refusal: Err(Seccomp"), "{output:?}");
    assert!(program.end().success());
}

/// What `check` returns to the user nobody.
fn as_nobody(pid: u32) -> String {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = directory.path().join("suite");
    fs::copy(env::current_exe().unwrap(), &program).unwrap();
    let output = Command::new(&program)
        .args(["--exact", "refusals::helper", "--nocapture"])
        .env("PTRACE_LOAD_PID", pid.to_string())
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.split_once("refusal: "));
    line.unwrap_or_else(|| panic!("{output:?}")).1.to_owned()
}

#[test]
fn other_users() {
    if !is_root() {
        return;
    }
    let states = compile("states", &[]);
    let ours = Program::start(&states, &[]);
    let found = as_nobody(ours.pid());
    assert!(found.contains("OtherUser") && found.contains("uid: Some(0)"), "{found}");
    assert!(ours.end().success());

    let parent = states.parent().unwrap();
    fs::set_permissions(parent, fs::Permissions::from_mode(0o755)).unwrap();
    for (kind, expected) in [("plain", "Ok"), ("private", "NotDumpable")] {
        let theirs = Program::spawn(Command::new(&states).arg(kind).uid(NOBODY).gid(NOBODY).current_dir("/"));
        let found = as_nobody(theirs.pid());
        assert!(found.contains(expected), "{kind}: {found}");
        // Root may.
        assert_eq!(load(theirs.pid(), "length", "ab").unwrap().result, 2);
        assert!(theirs.end().success());
    }
}
