//! A program that is run for what it says, and ended with all it has started when it takes too long.

use std::{
    ffi::OsStr,
    io::Read,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use thiserror::Error;

/// More than any version text.
const MOST_BYTES: u64 = 64 << 10;
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);
/// For what is still in the pipes when everyone who could write to them is gone.
const LAST_WORDS: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ToolTrouble {
    #[error("it cannot be started: {0}")]
    NotStarted(String),
    #[error("it does not answer: it was ended after {0} s")]
    TooLong(String),
    #[error("it ends with {ending}: {said}")]
    Failed { ending: String, said: String },
    #[error("the program was told to stop")]
    Stopped,
}

/// What `program` prints, stdout before stderr, in plain English where it has several languages. By `until` it is done or
/// it is ended; `stop` ends it at once. Nothing that it started in its own process group is left running either way.
pub fn said(program: &Path, args: &[&str], until: Instant, stop: &AtomicBool) -> Result<String, ToolTrouble> {
    let begun = Instant::now();
    let mut command = Command::new(program);
    command.args(args).env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::start(&mut command)?;
    let streams = [running.0.stdout.take().map(collected), running.0.stderr.take().map(collected)];
    while !running.has_ended() {
        if stop.load(Ordering::Acquire) {
            return Err(ToolTrouble::Stopped);
        }
        if Instant::now() >= until {
            return Err(ToolTrouble::TooLong(format!("{:.1}", begun.elapsed().as_secs_f64())));
        }
        thread::sleep(BETWEEN_LOOKS);
    }
    let status = running.end();
    let text: String =
        streams.into_iter().flatten().filter_map(|text| text.recv_timeout(LAST_WORDS).ok()).collect();
    match status {
        Some(status) if status.success() => Ok(text),
        status => Err(ToolTrouble::failed(status, &text)),
    }
}

/// Gives what `program` prints on stdout to `read` as it comes, and what `read` makes of it, with what went wrong if
/// something did. Limits are those of [`said`].
pub fn streamed<T>(
    program: &Path,
    args: &[&OsStr],
    until: Instant,
    stop: &AtomicBool,
    read: impl FnOnce(ChildStdout) -> T,
) -> Result<(T, Option<ToolTrouble>), ToolTrouble> {
    let begun = Instant::now();
    let mut command = Command::new(program);
    command.args(args).env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::start(&mut command)?;
    let errors = running.0.stderr.take().map(collected);
    let Some(stdout) = running.0.stdout.take() else {
        return Err(ToolTrouble::NotStarted("it has no stdout".to_owned()));
    };
    let finished = AtomicBool::new(false);
    let ended = thread::scope(|scope| {
        // Ended from outside, the pipe closes, and whoever reads it sees its end.
        let (group, finished) = (running.pid(), &finished);
        let watch = scope.spawn(move || {
            while !finished.load(Ordering::Acquire) {
                let trouble = match (stop.load(Ordering::Acquire), Instant::now() >= until) {
                    (true, _) => ToolTrouble::Stopped,
                    (_, true) => ToolTrouble::TooLong(format!("{:.1}", begun.elapsed().as_secs_f64())),
                    _ => {
                        thread::sleep(BETWEEN_LOOKS);
                        continue;
                    }
                };
                if let Some(group) = group {
                    let _ = kill_process_group(group, Signal::KILL);
                }
                return Some(trouble);
            }
            None
        });
        let made = read(stdout);
        while !running.has_ended() && !watch.is_finished() {
            thread::sleep(BETWEEN_LOOKS);
        }
        finished.store(true, Ordering::Release);
        (made, watch.join().ok().flatten())
    });
    let status = running.end();
    let (made, ended) = ended;
    let words = errors.and_then(|text| text.recv_timeout(LAST_WORDS).ok()).unwrap_or_default();
    let failed = || match status {
        Some(status) if status.success() => None,
        status => Some(ToolTrouble::failed(status, &words)),
    };
    Ok((made, ended.or_else(failed)))
}

impl ToolTrouble {
    fn failed(status: Option<ExitStatus>, text: &str) -> ToolTrouble {
        let mut lines = text.lines().map(str::trim);
        ToolTrouble::Failed {
            ending: status.map_or_else(|| "nobody knows what".to_owned(), |status| status.to_string()),
            said: lines.find(|line| !line.is_empty()).unwrap_or("nothing is said").to_owned(),
        }
    }
}

/// Everything a stream has to say, once it has ended.
fn collected(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (tx, rx) = mpsc::sync_channel(1);
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.take(MOST_BYTES).read_to_end(&mut bytes);
        let _ = tx.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    rx
}

/// A child that leads a process group; dropped, the whole group is gone.
pub struct Running(Child);

impl Running {
    /// Starts `command` as the leader of a group of its own.
    pub fn start(command: &mut Command) -> Result<Running, ToolTrouble> {
        let child = command.process_group(0).spawn();
        child.map(Running).map_err(|e| ToolTrouble::NotStarted(e.to_string()))
    }

    fn pid(&self) -> Option<Pid> {
        i32::try_from(self.0.id()).ok().and_then(Pid::from_raw)
    }

    /// Whether it has ended. It is not reaped by that, so its number still belongs to it.
    pub fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        self.pid().is_none_or(|pid| !matches!(waitid(WaitId::Pid(pid), options), Ok(None)))
    }

    /// Ends whoever is left of the group, then reaps the child.
    pub fn end(&mut self) -> Option<ExitStatus> {
        if let Some(group) = self.pid() {
            let _ = kill_process_group(group, Signal::KILL);
        }
        self.0.wait().ok()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // After `end` there is nobody left, and the number may be another's by then.
        if matches!(self.0.try_wait(), Ok(None)) {
            self.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limit: Duration) -> Result<String, ToolTrouble> {
        said(Path::new("/bin/sh"), &["-c", script], Instant::now() + limit, &AtomicBool::new(false))
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn what_a_tool_says() {
        assert_eq!(sh("echo out; echo err >&2", LONG).unwrap(), "out\nerr\n");
        assert_eq!(sh("echo $LC_ALL", LONG).unwrap(), "C\n");
        let failed = sh("echo; echo no such thing >&2; exit 3", LONG).unwrap_err().to_string();
        assert_eq!(failed, "it ends with exit status: 3: no such thing");
        let stop = AtomicBool::new(false);
        let missing = said(Path::new("/nowhere/nsys"), &[], Instant::now() + LONG, &stop);
        assert!(matches!(missing, Err(ToolTrouble::NotStarted(_))));
    }

    /// Whether a process runs; one that has ended and waits to be reaped does not.
    fn runs(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
    }

    fn ends(pid: &str) -> bool {
        let deadline = Instant::now() + LONG;
        while runs(pid) && Instant::now() < deadline {
            thread::sleep(BETWEEN_LOOKS);
        }
        !runs(pid)
    }

    #[test]
    fn one_that_hangs_is_ended_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let pids = folder.path().join("pids");
        let script = format!("sleep 600 & echo $! $$ > {}; wait", pids.display());
        let begun = Instant::now();
        let hung = sh(&script, Duration::from_millis(700)).unwrap_err();
        assert!(matches!(hung, ToolTrouble::TooLong(_)), "{hung}");
        assert!(begun.elapsed() < Duration::from_secs(10));
        let pids = std::fs::read_to_string(&pids).unwrap();
        assert_eq!(pids.split_whitespace().count(), 2);
        assert!(pids.split_whitespace().all(ends), "{pids}");
    }

    #[test]
    fn what_it_leaves_in_the_background_is_ended_too() {
        let begun = Instant::now();
        let pid = sh("sleep 600 & echo $!", LONG).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(10), "its child holds the pipe open");
        assert!(ends(pid.trim()));
    }

    fn streamed_sh(script: &str, limit: Duration) -> (String, Option<ToolTrouble>) {
        let args = ["-c", script].map(OsStr::new);
        let read = |mut stdout: ChildStdout| {
            let mut text = String::new();
            let _ = stdout.read_to_string(&mut text);
            text
        };
        streamed(Path::new("/bin/sh"), &args, Instant::now() + limit, &AtomicBool::new(false), read).unwrap()
    }

    #[test]
    fn what_a_tool_prints_is_read_as_it_comes() {
        let (text, trouble) = streamed_sh("seq 100000; echo heard >&2", LONG);
        assert_eq!((text.lines().count(), trouble), (100_000, None));
        let (text, trouble) = streamed_sh("echo half; echo broken >&2; exit 3", LONG);
        assert_eq!(text, "half\n");
        assert_eq!(trouble.unwrap().to_string(), "it ends with exit status: 3: broken");
        let begun = Instant::now();
        let (text, trouble) = streamed_sh("echo some; sleep 600", Duration::from_millis(500));
        assert_eq!(text, "some\n");
        assert!(matches!(trouble, Some(ToolTrouble::TooLong(_))), "{trouble:?}");
        assert!(begun.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_stop_ends_it() {
        let stop = AtomicBool::new(true);
        let ended = said(Path::new("/bin/sh"), &["-c", "sleep 600"], Instant::now() + LONG, &stop);
        assert_eq!(ended, Err(ToolTrouble::Stopped));
    }
}
