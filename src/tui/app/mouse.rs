//! What the mouse does.

use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};
use ratatui::layout::Position;

use super::App;
use crate::tui::{
    layout::Target,
    ui::{Action, Effect, Overlay, OverlayKey, Pane, ReplayCommand, RunsCommand, update_overlay},
};

/// Lines, or tokens, that one step of the wheel moves by.
const WHEEL_LINES: isize = 3;
const WHEEL_TOKENS: i64 = 5;

impl App {
    pub(super) fn handle_mouse(&mut self, mouse: MouseEvent) -> Option<Effect> {
        match mouse.kind {
            MouseEventKind::ScrollUp => self.scroll(-1),
            MouseEventKind::ScrollDown => self.scroll(1),
            MouseEventKind::Down(MouseButton::Left) => self.click(Position::new(mouse.column, mouse.row)),
            _ => None,
        }
    }

    fn scroll(&mut self, direction: isize) -> Option<Effect> {
        if !matches!(self.ui.overlay, Overlay::None) {
            self.ui.limit_scroll(self.layout.scroll_end);
            return update_overlay(&mut self.ui, OverlayKey::Scroll(WHEEL_LINES * direction));
        }
        self.act(match self.ui.pane {
            Pane::Tokens => Action::Scrub(-WHEEL_TOKENS * direction as i64),
            _ => Action::Move(WHEEL_LINES * direction),
        })
    }

    fn click(&mut self, position: Position) -> Option<Effect> {
        self.ui.message = None;
        match self.layout.target(position)? {
            Target::Tab(pane) => self.act(Action::Show(pane)),
            Target::Moment(moment) => Some(Effect::Replay(ReplayCommand::SeekTo(moment))),
            // The first click selects a run, the second opens it.
            Target::Run(row) => {
                let selected = self.layout.runs.is_some_and(|list| list.selected == row);
                self.ui.runs.row = Some(row);
                selected.then_some(Effect::Runs(RunsCommand::Open))
            }
        }
    }
}
