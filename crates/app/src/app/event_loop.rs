//! The event loop: one task that consumes events and input, and draws changes.

use std::{
    io::{self, Write},
    ops::ControlFlow,
    time::{Duration, Instant},
};

use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseEvent, MouseEventKind};
use ratatui::{Terminal, backend::Backend};
use tokio::sync::mpsc::UnboundedReceiver;
use tui_input::InputRequest;

use super::{App, Live, Workload, jobs};
use crate::{
    input::{self, Input},
    terminal::TerminalGuard,
};
use llmprof_base::process::{
    BELL, crash,
    shutdown::{Cause, Shutdown},
};
use llmprof_record::rundir::Player;
use llmprof_screen::{
    frame::Frame,
    keys::{self, Mode},
    layout::{Hits, ScreenLayout},
    ui::{Action, Effect, Extent, Overlay, OverlayKey, update, update_overlay},
    view::View,
};

/// Why the event loop was left.
pub(super) enum Left {
    /// The program ends, with a cause unless the user quits.
    Ended(Option<Cause>),
    /// The user asks to stop the process.
    Suspended,
    /// The process continues after it was stopped.
    Resumed,
}

/// After a failure of the terminal, the time to wait for the reason.
const FAILURE_DELAY: Duration = Duration::from_millis(200);
/// The longest wait for a killed tool. A driver call may hold its process longer.
const TOOL_STOP_TIMEOUT: Duration = Duration::from_secs(1);
const TOOL_STOP_POLL: Duration = Duration::from_millis(20);

impl App {
    pub(super) async fn run_on_terminal(
        &mut self,
        mouse: bool,
        shutdown: &mut Shutdown,
    ) -> io::Result<Option<Cause>> {
        let mut guard = TerminalGuard::enter(mouse)?;
        let mut input = input::listen()?;
        let outlet = guard.outlet.clone();
        loop {
            let mut bell = outlet.clone();
            let ring = move || bell.write_all(BELL).and_then(|()| bell.flush());
            let is_drawn = || outlet.is_done();
            let left = self.run_loop(&mut *guard.screen, is_drawn, ring, &mut input, shutdown).await;
            let again = match left {
                Ok(Left::Ended(cause)) => return Ok(cause),
                Ok(Left::Suspended) => guard.suspend(),
                Ok(Left::Resumed) => guard.take_again(),
                Err(e) => Err(e),
            };
            if let Err(e) = again {
                return cause_of_failure(&mut input, shutdown).await.map(Some).ok_or(e);
            }
            self.dirty = true;
        }
    }

    /// Draws only when `is_frame_written`: the last frame has reached the terminal. A terminal that is stuck delays
    /// nothing else.
    pub(super) async fn run_loop<B: Backend<Error = io::Error>>(
        &mut self,
        screen: &mut Terminal<B>,
        is_frame_written: impl Fn() -> io::Result<bool>,
        mut ring: impl FnMut() -> io::Result<()>,
        input: &mut UnboundedReceiver<Input>,
        shutdown: &mut Shutdown,
    ) -> io::Result<Left> {
        let mut next_frame = Instant::now();
        let mut last_frame = Instant::now();
        loop {
            let now = Instant::now();
            let replay_moves = self.player.as_ref().is_some_and(Player::moves);
            self.start_next();
            self.follow_tool();
            self.follow_remote();
            self.keep_message();
            let sweep_moves = self.follow_sweep(now) | self.follow_jobs();
            let reads = self.follow_comparison() | self.follow_runs();
            let is_drawn = is_frame_written()?;
            if is_drawn && self.has_new_alert() {
                ring()?;
            }
            let moves = replay_moves || sweep_moves || reads || self.next.is_some() || !is_drawn;
            if !replay_moves {
                last_frame = now;
            }
            if now >= next_frame && (self.dirty || moves) {
                self.play(now - last_frame);
                if self.dirty && is_drawn {
                    self.draw(screen)?;
                }
                // However slow a frame is, half of the time is left for events.
                (last_frame, next_frame) = (now, now + self.frame_interval.max(2 * now.elapsed()));
            }
            // The rest of a partially written frame is written even if nothing else happens.
            let moves = moves || !is_frame_written()?;
            let frame_due = tokio::time::sleep_until(next_frame.into());
            let loading = self.player.as_ref().is_some_and(|p| p.position().loading);
            tokio::select! {
                biased;
                cause = shutdown.requested() => return Ok(Left::Ended(Some(cause))),
                event = input.recv() => match event {
                    Some(Input::Event(event)) => {
                        if let Some(effect) = self.handle(event)
                            && let ControlFlow::Break(left) = self.perform(effect, screen.size()?.into())
                        {
                            if matches!(left, Left::Ended(_)) {
                                self.end_tool(screen).await?;
                            }
                            return Ok(left);
                        }
                    }
                    Some(Input::Suspend) => return Ok(Left::Suspended),
                    Some(Input::Resumed) => return Ok(Left::Resumed),
                    Some(Input::Failed(e)) => return Err(e),
                    Some(Input::HangUp) | None => return Ok(Left::Ended(Some(Cause::HangUp))),
                },
                () = frame_due, if self.dirty || moves => {}
                () = jobs::pump(&mut self.jobs) => self.dirty = true,
                n = pump(&mut self.live) => self.dirty |= n > 0 && self.frozen.is_none(),
                // The recording is read while there is nothing else to do.
                () = tokio::task::yield_now(), if loading => self.load(),
            }
        }
    }

    /// Whether an alert became true since the last call.
    fn has_new_alert(&mut self) -> bool {
        let crossed = self.live.as_ref().map_or(0, |live| live.session.state().alerts_crossed);
        crossed > std::mem::replace(&mut self.rung, crossed)
    }

    /// Ends a re-run under a tool, and shows that, before the screen closes.
    async fn end_tool<B: Backend<Error = io::Error>>(&mut self, screen: &mut Terminal<B>) -> io::Result<()> {
        let Some(live) = &mut self.live else { return Ok(()) };
        let Workload::Here(session) = &mut live.session else { return Ok(()) };
        let Some(tool) = session.tool() else { return Ok(()) };
        session.cancel();
        self.ui.message = Some(format!("stopping {tool}…"));
        self.draw(screen)?;
        let deadline = Instant::now() + TOOL_STOP_TIMEOUT;
        let is_idle = |live: &Live| matches!(&live.session, Workload::Here(session) if session.is_idle());
        while Instant::now() < deadline && !self.live.as_ref().is_none_or(is_idle) {
            tokio::time::sleep(TOOL_STOP_POLL).await;
        }
        Ok(())
    }

    fn draw<B: Backend<Error = io::Error>>(&mut self, screen: &mut Terminal<B>) -> io::Result<()> {
        crash::fault_point("screen");
        let started = Instant::now();
        let mut layout = ScreenLayout::default();
        let hits = Hits::default();
        self.with_view(|view| {
            let view = View { hits: Some(&hits), ..*view };
            let draw = |frame: &mut ratatui::Frame<'_>| {
                layout = ScreenLayout::new(&view, frame.area());
                frame.render_widget(Frame(view), frame.area());
            };
            screen.draw(draw).map(|_| ())
        })?;
        layout.hits = hits.take();
        if let Some(list) = layout.runs {
            self.ui.runs.top = list.first();
        }
        (self.layout, self.dirty) = (layout, false);
        if let Some(live) = &mut self.live {
            live.session.drew(started.elapsed());
        }
        Ok(())
    }

    fn handle(&mut self, event: Event) -> Option<Effect> {
        self.dirty |= !matches!(event, Event::Mouse(MouseEvent { kind: MouseEventKind::Moved, .. }));
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.handle_key(key),
            Event::Mouse(mouse) => self.handle_mouse(mouse),
            Event::Paste(text) => {
                let text = text.replace(['\n', '\t'], " ");
                for c in text.chars().filter(|c| !c.is_control()) {
                    update_overlay(&mut self.ui, OverlayKey::Edit(InputRequest::InsertChar(c)));
                }
                None
            }
            _ => None,
        }
    }

    fn handle_key(&mut self, key: KeyEvent) -> Option<Effect> {
        let of_the_process =
            matches!(key.code, KeyCode::Char('c' | 'z')) && key.modifiers.contains(KeyModifiers::CONTROL);
        if !matches!(self.ui.overlay, Overlay::None) && !of_the_process {
            let key = OverlayKey::from_key(&self.ui.overlay, key)?;
            if let (Overlay::Palette(palette), OverlayKey::Accept) = (&self.ui.overlay, key) {
                let action = palette.chosen();
                self.ui.overlay = Overlay::None;
                return self.act(action?);
            }
            self.ui.limit_scroll(self.layout.scroll_end);
            return update_overlay(&mut self.ui, key);
        }
        let mode = self.with_view(|view| view.mode());
        if let Some(action) = keys::action(key, self.ui.pane, mode) {
            return self.act(action);
        }
        if keys::action(key, self.ui.pane, Mode::Single).is_some() {
            let reason = match mode {
                Mode::Replay => "in a replay: this key controls a live run",
                Mode::Sweep => "in a sweep: e ends this job, q ends the sweep",
                Mode::Jobs => "in this sweep: its jobs run in other processes; Enter opens one",
                Mode::Files | Mode::Single | Mode::Remote => "without a live run",
            };
            self.ui.message = Some(format!("not available {reason}"));
        }
        None
    }

    /// Stores a message in the log of a live run when it disappears from the screen.
    fn keep_message(&mut self) {
        if self.kept_message == self.ui.message {
            return;
        }
        self.kept_message = self.ui.message.clone();
        if let (Some(text), Some(live), None) = (&self.kept_message, &mut self.live, &self.player) {
            live.session.keep_message(text);
        }
    }

    pub(super) fn act(&mut self, action: Action) -> Option<Effect> {
        let (extent, obstacle) = self.with_view(|view| (view.extent(), view.obstacle(&action)));
        if let Some(obstacle) = obstacle {
            self.ui.message = Some(obstacle.to_owned());
            return None;
        }
        let column_ns = self.layout.column_ns().unwrap_or(extent.column_ns);
        update(&mut self.ui, action, Extent { column_ns, ..extent })
    }
}

/// A terminal that is closed fails before SIGHUP arrives.
async fn cause_of_failure(input: &mut UnboundedReceiver<Input>, shutdown: &mut Shutdown) -> Option<Cause> {
    let hung_up = async { while !matches!(input.recv().await, Some(Input::HangUp) | None) {} };
    let cause = async {
        tokio::select! {
            cause = shutdown.requested() => cause,
            () = hung_up => Cause::HangUp,
        }
    };
    tokio::time::timeout(FAILURE_DELAY, cause).await.ok()
}

async fn pump(live: &mut Option<Live>) -> usize {
    match live {
        Some(live) => live.session.pump().await,
        None => std::future::pending().await,
    }
}
