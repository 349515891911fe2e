//! Compare: two snapshots or runs with a verdict; in a sweep, its jobs.

mod data;
mod itl;
mod operators;
mod snapshots;
mod verdict;

use crate::{
    pane::Spec,
    panes::jobs,
    theme::{Glyphs, Theme},
    ui::{ComparePart, moved},
    view::{SweepView, View},
    widgets::{cut_start, draw_box, draw_note, note},
};
use crossterm::event::KeyCode;
use std::borrow::Cow;

use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    text::Line,
    widgets::Widget,
};

use self::{itl::ItlHistograms, operators::Operators, verdict::UnjudgedRow};
use llmprof_analysis::{
    compare::{Comparison, MetricComparison, Side, Waterfall, waterfall},
    distribution::Counts,
};
use llmprof_base::units::ratio_change;
use llmprof_record::state::Snapshot;

pub struct ComparePane<'a>(pub View<'a>);

pub const PANE: Spec = Spec {
    title: "Compare",
    keys: &[KeyCode::Char('6')],
    help: "Compare: two snapshots or runs with a verdict; a sweep",
    is_special: false,
    why_empty: "no snapshots; mark a run on Runs to compare it with another",
    has_content: |view, state| {
        let snapshots = !view.snapshots.is_empty() || !state.snapshots.is_empty();
        snapshots || view.comparison.is_some() || view.sweep.is_some()
    },
    draw: |view, area, buf| ComparePane(view).render(area, buf),
    table: data::compared,
    select: |ui, by, extent| {
        if extent.rows > 0 {
            ui.job = Some(moved(extent.job, by, extent.rows));
        }
    },
    rows: |view| view.sweep.map_or(0, |view| view.sweep.jobs.len()),
    ..Spec::EMPTY
};

/// A row of the table: name, unit, and the value in a snapshot.
pub type SnapshotMetric = (&'static str, &'static str, fn(&Snapshot) -> Option<f64>);

pub const ROWS: [SnapshotMetric; 14] = [
    ("decode", "tok/s", |s| s.metrics.decode_tok_s),
    ("prefill", "tok/s", |s| s.metrics.prefill_tok_s),
    ("TTFT mean", "ms", |s| s.metrics.ttft_ms.mean),
    ("TTFT p90", "ms", |s| s.metrics.ttft_ms.p90),
    ("TPOT mean", "ms", |s| s.metrics.tpot_ms.mean),
    ("TPOT p90", "ms", |s| s.metrics.tpot_ms.p90),
    ("ITL mean", "ms", |s| s.metrics.itl_ms.mean),
    ("ITL p50", "ms", |s| s.metrics.itl_ms.p50),
    ("ITL p90", "ms", |s| s.metrics.itl_ms.p90),
    ("ITL p99", "ms", |s| s.metrics.itl_ms.p99),
    ("ITL max", "ms", |s| s.metrics.itl_ms.max),
    ("power", "W", |s| s.power_w.map(f64::from)),
    ("SM clock", "MHz", |s| s.sm_clock_mhz.map(f64::from)),
    ("temperature", CELSIUS, |s| s.temp_c.map(f64::from)),
];

const CELSIUS: &str = "°C";

/// From this width on, the charts are next to the table.
const SIDE_BY_SIDE: u16 = 156;
/// The width of the table in that case: that of all its columns.
const TABLE: u16 = 118;
/// The minimum height of a chart.
const CHART: u16 = 9;
/// A higher histogram shows nothing more.
const TALL_CHART: u16 = 20;
/// From this width on, two charts are next to each other.
const TWO_CHARTS: u16 = 100;

impl Widget for ComparePane<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let view = &self.0;
        let theme = view.theme;
        let nothing_else = view.snapshots.is_empty() && view.comparison.is_none();
        let area = match view.sweep.filter(|_| view.replay.is_none()) {
            None => area,
            Some(SweepView { sweep, .. }) if nothing_else || area.height < 12 => {
                return jobs::Jobs { view, sweep }.render(area, buf);
            }
            Some(SweepView { sweep, .. }) => {
                // A row per job and the selected one as text, in at most half of the pane.
                let wanted = (sweep.jobs.len() + 5).min(usize::from(area.height / 2)) as u16;
                let [above, below] =
                    Layout::vertical([Constraint::Length(wanted), Constraint::Min(0)]).areas(area);
                jobs::Jobs { view, sweep }.render(above, buf);
                below
            }
        };
        let aside = match view.comparison {
            _ if area.width < 50 => "",
            Some(_) => "95 % confidence intervals",
            None => "differences, no verdict",
        };
        let title = match view.ui.compare_part {
            ComparePart::All => "compare".to_owned(),
            part => format!("compare · {}", part.name()),
        };
        let inner = draw_box(theme, (&title, aside), area, buf);
        match Compared::from_view(view) {
            Some(compared) => compared.draw(view.ui.compare_part, inner, buf),
            None => {
                let text = if view.replay.is_some() {
                    "No snapshots up to this moment."
                } else {
                    "No snapshot yet. Press s to save what was measured so far, change something, and press s again: \
                     the two snapshots are compared here."
                };
                draw_note(theme, text, inner, buf);
            }
        }
    }
}

/// The last two snapshots, or the only one and the time since then; `None` without any.
pub fn side_by_side<'a>(view: &View<'a>) -> Option<(Cow<'a, Snapshot>, Cow<'a, Snapshot>)> {
    match view.snapshots {
        [] => None,
        [only] => Some((Cow::Borrowed(only), Cow::Owned(view.state.window_snapshot("since then")))),
        [.., a, b] => Some((Cow::Borrowed(a), Cow::Borrowed(b))),
    }
}

/// The numbers of snapshots without a verdict: the maximum ITL, the GPU, and metrics with too few samples.
pub fn unjudged_rows(view: &View<'_>, comparison: &Comparison) -> Vec<UnjudgedRow> {
    let [.., a, b] = view.snapshots else { return Vec::new() };
    if (&a.name, &b.name) != (&comparison.a.name, &comparison.b.name) {
        return Vec::new();
    }
    let judged = |name: &str| {
        let both = |row: &MetricComparison| row.label == name && row.a.is_some() && row.b.is_some();
        comparison.rows.iter().any(both)
    };
    let rows = ROWS.iter().filter(|(name, ..)| !judged(name));
    rows.map(|(name, unit, value)| UnjudgedRow { name, unit, a: value(a), b: value(b) }).collect()
}

/// B relative to A: in percent, temperatures in degrees. `None` if a side is not known, or if A is zero.
fn change(unit: &str, a: Option<f64>, b: Option<f64>) -> Option<String> {
    let (a, b) = a.zip(b)?;
    match unit {
        // The zero of the scale is arbitrary, so a percentage would be meaningless.
        CELSIUS => {
            let degrees = b - a;
            Some(match degrees.abs() {
                size if size < 0.05 => format!("0 {CELSIUS}"),
                size if size < 9.95 => format!("{degrees:+.1} {CELSIUS}"),
                _ => format!("{degrees:+.0} {CELSIUS}"),
            })
        }
        _ => (a != 0.0).then(|| ratio_change(b / a)),
    }
}

/// The short names of both sides.
pub struct Names([String; 2]);

impl Names {
    /// `A before` in at most `width` cells. The end of a long name is kept: runs are named by their time.
    fn labelled(&self, side: usize, width: usize, glyphs: Glyphs) -> String {
        let name = cut_start(&glyphs.plain(&self.0[side]), width.saturating_sub(2), glyphs.ascii);
        format!("{} {name}", ["A", "B"][side])
    }
}

/// The last part of a run's path, or a snapshot's name.
fn short(side: &Side) -> String {
    side.name.rsplit('/').next().unwrap_or_default().to_owned()
}

/// The comparison, with a verdict or without one.
struct Compared<'v> {
    theme: &'v Theme,
    of: Numbers<'v>,
    names: Names,
    itl: Option<Cow<'v, [Counts; 2]>>,
    waterfall: Option<Cow<'v, Waterfall>>,
}

enum Numbers<'v> {
    Judged { comparison: &'v Comparison, unjudged: Vec<UnjudgedRow> },
    Plain(Box<[Cow<'v, Snapshot>; 2]>),
}

impl<'v> Compared<'v> {
    fn from_view(view: &View<'v>) -> Option<Compared<'v>> {
        let theme = view.theme;
        if let Some(comparison) = view.comparison {
            return Some(Compared {
                theme,
                of: Numbers::Judged { comparison, unjudged: unjudged_rows(view, comparison) },
                names: Names([&comparison.a, &comparison.b].map(short)),
                itl: comparison.itl.as_ref().map(Cow::Borrowed),
                waterfall: comparison.waterfall.as_ref().map(Cow::Borrowed),
            });
        }
        let (a, b) = side_by_side(view)?;
        let both = a.sample.as_ref().zip(b.sample.as_ref());
        let itl = both.and_then(|(a, b)| Some([a.itl.clone()?, b.itl.clone()?]));
        let waterfall = both.and_then(|(a, b)| waterfall(a, b));
        Some(Compared {
            theme,
            names: Names([a.name.clone(), b.name.clone()]),
            itl: itl.map(Cow::Owned),
            waterfall: waterfall.map(Cow::Owned),
            of: Numbers::Plain(Box::new([a, b])),
        })
    }

    fn draw(&self, part: ComparePart, area: Rect, buf: &mut Buffer) {
        match part {
            ComparePart::All if area.width >= SIDE_BY_SIDE && area.height >= 2 * CHART => {
                let [left, right] = Layout::horizontal([Constraint::Length(TABLE), Constraint::Min(0)])
                    .spacing(2)
                    .areas(area);
                self.text(left, &[], buf);
                let height = ((right.height - 1) / 2).min(TALL_CHART);
                let upper = Rect { height, ..right };
                let lower = Rect { y: right.y + height + 1, height: right.height - height - 1, ..right };
                self.charts([upper, lower], upper, buf);
            }
            ComparePart::All => self.stacked(area, buf),
            ComparePart::Itl => self.histograms(area, buf),
            ComparePart::Operators => self.operators(area, buf),
            ComparePart::Notes => draw_lines(self.notes(area.width).concat(), area, buf),
        }
    }

    /// The text above, the charts below if they fit.
    fn stacked(&self, area: Rect, buf: &mut Buffer) {
        let (numbers, notes) =
            (self.numbers(area.width).len() as u16, self.notes(area.width).concat().len() as u16);
        let left = area.height.saturating_sub(numbers + 1);
        if left < CHART {
            return self.text(area, &[ComparePart::Itl, ComparePart::Operators], buf);
        }
        // All of the notes if both fit, otherwise as many as leave a small chart.
        let height = left.saturating_sub(notes + 1).max(CHART);
        let [above, below] =
            Layout::vertical([Constraint::Min(0), Constraint::Length(height)]).spacing(1).areas(area);
        if area.width >= TWO_CHARTS {
            self.text(above, &[], buf);
            let halves = Layout::horizontal([Constraint::Fill(1); 2]).spacing(1).areas(below);
            return self.charts(halves, below, buf);
        }
        self.text(above, &[ComparePart::Operators], buf);
        self.histograms(below, buf);
    }

    /// Both charts in their parts of the area, or one in the whole area.
    fn charts(&self, [first, second]: [Rect; 2], all: Rect, buf: &mut Buffer) {
        if self.waterfall.is_none() {
            return self.histograms(all, buf);
        }
        self.histograms(first, buf);
        self.operators(second, buf);
    }

    /// Numbers and as many of the notes as fit; the last line names the omitted parts, including `hidden`.
    fn text(&self, area: Rect, hidden: &[ComparePart], buf: &mut Buffer) {
        let mut lines = self.numbers(area.width);
        let height = area.height as usize;
        let mut hidden = hidden.to_vec();
        let notes = self.notes(area.width);
        let wanted = lines.len() + 1 + notes.iter().map(Vec::len).sum::<usize>();
        if wanted + usize::from(!hidden.is_empty()) > height {
            hidden.push(ComparePart::Notes);
        }
        // Complete sentences only.
        let mut room = height.saturating_sub(lines.len() + 1 + usize::from(!hidden.is_empty()));
        lines.push(Line::default());
        for note in notes {
            let Some(rest) = room.checked_sub(note.len()) else { break };
            room = rest;
            lines.extend(note);
        }
        if hidden.is_empty() || height < 8 {
            return draw_lines(lines, area, buf);
        }
        let [above, below] = Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(area);
        draw_lines(lines, above, buf);
        let names: Vec<&str> = hidden.iter().map(|part| part.name()).collect();
        note(self.theme, &format!(" m shows {}", names.join(", then "))).render(below, buf);
    }

    fn numbers<'l>(&self, width: u16) -> Vec<Line<'l>> {
        match &self.of {
            Numbers::Judged { comparison, unjudged } => {
                verdict::numbers(self.theme, comparison, unjudged, &self.names, width)
            }
            Numbers::Plain(sides) => snapshots::table(self.theme, &sides[0], &sides[1], width),
        }
    }

    /// The notes in paragraphs.
    fn notes<'l>(&self, width: u16) -> Vec<Vec<Line<'l>>> {
        let mut notes = match &self.of {
            Numbers::Judged { comparison, .. } => verdict::notes(self.theme, comparison, width),
            Numbers::Plain(sides) => snapshots::notes(self.theme, &sides[0], &sides[1], width),
        };
        if self.waterfall.is_none() {
            notes.push(operators::none(self.theme, width));
        }
        notes
    }

    fn histograms(&self, area: Rect, buf: &mut Buffer) {
        let Compared { theme, names, .. } = self;
        match &self.itl {
            Some(itl) => ItlHistograms { theme, names, itl }.render(area, buf),
            None => note(theme, " No ITL of both sides: no token after a first one was measured.")
                .render(area, buf),
        }
    }

    fn operators(&self, area: Rect, buf: &mut Buffer) {
        Operators { theme: self.theme, waterfall: self.waterfall.as_deref() }.render(area, buf);
    }
}

fn draw_lines(lines: Vec<Line<'_>>, area: Rect, buf: &mut Buffer) {
    for (line, place) in lines.into_iter().zip(area.rows()) {
        line.render(place, buf);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_long_name_is_kept() {
        let names = Names(["before".into(), "2026-11-16_06-22-03".into()]);
        for (side, width, wanted) in
            [(0, 13, "A before"), (1, 13, "B …6_06-22-03"), (1, 21, "B 2026-11-16_06-22-03"), (1, 3, "B …")]
        {
            assert_eq!(names.labelled(side, width, Glyphs::UNICODE), wanted);
        }
        assert_eq!(names.labelled(1, 13, Glyphs::ASCII), "B ...06-22-03");
    }

    #[test]
    fn temperatures_differ_by_degrees_and_other_numbers_by_percent() {
        for (unit, a, b, wanted) in [
            ("°C", Some(40.0), Some(44.0), Some("+4.0 °C")),
            ("°C", Some(0.0), Some(-13.6), Some("-14 °C")),
            ("°C", Some(61.0), Some(61.0), Some("0 °C")),
            ("W", Some(400.0), Some(440.0), Some("+10 %")),
            ("W", Some(0.0), Some(440.0), None),
            ("W", None, Some(440.0), None),
        ] {
            assert_eq!(change(unit, a, b).as_deref(), wanted, "{a:?} {b:?} {unit}");
        }
    }
}
