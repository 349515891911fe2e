//! The loop: one task that takes events in, hears the user, and draws when something has changed.

use std::{
    io,
    path::PathBuf,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use crossterm::event::{
    Event as Input, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use futures::{Stream, StreamExt};
use ratatui::{
    Terminal,
    backend::Backend,
    layout::{Position, Rect},
};
use tui_input::InputRequest;

use super::{
    export::{Exported, export},
    frame::{Areas, Frame, clicked_moment},
    input::{self, Heard},
    keys::{self, Mode},
    panes::first_run_row,
    terminal::TerminalGuard,
    theme::{Depth, Glyphs, Theme},
    ui::{self, Action, Asks, Effect, KernelsLook, Overlay, OverlayKey, Pane, SortRuns, UiState},
    view::{SweepView, View},
};
use crate::{
    analysis::compare::{Comparison, Options, compare},
    compare::read_run,
    config::TuiConfig,
    event::{Outcome, ToolState},
    process::{
        crash,
        shutdown::{Cause, Shutdown},
    },
    run::{
        plan::Plan,
        rerun::Tool,
        session::{Session, SessionSummary},
        sweep::{CooldownStatus, Runner},
    },
    rundir::{EventReader, Loss, Player, ReadError, RunDir, RunEntry, list_runs},
    state::{RunState, Snapshot},
};

/// Makes a plan from the overrides the user typed.
pub type Replan = Box<dyn Fn(&[String]) -> Result<Plan, String>>;

/// A run in the making, and how to make the next one.
pub struct Live {
    pub session: Session,
    pub replan: Replan,
    /// The sweep whose job the session is.
    pub sweep: Option<Runner>,
}

impl Live {
    /// What the user waits for, while the workload has not come to it.
    fn waits_for(&self, next: Option<&Plan>) -> Option<&'static str> {
        let paused = self.session.state.workload_paused_at.is_some() || self.session.state.finished.is_some();
        match next {
            Some(_) => Some("ending this run"),
            None if self.is_ending_job() => Some("ending this job"),
            None => (self.session.control.is_paused() && !paused).then_some("pausing"),
        }
    }
}

impl Live {
    /// A job of a sweep has ended or was asked to, and is not closed yet.
    fn is_ending_job(&self) -> bool {
        let at_work = self.sweep.as_ref().is_some_and(|runner| runner.sweep.running().is_some());
        let cancelled = self.session.state.finished.is_none() && self.session.control.is_cancelled();
        at_work && (self.session.is_done() || cancelled)
    }
}

/// What is on the screen and what feeds it.
pub struct App {
    ui: UiState,
    theme: Theme,
    live: Option<Live>,
    /// What to run once nothing of the run on the screen computes any more.
    next: Option<Plan>,
    player: Option<Player>,
    /// The run that is played, where it has a directory.
    played: Option<RunDir>,
    /// What files had in them, where they are looked at.
    files: Option<Box<RunState>>,
    /// The state as it was when the view was frozen.
    frozen: Option<Box<RunState>>,
    runs_root: PathBuf,
    runs: Vec<RunEntry>,
    /// Of earlier runs of this program; the current run's are in its state.
    earlier_snapshots: Vec<Snapshot>,
    ended: Vec<SessionSummary>,
    exported: Vec<Exported>,
    frame_every: Duration,
    dirty: bool,
    /// The rest before a sweep's next job, as it was shown last.
    cooling: Option<CooldownStatus>,
    /// The tool that was at work when that was looked at last.
    tool: Option<Tool>,
    compared: Compared,
}

/// What the Compare pane holds against each other.
#[derive(Default)]
struct Compared {
    comparison: Option<Comparison>,
    /// The snapshots it is of: whether they are a recording's, and how many there were. `None` where it is of two runs.
    of_snapshots: Option<(bool, usize)>,
    /// Two runs that are being read.
    reading: Option<mpsc::Receiver<Result<Comparison, String>>>,
}

/// Why the screen was left, and what became of the runs.
pub struct Stopped {
    pub cause: Option<Cause>,
    pub runs: Vec<SessionSummary>,
    /// What the user had written to files.
    pub exported: Vec<Exported>,
    pub sweep: Option<Runner>,
    pub error: Option<io::Error>,
}

/// How long a recording may be read before the user is heard again.
const LOAD_BUDGET: Duration = Duration::from_millis(30);

/// How long after a failure of the terminal it may take until its reason is heard of.
const EXPLANATION_DELAY: Duration = Duration::from_millis(200);

impl App {
    /// A run in the making.
    pub fn of_run(config: &TuiConfig, live: Live, runs_root: PathBuf) -> App {
        App::new(config, Some(live), runs_root)
    }

    /// A recording, and the run's directory where it has one.
    pub fn of_recording(config: &TuiConfig, player: Player, dir: Option<RunDir>, runs_root: PathBuf) -> App {
        let app = App::new(config, None, runs_root);
        App { player: Some(player), played: dir, ..app }
    }

    fn new(config: &TuiConfig, live: Option<Live>, runs_root: PathBuf) -> App {
        let theme = Theme::for_terminal(config.theme, config.ascii);
        let mut ui = UiState::new(config.theme);
        if live.as_ref().is_some_and(|live| live.session.plan().watches()) {
            ui.pane = Pane::Gpu;
        }
        if live.as_ref().is_some_and(|live| live.session.plan().is_for_tools_alone()) {
            ui.pane = Pane::Kernels;
        }
        App {
            ui,
            theme,
            live,
            next: None,
            player: None,
            played: None,
            files: None,
            frozen: None,
            runs_root,
            runs: Vec::new(),
            earlier_snapshots: Vec::new(),
            ended: Vec::new(),
            exported: Vec::new(),
            frame_every: Duration::from_secs_f64(1.0 / f64::from(config.fps.max(1))),
            dirty: true,
            cooling: None,
            tool: None,
            compared: Compared::default(),
        }
    }

    /// What files of kernels have in them, on the pane for that. There is no run.
    pub fn of_files(config: &TuiConfig, state: RunState, look: KernelsLook, runs_root: PathBuf) -> App {
        let mut app = App::new(config, None, runs_root);
        (app.ui.pane, app.ui.kernels) = (Pane::Kernels, look);
        app.ui.message = state.log.back().map(|(_, notice)| notice.text.clone());
        app.files = Some(Box::new(state));
        app
    }

    /// Takes the terminal, runs until the user or a signal ends it, and gives the terminal back.
    pub async fn run(mut self, mouse: bool, mut shutdown: Shutdown) -> Stopped {
        let left = self.on_terminal(mouse, &mut shutdown).await;
        self.stop(left)
    }

    /// As [`run`](Self::run), on any screen and hearing any `input`; the end of the input is a hang-up.
    pub async fn run_on<B: Backend<Error = io::Error>>(
        mut self,
        screen: &mut Terminal<B>,
        mut input: impl Stream<Item = io::Result<Input>> + Unpin,
        mut shutdown: Shutdown,
    ) -> Stopped {
        let left = self.drive(screen, &mut input, &mut shutdown).await;
        self.stop(left)
    }

    /// Ends the run on the screen, which was left for the reason given.
    fn stop(mut self, left: io::Result<Option<Cause>>) -> Stopped {
        let (cause, error) = match left {
            Ok(cause) => (cause, None),
            Err(e) => (None, Some(e)),
        };
        let mut sweep = None;
        if let Some(mut live) = self.live.take() {
            let why = match (&cause, &error) {
                (Some(cause), _) => cause.to_string(),
                (None, Some(e)) => format!("the screen can't be drawn: {e}"),
                (None, None) => "quit by the user".to_owned(),
            };
            match &mut live.sweep {
                Some(runner) => drop(runner.end_job(&mut live.session, Outcome::Interrupted, Some(why))),
                None => self.ended.push(live.session.end(Outcome::Interrupted, Some(why))),
            }
            sweep = live.sweep;
        }
        Stopped { cause, runs: self.ended, exported: self.exported, sweep, error }
    }

    async fn on_terminal(&mut self, mouse: bool, shutdown: &mut Shutdown) -> io::Result<Option<Cause>> {
        let mut guard = TerminalGuard::enter(mouse)?;
        let mut input = input::listen()?;
        match self.drive(&mut *guard.screen, &mut input, shutdown).await {
            Err(e) => explanation(&mut input, shutdown).await.map(Some).ok_or(e),
            left => left,
        }
    }

    async fn drive<B: Backend<Error = io::Error>>(
        &mut self,
        screen: &mut Terminal<B>,
        input: &mut (impl Stream<Item = io::Result<Input>> + Unpin),
        shutdown: &mut Shutdown,
    ) -> io::Result<Option<Cause>> {
        let mut next_frame = Instant::now();
        let mut last_frame = Instant::now();
        loop {
            let now = Instant::now();
            let replay_moves = self.player.as_ref().is_some_and(Player::moves);
            self.start_next();
            self.follow_tool();
            let sweep_moves = self.follow_sweep(now);
            let compares = self.follow_comparison();
            let moves = replay_moves || sweep_moves || compares || self.next.is_some();
            if !replay_moves {
                last_frame = now;
            }
            if now >= next_frame && (self.dirty || moves) {
                self.play(now - last_frame);
                if self.dirty {
                    self.draw(screen)?;
                }
                (last_frame, next_frame) = (now, now + self.frame_every);
            }
            let frame_due = tokio::time::sleep_until(next_frame.into());
            let loading = self.player.as_ref().is_some_and(|p| p.position().loading);
            tokio::select! {
                biased;
                cause = shutdown.requested() => return Ok(Some(cause)),
                event = input.next() => match event {
                    Some(Ok(event)) => match self.hear(event, screen.size()?.into()) {
                        Some(Effect::Quit) => return Ok(None),
                        Some(Effect::Interrupt) => return Ok(Some(Cause::Interrupt)),
                        Some(Effect::Export) => self.export(screen.size()?.into()),
                        Some(effect) => self.carry_out(effect),
                        None => {}
                    },
                    Some(Err(e)) => return Err(e),
                    None => return Ok(Some(Cause::HangUp)),
                },
                () = frame_due, if self.dirty || moves => {}
                n = pump(&mut self.live) => self.dirty |= n > 0 && self.frozen.is_none(),
                // While nothing else is to be done, a recording is read on.
                () = tokio::task::yield_now(), if loading => self.load(),
            }
        }
    }

    fn draw<B: Backend<Error = io::Error>>(&mut self, screen: &mut Terminal<B>) -> io::Result<()> {
        crash::fault_point("screen");
        let begun = Instant::now();
        let (runs, snapshots, loss) = (self.chosen_runs(), self.snapshots(), self.loss());
        let view = self.view(&runs, &snapshots, loss.as_ref());
        screen.draw(|frame| frame.render_widget(Frame(view), frame.area()))?;
        if let Some(live) = &mut self.live {
            live.session.drew(begun.elapsed());
        }
        self.dirty = false;
        Ok(())
    }

    fn view<'a>(
        &'a self,
        runs: &'a [&'a RunEntry],
        snapshots: &'a [Snapshot],
        loss: Option<&'a Loss>,
    ) -> View<'a> {
        View {
            state: self.state(),
            ui: &self.ui,
            theme: &self.theme,
            replay: self.player.as_ref().map(Player::position),
            frozen: self.frozen.is_some() && self.player.is_none(),
            waiting: self
                .live
                .as_ref()
                .filter(|_| self.player.is_none())
                .and_then(|l| l.waits_for(self.next.as_ref())),
            loss,
            runs,
            snapshots,
            comparison: self.compared.comparison.as_ref(),
            sweep: self
                .live
                .as_ref()
                .and_then(|live| live.sweep.as_ref())
                .map(|runner| SweepView { sweep: &runner.sweep, cooling: self.cooling }),
        }
    }

    fn mode(&self) -> Mode {
        self.view(&[], &[], None).mode()
    }

    fn loss(&self) -> Option<Loss> {
        self.live.as_ref().filter(|_| self.player.is_none()).and_then(|l| l.session.loss())
    }

    fn state(&self) -> &RunState {
        static NOTHING: std::sync::LazyLock<RunState> = std::sync::LazyLock::new(RunState::default);
        match (&self.player, &self.frozen, &self.live) {
            (Some(player), ..) => player.state(),
            (None, Some(frozen), _) => frozen,
            (None, None, Some(live)) => &live.session.state,
            (None, None, None) => self.files.as_deref().unwrap_or(&NOTHING),
        }
    }

    fn snapshots(&self) -> Vec<Snapshot> {
        match (&self.player, &self.live) {
            (Some(player), _) => player.state().snapshots.iter().cloned().collect(),
            // Of the run itself: a frozen view would not show what was just taken.
            (None, Some(live)) => {
                self.earlier_snapshots.iter().chain(&live.session.state.snapshots).cloned().collect()
            }
            (None, None) => Vec::new(),
        }
    }

    /// The runs as filtered and sorted.
    fn chosen_runs(&self) -> Vec<&RunEntry> {
        let filter = self.ui.runs_filter.to_lowercase();
        let matches = |run: &&RunEntry| {
            filter.is_empty()
                || [&run.experiment, &run.model, &run.name].iter().any(|t| t.to_lowercase().contains(&filter))
        };
        let mut runs: Vec<&RunEntry> = self.runs.iter().filter(matches).collect();
        let speed = |run: &RunEntry| run.result.as_ref().and_then(|r| r.metrics.decode_tok_s).unwrap_or(0.0);
        match self.ui.sort {
            SortRuns::Newest => {}
            SortRuns::Fastest => runs.sort_by(|a, b| speed(b).total_cmp(&speed(a))),
            SortRuns::Model => runs.sort_by(|a, b| a.model.cmp(&b.model)),
        }
        runs
    }

    /// Reads on in the recording. What can't be read is told once, when all of it has been looked at.
    fn load(&mut self) {
        let was_loading = self.player.as_ref().is_some_and(|p| p.position().loading);
        self.with_player(|player| player.load(LOAD_BUDGET).map(|_| ()));
        let loaded = self.player.as_ref().filter(|p| was_loading && !p.position().loading);
        if let Some(trouble) = loaded.and_then(Player::warning) {
            self.ui.message = Some(trouble.text);
        }
    }

    /// Lets a replay go on by the real time that has passed.
    fn play(&mut self, elapsed: Duration) {
        let shown = |player: &Option<Player>| player.as_ref().map(|p| (p.position(), p.state().events));
        let before = shown(&self.player);
        self.load();
        self.with_player(|player| player.advance(elapsed).map(|_| ()));
        self.dirty |= shown(&self.player) != before;
    }

    fn hear(&mut self, event: Input, screen: Rect) -> Option<Effect> {
        self.dirty = true;
        match event {
            Input::Key(key) if key.kind != KeyEventKind::Release => self.hear_key(key),
            Input::Mouse(mouse) => self.hear_mouse(mouse, screen),
            Input::Paste(text) => {
                let text = text.replace(['\n', '\t'], " ");
                for c in text.chars().filter(|c| !c.is_control()) {
                    ui::update_overlay(&mut self.ui, OverlayKey::Edit(InputRequest::InsertChar(c)));
                }
                None
            }
            _ => None,
        }
    }

    fn hear_key(&mut self, key: KeyEvent) -> Option<Effect> {
        let interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
        if !matches!(self.ui.overlay, Overlay::None) && !interrupt {
            return overlay_key(&self.ui.overlay, key).and_then(|key| ui::update_overlay(&mut self.ui, key));
        }
        let mode = self.mode();
        let Some(action) = keys::action(key, self.ui.pane, mode) else {
            if keys::action(key, self.ui.pane, Mode::Single).is_some() {
                self.ui.message = match mode {
                    Mode::Replay => Some("that key is for a run in the making, not for a recording".into()),
                    Mode::Sweep => {
                        Some("a sweep does its jobs in order; e ends this one, q the sweep".into())
                    }
                    Mode::Files => Some("that key is for a run in the making; there is none".into()),
                    Mode::Single => None,
                };
            }
            return None;
        };
        self.act(action)
    }

    fn act(&mut self, action: Action) -> Option<Effect> {
        let extent = {
            let (runs, snapshots) = (self.chosen_runs(), self.snapshots());
            self.view(&runs, &snapshots, None).extent()
        };
        let effect = ui::update(&mut self.ui, action, extent);
        match action {
            Action::NextTheme => {
                let glyphs: Glyphs = self.theme.glyphs;
                self.theme = Theme::new(self.ui.theme, Depth::of_terminal(), glyphs);
            }
            Action::AskOverrides => {
                let typed = self.live.as_ref().map(|l| l.session.plan().composed.overrides.join(" "));
                self.ui.ask(Asks::Overrides, typed.unwrap_or_default());
            }
            _ => {}
        }
        effect
    }

    fn hear_mouse(&mut self, mouse: MouseEvent, screen: Rect) -> Option<Effect> {
        if !matches!(self.ui.overlay, Overlay::None) {
            let by = match mouse.kind {
                MouseEventKind::ScrollUp => -3,
                MouseEventKind::ScrollDown => 3,
                _ => return None,
            };
            return ui::update_overlay(&mut self.ui, OverlayKey::Scroll(by));
        }
        let at = Position::new(mouse.column, mouse.row);
        match mouse.kind {
            MouseEventKind::ScrollUp if self.ui.pane == Pane::Tokens => self.act(Action::Scrub(5)),
            MouseEventKind::ScrollDown if self.ui.pane == Pane::Tokens => self.act(Action::Scrub(-5)),
            MouseEventKind::ScrollUp => self.act(Action::Move(-3)),
            MouseEventKind::ScrollDown => self.act(Action::Move(3)),
            MouseEventKind::Down(MouseButton::Left) => {
                let areas = Areas::of(
                    screen,
                    self.player.is_some(),
                    self.live.as_ref().is_some_and(|l| l.sweep.is_some()),
                );
                let tab = areas.tabs().into_iter().find(|(_, rect)| rect.contains(at));
                if let Some((pane, _)) = tab {
                    return self.act(Action::Show(pane));
                }
                if areas.transport.contains(at) && !areas.transport.is_empty() {
                    let position = self.player.as_ref()?.position();
                    let moment = clicked_moment(position, areas.transport, at.x);
                    return Some(Effect::Seek(moment - position.at.secs()));
                }
                self.click_run(at, areas.body)
            }
            _ => None,
        }
    }

    /// A click chooses a run; a click on the chosen one opens it.
    fn click_run(&mut self, at: Position, body: Rect) -> Option<Effect> {
        let inner = Rect { y: body.y + 2, height: body.height.saturating_sub(3), ..body };
        if self.ui.pane != Pane::Runs || !inner.contains(at) {
            return None;
        }
        let count = self.chosen_runs().len();
        let selected = self.ui.run_selected.min(count.checked_sub(1)?);
        let clicked = first_run_row(selected, inner.height as usize) + (at.y - inner.y) as usize;
        if clicked >= count {
            return None;
        }
        self.ui.run_selected = clicked;
        (clicked == selected).then_some(Effect::OpenRun(clicked))
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Quit | Effect::Interrupt | Effect::Export => {
                unreachable!("the loop itself sees to these")
            }
            Effect::ToggleView => {
                self.frozen = match self.frozen.take() {
                    Some(_) => None,
                    None => self.live.as_ref().map(|l| Box::new(l.session.state.clone())),
                };
            }
            Effect::ToggleWorkload => {
                if let Some(live) = &mut self.live {
                    if live.session.state.finished.is_some() {
                        let words = match live.sweep {
                            Some(_) => "the job has ended",
                            None => "the run has ended; r starts it again",
                        };
                        self.ui.message = Some(words.into());
                    } else if let Some(tool) = live.session.tool() {
                        self.ui.message = Some(format!("the workload waits for {tool}; its key ends that"));
                    } else {
                        live.session.toggle_pause();
                    }
                }
            }
            Effect::ToggleKernels => {
                self.ui.message = self.live.as_mut().map(|live| live.session.toggle_kernels());
            }
            Effect::Rerun => {
                let overrides = self.live.as_ref().map(|l| l.session.plan().composed.overrides.clone());
                self.restart(&overrides.unwrap_or_default());
            }
            Effect::RunUnder(tool) => {
                self.ui.message = self.live.as_mut().and_then(|live| live.session.rerun(tool));
            }
            Effect::EndJob => self.end_job(),
            Effect::Restart(text) => match split_words(&text) {
                Ok(overrides) => self.restart(&overrides),
                Err(e) => self.refuse(e),
            },
            Effect::Snapshot(name) => {
                self.ui.message = self.live.as_mut().map(|live| live.session.snapshot(&name));
            }
            Effect::RefreshRuns => self.runs = list_runs(&self.runs_root),
            Effect::OpenRun(index) => {
                let dir = self.chosen_runs().get(index).map(|run| run.dir.clone());
                if let Some(dir) = dir {
                    self.open_run(dir);
                }
            }
            Effect::MarkRun(index) => self.mark_run(index),
            Effect::CompareRuns(index) => self.compare_runs(index),
            Effect::CompareSnapshots => self.compared = Compared::default(),
            Effect::LeaveReplay => self.leave_replay(None),
            Effect::TogglePlay => self.with_player(Player::toggle_play),
            Effect::Seek(secs) => self.with_player(|p| p.seek_by(secs)),
            Effect::SeekStart => self.with_player(|p| p.seek(crate::event::Stamp(0))),
            Effect::SeekEnd => self.with_player(|p| {
                p.to_end();
                Ok(())
            }),
            Effect::Faster => self.with_player(|p| {
                p.faster();
                Ok(())
            }),
            Effect::Slower => self.with_player(|p| {
                p.slower();
                Ok(())
            }),
        }
    }

    /// Writes the pane that is shown, as large as the screen, beside the run that it is of.
    fn export(&mut self, screen: Rect) {
        let dir = match (&self.player, &self.live) {
            (Some(_), _) => self.played.as_ref().map(RunDir::path),
            (None, live) => live.as_ref().and_then(|live| live.session.dir()),
        };
        let (runs, snapshots, loss) = (self.chosen_runs(), self.snapshots(), self.loss());
        let told = export(&self.view(&runs, &snapshots, loss.as_ref()), screen, dir);
        self.ui.message = Some(match told {
            Ok(exported) => {
                let words = exported.words();
                self.exported.push(exported);
                words
            }
            Err(e) => e.to_string(),
        });
    }

    /// Marks a run to compare others with; the marked one is marked no more.
    fn mark_run(&mut self, index: usize) {
        let Some(dir) = self.chosen_runs().get(index).map(|run| run.dir.path().to_owned()) else { return };
        self.ui.run_marked = if self.ui.run_marked.as_ref() == Some(&dir) { None } else { Some(dir) };
        self.ui.message = self
            .ui
            .run_marked
            .is_some()
            .then(|| "this is A; choose another and press d to compare it".into());
    }

    /// Reads the marked run and the chosen one, on a thread of its own: that may take a second.
    fn compare_runs(&mut self, index: usize) {
        let b = self.chosen_runs().get(index).map(|run| run.dir.path().to_owned());
        let (Some(a), Some(b)) = (self.ui.run_marked.clone(), b) else { return };
        if a == b {
            self.ui.message = Some("that is the marked run itself; choose another".into());
            return;
        }
        let (tx, rx) = mpsc::channel();
        let work = move || {
            let read = |dir: PathBuf| read_run(&dir).map_err(|e| e.to_string());
            let compared = read(a).and_then(|a| Ok(compare(&a, &read(b)?, &Options::default())));
            tx.send(compared).is_ok()
        };
        match thread::Builder::new().name("llmprof-compare".to_owned()).spawn(work) {
            Ok(_) => {
                self.compared = Compared { reading: Some(rx), ..Compared::default() };
                (self.ui.pane, self.ui.message) = (Pane::Compare, Some("reading both runs".into()));
            }
            Err(e) => self.ui.message = Some(format!("they can't be compared: {e}")),
        }
    }

    /// Takes in a comparison that is ready, and makes that of snapshots when there is a new one. Says whether one is
    /// still to come.
    fn follow_comparison(&mut self) -> bool {
        if let Some(reading) = &self.compared.reading {
            match reading.try_recv() {
                Err(mpsc::TryRecvError::Empty) => return true,
                Ok(Ok(comparison)) => {
                    self.compared.comparison = Some(comparison);
                    self.ui.message = None;
                }
                Ok(Err(e)) => self.ui.message = Some(e),
                Err(mpsc::TryRecvError::Disconnected) => {
                    self.ui.message = Some("the runs could not be compared; the log has more".into());
                }
            }
            (self.compared.reading, self.dirty) = (None, true);
            return false;
        }
        // A comparison of runs stays until snapshots are asked for; that of snapshots follows them.
        let of_runs = self.compared.of_snapshots.is_none() && self.compared.comparison.is_some();
        let count = self.snapshot_count();
        if of_runs || self.compared.of_snapshots == Some(count) {
            return false;
        }
        let snapshots = self.snapshots();
        self.compared.comparison = match &snapshots[..] {
            [.., a, b] => {
                a.sample.as_ref().zip(b.sample.as_ref()).map(|(a, b)| compare(a, b, &Options::default()))
            }
            _ => None,
        };
        (self.compared.of_snapshots, self.dirty) = (Some(count), true);
        false
    }

    fn snapshot_count(&self) -> (bool, usize) {
        match (&self.player, &self.live) {
            (Some(player), _) => (true, player.state().snapshots.len()),
            (None, Some(live)) => (false, self.earlier_snapshots.len() + live.session.state.snapshots.len()),
            (None, None) => (false, 0),
        }
    }

    fn with_player(&mut self, act: impl FnOnce(&mut Player) -> Result<(), ReadError>) {
        if let Some(Err(e)) = self.player.as_mut().map(act) {
            self.leave_replay(Some(e));
        }
    }

    fn open_run(&mut self, dir: RunDir) {
        let live = self.live.as_ref().and_then(|l| l.session.dir());
        if live == Some(dir.path()) {
            self.ui.message = Some("that is the run on the screen".into());
            return;
        }
        let events = dir.events();
        match Player::open(move || EventReader::open(&events)) {
            Ok(mut player) => {
                player.to_end();
                (self.player, self.played) = (Some(player), Some(dir));
                self.ui.pane = Pane::Overview;
                self.ui.token = None;
            }
            Err(e) => self.ui.message = Some(e.to_string()),
        }
    }

    fn leave_replay(&mut self, error: Option<ReadError>) {
        if self.live.is_some() || self.files.is_some() {
            self.player = None;
            self.ui.message = error.map(|e| e.to_string());
        } else {
            let text = error.map_or_else(|| "there is no live run; q quits".to_owned(), |e| e.to_string());
            self.ui.message = Some(text);
        }
    }

    /// Ends the run on the screen and has the next one started, if its overrides hold.
    fn restart(&mut self, overrides: &[String]) {
        let Some(live) = &mut self.live else { return };
        match (live.replan)(overrides) {
            Ok(plan) => {
                live.session.cancel();
                self.next = Some(plan);
                self.ui.overlay = Overlay::None;
            }
            Err(e) => self.refuse(e),
        }
    }

    /// Starts the next run when the last one has let go of the machine: two would measure each other.
    fn start_next(&mut self) {
        let Some(live) = self.live.as_mut().filter(|live| live.session.is_idle()) else { return };
        let Some(plan) = self.next.take() else { return };
        let ended = live.session.end(Outcome::Interrupted, Some("another run was started".into()));
        self.earlier_snapshots.extend(live.session.state.snapshots.iter().cloned());
        self.ended.push(ended);
        live.session = Session::start(plan);
        self.frozen = None;
        (self.ui.token, self.ui.log_back, self.dirty) = (None, 0, true);
    }

    /// Says how a run under a tool ended.
    fn follow_tool(&mut self) {
        let Some(session) = self.live.as_ref().map(|live| &live.session) else { return };
        let (was, is) = (self.tool, session.tool());
        self.tool = is;
        let (Some(tool), None) = (was, is) else { return };
        let last = session.state.kernels.tool_run.as_ref().map(|run| &run.state);
        self.ui.message = match last {
            Some(ToolState::Done) => Some(format!("{tool}: its report is among the kernels (4)")),
            Some(ToolState::Failed { reason, remedy }) => Some(format!("{tool}: {reason}; {remedy}")),
            Some(ToolState::Cancelled) => Some(format!("{tool} was ended")),
            _ => None,
        };
        self.dirty = true;
    }

    /// Ends the job at work, or the rest before the next one.
    fn end_job(&mut self) {
        let Some(live) = &mut self.live else { return };
        let Some(runner) = &mut live.sweep else { return };
        match (runner.sweep.running(), runner.sweep.next()) {
            (Some(_), _) => live.session.cancel(),
            (None, Some(_)) => runner.skip_cooldown(),
            (None, None) => self.ui.message = Some("the sweep is over; q leaves, 6 compares its jobs".into()),
        }
    }

    /// Closes a job that has ended, rests, and begins the next one. Says whether there is more to come of that soon.
    fn follow_sweep(&mut self, now: Instant) -> bool {
        let Some(live) = &mut self.live else { return false };
        let ending = live.is_ending_job();
        let Some(runner) = &mut live.sweep else { return false };
        if ending && live.session.is_idle() {
            runner.end_job(&mut live.session, Outcome::Interrupted, Some("ended by the user".into()));
            self.dirty = true;
        }
        let mut moves = runner.sweep.running().is_some() && ending;
        if runner.sweep.running().is_none() && runner.sweep.next().is_some() {
            moves = true;
            let cooling = runner.cooldown(now);
            let words = |cooling: &Option<CooldownStatus>| cooling.map(|cooling| cooling.to_string());
            self.dirty |= words(&cooling) != words(&self.cooling);
            self.cooling = cooling;
            if cooling.is_none() {
                self.start_job();
            }
        }
        self.tell_remarks();
        moves
    }

    fn start_job(&mut self) {
        let Some(live) = &mut self.live else { return };
        if let Some(session) = live.sweep.as_mut().and_then(Runner::start_next) {
            self.earlier_snapshots.extend(live.session.state.snapshots.iter().cloned());
            live.session = session;
            self.frozen = None;
            (self.ui.token, self.ui.log_back, self.ui.jobs_back) = (None, 0, 0);
        }
        self.dirty = true;
    }

    fn tell_remarks(&mut self) {
        let remarks = self.live.as_mut().and_then(|live| live.sweep.as_mut()).map(Runner::take_remarks);
        if let Some(remarks) = remarks.filter(|remarks| !remarks.is_empty()) {
            (self.ui.message, self.dirty) = (Some(remarks.join("; ")), true);
        }
    }

    /// Says in the open prompt, or else in the footer, why something was not done.
    fn refuse(&mut self, why: String) {
        match &mut self.ui.overlay {
            Overlay::Prompt(prompt) => prompt.error = Some(why),
            _ => self.ui.message = Some(why),
        }
    }
}

/// A terminal that goes away fails before that is heard of.
async fn explanation(input: &mut Heard, shutdown: &mut Shutdown) -> Option<Cause> {
    let hung_up = async { while input.next().await.is_some() {} };
    let cause = async {
        tokio::select! {
            cause = shutdown.requested() => cause,
            () = hung_up => Cause::HangUp,
        }
    };
    tokio::time::timeout(EXPLANATION_DELAY, cause).await.ok()
}

async fn pump(live: &mut Option<Live>) -> usize {
    match live {
        Some(live) => live.session.pump().await,
        None => std::future::pending().await,
    }
}

/// What a key means to the overlay on top.
fn overlay_key(overlay: &Overlay, key: KeyEvent) -> Option<OverlayKey> {
    use InputRequest as R;
    if matches!(overlay, Overlay::Help { .. } | Overlay::Evidence { .. }) {
        return Some(match key.code {
            KeyCode::Up | KeyCode::Char('k') => OverlayKey::Scroll(-1),
            KeyCode::Down | KeyCode::Char('j') => OverlayKey::Scroll(1),
            KeyCode::PageUp => OverlayKey::Scroll(-10),
            KeyCode::PageDown => OverlayKey::Scroll(10),
            _ => OverlayKey::Close,
        });
    }
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Esc => OverlayKey::Close,
        KeyCode::Enter => OverlayKey::Accept,
        KeyCode::Char('u') if control => OverlayKey::Edit(R::DeleteLine),
        KeyCode::Char('w') if control => OverlayKey::Edit(R::DeletePrevWord),
        KeyCode::Char('a') if control => OverlayKey::Edit(R::GoToStart),
        KeyCode::Char('e') if control => OverlayKey::Edit(R::GoToEnd),
        KeyCode::Char(c) if !control => OverlayKey::Edit(R::InsertChar(c)),
        KeyCode::Backspace => OverlayKey::Edit(R::DeletePrevChar),
        KeyCode::Delete => OverlayKey::Edit(R::DeleteNextChar),
        KeyCode::Left => OverlayKey::Edit(R::GoToPrevChar),
        KeyCode::Right => OverlayKey::Edit(R::GoToNextChar),
        KeyCode::Home => OverlayKey::Edit(R::GoToStart),
        KeyCode::End => OverlayKey::Edit(R::GoToEnd),
        _ => return None,
    })
}

/// Splits as a shell does: at white space, but not within quotes.
fn split_words(text: &str) -> Result<Vec<String>, String> {
    shlex::split(text).ok_or_else(|| "a quote is not closed".to_owned())
}
