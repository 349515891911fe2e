//! One ssh connection: its process, and the threads at its pipes.

use std::{
    io::{BufReader, ErrorKind, Read, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Stdio},
    sync::{Arc, Mutex, PoisonError, mpsc as std_mpsc},
    thread,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use super::{
    host::Host,
    protocol::{Frame, Hello, Request},
    trouble::{SshError, check, diagnose},
    wire::{first_line, receive, send_line},
};

/// Maximum frames that wait; each has at most one payload.
const MAX_WAITING: usize = 32;
/// Maximum bytes of stderr that are kept.
const MAX_STDERR: usize = 16 << 10;
/// If ssh asks no questions, the remote program has answered by then.
const HELLO_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for ssh to end by itself.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
const CLOSE_POLL: Duration = Duration::from_millis(5);

/// Whether ssh may ask for a password or about a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// On the terminal of this program.
    Asks,
    Never,
}

/// Input from the remote host.
#[derive(Debug)]
pub enum Incoming {
    Frame(Frame, Vec<u8>),
    /// The end of the input, with the reason.
    Ended(String),
    /// The end of the input, because it was invalid.
    Wrong(String),
}

pub struct Connection {
    child: Child,
    requests: Option<std_mpsc::Sender<Request>>,
    pub frames: mpsc::Receiver<Incoming>,
    /// A warning if the versions of both ends are compatible but differ.
    pub warning: Option<String>,
}

impl Connection {
    /// Connects without questions if possible, otherwise with questions.
    pub fn open_asking(host: &Host) -> Result<Connection, SshError> {
        match Connection::open(host, Patience::Never) {
            Err(trouble) if trouble.asks() => Connection::open(host, Patience::Asks),
            result => result,
        }
    }

    /// Waits until the remote program has identified itself.
    pub fn open(host: &Host, patience: Patience) -> Result<Connection, SshError> {
        let mut command = host.ssh(&host.start_script("remote-serve"), patience == Patience::Never)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if patience == Patience::Never {
            // Ctrl-C at this terminal is meant for this program. A process group that may ask must be in the
            // foreground.
            command.process_group(0);
        }
        let mut child = command.spawn().map_err(|e| SshError::from_start(&e))?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
            return Err(SshError::NoSsh("it has no pipes".to_owned()));
        };
        let (requests, to_send) = std_mpsc::channel();
        let (hello_tx, hello) = std_mpsc::channel();
        let (frames_tx, frames) = mpsc::channel(MAX_WAITING);
        let said = Arc::new(Mutex::new(String::new()));
        thread::spawn(move || write_requests(stdin, &to_send));
        let stderr_thread = {
            let said = Arc::clone(&said);
            thread::spawn(move || keep_stderr(stderr, &said))
        };
        {
            let said = Arc::clone(&said);
            thread::spawn(move || read_frames(stdout, &hello_tx, &frames_tx, &said));
        }
        let mut connection = Connection { child, requests: Some(requests), frames, warning: None };
        let answer = match patience {
            Patience::Never => hello.recv_timeout(HELLO_TIMEOUT).map_err(|_| SshError::Silent {
                host: host.short().to_owned(),
                seconds: HELLO_TIMEOUT.as_secs(),
            })?,
            Patience::Asks => hello.recv().unwrap_or(Err(String::new())),
        };
        match answer {
            Ok(hello) => {
                connection.warning = check(host, &hello)?;
                Ok(connection)
            }
            Err(greeting) => {
                let code = connection.wait(HELLO_TIMEOUT);
                if code.is_none() {
                    let _ = connection.child.kill();
                }
                // After the process has ended, its last output has arrived. A process that it left behind may print
                // endlessly.
                let until = Instant::now() + CLOSE_TIMEOUT;
                while !stderr_thread.is_finished() && Instant::now() < until {
                    thread::sleep(CLOSE_POLL);
                }
                let said = said.lock().unwrap_or_else(PoisonError::into_inner).clone();
                Err(diagnose(host, &said, &greeting, code))
            }
        }
    }

    /// The frames report a lost connection.
    pub fn send(&self, request: Request) {
        if let Some(requests) = &self.requests {
            let _ = requests.send(request);
        }
    }

    /// The exit code of ssh once it has ended; `None` after `limit`.
    fn wait(&mut self, limit: Duration) -> Option<i32> {
        let until = Instant::now() + limit;
        while Instant::now() < until {
            match self.child.try_wait() {
                Ok(None) => thread::sleep(CLOSE_POLL),
                Ok(Some(status)) => return status.code(),
                Err(_) => return None,
            }
        }
        None
    }
}

impl Drop for Connection {
    /// Ends the remote program by closing its input, and kills ssh if that takes too long.
    fn drop(&mut self) {
        self.requests = None;
        self.frames.close();
        while self.frames.try_recv().is_ok() {}
        if self.wait(CLOSE_TIMEOUT).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn write_requests(mut stdin: ChildStdin, requests: &std_mpsc::Receiver<Request>) {
    for request in requests {
        if send_line(&mut stdin, &request).and_then(|()| stdin.flush()).is_err() {
            return;
        }
    }
}

/// Keeps the end of the output of ssh and the remote shell.
fn keep_stderr(mut stderr: ChildStderr, said: &Mutex<String>) {
    let mut buffer = [0; 4096];
    while let Ok(len @ 1..) = stderr.read(&mut buffer) {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        said.push_str(&String::from_utf8_lossy(&buffer[..len]));
        let surplus = said.len().saturating_sub(MAX_STDERR);
        let cut = (surplus..said.len()).find(|at| said.is_char_boundary(*at)).unwrap_or(0);
        said.drain(..cut);
    }
}

/// Reads the hello, or the output in its place, then all frames.
fn read_frames(
    stdout: ChildStdout,
    hello: &std_mpsc::Sender<Result<Hello, String>>,
    frames: &mpsc::Sender<Incoming>,
    said: &Mutex<String>,
) {
    let mut input = BufReader::with_capacity(1 << 18, stdout);
    let answer = first_line(&mut input).map_err(|e| e.to_string()).and_then(|(line, greeting)| {
        match serde_json::from_slice::<Frame>(&line) {
            Ok(Frame::Hello(hello)) => Ok(hello),
            _ => Err(String::from_utf8_lossy(&greeting).into_owned()),
        }
    });
    let is_there = answer.is_ok();
    if hello.send(answer).is_err() || !is_there {
        return;
    }
    let why = loop {
        match receive(&mut input) {
            Ok(Some((frame, payload))) => {
                if frames.blocking_send(Incoming::Frame(frame, payload)).is_err() {
                    return;
                }
            }
            Ok(None) => break String::new(),
            Err(e) if matches!(e.kind(), ErrorKind::InvalidData | ErrorKind::FileTooLarge) => {
                let _ = frames.blocking_send(Incoming::Wrong(e.to_string()));
                return;
            }
            Err(e) => break e.to_string(),
        }
    };
    // ssh prints the reason shortly after it closes the pipe.
    thread::sleep(Duration::from_millis(50));
    let said = said.lock().unwrap_or_else(PoisonError::into_inner);
    let words =
        said.lines().rev().find(|line| !line.trim().is_empty()).map_or(why, |line| line.trim().to_owned());
    let _ = frames.blocking_send(Incoming::Ended(words));
}
