//! The list of panes. A row of it has all that other files need to know of a pane: tabs, keys, help, drawing, moving,
//! clicks and exports follow from it.

use crossterm::event::KeyCode;
use ratatui::{buffer::Buffer, layout::Rect};

use llmprof_record::state::RunState;

use crate::{
    export::table::Table,
    panes,
    ui::{Action, Extent, UiState},
    view::View,
};

/// The row that a click selects, and what a click on the selected one does.
type SelectedRow = fn(&mut UiState) -> (&mut usize, Option<Action>);

/// A pane, as its own file describes it.
pub struct Spec {
    pub title: &'static str,
    /// What shows it. The first is on its tab.
    pub keys: &'static [KeyCode],
    pub help: &'static str,
    /// Only some runs have it, and the others do not miss it.
    pub is_special: bool,
    /// Why it has no content.
    pub why_empty: &'static str,
    /// Whether `state`, or what the view has besides it, fills the pane.
    pub has_content: fn(&View<'_>, state: &RunState) -> bool,
    pub draw: fn(View<'_>, Rect, &mut Buffer),
    /// The data behind it.
    pub table: fn(&View<'_>) -> Table,
    /// Moves the selection.
    pub select: fn(&mut UiState, by: isize, Extent),
    pub row: Option<SelectedRow>,
}

impl Spec {
    /// A pane without rows to select.
    pub const fn without_rows(_: &mut UiState, _: isize, _: Extent) {}
}

macro_rules! panes {
    ($($name:ident => $file:ident,)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Pane {
            $($name),*
        }

        impl Pane {
            pub const ALL: [Pane; [$(stringify!($name)),*].len()] = [$(Pane::$name),*];

            pub fn spec(self) -> &'static Spec {
                match self {
                    $(Pane::$name => &panes::$file::PANE),*
                }
            }
        }
    };
}

// In the order of the tabs.
panes! {
    Overview => overview,
    Gpu => gpu,
    Tokens => tokens,
    Kernels => kernels,
    Roofline => roofline,
    Compare => compare,
    Runs => runs,
    Log => log,
    Server => server,
    Ranks => ranks,
}

impl Default for Pane {
    fn default() -> Pane {
        Pane::ALL[0]
    }
}

impl Pane {
    pub fn title(self) -> &'static str {
        self.spec().title
    }

    /// Only some runs have it, and the others do not miss it.
    pub fn is_special(self) -> bool {
        self.spec().is_special
    }

    /// The key on its tab.
    pub fn key(self) -> KeyCode {
        self.spec().keys[0]
    }
}
