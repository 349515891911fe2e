//! The process of a run that is served over ssh. It has no terminal and no pipe: commands are read from a file, and
//! news are written to one, so that it continues without a connection.

use std::{collections::HashSet, io, path::PathBuf, time::Duration};

use super::{
    protocol::{Ended, News, Order, RemoteRequest, Request},
    served_dir::{ServedDir, Tail},
};
use crate::{plan::Plan, session::Session};
use llmprof_base::process::shutdown::{Cause, Shutdown};
use llmprof_event::{Outcome, RunFinished, Tool};

/// The interval at which commands are read.
const POLL: Duration = Duration::from_millis(40);
/// While a screen is connected, events are written at once.
const WATCHED: Duration = Duration::from_secs(5);
/// The time after the end of the run in which a lost screen may reconnect.
const LINGER: Duration = Duration::from_secs(60);

/// Why work is refused; `usage`: whether it is a usage error.
pub struct Refusal {
    pub reason: String,
    pub usage: bool,
}

/// The action after a run.
enum Next {
    Run(Box<Plan>),
    Nothing,
}

/// Runs the work of `served_dir`, and further runs that replace it.
pub async fn work(
    served_dir: &ServedDir,
    plan: impl Fn(&RemoteRequest) -> Result<Plan, Refusal>,
) -> io::Result<()> {
    // No other terminal can stop or end it. A process that leads a session already needs no new one.
    let _ = rustix::process::setsid();
    let _held = served_dir.hold()?;
    let mut shutdown = Shutdown::listen()?;
    let work = served_dir.work()?;
    let mut next = match plan(&work) {
        Ok(plan) => plan,
        Err(Refusal { reason, usage }) => return served_dir.news().append(&News::Refused { reason, usage }),
    };
    let mut orders = served_dir.orders();
    let mut seen = HashSet::new();
    for run in 0.. {
        let session = Session::start(next);
        let mut served =
            Served { served_dir, run, session, news: served_dir.news(), is_done: false, next: None };
        let Some(dir) = served.dir() else {
            let reason = match served.session.loss() {
                Some(loss) => loss.to_string(),
                None => "a run over ssh is shown from its recording: set output.record=true".to_owned(),
            };
            return served_dir.news().append(&News::Refused { reason, usage: false });
        };
        let overrides = served.session.plan().composed.overrides.clone();
        let for_tools = served.session.plan().is_for_tools_alone();
        served.session.flush();
        served.news.append(&News::Began { run, dir, overrides, for_tools })?;
        next = match served.serve(&mut orders, &mut seen, &mut shutdown, &plan, &work).await? {
            Next::Run(plan) => *plan,
            Next::Nothing => break,
        };
    }
    Ok(())
}

struct Served<'a> {
    served_dir: &'a ServedDir,
    run: u32,
    session: Session,
    news: Tail,
    is_done: bool,
    next: Option<Plan>,
}

impl Served<'_> {
    async fn serve(
        mut self,
        orders: &mut Tail,
        seen: &mut HashSet<u64>,
        shutdown: &mut Shutdown,
        plan: impl Fn(&RemoteRequest) -> Result<Plan, Refusal>,
        work: &RemoteRequest,
    ) -> io::Result<Next> {
        loop {
            tokio::select! {
                cause = shutdown.requested() => return self.end(Outcome::Interrupted, Some(words(&cause))),
                () = tokio::time::sleep(POLL) => {}
                _ = self.session.pump() => {}
            }
            for request in orders.read::<Request>()? {
                let Request::Order { id, order } = request else { continue };
                // A command whose answer was lost with the connection arrives again.
                if !seen.insert(id) {
                    continue;
                }
                let replan = |overrides: Vec<String>| plan(&RemoteRequest { overrides, ..work.clone() });
                let (message, error) = match order {
                    Order::End { outcome, cause } => {
                        self.answer(id, None, None)?;
                        return self.end(outcome, cause);
                    }
                    Order::Leave if self.session.is_done() => {
                        self.answer(id, None, None)?;
                        return self.end(Outcome::Completed, None);
                    }
                    Order::Restart { overrides } => match replan(overrides) {
                        Ok(plan) => {
                            self.session.cancel();
                            self.next = Some(plan);
                            (None, None)
                        }
                        Err(refusal) => (None, Some(refusal.reason)),
                    },
                    order => (self.perform(order), None),
                };
                self.answer(id, message, error)?;
            }
            if self.served_dir.unwatched() < WATCHED {
                self.session.flush();
            }
            if self.session.is_idle()
                && let Some(plan) = self.next.take()
            {
                self.finish(Outcome::Interrupted, Some("another run was started".to_owned()), false)?;
                return Ok(Next::Run(Box::new(plan)));
            }
            let is_done = self.session.is_done() && self.next.is_none();
            if is_done && !self.is_done {
                let ended = self.ended();
                self.session.flush();
                self.news.append(&News::Done { run: self.run, ended })?;
            }
            self.is_done = is_done;
            if is_done && self.served_dir.unwatched() > LINGER {
                return self.end(Outcome::Completed, None);
            }
        }
    }

    /// Returns a message for the user.
    fn perform(&mut self, order: Order) -> Option<String> {
        let session = &mut self.session;
        match order {
            Order::Pause(pause) => match session.tool() {
                Some(tool) => Some(format!("the workload is paused for {tool}; press its key to cancel")),
                None => {
                    session.control.set_paused(pause);
                    None
                }
            },
            Order::ToggleKernels => Some(session.toggle_kernels()),
            Order::Snapshot { name } => Some(session.snapshot(&name)),
            Order::Tool { name } => {
                match [Tool::Nsys, Tool::Ncu].into_iter().find(|tool| tool.name() == name) {
                    Some(tool) => session.rerun(tool),
                    None => Some(format!("the remote host does not know {name}")),
                }
            }
            Order::KeepMessage { text } => {
                session.keep_message(&text);
                None
            }
            Order::End { .. } | Order::Leave | Order::Restart { .. } => None,
        }
    }

    fn answer(&self, order: u64, message: Option<String>, error: Option<String>) -> io::Result<()> {
        self.news.append(&News::Answer { order, message, error })
    }

    fn end(mut self, outcome: Outcome, cause: Option<String>) -> io::Result<Next> {
        self.finish(outcome, cause, true)?;
        Ok(Next::Nothing)
    }

    fn finish(&mut self, outcome: Outcome, cause: Option<String>, last: bool) -> io::Result<()> {
        self.session.end(outcome, cause);
        let (run, ended) = (self.run, self.ended());
        self.news.append(&match last {
            true => News::Left { run, ended },
            false => News::Done { run, ended },
        })
    }

    fn ended(&self) -> Ended {
        let interrupted = || RunFinished { outcome: Outcome::Interrupted, cause: None };
        Ended {
            finished: self.session.state.finished.clone().unwrap_or_else(interrupted),
            loss: self.session.loss().map(|loss| loss.to_string()),
            tool_failures: self.session.tool_failures().to_vec(),
            exit_code: self.session.program_control().exit_code(),
        }
    }

    fn dir(&self) -> Option<PathBuf> {
        std::path::absolute(self.session.dir()?).ok()
    }
}

fn words(cause: &Cause) -> String {
    format!("{cause}, on the remote host")
}
