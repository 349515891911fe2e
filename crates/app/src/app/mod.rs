//! The screen as a program: its content, and its sources.

mod commands;
mod comparison;
mod event_loop;
mod jobs;
mod live;
mod mouse;
mod replay;
mod runs;
mod workload;

use std::{io, path::PathBuf, time::Duration};

use ratatui::{Terminal, backend::Backend};
use tokio::sync::mpsc::UnboundedReceiver;

use self::{comparison::Compared, event_loop::Left, jobs::Elsewhere, runs::RunList};
pub use self::{
    live::{Live, Replan},
    workload::Workload,
};
use super::input::Input;
use llmprof_base::process::shutdown::{Cause, Shutdown};
use llmprof_config::TuiConfig;
use llmprof_event::{Outcome, Tool, WorkKind};
use llmprof_record::{
    rundir::{Player, RunDir},
    state::{RunState, Snapshot},
    sweep::CooldownStatus,
};
use llmprof_run::{
    plan::Plan,
    remote::RemoteRun,
    session::SessionSummary,
    sweep::{Launch, Runner},
};
use llmprof_screen::{
    export::Exported,
    layout::{ScreenLayout, Target},
    theme::{Depth, Glyphs, Theme, initial_theme},
    ui::{KernelsSettings, Pane, UiState},
    view::{SweepView, View},
};

/// The content of the screen and its sources.
pub struct App {
    ui: UiState,
    depth: Depth,
    glyphs: Glyphs,
    /// As last drawn.
    layout: ScreenLayout,
    /// The message that was last kept in the log.
    kept_message: Option<String>,
    /// The target on which the mouse button was pressed.
    pressed: Option<Target>,
    live: Option<Live>,
    /// Jobs of a sweep in other processes.
    jobs: Option<Elsewhere>,
    /// Started once the current run no longer computes.
    next: Option<Plan>,
    player: Option<Player>,
    /// The directory of the recording that is played, if it has one.
    played: Option<RunDir>,
    /// Kernel reports without a run.
    files: Option<Box<RunState>>,
    /// The state when the view was frozen.
    frozen: Option<Box<RunState>>,
    runs: RunList,
    /// The snapshots of earlier runs of this program; the current run's are in its state.
    earlier_snapshots: Vec<Snapshot>,
    ended: Vec<SessionSummary>,
    exported: Vec<Exported>,
    frame_interval: Duration,
    /// Whether the screen is out of date.
    dirty: bool,
    /// The cool-down before a sweep's next job, as last shown.
    cooling: Option<CooldownStatus>,
    /// Alerts for which the bell has rung.
    rung: u64,
    /// The tool that was running at the last check.
    tool: Option<Tool>,
    compared: Compared,
    /// The index of the displayed remote run.
    run_there: Option<u32>,
}

/// The first pane, from the first events of the recording.
fn first_pane(player: &mut Player) -> Pane {
    // An error is reported when the rest of the recording is read.
    let _ = player.load(Duration::ZERO);
    let state = player.end_state();
    match state.kind() {
        WorkKind::Watch if state.servers().any(|server| server.url().is_some()) => Pane::Server,
        WorkKind::Watch => Pane::Gpu,
        WorkKind::Model(_) | WorkKind::Sim | WorkKind::Python | WorkKind::Program | WorkKind::Server => {
            Pane::Overview
        }
    }
}

/// Why the screen closed, and the ends of the runs.
pub struct Stopped {
    pub cause: Option<Cause>,
    pub runs: Vec<SessionSummary>,
    pub exported: Vec<Exported>,
    pub sweep: Option<Runner>,
    pub launch: Option<Launch>,
    /// The displayed remote run.
    pub remote: Option<Box<RemoteRun>>,
    pub error: Option<io::Error>,
}

impl App {
    fn new(config: &TuiConfig, runs_root: PathBuf) -> App {
        App {
            ui: UiState::new(initial_theme(config.theme)),
            depth: Depth::of_terminal(),
            glyphs: Glyphs::for_terminal(config),
            layout: ScreenLayout::default(),
            pressed: None,
            kept_message: None,
            live: None,
            jobs: None,
            next: None,
            player: None,
            played: None,
            files: None,
            frozen: None,
            runs: RunList::below(runs_root),
            earlier_snapshots: Vec::new(),
            ended: Vec::new(),
            exported: Vec::new(),
            frame_interval: Duration::from_secs_f64(1.0 / f64::from(config.fps.max(1))),
            dirty: true,
            cooling: None,
            rung: 0,
            tool: None,
            compared: Compared::default(),
            run_there: None,
        }
    }

    /// A live run.
    pub fn of_run(config: &TuiConfig, live: Live, runs_root: PathBuf) -> App {
        let mut app = App::new(config, runs_root);
        if live.session.is_for_tools_alone() {
            app.ui.pane = Pane::Kernels;
        } else if !live.session.kind().has_workload() {
            app.ui.pane = if live.session.watches_server() { Pane::Server } else { Pane::Gpu };
            app.runs.refresh();
        }
        if let Workload::There(run) = &live.session {
            app.run_there = run.number();
        }
        app.live = Some(live);
        app
    }

    /// Jobs of a sweep in other processes.
    pub fn of_jobs(config: &TuiConfig, launch: Launch, runs_root: PathBuf) -> App {
        let mut app = App::new(config, runs_root);
        app.ui.pane = Pane::Compare;
        app.jobs = Some(Elsewhere::new(launch));
        app.runs.refresh();
        app
    }

    /// A recording, and the run's directory if it has one.
    pub fn of_recording(
        config: &TuiConfig,
        mut player: Player,
        dir: Option<RunDir>,
        runs_root: PathBuf,
    ) -> App {
        let mut app = App::new(config, runs_root);
        app.ui.pane = first_pane(&mut player);
        (app.player, app.played) = (Some(player), dir);
        app.runs.refresh();
        app
    }

    /// Opens `pane` instead of the default one.
    pub fn open(&mut self, pane: Option<Pane>) {
        self.ui.pane = pane.unwrap_or(self.ui.pane);
    }

    /// Kernel reports in the Kernels pane, without a run.
    pub fn of_files(
        config: &TuiConfig,
        state: RunState,
        settings: KernelsSettings,
        runs_root: PathBuf,
    ) -> App {
        let mut app = App::new(config, runs_root);
        let pane = if state.kernels.reports.is_empty() { Pane::Ranks } else { Pane::Kernels };
        (app.ui.pane, app.ui.kernels) = (pane, settings);
        app.ui.message = state.log.iter().next_back().map(|line| line.notice.text.clone());
        app.files = Some(Box::new(state));
        app.runs.refresh();
        app
    }

    /// Takes the terminal, runs until the user or a signal ends it, and restores the terminal.
    pub async fn run(mut self, mouse: bool, mut shutdown: Shutdown) -> Stopped {
        let left = self.run_on_terminal(mouse, &mut shutdown).await;
        self.stop(left)
    }

    /// Like [`run`](Self::run), with any screen and any input; a closed input is a hang-up.
    pub async fn run_on<B: Backend<Error = io::Error>>(
        mut self,
        screen: &mut Terminal<B>,
        mut input: UnboundedReceiver<Input>,
        mut shutdown: Shutdown,
    ) -> Stopped {
        let left = loop {
            match self.run_loop(screen, || Ok(true), || Ok(()), &mut input, &mut shutdown).await {
                Ok(Left::Ended(cause)) => break Ok(cause),
                // There is no terminal to restore.
                Ok(Left::Suspended | Left::Resumed) => {}
                Err(e) => break Err(e),
            }
        };
        self.stop(left)
    }

    /// Ends the run after the event loop has ended for the given reason.
    fn stop(mut self, left: io::Result<Option<Cause>>) -> Stopped {
        let (cause, error) = match left {
            Ok(cause) => (cause, None),
            Err(e) => (None, Some(e)),
        };
        let (mut sweep, mut remote) = (None, None);
        if let Some(mut live) = self.live.take() {
            let reason = match (&cause, &error) {
                (Some(cause), _) => cause.to_string(),
                (None, Some(e)) => format!("the screen cannot be drawn: {e}"),
                (None, None) => "quit by the user".to_owned(),
            };
            match (live.session, &mut live.sweep) {
                (Workload::Here(mut session), Some(runner)) => {
                    runner.end_job(&mut session, Outcome::Interrupted, Some(reason));
                }
                (Workload::Here(mut session), None) => {
                    self.ended.push(session.end(Outcome::Interrupted, Some(reason)));
                }
                // It continues on the remote host.
                (Workload::There(run), _) => remote = Some(run),
            }
            sweep = live.sweep;
        }
        let launch = self.jobs.take().map(Elsewhere::into_launch);
        Stopped { cause, runs: self.ended, exported: self.exported, sweep, launch, remote, error }
    }

    fn with_view<T>(&self, use_view: impl FnOnce(&View<'_>) -> T) -> T {
        let theme = Theme::new(self.ui.theme, self.depth, self.glyphs);
        let snapshots = self.snapshots();
        let live = self.live.as_ref().filter(|_| self.player.is_none());
        let loss = live.and_then(|live| live.session.loss());
        let remote = live.and_then(|live| live.session.remote_view());
        let runner = self.live.as_ref().and_then(|live| live.sweep.as_ref());
        let progress = self.live.as_ref().and_then(Live::progress);
        use_view(&View {
            range: None,
            state: self.state(),
            ui: &self.ui,
            theme: &theme,
            replay: self.player.as_ref().map(Player::position),
            recorded: self.player.as_ref().map(Player::end_state),
            frozen: self.frozen.is_some() && self.player.is_none(),
            pending: live.and_then(|live| live.pending(self.next.is_some())),
            loss: loss.as_ref(),
            runs: &self.runs.tree,
            listing: self.runs.is_listing(),
            snapshots: &snapshots,
            comparison: self.compared.comparison.as_ref(),
            remote: remote.as_ref(),
            sweep: match (runner, &self.jobs) {
                (Some(runner), _) => Some(SweepView {
                    sweep: &runner.sweep,
                    cooling: self.cooling,
                    elsewhere: None,
                    progress: progress.as_ref(),
                }),
                (None, jobs) => jobs.as_ref().map(Elsewhere::view),
            },
            hits: None,
        })
    }

    fn state(&self) -> &RunState {
        static EMPTY: std::sync::LazyLock<RunState> = std::sync::LazyLock::new(RunState::default);
        match (&self.player, &self.frozen, &self.live) {
            (Some(player), ..) => player.state(),
            (None, Some(frozen), _) => frozen,
            (None, None, Some(live)) => live.session.state(),
            (None, None, None) => self.files.as_deref().unwrap_or(&EMPTY),
        }
    }

    fn snapshots(&self) -> Vec<Snapshot> {
        match (&self.player, &self.live) {
            (Some(player), _) => player.state().snapshots.iter().cloned().collect(),
            // Not of the frozen state, which lacks later snapshots.
            (None, Some(live)) => {
                let earlier = self.earlier_snapshots.iter().chain(live.session.earlier_snapshots());
                earlier.chain(&live.session.state().snapshots).cloned().collect()
            }
            (None, None) => Vec::new(),
        }
    }
}
