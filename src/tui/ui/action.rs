//! Actions that keys and the mouse ask for, and what they do to the state of the screen.

use super::{KernelsExtent, Overlay, Palette, Pane, PromptKind, RunOrder, SPANS_S, UiState};
use crate::{config::ThemeName, event::Stamp, run::rerun::Tool, tui::keys::Mode};

/// Something the user asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Needs the program around the screen.
    Do(Effect),
    Help,
    /// Choose an action by its name.
    Palette,
    Evidence,
    Show(Pane),
    /// So many panes forward; back if negative.
    StepPane(isize),
    /// The Compare pane with the last two snapshots.
    ShowSnapshots,
    NextTheme,
    AskSnapshotName,
    AskFilter,
    Zoom(isize),
    Move(isize),
    Sort,
    NextGpu,
    /// So many tokens back.
    Scrub(i64),
    FollowTokens,
    ToggleIncident,
    StepKernelSource(isize),
    GroupKernels,
    ToggleKernelDetails,
    CloseKernelDetails,
    PageKernels(isize),
    StepTimelinePart(isize),
    NextComparePart,
}

/// Something only the program around the screen can do.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    Quit,
    Interrupt,
    /// Stop the process, as Ctrl-Z does elsewhere.
    Suspend,
    /// Write the screen to files.
    Export,
    CompareSnapshots,
    Run(RunCommand),
    Replay(ReplayCommand),
    Runs(RunsCommand),
}

/// To the live run.
#[derive(Debug, Clone, PartialEq)]
pub enum RunCommand {
    ToggleView,
    TogglePause,
    ToggleKernels,
    Snapshot(String),
    /// Asks first while the run is going on.
    AskRerun,
    Rerun,
    EditOverrides,
    /// A new run with these overrides.
    Start(String),
    RunUnder(Tool),
    EndJob,
}

/// To the recording that is played.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ReplayCommand {
    TogglePlay,
    SeekBy(f64),
    SeekTo(Stamp),
    SeekEnd,
    Faster,
    Slower,
    Leave,
}

/// To the list of recorded runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunsCommand {
    Refresh,
    Open,
    Mark,
    /// The selected run with the marked one.
    Compare,
}

/// How far the keys can move in the content of the panes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Extent {
    pub mode: Mode,
    /// Tokens that are kept.
    pub tokens: usize,
    /// All tokens of the run.
    pub tokens_seen: u64,
    /// Rows of the GPU pane.
    pub readings: usize,
    /// Points of the roofline.
    pub points: usize,
    pub incidents: usize,
    /// When the selected one happened.
    pub incident_at: Option<Stamp>,
    pub gpus: usize,
    pub runs: usize,
    pub log_lines: usize,
    pub snapshots: usize,
    /// Jobs of a sweep up to the current one.
    pub jobs: usize,
    pub kernels: KernelsExtent,
}

/// Applies an action to the state of the screen. What that cannot do is returned as an effect.
pub fn update(ui: &mut UiState, action: Action, extent: Extent) -> Option<Effect> {
    ui.message = None;
    match action {
        Action::Do(effect) => return Some(effect),
        Action::Help => ui.overlay = Overlay::Help { scroll: 0 },
        Action::Palette => ui.overlay = Overlay::Palette(Palette::new(ui.pane, extent.mode)),
        Action::Evidence => ui.overlay = Overlay::Evidence { scroll: 0 },
        Action::Show(pane) => return show(ui, pane),
        Action::StepPane(by) => {
            let at = Pane::ALL.iter().position(|pane| *pane == ui.pane).unwrap_or(0) as isize;
            return show(ui, Pane::ALL[(at + by).rem_euclid(Pane::ALL.len() as isize) as usize]);
        }
        Action::ShowSnapshots => {
            ui.pane = Pane::Compare;
            return Some(Effect::CompareSnapshots);
        }
        Action::NextTheme => {
            ui.theme = match ui.theme {
                ThemeName::Dark => ThemeName::Light,
                ThemeName::Light => ThemeName::HighContrast,
                ThemeName::HighContrast => ThemeName::NoColour,
                ThemeName::NoColour => ThemeName::Dark,
            }
        }
        Action::AskSnapshotName => {
            ui.open_prompt(PromptKind::SnapshotName, format!("snap-{}", extent.snapshots + 1));
        }
        Action::AskFilter => {
            let filter = match ui.pane {
                Pane::Runs => &ui.runs_filter,
                Pane::Kernels => &ui.kernels.filter,
                _ => &ui.log_filter,
            };
            ui.open_prompt(PromptKind::Filter(ui.pane), filter.clone());
        }
        Action::Zoom(by) if ui.pane == Pane::Kernels => ui.kernels.zoom_by(by, extent.kernels),
        Action::Zoom(by) => ui.span = moved(ui.span, -by, SPANS_S.len()),
        Action::Move(by) => move_in_pane(ui, by, extent),
        Action::Sort if ui.pane == Pane::Kernels => ui.kernels.next_sort(),
        Action::Sort => {
            ui.run_order = match ui.run_order {
                RunOrder::Newest => RunOrder::Fastest,
                RunOrder::Fastest => RunOrder::Model,
                RunOrder::Model => RunOrder::Newest,
            }
        }
        Action::NextGpu => {
            let next = ui.gpu.map_or(0, |gpu| gpu + 1);
            ui.gpu = (next < extent.gpus).then_some(next);
        }
        Action::Scrub(back) => {
            let newest = extent.tokens_seen.saturating_sub(1);
            let oldest = extent.tokens_seen.saturating_sub(extent.tokens as u64);
            let token = ui.token.unwrap_or(newest).saturating_add_signed(-back).clamp(oldest, newest);
            ui.token = (token < newest).then_some(token);
            ui.incident_open = None;
        }
        Action::FollowTokens => (ui.token, ui.incident_open) = (None, None),
        Action::ToggleIncident => {
            ui.incident = moved(ui.incident, 0, extent.incidents);
            ui.incident_open = if ui.incident_open.is_some() { None } else { extent.incident_at };
            ui.token = None;
        }
        Action::StepKernelSource(by) => ui.kernels.step_source(by, extent.kernels),
        Action::GroupKernels => ui.kernels.next_group(extent.kernels),
        Action::ToggleKernelDetails => ui.kernels.toggle_open(extent.kernels),
        Action::CloseKernelDetails if ui.kernels.open => ui.kernels.open = false,
        // With nothing to close, Esc leaves a replay, as on other panes.
        Action::CloseKernelDetails => return Some(Effect::Replay(ReplayCommand::Leave)),
        Action::PageKernels(by) => ui.kernels.page(by, extent.kernels),
        Action::StepTimelinePart(by) => ui.kernels.step_part(by, extent.kernels),
        Action::NextComparePart => ui.compare_part = ui.compare_part.next(),
    }
    None
}

fn show(ui: &mut UiState, pane: Pane) -> Option<Effect> {
    ui.pane = pane;
    (pane == Pane::Runs).then_some(Effect::Runs(RunsCommand::Refresh))
}

fn move_in_pane(ui: &mut UiState, by: isize, extent: Extent) {
    match ui.pane {
        Pane::Overview => {}
        Pane::Gpu => ui.reading = moved(ui.reading, by, extent.readings),
        Pane::Tokens => ui.incident = moved(ui.incident, by, extent.incidents),
        Pane::Kernels => ui.kernels.move_by(by, extent.kernels),
        Pane::Roofline => ui.point = moved(ui.point, by, extent.points),
        Pane::Runs => ui.run_selected = moved(ui.run_selected, by, extent.runs),
        // These count from the newest line: up means back.
        Pane::Compare => ui.jobs_back = moved(ui.jobs_back, -by, extent.jobs),
        Pane::Log => ui.log_back = moved(ui.log_back, -by, extent.log_lines),
    }
}

/// An index moved by `by`, within `len` items.
pub(super) fn moved(index: usize, by: isize, len: usize) -> usize {
    let last = len.saturating_sub(1);
    index.min(last).saturating_add_signed(by).min(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ui() -> UiState {
        UiState::new(ThemeName::Dark)
    }

    #[test]
    fn stepping_through_panes_wraps_around() {
        let mut ui = ui();
        let seen: Vec<Pane> = (0..Pane::ALL.len())
            .map(|_| {
                update(&mut ui, Action::StepPane(1), Extent::default());
                ui.pane
            })
            .collect();
        assert_eq!(ui.pane, Pane::Overview);
        assert!(Pane::ALL.iter().all(|p| seen.contains(p)));
        update(&mut ui, Action::StepPane(-1), Extent::default());
        assert_eq!(ui.pane, Pane::Log);
    }

    #[test]
    fn no_selection_moves_past_the_end() {
        let mut ui = ui();
        let extent = Extent {
            mode: Mode::Single,
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
            update(&mut ui, Action::Zoom(-1), extent);
        }
        assert_eq!(ui.span, SPANS_S.len() - 1);
        update(&mut ui, Action::Move(1), Extent::default());
        assert_eq!(moved(7, 1, 0), 0);
    }
}
