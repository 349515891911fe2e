//! The command palette: every action by name.

use tui_input::{Input, InputRequest};

use super::{Action, Pane};
use crate::keys::{BINDINGS, Binding, Mode};

/// The typed text, and the selected one of the matching actions.
#[derive(Debug, Clone)]
pub struct Palette {
    pub input: Input,
    pub selected: usize,
    pane: Pane,
    mode: Mode,
}

impl Palette {
    /// For the actions that are possible on this pane now.
    pub fn new(pane: Pane, mode: Mode) -> Palette {
        Palette { input: Input::default(), selected: 0, pane, mode }
    }

    /// The actions whose name contains every typed word, those that begin with the first word before others.
    pub fn matches(&self) -> Vec<&'static Binding> {
        let typed = self.input.value().to_lowercase();
        let words: Vec<&str> = typed.split_whitespace().collect();
        let name = |b: &Binding| {
            let kind = if matches!(b.action, Action::Show(_)) { "pane" } else { "" };
            format!("{} {} {kind}", b.help, b.short).to_lowercase()
        };
        let is_command = |b: &&Binding| !matches!(b.action, Action::Move(_) | Action::Palette);
        let mut found: Vec<&Binding> = BINDINGS
            .iter()
            .filter(is_command)
            .filter(|b| b.is_active(self.pane, self.mode))
            .filter(|b| words.iter().all(|word| name(b).contains(word)))
            .collect();
        found.sort_by_key(|b| words.first().is_some_and(|word| !name(b).starts_with(word)));
        found
    }

    pub fn chosen(&self) -> Option<Action> {
        self.matches().get(self.selected).map(|b| b.action.clone())
    }

    pub(super) fn edit(&mut self, request: InputRequest) {
        self.input.handle(request);
        self.selected = 0;
    }

    pub(super) fn step(&mut self, by: isize) {
        let last = self.matches().len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(by).min(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_config::ThemeName;

    fn typed(text: &str, mode: Mode) -> Palette {
        let mut palette = Palette::new(Pane::Overview, mode);
        text.chars().for_each(|c| palette.edit(InputRequest::InsertChar(c)));
        palette
    }

    #[test]
    fn actions_are_found_by_words_of_their_names() {
        assert_eq!(typed("theme", Mode::Single).chosen(), Some(Action::NextTheme));
        assert_eq!(typed("KERNELS gpu time", Mode::Single).chosen(), Some(Action::Show(Pane::Kernels)));
        assert_eq!(typed("pane kernels", Mode::Single).chosen(), Some(Action::Show(Pane::Kernels)));
        assert_eq!(typed("theme light", Mode::Single).chosen(), Some(Action::SetTheme(ThemeName::Light)));
        assert_eq!(typed("theme hi", Mode::Replay).chosen(), Some(Action::SetTheme(ThemeName::HighContrast)));
        assert_eq!(typed("no such thing", Mode::Single).chosen(), None);
        // Only actions that are possible now.
        assert!(typed("play faster", Mode::Single).matches().is_empty());
        assert_eq!(typed("play faster", Mode::Replay).matches().len(), 1);
    }

    #[test]
    fn every_action_of_a_pane_is_listed() {
        for pane in Pane::ALL {
            let listed = Palette::new(pane, Mode::Single).matches();
            let missing = BINDINGS.iter().filter(|b| {
                let active = b.is_active(pane, Mode::Single);
                let command = !matches!(b.action, Action::Move(_) | Action::Palette);
                active && command && !listed.iter().any(|l| std::ptr::eq(*l, *b))
            });
            assert_eq!(missing.count(), 0, "{pane:?}");
        }
    }

    #[test]
    fn the_selection_stays_in_the_list() {
        let mut palette = typed("", Mode::Single);
        palette.step(-3);
        assert_eq!(palette.selected, 0);
        palette.step(1000);
        assert_eq!(palette.selected, palette.matches().len() - 1);
        palette.edit(InputRequest::InsertChar('z'));
        assert_eq!(palette.selected, 0);
    }
}
