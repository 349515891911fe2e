//! What the user has selected and typed: pure state, changed by actions.

mod action;
mod kernels;
mod overlay;
mod palette;

use std::path::PathBuf;

pub use action::{Action, Effect, Extent, ReplayCommand, RunCommand, RunsCommand, update};
pub use kernels::{KernelsExtent, KernelsSettings};
pub use overlay::{Overlay, OverlayKey, Prompt, PromptKind, update_overlay};
pub use palette::Palette;
use tui_input::Input;

use crate::{config::ThemeName, event::Stamp};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pane {
    #[default]
    Overview,
    Gpu,
    Tokens,
    Kernels,
    Roofline,
    Compare,
    Runs,
    Log,
}

impl Pane {
    pub const ALL: [Pane; 8] = [
        Pane::Overview,
        Pane::Gpu,
        Pane::Tokens,
        Pane::Kernels,
        Pane::Roofline,
        Pane::Compare,
        Pane::Runs,
        Pane::Log,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Pane::Overview => "Overview",
            Pane::Gpu => "GPU",
            Pane::Tokens => "Tokens",
            Pane::Kernels => "Kernels",
            Pane::Roofline => "Roofline",
            Pane::Compare => "Compare",
            Pane::Runs => "Runs",
            Pane::Log => "Log",
        }
    }
}

/// The order of the Runs pane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RunOrder {
    #[default]
    Newest,
    Fastest,
    Model,
}

/// What the Compare pane shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ComparePart {
    /// As much as fits.
    #[default]
    All,
    Itl,
    Operators,
    /// Both sides, what differs between them, reasons and advice.
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

/// Time spans of the charts.
pub const SPANS_S: [f64; 6] = [10.0, 30.0, 60.0, 300.0, 1800.0, f64::INFINITY];

const DEFAULT_SPAN: usize = 2;

#[derive(Debug, Clone, Default)]
pub struct UiState {
    pub pane: Pane,
    pub overlay: Overlay,
    pub theme: ThemeName,
    /// Index into [`SPANS_S`].
    pub span: usize,
    /// The selected token, counted from the run's first; `None` follows the newest.
    pub token: Option<u64>,
    /// The selected incident, counted from the newest.
    pub incident: usize,
    /// When the open incident happened.
    pub incident_open: Option<Stamp>,
    /// Index of the selected GPU; `None` shows the profiled one.
    pub gpu: Option<usize>,
    /// The selected row of the GPU pane.
    pub reading: usize,
    /// The selected point of the roofline.
    pub point: usize,
    /// Lines between the newest and the last one shown.
    pub log_back: usize,
    pub log_filter: String,
    /// Jobs of a sweep between the current one and the last one shown.
    pub jobs_back: usize,
    pub run_selected: usize,
    /// The run that others are compared with.
    pub run_marked: Option<PathBuf>,
    pub runs_filter: String,
    pub run_order: RunOrder,
    pub kernels: KernelsSettings,
    pub compare_part: ComparePart,
    /// Shown in the footer until the next key.
    pub message: Option<String>,
}

impl UiState {
    pub fn new(theme: ThemeName) -> Self {
        UiState { theme, span: DEFAULT_SPAN, ..UiState::default() }
    }

    /// Opens a prompt with `text` in it.
    pub fn open_prompt(&mut self, kind: PromptKind, text: String) {
        let proposed = kind == PromptKind::SnapshotName;
        self.overlay = Overlay::Prompt(Prompt { kind, input: Input::new(text), proposed, error: None });
    }

    /// Reports why something was not done: in the open prompt, otherwise in the footer.
    pub fn report_error(&mut self, reason: String) {
        match &mut self.overlay {
            Overlay::Prompt(prompt) => prompt.error = Some(reason),
            _ => self.message = Some(reason),
        }
    }
}
