//! Runs a tool on a child run: follows the child by its recording, and ends it at the time limit.

use std::{
    fmt,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
    process::{Command, ExitStatus, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::command::ToolCommand;
use crate::progress::progress;
use llmprof_base::tools::{
    process::{Running, WORKING_DIR},
    under::Mark,
};
use llmprof_event::RunFinished;
use llmprof_record::rundir::{Following, RunDir};

const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The number of bytes of each stream's end that are kept for a failure.
const OUTPUT_TAIL_BYTES: u64 = 64 << 10;

/// The end of a tool.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolExit {
    Status(ExitStatus),
    NotStarted(String),
    TimedOut { limit_s: f64 },
    Cancelled,
}

impl ToolExit {
    pub fn is_success(&self) -> bool {
        matches!(self, ToolExit::Status(status) if status.success())
    }
}

impl fmt::Display for ToolExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ToolExit::Status(status) => write!(f, "{status}"),
            ToolExit::NotStarted(error) => write!(f, "not started: {error}"),
            ToolExit::TimedOut { limit_s } => write!(f, "stopped after {limit_s} s"),
            ToolExit::Cancelled => f.write_str("cancelled"),
        }
    }
}

/// The end of a tool and of the run under it.
#[derive(Debug)]
pub struct ToolResult {
    pub exit: ToolExit,
    /// The end of stderr, then that of stdout.
    pub output: String,
    /// Whether the run itself has begun.
    pub began: bool,
    /// The end of the run itself, if it has ended.
    pub finished: Option<RunFinished>,
    pub elapsed: Duration,
}

/// nsys does not always reach the agent that it has just started. With version 2022.4, one start in 25 fails like this.
const FALSE_STARTS: [&str; 2] = ["End of file", "Local Endpoint is not available"];

impl ToolResult {
    /// Whether the tool failed before the run began, with an error that may be transient.
    pub fn is_false_start(&self) -> bool {
        let failed = matches!(self.exit, ToolExit::Status(status) if !status.success());
        failed && !self.began && FALSE_STARTS.iter().any(|text| self.output.contains(text))
    }
}

/// Files and limits of a run under a tool.
pub struct Launch<'a> {
    /// The tool's output is written to these.
    pub stdout: &'a Path,
    pub stderr: &'a Path,
    /// The directory of the child's recording.
    pub run_dir: &'a Path,
    pub mark: &'a Mark,
    pub until: Instant,
    /// The time limit from which `until` follows.
    pub limit_s: f64,
}

/// Runs a tool until it ends, reaches the limit, or `stop` is set. Calls `report` with the activity of the run and the
/// share done. None of its processes is left running.
pub fn supervise(
    command: &ToolCommand,
    launch: &Launch<'_>,
    stop: &AtomicBool,
    report: &mut dyn FnMut(&str, Option<f64>),
) -> ToolResult {
    let started = Instant::now();
    let mut recording = Following::new(&RunDir::open(launch.run_dir));
    let exit = match start(command, launch) {
        Err(error) => ToolExit::NotStarted(error),
        Ok(mut running) => {
            let interrupted = loop {
                // First: a cancel may have killed its processes too.
                if stop.load(Ordering::Acquire) {
                    break Some(ToolExit::Cancelled);
                }
                if running.has_ended() {
                    break None;
                }
                if Instant::now() >= launch.until {
                    break Some(ToolExit::TimedOut { limit_s: launch.limit_s });
                }
                let (doing, share) = doing(&mut recording);
                report(&doing, share);
                thread::sleep(POLL_INTERVAL);
            };
            // A process inside a driver call takes long to die. All others must be killed before that wait: this
            // program may exit in the meantime.
            running.kill();
            launch.mark.kill_all();
            let status = running.end();
            launch.mark.end_all();
            interrupted.or(status.map(ToolExit::Status)).unwrap_or(ToolExit::Cancelled)
        }
    };
    recording.read();
    ToolResult {
        exit,
        output: [tail(launch.stderr), tail(launch.stdout)].concat(),
        began: recording.state.run.is_some(),
        finished: recording.state.finished,
        elapsed: started.elapsed(),
    }
}

fn start(command: &ToolCommand, launch: &Launch<'_>) -> Result<Running, String> {
    let file = |path: &Path| File::create(path).map_err(|e| format!("{}: {e}", path.display()));
    let mut process = Command::new(&command.program);
    process.args(&command.args).envs(&command.environment).current_dir(WORKING_DIR);
    process.stdin(Stdio::null()).stdout(file(launch.stdout)?).stderr(file(launch.stderr)?);
    Running::start(&mut process).map_err(|error| error.to_string())
}

fn tail(path: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(OUTPUT_TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

/// Reads new events, and returns the current activity of the run.
fn doing(recording: &mut Following) -> (String, Option<f64>) {
    recording.read();
    match recording.state.finished {
        Some(_) => ("writing its report".to_owned(), None),
        None => progress(&recording.state),
    }
}
