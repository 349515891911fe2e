//! Input from the remote host: frames, news, events, files.

use std::{io, time::Instant};

use super::{BATCH_EVENTS, BATCH_FRAMES, Begun, Fetch, MAX_SAID, RemoteMessage, RemoteRun, link::State};
use crate::remote::{
    connection::Incoming,
    mirror::Mirror,
    protocol::{Ended, Frame, News},
};
use llmprof_base::foreign::{line, message};
use llmprof_event::{Envelope, Event, Outcome, RunFinished};

/// Maximum runs that a remote end may begin: each has a local directory.
const MAX_RUNS: u32 = 256;
/// Maximum ends of one run: each is followed by its files.
const MAX_ENDS: u32 = 16;

impl RemoteRun {
    /// Processes the frames that have arrived, for a limited time. Returns their number.
    pub(super) fn take_frames(&mut self, first: Option<Incoming>) -> usize {
        let mut next = first.unwrap_or(Incoming::Ended(String::new()));
        for n in 1..=BATCH_FRAMES {
            self.take_incoming(next);
            next = match &mut self.connection {
                State::Up(connection) if n < BATCH_FRAMES => match connection.frames.try_recv() {
                    Ok(next) => next,
                    Err(_) => return n,
                },
                _ => return n,
            };
        }
        BATCH_FRAMES
    }

    fn take_incoming(&mut self, incoming: Incoming) {
        match incoming {
            Incoming::Frame(frame, payload) => {
                if let Err(e) = self.take(frame, &payload) {
                    self.give_up(format!("the remote host sent an invalid message: {e}"));
                }
            }
            Incoming::Wrong(words) => {
                self.give_up(format!("the remote host sent an unreadable message: {}", line(&words, 200)))
            }
            Incoming::Ended(words) if words.is_empty() => self.lose("ssh ended".to_owned()),
            Incoming::Ended(words) => self.lose(line(&words, 200)),
        }
    }

    fn take(&mut self, frame: Frame, payload: &[u8]) -> io::Result<()> {
        let wrong = |text: &str| Err(io::Error::new(io::ErrorKind::InvalidData, text.to_owned()));
        match frame {
            Frame::Joined { id } => {
                if id.len() > 32 || !id.bytes().all(|b| b.is_ascii_alphanumeric()) {
                    return wrong("the name of the run is not valid");
                }
                match &self.id {
                    Some(known) if *known != id => return wrong("an answer of another run"),
                    _ => self.id = Some(id),
                }
            }
            Frame::News { next, news } => {
                self.news_at = self.news_at.max(next);
                self.take_news(news)?;
            }
            Frame::Events { run, at, .. } => match &mut self.begun {
                Some(begun) if begun.run == run => begun.mirror.append(at, payload)?,
                _ => return wrong("events of a run that has not begun"),
            },
            Frame::Pong { n, age_ms } => self.lag.answered(n, age_ms, Instant::now()),
            Frame::File { path, bytes, total_bytes } => {
                match self.fetches.front_mut().and_then(|f| f.inbox.as_mut()) {
                    Some(inbox) => inbox.file(&path, bytes, total_bytes)?,
                    None => return wrong("a file that was not requested"),
                }
            }
            Frame::Chunk { .. } => match self.fetches.front_mut().and_then(|f| f.inbox.as_mut()) {
                Some(inbox) => inbox.chunk(payload)?,
                None => return wrong("bytes that were not requested"),
            },
            Frame::Fetched { run, left_out } => match self.fetches.pop_front() {
                Some(Fetch { run: asked, inbox: Some(inbox), .. })
                    if asked == run && inbox.is_between_files() =>
                {
                    self.left_out = left_out.iter().map(|name| line(name, 300)).take(20).collect();
                }
                _ => return wrong("files of another run"),
            },
            Frame::Died { words } => {
                let cause =
                    format!("the process of the run on {} is gone: {}", self.host.short(), message(&words));
                if self.begun.is_none() {
                    self.failed = Some((cause, false));
                } else if self.done.is_none() {
                    let finished = RunFinished { outcome: Outcome::Failed, cause: Some(cause.clone()) };
                    self.done =
                        Some(Ended { finished, loss: None, tool_failures: Vec::new(), exit_code: None });
                    self.want_files();
                    self.push_message(RemoteMessage::Message(cause));
                }
                self.left = true;
            }
            Frame::Refused { reason, usage } => {
                let reason = message(&reason);
                match self.begun {
                    Some(_) => self.give_up(reason),
                    None => self.failed = Some((reason, usage)),
                }
            }
            Frame::Hello(_) | Frame::Runs(_) | Frame::Output { .. } | Frame::Exit { .. } => {
                return wrong("an answer to another request");
            }
        }
        Ok(())
    }

    fn take_news(&mut self, news: News) -> io::Result<()> {
        let wrong = |text: &str| Err(io::Error::new(io::ErrorKind::InvalidData, text.to_owned()));
        match news {
            News::Began { run, dir, overrides, for_tools } => {
                let id = self.id.clone().unwrap_or_default();
                if self.begun.as_ref().is_some_and(|begun| begun.run == run) {
                    return Ok(());
                }
                self.runs += 1;
                if self.runs > MAX_RUNS {
                    return wrong("more runs than were requested");
                }
                self.take_all_events();
                if let Some(ended) = self.done.take() {
                    self.ended.push(self.summary(&ended));
                }
                (self.restarts, self.wants_pause, self.left) = (false, None, false);
                let host = self.host.short();
                let mirror = Mirror::open(&self.copies, host, &id, run, &dir, self.limit_bytes)?;
                self.earlier_snapshots.extend(std::mem::take(&mut self.state).snapshots);
                let overrides = overrides.iter().map(|text| line(text, 2_000)).collect();
                self.begun = Some(Begun { run, overrides, for_tools, mirror, ends: 0 });
            }
            News::Answer { order, message: text, error } => {
                let orders = self.orders.len();
                self.orders.retain(|(id, _)| *id != order);
                if self.orders.len() == orders {
                    // The answer to a command of another screen.
                    return Ok(());
                }
                let spoken = !self.unspoken.remove(&order);
                if let Some(error) = error {
                    self.restarts = false;
                    self.push_message(RemoteMessage::Error(message(&error)));
                } else if let Some(text) = text.filter(|_| spoken) {
                    self.push_message(RemoteMessage::Message(message(&text)));
                }
                if self.done.is_some() {
                    self.want_files();
                }
            }
            News::Done { run, ended } | News::Left { run, ended } => {
                let Some(begun) = self.begun.as_mut().filter(|begun| begun.run == run) else { return Ok(()) };
                begun.ends += 1;
                if begun.ends > MAX_ENDS {
                    return wrong("a run that ended too many times");
                }
                self.done = Some(ended);
                self.want_files();
            }
            News::Refused { reason, usage } => self.failed = Some((message(&reason), usage)),
        }
        Ok(())
    }

    pub(super) fn push_message(&mut self, said: RemoteMessage) {
        self.said.truncate(MAX_SAID - 1);
        self.said.push_back(said);
    }

    pub(super) fn want_files(&mut self) {
        if self.leaves {
            return;
        }
        let Some(begun) = &self.begun else { return };
        let is_asked = |fetch: &Fetch| fetch.run == begun.run && fetch.inbox.is_none();
        if !self.fetches.iter().any(is_asked) {
            let dir = begun.mirror.dir().to_owned();
            self.fetches.push_back(Fetch { run: begun.run, dir, inbox: None });
        }
    }

    /// Applies the events that have arrived. Returns their number.
    pub(super) fn take_events(&mut self) -> usize {
        let Some(begun) = &mut self.begun else { return 0 };
        if begun.mirror.is_read {
            return 0;
        }
        let output = &mut self.output;
        let keep = |envelope: &Envelope| {
            if let (Event::Notice(notice), Some(output)) = (&envelope.event, output.as_mut())
                && ["stdout", "stderr"].contains(&notice.source.as_str())
            {
                output.push_back((notice.source == "stderr", notice.text.clone()));
            }
        };
        match begun.mirror.read_into(&mut self.state, BATCH_EVENTS, keep) {
            Ok(n) => {
                if self.wants_pause == Some(self.state.workload_paused_at.is_some()) {
                    self.wants_pause = None;
                }
                n
            }
            Err(e) => {
                begun.mirror.is_read = true;
                self.give_up(e.to_string());
                1
            }
        }
    }

    fn take_all_events(&mut self) {
        while self.take_events() > 0 {}
    }
}
