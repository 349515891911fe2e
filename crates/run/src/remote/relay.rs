//! The remote end of a connection: sends the files of the run, and passes commands to it. The run does not depend on
//! it.

use std::{
    env,
    fs::File,
    io::{self, BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use super::{
    files::{self, EVENTS, Sent},
    protocol::{Frame, Hello, Join, MAX_PAYLOAD, News, Request},
    served_dir::{ServedDir, Tail},
    wire::{receive_line, send},
};
use llmprof_base::{foreign::line, read};

/// The interval at which files are read, unless a request arrives.
const POLL: Duration = Duration::from_millis(15);
/// A screen sends a ping every second. Without pings the connection is lost.
const PING_TIMEOUT: Duration = Duration::from_secs(60);
/// The number of bytes read from the end of the output of a crashed run.
const LAST_WORDS: u64 = 2_000;
const MAX_FIRST_LINE_BYTES: u64 = 16 << 20;
/// After this time a started process has its lock.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Answers on stdout until stdin closes.
pub fn serve() -> io::Result<()> {
    let requests = listen();
    let mut out = BufWriter::with_capacity(MAX_PAYLOAD, io::stdout());
    send(&mut out, &Frame::Hello(Hello::here()), b"")?;
    let Ok(request) = requests.recv() else { return Ok(()) };
    let refuse =
        |out: &mut BufWriter<_>, reason: String| send(out, &Frame::Refused { reason, usage: true }, b"");
    let (served_dir, join) = match request {
        Request::Start(work) => {
            let served_dir = match ServedDir::create(&work)
                .and_then(|served_dir| start(&served_dir, work.dir.as_deref()).map(|()| served_dir))
            {
                Ok(served_dir) => served_dir,
                Err(e) => {
                    return refuse(&mut out, format!("the run cannot be started on the remote host: {e}"));
                }
            };
            let id = served_dir.name();
            (served_dir, Join { id, news: 0, run: 0, events: 0 })
        }
        Request::Join(join) => match ServedDir::find(&join.id) {
            Ok(served_dir) => (served_dir, join),
            Err(reason) => return refuse(&mut out, reason),
        },
        Request::List => {
            return match ServedDir::list() {
                Ok(runs) => send(&mut out, &Frame::Runs(runs), b""),
                Err(e) => refuse(&mut out, format!("the runs on the remote host cannot be listed: {e}")),
            };
        }
        Request::Command { args, dir } => return command(&mut out, &args, dir.as_deref()),
        Request::Order { .. } | Request::Ping { .. } | Request::Fetch { .. } => {
            return refuse(&mut out, "no run was started or joined".to_owned());
        }
    };
    send(&mut out, &Frame::Joined { id: served_dir.name() }, b"")?;
    Relay::new(served_dir, join)?.run(&mut out, &requests)
}

/// The requests on stdin; the channel is closed at its end.
fn listen() -> Receiver<Request> {
    let (tx, rx) = mpsc::channel();
    thread::spawn(move || {
        let mut input = BufReader::new(io::stdin());
        while let Ok(Some(request)) = receive_line(&mut input) {
            if tx.send(request).is_err() {
                return;
            }
        }
    });
    rx
}

/// Starts the process of the run, in its own session, with SIGHUP ignored, and without the pipe.
fn start(served_dir: &ServedDir, dir: Option<&Path>) -> io::Result<()> {
    let output = File::create(served_dir.output())?;
    let program = env::current_exe()?;
    // A signal that the shell ignores stays ignored in the program that replaces it.
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", "trap '' HUP; exec \"$@\"", "sh"])
        .arg(program)
        .arg("remote-work")
        .arg(served_dir.path());
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    command.current_dir(directory(dir)?);
    let mut child = command.spawn()?;
    thread::spawn(move || child.wait());
    Ok(())
}

/// The working directory: the home directory unless another is given, which may be relative to it.
fn directory(dir: Option<&Path>) -> io::Result<PathBuf> {
    let home = env::home_dir().filter(|home| home.is_absolute()).map_or_else(env::current_dir, Ok)?;
    let dir = match dir {
        None => home,
        Some(dir) => home.join(dir.strip_prefix("~").unwrap_or(dir)),
    };
    match dir.is_dir() {
        true => Ok(dir),
        false => Err(io::Error::new(
            ErrorKind::NotFound,
            format!("{} is not a directory on the remote host", dir.display()),
        )),
    }
}

struct Relay {
    served_dir: ServedDir,
    /// News before this offset were sent over an earlier connection.
    known_news: u64,
    news: Tail,
    /// The runs that have begun, by their index.
    dirs: Vec<PathBuf>,
    following: u32,
    events: Option<File>,
    at: u64,
    /// The start of the followed run by the clock of this machine; `None` if its time is simulated.
    began_unix_ms: Option<f64>,
    newest: Option<f64>,
    sent: Sent,
    started: Instant,
    has_ended: bool,
    /// Whether the events are no longer at their path, which was reported.
    is_displaced: bool,
    last_ping: Instant,
    buffer: Vec<u8>,
}

impl Relay {
    fn new(served_dir: ServedDir, join: Join) -> io::Result<Relay> {
        let news = served_dir.news();
        served_dir.watch();
        Ok(Relay {
            known_news: join.news,
            news,
            dirs: Vec::new(),
            following: join.run,
            events: None,
            at: join.events,
            began_unix_ms: None,
            newest: None,
            sent: Sent::new(),
            started: Instant::now(),
            has_ended: false,
            is_displaced: false,
            last_ping: Instant::now(),
            buffer: vec![0; MAX_PAYLOAD],
            served_dir,
        })
    }

    fn run(&mut self, out: &mut impl Write, requests: &Receiver<Request>) -> io::Result<()> {
        let mut wait = Duration::ZERO;
        loop {
            match requests.recv_timeout(wait) {
                Ok(request) => self.handle(out, request)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            let alive = self.served_dir.is_alive();
            self.pass_news(out)?;
            let sent = self.pass_events(out)?;
            wait = if sent == self.buffer.len() { Duration::ZERO } else { POLL };
            if !alive && !self.has_ended && (!self.dirs.is_empty() || self.started.elapsed() > START_LIMIT) {
                // It may have ended normally between the two reads.
                self.pass_news(out)?;
                if !self.has_ended {
                    self.has_ended = true;
                    send(out, &Frame::Died { words: last_words(&self.served_dir.output()) }, b"")?;
                }
            }
            if self.last_ping.elapsed() > PING_TIMEOUT {
                return Ok(());
            }
        }
    }

    fn handle(&mut self, out: &mut impl Write, request: Request) -> io::Result<()> {
        match request {
            Request::Ping { n } => {
                self.last_ping = Instant::now();
                self.served_dir.watch();
                self.pass_events(out)?;
                send(out, &Frame::Pong { n, age_ms: self.newest.take() }, b"")
            }
            Request::Order { .. } if !self.served_dir.is_alive() && !self.dirs.is_empty() => {
                let Request::Order { id, .. } = request else { return Ok(()) };
                let error = Some("the remote run has ended, and its process with it".to_owned());
                let news = News::Answer { order: id, message: None, error };
                send(out, &Frame::News { next: self.known_news, news }, b"")
            }
            order @ Request::Order { .. } => self.served_dir.orders().append(&order),
            Request::Fetch { run, limit_bytes } => {
                self.pass_all(out)?;
                let left_out = match self.dirs.get(run as usize) {
                    Some(dir) => files::send_dir(out, dir, limit_bytes, &mut self.sent)?,
                    None => Vec::new(),
                };
                send(out, &Frame::Fetched { run, left_out }, b"")
            }
            Request::Start(_) | Request::Join(_) | Request::List | Request::Command { .. } => {
                let reason = "this connection already has a run".to_owned();
                send(out, &Frame::Refused { reason, usage: true }, b"")
            }
        }
    }

    fn pass_news(&mut self, out: &mut impl Write) -> io::Result<()> {
        for (next, news) in self.news.read_placed::<News>()? {
            match &news {
                News::Began { run, dir, .. } => {
                    let number = *run as usize;
                    if number == self.dirs.len() {
                        self.dirs.push(dir.clone());
                    }
                    if next > self.known_news && *run != self.following {
                        // The rest of the previous run.
                        self.pass_all(out)?;
                        (self.following, self.events, self.at) = (*run, None, 0);
                    }
                    if *run == self.following {
                        self.open_events(dir);
                    }
                }
                News::Left { .. } => {
                    self.pass_all(out)?;
                    self.has_ended = true;
                }
                News::Refused { .. } => self.has_ended = true,
                News::Done { .. } => self.pass_all(out)?,
                News::Answer { .. } => {}
            }
            if next > self.known_news {
                self.known_news = next;
                send(out, &Frame::News { next, news }, b"")?;
            }
        }
        Ok(())
    }

    fn open_events(&mut self, dir: &Path) {
        self.events = File::open(dir.join(EVENTS)).ok();
        self.began_unix_ms = began_unix_ms(dir);
    }

    /// Sends at most one payload of the appended events. Returns the number of bytes.
    fn pass_events(&mut self, out: &mut impl Write) -> io::Result<usize> {
        if self.events.is_none()
            && let Some(dir) = self.dirs.get(self.following as usize).cloned()
        {
            self.open_events(&dir);
            if self.events.is_none() && !std::mem::replace(&mut self.is_displaced, true) {
                let reason = format!(
                    "{} was moved or deleted on the remote host: the run cannot be shown",
                    dir.display()
                );
                send(out, &Frame::Refused { reason, usage: false }, b"")?;
            }
        }
        let Some(file) = &mut self.events else { return Ok(0) };
        file.seek(SeekFrom::Start(self.at))?;
        let len = file.read(&mut self.buffer)?;
        if len == 0 {
            return Ok(0);
        }
        let payload = &self.buffer[..len];
        if let (Some(began), Some(t_ms)) = (self.began_unix_ms, last_time_ms(payload)) {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1e3;
            self.newest = Some((now - began - t_ms).max(0.0));
        }
        send(out, &Frame::Events { run: self.following, at: self.at, len }, payload)?;
        self.at += len as u64;
        Ok(len)
    }

    fn pass_all(&mut self, out: &mut impl Write) -> io::Result<()> {
        while self.pass_events(out)? > 0 {}
        Ok(())
    }
}

/// The start of the run in `dir` by the clock of this machine; `None` if its time is simulated.
fn began_unix_ms(dir: &Path) -> Option<f64> {
    let mut first = Vec::new();
    let mut events = BufReader::new(File::open(dir.join(EVENTS)).ok()?);
    read::line(&mut events, MAX_FIRST_LINE_BYTES, &mut first).ok()?;
    let first: serde_json::Value = serde_json::from_slice(&first).ok()?;
    let started = first.pointer("/e/run_started")?;
    let simulated = started.get("simulated")?.as_bool()?;
    started.get("started_unix_ms")?.as_f64().filter(|_| !simulated)
}

/// The time of the last complete line, in milliseconds.
fn last_time_ms(payload: &[u8]) -> Option<f64> {
    let end = payload.iter().rposition(|b| *b == b'\n')?;
    let start = payload[..end].iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
    let digits = payload[start..end].strip_prefix(b"{\"t\":")?;
    let digits: String = digits.iter().take_while(|b| b.is_ascii_digit()).map(|b| char::from(*b)).collect();
    digits.parse::<u64>().ok().map(|ns| ns as f64 / 1e6)
}

/// The last output of an ended process.
fn last_words(output: &Path) -> String {
    let read = || {
        let mut file = File::open(output)?;
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(LAST_WORDS)))?;
        let mut bytes = Vec::new();
        file.take(LAST_WORDS).read_to_end(&mut bytes)?;
        io::Result::Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let last = text.lines().rev().find(|text| !text.trim().is_empty());
    last.map_or_else(|| "it was killed".to_owned(), |text| line(text.trim(), 300))
}

/// Runs a command of this program, with its output in frames. It ends with the connection.
fn command(out: &mut impl Write, args: &[String], dir: Option<&Path>) -> io::Result<()> {
    let mut command = Command::new(env::current_exe()?);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.current_dir(match directory(dir) {
        Ok(dir) => dir,
        Err(e) => return send(out, &Frame::Refused { reason: e.to_string(), usage: true }, b""),
    });
    let mut child = command.spawn()?;
    let (tx, rx) = mpsc::sync_channel::<(bool, Vec<u8>)>(16);
    let pipes: [(bool, Option<Box<dyn Read + Send>>); 2] = [
        (false, child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>)),
        (true, child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>)),
    ];
    for (stderr, pipe) in pipes {
        let (Some(mut pipe), tx) = (pipe, tx.clone()) else { continue };
        thread::spawn(move || {
            let mut buffer = vec![0; MAX_PAYLOAD];
            while let Ok(len @ 1..) = pipe.read(&mut buffer) {
                if tx.send((stderr, buffer[..len].to_vec())).is_err() {
                    return;
                }
            }
        });
    }
    drop(tx);
    for (stderr, bytes) in rx {
        if let Err(e) = send(out, &Frame::Output { stderr, len: bytes.len() }, &bytes) {
            let _ = child.kill();
            return Err(e);
        }
    }
    let code = child.wait()?.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    send(out, &Frame::Exit { code }, b"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_the_last_whole_line_counts() {
        assert_eq!(last_time_ms(b"{\"t\":1000000,\"e\":1}\n{\"t\":2500000,\"e\":2}\n{\"t\":9"), Some(2.5));
        assert_eq!(last_time_ms(b"{\"t\":1000000,\"e\":1}\n"), Some(1.0));
        for text in [&b""[..], b"\n", b"{\"t\":9", b"x\n", b"{\"t\":}\n"] {
            assert_eq!(last_time_ms(text), None, "{text:?}");
        }
    }
}
