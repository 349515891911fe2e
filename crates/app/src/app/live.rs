//! The live run on the screen: commands to it, the next run, the jobs of a sweep.

use std::time::Instant;

use super::{App, Workload};
use llmprof_config::Override;
use llmprof_event::{Outcome, ToolState};
use llmprof_record::sweep::{CooldownStatus, LiveFigures};
use llmprof_run::{plan::Plan, remote::RemoteMessage, session::Session, sweep::Runner};
use llmprof_screen::{
    ui::{Overlay, Pane, PromptKind, RunCommand, set_cursor},
    view::Progress,
};

/// Creates a plan from other overrides.
pub type Replan = Box<dyn Fn(Vec<Override>) -> Result<Plan, String>>;

/// A live run, and how to plan the next one.
pub struct Live {
    pub session: Workload,
    pub replan: Replan,
    /// The sweep that the run is a job of.
    pub sweep: Option<Runner>,
}

impl Live {
    /// The requested action that the workload has not done yet.
    pub(super) fn pending(&self, run_follows: bool) -> Option<&'static str> {
        if run_follows {
            Some("ending this run")
        } else if self.is_ending_job() {
            Some("ending this job")
        } else {
            self.session.pending()
        }
    }

    /// Whether a job of a sweep has ended or was cancelled, and is not closed yet.
    fn is_ending_job(&self) -> bool {
        let Workload::Here(session) = &self.session else { return false };
        let running = self.sweep.as_ref().is_some_and(|runner| runner.sweep.running().is_some());
        let cancelled = session.state.finished.is_none() && session.control.is_cancelled();
        running && (session.is_done() || cancelled)
    }

    /// The progress of the sweep and of its running job.
    pub(super) fn progress(&self) -> Option<Progress> {
        let runner = self.sweep.as_ref()?;
        let running = runner.sweep.running().into_iter();
        let jobs = running.map(|job| (job, LiveFigures::from_state(self.session.state()))).collect();
        Some(Progress { elapsed: runner.elapsed(), jobs })
    }
}

fn parsed(words: &[String]) -> Result<Vec<Override>, String> {
    words.iter().map(|word| Override::parse(word).map_err(|error| error.to_string())).collect()
}

impl App {
    pub(super) fn command_run(&mut self, command: RunCommand) {
        let Some(live) = &mut self.live else { return };
        match command {
            RunCommand::ToggleView => {
                self.frozen = match self.frozen.take() {
                    Some(_) => None,
                    None => Some(Box::new(live.session.state().clone())),
                };
            }
            RunCommand::TogglePause => {
                if let Some(tool) = live.session.tool() {
                    let message = format!("the workload is paused for {tool}; press its key to cancel");
                    self.ui.message = Some(message);
                } else {
                    live.session.toggle_pause();
                }
            }
            RunCommand::ToggleKernels => self.ui.message = live.session.toggle_kernels(),
            RunCommand::Snapshot(name) => self.ui.message = live.session.snapshot(&name),
            RunCommand::AskRerun if live.session.state().finished.is_none() => {
                self.ui.overlay = Overlay::ConfirmRerun;
            }
            RunCommand::AskRerun | RunCommand::Rerun => {
                let overrides = match &live.session {
                    Workload::Here(session) => Ok(session.plan().composed.composition.overrides().to_vec()),
                    Workload::There(run) => parsed(run.overrides()),
                };
                self.restart(overrides);
            }
            RunCommand::EditOverrides => {
                self.ui.open_prompt(PromptKind::Overrides, live.session.overrides().join(" "));
            }
            RunCommand::Start(text) => match shlex::split(&text) {
                Some(words) => self.restart(parsed(&words)),
                None => self.ui.report_error("a quote is not closed".into()),
            },
            RunCommand::RunUnder(tool) => self.ui.message = live.session.rerun(tool),
            RunCommand::EndJob => self.end_job(),
            RunCommand::Reconnect => {
                if let Workload::There(run) = &mut live.session {
                    run.reconnect();
                }
            }
        }
    }

    /// Cancels the current run and schedules the next one, if its overrides are valid.
    fn restart(&mut self, overrides: Result<Vec<Override>, String>) {
        let Some(live) = &mut self.live else { return };
        let restarted = match &mut live.session {
            Workload::Here(session) => overrides.and_then(&live.replan).map(|plan| {
                session.cancel();
                self.next = Some(plan);
            }),
            // The remote host composes them.
            Workload::There(run) => overrides.map(|overrides| run.restart(&overrides)),
        };
        match restarted {
            Ok(()) => self.ui.overlay = Overlay::None,
            Err(e) => self.ui.report_error(e),
        }
    }

    /// Starts the next run once the current one no longer computes: two would disturb each other.
    pub(super) fn start_next(&mut self) {
        let Some(Workload::Here(session)) = self.live.as_mut().map(|live| &mut live.session) else { return };
        if !session.is_idle() {
            return;
        }
        let Some(plan) = self.next.take() else { return };
        self.ended.push(session.end(Outcome::Interrupted, Some("another run was started".into())));
        self.show_session(Session::start(plan));
    }

    /// Shows a new run.
    fn show_session(&mut self, session: Session) {
        let Some(live) = &mut self.live else { return };
        self.earlier_snapshots.extend(live.session.state().snapshots.iter().cloned());
        live.session = session.into();
        self.begin_view();
    }

    /// A run is shown from its beginning.
    fn begin_view(&mut self) {
        self.frozen = None;
        set_cursor(&mut self.ui, None);
        *self.ui.row_mut(Pane::Log) = 0;
        self.dirty = true;
    }

    /// Shows the answers of a remote run, and the next remote run once it has begun.
    pub(super) fn follow_remote(&mut self) {
        let Some(Workload::There(run)) = self.live.as_mut().map(|live| &mut live.session) else { return };
        let said = run.take_said();
        let begun = run.number();
        match said {
            Some(RemoteMessage::Message(text)) => (self.ui.message, self.dirty) = (Some(text), true),
            Some(RemoteMessage::Error(text)) => {
                self.ui.report_error(text);
                self.dirty = true;
            }
            None => {}
        }
        if std::mem::replace(&mut self.run_there, begun) != begun {
            self.begin_view();
        }
    }

    /// Reports the end of a run under a tool.
    pub(super) fn follow_tool(&mut self) {
        let Some(session) = self.live.as_ref().map(|live| &live.session) else { return };
        let before = std::mem::replace(&mut self.tool, session.tool());
        let (Some(tool), None) = (before, self.tool) else { return };
        let last = session.state().kernels.tool_run.as_ref().map(|run| &run.state);
        self.ui.message = match last {
            Some(ToolState::Done) => Some(format!("{tool} finished: its report is in the Kernels pane (4)")),
            Some(ToolState::Failed { reason, remedy }) => Some(format!("{tool}: {reason}; {remedy}")),
            Some(ToolState::Cancelled) => Some(format!("{tool} was cancelled")),
            _ => None,
        };
        self.dirty = true;
    }

    /// Ends the current job, or the cool-down before the next one.
    fn end_job(&mut self) {
        let Some(live) = &mut self.live else { return };
        let Some(runner) = &mut live.sweep else { return };
        match (runner.sweep.running(), runner.sweep.next()) {
            (Some(_), _) => {
                if let Workload::Here(session) = &mut live.session {
                    session.cancel();
                }
            }
            (None, Some(_)) => runner.skip_cooldown(),
            (None, None) => {
                self.ui.message =
                    Some("the sweep has finished; press 6 to compare its jobs, q to quit".into());
            }
        }
    }

    /// Closes an ended job, cools down, and starts the next one. Returns whether more will happen soon.
    pub(super) fn follow_sweep(&mut self, now: Instant) -> bool {
        let Some(live) = &mut self.live else { return false };
        let ending = live.is_ending_job();
        let Some(runner) = &mut live.sweep else { return false };
        if let Workload::Here(session) = &mut live.session
            && ending
            && session.is_idle()
        {
            runner.end_job(session, Outcome::Interrupted, Some("ended by the user".into()));
            self.dirty = true;
        }
        let running = runner.sweep.running().is_some();
        let waiting = !running && runner.sweep.next().is_some();
        if waiting {
            let cooling = runner.cooldown(now);
            let shown = |cooling: Option<CooldownStatus>| cooling.map(|cooling| cooling.to_string());
            self.dirty |= shown(cooling) != shown(self.cooling);
            self.cooling = cooling;
            if cooling.is_none() {
                self.dirty = true;
                if let Some(session) = runner.start_next() {
                    self.show_session(session);
                }
            }
        }
        self.report_remarks();
        waiting || (running && ending)
    }

    fn report_remarks(&mut self) {
        let remarks = self.live.as_mut().and_then(|live| live.sweep.as_mut()).map(Runner::take_remarks);
        if let Some(remarks) = remarks.filter(|remarks| !remarks.is_empty()) {
            (self.ui.message, self.dirty) = (Some(remarks.join("; ")), true);
        }
    }
}
