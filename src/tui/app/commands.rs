//! What the effects of keys do outside of the screen's state.

use std::ops::ControlFlow;

use ratatui::layout::Rect;

use super::{App, comparison::Compared, event_loop::Left};
use crate::{
    process::shutdown::Cause,
    rundir::{Listing, RunDir},
    tui::{
        export::export,
        ui::{Effect, Pane, RunsCommand},
    },
};

impl App {
    /// Performs an effect. Breaks if the screen is left.
    pub(super) fn perform(&mut self, effect: Effect, screen: Rect) -> ControlFlow<Left> {
        match effect {
            Effect::Quit => return ControlFlow::Break(Left::Ended(None)),
            Effect::Interrupt => return ControlFlow::Break(Left::Ended(Some(Cause::Interrupt))),
            Effect::Suspend => return ControlFlow::Break(Left::Suspended),
            Effect::Export => self.export(screen),
            Effect::CompareSnapshots => self.compared = Compared::default(),
            Effect::Run(command) => self.command_run(command),
            Effect::Replay(command) => self.command_replay(command),
            Effect::Runs(command) => self.command_runs(command),
        }
        ControlFlow::Continue(())
    }

    /// Writes the pane on the screen to files in the directory of its run.
    fn export(&mut self, screen: Rect) {
        let dir = match (&self.player, &self.live) {
            (Some(_), _) => self.played.as_ref().map(RunDir::path),
            (None, live) => live.as_ref().and_then(|live| live.session.dir()),
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

    fn command_runs(&mut self, command: RunsCommand) {
        match command {
            RunsCommand::Refresh if self.listing.is_some() => {}
            RunsCommand::Refresh => match Listing::start(&self.runs_root) {
                Ok(listing) => self.listing = Some(listing),
                Err(e) => self.ui.message = Some(format!("cannot list the runs: {e}")),
            },
            RunsCommand::Open => self.open_selected_run(),
            RunsCommand::Mark => self.mark_selected_run(),
            RunsCommand::Compare => match (self.ui.run_marked.clone(), self.selected_run()) {
                (Some(marked), Some(selected)) => self.compare_runs(marked, selected.path().to_owned()),
                // Without a marked run, the snapshots are compared.
                _ => {
                    self.ui.pane = Pane::Compare;
                    self.compared = Compared::default();
                }
            },
        }
    }

    /// Takes the list of runs when it is complete. Returns whether it is still being read.
    pub(super) fn follow_runs(&mut self) -> bool {
        let Some(listing) = &mut self.listing else { return false };
        let Some(runs) = listing.poll() else { return true };
        (self.runs, self.listing, self.dirty) = (runs, None, true);
        false
    }

    /// Marks the selected run, to compare others with it, or removes its mark.
    fn mark_selected_run(&mut self) {
        let Some(run) = self.selected_run().map(|dir| dir.path().to_owned()) else { return };
        if self.ui.run_marked.as_ref() == Some(&run) {
            self.ui.run_marked = None;
            return;
        }
        self.ui.run_marked = Some(run);
        self.ui.message = Some("marked as A; select another run and press d to compare".into());
    }
}
