//! The messages of both ends: requests go to the remote host as lines of JSON, frames come back as a line of JSON
//! followed by bytes.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use llmprof_event::{Outcome, RunFinished, SCHEMA};

/// The version of this protocol. It is raised with every change that an older version cannot read.
pub const PROTOCOL: u32 = 1;
/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Maximum bytes after a line.
pub const MAX_PAYLOAD: usize = 256 << 10;

/// The first frame: the remote program and its host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub protocol: u32,
    pub schema: u32,
    pub version: String,
    pub host: String,
    pub os: String,
    pub arch: String,
}

impl Hello {
    pub fn here() -> Hello {
        Hello {
            protocol: PROTOCOL,
            schema: SCHEMA,
            version: VERSION.to_owned(),
            host: std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned(),
            os: std::env::consts::OS.to_owned(),
            arch: std::env::consts::ARCH.to_owned(),
        }
    }
}

/// The work of the remote host.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RemoteRequest {
    /// As typed, including `--model`.
    pub overrides: Vec<String>,
    pub conf_dir: Option<PathBuf>,
    /// Another program, which is followed.
    pub command: Option<Vec<String>>,
    /// The working directory; `None` for the home directory.
    pub dir: Option<PathBuf>,
}

/// From the local end to the remote one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    Start(RemoteRequest),
    Join(Join),
    List,
    /// A command of the remote program, e.g. `doctor`; its output is returned.
    Command {
        args: Vec<String>,
        dir: Option<PathBuf>,
    },
    Order {
        id: u64,
        order: Order,
    },
    Ping {
        n: u64,
    },
    /// Requests the files of a run that have changed since they were last sent over this connection, but at most
    /// `limit_bytes`.
    Fetch {
        run: u32,
        limit_bytes: u64,
    },
}

/// Follows a run that was started before, from the first byte that is not local yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    pub id: String,
    pub news: u64,
    pub run: u32,
    pub events: u64,
}

/// Commands of the keys for the remote run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    Pause(bool),
    ToggleKernels,
    Snapshot {
        name: String,
    },
    /// Starts or cancels a re-run under this tool.
    Tool {
        name: String,
    },
    /// Replaces this run by another one.
    Restart {
        overrides: Vec<String>,
    },
    /// Stores a message of the screen in the log of the run.
    KeepMessage {
        text: String,
    },
    /// Ends the run.
    End {
        outcome: Outcome,
        cause: Option<String>,
    },
    /// Releases an ended run.
    Leave,
}

/// From the remote end to the local one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Frame {
    Hello(Hello),
    /// The name of the run that was started or joined.
    Joined {
        id: String,
    },
    /// `next` is the offset after the news.
    News {
        next: u64,
        news: News,
    },
    /// `len` bytes of `events.ndjson`, from the offset `at` on.
    Events {
        run: u32,
        at: u64,
        len: usize,
    },
    /// The answer to a ping, queued behind everything sent before it. `age_ms` is the age of the newest event when it
    /// was sent.
    Pong {
        n: u64,
        age_ms: Option<f64>,
    },
    /// The start of a file; chunks follow.
    File {
        path: String,
        bytes: u64,
        total_bytes: u64,
    },
    Chunk {
        len: usize,
    },
    /// All files were sent, except those that are too large.
    Fetched {
        run: u32,
        left_out: Vec<String>,
    },
    Runs(Vec<Listed>),
    /// `len` bytes of the output of a command.
    Output {
        stderr: bool,
        len: usize,
    },
    Exit {
        code: u8,
    },
    /// The process of the run ended unexpectedly.
    Died {
        words: String,
    },
    /// `usage`: whether it is a usage error.
    Refused {
        reason: String,
        usage: bool,
    },
}

impl Frame {
    /// The number of bytes after the line.
    pub fn payload(&self) -> usize {
        match self {
            Frame::Events { len, .. } | Frame::Chunk { len } | Frame::Output { len, .. } => *len,
            _ => 0,
        }
    }
}

/// The reports of the remote run, in order of time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    /// A run has begun in `dir`, relative to the working directory.
    Began { run: u32, dir: PathBuf, overrides: Vec<String>, for_tools: bool },
    /// The result of a command.
    Answer { order: u64, message: Option<String>, error: Option<String> },
    /// The run has ended, and no tool is running.
    Done { run: u32, ended: Ended },
    /// Its process ends.
    Left { run: u32, ended: Ended },
    /// The work was refused.
    Refused { reason: String, usage: bool },
}

/// The end of a remote run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    pub finished: RunFinished,
    /// The losses of its recording.
    pub loss: Option<String>,
    pub tool_failures: Vec<String>,
    /// The exit code of a followed program.
    pub exit_code: Option<u8>,
}

/// A remote run, for a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Listed {
    pub id: String,
    pub dir: Option<PathBuf>,
    pub overrides: Vec<String>,
    pub command: Option<Vec<String>>,
    pub age_s: u64,
    /// Whether its process exists.
    pub alive: bool,
    /// Its outcome, if it has ended.
    pub outcome: Option<Outcome>,
}
