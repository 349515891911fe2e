//! What the user looks at and has asked for: pure state, changed by actions, answered with effects.

mod kernels;

use std::path::PathBuf;

pub use kernels::{KernelsExtent, KernelsLook};
use tui_input::{Input, InputRequest};

use crate::{config::ThemeName, event::Stamp, run::rerun::Tool};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pane {
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

    fn step(self, by: usize) -> Pane {
        let at = Pane::ALL.iter().position(|p| *p == self).unwrap_or(0);
        Pane::ALL[(at + by) % Pane::ALL.len()]
    }
}

/// Something the user wants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Action {
    Quit,
    Interrupt,
    Help,
    Show(Pane),
    NextPane,
    PreviousPane,
    ToggleView,
    ToggleWorkload,
    Rerun,
    RunUnder(Tool),
    EndJob,
    AskSnapshot,
    AskOverrides,
    AskFilter,
    ShowCompare,
    MarkRun,
    CompareRuns,
    ShowEvidence,
    OpenIncident,
    NextGpu,
    NextTheme,
    Export,
    Zoom(i32),
    Move(i32),
    Scrub(i32),
    ScrubToNow,
    Sort,
    ToggleKernels,
    KernelSource(i32),
    GroupKernels,
    OpenKernel,
    CloseKernel,
    PageKernels(i32),
    NextStretch(i32),
    OpenRun,
    RefreshRuns,
    TogglePlay,
    Seek(f64),
    SeekStart,
    SeekEnd,
    Faster,
    Slower,
    LeaveReplay,
}

/// Something only the program around the screen can do.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    Quit,
    Interrupt,
    ToggleView,
    ToggleWorkload,
    ToggleKernels,
    Rerun,
    RunUnder(Tool),
    EndJob,
    Snapshot(String),
    Restart(String),
    OpenRun(usize),
    MarkRun(usize),
    /// The chosen run with the marked one.
    CompareRuns(usize),
    CompareSnapshots,
    RefreshRuns,
    /// Writes what is on the screen to files.
    Export,
    LeaveReplay,
    TogglePlay,
    Seek(f64),
    SeekStart,
    SeekEnd,
    Faster,
    Slower,
}

/// What lies over the pane.
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
    pub asks: Asks,
    pub input: Input,
    /// Why the last answer was not taken.
    pub error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    SnapshotName,
    Overrides,
    Filter(Pane),
}

impl Asks {
    pub fn title(self) -> &'static str {
        match self {
            Asks::SnapshotName => "snapshot: its name",
            Asks::Overrides => "overrides, as on the command line; Enter starts a new run",
            Asks::Filter(_) => "show only what contains",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SortRuns {
    #[default]
    Newest,
    Fastest,
    Model,
}

/// How much time the charts span.
pub const SPANS_S: [f64; 6] = [10.0, 30.0, 60.0, 300.0, 1800.0, f64::INFINITY];

#[derive(Debug, Clone)]
pub struct UiState {
    pub pane: Pane,
    pub overlay: Overlay,
    pub theme: ThemeName,
    /// Index into [`SPANS_S`].
    pub span: usize,
    /// The token looked at, counted from the run's first; `None` stays with the newest.
    pub token: Option<u64>,
    /// The incident that is chosen, counted from the newest, and the one whose seconds are on the screen.
    pub incident: usize,
    pub incident_open: Option<Stamp>,
    /// The GPU that is looked at, by its place; `None` leaves the choice to the program.
    pub gpu: Option<usize>,
    /// The row of the GPU pane that is looked at.
    pub reading: usize,
    /// The point of the roofline that is looked at.
    pub point: usize,
    /// Lines between the newest and the last one shown.
    pub log_back: usize,
    pub log_filter: String,
    /// Jobs of a sweep between the one at work and the last one shown.
    pub jobs_back: usize,
    pub run_selected: usize,
    /// The run that others are compared with.
    pub run_marked: Option<PathBuf>,
    pub runs_filter: String,
    pub sort: SortRuns,
    pub kernels: KernelsLook,
    /// A word to the user, until the next key.
    pub message: Option<String>,
}

impl UiState {
    pub fn new(theme: ThemeName) -> Self {
        UiState {
            pane: Pane::Overview,
            overlay: Overlay::None,
            theme,
            span: 2,
            token: None,
            incident: 0,
            incident_open: None,
            gpu: None,
            reading: 0,
            point: 0,
            log_back: 0,
            log_filter: String::new(),
            jobs_back: 0,
            run_selected: 0,
            run_marked: None,
            runs_filter: String::new(),
            sort: SortRuns::default(),
            kernels: KernelsLook::default(),
            message: None,
        }
    }

    pub fn filter(&self, pane: Pane) -> &str {
        match pane {
            Pane::Runs => &self.runs_filter,
            Pane::Kernels => &self.kernels.filter,
            _ => &self.log_filter,
        }
    }

    /// Opens a prompt with `text` in it.
    pub fn ask(&mut self, asks: Asks, text: String) {
        self.overlay = Overlay::Prompt(Prompt { asks, input: Input::new(text), error: None });
    }
}

/// What the pane's content looks like to the keys that move in it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Extent {
    /// Tokens that can be looked at.
    pub tokens: usize,
    /// Tokens there ever were.
    pub tokens_seen: u64,
    /// Rows of the GPU pane.
    pub readings: usize,
    /// Points of the roofline.
    pub points: usize,
    pub incidents: usize,
    /// When the chosen one happened.
    pub incident_at: Option<Stamp>,
    pub gpus: usize,
    pub runs: usize,
    pub log_lines: usize,
    pub snapshots: usize,
    /// Jobs of a sweep up to the one at work.
    pub jobs: usize,
    pub kernels: KernelsExtent,
}

/// Carries out an action on the screen's state; what it can't do itself comes back as an effect.
pub fn update(ui: &mut UiState, action: Action, extent: Extent) -> Option<Effect> {
    ui.message = None;
    match action {
        Action::Quit => return Some(Effect::Quit),
        Action::Interrupt => return Some(Effect::Interrupt),
        Action::Help => ui.overlay = Overlay::Help { scroll: 0 },
        Action::Show(pane) => return show(ui, pane),
        Action::NextPane => return show(ui, ui.pane.step(1)),
        Action::PreviousPane => return show(ui, ui.pane.step(Pane::ALL.len() - 1)),
        Action::ShowCompare => {
            ui.pane = Pane::Compare;
            return Some(Effect::CompareSnapshots);
        }
        Action::MarkRun => {
            let last = extent.runs.checked_sub(1)?;
            return Some(Effect::MarkRun(ui.run_selected.min(last)));
        }
        Action::CompareRuns => {
            let Some(last) = extent.runs.checked_sub(1).filter(|_| ui.run_marked.is_some()) else {
                ui.pane = Pane::Compare;
                return Some(Effect::CompareSnapshots);
            };
            return Some(Effect::CompareRuns(ui.run_selected.min(last)));
        }
        Action::ShowEvidence => ui.overlay = Overlay::Evidence { scroll: 0 },
        Action::OpenIncident => {
            ui.incident = ui.incident.min(extent.incidents.saturating_sub(1));
            ui.incident_open = match ui.incident_open {
                Some(_) => None,
                None => extent.incident_at,
            };
            ui.token = None;
        }
        Action::AskSnapshot => ui.ask(Asks::SnapshotName, format!("snap-{}", extent.snapshots + 1)),
        Action::AskOverrides => ui.ask(Asks::Overrides, String::new()),
        Action::AskFilter => ui.ask(Asks::Filter(ui.pane), ui.filter(ui.pane).to_owned()),
        Action::NextTheme => {
            ui.theme = match ui.theme {
                ThemeName::Dark => ThemeName::Light,
                ThemeName::Light => ThemeName::HighContrast,
                ThemeName::HighContrast => ThemeName::NoColour,
                ThemeName::NoColour => ThemeName::Dark,
            }
        }
        Action::Zoom(by) if ui.pane == Pane::Kernels => ui.kernels.zoom_by(-by, extent.kernels),
        Action::Zoom(by) => ui.span = ui.span.saturating_add_signed(by as isize).min(SPANS_S.len() - 1),
        Action::Move(by) => move_in_pane(ui, by as isize, extent),
        Action::Scrub(back) => {
            let newest = extent.tokens_seen.saturating_sub(1);
            let oldest = extent.tokens_seen.saturating_sub(extent.tokens as u64);
            let at = ui.token.unwrap_or(newest).saturating_add_signed(-i64::from(back)).clamp(oldest, newest);
            ui.token = (at < newest).then_some(at);
            ui.incident_open = None;
        }
        Action::ScrubToNow => (ui.token, ui.incident_open) = (None, None),
        Action::NextGpu => {
            let next = ui.gpu.map_or(0, |gpu| gpu + 1);
            ui.gpu = (next < extent.gpus).then_some(next);
        }
        Action::Sort if ui.pane == Pane::Kernels => ui.kernels.next_sort(),
        Action::KernelSource(by) => ui.kernels.next_source(by, extent.kernels),
        Action::GroupKernels => ui.kernels.next_group(extent.kernels),
        Action::OpenKernel => ui.kernels.toggle_open(extent.kernels),
        Action::CloseKernel if ui.kernels.open => ui.kernels.open = false,
        Action::PageKernels(by) => ui.kernels.page(by, extent.kernels),
        Action::NextStretch(by) => ui.kernels.next_stretch(by, extent.kernels),
        Action::Sort => {
            ui.sort = match ui.sort {
                SortRuns::Newest => SortRuns::Fastest,
                SortRuns::Fastest => SortRuns::Model,
                SortRuns::Model => SortRuns::Newest,
            }
        }
        Action::OpenRun => {
            let last = extent.runs.checked_sub(1)?;
            return Some(Effect::OpenRun(ui.run_selected.min(last)));
        }
        Action::RefreshRuns => return Some(Effect::RefreshRuns),
        Action::Export => return Some(Effect::Export),
        Action::ToggleView => return Some(Effect::ToggleView),
        Action::ToggleWorkload => return Some(Effect::ToggleWorkload),
        Action::ToggleKernels => return Some(Effect::ToggleKernels),
        Action::Rerun => return Some(Effect::Rerun),
        Action::RunUnder(tool) => return Some(Effect::RunUnder(tool)),
        Action::EndJob => return Some(Effect::EndJob),
        Action::TogglePlay => return Some(Effect::TogglePlay),
        Action::Seek(secs) => return Some(Effect::Seek(secs)),
        Action::SeekStart => return Some(Effect::SeekStart),
        Action::SeekEnd => return Some(Effect::SeekEnd),
        Action::Faster => return Some(Effect::Faster),
        Action::Slower => return Some(Effect::Slower),
        // With nothing to close, Esc means what it means elsewhere.
        Action::LeaveReplay | Action::CloseKernel => return Some(Effect::LeaveReplay),
    }
    None
}

fn show(ui: &mut UiState, pane: Pane) -> Option<Effect> {
    ui.pane = pane;
    (pane == Pane::Runs).then_some(Effect::RefreshRuns)
}

fn move_in_pane(ui: &mut UiState, by: isize, extent: Extent) {
    match ui.pane {
        Pane::Runs => {
            ui.run_selected = ui.run_selected.saturating_add_signed(by).min(extent.runs.saturating_sub(1));
        }
        Pane::Tokens => {
            ui.incident = ui.incident.saturating_add_signed(by).min(extent.incidents.saturating_sub(1))
        }
        Pane::Gpu => ui.reading = ui.reading.saturating_add_signed(by).min(extent.readings.saturating_sub(1)),
        Pane::Kernels => ui.kernels.move_by(by, extent.kernels),
        Pane::Roofline => ui.point = ui.point.saturating_add_signed(by).min(extent.points.saturating_sub(1)),
        // The log grows downwards: up means back.
        Pane::Log => {
            ui.log_back = ui.log_back.saturating_add_signed(-by).min(extent.log_lines.saturating_sub(1));
        }
        Pane::Compare => {
            ui.jobs_back = ui.jobs_back.saturating_add_signed(-by).min(extent.jobs.saturating_sub(1));
        }
        _ => {}
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

/// More lines than there ever are: scrolling ends where the text does.
const EVIDENCE_LINES: usize = 500;

/// Feeds a key to the overlay that lies on top.
pub fn update_overlay(ui: &mut UiState, key: OverlayKey) -> Option<Effect> {
    match (&mut ui.overlay, key) {
        (_, OverlayKey::Close) => ui.overlay = Overlay::None,
        (Overlay::Help { scroll }, OverlayKey::Scroll(by)) => {
            *scroll = scroll.saturating_add_signed(by).min(super::keys::BINDINGS.len());
        }
        (Overlay::Evidence { scroll }, OverlayKey::Scroll(by)) => {
            *scroll = scroll.saturating_add_signed(by).min(EVIDENCE_LINES);
        }
        (Overlay::Prompt(prompt), OverlayKey::Edit(request)) => {
            prompt.input.handle(request);
            prompt.error = None;
        }
        (Overlay::Prompt(prompt), OverlayKey::Accept) => {
            let (asks, text) = (prompt.asks, prompt.input.value().trim().to_owned());
            match asks {
                // The program closes it when the overrides hold, and says why when they do not.
                Asks::Overrides => return Some(Effect::Restart(text)),
                Asks::SnapshotName if text.is_empty() => {
                    prompt.error = Some("a snapshot needs a name".into())
                }
                Asks::SnapshotName => {
                    ui.overlay = Overlay::None;
                    return Some(Effect::Snapshot(text));
                }
                Asks::Filter(pane) => {
                    match pane {
                        Pane::Runs => (ui.runs_filter, ui.run_selected) = (text, 0),
                        Pane::Kernels => ui.kernels.filter_by(text),
                        _ => (ui.log_filter, ui.log_back) = (text, 0),
                    }
                    ui.overlay = Overlay::None;
                }
            }
        }
        (Overlay::Help { .. } | Overlay::Evidence { .. }, OverlayKey::Accept) => ui.overlay = Overlay::None,
        _ => {}
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ui() -> UiState {
        UiState::new(ThemeName::Dark)
    }

    #[test]
    fn panes_go_round() {
        let mut ui = ui();
        let seen: Vec<Pane> = (0..Pane::ALL.len())
            .map(|_| {
                update(&mut ui, Action::NextPane, Extent::default());
                ui.pane
            })
            .collect();
        assert_eq!(ui.pane, Pane::Overview);
        assert!(Pane::ALL.iter().all(|p| seen.contains(p)));
        update(&mut ui, Action::PreviousPane, Extent::default());
        assert_eq!(ui.pane, Pane::Log);
    }

    #[test]
    fn nothing_moves_past_its_end() {
        let mut ui = ui();
        let extent = Extent {
            tokens: 10,
            tokens_seen: 100,
            readings: 11,
            points: 4,
            incidents: 2,
            incident_at: None,
            gpus: 1,
            runs: 3,
            log_lines: 5,
            snapshots: 0,
            jobs: 4,
            kernels: KernelsExtent::default(),
        };
        for (pane, action) in [
            (Pane::Runs, Action::Move(100)),
            (Pane::Log, Action::Move(-100)),
            (Pane::Compare, Action::Move(-100)),
            (Pane::Roofline, Action::Move(100)),
            (Pane::Tokens, Action::Scrub(100)),
        ] {
            ui.pane = pane;
            update(&mut ui, action, extent);
        }
        assert_eq!((ui.run_selected, ui.log_back, ui.jobs_back, ui.token), (2, 4, 3, Some(90)));
        assert_eq!(ui.point, 3);
        update(&mut ui, Action::Scrub(-1000), extent);
        assert_eq!(ui.token, None);
        for _ in 0..20 {
            update(&mut ui, Action::Zoom(1), extent);
        }
        assert_eq!(ui.span, SPANS_S.len() - 1);
        assert_eq!(update(&mut ui, Action::OpenRun, Extent::default()), None);
    }

    #[test]
    fn a_snapshot_is_asked_for_and_named() {
        let mut ui = ui();
        update(&mut ui, Action::AskSnapshot, Extent::default());
        update_overlay(&mut ui, OverlayKey::Edit(InputRequest::DeleteLine));
        assert_eq!(update_overlay(&mut ui, OverlayKey::Accept), None);
        assert!(matches!(&ui.overlay, Overlay::Prompt(p) if p.error.is_some()));
        update_overlay(&mut ui, OverlayKey::Edit(InputRequest::InsertChar('x')));
        assert_eq!(update_overlay(&mut ui, OverlayKey::Accept), Some(Effect::Snapshot("x".into())));
        assert!(matches!(ui.overlay, Overlay::None));
    }
}
