//! Everything a frame is drawn from.

use crate::{
    analysis::compare::Comparison,
    event::Stamp,
    run::sweep::{CooldownStatus, Sweep},
    rundir::{Loss, Position},
    state::{GpuState, Incident, RunState, Snapshot},
    tui::{
        keys::Mode,
        panes::{gpu_rows, kernels_extent},
        run_tree::RunTree,
        theme::Theme,
        ui::{Action, Effect, Extent, GroupKey, Pane, Panes, RunCommand, RunsCommand, SPANS_S, UiState},
    },
};

static NO_RUNS: RunTree = RunTree::EMPTY;

/// Read-only: a frame is a pure function of it.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub state: &'a RunState,
    pub ui: &'a UiState,
    pub theme: &'a Theme,
    /// Set while a recording is played.
    pub replay: Option<Position>,
    /// The end of the recording that is played, as far as it is read.
    pub recorded: Option<&'a RunState>,
    /// The view is frozen while the run continues.
    pub frozen: bool,
    /// What was asked of the workload and has not happened yet.
    pub pending: Option<&'static str>,
    pub loss: Option<&'a Loss>,
    pub runs: &'a RunTree,
    /// The list of runs is being read.
    pub listing: bool,
    /// Of this and earlier runs of the program, oldest first.
    pub snapshots: &'a [Snapshot],
    /// Of two runs, or of the last two snapshots.
    pub comparison: Option<&'a Comparison>,
    /// Set during a sweep.
    pub sweep: Option<SweepView<'a>>,
}

/// A sweep as the screen shows it.
#[derive(Clone, Copy)]
pub struct SweepView<'a> {
    pub sweep: &'a Sweep,
    /// Set while the next job waits.
    pub cooling: Option<CooldownStatus>,
}

impl<'a> View<'a> {
    /// A single run: no replay, no sweep, no other runs.
    pub fn of(state: &'a RunState, ui: &'a UiState, theme: &'a Theme) -> View<'a> {
        View {
            state,
            ui,
            theme,
            replay: None,
            recorded: None,
            frozen: false,
            pending: None,
            loss: None,
            runs: &NO_RUNS,
            listing: false,
            snapshots: &[],
            comparison: None,
            sweep: None,
        }
    }

    pub fn mode(&self) -> Mode {
        match (self.replay, self.sweep) {
            (Some(_), _) => Mode::Replay,
            (None, Some(_)) => Mode::Sweep,
            (None, None) if self.state.is_of_files() => Mode::Files,
            (None, None) => Mode::Single,
        }
    }

    /// All panes of a live run: each says what would fill it. Otherwise those with content, and the one on the screen.
    pub fn panes(&self) -> Panes {
        let fills_up = self.replay.is_none() && !self.state.watches() && !self.state.is_of_files();
        Panes::those(|pane| fills_up || pane == self.ui.pane || self.has_content(pane))
    }

    fn has_content(&self, pane: Pane) -> bool {
        let state = self.recorded.unwrap_or(self.state);
        let watches = state.watches();
        match pane {
            Pane::Overview => state.run.is_some() && !watches,
            Pane::Gpu => {
                !state.gpus.is_empty() || state.gpu_absent.is_some() || !state.host.cpu_pct.is_empty()
            }
            Pane::Tokens => !state.trail.is_empty(),
            Pane::Kernels => {
                let kernels = &state.kernels;
                let live = !kernels.prefill.is_empty() || !kernels.decode.is_empty();
                live || !kernels.reports.is_empty() || kernels.tool_run.is_some()
            }
            Pane::Roofline => !watches && !state.roofline().points.is_empty(),
            Pane::Compare => {
                let snapshots = !self.snapshots.is_empty() || !state.snapshots.is_empty();
                snapshots || self.comparison.is_some() || self.sweep.is_some()
            }
            Pane::Runs => self.listing || !self.runs.entries().is_empty(),
            Pane::Log => !state.log.is_empty(),
        }
    }

    /// Why an action has no effect now.
    pub fn obstacle(&self, action: &Action) -> Option<&'static str> {
        let Action::Do(effect) = action else { return None };
        match effect {
            Effect::Run(RunCommand::TogglePause | RunCommand::ToggleKernels | RunCommand::RunUnder(_))
                if self.state.watches() =>
            {
                Some("nothing runs here: the GPU is monitored without a workload")
            }
            Effect::Run(RunCommand::TogglePause) if self.state.finished.is_some() => match self.sweep {
                Some(_) => Some("the job has finished"),
                None => Some("the run has finished; press r to start it again"),
            },
            Effect::Runs(command) => self.obstacle_on_runs(command),
            _ => None,
        }
    }

    fn obstacle_on_runs(&self, command: &RunsCommand) -> Option<&'static str> {
        let row = self.runs.selected(self.ui.runs.row);
        let (run, group) = (self.runs.run_at(row), self.runs.group_at(row));
        let is_sweep = group.is_some_and(|group| matches!(group.key, GroupKey::Sweep(_)));
        match command {
            RunsCommand::Mark | RunsCommand::Report if run.is_none() => Some("select a run"),
            RunsCommand::AskDelete | RunsCommand::AskName if run.is_none() && !is_sweep => {
                Some("select a run or a sweep")
            }
            RunsCommand::AskDelete | RunsCommand::AskName if run.is_some_and(|run| run.running) => {
                Some("this run is being recorded; end it first")
            }
            RunsCommand::AskName if run.is_some_and(|run| run.sweep.is_some()) => {
                Some("sweep.json names its jobs: rename the sweep instead of a job")
            }
            _ => None,
        }
    }

    /// The time range of the charts.
    pub fn time_range(&self) -> (Stamp, Stamp) {
        let now = self.state.now;
        let span = SPANS_S[self.ui.span].min(now.secs().max(1.0));
        let from = (now.secs() - span).max(0.0);
        (Stamp::from_secs_f64(from), if from == 0.0 { Stamp::from_secs_f64(span).max(now) } else { now })
    }

    /// Tokens between the newest and the selected one.
    pub fn tokens_back(&self) -> usize {
        let newest = self.state.trail.count().saturating_sub(1);
        let back = self.ui.token.map_or(0, |token| newest.saturating_sub(token) as usize);
        back.min(self.state.trail.len().saturating_sub(1))
    }

    /// The selected GPU.
    pub fn gpu(&self) -> Option<&'a GpuState> {
        self.ui.gpu.and_then(|index| self.state.gpus.get(index)).or_else(|| self.state.main_gpu())
    }

    /// The GPU that the summary shows: the workload's, or any GPU without a workload.
    pub fn workload_gpu(&self) -> Option<&'a GpuState> {
        self.gpu().filter(|gpu| gpu.info.profiled || self.state.watches())
    }

    pub fn open_incident(&self) -> Option<&'a Incident> {
        let opened = self.ui.incident_open?;
        self.state.flight.incidents.iter().find(|incident| incident.at == opened)
    }

    pub fn selected_incident(&self) -> Option<&'a Incident> {
        let incidents = &self.state.flight.incidents;
        let back = self.ui.incident.min(incidents.len().checked_sub(1)?);
        incidents.get(incidents.len() - 1 - back)
    }

    pub fn extent(&self) -> Extent {
        Extent {
            mode: self.mode(),
            panes: self.panes(),
            tokens: self.state.trail.len(),
            tokens_seen: self.state.trail.count(),
            readings: self.gpu().map_or(0, |gpu| gpu_rows(gpu).len()),
            points: self.state.roofline().points.len(),
            incidents: self.state.flight.incidents.len(),
            incident_at: self.selected_incident().map(|incident| incident.at),
            gpus: self.state.gpus.len(),
            runs: self.runs.rows().len(),
            run: self.runs.selected(self.ui.runs.row),
            log_lines: self.state.log.len(),
            snapshots: self.snapshots.len(),
            jobs: self.sweep.map_or(0, |view| view.sweep.current() + 1),
            kernels: match self.ui.pane {
                Pane::Kernels => kernels_extent(self),
                _ => Default::default(),
            },
        }
    }
}
