//! Processes that are not Python, that end, that execute another program, that fork, that have another PID namespace.

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use host_stacks::{Refusal, Sampler};

use crate::common::{Program, alone, attach, fault, planted};

fn until_refused(sampler: &mut Sampler) -> Refusal {
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        match sampler.sample() {
            Ok(_) => sleep(Duration::from_millis(1)),
            Err(refusal) => return refusal,
        }
    }
    panic!("still sampled");
}

fn script(text: &str) -> (std::path::PathBuf, Program) {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("host-stacks-{}-{number}.py", std::process::id()));
    std::fs::write(&path, text).unwrap();
    let program = Program::start("python3", &path);
    (path, program)
}

#[test]
fn a_process_that_is_not_python_is_refused() {
    let child = Program(Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap());
    assert_eq!(Sampler::new(child.pid()).err(), Some(Refusal::NotPython { pid: child.pid() }));
    assert_eq!(Sampler::new(std::process::id()).err(), Some(Refusal::NotPython { pid: std::process::id() }));
}

#[test]
fn a_process_that_does_not_exist_is_gone() {
    assert_eq!(Sampler::new(u32::MAX).err(), Some(Refusal::Gone { pid: u32::MAX }));
    assert!(Sampler::new(2).is_err());
}

#[test]
fn a_process_that_ends_is_gone() {
    let (path, program) =
        script("import time\nend = time.time() + 1.5\nwhile time.time() < end:\n    sum(range(100))\n");
    let mut sampler = attach(program.pid(), &path).unwrap();
    assert_eq!(until_refused(&mut sampler), Refusal::Gone { pid: program.pid() });
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_process_that_executes_another_program_is_gone_and_can_be_sampled_again() {
    let text = "import os, sys, time\nend = time.time() + 1.5\nwhile time.time() < end:\n    pass\nos.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(60)'])\n";
    let (path, program) = script(text);
    let mut sampler = attach(program.pid(), &path).unwrap();
    assert_eq!(until_refused(&mut sampler), Refusal::Gone { pid: program.pid() });
    let again = attach(program.pid(), std::path::Path::new("<string>"))
        .and_then(|mut sampler| sampler.sample())
        .unwrap();
    assert_eq!(again.len(), 1);
    std::fs::remove_file(path).unwrap();
}

/// Threads start, recurse and end while they are read.
#[test]
fn a_process_that_changes_all_the_time_is_read_without_a_panic() {
    let text = "import threading\n\ndef deep(n):\n    return eval('deep(n - 1)', {'deep': deep, 'n': n}) if n else 1\n\nwhile True:\n    threads = [threading.Thread(target=deep, args=(40,)) for _ in range(8)]\n    [thread.start() for thread in threads]\n    [thread.join() for thread in threads]\n";
    let _alone = alone();
    let (path, program) = script(text);
    let mut sampler = attach(program.pid(), &path).unwrap();
    let start = Instant::now();
    let (mut samples, mut strange, mut rounds, mut with_main) = (0, 0, 0, 0);
    while start.elapsed() < Duration::from_secs(3) {
        let threads = sampler.sample().unwrap();
        rounds += 1;
        with_main += usize::from(threads.iter().any(|thread| thread.thread == program.pid()));
        for thread in threads {
            samples += 1;
            let known =
                |frame: &host_stacks::Frame| frame.file.ends_with(".py") || frame.file.starts_with('<');
            strange += usize::from(!thread.frames.iter().all(known));
            assert!(thread.frames.len() <= 64);
        }
    }
    println!(
        "{samples} samples, {strange} with a frame that cannot be one; {with_main} of {rounds} with main"
    );
    assert!(with_main * 100 >= rounds * 95);
    assert!(strange * 100 <= samples);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn names_in_any_script_and_deep_stacks_are_read() {
    let path = fault("names");
    let program = Program::start("python3", &path);
    let mut sampler = attach(program.pid(), &path).unwrap();
    sleep(Duration::from_millis(300));
    let threads = sampler.sample().unwrap();
    let worker = threads.iter().find(|thread| thread.thread != program.pid()).unwrap();
    assert_eq!(worker.frames.len(), 64);
    assert_eq!((&*worker.frames[0].function, worker.frames[0].line), ("étape_日本", planted(&path)));
}

#[test]
fn a_forked_child_has_threads_of_its_own() {
    let path = fault("fork");
    let program = Program::start("python3", &path);
    attach(program.pid(), &path).unwrap();
    let children = format!("/proc/{0}/task/{0}/children", program.pid());
    let deadline = Instant::now() + Duration::from_secs(20);
    let child: u32 = loop {
        let text = std::fs::read_to_string(&children).unwrap();
        match text.split_whitespace().next() {
            Some(child) => break child.parse().unwrap(),
            None if Instant::now() > deadline => panic!("no child"),
            None => sleep(Duration::from_millis(10)),
        }
    };
    let mut sampler = attach(child, &path).unwrap();
    sleep(Duration::from_millis(200));
    let threads = sampler.sample().unwrap();
    assert_eq!((threads.len(), threads[0].thread, &*threads[0].name), (1, child, "main"));
    assert_eq!(threads[0].frames[0].line, planted(&path));
}

/// Needs the right to create namespaces, which it says when it has not.
#[test]
fn a_process_in_another_pid_namespace_has_our_thread_identifiers() {
    let path = fault("lock");
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "python3"]).arg(&path).stdout(Stdio::null());
    let program = Program(command.spawn().unwrap());
    let children = format!("/proc/{0}/task/{0}/children", program.pid());
    let deadline = Instant::now() + Duration::from_secs(10);
    let child = loop {
        let child = std::fs::read_to_string(&children).unwrap_or_default();
        if let Some(child) = child.split_whitespace().next() {
            break child.parse().unwrap();
        }
        if Instant::now() > deadline {
            println!("not run: no right to create a PID namespace");
            return;
        }
        sleep(Duration::from_millis(10));
    };
    let mut sampler = attach(child, &path).unwrap();
    sleep(Duration::from_millis(300));
    let threads = sampler.sample().unwrap();
    assert_eq!(threads.len(), 2);
    assert!(threads.iter().any(|thread| thread.thread == child && &*thread.name == "main"), "{threads:?}");
}

/// Programs with the symbols of an interpreter whose memory is made to be read for ever.
#[test]
fn a_process_that_pretends_to_be_python_is_read_in_bounded_time() {
    let binary = std::env::temp_dir().join(format!("host-stacks-hostile-{}", std::process::id()));
    let mut compiler = Command::new("cc");
    compiler.args(["-rdynamic", "-O1", "-o"]).arg(&binary).arg(fault("hostile").with_extension("c"));
    assert!(compiler.status().unwrap().success());
    for mode in ["self", "threads", "frames", "code", "random"] {
        let child = Command::new(&binary).arg(mode).stdout(Stdio::null()).spawn().unwrap();
        let program = Program(child);
        sleep(Duration::from_millis(300));
        let start = Instant::now();
        let outcome = Sampler::new(program.pid()).and_then(|mut sampler| sampler.sample());
        let text = match &outcome {
            Ok(threads) => format!("{} threads", threads.len()),
            Err(refusal) => refusal.to_string(),
        };
        println!("{mode}: {text} after {:?}", start.elapsed());
        // It would take for ever.
        assert!(start.elapsed() < Duration::from_secs(60), "{mode}");
    }
    std::fs::remove_file(binary).unwrap();
}

/// The reader runs as a user that may not trace the process. Needs root to become that user.
#[test]
fn a_process_of_another_user_is_refused_with_the_reason() {
    let path = fault("sleep");
    let program = Program::start("python3", &path);
    attach(program.pid(), &path).unwrap();
    let reader = std::env::temp_dir().join(format!("host-stacks-reader-{}", std::process::id()));
    let built = std::env::current_exe().unwrap();
    let example = built.parent().and_then(|deps| deps.parent()).unwrap().join("examples/stacks");
    if std::fs::copy(&example, &reader).is_err() || !rustix::process::geteuid().is_root() {
        println!("not run: needs root and the example `stacks`");
        return;
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(&reader)
        .arg(program.pid().to_string());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    println!("{text}");
    assert!(text.contains("No permission") && text.contains("belongs to user 0"), "{text}");
    std::fs::remove_file(reader).unwrap();
}
