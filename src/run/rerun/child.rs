//! A tool at work on a run: started, followed by what the run records, ended in time.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{
    event::{Phase, RunFinished},
    rundir::{EventReader, Next, RunDir},
    state::RunState,
    tools::{process::Running, under::Mark},
};

use super::command::ToolCommand;

const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
/// Of each stream, what matters of a failure is at its end.
const LAST_BYTES: u64 = 64 << 10;

/// How a tool ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    Exit(ExitStatus),
    NotStarted(String),
    TimedOut {
        limit_s: f64,
    },
    /// Whoever started it wanted it to end.
    Cancelled,
}

impl Ending {
    pub fn words(&self) -> String {
        match self {
            Ending::Exit(status) => status.to_string(),
            Ending::NotStarted(why) => format!("not started: {why}"),
            Ending::TimedOut { limit_s } => format!("ended after {limit_s} s"),
            Ending::Cancelled => "cancelled".to_owned(),
        }
    }
}

/// What is left of it.
#[derive(Debug)]
pub struct Ended {
    pub ending: Ending,
    /// The last of stderr, then of stdout.
    pub said: String,
    /// The run itself has begun.
    pub began: bool,
    /// How the run itself ended, where it came to that.
    pub finished: Option<RunFinished>,
    pub took: Duration,
}

/// nsys does not always reach the agent that it has just started; of version 2022.4, one start in 25 fails so.
const FALSE_STARTS: [&str; 2] = ["End of file", "Local Endpoint is not available"];

impl Ended {
    /// The tool failed before it came to the run, of something that may go well the next time.
    pub fn is_false_start(&self) -> bool {
        let failed = matches!(self.ending, Ending::Exit(status) if !status.success());
        failed && !self.began && FALSE_STARTS.iter().any(|text| self.said.contains(text))
    }
}

/// Where a tool works, and for how long it may.
pub struct Place<'a> {
    /// What it prints goes to files here.
    pub stdout: &'a Path,
    pub stderr: &'a Path,
    /// The directory of the run it looks at.
    pub run_dir: &'a Path,
    pub mark: &'a Mark,
    pub until: Instant,
    /// What `until` was made of.
    pub limit_s: f64,
}

/// Runs a tool to its end, to the limit, or until `stop`. Tells what the run is at, in words, with its share of the whole.
/// Nothing of it is left running, whatever happened.
pub fn attend(
    command: &ToolCommand,
    place: &Place<'_>,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(&str, Option<f64>),
) -> Ended {
    let begun = Instant::now();
    let mut follower = Follower::new(place.run_dir);
    let ending = match started(command, place) {
        Err(why) => Ending::NotStarted(why),
        Ok(mut running) => {
            let early = loop {
                if running.has_ended() {
                    break None;
                }
                if stop.load(Ordering::Acquire) {
                    break Some(Ending::Cancelled);
                }
                if Instant::now() >= place.until {
                    break Some(Ending::TimedOut { limit_s: place.limit_s });
                }
                let (doing, share) = follower.look();
                tell(&doing, share);
                thread::sleep(BETWEEN_LOOKS);
            };
            let status = running.end();
            place.mark.end_all();
            early.or(status.map(Ending::Exit)).unwrap_or(Ending::Cancelled)
        }
    };
    follower.look();
    let said = [last_of(place.stderr), last_of(place.stdout)].concat();
    let began = follower.state.run.is_some();
    Ended { ending, said, began, finished: follower.state.finished, took: begun.elapsed() }
}

fn started(command: &ToolCommand, place: &Place<'_>) -> Result<Running, String> {
    let file = |path: &Path| File::create(path).map_err(|e| format!("{}: {e}", path.display()));
    let mut process = Command::new(&command.program);
    process.args(&command.args).envs(&command.environment);
    process.stdin(Stdio::null()).stdout(file(place.stdout)?).stderr(file(place.stderr)?);
    Running::start(&mut process).map_err(|trouble| trouble.to_string())
}

fn last_of(path: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LAST_BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

/// Reads a run as it is written.
struct Follower {
    events: PathBuf,
    reader: Option<EventReader>,
    state: RunState,
}

impl Follower {
    fn new(run_dir: &Path) -> Follower {
        Follower { events: RunDir::open(run_dir).events(), reader: None, state: RunState::default() }
    }

    /// Takes in what is new, and says what the run is at.
    fn look(&mut self) -> (String, Option<f64>) {
        if self.reader.is_none() {
            // Until its first line is whole there is nothing to read.
            self.reader = EventReader::open(&self.events).ok();
        }
        if let Some(reader) = &mut self.reader {
            while let Ok(Next::Event(envelope)) = reader.read_next() {
                self.state.apply(&envelope);
            }
        }
        doing(&self.state)
    }
}

fn doing(state: &RunState) -> (String, Option<f64>) {
    let Some(run) = &state.run else { return ("starting".to_owned(), None) };
    if state.finished.is_some() {
        return ("writing its report".to_owned(), None);
    }
    if let (Phase::Preparing, Some(preparing)) = (state.phase, &state.preparing) {
        let share = preparing.done as f64 / preparing.total.max(1) as f64;
        return (format!("loading {}", preparing.step), Some(share));
    }
    let words = match &state.active {
        None => "loading".to_owned(),
        Some(active) if active.started.warmup => "warm-up".to_owned(),
        Some(active) if run.requests > 1 => {
            let request = active.started.request.saturating_sub(run.warmup) + 1;
            format!("request {request}/{}, {}", run.requests, state.phase.name())
        }
        Some(_) => state.phase.name().to_owned(),
    };
    (words, Some(state.request_share_done()).filter(|_| state.active.is_some()))
}
