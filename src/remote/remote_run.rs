//! A run on another machine as this end has it: the fold of its events, orders to it, and a connection that comes back by itself.

mod intake;

use std::{
    collections::{HashSet, VecDeque},
    hash::{BuildHasher, Hasher, RandomState},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::{
    connection::{Connection, Patience},
    files::Inbox,
    host::Host,
    lag::Lag,
    mirror::Mirror,
    protocol::{Ended, Join, Order, Request, Work},
    trouble::Trouble,
};
use crate::{
    base::foreign::message,
    event::{RunFinished, ToolState},
    run::{rerun::Tool, session::SessionSummary},
    rundir::Loss,
    state::{RunState, Snapshot},
};

/// After so long without an answer the screen says so.
const SILENT: Duration = Duration::from_secs(3);
/// After so long the connection is given up.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Between two attempts to connect again: the first, and the longest.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Events taken in before keys and frames have their turn.
const BATCH_EVENTS: usize = 4096;
/// Frames taken in at a time.
const BATCH_FRAMES: usize = 32;
/// What the screen may still have to say.
const MAX_SAID: usize = 16;
/// While the connection is lost, the time since is shown.
const REDRAW: Duration = Duration::from_millis(250);

/// What to do there.
#[derive(Debug, Clone)]
pub enum Start {
    New(Work),
    /// A run that was started before; empty for the only one.
    Again(String),
}

/// The connection, for the screen.
#[derive(Debug, Clone, PartialEq)]
pub enum Link {
    /// How far this end is behind, once it was measured.
    Up {
        behind_ms: Option<f64>,
    },
    /// There is no answer.
    Silent {
        since: Duration,
    },
    Lost {
        since: Duration,
        next: Option<Duration>,
        reason: String,
    },
    /// Nothing more comes.
    Closed,
}

/// What the far end answered, for the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    Message(String),
    Error(String),
}

enum State {
    Up(Box<Connection>),
    Opening(oneshot::Receiver<Result<Connection, Trouble>>),
    Waiting,
    /// Trying again by itself does not help.
    GivenUp,
}

/// The files of a run that are fetched, or are to be.
struct Fetch {
    run: u32,
    dir: PathBuf,
    inbox: Option<Inbox>,
}

/// A run there that has begun.
struct Begun {
    run: u32,
    overrides: Vec<String>,
    for_tools: bool,
    mirror: Mirror,
}

pub struct RemoteRun {
    pub state: RunState,
    host: Host,
    start: Start,
    /// Below it are the copies of runs.
    root: PathBuf,
    limit_bytes: u64,
    connection: State,
    id: Option<String>,
    news_at: u64,
    begun: Option<Begun>,
    /// Not answered yet.
    orders: VecDeque<(u64, Order)>,
    next_order: u64,
    /// Orders whose answers are not for the user.
    unspoken: HashSet<u64>,
    wants_pause: Option<bool>,
    /// Nothing more is asked of the run.
    leaves: bool,
    /// What a program that is followed has printed, where somebody takes it: lines, and whether they are of stderr.
    output: Option<VecDeque<(bool, String)>>,
    restarts: bool,
    said: VecDeque<Said>,
    lag: Lag,
    lost: Option<(Instant, String)>,
    attempts: u32,
    next_attempt: Instant,
    fetches: VecDeque<Fetch>,
    left_out: Vec<String>,
    /// The run has ended, and no tool is left.
    done: Option<Ended>,
    /// Its process has ended too.
    left: bool,
    /// There is no run, or it is gone.
    failed: Option<(String, bool)>,
    ended: Vec<SessionSummary>,
    earlier_snapshots: Vec<Snapshot>,
}

impl RemoteRun {
    /// Uses `connection` for what `start` says. Copies of runs go below `root`; no run may be larger than `limit_bytes`.
    pub fn new(
        host: Host,
        connection: Connection,
        start: Start,
        root: PathBuf,
        limit_bytes: u64,
    ) -> RemoteRun {
        let now = Instant::now();
        let mut run = RemoteRun {
            state: RunState::default(),
            host,
            start,
            root,
            limit_bytes,
            connection: State::Waiting,
            id: None,
            news_at: 0,
            begun: None,
            orders: VecDeque::new(),
            // Two ends may give orders to one run.
            next_order: RandomState::new().build_hasher().finish(),
            unspoken: HashSet::new(),
            wants_pause: None,
            leaves: false,
            output: None,
            restarts: false,
            said: connection.warning.iter().cloned().map(Said::Message).collect(),
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

    /// The name of the run there.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Which of the runs that were started there one after another this is.
    pub fn number(&self) -> Option<u32> {
        self.begun.as_ref().map(|begun| begun.run)
    }

    /// Of the runs before it.
    pub fn earlier_snapshots(&self) -> &[Snapshot] {
        &self.earlier_snapshots
    }

    pub fn is_connected(&self) -> bool {
        matches!(self.connection, State::Up(_))
    }

    /// The directory here.
    pub fn dir(&self) -> Option<&Path> {
        self.begun.as_ref().map(|begun| begun.mirror.dir())
    }

    pub fn overrides(&self) -> &[String] {
        self.begun.as_ref().map_or(&[], |begun| &begun.overrides)
    }

    pub fn is_for_tools_alone(&self) -> bool {
        self.begun.as_ref().is_some_and(|begun| begun.for_tools)
    }

    /// How the run ended, once no tool is left.
    pub fn done(&self) -> Option<&Ended> {
        self.done.as_ref()
    }

    /// Why there is no run; true for a mistake of the caller.
    pub fn failed(&self) -> Option<&(String, bool)> {
        self.failed.as_ref()
    }

    /// Nothing more comes by itself: the run has ended, everything that came was read, and its files are here.
    pub fn is_complete(&self) -> bool {
        self.done.is_some()
            && self.fetches.is_empty()
            && self.begun.as_ref().is_none_or(|begun| begun.mirror.is_read)
    }

    /// The run goes on there without this end.
    pub fn goes_on(&self) -> bool {
        self.id.is_some() && self.done.is_none() && self.failed.is_none()
    }

    /// Files that were too large, by their paths there.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// What the screen has to say.
    pub fn take_said(&mut self) -> Option<Said> {
        self.said.pop_front()
    }

    /// From now on the lines that a program prints are kept for [`take_output`](Self::take_output).
    pub fn keep_output(&mut self) {
        self.output.get_or_insert_default();
    }

    /// The next line that a program has printed, and whether on stderr.
    pub fn take_output(&mut self) -> Option<(bool, String)> {
        self.output.as_mut()?.pop_front()
    }

    /// Bytes that were fetched, and of how many.
    pub fn fetching(&self) -> Option<(u64, u64)> {
        let inbox = self.fetches.front()?.inbox.as_ref()?;
        Some((inbox.bytes, inbox.total_bytes))
    }

    pub fn link(&self) -> Link {
        let reason = || self.lost.as_ref().map(|(_, reason)| reason.clone()).unwrap_or_default();
        let since = self.lost.as_ref().map(|(at, _)| at.elapsed()).unwrap_or_default();
        match &self.connection {
            State::Up(_) => match self.lag.silence(Instant::now()) {
                since if since > SILENT => Link::Silent { since },
                _ => Link::Up { behind_ms: self.lag.behind_ms() },
            },
            _ if self.is_complete() => Link::Closed,
            State::Opening(_) => Link::Lost { since, next: Some(Duration::ZERO), reason: reason() },
            State::Waiting => {
                let next = self.next_attempt.saturating_duration_since(Instant::now());
                Link::Lost { since, next: Some(next), reason: reason() }
            }
            State::GivenUp => Link::Lost { since, next: None, reason: reason() },
        }
    }

    /// The tool of the re-run in progress.
    pub fn tool(&self) -> Option<Tool> {
        let run = self.state.kernels.tool_run.as_ref()?;
        let working = matches!(run.state, ToolState::Working { .. });
        let (tool, ..) = self.state.kernels.working().filter(|_| working)?;
        [Tool::Nsys, Tool::Ncu].into_iter().find(|known| known.to_string() == tool)
    }

    /// What was asked and has not happened yet.
    pub fn pending(&self) -> Option<&'static str> {
        let paused = self.state.workload_paused_at.is_some();
        match self.wants_pause {
            _ if self.restarts => Some("ending this run"),
            Some(true) if !paused && self.state.finished.is_none() => Some("pausing"),
            _ => None,
        }
    }

    /// What the recording lacks.
    pub fn loss(&self) -> Option<Loss> {
        let words = self.done.as_ref()?.loss.clone()?;
        Some(Loss::There { words: message(&words) })
    }

    /// Takes what has come: keeps it, then applies its events to the state. Connects again where that is due. Returns how much
    /// has changed.
    pub async fn pump(&mut self) -> usize {
        tokio::task::yield_now().await;
        let is_read = self.begun.as_ref().is_none_or(|begun| begun.mirror.is_read);
        let wake = self.wake();
        let mut changed = 0;
        match &mut self.connection {
            _ if !is_read => {}
            State::Up(connection) => {
                tokio::select! {
                    incoming = connection.frames.recv() => changed += self.take_frames(incoming),
                    () = tokio::time::sleep_until(wake.into()) => {}
                }
                // The lag, or the time without an answer.
                changed += 1;
            }
            State::Opening(opening) => {
                tokio::select! {
                    opened = opening => {
                        match opened.unwrap_or_else(|_| Err(Trouble::NoSsh("its thread is gone".to_owned()))) {
                            Ok(connection) => self.connected(connection),
                            Err(trouble) => self.not_connected(&trouble),
                        }
                    }
                    () = tokio::time::sleep_until(wake.into()) => {}
                }
                changed += 1;
            }
            State::Waiting => {
                tokio::time::sleep_until(wake.into()).await;
                changed += 1;
            }
            State::GivenUp => {
                tokio::time::sleep_until(wake.into()).await;
                changed += usize::from(!self.is_complete());
            }
        }
        self.tick();
        changed + self.take_events()
    }

    fn wake(&self) -> Instant {
        let redraw = Instant::now() + REDRAW;
        match &self.connection {
            State::Up(_) => self.lag.next(),
            State::Waiting => self.next_attempt.min(redraw),
            State::Opening(_) | State::GivenUp => redraw,
        }
    }

    fn tick(&mut self) {
        let now = Instant::now();
        if let State::Up(connection) = &self.connection {
            if let Some(n) = self.lag.due(now) {
                connection.send(Request::Ping { n });
            }
            if let Some(fetch) = self.fetches.front_mut().filter(|fetch| fetch.inbox.is_none()) {
                match Inbox::new(&fetch.dir, self.limit_bytes) {
                    Ok(inbox) => {
                        fetch.inbox = Some(inbox);
                        connection.send(Request::Fetch { run: fetch.run, limit_bytes: self.limit_bytes });
                    }
                    Err(e) => {
                        let text = format!("{}: {e}: the files of the run stay there", fetch.dir.display());
                        self.fetches.pop_front();
                        self.say(Said::Message(text));
                    }
                }
            }
            if self.lag.silence(now) > PING_TIMEOUT {
                self.lose(format!("no answer for {} s", PING_TIMEOUT.as_secs()));
            }
        } else if matches!(self.connection, State::Waiting) && now >= self.next_attempt && !self.is_complete()
        {
            self.reconnect();
        }
    }

    /// Connects again now, in the background and without questions.
    pub fn reconnect(&mut self) {
        if matches!(self.connection, State::Up(_) | State::Opening(_)) {
            return;
        }
        let (tx, rx) = oneshot::channel();
        let host = self.host.clone();
        thread::spawn(move || drop(tx.send(Connection::open(&host, Patience::Never))));
        self.connection = State::Opening(rx);
    }

    /// Sends which run this is about, and what was not answered.
    fn connected(&mut self, connection: Connection) {
        let join = |id: &String, events: u64, run: u32| {
            Request::Join(Join { id: id.clone(), news: self.news_at, run, events })
        };
        let begun = self.begun.as_ref().map_or((0, 0), |begun| (begun.mirror.bytes(), begun.run));
        connection.send(match (&self.id, &self.start) {
            (Some(id), _) => join(id, begun.0, begun.1),
            (None, Start::New(work)) => Request::Start(work.clone()),
            (None, Start::Again(id)) => join(id, 0, 0),
        });
        for (id, order) in &self.orders {
            connection.send(Request::Order { id: *id, order: order.clone() });
        }
        self.connection = State::Up(Box::new(connection));
        if let Some((since, _)) = self.lost.take() {
            let text = format!(
                "connected to {} again after {:.0} s",
                self.host.short(),
                since.elapsed().as_secs_f64()
            );
            self.say(Said::Message(text));
        }
        self.attempts = 0;
        self.lag.begin(Instant::now());
        // What came of a file is not kept; it is sent again.
        self.fetches.iter_mut().for_each(|fetch| fetch.inbox = None);
    }

    fn not_connected(&mut self, trouble: &Trouble) {
        if trouble.is_lasting() {
            return self.give_up(trouble.to_string());
        }
        self.lose(trouble.to_string());
    }

    /// The connection is gone; the run is not.
    fn lose(&mut self, reason: String) {
        let since = self.lost.as_ref().map_or_else(Instant::now, |(since, _)| *since);
        self.lost = Some((since, reason));
        let wait = FIRST_WAIT.saturating_mul(1 << self.attempts.min(5)).min(LONGEST_WAIT);
        self.attempts += 1;
        if let State::Up(connection) = std::mem::replace(&mut self.connection, State::Waiting) {
            // A connection that hangs takes a moment to end.
            thread::spawn(move || drop(connection));
        }
        self.next_attempt = Instant::now() + wait;
        self.lag.begin(Instant::now());
        if self.id.is_none() && self.failed.is_none() {
            let (_, reason) = self.lost.clone().unwrap_or((Instant::now(), String::new()));
            let text = format!(
                "the connection to {} broke before it named a run: {reason}; {} --reconnect list shows whether one was started",
                self.host.short(),
                self.host.command_line()
            );
            self.failed = Some((text, false));
        }
    }

    fn give_up(&mut self, reason: String) {
        self.lose(reason.clone());
        self.connection = State::GivenUp;
        if self.begun.is_none() {
            self.failed.get_or_insert((reason.clone(), false));
        }
        self.say(Said::Error(reason));
    }

    /// Gives an order, now or when the connection is back.
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

    /// Orders that were not answered.
    pub fn has_orders(&self) -> bool {
        !self.orders.is_empty()
    }

    pub fn toggle_pause(&mut self) {
        let paused = self.wants_pause.unwrap_or(self.state.workload_paused_at.is_some());
        self.wants_pause = Some(!paused);
        self.order(Order::Pause(!paused));
    }

    pub fn restart(&mut self, overrides: Vec<String>) {
        self.restarts = true;
        self.order(Order::Restart { overrides });
    }

    /// How the runs ended, so far. The last is among them once it has ended.
    pub fn summaries(&self) -> Vec<SessionSummary> {
        let last = self.done.as_ref().map(|ended| self.summary(ended));
        self.ended.iter().cloned().chain(last).collect()
    }

    fn summary(&self, ended: &Ended) -> SessionSummary {
        let words = |text: &String| message(text);
        let RunFinished { outcome, cause } = &ended.finished;
        SessionSummary {
            finished: RunFinished { outcome: *outcome, cause: cause.as_ref().map(words) },
            metrics: self.state.total.summary(),
            dir: self.dir().map(Path::to_owned),
            loss: self.loss().or_else(|| ended.loss.as_ref().map(|text| Loss::There { words: words(text) })),
            tool_failures: ended.tool_failures.iter().map(words).collect(),
        }
    }
}
