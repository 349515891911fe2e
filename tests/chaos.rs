//! Runs under random kills, signals, sizes, stalls and full disks: the recording can be replayed, little of it is lost,
//! the terminal is restored, no process remains.
//!
//! `LLMPROF_CHAOS_SEED` repeats a printed seed, `LLMPROF_CHAOS_SECONDS` sets the duration.

use std::{
    env, fs,
    os::unix::process::{CommandExt, ExitStatusExt},
    panic::{self, AssertUnwindSafe},
    path::Path,
    process::{ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::common::terminal::Terminal;
use crate::common::{PROGRAM, command, eventually, run_dirs, signal};
use llmprof::{
    base::noise,
    event::{Envelope, Event},
    rundir::{EventReader, Next},
    state::RunState,
};

const ENDLESS: [&str; 4] = ["runtime=sim", "runtime.warmup=0", "runtime.requests=100000", "infer=long"];
/// Concurrent runs.
const LANES: u64 = 3;
const DEFAULT_SECONDS: u64 = 15;
/// The maximum loss of a run that is killed.
const MAX_LOSS: Duration = Duration::from_secs(1);

/// Random choices that follow from a seed.
struct Dice {
    seed: u64,
    drawn: u64,
}

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.drawn += 1;
        noise::bits(self.seed, self.drawn) % n
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// Maximum scheduling delay of this machine's threads, so that its load does not count as a loss.
struct Lateness {
    worst_ms: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Lateness {
    fn measure() -> Lateness {
        let (worst_ms, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (worst, stopped) = (Arc::clone(&worst_ms), Arc::clone(&stop));
        thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let (before, nap) = (Instant::now(), Duration::from_millis(10));
                thread::sleep(nap);
                let late = before.elapsed().saturating_sub(nap).as_millis() as u64;
                worst.fetch_max(late, Ordering::Relaxed);
            }
        });
        Lateness { worst_ms, stop }
    }

    /// Several threads must be scheduled in turn before an event is on disk.
    fn allowance(&self) -> Duration {
        Duration::from_millis(500 + 20 * self.worst_ms.load(Ordering::Relaxed))
    }
}

impl Drop for Lateness {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The events of the only run below `dir`, and the lines that could not be read.
fn recording(dir: &Path) -> (Vec<Envelope>, u64) {
    let run = run_dirs(dir).pop().expect("a run directory");
    let mut reader = EventReader::open(&run.join("events.ndjson")).unwrap();
    let mut events = Vec::new();
    while let Next::Event(envelope) = reader.read_next().unwrap() {
        events.push(envelope);
    }
    (events, reader.skipped())
}

fn has_started(dir: &Path) -> bool {
    run_dirs(dir).pop().is_some_and(|run| EventReader::open(&run.join("events.ndjson")).is_ok())
}

/// The whole recording can be folded, and its events are in order.
///
/// Events of two threads may be out of order by as much as a thread is interrupted between its clock and its event.
fn assert_replays(dir: &Path, may_lose_lines: bool, late: &Lateness) -> Vec<Envelope> {
    let disorder_ns = late.allowance().as_nanos() as u64;
    let (events, skipped) = recording(dir);
    assert!(matches!(events[0].event, Event::RunStarted(_)));
    assert!(skipped == 0 || may_lose_lines, "{skipped} lines cannot be read");
    let mut state = RunState::default();
    for pair in events.windows(2) {
        assert!(
            pair[0].t.0 <= pair[1].t.0 + disorder_ns || may_lose_lines,
            "{:?} is after {:?}",
            pair[0],
            pair[1]
        );
    }
    events.iter().for_each(|envelope| state.apply(envelope));
    events
}

fn assert_ended(dir: &Path) {
    let (events, _) = recording(dir);
    let last = &events.last().unwrap().event;
    assert!(matches!(last, Event::RunFinished(_)), "the run ends with {last:?}");
}

/// Wall time of `unix` after the start of the run.
fn since_start(events: &[Envelope], unix: Duration) -> Duration {
    let Event::RunStarted(start) = &events[0].event else { panic!("no start") };
    unix.saturating_sub(Duration::from_millis(start.started_unix_ms))
}

fn unix_now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// At most [`MAX_LOSS`] before the moment of a kill is missing.
fn assert_little_lost(dir: &Path, killed: Duration, stopped: Duration, late: &Lateness) {
    let events = assert_replays(dir, false, late);
    let recorded = Duration::from_nanos(events.last().unwrap().t.0);
    let lost = since_start(&events, killed).saturating_sub(recorded);
    let limit = MAX_LOSS + stopped + late.allowance();
    println!("  lost {} ms, at most {} ms", lost.as_millis(), limit.as_millis());
    assert!(lost <= limit, "{lost:?} of {recorded:?} are lost, at most {limit:?} may be");
}

/// No process with `dir` as its working directory is still running.
fn assert_nothing_left(dir: &Path) {
    let works_here = |pid: &str| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == dir);
    eventually("the end of every process", || {
        let pids = fs::read_dir("/proc").unwrap().flatten().map(|e| e.file_name().into_string().unwrap());
        let mut pids = pids.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        (!pids.any(|pid| works_here(&pid))).then_some(())
    });
}

/// Stops a process for a while. Returns the maximum length of the stop: simulated time stands still meanwhile.
fn stop_for(pid: u32, pause: Duration) -> Duration {
    let since = Instant::now();
    signal(pid, "STOP");
    thread::sleep(pause);
    signal(pid, "CONT");
    since.elapsed()
}

/// A run with a screen, and everything that can happen to one.
fn screen(dice: &mut Dice, late: &Lateness) {
    let dir = tempfile::tempdir().unwrap();
    let terminal = Terminal::start_in(dir, &ENDLESS, &[], (80 + dice.below(80) as u16, 24));
    eventually("the start of the recording", || has_started(terminal.path()).then_some(()));
    let mut stopped = Duration::ZERO;
    for _ in 0..dice.below(12) {
        match dice.below(7) {
            0 => terminal.resize(1 + dice.below(200) as u16, 1 + dice.below(70) as u16),
            1 => terminal.signal("WINCH"),
            2 => terminal
                .send(dice.one_of(&["1", "2", "3", "4", "5", "6", "7", "8", "\t", "?", "\x1b", " ", "v"])),
            3 => stopped += stop_for(terminal.pid(), dice.millis(50, 600)),
            4 => {
                terminal.set_unread(true);
                thread::sleep(dice.millis(50, 800));
                terminal.set_unread(false);
            }
            5 => terminal.send("s\r"),
            _ => thread::sleep(dice.millis(10, 300)),
        }
    }
    terminal.resize(120, 40);
    let unread = dice.below(4) == 0;
    terminal.set_unread(unread);
    let end = dice.one_of(&["KILL", "KILL", "TERM", "INT", "HUP", "key"]);
    println!("  screen: {end}{}", if unread { ", unread" } else { "" });
    // Read before the signal: events after it are no loss.
    let ended = unix_now();
    match end {
        // With Escape just before it, it is a different key for the program.
        "key" => {
            let key = dice.one_of(&["\x03", "\x1b\x03", "\x1b\x1b\x03"]);
            println!("  key {key:?}");
            terminal.send(key);
        }
        name => terminal.signal(name),
    }
    if unread {
        eventually("the end of the program", || terminal.code());
        terminal.set_unread(false);
    }
    let code = terminal.exit_code();
    match end {
        "KILL" => {
            assert_eq!(code, 137);
            assert_little_lost(terminal.path(), ended, stopped, late);
        }
        name => {
            let expected: &[i32] = match name {
                "TERM" => &[143],
                "HUP" => &[129],
                _ => &[130],
            };
            assert!(expected.contains(&code), "{name}: {code}\n{}", terminal.text());
            assert_replays(terminal.path(), false, late);
            assert_ended(terminal.path());
            terminal.assert_restored();
        }
    }
    assert_nothing_left(terminal.path());
}

/// A run without a screen, on a disk that may be full.
fn headless(dice: &mut Dice, late: &Lateness) {
    let dir = tempfile::tempdir().unwrap();
    let full_disk = dice.below(3) == 0;
    // In units of 512 bytes or of a kilobyte, depending on the shell.
    let limit = if full_disk { (20 + dice.below(400)).to_string() } else { "unlimited".to_owned() };
    let mut shell = command("sh", dir.path());
    shell.args(["-c", &format!("ulimit -f {limit}; exec \"$@\""), "sh", PROGRAM, "run", "--quiet"]);
    shell.args(ENDLESS).process_group(0);
    let mut child = shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("the start of the recording", || has_started(dir.path()).then_some(()));
    let mut stopped = Duration::ZERO;
    for _ in 0..dice.below(6) {
        match dice.below(3) {
            0 => stopped += stop_for(child.id(), dice.millis(50, 600)),
            1 => signal(child.id(), dice.one_of(&["WINCH", "CONT", "PIPE"])),
            _ => thread::sleep(dice.millis(10, 500)),
        }
    }
    let end = dice.one_of(&["KILL", "KILL", "TERM", "INT"]);
    println!("  headless, files up to {limit}: {end}");
    let ended = unix_now();
    signal(child.id(), end);
    let status: ExitStatus = eventually("the end of the program", || child.try_wait().unwrap());
    match end {
        "KILL" => {
            assert_eq!(status.signal(), Some(9));
            match full_disk {
                true => drop(assert_replays(dir.path(), true, late)),
                false => assert_little_lost(dir.path(), ended, stopped, late),
            }
        }
        name => {
            let code = if name == "TERM" { 143 } else { 130 };
            assert!(status.code() == Some(code) || full_disk && status.code() == Some(1), "{name}: {status}");
            assert_replays(dir.path(), full_disk, late);
            if !full_disk {
                assert_ended(dir.path());
            }
        }
    }
    assert_nothing_left(dir.path());
}

#[test]
fn runs_survive_random_faults() {
    let number = |name: &str| env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seconds = number("LLMPROF_CHAOS_SECONDS").unwrap_or(DEFAULT_SECONDS);
    let given = number("LLMPROF_CHAOS_SEED");
    let first = given.unwrap_or_else(|| unix_now().as_nanos() as u64 % 1_000_000_000);
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let late = Lateness::measure();
    let lanes = thread::scope(|scope| {
        let work = |lane: u64| {
            let late = &late;
            move || {
                let mut rounds = 0;
                // A round has its own seed, so that one of thousands can be repeated.
                while Instant::now() < deadline {
                    let seed = first.wrapping_add(lane + LANES * rounds);
                    println!("LLMPROF_CHAOS_SEED={seed}");
                    let mut dice = Dice { seed, drawn: 0 };
                    let round = panic::catch_unwind(AssertUnwindSafe(|| match dice.below(3) {
                        0 => headless(&mut dice, late),
                        _ => screen(&mut dice, late),
                    }));
                    if let Err(why) = round {
                        eprintln!("failed: LLMPROF_CHAOS_SEED={seed}");
                        panic::resume_unwind(why);
                    }
                    rounds += 1;
                    if given.is_some() && seconds == DEFAULT_SECONDS {
                        break;
                    }
                }
                rounds
            }
        };
        let lanes = if given.is_some() { 1 } else { LANES };
        let lanes: Vec<_> = (0..lanes).map(|lane| scope.spawn(work(lane))).collect();
        lanes.into_iter().map(|lane| lane.join().expect("see the seed that failed")).sum::<u64>()
    });
    println!("{lanes} runs in {seconds} s from seed {first}");
}
