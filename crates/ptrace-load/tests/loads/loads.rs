//! The program continues as if nothing had happened.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use ptrace_load::{Options, Refusal, check};

use crate::programs::{Program, compile, library, load, options, report};

fn repeat(name: &str, program: &mut Program, count: usize) {
    let mut loads = Vec::new();
    for index in 0..count {
        assert!(program.is_running(), "{name} ended before load {index}");
        loads.push(load(program.pid(), "length", "four").unwrap());
    }
    assert!(loads.iter().all(|loaded| loaded.result == 4));
    assert!(loads.iter().skip(1).all(|loaded| loaded.again) && !loads[0].again);
    report(name, &loads);
}

#[test]
fn threads_that_allocate_memory() {
    let mut program = Program::start(compile("busy", &[]), &[]);
    let iterations = |program: &mut Program| -> Vec<u64> {
        program.send("x");
        program.line().split(' ').map(|count| count.parse().unwrap()).collect()
    };
    let before = iterations(&mut program);
    repeat("4 threads that allocate memory", &mut program, 50);
    let after = iterations(&mut program);
    thread::sleep(Duration::from_millis(300));
    let later = iterations(&mut program);
    for index in 0..4 {
        assert!(
            before[index] < after[index] && after[index] < later[index],
            "{before:?} {after:?} {later:?}"
        );
    }
    assert!(program.end().success());
}

#[test]
fn one_thread_that_allocates_memory() {
    let mut program = Program::start(compile("alone", &[]), &[]);
    repeat("1 thread that allocates memory", &mut program, 50);
    assert!(program.end().success());
}

#[test]
fn vector_registers() {
    let mut program = Program::start(compile("vectors", &[]), &[]);
    repeat("vector registers", &mut program, 50);
    assert!(program.end().success());
}

#[test]
fn signals_are_neither_lost_nor_doubled() {
    let mut program = Program::start(compile("signals", &[]), &["4000"]);
    let mut loads = Vec::new();
    for _ in 0..30 {
        match load(program.pid(), "length", "") {
            Ok(loaded) => loads.push(loaded),
            // On a busy machine the program has received all of its signals earlier.
            Err(Refusal::Zombie { .. } | Refusal::NoProcess { .. } | Refusal::Died { .. }) => break,
            Err(refusal) => panic!("{refusal}"),
        }
    }
    assert!(!loads.is_empty());
    report("signals", &loads);
    let line = program.line();
    println!("received, wrong, ticks: {line}");
    assert!(line.starts_with("4000 0 "), "{line}");
    assert!(program.end().success());
}

#[test]
fn system_calls_wait_for_their_whole_time() {
    const ETIMEDOUT: &str = "110";
    const EAGAIN: &str = "11";
    let waits = compile("waits", &[]);
    let kinds = [
        ("nanosleep", "0", "0"),
        ("clock_nanosleep", "0", "0"),
        ("poll", "0", "0"),
        ("ppoll", "0", "0"),
        ("select", "0", "0"),
        ("pselect", "0", "0"),
        ("futex", "-1", ETIMEDOUT),
        ("condition", ETIMEDOUT, "0"),
        ("semaphore", "-1", ETIMEDOUT),
        ("epoll_wait", "0", "0"),
        ("epoll_pwait", "0", "0"),
        ("sigtimedwait", "-1", EAGAIN),
        ("wait4", "9", "0"),
        ("read", "1", "0"),
    ];
    let mut programs: Vec<_> =
        kinds.iter().map(|(kind, ..)| (Program::start(&waits, &[kind, "5000"]), Vec::new())).collect();
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(200));
        for (program, loads) in &mut programs {
            // A machine with a high load may need longer than the wait: the program has ended regularly then.
            match load(program.pid(), "length", "abc") {
                Ok(loaded) => loads.push(loaded),
                Err(Refusal::Zombie { .. } | Refusal::NoProcess { .. } | Refusal::Died { .. }) => {}
                Err(refusal) => panic!("{refusal}"),
            }
        }
    }
    for ((mut program, loads), (kind, result, error)) in programs.into_iter().zip(kinds) {
        if kind == "read" {
            program.send("x");
        }
        let line = program.line();
        println!("{kind}: {line} ms after {} loads", loads.len());
        let fields: Vec<_> = line.split(' ').collect();
        assert_eq!(fields[..2], [result, error], "{kind}: {line}");
        if kind != "read" {
            assert!(fields[2].parse::<f64>().unwrap() >= 4990.0, "{kind} returned early: {line}");
        }
        assert!(!loads.is_empty() && loads.iter().all(|loaded| loaded.result == 3), "{kind}");
    }
}

#[test]
fn python_sleeps() {
    let mut program = Program::python(
        "import sys, time
print('ready', flush=True)
begin = time.monotonic()
time.sleep(2)
print(time.monotonic() - begin, flush=True)
sys.stdin.read()",
    );
    repeat("CPython in time.sleep", &mut program, 10);
    let slept: f64 = program.line().parse().unwrap();
    println!("slept {slept} s");
    assert!(slept >= 2.0);
    assert!(program.end().success());
}

#[test]
fn python_computes() {
    let mut program = Program::python(
        "import json, select, sys, zlib
def work(): return zlib.crc32(json.dumps([{'a': [i, str(i), i / 7]} for i in range(500)]).encode())
expected = work()
print('ready', flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    assert work() == expected",
    );
    repeat("CPython that computes", &mut program, 30);
    assert!(program.end().success());
}

/// CUDA's libraries load it. Since glibc 2.34 it has no functions, and the allocator is in another library.
#[test]
fn python_with_libpthread() {
    let script = "import select, sys
print('ready', flush=True)
while not select.select([sys.stdin], [], [], 0)[0]: sum(i * i for i in range(1000))";
    let mut python = Command::new("python3");
    python.args(["-c", script]).env("LD_PRELOAD", "libpthread.so.0");
    let mut program = Program::spawn(&mut python);
    repeat("CPython with libpthread", &mut program, 3);
    assert!(program.end().success());
}

#[test]
fn python_has_threads() {
    let mut program = Program::python(
        "import queue, sys, threading, time
stop, counts = threading.Event(), [0] * 4
def compute(index):
    while not stop.is_set():
        assert sum(i * i for i in range(2000)) == 2664667000
        counts[index] += 1
def tick():
    while not stop.wait(0.001): pass
q = queue.Queue()
threads = [threading.Thread(target=compute, args=(i,)) for i in range(4)] + [threading.Thread(target=tick)]
threads += [threading.Thread(target=q.get)]
for thread in threads: thread.start()
print('ready', flush=True)
sys.stdin.read()
stop.set(); q.put(1)
for thread in threads: thread.join()
assert all(counts)",
    );
    repeat("CPython with threads", &mut program, 30);
    assert!(program.end().success());
}

#[test]
fn python_with_asyncio() {
    let mut program = Program::python(
        "import asyncio, sys
async def main():
    ticks = 0
    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1
    task = asyncio.create_task(tick())
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print('ready', flush=True)
    await reader.read()
    assert ticks > 0
asyncio.run(main())",
    );
    repeat("CPython with asyncio (epoll_wait)", &mut program, 30);
    assert!(program.end().success());
}

#[test]
fn the_same_library_is_loaded_once() {
    let mut program = Program::start(compile("states", &[]), &[]);
    let pid = program.pid();
    let descriptors = || fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let before = descriptors();
    for expected in 1..4 {
        let loaded = load(pid, "count", "").unwrap();
        assert_eq!((loaded.result, loaded.again), (expected, expected > 1));
    }
    // Other bytes are another library, although its descriptor has the same number.
    let other = [library(), b"\0"].concat();
    for expected in 1..3 {
        let loaded = ptrace_load::load(pid, &other, c"count", b"", &options()).unwrap();
        assert_eq!((loaded.result, loaded.again), (expected, expected > 1));
    }
    assert_eq!(load(pid, "count", "").unwrap().result, 4);
    assert_eq!(descriptors(), before);
    // The threads end a little after their results are known.
    while check(pid).unwrap().threads > 1 {
        thread::yield_now();
    }
    assert!(program.is_running());
    assert!(program.end().success());
}

#[test]
fn arguments_and_results_are_passed() {
    let program = Program::start(compile("states", &[]), &[]);
    let long = "x".repeat(100_000);
    assert_eq!(load(program.pid(), "length", &long).unwrap().result, 100_000);
    assert_eq!(load(program.pid(), "negative", "").unwrap().result, -5);
    assert_eq!(load(program.pid(), "surroundings", "").unwrap().result, 15);
    assert!(program.end().success());
}

#[test]
fn errors_of_libraries_are_reported() {
    let mut program = Program::start(compile("states", &[]), &[]);
    let pid = program.pid();
    let refusal = ptrace_load::load(pid, b"no library", c"count", b"", &options()).unwrap_err();
    assert!(matches!(&refusal, Refusal::Library { .. }), "{refusal:?}");
    println!("{refusal}");
    for _ in 0..2 {
        let refusal = load(pid, "missing", "").unwrap_err();
        assert!(matches!(&refusal, Refusal::Symbol { name, .. } if name == "missing"), "{refusal:?}");
        println!("{refusal}");
    }
    let options = Options { call: Duration::from_millis(50), ..options() };
    let refusal = ptrace_load::load(pid, library(), c"waits", b"1500", &options).unwrap_err();
    assert!(matches!(&refusal, Refusal::NoAnswer { thread, .. } if *thread != pid), "{refusal:?}");
    println!("{refusal}");
    assert_eq!(load(pid, "length", "ab").unwrap().result, 2);
    assert!(program.is_running());
    let refusal = load(pid, "ends", "7").unwrap_err();
    assert!(matches!(&refusal, Refusal::Died { .. }), "{refusal:?}");
    assert_eq!(program.end().code(), Some(7));
}

#[test]
fn programs_with_their_own_allocator() {
    let found = Command::new("sh")
        .args(["-c", "ls /usr/lib/*/libjemalloc.so.2 /usr/lib/*/libtcmalloc*.so.4"])
        .output();
    let found = String::from_utf8(found.unwrap().stdout).unwrap();
    if found.is_empty() {
        println!("skipped: neither libjemalloc nor libtcmalloc is installed");
    }
    for library in found.lines() {
        let mut program = Program::spawn(Command::new(compile("alone", &[])).env("LD_PRELOAD", library));
        repeat(library, &mut program, 20);
        assert!(program.end().success());
    }
}

#[test]
fn a_check_does_not_stop_the_process() {
    let program = Program::start(compile("states", &[]), &[]);
    let target = check(program.pid()).unwrap();
    assert_eq!((target.pid, target.threads), (program.pid(), 1));
    assert!(target.libc.contains("libc"), "{target:?}");
    assert!(program.end().success());
}

/// Executed by the test below, as a process of its own that is killed.
#[test]
fn helper() {
    if let Ok(pid) = env::var("PTRACE_LOAD_INTO") {
        let library = fs::read(env::var("PTRACE_LOAD_LIBRARY").unwrap()).unwrap();
        for _ in 0..100 {
            let _ = ptrace_load::load(pid.parse().unwrap(), &library, c"length", b"", &options());
        }
    }
}

/// The kernel detaches the borrowed thread, and it restores itself.
#[test]
fn programs_continue_if_the_loading_process_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("library.so");
    fs::write(&file, library()).unwrap();
    let mut program = Program::start(compile("vectors", &[]), &[]);
    let status = format!("/proc/{}/status", program.pid());
    let mut traced = 0;
    for round in 0..30 {
        let mut helper = Command::new(env::current_exe().unwrap())
            .args(["--exact", "loads::helper"])
            .env("PTRACE_LOAD_INTO", program.pid().to_string())
            .env("PTRACE_LOAD_LIBRARY", &file)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let is_traced = || !fs::read_to_string(&status).unwrap().contains("TracerPid:\t0\n");
        while !is_traced() && helper.try_wait().unwrap().is_none() {}
        let moment = Instant::now() + Duration::from_micros(round * 97 % 1500);
        while Instant::now() < moment {}
        traced += usize::from(is_traced());
        helper.kill().unwrap();
        helper.wait().unwrap();
        assert!(program.is_running(), "round {round}");
    }
    println!("{traced} of 30 loading processes were killed while they traced");
    assert_eq!(load(program.pid(), "length", "ab").unwrap().result, 2);
    assert!(program.end().success());
}
