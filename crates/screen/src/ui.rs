//! The user's selections and input: pure state, changed by actions.

mod action;
mod kernels;
mod overlay;
mod palette;
mod runs;

pub use action::{
    Action, Effect, Extent, JobsCommand, ReplayCommand, RunCommand, RunsCommand, SortColumn, moved,
    set_cursor, update,
};
pub use kernels::{KernelsExtent, KernelsSettings};
pub use overlay::{Deletion, Overlay, OverlayKey, Prompt, PromptKind, update_overlay};
pub use palette::Palette;
pub use runs::{Arrangement, GroupKey, RunOrder, RunsSettings};
use tui_input::Input;

pub use crate::pane::Pane;
use llmprof_config::ThemeName;
use llmprof_event::Stamp;

/// The panes that can be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Panes([bool; Pane::ALL.len()]);

impl Panes {
    pub const ALL: Panes = Panes([true; Pane::ALL.len()]);

    pub fn those(wanted: impl Fn(Pane) -> bool) -> Panes {
        Panes(Pane::ALL.map(wanted))
    }

    pub fn has(self, pane: Pane) -> bool {
        self.0[pane as usize]
    }

    pub fn iter(self) -> impl DoubleEndedIterator<Item = Pane> + Clone {
        Pane::ALL.into_iter().filter(move |pane| self.has(*pane))
    }

    /// The number of panes that are not shown.
    pub fn left_out(self) -> usize {
        Pane::ALL.into_iter().filter(|pane| !self.has(*pane) && !pane.is_special()).count()
    }
}

impl Default for Panes {
    fn default() -> Panes {
        Panes::ALL
    }
}

/// The displayed part of the Compare pane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ComparePart {
    /// As much as fits.
    #[default]
    All,
    Itl,
    Operators,
    /// Both sides, their differences, reasons and advice.
    Notes,
}

impl ComparePart {
    pub fn name(self) -> &'static str {
        match self {
            ComparePart::All => "all",
            ComparePart::Itl => "ITL histograms",
            ComparePart::Operators => "operators",
            ComparePart::Notes => "names and differences",
        }
    }

    pub fn next(self) -> ComparePart {
        match self {
            ComparePart::All => ComparePart::Itl,
            ComparePart::Itl => ComparePart::Operators,
            ComparePart::Operators => ComparePart::Notes,
            ComparePart::Notes => ComparePart::All,
        }
    }
}

/// Time spans of the streams of a server, in seconds.
pub const STREAM_SPANS_S: [f64; 11] = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];
/// Time spans of the charts, in seconds.
pub const SPANS_S: [f64; 9] = [2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 1800.0, f64::INFINITY];

const DEFAULT_SPAN: usize = 4;

/// A moment in the charts, which hold their range while it is selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    pub at: Stamp,
    /// The end of the range.
    pub end: Stamp,
}

/// A token, for which the strip does not move. Both indexes are counted from the run's first token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SelectedToken {
    pub number: u64,
    /// The last token of the strip.
    pub end: u64,
}

#[derive(Debug, Clone, Default)]
pub struct UiState {
    pub pane: Pane,
    pub overlay: Overlay,
    pub theme: ThemeName,
    /// Index into [`SPANS_S`].
    pub span: usize,
    /// Steps by which the span of the streams is shorter or longer than a few requests.
    pub stream_zoom: isize,
    /// The moment at which the charts are read; `None` reads the newest values.
    pub cursor: Option<Cursor>,
    /// The width of the boxes next to the tokens, if the user has set it.
    pub side: Option<u16>,
    /// `None` follows the newest token.
    pub token: Option<SelectedToken>,
    /// The time of the open incident.
    pub incident_open: Option<Stamp>,
    /// Index of the selected GPU; `None` shows the profiled one.
    pub gpu: Option<usize>,
    /// Whether one of several GPUs is enlarged.
    pub gpu_open: bool,
    /// The selected row of each pane.
    pub rows: [usize; Pane::ALL.len()],
    pub log_filter: String,
    /// The selected job of a sweep; `None` follows the current one.
    pub job: Option<usize>,
    pub runs: RunsSettings,
    pub kernels: KernelsSettings,
    pub compare_part: ComparePart,
    /// Shown in the footer until the next key.
    pub message: Option<String>,
}

impl UiState {
    pub fn new(theme: ThemeName) -> Self {
        UiState { theme, span: DEFAULT_SPAN, ..UiState::default() }
    }

    /// The selected row of a pane.
    pub fn row(&self, pane: Pane) -> usize {
        self.rows[pane as usize]
    }

    pub fn row_mut(&mut self, pane: Pane) -> &mut usize {
        &mut self.rows[pane as usize]
    }

    /// Opens a prompt with `text` in it.
    pub fn open_prompt(&mut self, kind: PromptKind, text: String) {
        let proposed = kind == PromptKind::SnapshotName;
        self.overlay = Overlay::Prompt(Prompt { kind, input: Input::new(text), proposed, error: None });
    }

    /// Limits the scroll of an overlay to the end of its text, as last drawn.
    pub fn limit_scroll(&mut self, end: usize) {
        if let Overlay::Help { scroll } | Overlay::Evidence { scroll } = &mut self.overlay {
            *scroll = (*scroll).min(end);
        }
    }

    /// Reports why an action was refused: in the open prompt, otherwise in the footer.
    pub fn report_error(&mut self, reason: String) {
        match &mut self.overlay {
            Overlay::Prompt(prompt) => prompt.error = Some(reason),
            _ => self.message = Some(reason),
        }
    }
}
