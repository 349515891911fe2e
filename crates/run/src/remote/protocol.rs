//! The messages of both ends: requests go to the remote host as lines of JSON, frames come back as a line of
//! JSON with bytes after it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use llmprof_event::{Outcome, RunFinished, SCHEMA};

/// The version of this protocol. It is raised with every change that an older end cannot read.
pub const PROTOCOL: u32 = 1;
/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The most bytes that come after a line.
pub const MAX_PAYLOAD: usize = 256 << 10;

/// The first frame: which program answers, and where.
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

/// What is to be run on the remote host.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Work {
    /// As typed, `--model` among them.
    pub overrides: Vec<String>,
    pub conf_dir: Option<PathBuf>,
    /// Another program, which is followed.
    pub command: Option<Vec<String>>,
    /// The directory to work in; the home directory if it is not given.
    pub dir: Option<PathBuf>,
}

/// From the local end to the remote one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    Start(Work),
    Join(Join),
    List,
    /// A command of the remote program, such as `doctor`; its output comes back.
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
    /// The files of a run that have changed since they were last sent over this connection, but no more than `limit_bytes`.
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

/// What the keys ask of the remote run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    Pause(bool),
    ToggleKernels,
    Snapshot {
        name: String,
    },
    /// A re-run under this tool, or its end.
    Tool {
        name: String,
    },
    /// Another run in place of this one.
    Restart {
        overrides: Vec<String>,
    },
    /// Keeps what the screen reported in the log of the run.
    KeepMessage {
        text: String,
    },
    /// Ends the run.
    End {
        outcome: Outcome,
        cause: Option<String>,
    },
    /// Nothing more is asked of a run that has ended.
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
    /// `next` is the place of the news after it.
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
    /// The answer to a ping, behind everything that was sent before it. `age_ms`: how old the newest event was when it was sent.
    Pong {
        n: u64,
        age_ms: Option<f64>,
    },
    /// Chunks of it follow.
    File {
        path: String,
        bytes: u64,
        total_bytes: u64,
    },
    Chunk {
        len: usize,
    },
    /// The files were sent, but for those that are too large.
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
    /// The process of the run is gone without an end.
    Died {
        words: String,
    },
    /// `usage`: a mistake of the caller.
    Refused {
        reason: String,
        usage: bool,
    },
}

impl Frame {
    /// Bytes after the line.
    pub fn payload(&self) -> usize {
        match self {
            Frame::Events { len, .. } | Frame::Chunk { len } | Frame::Output { len, .. } => *len,
            _ => 0,
        }
    }
}

/// What the remote run reports, in the order in which it happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    /// A run has begun in `dir`, as seen from the working directory.
    Began { run: u32, dir: PathBuf, overrides: Vec<String>, for_tools: bool },
    /// What became of an order.
    Answer { order: u64, message: Option<String>, error: Option<String> },
    /// The run has ended, and no tool is left.
    Done { run: u32, ended: Ended },
    /// Its process ends.
    Left { run: u32, ended: Ended },
    /// There was no run.
    Refused { reason: String, usage: bool },
}

/// How a remote run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    pub finished: RunFinished,
    /// What its recording lacks.
    pub loss: Option<String>,
    pub tool_failures: Vec<String>,
    /// The exit code of another program that was followed.
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
    /// Its process exists.
    pub alive: bool,
    /// How it ended, if it did.
    pub outcome: Option<Outcome>,
}
