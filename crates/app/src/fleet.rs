//! The fleet on the screen: a list of GPUs or nodes that is refreshed in the background, and the history of one GPU.

use std::{
    io,
    path::PathBuf,
    time::{Duration, Instant},
};

use crossterm::event::{
    Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use ratatui::{
    Terminal,
    backend::Backend,
    layout::{Position, Rect},
};
use tokio::sync::mpsc::UnboundedReceiver;
use tui_input::InputRequest;

use super::{
    input::{self, Input},
    terminal::TerminalGuard,
};
use llmprof_analysis::fleet::{Fleet, History, Key, Order, Since, Snapshot, from_recording};
use llmprof_base::process::shutdown::{Cause, Shutdown};
use llmprof_config::TuiConfig;
use llmprof_record::state::RunState;
use llmprof_screen::{
    fleet::{
        Effect, FleetUi, FleetView, Overlay, help_end,
        keys::{self, Action},
        list_layout, order_at, update,
    },
    keys::{self as pane_keys, Mode},
    theme::{Depth, Glyphs, Theme, initial_theme},
    ui::{self as pane_ui, Pane},
    view::View,
};
use llmprof_sources::fleet::{Ask, Recorded, Recorder, RecordingError, Update, Watch};

/// The source of the screen.
pub enum Feed {
    Live { watch: Watch, recorder: Option<Recorder> },
    Recorded(Box<Recorded>),
}

/// Maximum snapshots of a recording in a history.
const HISTORY_SNAPSHOTS: usize = 240;
/// The interval between two steps of playback.
const PLAY_INTERVAL: Duration = Duration::from_millis(500);
/// Rows per step of the wheel.
const WHEEL_LINES: isize = 3;
/// The interval at which ages are redrawn.
const TICK: Duration = Duration::from_secs(1);
/// The interval between two attempts to write the rest of a frame.
const WRITE_INTERVAL: Duration = Duration::from_millis(50);

/// The wait before the next step of playback. `None` until the displayed refresh has reached the terminal: an earlier
/// step would skip it.
fn wait_for_step(since_last: Duration, is_shown: bool) -> Option<Duration> {
    is_shown.then(|| PLAY_INTERVAL.saturating_sub(since_last))
}

pub struct FleetApp {
    ui: FleetUi,
    depth: Depth,
    glyphs: Glyphs,
    feed: Feed,
    source: String,
    fleet: Option<Fleet>,
    received: Option<Instant>,
    error: Option<String>,
    /// The index of the displayed refresh of a recording.
    at: usize,
    playing: bool,
    /// The time of the last step of playback.
    stepped: Instant,
    size: Rect,
    recording_failed: Option<RecordingError>,
}

/// Why the screen was left.
pub struct FleetStopped {
    pub cause: Option<Cause>,
    pub error: Option<io::Error>,
    /// The path of the recording, and why it was ended early.
    pub recorded: Option<PathBuf>,
    pub recording_failed: Option<RecordingError>,
    /// Why there was nothing to show.
    pub without_data: Option<String>,
}

enum Left {
    Ended(Option<Cause>),
    Suspended,
    Resumed,
}

impl FleetApp {
    pub fn new(config: &TuiConfig, feed: Feed, source: String, order: Order) -> FleetApp {
        let mut app = FleetApp {
            ui: FleetUi::new(initial_theme(config.theme), order),
            depth: Depth::of_terminal(),
            glyphs: Glyphs::for_terminal(config),
            feed,
            source,
            fleet: None,
            received: None,
            error: None,
            at: 0,
            playing: false,
            stepped: Instant::now(),
            size: Rect::default(),
            recording_failed: None,
        };
        if let Feed::Recorded(recorded) = &app.feed {
            app.at = recorded.len() - 1;
            app.show_recorded();
        }
        app
    }

    /// Takes the terminal, runs until the user or a signal ends it, and restores the terminal.
    pub async fn run(mut self, mouse: bool, mut shutdown: Shutdown) -> FleetStopped {
        let left = self.run_on_terminal(mouse, &mut shutdown).await;
        let (cause, error) = match left {
            Ok(cause) => (cause, None),
            Err(e) => (None, Some(e)),
        };
        let recorded = match &self.feed {
            Feed::Live { recorder: Some(recorder), .. } => Some(recorder.path().to_owned()),
            _ => None,
        };
        let without_data = self.error.filter(|_| self.fleet.is_none());
        FleetStopped { cause, error, recorded, recording_failed: self.recording_failed, without_data }
    }

    async fn run_on_terminal(&mut self, mouse: bool, shutdown: &mut Shutdown) -> io::Result<Option<Cause>> {
        let mut guard = TerminalGuard::enter(mouse)?;
        let mut input = input::listen()?;
        let outlet = guard.outlet.clone();
        loop {
            match self.run_loop(&mut *guard.screen, || outlet.is_done(), &mut input, shutdown).await? {
                Left::Ended(cause) => return Ok(cause),
                Left::Suspended => guard.suspend()?,
                Left::Resumed => guard.take_again()?,
            }
        }
    }

    async fn run_loop<B: Backend<Error = io::Error>>(
        &mut self,
        screen: &mut Terminal<B>,
        is_drawn: impl Fn() -> io::Result<bool>,
        input: &mut UnboundedReceiver<Input>,
        shutdown: &mut Shutdown,
    ) -> io::Result<Left> {
        let mut dirty = true;
        loop {
            // A terminal that is not read delays only frames.
            if dirty && is_drawn()? {
                self.draw(screen)?;
                dirty = false;
            }
            let is_shown = !dirty && is_drawn()?;
            let step = wait_for_step(self.stepped.elapsed(), is_shown).filter(|_| self.playing);
            // The rest of a frame is written even if nothing else happens.
            let pause = step.unwrap_or(if is_shown { TICK } else { WRITE_INTERVAL });
            tokio::select! {
                biased;
                cause = shutdown.requested() => return Ok(Left::Ended(Some(cause))),
                event = input.recv() => match event {
                    Some(Input::Event(event)) => {
                        dirty = true;
                        match self.handle(event) {
                            None => {}
                            Some(Effect::Quit) => return Ok(Left::Ended(None)),
                            Some(Effect::Interrupt) => return Ok(Left::Ended(Some(Cause::Interrupt))),
                            Some(Effect::Suspend) => return Ok(Left::Suspended),
                            Some(effect) => self.perform(effect),
                        }
                    }
                    Some(Input::Suspend) => return Ok(Left::Suspended),
                    Some(Input::Resumed) => return Ok(Left::Resumed),
                    Some(Input::Failed(e)) => return Err(e),
                    Some(Input::HangUp) | None => return Ok(Left::Ended(Some(Cause::HangUp))),
                },
                update = next_update(&mut self.feed) => {
                    dirty = true;
                    self.receive(update);
                }
                () = tokio::time::sleep(pause) => {
                    dirty |= matches!(self.feed, Feed::Live { .. });
                    if step.is_some() {
                        dirty = true;
                        self.step(1);
                    }
                }
            }
        }
    }

    fn with_view<T>(&self, use_view: impl FnOnce(FleetView<'_>) -> T) -> T {
        let theme = Theme::new(self.ui.theme, self.depth, self.glyphs);
        let replay = match &self.feed {
            Feed::Recorded(recorded) => Some((self.at, recorded.len(), self.playing)),
            Feed::Live { .. } => None,
        };
        use_view(FleetView {
            ui: &self.ui,
            theme: &theme,
            fleet: self.fleet.as_ref(),
            source: &self.source,
            error: self.error.as_deref(),
            age_s: self.received.map(|at| at.elapsed().as_secs_f64()),
            replay,
            recording: matches!(&self.feed, Feed::Live { recorder: Some(_), .. }),
        })
    }

    fn draw<B: Backend<Error = io::Error>>(&mut self, screen: &mut Terminal<B>) -> io::Result<()> {
        self.size = Rect::from((Position::ORIGIN, screen.size()?));
        self.with_view(|view| screen.draw(|frame| frame.render_widget(view, frame.area())).map(drop))?;
        self.ui.top = self.with_view(|view| list_layout(&view, self.size)).first();
        Ok(())
    }

    fn page(&self) -> usize {
        self.with_view(|view| list_layout(&view, self.size)).rows().count()
    }

    fn handle(&mut self, event: Event) -> Option<Effect> {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.handle_key(key),
            Event::Mouse(mouse) => self.handle_mouse(mouse),
            Event::Paste(text) => {
                if let Overlay::Filter(input) = &mut self.ui.overlay {
                    for c in text.chars().filter(|c| !c.is_control()) {
                        input.handle(InputRequest::InsertChar(c));
                    }
                }
                None
            }
            _ => None,
        }
    }

    fn handle_key(&mut self, key: KeyEvent) -> Option<Effect> {
        let of_the_process =
            key.modifiers.contains(KeyModifiers::CONTROL) && matches!(key.code, KeyCode::Char('c' | 'z'));
        if !matches!(self.ui.overlay, Overlay::None) && !of_the_process {
            self.overlay_key(key);
            return None;
        }
        if self.ui.opened.is_some() && self.history_key(key) {
            return None;
        }
        let is_replay = matches!(self.feed, Feed::Recorded(_));
        let action = keys::action(key, is_replay)?;
        use Action as A;
        let of_the_list =
            matches!(action, A::AskFilter | A::Sort | A::Nodes | A::Open | A::Step(_) | A::TogglePlay);
        if self.ui.opened.is_some() && of_the_list {
            return None;
        }
        let page = self.page();
        let effect = update(&mut self.ui, action, self.fleet.as_ref(), page);
        if let Some(opened) = &mut self.ui.opened {
            opened.ui.theme = self.ui.theme;
        }
        effect
    }

    /// Whether the GPU pane has used the key.
    fn history_key(&mut self, key: KeyEvent) -> bool {
        let Some(opened) = self.ui.opened.as_ref().filter(|opened| opened.state.is_some()) else {
            return false;
        };
        use pane_ui::Action as A;
        match pane_keys::action(key, Pane::Gpu, Mode::Single) {
            Some(A::CloseCursor) if opened.ui.cursor.is_none() => false,
            Some(action @ (A::Move(_) | A::MoveCursor(_) | A::Zoom(_) | A::CloseCursor)) => {
                self.pane_action(action);
                true
            }
            _ => false,
        }
    }

    /// An action of the GPU pane in an open history.
    fn pane_action(&mut self, action: pane_ui::Action) {
        let Some(opened) = &mut self.ui.opened else { return };
        let Some(state) = &opened.state else { return };
        let theme = Theme::new(self.ui.theme, self.depth, self.glyphs);
        let extent = View::new(state, &opened.ui, &theme).extent();
        pane_ui::update(&mut opened.ui, action, extent);
    }

    fn overlay_key(&mut self, key: KeyEvent) {
        let end = self.with_view(|view| help_end(&view, self.size));
        match &mut self.ui.overlay {
            Overlay::None => {}
            Overlay::Help { scroll } => match key.code {
                KeyCode::Up | KeyCode::Char('k') => *scroll = scroll.saturating_sub(1),
                KeyCode::Down | KeyCode::Char('j') => *scroll = (*scroll + 1).min(end),
                KeyCode::PageUp => *scroll = scroll.saturating_sub(10),
                KeyCode::PageDown | KeyCode::Char(' ') => *scroll = (*scroll + 10).min(end),
                KeyCode::Esc | KeyCode::Char('q' | '?') => self.ui.overlay = Overlay::None,
                _ => {}
            },
            Overlay::Filter(input) => {
                use pane_ui::{Overlay as PaneOverlay, OverlayKey, Prompt, PromptKind};
                let prompt = Prompt {
                    kind: PromptKind::Filter(Pane::Runs),
                    input: input.clone(),
                    proposed: false,
                    error: None,
                };
                match OverlayKey::from_key(&PaneOverlay::Prompt(prompt), key) {
                    Some(OverlayKey::Close) => self.ui.overlay = Overlay::None,
                    Some(OverlayKey::Edit(request)) => {
                        input.handle(request);
                    }
                    Some(OverlayKey::Accept) => {
                        self.ui.filter = input.value().trim().to_owned();
                        self.ui.overlay = Overlay::None;
                        self.ui.row = 0;
                        if let Some(fleet) = &self.fleet {
                            self.ui.follow(fleet);
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    fn handle_mouse(&mut self, mouse: MouseEvent) -> Option<Effect> {
        match mouse.kind {
            MouseEventKind::ScrollUp => self.scroll(-1),
            MouseEventKind::ScrollDown => self.scroll(1),
            MouseEventKind::Down(MouseButton::Left) => {
                return self.click(Position::new(mouse.column, mouse.row));
            }
            _ => {}
        }
        None
    }

    /// The wheel scrolls the help or the list, and zooms a history.
    fn scroll(&mut self, direction: isize) {
        let end = self.with_view(|view| help_end(&view, self.size));
        match &mut self.ui.overlay {
            Overlay::Help { scroll } => {
                *scroll = scroll.saturating_add_signed(WHEEL_LINES * direction).min(end);
            }
            Overlay::Filter(_) => {}
            Overlay::None if self.ui.opened.is_some() => self.pane_action(pane_ui::Action::Zoom(-direction)),
            Overlay::None => {
                let (page, action) = (self.page(), Action::Move(WHEEL_LINES * direction));
                // A move has no effect beyond the screen's own state.
                let _ = update(&mut self.ui, action, self.fleet.as_ref(), page);
            }
        }
    }

    /// Sorts by the title of a column. Selects a row; if it is already selected, opens it.
    fn click(&mut self, position: Position) -> Option<Effect> {
        if !matches!(self.ui.overlay, Overlay::None) || self.ui.opened.is_some() {
            return None;
        }
        if let Some(order) = self.with_view(|view| order_at(&view, self.size, position)) {
            self.ui.sort_by(order, self.fleet.as_ref());
            return None;
        }
        let row = self.with_view(|view| list_layout(&view, self.size)).row_at(position)?;
        let before = self.ui.row;
        self.ui.select(row, self.fleet.as_ref()?);
        let page = self.page();
        (before == row).then(|| update(&mut self.ui, Action::Open, self.fleet.as_ref(), page)).flatten()
    }

    fn perform(&mut self, effect: Effect) {
        match (effect, &mut self.feed) {
            (Effect::Refresh, Feed::Live { watch, .. }) => {
                watch.ask(Ask::Refresh);
                if let Some(opened) = &self.ui.opened {
                    watch.ask(Ask::History(Box::new(opened.gpu.clone())));
                }
                self.ui.message = Some("querying Prometheus…".to_owned());
            }
            (Effect::AskHistory, Feed::Live { watch, .. }) => {
                if let Some(opened) = &self.ui.opened {
                    watch.ask(Ask::History(Box::new(opened.gpu.clone())));
                }
            }
            (Effect::AskHistory, Feed::Recorded(recorded)) => {
                // The history belongs to the displayed moment.
                self.playing = false;
                let Some(opened) = &self.ui.opened else { return };
                let gpu = opened.gpu.clone();
                let snapshots = recorded.up_to(self.at, HISTORY_SNAPSHOTS).map_err(|e| e.to_string());
                let history = snapshots.map(|all| from_recording(&gpu, all.iter()));
                self.show_history(&gpu.key, history);
            }
            (Effect::Refresh, Feed::Recorded(_)) => {
                self.ui.message = Some("a recording is not refreshed".to_owned());
            }
            (Effect::Step(by), Feed::Recorded(_)) => self.step(by),
            (Effect::TogglePlay, Feed::Recorded(recorded)) => {
                (self.playing, self.stepped) = (!self.playing, Instant::now());
                if self.playing && self.at + 1 == recorded.len() {
                    self.at = 0;
                    self.show_recorded();
                }
            }
            _ => {}
        }
    }

    fn step(&mut self, by: isize) {
        let Feed::Recorded(recorded) = &self.feed else { return };
        let last = recorded.len() - 1;
        self.at = self.at.saturating_add_signed(by).min(last);
        self.stepped = Instant::now();
        self.playing &= self.at < last;
        self.show_recorded();
    }

    fn show_recorded(&mut self) {
        let Feed::Recorded(recorded) = &mut self.feed else { return };
        match recorded.snapshot(self.at) {
            Ok(snapshot) => self.show(snapshot),
            Err(e) => self.error = Some(e.to_string()),
        }
    }

    fn show(&mut self, snapshot: Snapshot) {
        let fleet = Fleet::new(snapshot);
        self.ui.follow(&fleet);
        self.error = None;
        self.fleet = Some(fleet);
    }

    fn receive(&mut self, update: Update) {
        match update {
            Update::Early(mut snapshot) => {
                // The earlier "since" is kept until it is known again.
                let slow = self.fleet.iter().flat_map(|fleet| &fleet.snapshot.gpus);
                let slow: Vec<(&Key, Since)> =
                    slow.filter_map(|gpu| Some((&gpu.key, gpu.slow_since?))).collect();
                for gpu in &mut snapshot.gpus {
                    gpu.slow_since = slow.iter().find(|(key, _)| **key == gpu.key).map(|(_, since)| *since);
                }
                self.received = Some(Instant::now());
                self.show(*snapshot);
            }
            Update::Snapshot(snapshot) => {
                self.record(&snapshot);
                self.received = Some(Instant::now());
                self.ui.message = None;
                self.show(*snapshot);
            }
            Update::Failed(e) => {
                self.ui.message = None;
                self.error = Some(e.to_string());
            }
            Update::History(gpu, history) => {
                self.show_history(&gpu.key, history.map(|history| *history).map_err(|e| e.to_string()));
            }
        }
    }

    /// A recording that cannot be written ends; the screen continues.
    fn record(&mut self, snapshot: &Snapshot) {
        let Feed::Live { recorder, .. } = &mut self.feed else { return };
        let failed = recorder.as_mut().and_then(|recorder| recorder.record(snapshot).err());
        if let Some(e) = failed {
            self.ui.message = Some(format!("no longer recorded: {e}"));
            (*recorder, self.recording_failed) = (None, Some(e));
        }
    }

    fn show_history(&mut self, key: &str, history: Result<History, String>) {
        let Some(opened) = self.ui.opened.as_mut().filter(|opened| opened.gpu.key == key) else { return };
        match history {
            Ok(history) if history.samples.is_empty() => {
                opened.error = Some("there is no value of this GPU in the window".to_owned());
            }
            Ok(history) => {
                let mut state = RunState::default();
                history.events().iter().for_each(|event| state.apply(event));
                opened.end_unix_s = history.samples.last().map(|(at, _)| *at);
                (opened.step_s, opened.state, opened.error) = (history.step_s, Some(Box::new(state)), None);
            }
            Err(e) => opened.error = Some(e),
        }
    }
}

async fn next_update(feed: &mut Feed) -> Update {
    if let Feed::Live { watch, .. } = feed
        && let Some(update) = watch.updates.recv().await
    {
        return update;
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use llmprof_config::{Override, built_in, compose};
    use llmprof_sources::fleet::read_recording;

    #[test]
    fn a_step_waits_for_its_time_and_for_the_terminal() {
        let ms = Duration::from_millis;
        assert_eq!(wait_for_step(Duration::ZERO, true), Some(PLAY_INTERVAL));
        assert_eq!(wait_for_step(ms(200), true), Some(PLAY_INTERVAL - ms(200)));
        assert_eq!(wait_for_step(10 * PLAY_INTERVAL, true), Some(Duration::ZERO));
        // A terminal that is not read may hold back a frame for any time.
        assert_eq!(wait_for_step(10 * PLAY_INTERVAL, false), None);
    }

    #[test]
    fn a_recording_is_played_from_the_beginning_and_stops_at_its_end() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/fleet/recording.ndjson");
        let recorded = read_recording(Path::new(path)).unwrap();
        let config = compose(&built_in(), Override::NONE).unwrap().config.output.tui;
        let feed = Feed::Recorded(Box::new(recorded));
        let mut app = FleetApp::new(&config, feed, String::new(), Order::Lost);
        assert_eq!((app.at, app.playing), (1, false), "the last refresh is shown first");
        app.perform(Effect::TogglePlay);
        assert_eq!((app.at, app.playing), (0, true));
        app.step(1);
        assert_eq!((app.at, app.playing), (1, false));
    }
}
