//! A started program: its output, its end, and its signals.

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

use rustix::process::{
    Pid, Signal, kill_process_group, set_parent_process_death_signal, test_kill_process_group,
};
use thiserror::Error;

use super::descendants::Descendants;

use llmprof_analysis::ranks::is_nccl_line;
use llmprof_base::{
    foreign,
    own_children::OwnChild,
    secret::{Secret, WithoutSecret},
    shell::quoted,
};
use llmprof_event::{EventTx, Level};

/// Maximum length of an undivided line.
const MAX_LINE: usize = 4096;
/// Maximum lines per second in the log; a program may print any number.
const LINES_PER_SECOND: u32 = 100;
const NCCL_LINES_PER_SECOND: u32 = 4000;
/// Maximum size of `program.log`.
const MAX_LOG_BYTES: u64 = 64 << 20;
/// The interval at which the state of an overwritten line is shown.
const STATE_INTERVAL: Duration = Duration::from_millis(500);
/// The time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(3);

#[derive(Debug, Error)]
pub enum ProgramError {
    #[error("no command: llmprof-tui exec [OVERRIDES] -- COMMAND…")]
    NoCommand,
    #[error("{program} cannot be started: {cause}")]
    NotStarted { program: String, cause: io::Error },
}

/// The destination of a program's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputTo {
    /// The log, because the screen is in use. Its input is empty.
    Log,
    /// Unchanged: the program has the terminal, if there is one.
    Same,
    /// Like `Same`, but stdout is redirected to stderr, because this program's stdout is data.
    Stderr,
    /// Input and output are [`Pipes`] to another thread; stderr goes to the log.
    Pipes,
}

/// Both pipes of a program.
#[derive(Debug)]
pub struct Pipes {
    pub to: ChildStdin,
    pub from: ChildStdout,
}

/// The end of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramEnd {
    Exited(i32),
    Killed(i32),
}

impl ProgramEnd {
    fn from_status(status: ExitStatus) -> ProgramEnd {
        match (status.code(), status.signal()) {
            (Some(code), _) => ProgramEnd::Exited(code),
            (None, signal) => ProgramEnd::Killed(signal.unwrap_or(0)),
        }
    }

    /// The corresponding exit code of a shell.
    pub fn exit_code(self) -> u8 {
        match self {
            ProgramEnd::Exited(code) => u8::try_from(code).unwrap_or(1),
            ProgramEnd::Killed(signal) => u8::try_from(128 + signal).unwrap_or(128),
        }
    }
}

impl std::fmt::Display for ProgramEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ProgramEnd::Exited(0) => f.write_str("the program ended"),
            ProgramEnd::Exited(code) => write!(f, "the program ended with exit code {code}"),
            ProgramEnd::Killed(signal) => write!(f, "the program was ended by signal {signal}"),
        }
    }
}

pub struct Program {
    child: Child,
    pipes: Option<Pipes>,
    _own: OwnChild,
    /// Its process group, if it has its own.
    group: Option<Pid>,
    ended: Option<ProgramEnd>,
    asked_to_end: Option<Instant>,
    descendants: Descendants,
}

impl Program {
    pub fn start(
        command: &[OsString],
        variables: Vec<(&'static str, OsString)>,
        output: OutputTo,
        log: Option<File>,
        secret: Option<&Secret>,
        tx: &EventTx,
    ) -> Result<Program, ProgramError> {
        let Some((program, arguments)) = command.split_first() else { return Err(ProgramError::NoCommand) };
        let mut start = Command::new(program);
        let descendants = Descendants::new();
        start.args(arguments).envs(variables).envs([descendants.variable()]);
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
        let has_terminal = matches!(output, OutputTo::Same | OutputTo::Stderr);
        if !has_terminal {
            end_with_us(&mut start);
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
            let stream = match secret {
                Some(secret) => Box::new(WithoutSecret::new(stream, secret.clone())),
                None => stream,
            };
            let work = move || pass_on(source, stream, &lines);
            // Without a thread nothing reads the pipe; closing it is better than a program that blocks.
            let _ = thread::Builder::new().name(format!("llmprof-{source}")).spawn(work);
        }
        let group = (!has_terminal).then(|| Pid::from_child(&child));
        let own = OwnChild::new(child.id());
        Ok(Program { child, pipes, _own: own, group, ended: None, asked_to_end: None, descendants })
    }

    /// Its input and output, once, if they are pipes.
    pub fn take_pipes(&mut self) -> Option<Pipes> {
        self.pipes.take()
    }

    /// Its end, if it has ended.
    pub fn ended(&mut self) -> Option<ProgramEnd> {
        if self.ended.is_none() {
            // Before its end is known, because then its children get other parents.
            self.descendants.follow(self.child.id());
            self.ended = self.child.try_wait().ok().flatten().map(ProgramEnd::from_status);
            // Its process group ends with it, unless it has the terminal, as if it were started directly.
            if let (Some(_), Some(group)) = (self.ended, self.group) {
                self.descendants.refresh(self.child.id());
                let _ = kill_process_group(group, Signal::TERM);
                self.descendants.signal(Signal::TERM);
            }
        }
        self.ended
    }

    /// Sends SIGTERM to it and its descendants, and SIGKILL if they do not end. Call it until they have ended.
    pub fn end(&mut self) {
        let signal = match self.asked_to_end {
            None => {
                self.asked_to_end = Some(Instant::now());
                Signal::TERM
            }
            Some(asked) if asked.elapsed() > GRACE => Signal::KILL,
            Some(_) => return,
        };
        self.descendants.refresh(self.child.id());
        // The program first: the end of its children may be a reason for it to end by itself, with a different exit
        // code.
        if self.ended.is_none() {
            self.signal(signal);
        }
        self.descendants.signal(signal);
    }

    /// Whether it was terminated and its descendants are still running.
    pub fn leaves_descendants(&mut self) -> bool {
        self.descendants.refresh(self.child.id());
        self.asked_to_end.is_some() && !self.descendants.is_empty()
    }

    /// Sends a signal to it, and to its process group if it has its own.
    pub fn signal(&self, signal: Signal) {
        let _ = match self.group {
            Some(group) => kill_process_group(group, signal),
            None => rustix::process::kill_process(Pid::from_child(&self.child), signal),
        };
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // A program without its profiler continues, unless its output would have no reader.
        let Some(group) = self.group else { return };
        if self.ended().is_none() {
            return self.end();
        }
        let since = Instant::now();
        loop {
            self.descendants.refresh(self.child.id());
            if test_kill_process_group(group).is_err() && self.descendants.is_empty() {
                return;
            }
            if since.elapsed() > GRACE {
                let _ = kill_process_group(group, Signal::KILL);
                return self.descendants.signal(Signal::KILL);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Lets the kernel end the program when the thread that started it ends, so that a killed run leaves no server behind.
#[allow(unsafe_code)]
fn end_with_us(start: &mut Command) {
    // SAFETY: between fork and exec it makes one system call, and allocates nothing.
    unsafe { start.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?)) };
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

    /// Writes to the file unchanged.
    fn keep(&mut self, bytes: &[u8]) {
        if let Some(file) = &mut self.file
            && self.written < MAX_LOG_BYTES
        {
            self.written += bytes.len() as u64;
            // The recording reports a full disk.
            let _ = file.write_all(bytes);
        }
    }

    fn add(&mut self, source: &'static str, line: &[u8]) {
        if self.second.elapsed() >= Duration::from_secs(1) {
            self.second = Instant::now();
            self.in_second = 0;
            self.report_left_out();
        }
        self.in_second += 1;
        let text = String::from_utf8_lossy(line);
        // Many ranks start at the same time, and print hundreds of lines about their connections.
        let most = if is_nccl_line(&text) { NCCL_LINES_PER_SECOND } else { LINES_PER_SECOND };
        if self.in_second > most {
            self.left_out += 1;
            return;
        }
        let text = foreign::message(text.trim_end());
        if !text.is_empty() {
            self.tx.notice(level_of(&text), source, text);
        }
    }

    fn report_left_out(&mut self) {
        let lines = std::mem::take(&mut self.left_out);
        if lines > 0 {
            let text = format!("{lines} more lines are in program.log");
            self.tx.notice(Level::Info, "program", text);
        }
    }
}

/// Reads lines to the end. The state of a line that returns to its start, e.g. a progress bar, is shown at intervals.
fn pass_on(source: &'static str, stream: Box<dyn Read + Send>, lines: &Mutex<Lines>) {
    let mut stream = BufReader::new(stream);
    let lock = || lines.lock().unwrap_or_else(PoisonError::into_inner);
    let mut splitter = Splitter::default();
    let mut shown_at: Option<Instant> = None;
    loop {
        let bytes = match stream.fill_buf() {
            Ok([]) | Err(_) => break,
            Ok(bytes) => bytes,
        };
        let read = bytes.len();
        let mut lines = lock();
        lines.keep(bytes);
        splitter.read(bytes, &mut |piece| match piece {
            Piece::Line(line) => lines.add(source, line),
            Piece::State(line) => {
                if shown_at.is_none_or(|at| at.elapsed() >= STATE_INTERVAL) {
                    shown_at = Some(Instant::now());
                    lines.add(source, line);
                }
            }
        });
        stream.consume(read);
    }
    let mut lines = lock();
    splitter.end(&mut |piece| {
        let (Piece::Line(line) | Piece::State(line)) = piece;
        lines.add(source, line);
    });
    lines.report_left_out();
}

/// A piece of output.
#[derive(Debug, PartialEq, Eq)]
enum Piece<'a> {
    Line(&'a [u8]),
    /// The following output overwrites it.
    State(&'a [u8]),
}

/// Divides output into lines. The rest of a long line is another line.
#[derive(Default)]
struct Splitter {
    line: Vec<u8>,
    /// Whether the cursor has returned to the start of the line.
    returned: bool,
}

impl Splitter {
    fn read(&mut self, bytes: &[u8], each: &mut dyn FnMut(Piece<'_>)) {
        for byte in bytes {
            match byte {
                b'\n' => self.end_line(each),
                b'\r' => self.returned = true,
                _ => {
                    if std::mem::take(&mut self.returned) && !self.line.is_empty() {
                        each(Piece::State(&self.line));
                        self.line.clear();
                    }
                    self.line.push(*byte);
                    if self.line.len() >= MAX_LINE {
                        self.end_line(each);
                    }
                }
            }
        }
    }

    fn end_line(&mut self, each: &mut dyn FnMut(Piece<'_>)) {
        each(Piece::Line(&self.line));
        self.line.clear();
        self.returned = false;
    }

    fn end(&mut self, each: &mut dyn FnMut(Piece<'_>)) {
        if !self.line.is_empty() {
            self.end_line(each);
        }
    }
}

/// The level at the beginning of a line, in the format of Python's logging, uvicorn and glog: after the name of the
/// process and the time.
fn level_of(line: &str) -> Level {
    let is_level = |word: &str| match word {
        "WARNING" | "WARN" | "warning" | "warn" => Some(Level::Warn),
        "ERROR" | "CRITICAL" | "FATAL" | "error" | "fatal" | "Traceback" => Some(Level::Error),
        _ => None,
    };
    // `(EngineCore pid=71) WARNING 11-18 05:00:01 [file.py:12] …`, `[2026-11-18 05:00:01] ERROR: …`.
    let mut rest = line.trim_start();
    while let Some((open, close)) =
        [('(', ')'), ('[', ']')].into_iter().find(|(open, _)| rest.starts_with(*open))
    {
        let Some((_, after)) = rest[open.len_utf8()..].split_once(close) else { break };
        rest = after.trim_start_matches([':', ' ']);
    }
    let mut words =
        rest.split(|c: char| c.is_whitespace() || c == ':' || c == '|').filter(|word| !word.is_empty());
    let first = words.next().unwrap_or_default();
    let glog = |word: &str| {
        let mut chars = word.chars();
        let level = match chars.next()? {
            'W' => Level::Warn,
            'E' | 'F' => Level::Error,
            _ => return None,
        };
        let date = chars.as_str();
        (date.len() == 4 && date.bytes().all(|byte| byte.is_ascii_digit())).then_some(level)
    };
    // An exception: `torch.OutOfMemoryError: CUDA out of memory`.
    let is_exception = |word: &str| word.ends_with("Error") && rest[word.len()..].starts_with(':');
    is_level(first)
        .or_else(|| glog(first))
        .or_else(|| is_exception(first).then_some(Level::Error))
        .unwrap_or(Level::Info)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use llmprof_event::{Clock, channel};

    /// A program in `output` with a child in its own session, which writes its id to a file.
    fn with_child(dir: &Path, output: OutputTo) -> (Program, u32) {
        let script = "setsid sh -c 'echo $$ > child.new; mv child.new child; exec sleep 300' & \
                      while test ! -e go; do sleep 0.05; done; exit 3";
        let command = ["sh", "-c", &format!("cd '{}' || exit; {script}", dir.display())].map(OsString::from);
        let (tx, _rx) = channel(Clock::wall());
        let mut program = Program::start(&command, Vec::new(), output, None, None, &tx).unwrap();
        let child = eventually("the child to be known", || {
            assert_eq!(program.ended(), None);
            program.descendants.refresh(program.child.id());
            let text = fs::read_to_string(dir.join("child")).ok()?;
            // The program has another child meanwhile: `sleep`.
            text.trim().parse::<u32>().ok().filter(|child| program.descendants.has(*child))
        });
        (program, child)
    }

    /// Polls until `found` returns a value. A minute without one is a failure.
    #[track_caller]
    fn eventually<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(thing) = found() {
                return thing;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "waited in vain for {what}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn runs(pid: u32) -> bool {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
    }

    /// The process of a server or a worker may die before its children.
    #[test]
    fn children_of_a_program_that_died_end_with_it() {
        for output in [OutputTo::Log, OutputTo::Pipes] {
            let dir = tempfile::tempdir().unwrap();
            let (mut program, child) = with_child(dir.path(), output);
            fs::write(dir.path().join("go"), "").unwrap();
            eventually("the program to end", || program.ended());
            drop(program);
            // A process that does not end within GRACE is killed, and not waited for.
            eventually(&format!("the end of its child, {output:?}"), || (!runs(child)).then_some(()));
        }
    }

    /// A program with the terminal has no process group of its own: `exec --for`.
    #[test]
    fn ending_a_program_ends_its_descendants() {
        let dir = tempfile::tempdir().unwrap();
        let (mut program, child) = with_child(dir.path(), OutputTo::Stderr);
        eventually("the program and its descendants to end", || {
            let is_over = program.ended().is_some() && !program.leaves_descendants();
            program.end();
            is_over.then_some(())
        });
        assert!(!runs(child), "{child} was left behind");
    }

    /// As if it were started directly, its background processes continue.
    #[test]
    fn background_processes_survive_a_program_that_ends_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let (mut program, child) = with_child(dir.path(), OutputTo::Stderr);
        fs::write(dir.path().join("go"), "").unwrap();
        eventually("the program to end", || program.ended());
        drop(program);
        assert!(runs(child));
        rustix::process::kill_process(Pid::from_raw(child as i32).unwrap(), Signal::KILL).unwrap();
    }

    #[test]
    fn levels_are_those_of_the_program() {
        use Level::{Error, Info, Warn};
        for (line, wanted) in [
            ("INFO 11-18 05:00:01 [api_server.py:1] Starting", Info),
            ("(EngineCore pid=71) WARNING 11-18 05:00:01 [f.py:12] slow", Warn),
            ("(APIServer pid=70) INFO:     127.0.0.1:1 - \"GET /error HTTP/1.1\" 200 OK", Info),
            ("[2026-11-18 05:00:01] ERROR: out of memory", Error),
            ("[rank0]:W1118 05:00:01.1 2 x.py:1] compiled", Warn),
            ("E1118 05:00:01.1 2 x.cc:1] failed", Error),
            ("Traceback (most recent call last):", Error),
            ("torch.OutOfMemoryError: CUDA out of memory", Error),
            ("no ERROR here", Info),
            ("", Info),
            ("(unclosed", Info),
        ] {
            assert_eq!(level_of(line), wanted, "{line}");
        }
    }

    #[test]
    fn progress_is_distinguished_from_lines() {
        let mut found = Vec::new();
        let mut splitter = Splitter::default();
        let mut take = |piece: Piece<'_>| match piece {
            Piece::Line(line) => found.push(format!("line {}", String::from_utf8_lossy(line))),
            Piece::State(line) => found.push(format!("state {}", String::from_utf8_lossy(line))),
        };
        for part in ["a\r\nb\n\nload: 1%\rload", ": 2%\r", "load: 3%\nrest\r"] {
            splitter.read(part.as_bytes(), &mut take);
        }
        splitter.end(&mut take);
        assert_eq!(
            found,
            ["line a", "line b", "line ", "state load: 1%", "state load: 2%", "line load: 3%", "line rest"]
        );
    }
}
