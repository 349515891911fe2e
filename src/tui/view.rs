//! Everything a frame is drawn from.

use crate::{
    analysis::compare::Comparison,
    event::Stamp,
    run::sweep::{CooldownStatus, Sweep},
    rundir::{Loss, Position, RunEntry},
    state::{GpuState, Incident, RunState, Snapshot},
    tui::{
        keys::Mode,
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
    /// Set while a recording is looked at.
    pub replay: Option<Position>,
    /// The view stands still while the run goes on.
    pub frozen: bool,
    /// The workload was asked to pause and has not come to it yet, or to end before the next run begins.
    pub waiting: Option<&'a str>,
    /// What of the recording is missing.
    pub loss: Option<&'a Loss>,
    /// As filtered and sorted.
    pub runs: &'a [&'a RunEntry],
    /// Of this and earlier runs of the program, oldest first.
    pub snapshots: &'a [Snapshot],
    /// Two runs, or the last two snapshots, held against each other.
    pub comparison: Option<&'a Comparison>,
    /// Set while a sweep is at work.
    pub sweep: Option<SweepView<'a>>,
}

/// A sweep as the screen shows it.
#[derive(Clone, Copy)]
pub struct SweepView<'a> {
    pub sweep: &'a Sweep,
    /// Set while the next job has to wait.
    pub cooling: Option<CooldownStatus>,
}

impl<'a> View<'a> {
    /// A run by itself: no replay, no sweep, no other runs beside it.
    pub fn of(state: &'a RunState, ui: &'a UiState, theme: &'a Theme) -> View<'a> {
        View {
            state,
            ui,
            theme,
            replay: None,
            frozen: false,
            waiting: None,
            loss: None,
            runs: &[],
            snapshots: &[],
            comparison: None,
            sweep: None,
        }
    }

    /// What keys mean now.
    pub fn mode(&self) -> Mode {
        match (self.replay, self.sweep) {
            (Some(_), _) => Mode::Replay,
            (None, Some(_)) => Mode::Sweep,
            (None, None) if self.state.is_of_files() => Mode::Files,
            (None, None) => Mode::Single,
        }
    }

    /// The stretch of time the charts show.
    pub fn stretch(&self) -> (Stamp, Stamp) {
        let now = self.state.now;
        let span = SPANS_S[self.ui.span].min(now.secs().max(1.0));
        let from = (now.secs() - span).max(0.0);
        (Stamp::from_secs_f64(from), if from == 0.0 { Stamp::from_secs_f64(span).max(now) } else { now })
    }

    /// Tokens between the newest and the one looked at.
    pub fn tokens_back(&self) -> usize {
        let newest = self.state.trail.seen().saturating_sub(1);
        self.ui
            .token
            .map_or(0, |at| newest.saturating_sub(at) as usize)
            .min(self.state.trail.len().saturating_sub(1))
    }

    /// The GPU that is looked at.
    pub fn gpu(&self) -> Option<&'a GpuState> {
        let state: &'a RunState = self.state;
        self.ui.gpu.and_then(|place| state.gpus.get(place)).or_else(|| state.main_gpu())
    }

    /// The incident whose seconds are on the screen.
    pub fn open_incident(&self) -> Option<&'a Incident> {
        let state: &'a RunState = self.state;
        let at = self.ui.incident_open?;
        state.flight.incidents.iter().find(|incident| incident.at == at)
    }

    /// The incident that is chosen, if there is any.
    pub fn incident(&self) -> Option<&'a Incident> {
        let state: &'a RunState = self.state;
        let incidents = &state.flight.incidents;
        let back = self.ui.incident.min(incidents.len().checked_sub(1)?);
        incidents.get(incidents.len() - 1 - back)
    }

    pub fn extent(&self) -> Extent {
        Extent {
            tokens: self.state.trail.len(),
            tokens_seen: self.state.trail.seen(),
            readings: self.gpu().map_or(0, |gpu| super::panes::gpu_rows(gpu).len()),
            points: self.state.roofline().points.len(),
            incidents: self.state.flight.incidents.len(),
            incident_at: self.incident().map(|incident| incident.at),
            gpus: self.state.gpus.len(),
            runs: self.runs.len(),
            log_lines: self.state.log.len(),
            snapshots: self.snapshots.len(),
            jobs: self.sweep.map_or(0, |at_work| at_work.sweep.current() + 1),
            kernels: match self.ui.pane {
                Pane::Kernels => super::panes::kernels_extent(self),
                _ => Default::default(),
            },
        }
    }
}
