//! The thread that follows other programs: reads the records of their libraries and sends them as events of the run.

use std::{
    ffi::OsString,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering},
        mpsc::Sender,
    },
    thread,
    time::{Duration, Instant},
};

use llmprof_inject::wire::{self, Command};
use rustix::process::Signal;

use super::{
    MAX_PROCESSES,
    connection::Connection,
    door::Door,
    followed::{FollowedProcess, Records, TIMELINE_INTERVAL},
    library::library_file,
    process_info::{Library, ProcessInfo, command_text},
    program::{OutputTo, Pipes, Program, ProgramEnd},
    ranks::{self, RankRecord},
    requests::Requests,
    socket::{Entrance, Socket, ThroughDoor},
    stacks::StackFollower,
    transcript::RunClock,
};
use llmprof_base::{foreign, secret::Secret};
use llmprof_event::{
    Event, EventTx, Level, Outcome, Preparing, ProcessJoined, ProcessLeft, Ready, RunFinished,
};

/// One endless burst.
const EVERY_KERNEL: Command = Command::Record { burst_ms: 1, period_ms: 1 };
/// The interval at which rings are read.
const READ_INTERVAL: Duration = Duration::from_millis(20);
/// After the end of the program, an endless stream of records is read for no longer than this.
const NEVER_QUIET: Duration = Duration::from_secs(5);
const WINDOW: Duration = Duration::from_secs(1);
/// The time for which `K` records all kernels.
const EVERYTHING: Duration = Duration::from_secs(10);
const BURST_MS: u32 = 200;
/// The interval between bursts of a server, which records nothing in between, because requests give its latencies.
const SERVER_PERIOD_MS: u128 = 5000;
/// The share of time in bursts until steps are found.
const LEARNING_DUTY: f64 = 0.5;
/// Maximum number of processes that are followed in all.
const MAX_JOINED: u32 = 4096;

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
    /// Whether the lines of Python threads are sampled.
    pub stacks: bool,
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
        let (mut entrances, mut program) = self.begin()?;
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
        let mut watched =
            FollowedProgram::new(self.tx.clone(), self.duty, Arc::clone(&self.control), is_observed);
        watched.records_in = self.records.take();
        watched.samples_stacks = self.stacks;
        let mut ended_at: Option<Instant> = None;
        loop {
            for entrance in &mut entrances {
                while let Some(connection) = entrance.accept() {
                    if watched.is_empty_yet() && is_observed {
                        self.tx.send(Event::Ready(Ready {
                            prepare_ms: started.elapsed().as_micros() as f64 / 1e3,
                        }));
                    }
                    watched.join(connection);
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
            let is_over = is_over(since_end, watched.is_quiet());
            if is_over || program.is_none() && watched.all_have_left() {
                watched.finish();
                return Ok(self.end(ended, watched.has_seen()));
            }
            if let Target::Join { processes } = &self.target
                && watched.is_empty_yet()
            {
                if processes.iter().all(|process| ProcessInfo::parent_of(process.pid).is_none()) {
                    return Err("the program has ended".to_owned());
                }
                if entrances.iter().all(Entrance::is_closed) {
                    return Err(
                        "the library in the program does not answer; restart the program to join it again"
                            .to_owned(),
                    );
                }
            }
            if !more {
                thread::sleep(READ_INTERVAL);
            }
        }
    }

    fn begin(&mut self) -> Result<(Vec<Entrance>, Option<Program>), String> {
        let cannot = |what: &str, e: io::Error| format!("cannot {what}: {e}");
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
                Ok((vec![Entrance::Socket(socket)], Some(program)))
            }
            Target::Join { processes } => {
                let mut entrances = Vec::new();
                let mut refused = None;
                for process in processes {
                    match entrance(process) {
                        Ok(entrance) => entrances.push(entrance),
                        Err(e) => {
                            let text = cannot(&format!("reach process {}", process.pid), e);
                            self.tx.notice(Level::Warn, "program", text.clone());
                            refused.get_or_insert(text);
                        }
                    }
                }
                match refused {
                    Some(refused) if entrances.is_empty() => Err(refused),
                    _ => Ok((entrances, None)),
                }
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

/// The address to which the library of a process connects.
fn entrance(process: &ProcessInfo) -> io::Result<Entrance> {
    let no_library =
        || io::Error::new(io::ErrorKind::NotFound, "it has not loaded the library of llmprof-tui");
    match process.library.as_ref().ok_or_else(no_library)? {
        Library::Dormant(library) => Socket::for_process(process.pid, library).map(Entrance::Socket),
        Library::Loaded => {
            ThroughDoor::take(Door::find(process.pid).ok_or_else(no_library)?).map(Entrance::Door)
        }
    }
}

/// The library of another tool, e.g. nsys, which programs started by this one load.
fn other_tool(variable: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    let names = ["CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"];
    let other = names.iter().filter_map(|name| variable(name)).find(|path| !path.is_empty());
    other.filter(|_| variable(wire::TOKEN).is_none()).map(|path| path.to_string_lossy().into_owned())
}

/// All followed processes.
struct FollowedProgram {
    tx: EventTx,
    clock: RunClock,
    processes: Vec<FollowedProcess>,
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
    samples_stacks: bool,
}

impl FollowedProgram {
    fn new(tx: EventTx, duty: Option<f64>, control: Arc<ProgramControl>, reports: bool) -> FollowedProgram {
        let clock = RunClock::now(tx.clock().now());
        FollowedProgram {
            requests: Requests::new(tx.clone(), reports),
            reports,
            since: Instant::now(),
            tx,
            clock,
            processes: Vec::new(),
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
            samples_stacks: false,
        }
    }

    fn is_empty_yet(&self) -> bool {
        self.joined == 0
    }

    fn has_seen(&self) -> bool {
        self.joined > 0
    }

    fn all_have_left(&self) -> bool {
        self.joined > 0 && self.processes.is_empty()
    }

    /// Whether no more records are expected of processes that have ended.
    fn is_quiet(&self) -> bool {
        self.processes.iter().all(|followed| followed.last_said.elapsed() > Duration::from_millis(500))
    }

    fn join(&mut self, connection: Connection) {
        if self.processes.len() >= MAX_PROCESSES || self.joined >= MAX_JOINED {
            if !std::mem::replace(&mut self.is_full, true) {
                let text = format!(
                    "more than {MAX_PROCESSES} processes at a time: process {} is not followed",
                    connection.pid
                );
                self.tx.notice(Level::Warn, "program", text);
            }
            return;
        }
        self.joined += 1;
        let info = ProcessInfo::read(connection.pid);
        self.tx.send(Event::ProcessJoined(Box::new(ProcessJoined {
            pid: connection.pid,
            parent: info.as_ref().and_then(|info| info.parent),
            command: info.as_ref().map(ProcessInfo::command).unwrap_or_default(),
            rank: info.as_ref().and_then(|info| info.rank.clone()),
            world: info.as_ref().and_then(|info| info.world),
        })));
        let pid = connection.pid;
        let records = self.records_in.as_deref().and_then(|dir| Records::create(dir, pid, &self.tx));
        let stacks = self.samples_stacks.then(|| StackFollower::start(pid, &self.tx));
        let now = self.tx.clock().now();
        self.processes.push(FollowedProcess::new(connection, info.as_ref(), records, stacks, now));
    }

    /// Reads the records of all processes. Returns whether there are more.
    fn read(&mut self) -> bool {
        let command = self.command();
        let now = self.tx.clock().now();
        let mut more = false;
        let due = self.window_at.elapsed() >= WINDOW;
        // Processes of a server that only query the GPUs are not shown.
        let is_shown = |followed: &&FollowedProcess| self.reports || followed.has_worked;
        // One that only has CUDA's libraries does not lead.
        let has_worked = |followed: &&FollowedProcess| followed.has_worked;
        let first = self.processes.iter().find(has_worked).or_else(|| self.processes.iter().find(is_shown));
        let first = first.map(FollowedProcess::pid);
        for followed in &mut self.processes {
            followed.leads = self.leading.or(first) == Some(followed.pid());
            // A program begins with a burst until it has work: CUPTI is not switched on later, while the program
            // creates its contexts.
            let command = match command {
                Command::Rest if self.duty.is_none() && followed.may_make_contexts() => EVERY_KERNEL,
                other => other,
            };
            if followed.asked != Some(command) {
                followed.asked = Some(command);
                followed.connection.ask(command);
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
            self.processes.drain(..).partition(|followed| followed.connection.is_gone);
        self.processes = here;
        for followed in gone {
            self.part(followed);
        }
        if due {
            self.window_at = Instant::now();
            // Ranks are reported up to the time that was read, however late that is.
            let read_until_ns = self.processes.iter().map(|followed| followed.read_until_ns).min();
            self.report_ranks(Some(read_until_ns.unwrap_or(now.0)));
        }
        more
    }

    /// Reports the activity of all of them in the same time.
    fn report_ranks(&mut self, now_ns: Option<u64>) {
        let records = self.processes.iter_mut().map(|followed| &mut followed.ranks).chain(&mut self.left);
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

    fn part(&mut self, mut followed: FollowedProcess) {
        followed.close(&self.tx, self.clock);
        self.requests.take(&mut self.leading, &mut followed);
        followed.report(&self.tx);
        followed.ranks.has_left();
        if self.left.len() < MAX_PROCESSES {
            self.left.push(std::mem::take(&mut followed.ranks));
        }
        if self.leading == Some(followed.connection.pid) {
            self.leading = None;
            self.requests.finish();
        }
        self.tx.send(Event::ProcessLeft(ProcessLeft { pid: followed.connection.pid }));
    }

    fn finish(&mut self) {
        for followed in std::mem::take(&mut self.processes) {
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
                match self.processes.len() > 1 && period_ms > BURST_MS {
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

/// Whether reading ends for a program that ended `since_end` ago: its records have arrived, or there is no end of them. A
/// process that it left behind may write for ever, and is not the program.
fn is_over(since_end: Option<Duration>, is_quiet: bool) -> bool {
    since_end.is_some_and(|since| is_quiet || since > NEVER_QUIET)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_for_a_limited_time_after_the_end() {
        // With a read every 20 ms: when is it over?
        let over_after = |is_quiet: bool| {
            (0..1000).map(|n| n * READ_INTERVAL).find(|since| is_over(Some(*since), is_quiet))
        };
        assert_eq!(over_after(true), Some(Duration::ZERO));
        assert_eq!(over_after(false), Some(NEVER_QUIET + READ_INTERVAL), "counted from its end");
        // As long as the program runs, its records are read.
        assert!(![true, false].iter().any(|quiet| is_over(None, *quiet)));
    }
}
