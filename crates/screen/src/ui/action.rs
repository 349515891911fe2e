//! Actions of keys and the mouse, and their effects on the state of the screen.

use std::path::PathBuf;

use super::{
    Cursor, KernelsExtent, Overlay, Palette, Pane, Panes, PromptKind, RunOrder, SPANS_S, STREAM_SPANS_S,
    SelectedToken, UiState,
};
use crate::keys::Mode;
use llmprof_config::ThemeName;
use llmprof_event::{Stamp, Tool, kernels::SortBy};
use llmprof_record::rundir::RunName;

/// An action of the user.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// An effect for the surrounding program.
    Do(Effect),
    Help,
    /// Choose an action by its name.
    Palette,
    Evidence,
    Show(Pane),
    /// The number of panes to move forward; negative for back.
    StepPane(isize),
    /// The Compare pane with the last two snapshots.
    ShowSnapshots,
    NextTheme,
    SetTheme(ThemeName),
    AskSnapshotName,
    AskFilter,
    Zoom(isize),
    /// The same for the streams of a server.
    ZoomStreams(isize),
    /// The number of columns of the charts to move forward.
    MoveCursor(i64),
    /// Closes the cursor, or the enlarged GPU.
    CloseCursor,
    Move(isize),
    /// By the next order.
    Sort,
    /// By the order of a column; the second time in reverse.
    SortBy(SortColumn),
    NextGpu,
    /// Enlarge the selected one of several GPUs.
    OpenGpu,
    /// The number of tokens to move back.
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
    /// Show the pane with the evidence of the selected row.
    RowEvidence,
}

/// A column whose title sorts its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SortColumn {
    Kernels(SortBy),
    Runs(RunOrder),
}

/// An effect that only the surrounding program can perform.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Asks first while something is in progress.
    Quit,
    /// Leave the screen without a question. A remote run continues, or is ended too.
    Leave {
        cancel: bool,
    },
    Interrupt,
    /// Stop the process, as Ctrl-Z does elsewhere.
    Suspend,
    /// Write the screen to files.
    Export,
    CompareSnapshots,
    Run(RunCommand),
    Replay(ReplayCommand),
    Runs(RunsCommand),
    Jobs(JobsCommand),
}

/// A command for the jobs of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobsCommand {
    /// Open the recording of the selected one.
    Open,
    AskCancel,
    /// Cancel all that have not ended.
    Cancel,
}

/// A command for the live run.
#[derive(Debug, Clone, PartialEq)]
pub enum RunCommand {
    ToggleView,
    TogglePause,
    ToggleKernels,
    Snapshot(String),
    /// Asks first while the run is in progress.
    AskRerun,
    Rerun,
    EditOverrides,
    /// A new run with these overrides.
    Start(String),
    RunUnder(Tool),
    EndJob,
    /// Reconnect to the remote host now.
    Reconnect,
}

/// A command for the playback of a recording.
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

/// A command for the list of recorded runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunsCommand {
    Refresh,
    /// Opens the selected run; folds or unfolds the selected group.
    Open,
    /// Folds the selected group; on a run, selects its group.
    Fold,
    Unfold,
    Mark,
    /// Open the report of the selected run in a browser.
    Report,
    AskDelete,
    Delete(PathBuf),
    AskName,
    /// The new name of the run.
    Rename(RunName),
    /// Compare the selected run with the marked one.
    Compare,
}

/// The limits of moving by keys in the panes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Extent {
    pub mode: Mode,
    /// The panes with content.
    pub panes: Panes,
    /// The number of kept tokens.
    pub tokens: usize,
    /// All tokens of the run.
    pub tokens_seen: u64,
    /// Tokens between the newest and the selected one.
    pub tokens_back: usize,
    pub now: Stamp,
    /// The duration of a column of the charts.
    pub column_ns: u64,
    /// Rows of the displayed pane.
    pub rows: usize,
    /// The pane with the evidence of the selected one.
    pub evidence: Option<Pane>,
    /// The time of the selected incident.
    pub incident_at: Option<Stamp>,
    pub gpus: usize,
    /// The selected one.
    pub gpu: usize,
    /// The selected row of the Runs pane.
    pub run: usize,
    pub snapshots: usize,
    /// The selected job of a sweep.
    pub job: usize,
    pub kernels: KernelsExtent,
}

/// Applies an action to the state of the screen. An action that the state cannot perform is returned as an effect.
pub fn update(ui: &mut UiState, action: Action, extent: Extent) -> Option<Effect> {
    ui.message = None;
    match action {
        Action::Do(effect) => return Some(effect),
        Action::Help => ui.overlay = Overlay::Help { scroll: 0 },
        Action::Palette => ui.overlay = Overlay::Palette(Palette::new(ui.pane, extent.mode)),
        Action::Evidence => ui.overlay = Overlay::Evidence { scroll: 0 },
        Action::Show(pane) if !extent.panes.has(pane) => {
            ui.message = Some(format!("{} is empty: {}", pane.title(), pane.spec().why_empty));
        }
        Action::Show(pane) => return show(ui, pane),
        Action::StepPane(by) => {
            let panes: Vec<Pane> = extent.panes.iter().collect();
            let at = panes.iter().position(|pane| *pane == ui.pane).unwrap_or(0) as isize;
            let next = panes.get((at + by).rem_euclid(panes.len().max(1) as isize) as usize);
            return show(ui, next.copied().unwrap_or(ui.pane));
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
        Action::SetTheme(theme) => ui.theme = theme,
        Action::AskSnapshotName => {
            ui.open_prompt(PromptKind::SnapshotName, format!("snap-{}", extent.snapshots + 1));
        }
        Action::AskFilter => ui.open_prompt(PromptKind::Filter(ui.pane), String::new()),
        Action::Zoom(by) if ui.pane == Pane::Kernels => ui.kernels.zoom_by(by, extent.kernels),
        Action::Zoom(by) => ui.span = moved(ui.span, -by, SPANS_S.len()),
        Action::ZoomStreams(by) => {
            let most = STREAM_SPANS_S.len() as isize;
            ui.stream_zoom = (ui.stream_zoom + by).clamp(-most, most);
        }
        Action::MoveCursor(by) => {
            let Extent { now, column_ns, .. } = extent;
            let cursor = ui.cursor.filter(|cursor| cursor.at <= now).unwrap_or(Cursor { at: now, end: now });
            let at = Stamp(cursor.at.0.saturating_add_signed(by * column_ns as i64));
            set_cursor(ui, (at < now).then_some(Cursor { at, ..cursor }));
        }
        Action::CloseCursor if ui.cursor.is_some() => set_cursor(ui, None),
        Action::CloseCursor if ui.pane == Pane::Gpu && ui.gpu_open => ui.gpu_open = false,
        // If there is nothing to close, Esc leaves a replay, as on other panes.
        Action::CloseCursor => return Some(Effect::Replay(ReplayCommand::Leave)),
        Action::Move(by) => (ui.pane.spec().select)(ui, by, extent),
        Action::Sort if ui.pane == Pane::Kernels => ui.kernels.next_sort(),
        Action::Sort => ui.runs.next_order(),
        Action::SortBy(SortColumn::Kernels(by)) => ui.kernels.sort_by(by),
        Action::SortBy(SortColumn::Runs(order)) => ui.runs.order_by(order),
        Action::NextGpu => {
            let next = ui.gpu.map_or(0, |gpu| gpu + 1);
            ui.gpu = (next < extent.gpus).then_some(next);
        }
        Action::OpenGpu if extent.gpus > 1 => (ui.gpu, ui.gpu_open) = (Some(extent.gpu), true),
        Action::OpenGpu => {}
        Action::Scrub(back) => {
            let newest = extent.tokens_seen.saturating_sub(1);
            let oldest = extent.tokens_seen.saturating_sub(extent.tokens as u64);
            let selected = newest.saturating_sub(extent.tokens_back as u64);
            let number = selected.saturating_add_signed(-back).clamp(oldest, newest);
            let end = ui.token.map_or(newest, |token| token.end);
            ui.token = (number < newest).then_some(SelectedToken { number, end });
            (ui.cursor, ui.incident_open) = (None, None);
        }
        Action::FollowTokens => (ui.token, ui.cursor, ui.incident_open) = (None, None, None),
        Action::ToggleIncident => {
            let incident = ui.row_mut(Pane::Tokens);
            *incident = moved(*incident, 0, extent.rows);
            ui.incident_open = if ui.incident_open.is_some() { None } else { extent.incident_at };
            ui.token = None;
        }
        Action::StepKernelSource(by) => ui.kernels.step_source(by, extent.kernels),
        Action::GroupKernels => ui.kernels.next_group(extent.kernels),
        Action::ToggleKernelDetails => ui.kernels.toggle_open(extent.kernels),
        Action::CloseKernelDetails if ui.kernels.open => ui.kernels.open = false,
        // If there is nothing to close, Esc leaves a replay, as on other panes.
        Action::CloseKernelDetails => return Some(Effect::Replay(ReplayCommand::Leave)),
        Action::PageKernels(by) => ui.kernels.page(by, extent.kernels),
        Action::StepTimelinePart(by) => ui.kernels.step_part(by, extent.kernels),
        Action::NextComparePart => ui.compare_part = ui.compare_part.next(),
        Action::RowEvidence => {
            return update(ui, Action::Show(extent.evidence?), extent);
        }
    }
    None
}

/// The cursor also selects its token.
pub fn set_cursor(ui: &mut UiState, cursor: Option<Cursor>) {
    (ui.cursor, ui.token, ui.incident_open) = (cursor, None, None);
}

fn show(ui: &mut UiState, pane: Pane) -> Option<Effect> {
    ui.pane = pane;
    (pane == Pane::Runs).then_some(Effect::Runs(RunsCommand::Refresh))
}

/// An index moved by `by`, within `len` items.
pub fn moved(index: usize, by: isize, len: usize) -> usize {
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
        assert_eq!(ui.pane, Pane::Lines);
    }

    #[test]
    fn one_of_several_gpus_is_opened_and_closed() {
        let mut ui = UiState { pane: Pane::Gpu, ..ui() };
        let several =
            |ui: &UiState| Extent { gpus: 3, gpu: ui.gpu.unwrap_or(1), rows: 11, ..Extent::default() };
        let mut press = |action: Action| {
            let extent = several(&ui);
            let effect = update(&mut ui, action, extent);
            (ui.gpu, ui.gpu_open, ui.row(Pane::Gpu), effect)
        };
        assert_eq!(press(Action::Move(1)), (Some(2), false, 0, None));
        assert_eq!(press(Action::Move(-9)), (Some(0), false, 0, None));
        assert_eq!(press(Action::OpenGpu), (Some(0), true, 0, None));
        assert_eq!(press(Action::Move(2)), (Some(0), true, 2, None), "now the readings are selected");
        assert_eq!(press(Action::CloseCursor), (Some(0), false, 2, None));
        assert_eq!(press(Action::CloseCursor).3, Some(Effect::Replay(ReplayCommand::Leave)));
        let mut alone = UiState { pane: Pane::Gpu, ..UiState::new(ThemeName::Dark) };
        update(&mut alone, Action::OpenGpu, Extent { gpus: 1, ..Extent::default() });
        assert!(!alone.gpu_open);
    }

    #[test]
    fn empty_panes_are_left_out() {
        let mut ui = ui();
        let shown = [Pane::Gpu, Pane::Runs, Pane::Log];
        let extent = Extent { panes: Panes::those(|pane| shown.contains(&pane)), ..Extent::default() };
        ui.pane = Pane::Gpu;
        for next in [Pane::Runs, Pane::Log, Pane::Gpu] {
            update(&mut ui, Action::StepPane(1), extent);
            assert_eq!(ui.pane, next);
        }
        update(&mut ui, Action::Show(Pane::Tokens), extent);
        assert_eq!(
            (ui.pane, ui.message.as_deref()),
            (Pane::Gpu, Some("Tokens is empty: no tokens in this run"))
        );
    }

    #[test]
    fn no_selection_moves_past_the_end() {
        let mut ui = ui();
        let extent = Extent {
            mode: Mode::Single,
            panes: Panes::ALL,
            tokens: 10,
            tokens_seen: 100,
            tokens_back: 0,
            now: Stamp(1_000),
            column_ns: 10,
            rows: 4,
            evidence: None,
            incident_at: None,
            gpus: 1,
            gpu: 0,
            run: 0,
            snapshots: 0,
            job: 0,
            kernels: KernelsExtent::default(),
        };
        for (pane, action) in [
            (Pane::Runs, Action::Move(100)),
            (Pane::Log, Action::Move(-100)),
            (Pane::Compare, Action::Move(100)),
            (Pane::Roofline, Action::Move(100)),
            (Pane::Server, Action::Move(100)),
            (Pane::Tokens, Action::Scrub(100)),
        ] {
            ui.pane = pane;
            update(&mut ui, action, extent);
        }
        assert_eq!((ui.runs.row, ui.row(Pane::Log), ui.job), (Some(3), 3, Some(3)));
        assert_eq!(ui.token, Some(SelectedToken { number: 90, end: 99 }));
        assert_eq!((ui.row(Pane::Roofline), ui.row(Pane::Server)), (3, 3));
        update(&mut ui, Action::Scrub(-1000), Extent { tokens_back: 9, ..extent });
        assert_eq!(ui.token, None);
        for _ in 0..20 {
            update(&mut ui, Action::Zoom(-1), extent);
        }
        assert_eq!(ui.span, SPANS_S.len() - 1);
        update(&mut ui, Action::Move(1), Extent::default());
        assert_eq!(moved(7, 1, 0), 0);
    }

    #[test]
    fn the_cursor_starts_at_now_stops_at_the_start_and_follows_again_at_the_end() {
        let mut ui = ui();
        let extent = Extent { now: Stamp(100), column_ns: 10, ..Extent::default() };
        let mut moved_to = |action| {
            update(&mut ui, action, extent);
            ui.cursor.map(|cursor| cursor.at)
        };
        assert_eq!(moved_to(Action::MoveCursor(-1)), Some(Stamp(90)));
        assert_eq!(moved_to(Action::MoveCursor(-20)), Some(Stamp(0)));
        assert_eq!(moved_to(Action::MoveCursor(3)), Some(Stamp(30)));
        assert_eq!(moved_to(Action::MoveCursor(7)), None);
        assert_eq!(moved_to(Action::MoveCursor(1)), None);
        assert_eq!(moved_to(Action::MoveCursor(-2)), Some(Stamp(80)));
        assert_eq!(update(&mut ui, Action::CloseCursor, extent), None);
        assert_eq!(ui.cursor, None);
        assert_eq!(update(&mut ui, Action::CloseCursor, extent), Some(Effect::Replay(ReplayCommand::Leave)));
    }
}
