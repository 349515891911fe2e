//! Handles the mouse.

use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};
use ratatui::layout::Position;

use super::App;
use llmprof_screen::{
    layout::Target,
    ui::{
        Action, Effect, JobsCommand, Overlay, OverlayKey, Pane, ReplayCommand, RunsCommand, set_cursor,
        update_overlay,
    },
};

/// Lines or tokens per step of the wheel.
const WHEEL_LINES: isize = 3;
const WHEEL_TOKENS: i64 = 5;

impl App {
    pub(super) fn handle_mouse(&mut self, mouse: MouseEvent) -> Option<Effect> {
        let position = Position::new(mouse.column, mouse.row);
        match mouse.kind {
            MouseEventKind::ScrollUp => self.scroll(-1, position),
            MouseEventKind::ScrollDown => self.scroll(1, position),
            MouseEventKind::Down(MouseButton::Left) => self.click(position),
            MouseEventKind::Drag(MouseButton::Left) => {
                self.drag(position);
                None
            }
            MouseEventKind::Up(_) => {
                self.pressed = None;
                None
            }
            _ => None,
        }
    }

    fn scroll(&mut self, direction: isize, position: Position) -> Option<Effect> {
        if !matches!(self.ui.overlay, Overlay::None) {
            self.ui.limit_scroll(self.layout.scroll_end);
            return update_overlay(&mut self.ui, OverlayKey::Scroll(WHEEL_LINES * direction));
        }
        self.act(match (self.ui.pane, self.layout.target(position)) {
            (_, Some(Target::Cursor(_))) => Action::Zoom(-direction),
            (Pane::Tokens, Some(Target::Row(_))) => Action::Move(WHEEL_LINES * direction),
            (Pane::Tokens, _) => Action::Scrub(-WHEEL_TOKENS * direction as i64),
            _ => Action::Move(WHEEL_LINES * direction),
        })
    }

    fn click(&mut self, position: Position) -> Option<Effect> {
        self.ui.message = None;
        self.pressed = self.layout.target(position);
        match self.pressed? {
            Target::Tab(pane) => self.act(Action::Show(pane)),
            Target::Moment(moment) => Some(Effect::Replay(ReplayCommand::SeekTo(moment))),
            // The first click selects a run, the second opens it.
            Target::Run(row) => {
                let selected = self.layout.runs.is_some_and(|list| list.selected == row);
                self.ui.runs.row = Some(row);
                selected.then_some(Effect::Runs(RunsCommand::Open))
            }
            Target::Row(row) => self.click_row(row),
            Target::Cursor(_) | Target::Token(_) => {
                self.drag(position);
                None
            }
            Target::Sort(column) => self.act(Action::SortBy(column)),
            Target::Splitter => None,
        }
    }

    /// Selects a row; if it is already selected, opens it.
    fn click_row(&mut self, row: usize) -> Option<Effect> {
        let of_gpus = self.ui.pane == Pane::Gpu && self.with_view(|view| view.shows_gpu_table());
        if of_gpus {
            let before = self.with_view(|view| view.gpu_index());
            self.ui.gpu = Some(row);
            return (before == row).then(|| self.act(Action::OpenGpu)).flatten();
        }
        if self.ui.pane == Pane::Compare {
            let before = self.with_view(|view| view.selected_job());
            self.ui.job = Some(row);
            return (before == row).then_some(Effect::Jobs(JobsCommand::Open));
        }
        let spec = self.ui.pane.spec();
        let before = std::mem::replace((spec.row)(&mut self.ui), row);
        self.act(spec.open.clone().filter(|_| before == row)?)
    }

    /// Moves the target on which the button was pressed.
    fn drag(&mut self, position: Position) {
        match (self.pressed, self.layout.target(position)) {
            (Some(Target::Splitter), _) => {
                let body = self.layout.body;
                self.ui.side = Some(body.right().saturating_sub(position.x));
            }
            (Some(Target::Cursor(_)), Some(Target::Cursor(cursor))) => {
                set_cursor(&mut self.ui, Some(cursor));
            }
            (Some(Target::Token(_)), Some(Target::Token(token))) => {
                set_cursor(&mut self.ui, None);
                self.ui.token = Some(token);
            }
            _ => {}
        }
    }
}
