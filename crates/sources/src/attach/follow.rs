//! The thread that follows other programs: reads the records of their libraries and sends them as events of the run.

use std::{
    ffi::OsString,
    fs::File,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering},
        mpsc::Sender,
    },
    thread,
    time::{Duration, Instant},
};

use llmprof_inject::wire::{self, Command, Mode, Obstacle};
use rustix::process::Signal;

use super::{
    guest::Guest,
    library::library_file,
    process_info::{ProcessInfo, command_text},
    program::{OutputTo, Pipes, Program, ProgramEnd},
    ranks::{self, RankRecord},
    requests::Requests,
    socket::Socket,
    transcript::{Message, RunClock},
};
use llmprof_analysis::steps::{Finding, Fold, Range};
use llmprof_base::{foreign, gz, secret::Secret};
use llmprof_event::{
    Event, EventTx, KernelTrace, Level, Outcome, Preparing, ProcessJoined, ProcessLeft, Ready, RunFinished,
    Stamp, TraceState,
    kernels::{
        records::{Entry, Writer},
        work::{Direction, KernelLaunch, Work, WorkKind},
    },
};

/// One endless burst.
const EVERY_KERNEL: Command = Command::Record { burst_ms: 1, period_ms: 1 };
/// The interval at which rings are read.
const READ_INTERVAL: Duration = Duration::from_millis(20);
/// After the end of the program, an endless stream of records is read for no longer than this.
const NEVER_QUIET: Duration = Duration::from_secs(5);
const WINDOW: Duration = Duration::from_secs(1);
const TIMELINE_INTERVAL: Duration = Duration::from_secs(5);
/// The time for which `K` records all kernels.
const EVERYTHING: Duration = Duration::from_secs(10);
const BURST_MS: u32 = 200;
/// The interval between bursts of a server, which records nothing in between, because requests give its latencies.
const SERVER_PERIOD_MS: u128 = 5000;
/// The share of time in bursts until steps are found.
const LEARNING_DUTY: f64 = 0.5;
/// An hour: longer than any kernel, copy or wait, and short enough for the sum of millions of them.
const LONGEST_WORK_NS: u64 = 3_600_000_000_000;
/// Maximum number of processes that are followed at a time, and in all.
const MAX_GUESTS: usize = 64;
const MAX_JOINED: u32 = 4096;
/// Maximum switches of the mode within a window, and maximum obstacles of a process.
const MAX_SWITCHES: u32 = 200;
const MAX_OBSTACLES: usize = 8;

/// The program to follow.
#[derive(Debug, Clone)]
pub enum Target {
    /// A command to start.
    Start { command: Vec<OsString>, output: OutputTo },
    /// Running processes in which the library is dormant.
    Join { processes: Vec<ProcessInfo> },
}

impl Target {
    /// The name of the script or the program, without its directory.
    pub fn name(&self) -> String {
        let words = match self {
            Target::Start { command, .. } => command.as_slice(),
            Target::Join { processes } => processes.first().map_or(&[][..], |process| &process.arguments),
        };
        let file =
            |word: &OsString| Path::new(word).file_name().map(|name| name.to_string_lossy().into_owned());
        let is_interpreter =
            |name: &String| name.starts_with("python") || ["sh", "bash", "env"].contains(&name.as_str());
        // Variables that `env` sets are not the name.
        let is_word = |word: &&OsString| {
            let word = word.to_string_lossy();
            !word.starts_with('-') && !word.split('/').next().is_some_and(|start| start.contains('='))
        };
        let mut names = words.iter().filter(is_word).filter_map(file);
        let first = names.next().unwrap_or_default();
        let script = names.next().filter(|_| is_interpreter(&first));
        foreign::line(&script.unwrap_or(first), 60)
    }

    /// The name without characters that a path or a configuration could misinterpret.
    pub fn file_name(&self) -> String {
        let safe = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' };
        let name: String = self.name().chars().map(safe).collect();
        let name = name.trim_matches('.').to_owned();
        if name.is_empty() { "program".to_owned() } else { name }
    }

    /// The command as text.
    pub fn text(&self) -> String {
        match self {
            Target::Start { command, .. } => command_text(command),
            Target::Join { processes } => processes.first().map(ProcessInfo::command).unwrap_or_default(),
        }
    }
}

/// Requests of the session to the thread, and the exit code of the program.
#[derive(Debug, Default)]
pub struct ProgramControl {
    /// Record every kernel for some seconds.
    pub everything: AtomicBool,
    /// End the program.
    pub end: AtomicBool,
    /// Signals for the program, one bit each.
    signals: AtomicU32,
    /// The program's exit code plus one, once it has ended.
    exit_code: AtomicU16,
    /// Whether kernels of the program were recorded.
    recorded: AtomicBool,
}

impl ProgramControl {
    /// Whether live kernels of the program were recorded.
    pub fn has_recorded(&self) -> bool {
        self.recorded.load(Ordering::Acquire)
    }

    /// Forwards a signal to the program, once.
    pub fn pass_on(&self, signal: Signal) {
        self.signals.fetch_or(1 << signal.as_raw(), Ordering::AcqRel);
    }

    fn take_signals(&self) -> impl Iterator<Item = Signal> {
        let signals = self.signals.swap(0, Ordering::AcqRel);
        (1..32).filter(move |number| signals & (1 << number) != 0).filter_map(Signal::from_named_raw)
    }

    /// The exit code of the started program, once it has ended.
    pub fn exit_code(&self) -> Option<u8> {
        self.exit_code.load(Ordering::Acquire).checked_sub(1).map(|code| code as u8)
    }
}

/// The role of a followed program in the run.
#[derive(Debug)]
pub enum Role {
    /// It is the workload: its steps are the tokens, and the run ends with it.
    Observed,
    /// A load-tested server: the client measures its requests, and the run ends with the load.
    Server,
    /// It reports its requests itself, through pipes that are sent here. Another thread ends the run.
    Worker { pipes: Sender<Pipes> },
}

pub struct Follower {
    pub tx: EventTx,
    pub target: Target,
    pub control: Arc<ProgramControl>,
    /// The share of the time in which kernels are recorded; `None` for as much as adds 1 %.
    pub duty: Option<f64>,
    /// The file for all records, if they are written.
    pub records: Option<PathBuf>,
    pub stop: Arc<AtomicBool>,
    pub role: Role,
    /// For the output of a program that is not on the screen.
    pub log: Option<File>,
    /// The secret to remove from its output.
    pub secret: Option<Secret>,
}

impl Follower {
    /// Follows until the programs have ended, or until it is stopped. Sends the outcome of the run, unless it was
    /// stopped.
    pub fn run(mut self) {
        let finished = match self.follow() {
            Ok(None) => return,
            Ok(Some(finished)) => finished,
            Err(cause) => {
                self.tx.notice(Level::Error, "program", cause.clone());
                RunFinished { outcome: Outcome::Failed, cause: Some(cause) }
            }
        };
        self.tx.send(Event::RunFinished(finished));
    }

    fn follow(&mut self) -> Result<Option<RunFinished>, String> {
        let (mut sockets, mut program) = self.begin()?;
        let is_observed = matches!(self.role, Role::Observed);
        if let (Role::Worker { pipes }, Some(program)) = (&self.role, &mut program)
            && let Some(both) = program.take_pipes()
        {
            // Without a reader the pipes are closed, and the worker ends.
            let _ = pipes.send(both);
        }
        let waiting = match &self.target {
            Target::Start { .. } => "the program has not started CUDA",
            Target::Join { .. } => "waiting for the program",
        };
        if is_observed {
            self.tx.send(Event::Preparing(Preparing { step: waiting.to_owned(), done: 0, total: 1 }));
        }
        let started = Instant::now();
        let mut watched = Watched::new(self.tx.clone(), self.duty, Arc::clone(&self.control), is_observed);
        watched.records_in = self.records.take();
        let mut ended_at: Option<Instant> = None;
        loop {
            for socket in &mut sockets {
                while let Some(guest) = socket.accept() {
                    if watched.is_empty_yet() && is_observed {
                        self.tx.send(Event::Ready(Ready {
                            prepare_ms: started.elapsed().as_micros() as f64 / 1e3,
                        }));
                    }
                    watched.join(guest);
                }
            }
            let more = watched.read();
            let ended = program.as_mut().and_then(Program::ended);
            for signal in self.control.take_signals() {
                program.iter().for_each(|program| program.signal(signal));
            }
            if self.control.end.load(Ordering::Relaxed) {
                program.iter_mut().for_each(Program::end);
            }
            if self.stop.load(Ordering::Acquire) {
                watched.finish();
                return Ok(self.leave(program));
            }
            let since_end = ended.map(|_| ended_at.get_or_insert_with(Instant::now).elapsed());
            let is_over = is_over(since_end, watched.is_quiet(), more);
            if is_over || program.is_none() && watched.all_have_left() {
                watched.finish();
                return Ok(self.end(ended, watched.has_seen()));
            }
            if let Target::Join { processes } = &self.target
                && watched.is_empty_yet()
                && processes.iter().all(|process| ProcessInfo::read(process.pid).is_none())
            {
                return Err("the program has ended".to_owned());
            }
            if !more {
                thread::sleep(READ_INTERVAL);
            }
        }
    }

    fn begin(&mut self) -> Result<(Vec<Socket>, Option<Program>), String> {
        let cannot = |what: &str, e: std::io::Error| format!("cannot {what}: {e}");
        match &self.target {
            Target::Start { command, output } => {
                let library = library_file().map_err(|e| cannot("write the library for the program", e))?;
                let socket = Socket::for_children().map_err(|e| cannot("listen for the program", e))?;
                let mut variables = socket.variables(&library);
                // CUPTI accepts one tool: the first one keeps it.
                if let Some(other) = other_tool(|name| std::env::var_os(name)) {
                    let text = format!(
                        "{other} is injected into the program already: its kernels are not recorded; run exec without it"
                    );
                    self.tx.notice(Level::Warn, "program", foreign::message(&text));
                    variables.clear();
                }
                let (log, secret) = (self.log.take(), self.secret.as_ref());
                let program = Program::start(command, variables, *output, log, secret, &self.tx)
                    .map_err(|e| e.to_string())?;
                Ok((vec![socket], Some(program)))
            }
            Target::Join { processes } => {
                let dormant =
                    processes.iter().filter_map(|process| Some((process.pid, process.library.as_ref()?)));
                let sockets: Result<Vec<Socket>, _> =
                    dormant.map(|(pid, library)| Socket::for_process(pid, library)).collect();
                Ok((sockets.map_err(|e| cannot("listen for the program", e))?, None))
            }
        }
    }

    /// The user quits: a started program ends, a joined one continues.
    fn leave(&self, program: Option<Program>) -> Option<RunFinished> {
        let mut program = program?;
        while program.ended().is_none() || program.leaves_descendants() {
            program.end();
            thread::sleep(READ_INTERVAL);
        }
        self.keep_exit_code(program.ended());
        None
    }

    fn keep_exit_code(&self, ended: Option<ProgramEnd>) {
        if let Some(ended) = ended {
            self.control.exit_code.store(u16::from(ended.exit_code()) + 1, Ordering::Release);
        }
    }

    fn end(&self, ended: Option<ProgramEnd>, has_seen: bool) -> Option<RunFinished> {
        self.keep_exit_code(ended);
        if matches!(self.role, Role::Worker { .. }) {
            return None;
        }
        if !has_seen {
            let text = "the program did not use CUDA, or loads it without the driver's library: there are no kernels";
            self.tx.notice(Level::Warn, "program", text);
        }
        Some(match ended {
            Some(ended) if matches!(self.role, Role::Server) => {
                let cause = format!(
                    "the server has ended before the load: {ended}; its output is in Log and in program.log"
                );
                RunFinished { outcome: Outcome::Failed, cause: Some(cause) }
            }
            Some(ProgramEnd::Exited(0)) | None => RunFinished { outcome: Outcome::Completed, cause: None },
            Some(ended) => RunFinished { outcome: Outcome::Failed, cause: Some(ended.to_string()) },
        })
    }
}

/// The library of another tool, e.g. nsys, which programs started by this one load.
fn other_tool(variable: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    let names = ["CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"];
    let other = names.iter().filter_map(|name| variable(name)).find(|path| !path.is_empty());
    other.filter(|_| variable(wire::TOKEN).is_none()).map(|path| path.to_string_lossy().into_owned())
}

/// All followed processes.
struct Watched {
    tx: EventTx,
    clock: RunClock,
    guests: Vec<Followed>,
    joined: u32,
    /// Whether it was reported that some processes are not followed.
    is_full: bool,
    control: Arc<ProgramControl>,
    duty: Option<f64>,
    everything_until: Option<Instant>,
    window_at: Instant,
    /// The process whose steps are the tokens of the run.
    leading: Option<u32>,
    requests: Requests,
    /// Whether its steps are the tokens of the run. Otherwise a client measures them.
    reports: bool,
    since: Instant,
    /// The start of the last common burst, if several processes are recorded, and its index.
    burst: (Instant, u32),
    /// Records of processes that have ended, until they are reported.
    left: Vec<RankRecord>,
    picture_at: Option<Instant>,
    records_in: Option<PathBuf>,
}

pub(super) struct Followed {
    guest: Guest,
    fold: Fold,
    mode: Mode,
    asked: Option<Command>,
    version: Option<u32>,
    dropped: u64,
    timeline_at: Option<Instant>,
    last_said: Instant,
    finding: Option<Finding>,
    /// Obstacles that were reported, and switches of its mode since the last window: a program could report either
    /// endlessly.
    obstacles: Vec<Obstacle>,
    switches: u32,
    /// Whether its bursts are those of the run: workers have theirs at about the same time.
    leads: bool,
    has_worked: bool,
    /// Everything that it had written by this time was read.
    read_until_ns: u64,
    joined_at: Instant,
    ranks: RankRecord,
    records: Option<Records>,
    /// When recording was last switched on or off.
    switched_ns: u64,
}

impl Watched {
    fn new(tx: EventTx, duty: Option<f64>, control: Arc<ProgramControl>, reports: bool) -> Watched {
        let clock = RunClock::now(tx.clock().now());
        Watched {
            requests: Requests::new(tx.clone(), reports),
            reports,
            since: Instant::now(),
            tx,
            clock,
            guests: Vec::new(),
            joined: 0,
            is_full: false,
            control,
            duty,
            everything_until: None,
            window_at: Instant::now(),
            leading: None,
            burst: (Instant::now(), 0),
            left: Vec::new(),
            picture_at: None,
            records_in: None,
        }
    }

    fn is_empty_yet(&self) -> bool {
        self.joined == 0
    }

    fn has_seen(&self) -> bool {
        self.joined > 0
    }

    fn all_have_left(&self) -> bool {
        self.joined > 0 && self.guests.is_empty()
    }

    /// Whether no more records are expected of processes that have ended.
    fn is_quiet(&self) -> bool {
        self.guests.iter().all(|followed| followed.last_said.elapsed() > Duration::from_millis(500))
    }

    fn join(&mut self, guest: Guest) {
        if self.guests.len() >= MAX_GUESTS || self.joined >= MAX_JOINED {
            if !std::mem::replace(&mut self.is_full, true) {
                let text = format!(
                    "more than {MAX_GUESTS} processes at a time: process {} is not followed",
                    guest.pid
                );
                self.tx.notice(Level::Warn, "program", text);
            }
            return;
        }
        self.joined += 1;
        let info = ProcessInfo::read(guest.pid);
        self.tx.send(Event::ProcessJoined(Box::new(ProcessJoined {
            pid: guest.pid,
            parent: info.as_ref().and_then(|info| info.parent),
            command: info.as_ref().map(ProcessInfo::command).unwrap_or_default(),
            rank: info.as_ref().and_then(|info| info.rank.clone()),
            world: info.as_ref().and_then(|info| info.world),
        })));
        let pid = guest.pid;
        self.guests.push(Followed {
            guest,
            fold: Fold::default(),
            mode: Mode::Nothing,
            asked: None,
            version: None,
            dropped: 0,
            timeline_at: None,
            last_said: Instant::now(),
            finding: None,
            obstacles: Vec::new(),
            switches: 0,
            leads: false,
            has_worked: false,
            joined_at: Instant::now(),
            read_until_ns: self.tx.clock().now().0,
            ranks: RankRecord::new(pid, info.as_ref()),
            switched_ns: 1,
            records: self.records_in.as_deref().and_then(|dir| Records::create(dir, pid, &self.tx)),
        });
    }

    /// Reads the records of all processes. Returns whether there are more.
    fn read(&mut self) -> bool {
        let command = self.command();
        let now = self.tx.clock().now();
        let mut more = false;
        let due = self.window_at.elapsed() >= WINDOW;
        // Processes of a server that only query the GPUs are not shown.
        let is_shown = |followed: &&Followed| self.reports || followed.has_worked;
        let first = self.guests.iter().find(is_shown).map(Followed::pid);
        for followed in &mut self.guests {
            followed.leads = self.leading.or(first) == Some(followed.pid());
            // A program begins with a burst until it has work: CUPTI is not switched on later, while the program
            // creates its contexts.
            let command = match command {
                Command::Rest if self.duty.is_none() && followed.may_make_contexts() => EVERY_KERNEL,
                other => other,
            };
            if followed.asked != Some(command) {
                followed.asked = Some(command);
                followed.guest.ask(command);
            }
            match followed.read(&self.tx, self.clock) {
                true => more = true,
                false => followed.read_until_ns = now.0,
            }
            // Unread records may be older than those that were read.
            followed.fold.end_batch(followed.read_until_ns);
            self.requests.take(&mut self.leading, followed);
            if due && followed.report(&self.tx) {
                self.control.recorded.store(true, Ordering::Release);
            }
        }
        // Before ranks are reported: a process that has ended is not idle from then on.
        let (gone, here): (Vec<_>, Vec<_>) =
            self.guests.drain(..).partition(|followed| followed.guest.is_gone);
        self.guests = here;
        for followed in gone {
            self.part(followed);
        }
        if due {
            self.window_at = Instant::now();
            // Ranks are reported up to the time that was read, however late that is.
            let read_until_ns = self.guests.iter().map(|followed| followed.read_until_ns).min();
            self.report_ranks(Some(read_until_ns.unwrap_or(now.0)));
        }
        more
    }

    /// Reports the activity of all of them in the same time.
    fn report_ranks(&mut self, now_ns: Option<u64>) {
        let records = self.guests.iter_mut().map(|followed| &mut followed.ranks).chain(&mut self.left);
        for mut window in ranks::windows(records.collect(), now_ns) {
            let has_picture = self.picture_at.is_none_or(|at| at.elapsed() >= TIMELINE_INTERVAL);
            match has_picture {
                true => self.picture_at = Some(Instant::now()),
                false => {
                    window.picture_ns = 0;
                    window.lanes.iter_mut().for_each(|lane| lane.picture.clear());
                }
            }
            self.tx.send(Event::Ranks(Box::new(window)));
        }
        self.left.retain(|record| !record.is_empty());
    }

    fn part(&mut self, mut followed: Followed) {
        followed.close(&self.tx, self.clock);
        self.requests.take(&mut self.leading, &mut followed);
        followed.report(&self.tx);
        followed.ranks.has_left();
        if self.left.len() < MAX_GUESTS {
            self.left.push(std::mem::take(&mut followed.ranks));
        }
        if self.leading == Some(followed.guest.pid) {
            self.leading = None;
            self.requests.finish();
        }
        self.tx.send(Event::ProcessLeft(ProcessLeft { pid: followed.guest.pid }));
    }

    fn finish(&mut self) {
        for followed in std::mem::take(&mut self.guests) {
            self.part(followed);
        }
        self.report_ranks(None);
        self.requests.finish();
    }

    /// The current command for the libraries.
    fn command(&mut self) -> Command {
        if self.duty.is_some_and(|duty| duty >= 1.0) {
            return Command::Everything;
        }
        if self.control.everything.load(Ordering::Acquire) {
            let until = *self.everything_until.get_or_insert_with(|| Instant::now() + EVERYTHING);
            if Instant::now() < until {
                return EVERY_KERNEL;
            }
            self.control.everything.store(false, Ordering::Release);
        }
        self.everything_until = None;
        if !self.reports && self.duty.is_none() {
            let in_burst = self.since.elapsed().as_millis() % SERVER_PERIOD_MS < u128::from(BURST_MS);
            return if in_burst { EVERY_KERNEL } else { Command::Rest };
        }
        if !self.reports && self.duty.is_some_and(|duty| duty <= 0.0) {
            return Command::Rest;
        }
        let are_steps_known = self.leading.is_some();
        let duty = self.duty.unwrap_or_else(|| match are_steps_known {
            true => self.requests.affordable_duty(),
            false => LEARNING_DUTY,
        });
        match duty {
            duty if duty <= 0.0 => Command::Record { burst_ms: 0, period_ms: 1000 },
            // In steps of a tenth of a second, because a new period begins with a burst.
            duty => {
                let tenths = (f64::from(BURST_MS) / duty / 100.0).round().clamp(1.0, 600.0);
                let period_ms = tenths as u32 * 100;
                match self.guests.len() > 1 && period_ms > BURST_MS {
                    true => self.common_burst(period_ms),
                    false => Command::Record { burst_ms: BURST_MS, period_ms },
                }
            }
        }
    }

    /// Ranks are recorded at the same time, because waiting is visible only on all of them.
    fn common_burst(&mut self, period_ms: u32) -> Command {
        let (from, number) = self.burst;
        // The period varies, in case the program has the same rhythm.
        let shift = f64::from(number.wrapping_mul(7919) % 200) / 1000.0 - 0.1;
        if from.elapsed().as_secs_f64() * 1e3 >= f64::from(period_ms) * (1.0 + shift) {
            self.burst = (Instant::now(), number.wrapping_add(1));
        }
        let is_on = self.burst.0.elapsed().as_millis() < u128::from(BURST_MS);
        match is_on {
            true => EVERY_KERNEL,
            false => Command::Record { burst_ms: 0, period_ms: 1000 },
        }
    }
}

impl Followed {
    fn may_make_contexts(&self) -> bool {
        !self.has_worked && self.joined_at.elapsed() < wire::SET_UP_AT_MOST
    }

    fn read(&mut self, tx: &EventTx, clock: RunClock) -> bool {
        let Followed {
            guest,
            fold,
            mode,
            version,
            last_said,
            leads,
            has_worked,
            obstacles,
            switches,
            ranks,
            records,
            switched_ns,
            ..
        } = self;
        let pid = guest.pid;
        let mut count = 0u64;
        let more = guest.read(clock, &mut |what| {
            count += 1;
            match what {
                Message::Work { work, name } => {
                    *has_worked = true;
                    let work = device_work(fold, &work, name);
                    records.iter_mut().for_each(|records| records.write(&Entry::Work(work), name));
                    ranks.work(&work, |name| fold.class(name));
                    fold.add(work);
                }
                Message::Range { text, start_ns, end_ns, payload: Some(payload), .. } => {
                    ranks.call(text, (start_ns, end_ns), &payload);
                }
                Message::Range { domain, text, thread, start_ns, end_ns, payload: None } => {
                    let thread_id = u64::from(thread);
                    let range = Entry::Range { start_ns, end_ns, thread: thread_id, domain, text };
                    records.iter_mut().for_each(|records| records.write(&range, None));
                    fold.add_range(&Range {
                        domain: domain.to_owned(),
                        text: text.to_owned(),
                        thread: u64::from(thread),
                        start_ns,
                        end_ns,
                    });
                }
                Message::Device { number, uuid } => ranks.device(number, uuid),
                Message::Mode { at_ns, mode: now } => {
                    let was = std::mem::replace(mode, now);
                    // A library that is ending no longer has a clock.
                    let at = if at_ns >= *switched_ns { Stamp(at_ns) } else { tx.clock().now() };
                    *switched_ns = at.0;
                    if (was == Mode::Burst) != (now == Mode::Burst) {
                        let switch = Entry::Switch { at_ns: at.0, on: now == Mode::Burst };
                        records.iter_mut().for_each(|records| records.write(&switch, None));
                    }
                    let state = match (was == Mode::Burst, now == Mode::Burst) {
                        (false, true) => {
                            fold.begin_burst(at.0);
                            ranks.begin(at.0);
                            TraceState::On
                        }
                        (true, false) => {
                            fold.end_burst(at.0);
                            ranks.end(at.0);
                            TraceState::Off
                        }
                        _ => return,
                    };
                    *switches += 1;
                    if *leads && *switches <= MAX_SWITCHES {
                        tx.send_at(at, Event::KernelTrace(KernelTrace { tool: tool(*version), state }));
                    }
                }
                Message::Obstacle(obstacle) => {
                    if obstacles.len() < MAX_OBSTACLES && !obstacles.contains(&obstacle) {
                        obstacles.push(obstacle);
                        tx.notice(Level::Warn, "program", obstacle_text(pid, obstacle));
                    }
                }
                Message::Version(number) => *version = Some(number),
                Message::Dropped(lost) => {
                    records.iter_mut().for_each(|records| records.write(&Entry::Dropped(lost), None));
                    fold.add_dropped(lost);
                }
            }
        });
        if count > 0 {
            *last_said = Instant::now();
        }
        if *switches > MAX_SWITCHES {
            // The library never does that.
            guest.is_gone = true;
        }
        let dropped = self.guest.dropped();
        self.fold.add_dropped(dropped.saturating_sub(self.dropped));
        self.dropped = self.dropped.max(dropped);
        if self.timeline_at.is_none_or(|at| at.elapsed() >= TIMELINE_INTERVAL) {
            self.fold.request_timelines();
        }
        more
    }

    /// Reads the remaining records of a program that has ended.
    fn close(&mut self, tx: &EventTx, clock: RunClock) {
        while self.read(tx, clock) {}
        if self.mode == Mode::Burst && self.leads {
            let state = TraceState::Off;
            tx.send(Event::KernelTrace(KernelTrace { tool: tool(self.version), state }));
        }
        self.fold.finish();
        if let Some(records) = &mut self.records {
            records.finish();
        }
    }

    /// Sends windows and timelines. Returns whether there were kernels.
    fn report(&mut self, tx: &EventTx) -> bool {
        let mut has_kernels = false;
        for window in self.fold.windows() {
            has_kernels = true;
            tx.send(Event::Kernels(Box::new(window.window)));
        }
        for recorded in self.fold.timelines() {
            self.timeline_at = Some(Instant::now());
            let mut timeline = recorded.timeline;
            timeline.at = Some(Stamp(recorded.first_ns));
            tx.send(Event::StepTimeline(Box::new(timeline)));
        }
        self.switches = 0;
        let finding = self.fold.finding();
        let is_new = self.finding.is_none_or(|known| !known.is_like(&finding));
        if is_new && !self.fold.names().is_empty() {
            tx.notice(Level::Info, "steps", finding.to_string());
            tx.send(Event::StepsFound(finding));
            self.finding = Some(finding);
        }
        has_kernels
    }

    pub(super) fn pid(&self) -> u32 {
        self.guest.pid
    }

    pub(super) fn fold(&mut self) -> &mut Fold {
        &mut self.fold
    }

    pub(super) fn ranks(&mut self) -> &mut RankRecord {
        &mut self.ranks
    }
}

/// The file with every record of a process.
pub(super) struct Records {
    writer: Option<Writer<BufWriter<Box<dyn Write + Send>>>>,
}

impl Records {
    fn create(dir: &Path, pid: u32, tx: &EventTx) -> Option<Records> {
        let path = dir.join(format!("records-{pid}.tsv.gz"));
        match File::create_new(&path) {
            Ok(file) => {
                let compressed: Box<dyn Write + Send> = Box::new(gz::writer(file));
                Some(Records { writer: Some(Writer::new(BufWriter::new(compressed))) })
            }
            Err(e) => {
                tx.notice(Level::Warn, "program", format!("cannot write {}: {e}", path.display()));
                None
            }
        }
    }

    /// A write error ends the file.
    fn write(&mut self, entry: &Entry<'_>, name: Option<&str>) {
        let Some(writer) = &mut self.writer else { return };
        if writer.write(entry, name.unwrap_or("(unnamed)")).is_err() {
            self.writer = None;
        }
    }

    fn finish(&mut self) {
        if let Some(mut writer) = self.writer.take() {
            let _ = writer.flush();
        }
    }
}

fn tool(version: Option<u32>) -> String {
    match version {
        Some(version @ 130_000..) => format!("CUPTI {}.{}", version / 10_000, version / 100 % 100),
        _ => "CUPTI".to_owned(),
    }
}

fn obstacle_text(pid: u32, obstacle: Obstacle) -> String {
    match obstacle {
        Obstacle::NoCupti => format!(
            "process {pid}: CUPTI was not found in the program nor beside its CUDA; install nvidia-cuda-cupti beside it, or set \
             LLMPROF_CUPTI to a libcupti.so of its CUDA version"
        ),
        Obstacle::Failed(error) => {
            format!("process {pid}: CUPTI fails with error {error}: kernels are not recorded")
        }
        Obstacle::InUse => {
            format!("process {pid} profiles itself, or another tool does: kernels are not recorded meanwhile")
        }
    }
}

/// Passes a record of the library to the fold.
pub fn device_work(fold: &mut Fold, work: &wire::Work, name: Option<&str>) -> Work {
    let kind = match work.kind {
        wire::WorkKind::Kernel { launch, .. } => WorkKind::Kernel {
            name: fold.name(name.unwrap_or("(unnamed)")),
            launch: KernelLaunch {
                grid: launch.grid,
                block: launch.block.map(u32::from),
                registers: launch.registers,
                shared_bytes: launch.shared_bytes,
            },
        },
        wire::WorkKind::Copy { direction, bytes } => {
            WorkKind::Copy { direction: Direction::of_cupti(direction), bytes }
        }
        wire::WorkKind::Memset { bytes } => WorkKind::Memset { bytes },
        wire::WorkKind::Graph => WorkKind::Graph { graph: work.graph },
        wire::WorkKind::Wait { .. } => WorkKind::Sync,
    };
    // The program may write any numbers: implausible times count as unknown.
    let is_believable =
        work.end_ns.saturating_sub(work.start_ns) <= LONGEST_WORK_NS && work.end_ns < u64::MAX / 4;
    let [start_ns, end_ns] = if is_believable { [work.start_ns, work.end_ns] } else { [0; 2] };
    Work {
        start_ns,
        end_ns,
        stream: work.stream,
        device: work.device,
        correlation: work.correlation,
        graph: (work.graph > 0 && !matches!(kind, WorkKind::Graph { .. })).then_some(work.graph),
        kind,
    }
}

/// Whether reading ends for a program that ended `since_end` ago: its records have arrived, or there are always `more`.
/// A process that it left behind and that writes faster than is read would never be quiet.
fn is_over(since_end: Option<Duration>, is_quiet: bool, more: bool) -> bool {
    since_end.is_some_and(|since| is_quiet || more && since > NEVER_QUIET)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_that_is_always_full_is_read_for_a_limited_time_after_the_end() {
        // With a read every 20 ms: when is it over?
        let over_after = |is_quiet: bool, more: bool| {
            (0..1000).map(|n| n * READ_INTERVAL).find(|since| is_over(Some(*since), is_quiet, more))
        };
        assert_eq!(over_after(true, false), Some(Duration::ZERO));
        assert_eq!(over_after(false, true), Some(NEVER_QUIET + READ_INTERVAL), "counted from its end");
        assert_eq!(over_after(false, false), None, "what was read may not be all yet");
        // As long as the program runs, its records are read.
        assert!([(true, false), (false, true)].iter().all(|(quiet, more)| !is_over(None, *quiet, *more)));
    }

    #[test]
    fn times_that_no_gpu_has_are_none() {
        let timed = |start_ns, end_ns| {
            let kind = wire::WorkKind::Memset { bytes: 8 };
            let work = wire::Work { start_ns, end_ns, correlation: 1, stream: 7, device: 0, graph: 0, kind };
            device_work(&mut Fold::default(), &work, None).is_timed()
        };
        assert!(timed(5, 9) && timed(1 << 60, (1 << 60) + LONGEST_WORK_NS));
        assert!(!timed(5, u64::MAX) && !timed(1, 2 + LONGEST_WORK_NS) && !timed(1 << 63, (1 << 63) + 9));
    }
}
