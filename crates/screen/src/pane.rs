//! The list of panes. Its rows have everything that other files need to know about a pane: tabs, keys, help, drawing,
//! moving, clicks and exports follow from it.

use crossterm::event::KeyCode;
use ratatui::{buffer::Buffer, layout::Rect};

use llmprof_base::table::Table;
use llmprof_record::state::RunState;

use crate::{
    panes,
    ui::{Action, Extent, UiState},
    view::View,
};

/// The row that a click selects, and the action of a click on the selected row.
type SelectedRow = fn(&mut UiState) -> (&mut usize, Option<Action>);

/// A pane, as its own file describes it.
pub struct Spec {
    pub title: &'static str,
    /// The keys that show it. The first one is on its tab.
    pub keys: &'static [KeyCode],
    pub help: &'static str,
    /// Whether only some runs have it, and its absence is normal.
    pub is_special: bool,
    /// Why it may have no content.
    pub why_empty: &'static str,
    /// Whether `state`, or the view's other data, fills the pane.
    pub has_content: fn(&View<'_>, state: &RunState) -> bool,
    pub draw: fn(View<'_>, Rect, &mut Buffer),
    /// The data of the pane, for an export.
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
    Why => why,
    Gpu => gpu,
    Tokens => tokens,
    Kernels => kernels,
    Roofline => roofline,
    Compare => compare,
    Runs => runs,
    Log => log,
    Server => server,
    Ranks => ranks,
    Lines => lines,
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

    /// Whether only some runs have it, and its absence is normal.
    pub fn is_special(self) -> bool {
        self.spec().is_special
    }

    /// The key on its tab.
    pub fn key(self) -> KeyCode {
        self.spec().keys[0]
    }
}
