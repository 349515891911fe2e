//! The key table of the fleet: each key, its action, and its text in help, footer and documents.

use crossterm::event::{
    KeyCode::{self, Char, Down, End, Enter, Esc, F, Home, Left, PageDown, PageUp, Right, Up},
    KeyEvent, KeyModifiers,
};

use crate::keys::key_name;

/// An action of the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Quit,
    Interrupt,
    Suspend,
    Help,
    Move(isize),
    Page(isize),
    Open,
    Back,
    AskFilter,
    Sort,
    Nodes,
    Refresh,
    NextTheme,
    /// The number of refreshes to move forward in a recording.
    Step(isize),
    TogglePlay,
}

/// The scope in which a key is active.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Anywhere,
    Replay,
}

pub struct Binding {
    pub keys: &'static [KeyCode],
    pub scope: Scope,
    pub action: Action,
    /// The text for the footer; empty if the footer does not show the key.
    pub short: &'static str,
    pub help: &'static str,
}

const fn key(
    keys: &'static [KeyCode],
    scope: Scope,
    action: Action,
    short: &'static str,
    help: &'static str,
) -> Binding {
    Binding { keys, scope, action, short, help }
}

use Action as A;
use Scope::{Anywhere, Replay};

const FAR: isize = 1 << 20;

/// In the order of the help.
#[rustfmt::skip] // One row a line.
pub static BINDINGS: &[Binding] = &[
    key(&[Enter], Anywhere, A::Open, "history", "open the history of the GPU, or the GPUs of the node"),
    key(&[Esc, Char('b')], Anywhere, A::Back, "", "back: close the history, the node, the filter"),
    key(&[Char('/')], Anywhere, A::AskFilter, "filter", "show only GPUs that contain a text: node, model, state, error"),
    key(&[Char('o')], Anywhere, A::Sort, "sort", "sort by loss, node, temperature, power, clock, use"),
    key(&[Char('n')], Anywhere, A::Nodes, "nodes", "list nodes, or GPUs"),
    key(&[Char('r')], Anywhere, A::Refresh, "refresh", "query Prometheus now"),
    key(&[Up, Char('k')], Anywhere, A::Move(-1), "", "up"),
    key(&[Down, Char('j')], Anywhere, A::Move(1), "", "down"),
    key(&[PageUp], Anywhere, A::Page(-1), "", "one page up"),
    key(&[PageDown], Anywhere, A::Page(1), "", "one page down"),
    key(&[Home, Char('g')], Anywhere, A::Move(-FAR), "", "first row"),
    key(&[End, Char('G')], Anywhere, A::Move(FAR), "", "last row"),
    key(&[Left, Char(',')], Replay, A::Step(-1), "", "one refresh back in the recording"),
    key(&[Right, Char('.')], Replay, A::Step(1), "", "one refresh forward in the recording"),
    key(&[Char('<')], Replay, A::Step(-20), "", "20 refreshes back"),
    key(&[Char('>')], Replay, A::Step(20), "", "20 refreshes forward"),
    key(&[Char(' ')], Replay, A::TogglePlay, "play", "play or pause the recording, two refreshes per second"),
    key(&[Char('t')], Anywhere, A::NextTheme, "", "next theme"),
    key(&[Char('?'), F(1)], Anywhere, A::Help, "help", "show this help"),
    key(&[Char('q')], Anywhere, A::Quit, "quit", "quit"),
];

/// The keys of an open history, in addition to those that close it: those of the GPU pane.
pub const HISTORY_KEYS: [(&str, &str); 4] = [
    ("← →", "move the cursor: it reads every chart"),
    ("+ -", "zoom: the charts show a shorter or longer time"),
    ("↑ ↓", "select a reading; it is drawn large"),
    ("Esc", "close the cursor; return to the list"),
];

pub fn action(event: KeyEvent, is_replay: bool) -> Option<Action> {
    if event.modifiers.contains(KeyModifiers::CONTROL) {
        return match event.code {
            Char('c') => Some(A::Interrupt),
            Char('z') => Some(A::Suspend),
            _ => None,
        };
    }
    let active = |b: &&Binding| b.keys.contains(&event.code) && (is_replay || b.scope == Scope::Anywhere);
    BINDINGS.iter().find(active).map(|b| b.action)
}

impl Binding {
    pub fn label(&self, ascii: bool) -> String {
        self.keys.iter().map(|key| key_name(*key, ascii)).collect::<Vec<_>>().join(" ")
    }
}

/// The table as Markdown, for the documentation.
pub fn markdown() -> String {
    let mut out = String::from("| key | where | what |\n|---|---|---|\n");
    for b in BINDINGS {
        let place = if b.scope == Scope::Replay { "recording" } else { "list" };
        out += &format!("| `{}` | {place} | {} |\n", b.label(false), b.help);
    }
    for (keys, help) in HISTORY_KEYS {
        out += &format!("| `{keys}` | history | {help} |\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_one_meaning_and_help_that_fits() {
        let mut all: Vec<KeyCode> = BINDINGS.iter().flat_map(|b| b.keys).copied().collect();
        let n = all.len();
        all.sort_by_key(|key| format!("{key:?}"));
        all.dedup();
        assert_eq!(all.len(), n);
        for b in BINDINGS {
            assert!(b.help.len() <= 62 && b.label(true).len() <= 10, "{}: {}", b.label(true), b.help);
        }
    }
}
