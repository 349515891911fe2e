//! A program that we start: its output, its end, and its signals.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group};
use thiserror::Error;

use crate::{
    analysis::ranks::is_nccl_line,
    base::{foreign, own_children::OwnChild, shell::quoted},
    event::{EventTx, Level},
};

/// The longest line that is kept whole.
const MAX_LINE: u64 = 4096;
/// Lines a second in the log; a program may print any number.
const LINES_PER_SECOND: u32 = 100;
const NCCL_LINES_PER_SECOND: u32 = 4000;
/// The size of `program.log`.
const MAX_LOG_BYTES: u64 = 64 << 20;
/// Between asking a program to end and ending it.
const GRACE: Duration = Duration::from_secs(3);

#[derive(Debug, Error)]
pub enum ProgramError {
    #[error("no command: llmprof-tui exec [OVERRIDES] -- COMMAND…")]
    NoCommand,
    #[error("{program} cannot be started: {cause}")]
    NotStarted { program: String, cause: io::Error },
}

/// Where the output of a program goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputTo {
    /// To the log, because the screen is ours. Its input is empty.
    Log,
    /// Where ours goes: the program has the terminal, if there is one.
    Same,
    /// As before, and its stdout to our stderr: our own stdout is data.
    Stderr,
    /// Input and output are [`Pipes`] to another thread; what it prints on stderr goes to the log.
    Pipes,
}

/// Both ends of a conversation with a program.
#[derive(Debug)]
pub struct Pipes {
    pub to: ChildStdin,
    pub from: ChildStdout,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Exited(i32),
    Killed(i32),
}

impl Ended {
    fn of(status: ExitStatus) -> Ended {
        match (status.code(), status.signal()) {
            (Some(code), _) => Ended::Exited(code),
            (None, signal) => Ended::Killed(signal.unwrap_or(0)),
        }
    }

    /// The exit code of a shell for it.
    pub fn exit_code(self) -> u8 {
        match self {
            Ended::Exited(code) => u8::try_from(code).unwrap_or(1),
            Ended::Killed(signal) => u8::try_from(128 + signal).unwrap_or(128),
        }
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ended::Exited(0) => f.write_str("the program ended"),
            Ended::Exited(code) => write!(f, "the program ended with exit code {code}"),
            Ended::Killed(signal) => write!(f, "the program was ended by signal {signal}"),
        }
    }
}

pub struct Program {
    child: Child,
    pipes: Option<Pipes>,
    _own: OwnChild,
    /// Its process group, where it has one of its own.
    group: Option<Pid>,
    ended: Option<Ended>,
    asked_to_end: Option<Instant>,
}

impl Program {
    pub fn start(
        command: &[OsString],
        variables: Vec<(&'static str, OsString)>,
        output: OutputTo,
        log: Option<File>,
        tx: &EventTx,
    ) -> Result<Program, ProgramError> {
        let Some((program, arguments)) = command.split_first() else { return Err(ProgramError::NoCommand) };
        let mut start = Command::new(program);
        start.args(arguments).envs(variables);
        match output {
            OutputTo::Log => {
                start.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
            }
            OutputTo::Same => {}
            OutputTo::Stderr => {
                start.stdout(io::stderr());
            }
            OutputTo::Pipes => {
                start.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
            }
        }
        let name = || foreign::line(&quoted(&program.to_string_lossy()), 200);
        let not_started = |cause| ProgramError::NotStarted { program: name(), cause };
        let mut child = start.spawn().map_err(not_started)?;
        let pipes = match (output, child.stdin.take()) {
            (OutputTo::Pipes, Some(to)) => child.stdout.take().map(|from| Pipes { to, from }),
            _ => None,
        };
        let lines = Arc::new(Mutex::new(Lines::new(tx.clone(), log)));
        let streams: [Option<(&'static str, Box<dyn Read + Send>)>; 2] = [
            child.stdout.take().map(|stream| ("stdout", Box::new(stream) as _)),
            child.stderr.take().map(|stream| ("stderr", Box::new(stream) as _)),
        ];
        for (source, stream) in streams.into_iter().flatten() {
            let lines = Arc::clone(&lines);
            let work = move || pass_on(source, stream, &lines);
            // Without a thread nothing reads the pipe; closing it is better than a program that waits for us.
            let _ = thread::Builder::new().name(format!("llmprof-{source}")).spawn(work);
        }
        let has_terminal = matches!(output, OutputTo::Same | OutputTo::Stderr);
        let group = (!has_terminal).then(|| Pid::from_child(&child));
        let own = OwnChild::new(child.id());
        Ok(Program { child, pipes, _own: own, group, ended: None, asked_to_end: None })
    }

    /// Its input and output, once, where they are pipes.
    pub fn take_pipes(&mut self) -> Option<Pipes> {
        self.pipes.take()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<Ended> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten().map(Ended::of);
        }
        self.ended
    }

    /// Asks it to end, and ends it when it does not. Call it until it has ended.
    pub fn end(&mut self) {
        let signal = match self.asked_to_end {
            None => {
                self.asked_to_end = Some(Instant::now());
                Signal::TERM
            }
            Some(asked) if asked.elapsed() > GRACE => Signal::KILL,
            Some(_) => return,
        };
        let _ = match self.group {
            Some(group) => kill_process_group(group, signal),
            None => rustix::process::kill_process(Pid::from_child(&self.child), signal),
        };
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // A program without its profiler goes on, except where its output would have no reader.
        if self.group.is_some() && self.ended().is_none() {
            self.end();
        }
    }
}

/// Lines for the log and for `program.log`.
struct Lines {
    tx: EventTx,
    file: Option<File>,
    written: u64,
    second: Instant,
    in_second: u32,
    left_out: u64,
}

impl Lines {
    fn new(tx: EventTx, file: Option<File>) -> Lines {
        Lines { tx, file, written: 0, second: Instant::now(), in_second: 0, left_out: 0 }
    }

    fn add(&mut self, source: &'static str, line: &[u8]) {
        if let Some(file) = &mut self.file
            && self.written < MAX_LOG_BYTES
        {
            self.written += line.len() as u64 + 1;
            // A full disk is reported by the recording.
            let _ = file.write_all(line).and_then(|()| file.write_all(b"\n"));
        }
        if self.second.elapsed() >= Duration::from_secs(1) {
            self.second = Instant::now();
            self.in_second = 0;
            self.report_left_out();
        }
        self.in_second += 1;
        let text = String::from_utf8_lossy(line);
        // Many ranks start at the same time, and say in hundreds of lines how they are connected.
        let most = if is_nccl_line(&text) { NCCL_LINES_PER_SECOND } else { LINES_PER_SECOND };
        if self.in_second > most {
            self.left_out += 1;
            return;
        }
        let text = foreign::message(text.trim_end());
        if !text.is_empty() {
            self.tx.notice(Level::Info, source, text);
        }
    }

    fn report_left_out(&mut self) {
        let lines = std::mem::take(&mut self.left_out);
        if lines > 0 {
            let text = format!("{lines} more lines were printed; program.log has them");
            self.tx.notice(Level::Info, "program", text);
        }
    }
}

fn pass_on(source: &'static str, stream: Box<dyn Read + Send>, lines: &Mutex<Lines>) {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    let lock = || lines.lock().unwrap_or_else(PoisonError::into_inner);
    // The rest of a long line is another line.
    while stream.by_ref().take(MAX_LINE).read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        lock().add(source, line.strip_suffix(b"\n").unwrap_or(&line));
        line.clear();
    }
    lock().report_left_out();
}
