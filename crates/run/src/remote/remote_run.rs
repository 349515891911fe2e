//! The local side of a remote run: the fold of its events, commands to it, and a connection that reconnects by itself.

mod intake;
mod link;

use std::{
    collections::{HashSet, VecDeque},
    hash::{BuildHasher, Hasher, RandomState},
    path::{Path, PathBuf},
    time::Instant,
};

use self::link::State;
use super::{
    connection::Connection,
    files::Inbox,
    host::Host,
    lag::Lag,
    mirror::{Copies, Mirror},
    protocol::{Ended, Order, RemoteRequest, Request},
};
use crate::session::SessionSummary;
use llmprof_base::foreign::message;
use llmprof_config::Override;
use llmprof_event::{RunFinished, Tool, ToolState};
use llmprof_record::{
    rundir::Loss,
    state::{RunState, Snapshot},
};

/// Maximum events per batch, so that keys and frames are processed in between.
const BATCH_EVENTS: usize = 4096;
/// Maximum frames per batch.
const BATCH_FRAMES: usize = 32;
/// Maximum messages that wait for the screen.
const MAX_SAID: usize = 16;

/// The action on the remote host.
#[derive(Debug, Clone)]
pub enum Start {
    New(RemoteRequest),
    /// Reconnects to a run by name; if empty, to the only one.
    Again(String),
}

/// A message of the remote end for the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteMessage {
    Message(String),
    Error(String),
}

/// The files of a run that are being copied, or are queued.
struct Fetch {
    run: u32,
    dir: PathBuf,
    inbox: Option<Inbox>,
}

/// A remote run that has begun.
struct Begun {
    run: u32,
    overrides: Vec<String>,
    for_tools: bool,
    mirror: Mirror,
    /// The number of times that its end was reported.
    ends: u32,
}

pub struct RemoteRun {
    pub state: RunState,
    /// The number of runs that have begun on the remote host.
    runs: u32,
    host: Host,
    start: Start,
    copies: Copies,
    limit_bytes: u64,
    connection: State,
    id: Option<String>,
    news_at: u64,
    begun: Option<Begun>,
    /// The unanswered commands.
    orders: VecDeque<(u64, Order)>,
    next_order: u64,
    /// Commands whose answers are not shown to the user.
    unspoken: HashSet<u64>,
    wants_pause: Option<bool>,
    /// Whether the run was released.
    leaves: bool,
    /// The output of a followed program, if it is requested: lines, and whether they are of stderr.
    output: Option<VecDeque<(bool, String)>>,
    restarts: bool,
    said: VecDeque<RemoteMessage>,
    lag: Lag,
    lost: Option<(Instant, String)>,
    attempts: u32,
    next_attempt: Instant,
    fetches: VecDeque<Fetch>,
    left_out: Vec<String>,
    /// The run has ended, and no tool is running.
    done: Option<Ended>,
    /// Its process has ended too.
    left: bool,
    /// Why there is no run, or no longer.
    failed: Option<(String, bool)>,
    ended: Vec<SessionSummary>,
    earlier_snapshots: Vec<Snapshot>,
}

impl RemoteRun {
    /// Uses `connection` for `start`. No copy of a run may be larger than `limit_bytes`.
    pub fn new(
        host: Host,
        connection: Connection,
        start: Start,
        copies: Copies,
        limit_bytes: u64,
    ) -> RemoteRun {
        let now = Instant::now();
        let mut run = RemoteRun {
            state: RunState::default(),
            runs: 0,
            host,
            start,
            copies,
            limit_bytes,
            connection: State::Waiting,
            id: None,
            news_at: 0,
            begun: None,
            orders: VecDeque::new(),
            // Two local ends may send commands to one run.
            next_order: RandomState::new().build_hasher().finish(),
            unspoken: HashSet::new(),
            wants_pause: None,
            leaves: false,
            output: None,
            restarts: false,
            said: connection.warning.iter().cloned().map(RemoteMessage::Message).collect(),
            lag: Lag::new(now),
            lost: None,
            attempts: 0,
            next_attempt: now,
            fetches: VecDeque::new(),
            left_out: Vec::new(),
            done: None,
            left: false,
            failed: None,
            ended: Vec::new(),
            earlier_snapshots: Vec::new(),
        };
        run.connected(connection);
        run
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The name of the remote run.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// The index of this run among those that were started on the remote host.
    pub fn number(&self) -> Option<u32> {
        self.begun.as_ref().map(|begun| begun.run)
    }

    /// The snapshots of the runs before this one.
    pub fn earlier_snapshots(&self) -> &[Snapshot] {
        &self.earlier_snapshots
    }

    pub fn is_connected(&self) -> bool {
        matches!(self.connection, State::Up(_))
    }

    /// The local directory.
    pub fn dir(&self) -> Option<&Path> {
        self.begun.as_ref().map(|begun| begun.mirror.dir())
    }

    pub fn overrides(&self) -> &[String] {
        self.begun.as_ref().map_or(&[], |begun| &begun.overrides)
    }

    pub fn is_for_tools_alone(&self) -> bool {
        self.begun.as_ref().is_some_and(|begun| begun.for_tools)
    }

    /// Whether the run was started to follow a program.
    pub fn follows_program(&self) -> bool {
        matches!(&self.start, Start::New(RemoteRequest { command: Some(_), .. }))
    }

    /// The end of the run, once no tool is running.
    pub fn done(&self) -> Option<&Ended> {
        self.done.as_ref()
    }

    /// Why there is no run; true for a usage error.
    pub fn failed(&self) -> Option<&(String, bool)> {
        self.failed.as_ref()
    }

    /// Whether nothing more arrives: the run has ended, all input was read, and its files are local.
    pub fn is_complete(&self) -> bool {
        self.done.is_some()
            && self.fetches.is_empty()
            && self.begun.as_ref().is_none_or(|begun| begun.mirror.is_read)
    }

    /// Whether the run continues on the remote host without this end.
    pub fn is_running(&self) -> bool {
        self.id.is_some() && self.done.is_none() && self.failed.is_none()
    }

    /// Files that were too large, by their remote paths.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// A message for the screen.
    pub fn take_said(&mut self) -> Option<RemoteMessage> {
        self.said.pop_front()
    }

    /// Keeps the output of a program for [`take_output`](Self::take_output) from now on.
    pub fn keep_output(&mut self) {
        self.output.get_or_insert_default();
    }

    /// The next line of a program's output, and whether it is of stderr.
    pub fn take_output(&mut self) -> Option<(bool, String)> {
        self.output.as_mut()?.pop_front()
    }

    /// Bytes that were fetched, and the total.
    pub fn fetching(&self) -> Option<(u64, u64)> {
        let inbox = self.fetches.front()?.inbox.as_ref()?;
        Some((inbox.bytes, inbox.total_bytes))
    }

    /// The tool of the re-run in progress.
    pub fn tool(&self) -> Option<Tool> {
        let run = self.state.kernels.tool_run.as_ref()?;
        let working = matches!(run.state, ToolState::Working { .. });
        let (tool, ..) = self.state.kernels.working().filter(|_| working)?;
        [Tool::Nsys, Tool::Ncu].into_iter().find(|known| known.to_string() == tool)
    }

    /// The requested action that has not happened yet.
    pub fn pending(&self) -> Option<&'static str> {
        let paused = self.state.workload_paused_at.is_some();
        match self.wants_pause {
            _ if self.restarts => Some("ending this run"),
            Some(true) if !paused && self.state.finished.is_none() => Some("pausing"),
            _ => None,
        }
    }

    /// The losses of the recording.
    pub fn loss(&self) -> Option<Loss> {
        let words = self.done.as_ref()?.loss.clone()?;
        Some(Loss::There { words: message(&words) })
    }

    /// Sends a command, now or after reconnecting.
    pub fn order(&mut self, order: Order) {
        self.leaves |= order == Order::Leave;
        if matches!(order, Order::KeepMessage { .. }) {
            self.unspoken.insert(self.next_order);
        }
        let id = self.next_order;
        self.next_order = self.next_order.wrapping_add(1);
        if let State::Up(connection) = &self.connection {
            connection.send(Request::Order { id, order: order.clone() });
        }
        self.orders.push_back((id, order));
    }

    /// Whether there are unanswered commands.
    pub fn has_orders(&self) -> bool {
        !self.orders.is_empty()
    }

    pub fn toggle_pause(&mut self) {
        let paused = self.wants_pause.unwrap_or(self.state.workload_paused_at.is_some());
        self.wants_pause = Some(!paused);
        self.order(Order::Pause(!paused));
    }

    pub fn restart(&mut self, overrides: &[Override]) {
        self.restarts = true;
        self.order(Order::Restart { overrides: Override::texts(overrides) });
    }

    /// The ends of the runs so far, including the last one once it has ended.
    pub fn summaries(&self) -> Vec<SessionSummary> {
        let last = self.done.as_ref().map(|ended| self.summary(ended));
        self.ended.iter().cloned().chain(last).collect()
    }

    fn summary(&self, ended: &Ended) -> SessionSummary {
        let words = |text: &String| message(text);
        let RunFinished { outcome, cause } = &ended.finished;
        SessionSummary {
            finished: RunFinished { outcome: *outcome, cause: cause.as_ref().map(words) },
            metrics: self.state.summary(),
            dir: self.dir().map(Path::to_owned),
            loss: self.loss().or_else(|| ended.loss.as_ref().map(|text| Loss::There { words: words(text) })),
            tool_failures: ended.tool_failures.iter().map(words).collect(),
            began: true,
        }
    }
}
