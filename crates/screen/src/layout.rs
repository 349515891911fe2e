//! The positions of the screen's parts, for both drawing and the mouse.

use std::{cell::RefCell, time::Duration};

use ratatui::layout::{Constraint, Layout, Position, Rect};
use unicode_width::UnicodeWidthStr;

use super::{
    frame::overlay,
    panes::runs,
    theme::Glyphs,
    ui::{Cursor, Overlay, Pane, Panes, SelectedToken, SortColumn},
    view::View,
    widgets::{ListLayout, TimeAxis},
};
use llmprof_base::units::clock;
use llmprof_event::Stamp;
use llmprof_record::rundir;

/// The screen as it is drawn.
#[derive(Debug, Clone, Default)]
pub struct ScreenLayout {
    pub header: Rect,
    /// The progress of a sweep, or the connection to a remote host; empty without them.
    pub sweep: Rect,
    pub body: Rect,
    pub transport: Option<TransportBar>,
    pub footer: Rect,
    pub tabs: Vec<(Pane, Rect)>,
    /// The number of empty panes without a tab, if there is room for it.
    pub empty_tabs: Option<(usize, Rect)>,
    /// The largest scroll of the open overlay.
    pub scroll_end: usize,
    /// The rows of the Runs pane, while that is shown.
    pub runs: Option<ListLayout>,
    /// The parts of the pane that can be clicked.
    pub hits: Vec<(Rect, Hit)>,
    /// Nothing below an overlay can be clicked.
    covered: bool,
}

/// The target of a click.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Target {
    Tab(Pane),
    /// A moment on the transport bar.
    Moment(Stamp),
    /// A row of the Runs pane.
    Run(usize),
    /// A moment in a chart.
    Cursor(Cursor),
    Token(SelectedToken),
    /// A row of the pane's list.
    Row(usize),
    /// The title of a column.
    Sort(SortColumn),
    /// The line between two parts of the pane.
    Splitter,
}

/// A part of a pane that reacts to the mouse.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Hit {
    /// Columns of time.
    Time(TimeAxis),
    /// One column per token; the first has the index `first`, of `n`.
    Tokens {
        first: u64,
        n: usize,
    },
    Row(usize),
    Sort(SortColumn),
    Splitter,
}

impl Hit {
    fn target(self, area: Rect, x: u16) -> Option<Target> {
        let column = x.saturating_sub(area.x);
        Some(match self {
            Hit::Time(axis) => Target::Cursor(Cursor { at: axis.moment(column, area.width), end: axis.to }),
            Hit::Tokens { first, n } if usize::from(column) < n => {
                let end = first + n as u64 - 1;
                Target::Token(SelectedToken { number: first + u64::from(column), end })
            }
            Hit::Tokens { .. } => return None,
            Hit::Row(row) => Target::Row(row),
            Hit::Sort(column) => Target::Sort(column),
            Hit::Splitter => Target::Splitter,
        })
    }
}

/// The parts of the pane that can be clicked. Drawing fills it, so that a click hits what is drawn.
#[derive(Debug, Default)]
pub struct Hits(RefCell<Vec<(Rect, Hit)>>);

impl Hits {
    pub fn add(&self, area: Rect, hit: Hit) {
        if !area.is_empty() {
            self.0.borrow_mut().push((area, hit));
        }
    }

    pub fn take(&self) -> Vec<(Rect, Hit)> {
        self.0.take()
    }
}

impl ScreenLayout {
    pub fn new(view: &View<'_>, area: Rect) -> ScreenLayout {
        let transport = u16::from(view.replay.is_some() && area.height > 5);
        let sweep = u16::from((view.sweep.is_some() || view.remote.is_some()) && area.height > 6);
        let [header, sweep, body, transport, footer] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(sweep),
            Constraint::Min(0),
            Constraint::Length(transport),
            Constraint::Length(1),
        ])
        .areas(area);
        let panes = view.panes();
        let tabs = tabs(panes, footer);
        ScreenLayout {
            header,
            sweep,
            body,
            transport: view
                .replay
                .filter(|_| !transport.is_empty())
                .map(|position| TransportBar::new(position, view.theme.glyphs, transport)),
            footer,
            empty_tabs: empty_tabs(panes, &tabs, footer),
            tabs,
            scroll_end: overlay::scroll_end(view, area),
            runs: (view.ui.pane == Pane::Runs).then(|| runs::list(view, body)),
            hits: Vec::new(),
            covered: !matches!(view.ui.overlay, Overlay::None),
        }
    }

    /// The target of a click at `position`.
    pub fn target(&self, position: Position) -> Option<Target> {
        if self.covered {
            return None;
        }
        let tab = self.tabs.iter().find(|(_, area)| area.contains(position));
        let moment = || self.transport.as_ref()?.moment_at(position);
        let run = || self.runs.as_ref()?.row_at(position);
        tab.map(|(pane, _)| Target::Tab(*pane))
            .or_else(|| moment().map(Target::Moment))
            .or_else(|| run().map(Target::Run))
            .or_else(|| self.hit(position))
    }

    /// The last one drawn there.
    fn hit(&self, position: Position) -> Option<Target> {
        let (area, hit) = self.hits.iter().rev().find(|(area, _)| area.contains(position))?;
        hit.target(*area, position.x)
    }

    /// The duration of a column of the charts, if there are any.
    pub fn column_ns(&self) -> Option<u64> {
        self.hits.iter().find_map(|(area, hit)| match hit {
            Hit::Time(axis) => Some(axis.column_ns(area.width)),
            _ => None,
        })
    }
}

/// The letters of a shortened name.
const SHORT_NAME: usize = 4;
/// The width of the key for help.
const HELP_WIDTH: u16 = 2;

/// The tabs in the footer, by name if there is room for all names beside help, else by shortened names, else by key.
fn tabs(panes: Panes, footer: Rect) -> Vec<(Pane, Rect)> {
    let padding = if footer.width >= 100 { 4 } else { 3 };
    let named = |most: usize, padding: u16| {
        panes.iter().map(|pane| pane.title().len().min(most) as u16 + padding).collect::<Vec<u16>>()
    };
    let fits = |widths: &Vec<u16>| widths.iter().sum::<u16>() + HELP_WIDTH <= footer.width;
    let by_key = || vec![3; panes.iter().count()];
    let widths =
        [named(usize::MAX, padding), named(SHORT_NAME, 3)].into_iter().find(fits).unwrap_or_else(by_key);
    let mut x = footer.x;
    panes
        .iter()
        .zip(widths)
        .map(|(pane, width)| {
            let area = Rect { x, width, height: 1, ..footer }.intersection(footer);
            x += width;
            (pane, area)
        })
        .collect()
}

/// After the tabs, if the keys for help and quit still fit.
fn empty_tabs(panes: Panes, tabs: &[(Pane, Rect)], footer: Rect) -> Option<(usize, Rect)> {
    let x = tabs.last().map_or(footer.x, |(_, area)| area.right());
    let width = EMPTY_TABS_WIDTH;
    let fits = footer.right().saturating_sub(x) >= width + 18;
    (panes.left_out() > 0 && fits).then(|| (panes.left_out(), Rect { x, width, ..footer }))
}

/// The width of ` +5 empty `, in cells.
const EMPTY_TABS_WIDTH: u16 = 10;

/// The bar of a replay: the moment, a track from start to end, the end and the speed.
#[derive(Debug, Clone, PartialEq)]
pub struct TransportBar {
    pub area: Rect,
    pub track: Rect,
    pub sign: &'static str,
    pub time: String,
    pub end: String,
    pub status: String,
    position: rundir::Position,
}

impl TransportBar {
    pub fn new(position: rundir::Position, glyphs: Glyphs, area: Rect) -> TransportBar {
        use rundir::Position as P;
        let status = match position {
            P { loading: true, .. } => "reading".to_owned(),
            P { following: true, cut_off: true, .. } if area.width < 60 => "cut off".to_owned(),
            P { following: true, cut_off: true, .. } => "cut off, no end recorded".to_owned(),
            P { following: true, playing: true, .. } => "following".to_owned(),
            P { speed, .. } => format!("{speed}{}", if glyphs.ascii { "x" } else { "×" }),
        };
        let time_of = |t: Stamp| clock(Duration::from_nanos(t.0));
        let end = time_of(position.end);
        // As wide as the end, so that the track does not move during playback.
        let time = format!("{:>1$}", time_of(position.at), end.len());
        let sign = if position.playing { glyphs.play } else { glyphs.pause };
        let left = (sign.width() + time.width() + 3) as u16;
        let right = (end.width() + status.width() + 4) as u16;
        let x = area.x + left.min(area.width);
        let track = Rect { x, width: area.width.saturating_sub(left + right), ..area };
        TransportBar { area, track, sign, time, end, status, position }
    }

    /// The column of the current moment, if there is room for a track.
    pub fn knob(&self) -> Option<u16> {
        let last = f64::from(self.track.width.checked_sub(1)?);
        let share = self.position.at.secs() / self.position.end.secs().max(1e-9);
        Some(self.track.x + (share.clamp(0.0, 1.0) * last).round() as u16)
    }

    /// The moment that a cell of the track represents.
    pub fn moment_at(&self, position: Position) -> Option<Stamp> {
        if !self.track.contains(position) {
            return None;
        }
        let last = u128::from(self.track.width.saturating_sub(1).max(1));
        let cell = u128::from(position.x - self.track.x);
        Some(Stamp((u128::from(self.position.end.0) * cell / last) as u64))
    }
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};

    use super::*;
    use crate::{
        frame::Frame,
        theme::{Depth, Theme},
        ui::UiState,
    };
    use llmprof_config::ThemeName;
    use llmprof_record::{rundir::SPEEDS, state::RunState};

    /// The screen of a replay, with the layout that the mouse uses.
    fn drawn(
        replay: rundir::Position,
        glyphs: Glyphs,
        (width, height): (u16, u16),
    ) -> (ScreenLayout, Vec<String>) {
        let (state, ui) = (RunState::default(), UiState::new(ThemeName::Dark));
        let theme = Theme::new(ui.theme, Depth::True, glyphs);
        let view = View { replay: Some(replay), ..View::new(&state, &ui, &theme) };
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let mut layout = ScreenLayout::default();
        terminal
            .draw(|frame| {
                layout = ScreenLayout::new(&view, frame.area());
                frame.render_widget(Frame(view), frame.area());
            })
            .unwrap();
        let buffer = terminal.backend().buffer();
        let row = (0..width).map(|x| buffer[(x, height - 2)].symbol().to_owned()).collect();
        (layout, row)
    }

    fn positions() -> Vec<rundir::Position> {
        let end = Stamp::from_secs_f64(123.4);
        let paused = rundir::Position {
            at: Stamp::from_secs_f64(41.0),
            end,
            playing: false,
            following: false,
            speed: 1.0,
            loading: false,
            cut_off: false,
        };
        let mut all: Vec<rundir::Position> = SPEEDS
            .into_iter()
            .flat_map(|speed| [true, false].map(|playing| rundir::Position { speed, playing, ..paused }))
            .collect();
        let following = rundir::Position { at: end, following: true, playing: true, ..paused };
        let long = Stamp::from_secs_f64(5000.0);
        all.extend([
            rundir::Position { loading: true, playing: true, ..paused },
            following,
            rundir::Position { cut_off: true, ..following },
            rundir::Position { end: long, ..paused },
        ]);
        all
    }

    #[test]
    fn a_click_on_the_track_gives_the_moment_that_the_cell_draws() {
        for glyphs in [Glyphs::UNICODE, Glyphs::ASCII] {
            for position in positions() {
                for width in 40..=200 {
                    let bar = TransportBar::new(position, glyphs, Rect::new(0, 22, width, 1));
                    for x in 0..width {
                        let Some(moment) = bar.moment_at(Position::new(x, 22)) else {
                            assert!(!bar.track.contains(Position::new(x, 22)));
                            continue;
                        };
                        let there = rundir::Position { at: moment, ..position };
                        let there = TransportBar::new(there, glyphs, bar.area);
                        assert_eq!(
                            (there.track, there.knob()),
                            (bar.track, Some(x)),
                            "{position:?} at {width}"
                        );
                    }
                    assert_eq!(bar.moment_at(Position::new(bar.track.x, 22)), Some(Stamp(0)));
                    assert_eq!(bar.moment_at(Position::new(bar.track.right() - 1, 22)), Some(position.end));
                }
            }
        }
    }

    #[test]
    fn the_track_is_drawn_where_it_can_be_clicked() {
        for glyphs in [Glyphs::UNICODE, Glyphs::ASCII] {
            for position in positions() {
                for width in [40, 63, 80, 119, 200] {
                    let (layout, row) = drawn(position, glyphs, (width, 24));
                    let bar = layout.transport.as_ref().unwrap();
                    let knob = bar.knob().unwrap();
                    for x in 0..width {
                        let hit = layout.target(Position::new(x, 22)).is_some();
                        assert_eq!(hit, bar.track.contains(Position::new(x, 22)));
                        let symbol = if x == knob { glyphs.knob } else { glyphs.line };
                        assert!(!hit || row[x as usize] == symbol, "{position:?} at {width}: {row:?}");
                    }
                    let row = row.concat();
                    let (sign, end) = (bar.sign, &bar.end);
                    assert!(row.starts_with(&format!(" {sign} {} ", bar.time)), "{row:?}");
                    assert!(row.ends_with(&format!(" {end}  {} ", bar.status)), "{row:?}");
                }
            }
        }
    }

    #[test]
    fn a_click_on_a_tab_shows_its_pane() {
        for width in [20, 24, 40, 79, 80, 99, 100, 200] {
            let area = Rect::new(0, 23, width, 1);
            let tabs = tabs(Panes::ALL, area);
            let layout = ScreenLayout { footer: area, tabs, ..ScreenLayout::default() };
            let hit: Vec<Pane> = (0..width)
                .filter_map(|x| match layout.target(Position::new(x, 23)) {
                    Some(Target::Tab(pane)) => Some(pane),
                    _ => None,
                })
                .collect();
            let order: Vec<Pane> = hit.chunk_by(|a, b| a == b).map(|same| same[0]).collect();
            assert_eq!(order, Pane::ALL[..order.len()], "{width}");
            assert!(width < 27 || order.len() == Pane::ALL.len(), "{width}");
        }
    }
}
