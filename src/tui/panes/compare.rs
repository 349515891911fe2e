//! Compare: two snapshots or runs with a verdict; in a sweep, its jobs.

use std::borrow::Cow;

use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::{Line, Span as Text},
    widgets::{Paragraph, Widget, Wrap},
};

use super::verdict::{UnjudgedRow, verdict};
use crate::{
    analysis::compare::{Comparison, Row as Judged},
    base::units::{grouped, ratio_change, three_digits},
    state::Snapshot,
    tui::{
        panes::jobs,
        view::{SweepView, View},
        widgets::{draw_box, note},
    },
};

pub struct ComparePane<'a>(pub View<'a>);

/// A line of the table: name, unit, and the value in a snapshot.
pub type Row = (&'static str, &'static str, fn(&Snapshot) -> Option<f64>);

pub const ROWS: [Row; 14] = [
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
    ("temperature", "°C", |s| s.temp_c.map(f64::from)),
];

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
                // A row for each job, in at most half of the pane.
                let wanted = (sweep.jobs.len() + 3).min(usize::from(area.height / 2)) as u16;
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
        let inner = draw_box(theme, ("compare", aside), area, buf);
        if let Some(comparison) = view.comparison {
            let lines = verdict(theme, comparison, &unjudged_rows(view, comparison), inner);
            return Paragraph::new(lines).wrap(Wrap { trim: false }).render(inner, buf);
        }
        let Some((a, b)) = side_by_side(view) else {
            let text = if view.replay.is_some() {
                "No snapshots up to this moment."
            } else {
                "No snapshot yet. Press s to save what was measured so far, change something, and press s again: \
                 the two snapshots are compared here."
            };
            return Paragraph::new(note(theme, text)).wrap(Wrap { trim: true }).render(inner, buf);
        };
        Paragraph::new(table(view, &a, &b, inner)).wrap(Wrap { trim: false }).render(inner, buf);
    }
}

/// The last two snapshots, or the only one and the time since; `None` without any.
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
        let both = |row: &Judged| row.label == name && row.a.is_some() && row.b.is_some();
        comparison.rows.iter().any(both)
    };
    let rows = ROWS.iter().filter(|(name, ..)| !judged(name));
    rows.map(|(name, unit, value)| UnjudgedRow { name, unit, a: value(a), b: value(b) }).collect()
}

fn table<'a>(view: &View<'_>, a: &Snapshot, b: &Snapshot, area: Rect) -> Vec<Line<'a>> {
    let theme = view.theme;
    let unit_width = if area.width >= 50 { 6 } else { 0 };
    let name_width = if area.width >= 50 { 13 } else { 9 };
    let wide = (usize::from(area.width).saturating_sub(name_width + unit_width + 2) / 3).clamp(6, 20);
    let cut = |name: &str| name.chars().take(wide - 1).collect::<String>();
    let row = |name: &str, unit: &str, cells: [String; 3], styles: [Style; 3]| {
        let unit = theme.glyphs.plain(unit).chars().take(unit_width).collect::<String>();
        let mut line = vec![
            Text::styled(
                format!(" {:<name_width$}", name.chars().take(name_width).collect::<String>()),
                theme.text,
            ),
            Text::styled(format!("{unit:<unit_width$}"), theme.dim),
        ];
        line.extend(
            cells.into_iter().zip(styles).map(|(cell, style)| Text::styled(format!("{cell:>wide$}"), style)),
        );
        Line::from(line)
    };
    let heading = [cut(&a.name), cut(&b.name), cut(if wide > 11 { "difference" } else { "diff" })];
    let mut lines = vec![row("", "", heading, [theme.accent, theme.accent, theme.dim])];
    let cell = |v: Option<f64>| v.map_or_else(|| theme.glyphs.none.to_owned(), three_digits);
    for (name, unit, value) in ROWS {
        let (x, y) = (value(a), value(b));
        if x.is_none() && y.is_none() {
            continue;
        }
        let difference = match (x, y) {
            (Some(x), Some(y)) if x != 0.0 => match wide {
                ..9 => ratio_change(y / x).replace(' ', ""),
                _ => ratio_change(y / x),
            },
            _ => theme.glyphs.none.to_owned(),
        };
        lines.push(row(name, unit, [cell(x), cell(y), difference], [theme.text, theme.text, theme.number]));
    }
    let counts = |snapshot: &Snapshot| {
        let metrics = &snapshot.metrics;
        [
            three_digits(metrics.to_s - metrics.from_s),
            grouped(metrics.requests as i64),
            grouped(metrics.output_tokens as i64),
        ]
    };
    let titles = [("duration", "s"), ("requests", "n"), ("tokens", "n")];
    for ((name, unit), (of_a, of_b)) in titles.into_iter().zip(counts(a).into_iter().zip(counts(b))) {
        lines.push(row(name, unit, [of_a, of_b, String::new()], [theme.dim; 3]));
    }
    lines.push(Line::default());
    for snapshot in [a, b] {
        let overrides =
            if snapshot.overrides.is_empty() { "no overrides".into() } else { snapshot.overrides.join(" ") };
        lines.push(note(theme, &format!(" {}: {}, {overrides}", snapshot.name, snapshot.model)));
    }
    lines
}
