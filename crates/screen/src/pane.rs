//! The list of panes. Its rows have everything that other files need to know about a pane: tabs, keys, help, drawing,
//! moving, clicks and exports follow from it.

use crossterm::event::KeyCode;
use ratatui::{buffer::Buffer, layout::Rect};

use llmprof_base::table::Table;
use llmprof_record::state::RunState;

use crate::{
    panes,
    ui::{Action, Extent, UiState, moved},
    view::View,
};

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
    /// The number of rows that can be selected.
    pub rows: fn(&View<'_>) -> usize,
    /// The selected row.
    pub row: fn(&mut UiState) -> &mut usize,
    /// Moves the selection.
    pub select: fn(&mut UiState, by: isize, Extent),
    /// The action of a click on the selected row.
    pub open: Option<Action>,
    /// The pane that shows more about the selected row.
    pub evidence: fn(&View<'_>) -> Option<Pane>,
}

impl Spec {
    /// A pane without content, and without rows. Panes override what they have.
    pub const EMPTY: Spec = Spec {
        title: "",
        keys: &[],
        help: "",
        is_special: false,
        why_empty: "",
        has_content: |_, _| false,
        draw: |_, _, _| {},
        table: |_| Table::default(),
        rows: |_| 0,
        row: |ui| ui.row_mut(ui.pane),
        select: |ui, by, extent| {
            let row = (ui.pane.spec().row)(ui);
            *row = moved(*row, by, extent.rows);
        },
        open: None,
        evidence: |_| None,
    };
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
