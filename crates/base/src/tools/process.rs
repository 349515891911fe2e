//! Runs a program for its output, with a time limit for the program and its children.

use std::{
    ffi::OsStr,
    io::{self, Read},
    os::{fd::AsFd, unix::process::CommandExt},
    path::Path,
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid},
};
use thiserror::Error;

/// Longer than any version text.
const MAX_OUTPUT_BYTES: u64 = 64 << 10;
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The working directory of tools. nsys and ncu read settings from theirs (`config.ini`, `config.ncu-cfg`), and the
/// working directory of this program may be untrusted.
pub const WORKING_DIR: &str = "/";

/// Why a program gave no output or incomplete output.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ToolError {
    #[error("it cannot be started: {0}")]
    NotStarted(String),
    #[error("it does not answer: stopped after {:.1} s", .0.as_secs_f64())]
    TimedOut(Duration),
    #[error("it failed ({status}): {message}")]
    Failed { status: String, message: String },
    #[error("it was stopped")]
    Stopped,
}

/// The output of `program`, stdout before stderr, in English if it has several languages. It is killed at `until`, or
/// as soon as `stop` is set. In both cases, no process of its process group is left running.
pub fn output(program: &Path, args: &[&str], until: Instant, stop: &AtomicBool) -> Result<String, ToolError> {
    let mut command = Command::new(program);
    command.args(args).env("LC_ALL", "C").current_dir(WORKING_DIR);
    let Captured { status, stdout, stderr } = captured(&mut command, MAX_OUTPUT_BYTES, until, stop)?;
    let text = stdout + &stderr;
    failure(status, &text).map_or(Ok(text), Err)
}

/// The output of a program and its exit status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    pub status: Option<ExitStatus>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs `command` unchanged, without input. At most `max_bytes` of each stream are kept. The limits are those of
/// [`output`].
pub fn captured(
    command: &mut Command,
    max_bytes: u64,
    until: Instant,
    stop: &AtomicBool,
) -> Result<Captured, ToolError> {
    let started = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::start(command)?;
    let mut stdout = running.0.stdout.take().map(|stream| Printed::new(stream, max_bytes)).transpose()?;
    let mut stderr = running.0.stderr.take().map(|stream| Printed::new(stream, max_bytes)).transpose()?;
    while !running.has_ended() {
        if let Some(error) = interruption(started, until, stop) {
            return Err(error);
        }
        stdout.iter_mut().for_each(Printed::read);
        stderr.iter_mut().for_each(Printed::read);
        thread::sleep(POLL_INTERVAL);
    }
    let status = running.end();
    Ok(Captured { status, stdout: text_of(stdout), stderr: text_of(stderr) })
}

/// Passes the stdout of `program` to `read` while it runs. Returns the result of `read`, and the error if the program
/// failed. The limits are those of [`output`].
pub fn stream<T>(
    program: &Path,
    args: &[&OsStr],
    until: Instant,
    stop: &AtomicBool,
    read: impl FnOnce(ChildStdout) -> T,
) -> Result<(T, Option<ToolError>), ToolError> {
    let started = Instant::now();
    let mut running = start_piped(program, args)?;
    let stderr = running.0.stderr.take().map(|stream| Printed::new(stream, MAX_OUTPUT_BYTES)).transpose()?;
    let Some(stdout) = running.0.stdout.take() else {
        return Err(ToolError::NotStarted("it has no stdout".to_owned()));
    };
    let finished = AtomicBool::new(false);
    let (result, interrupted, stderr) = thread::scope(|scope| {
        // A kill closes the pipe, which ends `read`.
        let (group, finished) = (running.pid(), &finished);
        let watch = move || {
            let mut stderr = stderr;
            while !finished.load(Ordering::Acquire) {
                if let Some(error) = interruption(started, until, stop) {
                    group.map(|group| kill_process_group(group, Signal::KILL));
                    return (Some(error), stderr);
                }
                stderr.iter_mut().for_each(Printed::read);
                thread::sleep(POLL_INTERVAL);
            }
            (None, stderr)
        };
        let watchdog = thread::Builder::new().spawn_scoped(scope, watch).map_err(no_thread)?;
        let result = read(stdout);
        while !running.has_ended() && !watchdog.is_finished() {
            thread::sleep(POLL_INTERVAL);
        }
        finished.store(true, Ordering::Release);
        let (interrupted, stderr) = watchdog.join().unwrap_or_default();
        Ok((result, interrupted, stderr))
    })?;
    let status = running.end();
    Ok((result, interrupted.or_else(|| failure(status, &text_of(stderr)))))
}

fn start_piped(program: &Path, args: &[impl AsRef<OsStr>]) -> Result<Running, ToolError> {
    let mut command = Command::new(program);
    command.args(args).env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::start(command.current_dir(WORKING_DIR))
}

/// The reason to end a running program, if there is one.
fn interruption(started: Instant, until: Instant, stop: &AtomicBool) -> Option<ToolError> {
    if stop.load(Ordering::Acquire) {
        return Some(ToolError::Stopped);
    }
    (Instant::now() >= until).then(|| ToolError::TimedOut(started.elapsed()))
}

fn failure(status: Option<ExitStatus>, output: &str) -> Option<ToolError> {
    if status.is_some_and(|status| status.success()) {
        return None;
    }
    let first_line = output.lines().map(str::trim).find(|line| !line.is_empty());
    Some(ToolError::Failed {
        status: status.map_or_else(|| "exit status unknown".to_owned(), |status| status.to_string()),
        message: first_line.unwrap_or("no message").to_owned(),
    })
}

/// More than the capacity of a pipe.
const MAX_AT_ONCE: usize = 2 << 20;

/// The output of a program so far, read without waiting: a program that has left the group may keep the pipe open.
struct Printed {
    stream: Box<dyn Read + Send>,
    bytes: Vec<u8>,
    max_bytes: usize,
}

impl Printed {
    fn new(stream: impl Read + AsFd + Send + 'static, max_bytes: u64) -> Result<Printed, ToolError> {
        let flags = fcntl_getfl(&stream).and_then(|flags| fcntl_setfl(&stream, flags | OFlags::NONBLOCK));
        flags.map_err(|e| ToolError::NotStarted(e.to_string()))?;
        Ok(Printed { stream: Box::new(stream), bytes: Vec::new(), max_bytes: max_bytes as usize })
    }

    /// Reads what is available, but only for a short time: a program may print faster than this reads. Output beyond
    /// the limit is discarded.
    fn read(&mut self) {
        let mut buffer = [0; 8192];
        let mut read = 0;
        while read < MAX_AT_ONCE {
            match self.stream.read(&mut buffer) {
                Ok(0) => return,
                Ok(n) => {
                    read += n;
                    let room = self.max_bytes.saturating_sub(self.bytes.len());
                    self.bytes.extend_from_slice(&buffer[..n.min(room)]);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }
}

/// The whole output of a group that has ended.
fn text_of(printed: Option<Printed>) -> String {
    let Some(mut printed) = printed else { return String::new() };
    printed.read();
    String::from_utf8_lossy(&printed.bytes).into_owned()
}

/// The thread that reads the output could not be started.
fn no_thread(e: io::Error) -> ToolError {
    ToolError::NotStarted(format!("{e}; raise the limit on processes (ulimit -u)"))
}

/// A child that leads a process group. Dropping it kills the whole group.
pub struct Running(Child);

impl Running {
    /// Starts `command` as the leader of a process group of its own.
    pub fn start(command: &mut Command) -> Result<Running, ToolError> {
        let child = command.process_group(0).spawn();
        child.map(Running).map_err(|e| ToolError::NotStarted(e.to_string()))
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    fn pid(&self) -> Option<Pid> {
        i32::try_from(self.0.id()).ok().and_then(Pid::from_raw)
    }

    /// Whether it has ended. This does not reap it, so its pid is not reused.
    pub fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        self.pid().is_none_or(|pid| !matches!(waitid(WaitId::Pid(pid), options), Ok(None)))
    }

    /// Asks the group to end.
    pub fn terminate(&self) {
        if let Some(group) = self.pid() {
            let _ = kill_process_group(group, Signal::TERM);
        }
    }

    /// Kills the rest of the group, without waiting.
    pub fn kill(&self) {
        if let Some(group) = self.pid() {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// Kills the rest of the group, then reaps the child.
    pub fn end(&mut self) -> Option<ExitStatus> {
        self.kill();
        self.0.wait().ok()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // After `end` the pid may belong to another process.
        if matches!(self.0.try_wait(), Ok(None)) {
            self.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    fn sh(script: &str, limit: Duration) -> Result<String, ToolError> {
        output(Path::new("/bin/sh"), &["-c", script], Instant::now() + limit, &AtomicBool::new(false))
    }

    const LONG: Duration = Duration::from_secs(120);

    /// A time limit for programs that never end, within which nothing is expected of them.
    const SHORT: Duration = Duration::from_millis(300);

    /// The time limit is checked between two readings.
    #[test]
    fn a_program_that_never_stops_printing_is_read_in_parts() {
        let mut printed = Printed { stream: Box::new(io::repeat(b'y')), bytes: Vec::new(), max_bytes: 10 };
        printed.read();
        assert_eq!(printed.bytes, b"yyyyyyyyyy");
    }

    #[test]
    fn output_is_stdout_then_stderr() {
        assert_eq!(sh("echo out; echo err >&2", LONG).unwrap(), "out\nerr\n");
        assert_eq!(sh("echo $LC_ALL", LONG).unwrap(), "C\n");
        assert_eq!(sh("pwd", LONG).unwrap(), "/\n");
        let failed = sh("echo; echo no such thing >&2; exit 3", LONG).unwrap_err().to_string();
        assert_eq!(failed, "it failed (exit status: 3): no such thing");
        let stop = AtomicBool::new(false);
        let missing = output(Path::new("/nowhere/nsys"), &[], Instant::now() + LONG, &stop);
        assert!(matches!(missing, Err(ToolError::NotStarted(_))));
    }

    /// Whether a process runs. A zombie does not.
    fn runs(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
    }

    fn ends(pid: &str) -> bool {
        let deadline = Instant::now() + LONG;
        while runs(pid) && Instant::now() < deadline {
            thread::sleep(POLL_INTERVAL);
        }
        !runs(pid)
    }

    #[test]
    fn a_hanging_program_is_killed_with_its_children() {
        let hung = sh("sleep 600", SHORT).unwrap_err();
        assert!(matches!(hung, ToolError::TimedOut(_)), "{hung}");
        // The limit could expire before the shell has run its first lines, so the program is stopped once it has.
        let folder = tempfile::tempdir().unwrap();
        let pids = folder.path().join("pids");
        let script = format!("sleep 600 & echo $! $$ > {0}.new; mv {0}.new {0}; wait", pids.display());
        let stop = AtomicBool::new(false);
        let ended = thread::scope(|scope| {
            let args = ["-c", &script];
            let (until, stop) = (Instant::now() + LONG, &stop);
            let hung = scope.spawn(move || output(Path::new("/bin/sh"), &args, until, stop));
            while !pids.exists() && !hung.is_finished() {
                thread::sleep(POLL_INTERVAL);
            }
            stop.store(true, Ordering::Release);
            hung.join().unwrap()
        });
        assert_eq!(ended, Err(ToolError::Stopped));
        let pids = std::fs::read_to_string(&pids).unwrap();
        assert_eq!(pids.split_whitespace().count(), 2);
        assert!(pids.split_whitespace().all(ends), "{pids}");
    }

    #[test]
    fn background_children_are_killed_too() {
        // The child holds the pipe open.
        let pid = sh("sleep 600 & echo $!", LONG).unwrap();
        assert!(ends(pid.trim()));
    }

    fn stream_sh(script: &str, limit: Duration) -> (String, Option<ToolError>) {
        let args = ["-c", script].map(OsStr::new);
        let read = |mut stdout: ChildStdout| {
            let mut text = String::new();
            let _ = stdout.read_to_string(&mut text);
            text
        };
        stream(Path::new("/bin/sh"), &args, Instant::now() + limit, &AtomicBool::new(false), read).unwrap()
    }

    #[test]
    fn stdout_is_read_while_the_program_runs() {
        let (text, error) = stream_sh("seq 100000; echo heard >&2", LONG);
        assert_eq!((text.lines().count(), error), (100_000, None));
        let (text, error) = stream_sh("echo half; echo broken >&2; exit 3", LONG);
        assert_eq!(text, "half\n");
        assert_eq!(error.unwrap().to_string(), "it failed (exit status: 3): broken");
        let (text, error) = stream_sh("sleep 600", SHORT);
        assert_eq!(text, "");
        assert!(matches!(error, Some(ToolError::TimedOut(_))), "{error:?}");
        // It is stopped once its first line has arrived.
        let stop = AtomicBool::new(false);
        let read = |stdout: ChildStdout| {
            let mut lines = BufReader::new(stdout).lines();
            let first = lines.next().unwrap().unwrap();
            stop.store(true, Ordering::Release);
            (first, lines.count())
        };
        let args = ["-c", "echo some; sleep 600"].map(OsStr::new);
        let (read, error) = stream(Path::new("/bin/sh"), &args, Instant::now() + LONG, &stop, read).unwrap();
        assert_eq!((read, error), (("some".to_owned(), 0), Some(ToolError::Stopped)));
    }

    #[test]
    fn stop_ends_it() {
        let stop = AtomicBool::new(true);
        let ended = output(Path::new("/bin/sh"), &["-c", "sleep 600"], Instant::now() + LONG, &stop);
        assert_eq!(ended, Err(ToolError::Stopped));
    }
}
