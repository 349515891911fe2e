//! The input of a frame.

use std::{collections::BTreeMap, time::Duration};

use ratatui::layout::Rect;

use crate::{
    keys::Mode,
    layout::{Hit, Hits},
    panes::kernels,
    run_tree::RunTree,
    theme::Theme,
    ui::{
        Action, Cursor, Effect, Extent, GroupKey, Pane, Panes, RunCommand, RunsCommand, SPANS_S,
        STREAM_SPANS_S, UiState,
    },
    widgets::TimeAxis,
};
use llmprof_analysis::compare::Comparison;
use llmprof_event::{Link, Stamp, WorkKind};
use llmprof_record::{
    rundir::{Loss, Position},
    state::{GpuState, Incident, RunState, Series, ServerState, Snapshot},
    sweep::{CooldownStatus, LiveFigures, Sweep},
};

static NO_RUNS: RunTree = RunTree::EMPTY;

/// The number of columns of the charts before they are first drawn.
const USUAL_COLUMNS: u16 = 100;

/// Read-only: a frame is a pure function of it.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub state: &'a RunState,
    pub ui: &'a UiState,
    pub theme: &'a Theme,
    /// Set while a recording is played.
    pub replay: Option<Position>,
    /// The end of the played recording, as far as it was read.
    pub recorded: Option<&'a RunState>,
    /// Whether the view is frozen while the run continues.
    pub frozen: bool,
    /// The requested action that the workload has not done yet.
    pub pending: Option<&'static str>,
    pub loss: Option<&'a Loss>,
    pub runs: &'a RunTree,
    /// Whether the list of runs is being read.
    pub listing: bool,
    /// The snapshots of this and earlier runs of the program, oldest first.
    pub snapshots: &'a [Snapshot],
    /// The comparison of two runs, or of the last two snapshots.
    pub comparison: Option<&'a Comparison>,
    /// Set for a remote run.
    pub remote: Option<&'a RemoteView>,
    /// Set during a sweep.
    pub sweep: Option<SweepView<'a>>,
    /// The parts of the screen that can be clicked, filled while the frame is drawn.
    pub hits: Option<&'a Hits>,
    /// The range of the charts, if it differs from the time range of the screen.
    pub range: Option<(Stamp, Stamp)>,
}

/// The connection to the remote host, for display.
#[derive(Debug, Clone, PartialEq)]
pub struct RemoteView {
    pub host: String,
    /// The remote name of the run.
    pub id: String,
    pub link: Link,
    /// Bytes of its files that were fetched, and the total.
    pub fetching: Option<(u64, u64)>,
    pub goes_on: bool,
}

/// A sweep as the screen shows it.
#[derive(Clone, Copy)]
pub struct SweepView<'a> {
    pub sweep: &'a Sweep,
    /// Set while the next job waits.
    pub cooling: Option<CooldownStatus>,
    /// Set if the jobs run in other processes.
    pub elsewhere: Option<Elsewhere<'a>>,
    /// Time and figures so far.
    pub progress: Option<&'a Progress>,
}

/// The progress of a sweep.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    pub elapsed: Duration,
    /// The running jobs whose figures are known.
    pub jobs: BTreeMap<usize, LiveFigures>,
}

/// Jobs in other processes.
#[derive(Clone, Copy)]
pub struct Elsewhere<'a> {
    /// The error that prevents following them.
    pub trouble: Option<&'a str>,
    /// Whether they were cancelled and some have not ended.
    pub cancelled: bool,
    pub elapsed: Duration,
}

impl<'a> View<'a> {
    /// A single run: no replay, no sweep, no other runs.
    pub fn new(state: &'a RunState, ui: &'a UiState, theme: &'a Theme) -> View<'a> {
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
            remote: None,
            sweep: None,
            hits: None,
            range: None,
        }
    }

    pub fn mode(&self) -> Mode {
        match (self.replay, self.sweep) {
            (Some(_), _) => Mode::Replay,
            (None, Some(SweepView { elsewhere: Some(_), .. })) => Mode::Jobs,
            (None, Some(_)) => Mode::Sweep,
            (None, None) if self.state.is_of_files() => Mode::Files,
            (None, None) if self.remote.is_some() => Mode::Remote,
            (None, None) => Mode::Single,
        }
    }

    /// The selected job of a sweep.
    pub fn selected_job(&self) -> usize {
        let Some(SweepView { sweep, .. }) = self.sweep else { return 0 };
        self.ui.job.unwrap_or_else(|| sweep.current()).min(sweep.jobs.len().saturating_sub(1))
    }

    /// All panes of a live run, each of which shows what would fill it. Otherwise those with content, and the displayed
    /// one.
    pub fn panes(&self) -> Panes {
        let fills_up = self.replay.is_none()
            && self.mode() != Mode::Jobs
            && self.state.kind().has_workload()
            && !self.state.is_of_files();
        let may_fill = |pane: Pane| fills_up && !pane.is_special();
        Panes::those(|pane| may_fill(pane) || pane == self.ui.pane || self.has_content(pane))
    }

    fn has_content(&self, pane: Pane) -> bool {
        let state = self.recorded.unwrap_or(self.state);
        (pane.spec().has_content)(self, state)
    }

    /// Why an action has no effect now.
    pub fn obstacle(&self, action: &Action) -> Option<&'static str> {
        let effect = match action {
            Action::Do(effect) => effect,
            Action::ShowSnapshots | Action::NextComparePart if self.mode() == Mode::Jobs => {
                return Some("a sweep has no comparison: the table has all jobs; Enter opens one");
            }
            _ => return None,
        };
        match effect {
            Effect::Run(command) => self.obstacle_on_run(command),
            Effect::Runs(command) => self.obstacle_on_runs(command),
            _ => None,
        }
    }

    fn obstacle_on_run(&self, command: &RunCommand) -> Option<&'static str> {
        match (command, self.state.kind()) {
            (
                RunCommand::TogglePause | RunCommand::ToggleKernels | RunCommand::RunUnder(_),
                WorkKind::Watch,
            ) => Some("there is no workload: the GPU is only monitored"),
            (RunCommand::TogglePause, WorkKind::Program) => Some("llmprof-tui cannot pause another program"),
            (RunCommand::RunUnder(_), WorkKind::Program) => {
                Some("nsys and ncu cannot re-run another program; its kernels are recorded while it runs")
            }
            (RunCommand::TogglePause, _) if self.state.finished.is_some() => match self.sweep {
                Some(_) => Some("the job has finished"),
                None => Some("the run has finished; press r to start it again"),
            },
            (RunCommand::Reconnect, _) => match self.remote.map(|remote| &remote.link) {
                Some(Link::Up { .. }) => Some("the remote host is connected"),
                _ => None,
            },
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

    /// The time range of the charts: up to now, or as it was when the cursor was set. A cursor outside of it moves it.
    pub fn time_range(&self) -> (Stamp, Stamp) {
        if let Some(range) = self.range {
            return range;
        }
        /// The part of the range after a cursor that is earlier.
        const AFTER: f64 = 0.8;
        let now = self.state.now.secs();
        let span_at = |end: f64| SPANS_S[self.ui.span].min(end.max(1.0));
        let (end, span) = match self.ui.cursor.filter(|cursor| cursor.at <= self.state.now) {
            Some(Cursor { at, end }) if at <= end && end.secs() - at.secs() <= span_at(end.secs()) => {
                (end.secs(), span_at(end.secs()))
            }
            Some(Cursor { at, .. }) => {
                let span = span_at(now);
                ((at.secs() + AFTER * span).max(span).min(now), span)
            }
            None => (now, span_at(now)),
        };
        let from = (end - span).max(0.0);
        (Stamp::from_secs_f64(from), Stamp::from_secs_f64(end.max(from + span)))
    }

    /// The same view with charts over another time range.
    pub fn over(self, range: (Stamp, Stamp)) -> View<'a> {
        View { range: Some(range), ..self }
    }

    /// The time range of the streams: a few requests up to now or around `centre`, changed by the zoom.
    pub fn stream_range(&self, centre: Option<Stamp>) -> (Stamp, Stamp) {
        /// Requests of the usual length in the range.
        const REQUESTS: f64 = 3.0;
        let (now, longest) = (self.state.now, STREAM_SPANS_S.len() - 1);
        let e2e = &self.state.total.e2e;
        let usual_s = e2e.percentile_ms(50.0).or(e2e.mean_ms()).map_or(2.0, |ms| REQUESTS * ms / 1e3);
        let usual = STREAM_SPANS_S.partition_point(|span| *span < usual_s).min(longest);
        let span_s = STREAM_SPANS_S[usual.saturating_add_signed(-self.ui.stream_zoom).min(longest)];
        // A finished run is idle at its end.
        let last = self.state.trail.last().map_or(now, |mark| mark.t);
        let newest = if self.state.finished.is_some() { last } else { now };
        let end = centre.map_or(newest, |t| Stamp::from_secs_f64(t.secs() + span_s / 2.0).min(newest.max(t)));
        let from = (end.secs() - span_s).max(0.0);
        (Stamp::from_secs_f64(from), Stamp::from_secs_f64(end.secs().max(from + span_s)))
    }

    pub fn time_axis(&self) -> TimeAxis {
        let (from, to) = self.time_range();
        TimeAxis { from, to, now: self.state.now, cursor: self.cursor() }
    }

    /// The selected moment, if the run has reached it.
    pub fn cursor(&self) -> Option<Stamp> {
        self.ui.cursor.map(|cursor| cursor.at).filter(|at| *at <= self.state.now)
    }

    /// The value at the cursor; the last one without a cursor.
    pub fn value(&self, series: &Series) -> Option<f64> {
        match self.cursor() {
            Some(cursor) => series.at(cursor).map(f64::from),
            None => series.last().map(|(_, value)| f64::from(value)),
        }
    }

    /// Registers a part of the screen with the mouse.
    pub fn on_click(&self, area: Rect, hit: Hit) {
        if let Some(hits) = self.hits {
            hits.add(area, hit);
        }
    }

    /// Tokens between the newest and the selected one: the one at the cursor, unless another was selected.
    pub fn tokens_back(&self) -> usize {
        let trail = &self.state.trail;
        let newest = trail.count().saturating_sub(1);
        let back = match (self.ui.token, self.cursor()) {
            (Some(token), _) => newest.saturating_sub(token.number) as usize,
            (None, Some(cursor)) => trail.after(cursor),
            (None, None) => 0,
        };
        back.min(trail.len().saturating_sub(1))
    }

    /// The selected server.
    pub fn server(&self) -> &'a ServerState {
        self.state.servers().nth(self.ui.row(Pane::Server)).unwrap_or(&self.state.server)
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

    /// Whether several GPUs are shown as a table, because none is enlarged.
    pub fn shows_gpu_table(&self) -> bool {
        self.state.gpus.len() > 1 && !self.ui.gpu_open
    }

    /// The GPU of the summary: the workload's, or any GPU without a workload.
    pub fn workload_gpu(&self) -> Option<&'a GpuState> {
        let works = |gpu: &&GpuState| self.state.is_of_workload(gpu);
        self.gpu().filter(works).or_else(|| self.state.main_gpu().filter(works))
    }

    pub fn open_incident(&self) -> Option<&'a Incident> {
        let opened = self.ui.incident_open?;
        self.state.flight.incidents.iter().find(|incident| incident.at == opened)
    }

    pub fn selected_incident(&self) -> Option<&'a Incident> {
        let incidents = &self.state.flight.incidents;
        let back = self.ui.row(Pane::Tokens).min(incidents.len().checked_sub(1)?);
        incidents.get(incidents.len() - 1 - back)
    }

    pub fn extent(&self) -> Extent {
        let spec = self.ui.pane.spec();
        Extent {
            mode: self.mode(),
            panes: self.panes(),
            tokens: self.state.trail.len(),
            tokens_seen: self.state.trail.count(),
            tokens_back: self.tokens_back(),
            now: self.state.now,
            column_ns: self.time_axis().column_ns(USUAL_COLUMNS),
            rows: (spec.rows)(self),
            evidence: (spec.evidence)(self),
            incident_at: self.selected_incident().map(|incident| incident.at),
            gpus: self.state.gpus.len(),
            gpu: self.gpu_index(),
            run: self.runs.selected(self.ui.runs.row),
            snapshots: self.snapshots.len(),
            job: self.selected_job(),
            kernels: match self.ui.pane {
                Pane::Kernels => kernels::extent(self),
                _ => Default::default(),
            },
        }
    }
}
