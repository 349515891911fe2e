//! The connection of a run as the local end manages it: pings, losses, reconnecting.

use std::{
    thread,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::{RemoteMessage, RemoteRun, Start};
use crate::remote::{
    connection::{Connection, Patience},
    files::Inbox,
    protocol::{Join, Request},
    trouble::SshError,
};
use llmprof_event::Link;

/// After this time without an answer the screen reports it.
const SILENT: Duration = Duration::from_secs(3);
/// After this time without an answer the connection is dropped.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// The first and the longest wait between two attempts to reconnect.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// While the connection is lost, the time since then is redrawn at this interval.
const REDRAW: Duration = Duration::from_millis(250);

pub(super) enum State {
    Up(Box<Connection>),
    Opening(oneshot::Receiver<Result<Connection, SshError>>),
    Waiting,
    /// Further attempts are useless.
    GivenUp,
}

impl RemoteRun {
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

    /// Processes the input: stores it, then applies its events to the state. Reconnects if that is due. Returns the
    /// number of changes.
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
                        match opened.unwrap_or_else(|_| Err(SshError::NoSsh("its thread is gone".to_owned()))) {
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
                        let text = format!(
                            "{}: {e}: the files of the run stay on the remote host",
                            fetch.dir.display()
                        );
                        self.fetches.pop_front();
                        self.push_message(RemoteMessage::Message(text));
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

    /// Reconnects now, in the background and without questions.
    pub fn reconnect(&mut self) {
        if matches!(self.connection, State::Up(_) | State::Opening(_)) {
            return;
        }
        let (tx, rx) = oneshot::channel();
        let host = self.host.clone();
        thread::spawn(move || drop(tx.send(Connection::open(&host, Patience::Never))));
        self.connection = State::Opening(rx);
    }

    /// Sends the name of the run, and the unanswered commands.
    pub(super) fn connected(&mut self, connection: Connection) {
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
            self.push_message(RemoteMessage::Message(text));
        }
        self.attempts = 0;
        self.lag.begin(Instant::now());
        // A partially received file is discarded; it is sent again.
        self.fetches.iter_mut().for_each(|fetch| fetch.inbox = None);
    }

    fn not_connected(&mut self, trouble: &SshError) {
        if trouble.asks() && self.begun.is_some() {
            return self.give_up(
                "ssh needs a password or the confirmation of a key and cannot ask while the TUI is open: reconnect \
                 from a shell (--reconnect)"
                    .to_owned(),
            );
        }
        if trouble.is_lasting() {
            return self.give_up(trouble.to_string());
        }
        self.lose(trouble.to_string());
    }

    /// The connection is lost; the run continues.
    pub(super) fn lose(&mut self, reason: String) {
        let since = self.lost.as_ref().map_or_else(Instant::now, |(since, _)| *since);
        self.lost = Some((since, reason));
        let wait = FIRST_WAIT.saturating_mul(1 << self.attempts.min(5)).min(LONGEST_WAIT);
        self.attempts += 1;
        if let State::Up(connection) = std::mem::replace(&mut self.connection, State::Waiting) {
            // A hanging connection takes a moment to end.
            thread::spawn(move || drop(connection));
        }
        self.next_attempt = Instant::now() + wait;
        self.lag.begin(Instant::now());
        if self.id.is_none() && self.failed.is_none() {
            let (_, reason) = self.lost.clone().unwrap_or((Instant::now(), String::new()));
            let text = format!(
                "the connection to {} broke before a run was named: {reason}; {} --reconnect list shows whether one \
                 was started",
                self.host.short(),
                self.host.command_line()
            );
            self.failed = Some((text, false));
        }
    }

    pub(super) fn give_up(&mut self, reason: String) {
        self.lose(reason.clone());
        self.connection = State::GivenUp;
        if self.begun.is_none() {
            self.failed.get_or_insert((reason.clone(), false));
        }
        self.push_message(RemoteMessage::Error(reason));
    }
}
