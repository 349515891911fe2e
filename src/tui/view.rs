//! Everything a frame is drawn from.

use crate::{
    analysis::compare::Comparison,
    event::Stamp,
    run::sweep::{CooldownStatus, Sweep},
    rundir::{Loss, Position, RunEntry},
    state::{GpuState, Incident, RunState, Snapshot},
    tui::{
        keys::Mode,
        panes::{gpu_rows, kernels_extent},
        theme::Theme,
        ui::{Extent, Pane, SPANS_S, UiState},
    },
};

/// Read-only: a frame is a pure function of it.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub state: &'a RunState,
    pub ui: &'a UiState,
    pub theme: &'a Theme,
    /// Set while a recording is played.
    pub replay: Option<Position>,
    /// The view is frozen while the run continues.
    pub frozen: bool,
    /// What was asked of the workload and has not happened yet.
    pub pending: Option<&'static str>,
    pub loss: Option<&'a Loss>,
    /// As filtered and sorted.
    pub runs: &'a [&'a RunEntry],
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
            frozen: false,
            pending: None,
            loss: None,
            runs: &[],
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
        self.state.gpus.get(self.gpu_index())
    }

    /// The index of the selected GPU in the list of all.
    pub fn gpu_index(&self) -> usize {
        let gpus = &self.state.gpus;
        let main = || {
            let main = self.state.main_gpu()?;
            gpus.iter().position(|gpu| gpu.info.index == main.info.index)
        };
        self.ui.gpu.filter(|index| *index < gpus.len()).or_else(main).unwrap_or(0)
    }

    /// Several GPUs are a table until one of them is opened.
    pub fn shows_gpu_table(&self) -> bool {
        self.state.gpus.len() > 1 && !self.ui.gpu_open
    }

    /// The GPU that the summary shows: the workload's, or any GPU without a workload.
    pub fn workload_gpu(&self) -> Option<&'a GpuState> {
        let works = |gpu: &&GpuState| gpu.info.profiled || self.state.watches();
        self.gpu().filter(works).or_else(|| self.state.main_gpu().filter(works))
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
            tokens: self.state.trail.len(),
            tokens_seen: self.state.trail.count(),
            readings: self.gpu().map_or(0, |gpu| gpu_rows(gpu).len()),
            points: self.state.roofline().points.len(),
            incidents: self.state.flight.incidents.len(),
            incident_at: self.selected_incident().map(|incident| incident.at),
            gpus: self.state.gpus.len(),
            gpu: self.gpu_index(),
            runs: self.runs.len(),
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
