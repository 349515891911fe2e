//! The overlays of the pane, and the effects of keys on them.

use std::path::PathBuf;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use tui_input::{Input, InputRequest};

use super::{Effect, JobsCommand, Palette, Pane, RunCommand, RunsCommand, UiState};
use llmprof_record::rundir::{MAX_SNAPSHOT_NAME, RecordedKind, RunName};

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
    /// Whether to end the run and start it again.
    ConfirmRerun,
    ConfirmDelete(Deletion),
    /// Whether to cancel the jobs of a sweep.
    ConfirmCancel,
    /// Whether a remote run continues when the screen closes.
    ConfirmLeave,
    /// Whether to end local work in progress.
    ConfirmQuit,
    Prompt(Prompt),
    Palette(Palette),
}

/// The run or sweep to be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deletion {
    pub path: PathBuf,
    pub kind: RecordedKind,
    pub bytes: u64,
}

/// A line of input.
#[derive(Debug, Clone)]
pub struct Prompt {
    pub kind: PromptKind,
    pub input: Input,
    /// The text is a proposal: the first typed character replaces it.
    pub proposed: bool,
    /// Why the last input was refused.
    pub error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptKind {
    SnapshotName,
    Overrides,
    /// The new name of a recorded run or sweep.
    RunName,
    Filter(Pane),
}

impl PromptKind {
    pub fn title(self) -> &'static str {
        match self {
            PromptKind::SnapshotName => "snapshot name",
            PromptKind::Overrides => "overrides, as on the command line; Enter starts a new run",
            PromptKind::RunName => "new name of the directory",
            PromptKind::Filter(_) => "show only rows that contain",
        }
    }
}

/// The effect of a key on an open overlay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverlayKey {
    Close,
    Accept,
    /// End the remote run too.
    Cancel,
    Edit(InputRequest),
    Scroll(isize),
}

impl OverlayKey {
    pub fn from_key(overlay: &Overlay, key: KeyEvent) -> Option<OverlayKey> {
        use InputRequest as R;
        match (overlay, key.code) {
            (Overlay::Palette(_), KeyCode::Up | KeyCode::BackTab) => return Some(OverlayKey::Scroll(-1)),
            (Overlay::Palette(_), KeyCode::Down | KeyCode::Tab) => return Some(OverlayKey::Scroll(1)),
            (Overlay::Palette(_), KeyCode::PageUp) => return Some(OverlayKey::Scroll(-10)),
            (Overlay::Palette(_), KeyCode::PageDown) => return Some(OverlayKey::Scroll(10)),
            (Overlay::None | Overlay::Prompt(_) | Overlay::Palette(_), _) => {}
            // The second q leaves.
            (Overlay::ConfirmLeave | Overlay::ConfirmQuit, KeyCode::Enter | KeyCode::Char('q' | 'y')) => {
                return Some(OverlayKey::Accept);
            }
            (Overlay::ConfirmLeave, KeyCode::Char('c')) => return Some(OverlayKey::Cancel),
            (Overlay::ConfirmRerun, KeyCode::Enter | KeyCode::Char('y')) => return Some(OverlayKey::Accept),
            // Not by Enter: a deleted run, or a place in a queue, cannot be restored.
            (Overlay::ConfirmDelete(_) | Overlay::ConfirmCancel, KeyCode::Char('y')) => {
                return Some(OverlayKey::Accept);
            }
            (
                Overlay::ConfirmRerun
                | Overlay::ConfirmDelete(_)
                | Overlay::ConfirmCancel
                | Overlay::ConfirmQuit,
                KeyCode::Char('n'),
            ) => {
                return Some(OverlayKey::Close);
            }
            (Overlay::Help { .. }, KeyCode::Char('?'))
            | (Overlay::Evidence { .. }, KeyCode::Char('v'))
            | (_, KeyCode::Esc | KeyCode::Char('q')) => return Some(OverlayKey::Close),
            (_, KeyCode::Up | KeyCode::Char('k')) => return Some(OverlayKey::Scroll(-1)),
            (_, KeyCode::Down | KeyCode::Char('j')) => return Some(OverlayKey::Scroll(1)),
            (_, KeyCode::PageUp | KeyCode::Char('b')) => return Some(OverlayKey::Scroll(-10)),
            (_, KeyCode::PageDown | KeyCode::Char(' ' | 'f')) => return Some(OverlayKey::Scroll(10)),
            (_, KeyCode::Home | KeyCode::Char('g')) => {
                return Some(OverlayKey::Scroll(-(MAX_SCROLL as isize)));
            }
            (_, KeyCode::End | KeyCode::Char('G')) => return Some(OverlayKey::Scroll(MAX_SCROLL as isize)),
            _ => return None,
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

/// Shows only the rows of `pane` that contain `text`.
fn filter(ui: &mut UiState, pane: Pane, text: String) {
    match pane {
        Pane::Runs => ui.runs.filter_by(text),
        Pane::Kernels => ui.kernels.filter_by(text),
        _ => (ui.log_filter, *ui.row_mut(Pane::Log)) = (text, 0),
    }
}

/// Applies a key to the open overlay.
pub fn update_overlay(ui: &mut UiState, key: OverlayKey) -> Option<Effect> {
    match (&mut ui.overlay, key) {
        // An empty filter removes the filter.
        (Overlay::Prompt(Prompt { kind: PromptKind::Filter(pane), .. }), OverlayKey::Close) => {
            let pane = *pane;
            filter(ui, pane, String::new());
            ui.overlay = Overlay::None;
        }
        (_, OverlayKey::Close) => ui.overlay = Overlay::None,
        (Overlay::Help { scroll } | Overlay::Evidence { scroll }, OverlayKey::Scroll(by)) => {
            *scroll = scroll.saturating_add_signed(by).min(MAX_SCROLL);
        }
        (Overlay::Palette(palette), OverlayKey::Scroll(by)) => palette.step(by),
        (Overlay::Palette(palette), OverlayKey::Edit(request)) => palette.edit(request),
        (Overlay::ConfirmRerun, OverlayKey::Accept) => {
            ui.overlay = Overlay::None;
            return Some(Effect::Run(RunCommand::Rerun));
        }
        (Overlay::ConfirmCancel, OverlayKey::Accept) => {
            ui.overlay = Overlay::None;
            return Some(Effect::Jobs(JobsCommand::Cancel));
        }
        (Overlay::ConfirmLeave | Overlay::ConfirmQuit, OverlayKey::Accept) => {
            return Some(Effect::Leave { cancel: false });
        }
        (Overlay::ConfirmLeave, OverlayKey::Cancel) => return Some(Effect::Leave { cancel: true }),
        (Overlay::ConfirmDelete(deletion), OverlayKey::Accept) => {
            let path = std::mem::take(&mut deletion.path);
            ui.overlay = Overlay::None;
            return Some(Effect::Runs(RunsCommand::Delete(path)));
        }
        (Overlay::Prompt(prompt), OverlayKey::Edit(request)) => {
            if std::mem::take(&mut prompt.proposed) && matches!(request, InputRequest::InsertChar(_)) {
                prompt.input.reset();
            }
            prompt.input.handle(request);
            prompt.error = None;
        }
        (Overlay::Prompt(prompt), OverlayKey::Accept) => {
            let text = prompt.input.value().trim().to_owned();
            match prompt.kind {
                // Closed if the overrides are valid; otherwise the prompt shows the error.
                PromptKind::Overrides => return Some(Effect::Run(RunCommand::Start(text))),
                // Closed once the run has its new name.
                PromptKind::RunName => match text.parse::<RunName>() {
                    Ok(name) => return Some(Effect::Runs(RunsCommand::Rename(name))),
                    Err(error) => prompt.error = Some(error.to_string()),
                },
                PromptKind::SnapshotName if text.is_empty() => {
                    prompt.error = Some("a snapshot needs a name".into());
                }
                PromptKind::SnapshotName if text.chars().count() > MAX_SNAPSHOT_NAME => {
                    let error = format!("a snapshot's name has at most {MAX_SNAPSHOT_NAME} characters");
                    prompt.error = Some(error);
                }
                PromptKind::SnapshotName => {
                    ui.overlay = Overlay::None;
                    return Some(Effect::Run(RunCommand::Snapshot(text)));
                }
                PromptKind::Filter(pane) => {
                    filter(ui, pane, text);
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
    use crate::ui::{Action, Extent, update};
    use llmprof_config::ThemeName;

    fn press(overlay: &Overlay, code: KeyCode) -> Option<OverlayKey> {
        OverlayKey::from_key(overlay, KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn only_their_own_keys_close_help_and_evidence() {
        let (help, evidence) = (Overlay::Help { scroll: 0 }, Overlay::Evidence { scroll: 0 });
        for (overlay, own) in [(&help, ['?', 'q']), (&evidence, ['v', 'q'])] {
            for code in own.map(KeyCode::Char).into_iter().chain([KeyCode::Esc]) {
                assert_eq!(press(overlay, code), Some(OverlayKey::Close), "{code}");
            }
            for code in [KeyCode::Char('x'), KeyCode::Char('1'), KeyCode::Enter, KeyCode::Tab, KeyCode::F(1)]
            {
                assert_eq!(press(overlay, code), None, "{code}");
            }
        }
    }

    #[test]
    fn a_question_is_answered() {
        let mut ui = UiState::new(ThemeName::Dark);
        for (code, done) in [
            (KeyCode::Char('y'), Some(Effect::Run(RunCommand::Rerun))),
            (KeyCode::Enter, Some(Effect::Run(RunCommand::Rerun))),
            (KeyCode::Char('n'), None),
            (KeyCode::Esc, None),
        ] {
            ui.overlay = Overlay::ConfirmRerun;
            let key = press(&ui.overlay, code).unwrap();
            assert_eq!(update_overlay(&mut ui, key), done, "{code}");
            assert!(matches!(ui.overlay, Overlay::None), "{code}");
        }
        // Another key is no answer.
        assert_eq!(press(&Overlay::ConfirmRerun, KeyCode::Char('r')), None);
    }

    #[test]
    fn q_twice_quits() {
        let mut ui = UiState { overlay: Overlay::ConfirmQuit, ..UiState::new(ThemeName::Dark) };
        for code in [KeyCode::Char('q'), KeyCode::Char('y'), KeyCode::Enter] {
            let key = press(&ui.overlay, code).unwrap();
            assert_eq!(update_overlay(&mut ui, key), Some(Effect::Leave { cancel: false }), "{code}");
        }
        for code in [KeyCode::Esc, KeyCode::Char('n')] {
            ui.overlay = Overlay::ConfirmQuit;
            let key = press(&ui.overlay, code).unwrap();
            assert_eq!(update_overlay(&mut ui, key), None, "{code}");
            assert!(matches!(ui.overlay, Overlay::None), "{code}");
        }
        assert_eq!(press(&Overlay::ConfirmQuit, KeyCode::Char('x')), None);
    }

    #[test]
    fn only_y_deletes() {
        let deletion = Deletion { path: "runs/x".into(), kind: RecordedKind::Run, bytes: 1 };
        let open = Overlay::ConfirmDelete(deletion);
        for code in [KeyCode::Enter, KeyCode::Char(' '), KeyCode::Char('D'), KeyCode::Delete] {
            assert_ne!(press(&open, code), Some(OverlayKey::Accept), "{code}");
        }
        let mut ui = UiState { overlay: open.clone(), ..UiState::new(ThemeName::Dark) };
        let key = press(&open, KeyCode::Char('n')).unwrap();
        assert_eq!((update_overlay(&mut ui, key), matches!(ui.overlay, Overlay::None)), (None, true));
        ui.overlay = open.clone();
        let key = press(&open, KeyCode::Char('y')).unwrap();
        assert_eq!(update_overlay(&mut ui, key), Some(Effect::Runs(RunsCommand::Delete("runs/x".into()))));
        assert!(matches!(ui.overlay, Overlay::None));
    }

    #[test]
    fn a_bad_name_is_refused_in_place() {
        let mut ui = UiState::new(ThemeName::Dark);
        for (text, effect) in [
            ("../x", None),
            ("", None),
            ("mine", Some(Effect::Runs(RunsCommand::Rename("mine".parse().unwrap())))),
        ] {
            ui.open_prompt(PromptKind::RunName, text.into());
            assert_eq!(update_overlay(&mut ui, OverlayKey::Accept), effect, "{text:?}");
            let refused = matches!(&ui.overlay, Overlay::Prompt(prompt) if prompt.error.is_some());
            assert_eq!(refused, effect.is_none(), "{text:?}");
        }
    }

    #[test]
    fn a_typed_name_replaces_the_proposed_one() {
        let typed = |requests: &[InputRequest]| {
            let mut ui = UiState::new(ThemeName::Dark);
            update(&mut ui, Action::AskSnapshotName, Extent::default());
            for request in requests {
                update_overlay(&mut ui, OverlayKey::Edit(*request));
            }
            update_overlay(&mut ui, OverlayKey::Accept)
        };
        let saved = |name: &str| Some(Effect::Run(RunCommand::Snapshot(name.into())));
        let (a, b) = (InputRequest::InsertChar('a'), InputRequest::InsertChar('b'));
        assert_eq!(typed(&[]), saved("snap-1"));
        assert_eq!(typed(&[a, b]), saved("ab"));
        // Moving the cursor edits the proposal.
        assert_eq!(typed(&[InputRequest::GoToEnd, a]), saved("snap-1a"));
        assert_eq!(typed(&[InputRequest::DeletePrevChar, a]), saved("snap-a"));
    }

    #[test]
    fn a_snapshot_needs_a_name() {
        let mut ui = UiState::new(ThemeName::Dark);
        update(&mut ui, Action::AskSnapshotName, Extent::default());
        update_overlay(&mut ui, OverlayKey::Edit(InputRequest::DeleteLine));
        assert_eq!(update_overlay(&mut ui, OverlayKey::Accept), None);
        assert!(matches!(&ui.overlay, Overlay::Prompt(p) if p.error.is_some()));
        for _ in 0..=MAX_SNAPSHOT_NAME {
            update_overlay(&mut ui, OverlayKey::Edit(InputRequest::InsertChar('x')));
        }
        assert_eq!(update_overlay(&mut ui, OverlayKey::Accept), None);
        let error = matches!(&ui.overlay, Overlay::Prompt(p) if p.error.as_ref().is_some_and(|e| e.contains("at most 60")));
        assert!(error, "{:?}", ui.overlay);
        update_overlay(&mut ui, OverlayKey::Edit(InputRequest::DeleteLine));
        update_overlay(&mut ui, OverlayKey::Edit(InputRequest::InsertChar('x')));
        let snapshot = Effect::Run(RunCommand::Snapshot("x".into()));
        assert_eq!(update_overlay(&mut ui, OverlayKey::Accept), Some(snapshot));
        assert!(matches!(ui.overlay, Overlay::None));
    }
}
