//! What is drawn on top of the pane, and what keys do to it.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use tui_input::{Input, InputRequest};

use super::{Effect, Pane, RunCommand, UiState};

#[derive(Debug, Clone, Default)]
pub enum Overlay {
    #[default]
    None,
    Help {
        scroll: usize,
    },
    /// The numbers behind the verdict.
    Evidence {
        scroll: usize,
    },
    Prompt(Prompt),
}

/// A line the user types.
#[derive(Debug, Clone)]
pub struct Prompt {
    pub kind: PromptKind,
    pub input: Input,
    /// Why the last answer was refused.
    pub error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptKind {
    SnapshotName,
    Overrides,
    Filter(Pane),
}

impl PromptKind {
    pub fn title(self) -> &'static str {
        match self {
            PromptKind::SnapshotName => "snapshot name",
            PromptKind::Overrides => "overrides, as on the command line; Enter starts a new run",
            PromptKind::Filter(_) => "show only rows that contain",
        }
    }
}

/// What a key does to an open overlay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverlayKey {
    Close,
    Accept,
    Edit(InputRequest),
    Scroll(isize),
}

impl OverlayKey {
    pub fn of(overlay: &Overlay, key: KeyEvent) -> Option<OverlayKey> {
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
}

/// More lines than an overlay has: drawing stops at the end of the text.
const MAX_SCROLL: usize = 500;

/// Applies a key to the open overlay.
pub fn update_overlay(ui: &mut UiState, key: OverlayKey) -> Option<Effect> {
    match (&mut ui.overlay, key) {
        (_, OverlayKey::Close) => ui.overlay = Overlay::None,
        (Overlay::Help { scroll } | Overlay::Evidence { scroll }, OverlayKey::Scroll(by)) => {
            *scroll = scroll.saturating_add_signed(by).min(MAX_SCROLL);
        }
        (Overlay::Prompt(prompt), OverlayKey::Edit(request)) => {
            prompt.input.handle(request);
            prompt.error = None;
        }
        (Overlay::Prompt(prompt), OverlayKey::Accept) => {
            let text = prompt.input.value().trim().to_owned();
            match prompt.kind {
                // Closed when the overrides are valid; otherwise the prompt shows the error.
                PromptKind::Overrides => return Some(Effect::Run(RunCommand::Start(text))),
                PromptKind::SnapshotName if text.is_empty() => {
                    prompt.error = Some("a snapshot needs a name".into());
                }
                PromptKind::SnapshotName => {
                    ui.overlay = Overlay::None;
                    return Some(Effect::Run(RunCommand::Snapshot(text)));
                }
                PromptKind::Filter(pane) => {
                    match pane {
                        Pane::Runs => (ui.runs_filter, ui.run_selected) = (text, 0),
                        Pane::Kernels => ui.kernels.filter_by(text),
                        _ => (ui.log_filter, ui.log_back) = (text, 0),
                    }
                    ui.overlay = Overlay::None;
                }
            }
        }
        _ => {}
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::ThemeName,
        tui::ui::{Action, Extent, update},
    };

    #[test]
    fn a_snapshot_needs_a_name() {
        let mut ui = UiState::new(ThemeName::Dark);
        update(&mut ui, Action::AskSnapshotName, Extent::default());
        update_overlay(&mut ui, OverlayKey::Edit(InputRequest::DeleteLine));
        assert_eq!(update_overlay(&mut ui, OverlayKey::Accept), None);
        assert!(matches!(&ui.overlay, Overlay::Prompt(p) if p.error.is_some()));
        update_overlay(&mut ui, OverlayKey::Edit(InputRequest::InsertChar('x')));
        let snapshot = Effect::Run(RunCommand::Snapshot("x".into()));
        assert_eq!(update_overlay(&mut ui, OverlayKey::Accept), Some(snapshot));
        assert!(matches!(ui.overlay, Overlay::None));
    }
}
