//! Conditions that must not stop a run, lose it or keep it from ending: terminals that are not read, signals, limits.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use crate::common::terminal::Terminal;
use crate::common::{
    PROGRAM, command, events, eventually, finished, limited, program, run_dirs, said, signal, tiny_model,
};
use llmprof::{
    event::{Event, Outcome},
    state::RunState,
};

/// Runs longer than any test.
const ENDLESS: [&str; 4] = ["runtime=sim", "runtime.warmup=0", "runtime.requests=100000", "infer=long"];
/// As fast as the machine simulates.
const UNPACED: &str = "runtime.sim.speed=0";

/// The only run below `dir`, once it has `count` events on disk.
fn run_with_events(dir: &Path, count: usize) -> PathBuf {
    eventually("events on disk", || run_dirs(dir).pop().filter(|run| events(run).len() >= count))
}

/// Waits until the run has recorded `count` more events.
fn advance(run: &Path, count: usize) {
    let so_far = events(run).len();
    eventually("more events", || (events(run).len() > so_far + count).then_some(()));
}

/// Waits for the end of `child`, and returns its code.
fn ended(child: &mut Child) -> Option<i32> {
    eventually("the end of the program", || child.try_wait().unwrap()).code()
}

/// The letter of a process's state: T is stopped.
fn state_of(pid: u32) -> char {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().trim().chars().next().unwrap()
}

fn headless(dir: &Path, args: &[&str]) -> Child {
    let mut run = program(dir);
    run.args(["run", "--quiet"]).args(args);
    run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_terminal_that_is_not_read_stops_neither_the_recording_nor_signals() {
    let terminal = Terminal::start(&ENDLESS);
    terminal.see("decode, mean");
    terminal.set_unread(true);
    let run = run_dirs(terminal.path()).pop().unwrap();
    // Every frame differs from the last one, so the terminal is soon full.
    for _ in 0..20 {
        terminal.send("\t");
        advance(&run, 10);
    }
    advance(&run, 500);
    // The screen catches up.
    terminal.set_unread(false);
    terminal.press("1", "decode, mean");
    terminal.press("8", "ready after");
    terminal.set_unread(true);
    for _ in 0..20 {
        terminal.send("\t");
        advance(&run, 10);
    }
    terminal.signal("TERM");
    assert_eq!(eventually("the end", || terminal.code()), 143);
    let end = finished(&run);
    assert_eq!((end.outcome, end.cause.as_deref()), (Outcome::Interrupted, Some("SIGTERM")));
    assert!(run.join("report.md").exists());
    terminal.set_unread(false);
    assert_eq!(terminal.exit_code(), 143);
    terminal.assert_restored();
}

#[test]
fn progress_that_is_not_read_stops_no_run() {
    let dir = tempfile::tempdir().unwrap();
    let args: Vec<&str> = ["run"].into_iter().chain(ENDLESS).collect();
    let terminal = Terminal::start_in(dir, &args, &[], (200, 24));
    let run = run_with_events(terminal.path(), 10);
    terminal.set_unread(true);
    // The progress of a thousand steps of 3.8 ms, 20 kB, does not fit into the terminal.
    advance(&run, 1000);
    advance(&run, 200);
    terminal.signal("TERM");
    assert_eq!(eventually("the end", || terminal.code()), 143);
    assert_eq!(finished(&run).outcome, Outcome::Interrupted);
}

#[test]
fn a_stopped_program_gives_the_terminal_back_and_takes_it_again() {
    let terminal = Terminal::start(&ENDLESS);
    terminal.see("decode, mean");
    let pid = terminal.pid();
    for how in ["key", "TSTP"] {
        match how {
            "key" => terminal.send("\x1a"),
            name => terminal.signal(name),
        }
        eventually("a stop", || (state_of(pid) == 'T').then_some(()));
        terminal.until("the shell's screen", |s| !s.alternate_screen() && !s.hide_cursor());
        terminal.signal("CONT");
        terminal.until("its screen", |s| s.alternate_screen() && s.contents().contains("decode, mean"));
    }
    // Another program stops it and uses the screen meanwhile.
    terminal.signal("STOP");
    eventually("a stop", || (state_of(pid) == 'T').then_some(()));
    terminal.write_as_other("\x1b[?1049l\x1b[2J\x1b[Hanother program");
    terminal.see("another program");
    terminal.signal("CONT");
    terminal.until("its screen", |s| s.alternate_screen() && s.contents().contains("decode, mean"));
    terminal.see_no("another program");
    terminal.press("8", "ready after");
    terminal.send("qq");
    assert_eq!(terminal.exit_code(), 0);
    terminal.assert_restored();
}

#[test]
fn time_in_which_the_process_was_stopped_is_no_latency() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path(), |_| {});
    let model = ["model.config_json=tiny.json", "runtime.device=cpu", "runtime.requests=100000"];
    let mut run = headless(dir.path(), &model);
    let recorded = run_with_events(dir.path(), 200);
    signal(run.id(), "STOP");
    eventually("a stop", || (state_of(run.id()) == 'T').then_some(()));
    let since = Instant::now();
    std::thread::sleep(Duration::from_secs(4));
    let stopped_for = since.elapsed();
    signal(run.id(), "CONT");
    let stopped = |events: &[llmprof::event::Envelope]| {
        events.iter().position(|e| matches!(e.event, Event::ProcessStopped(_)))
    };
    eventually("tokens after the stop", || {
        let events = events(&recorded);
        stopped(&events).filter(|at| events.len() > at + 200)
    });
    signal(run.id(), "INT");
    assert_eq!(ended(&mut run), Some(130));
    let events = events(&recorded);
    let at = stopped(&events).unwrap();
    let Event::ProcessStopped(stop) = &events[at].event else { panic!("a stop") };
    let time = events[at].t.since(stop.since);
    assert!(time >= stopped_for - Duration::from_millis(500), "{time:?} of {stopped_for:?}");
    let mut state = RunState::default();
    events.iter().for_each(|event| state.apply(event));
    for latency in [&state.total.itl, &state.total.ttft] {
        let longest = latency.max_ms().unwrap();
        assert!(longest < stopped_for.as_secs_f64() * 1e3, "{longest} ms");
    }
}

#[test]
fn a_run_under_nohup_survives_the_hang_up() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = command("nohup", dir.path());
    run.arg(PROGRAM).args(["run", "--quiet"]).args(ENDLESS);
    let mut run = run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let recorded = run_with_events(dir.path(), 10);
    signal(run.id(), "HUP");
    advance(&recorded, 500);
    assert!(run.try_wait().unwrap().is_none());
    signal(run.id(), "TERM");
    assert_eq!(ended(&mut run), Some(143));
    assert_eq!(finished(&recorded).cause.as_deref(), Some("SIGTERM"));
}

#[test]
fn a_limit_on_the_size_of_files_is_a_counted_loss() {
    let dir = tempfile::tempdir().unwrap();
    // In units of 512 bytes.
    let args = ["run", "--quiet", "runtime=sim", UNPACED, "runtime.requests=20", "infer=long"];
    let said = limited(dir.path(), "-f 200", &args);
    assert_eq!(said.code, 1, "{}", said.err);
    assert!(said.err.contains("lines of the recording were lost: File too large"), "{}", said.err);
    assert!(said.out.contains("TPOT"), "{}", said.out);
}

#[test]
fn a_simulation_without_pace_stays_small_and_ends_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let args: Vec<&str> = ENDLESS.into_iter().chain([UNPACED]).collect();
    let mut run = headless(dir.path(), &args);
    let recorded = run_with_events(dir.path(), 1000);
    eventually("6 MB of events", || {
        (fs::metadata(recorded.join("events.ndjson")).unwrap().len() > 6_000_000).then_some(())
    });
    let status = fs::read_to_string(format!("/proc/{}/status", run.id())).unwrap();
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let rss_kb: u64 = rss.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(rss_kb < 300_000, "{rss}");
    signal(run.id(), "INT");
    assert_eq!(ended(&mut run), Some(130));
    assert_eq!(finished(&run_dirs(dir.path())[0]).cause.as_deref(), Some("SIGINT"));
}

#[test]
fn a_run_that_is_killed_at_once_has_its_start_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let args: Vec<&str> = ENDLESS.into_iter().chain(["output.flush_ms=60000"]).collect();
    let mut run = headless(dir.path(), &args);
    // Tokens, not only the start of the run.
    let recorded = run_with_events(dir.path(), 20);
    run.kill().unwrap();
    run.wait().unwrap();
    assert!(matches!(events(&recorded)[0].event, Event::RunStarted(_)));
}

/// Checks the lines of stderr that a user should see.
fn assert_words(said: &crate::common::ProgramOutput, expected: &str) {
    assert_eq!(said.code, 1, "{}{}", said.out, said.err);
    assert!(said.err.contains(expected), "{}", said.err);
    for bug in ["panicked", "bug in the program"] {
        assert!(!said.err.contains(bug), "{}", said.err);
    }
}

#[test]
fn the_memory_check_respects_the_limit_on_address_space() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["run", "--quiet", "model=smollm2_135m", "runtime.device=cpu"];
    let said = limited(dir.path(), "-v 400000", &args);
    assert_words(&said, "smollm2_135m needs ");
    assert!(said.err.contains("try a higher limit on address space (ulimit -v)"), "{}", said.err);
}

#[test]
fn a_lack_of_descriptors_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["run", "--quiet", "runtime=sim", UNPACED, "runtime.requests=2"];
    for limit in (4..24).step_by(3) {
        let said = limited(dir.path(), &format!("-n {limit}"), &args);
        if said.code == 0 {
            assert!(limit > 6, "{limit}");
            return;
        }
        assert_words(&said, "open files");
    }
    panic!("24 descriptors are enough");
}

#[test]
fn an_allocation_that_fails_ends_the_run_in_order() {
    let dir = tempfile::tempdir().unwrap();
    for fault in ["allocation:engine", "allocation:consumer"] {
        let mut run = program(dir.path());
        run.args(["run", "--quiet", "runtime=sim", "runtime.requests=1000"]).env("LLMPROF_FAULT", fault);
        let said = said(run.output().unwrap());
        assert_words(&said, "out of memory: ");
        let recorded = run_dirs(dir.path()).into_iter().next().unwrap();
        assert!(matches!(events(&recorded)[0].event, Event::RunStarted(_)));
        if fault == "allocation:engine" {
            let end = finished(&recorded);
            assert!(end.cause.unwrap().starts_with("out of memory: "));
        }
        fs::remove_dir_all(dir.path().join("runs")).unwrap();
        let terminal = Terminal::start_in(
            tempfile::tempdir().unwrap(),
            &ENDLESS,
            &[("LLMPROF_FAULT", fault)],
            (120, 40),
        );
        assert_eq!(terminal.exit_code(), 1, "{}", terminal.text());
        terminal.see("out of memory: ");
        terminal.assert_restored();
    }
}

#[test]
fn a_terminal_of_65535_columns_is_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let terminal = Terminal::start_in(dir, &ENDLESS, &[], (120, 40));
    terminal.see("decode, mean");
    terminal.resize_program(65535, 65535);
    let run = run_dirs(terminal.path()).pop().unwrap();
    advance(&run, 500);
    terminal.resize(120, 40);
    terminal.press("8", "ready after");
    terminal.send("qq");
    assert_eq!(terminal.exit_code(), 0);
    terminal.assert_restored();
}
