//! Performs the effects of keys outside of the screen's state.

use std::ops::ControlFlow;

use ratatui::layout::Rect;

use super::{App, Workload, comparison::Compared, event_loop::Left};
use llmprof_base::process::shutdown::Cause;
use llmprof_record::rundir::RunDir;
use llmprof_screen::{
    export::export,
    ui::{Effect, Overlay, ReplayCommand},
};

impl App {
    /// Performs an effect. Breaks if the screen is left.
    pub(super) fn perform(&mut self, effect: Effect, screen: Rect) -> ControlFlow<Left> {
        match effect {
            // A recording that was opened from a sweep.
            Effect::Quit if self.player.is_some() && self.has_sweep() => {
                self.command_replay(ReplayCommand::Leave);
            }
            Effect::Quit if self.goes_on_there() => self.ui.overlay = Overlay::ConfirmLeave,
            Effect::Quit if self.works() => self.ui.overlay = Overlay::ConfirmQuit,
            Effect::Leave { cancel } => {
                if let Some(live) = self.live.as_mut().filter(|_| cancel) {
                    live.session.cancel_there();
                }
                return ControlFlow::Break(Left::Ended(None));
            }
            Effect::Quit => return ControlFlow::Break(Left::Ended(None)),
            Effect::Interrupt => return ControlFlow::Break(Left::Ended(Some(Cause::Interrupt))),
            Effect::Suspend => return ControlFlow::Break(Left::Suspended),
            Effect::Export => self.export(screen),
            Effect::CompareSnapshots => self.compared = Compared::default(),
            Effect::Run(command) => self.command_run(command),
            Effect::Replay(command) => self.command_replay(command),
            Effect::Runs(command) => self.command_runs(command),
            Effect::Jobs(command) => self.command_jobs(command),
        }
        ControlFlow::Continue(())
    }

    /// Whether quitting would end a run, a re-run under a tool, or jobs of a sweep on this machine.
    fn works(&self) -> bool {
        if let Some(jobs) = &self.jobs {
            return jobs.ends_with_screen();
        }
        let Some(live) = &self.live else { return false };
        let in_sweep = live.sweep.as_ref().is_some_and(|runner| runner.sweep.unfinished() > 0);
        let Workload::Here(session) = &live.session else { return false };
        let runs = session.state.finished.is_none() && session.state.kind().has_workload();
        in_sweep || runs || session.tool().is_some() || self.next.is_some()
    }

    /// Whether a remote run continues without this screen.
    fn goes_on_there(&self) -> bool {
        matches!(self.live.as_ref().map(|live| &live.session), Some(Workload::There(run)) if run.is_running())
    }

    /// Writes the displayed pane to files in the directory of its run.
    fn export(&mut self, screen: Rect) {
        let dir = match (&self.player, &self.live) {
            (Some(_), _) => self.played.as_ref().map(RunDir::path),
            (None, live) => live.as_ref().and_then(|live| live.session.dir()).or_else(|| self.sweep_dir()),
        };
        self.ui.message = Some(match self.with_view(|view| export(view, screen, dir)) {
            Ok(exported) => {
                let message = exported.to_string();
                self.exported.push(exported);
                message
            }
            Err(e) => e.to_string(),
        });
    }
}
