//! The gaps between tokens of both sides as two overlaid histograms.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::Style,
    text::{Line, Span as Text},
    widgets::Widget,
};

use super::Names;
use crate::{
    theme::Theme,
    widgets::{fit, note},
};
use llmprof_analysis::distribution::Counts;
use llmprof_base::units::{grouped, three_digits};

/// A and B in the same bins, as shares of each side.
pub struct ItlHistograms<'a> {
    pub theme: &'a Theme,
    pub names: &'a Names,
    pub itl: &'a [Counts; 2],
}

impl Widget for ItlHistograms<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let ItlHistograms { theme, itl, .. } = self;
        let legend = self.legend(area.width);
        let Some((from, to)) = range(itl) else {
            return note(theme, " ITL: too few values for histograms").render(area, buf);
        };
        let head = (legend.len() as u16).min(area.height);
        for (line, place) in legend.into_iter().zip(area.rows()) {
            line.render(place, buf);
        }
        let width = area.width.saturating_sub(2);
        let bin = bin_width(itl, width);
        let chart =
            Rect { x: area.x + 1, width: width - width % bin, y: area.y + head, height: area.height - head };
        if chart.height < 2 || chart.is_empty() {
            return;
        }
        let bars = Rect { height: chart.height - 1, ..chart };
        self.bars(bars, bin, (from, to), buf);
        self.axis(Rect { y: bars.bottom(), height: 1, ..chart }, (from, to), buf);
    }
}

impl ItlHistograms<'_> {
    /// The meaning of each colour, on one line if that fits, otherwise one line per side.
    fn legend<'l>(&self, width: u16) -> Vec<Line<'l>> {
        let theme = self.theme;
        let [a, b] = [0, 1].map(|side| self.side(side, width));
        let both =
            vec![Text::styled(swatch(theme, 2), both(theme)), Text::styled(" both".to_owned(), theme.dim)];
        let title = vec![Text::styled(" ITL, ms".to_owned(), theme.accent)];
        let wide = |parts: &[&Vec<Text<'_>>]| {
            parts.iter().map(|part| part.iter().map(Text::width).sum::<usize>() + 3).sum::<usize>()
        };
        if wide(&[&title, &a, &b, &both]) <= usize::from(width) + 3 {
            return vec![fit(theme, vec![title, a, b, both], width)];
        }
        vec![fit(theme, vec![title, both], width), indented(a), indented(b)]
    }

    /// Its swatch, name, number of values and median.
    fn side<'l>(&self, side: usize, width: u16) -> Vec<Text<'l>> {
        let theme = self.theme;
        let counts = &self.itl[side];
        let p50 =
            counts.percentile_ms(50.0).map_or_else(String::new, |ms| format!(", p50 {}", three_digits(ms)));
        let n = grouped(i64::try_from(counts.n()).unwrap_or(i64::MAX));
        let numbers = format!("  n {n}{p50}");
        let room = usize::from(width).saturating_sub(numbers.len() + 8).clamp(6, 24);
        let name = self.names.labelled(side, room, theme.glyphs);
        vec![
            Text::styled(swatch(theme, side), theme.sides()[side]),
            Text::styled(format!(" {name}"), theme.text),
            Text::styled(numbers, theme.dim),
        ]
    }

    /// Bars of `bin` cells each.
    fn bars(&self, area: Rect, bin: u16, (from, to): (f64, f64), buf: &mut Buffer) {
        let shares = self.itl.each_ref().map(|counts| {
            let n = counts.n().max(1) as f64;
            let bins = counts.bins_ms(from, to, usize::from(area.width / bin));
            bins.into_iter().map(|count| count as f64 / n).collect::<Vec<f64>>()
        });
        let most = shares.iter().flatten().copied().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
        let eighths = |share: f64| {
            // A square root makes the tail visible next to the peak.
            let height = ((share / most).sqrt() * f64::from(area.height) * 8.0).round() as usize;
            if share > 0.0 { height.max(1) } else { 0 }
        };
        for (i, column) in area.columns().enumerate() {
            let heights = shares.each_ref().map(|shares| eighths(shares[i / usize::from(bin)]));
            self.column(column, heights, buf);
        }
    }

    /// The common part of both bars, and the rest of the higher one.
    fn column(&self, column: Rect, [a, b]: [usize; 2], buf: &mut Buffer) {
        let theme = self.theme;
        let (low, high, higher) = if a > b { (b, a, 0) } else { (a, b, 1) };
        let style = theme.sides()[higher];
        for (k, place) in column.rows().rev().enumerate() {
            let of = |height: usize| height.saturating_sub(8 * k).min(8);
            let cell = &mut buf[place.as_position()];
            let bars = theme.glyphs.bars;
            match (of(low), of(high)) {
                (_, 0) => break,
                (common, all) if !theme.sides_differ() || theme.glyphs.ascii => {
                    let letter = if common >= 4 { swatch(theme, 2) } else { swatch(theme, higher) };
                    if all >= 4 || k == 0 {
                        cell.set_symbol(&letter).set_style(style);
                    }
                }
                (0, all) => {
                    cell.set_symbol(bars[all - 1]).set_style(style);
                }
                (common, 8) if common < 8 => {
                    let behind = style.fg.map_or_else(Style::new, |colour| Style::new().bg(colour));
                    cell.set_symbol(bars[common - 1]).set_style(both(theme).patch(behind));
                }
                // A cell has two colours: that of the larger part.
                (common, all) => {
                    let larger = if 2 * common >= all { both(theme) } else { style };
                    cell.set_symbol(bars[all - 1]).set_style(larger);
                }
            }
        }
    }

    /// The range of the bins, and the medians.
    fn axis(&self, area: Rect, (from, to): (f64, f64), buf: &mut Buffer) {
        let theme = self.theme;
        // Values above the range are in the last bin.
        let beyond = if self.itl.iter().filter_map(Counts::max_ms).any(|max| max > to) { "+" } else { "" };
        let (left, right) = (three_digits(from), format!("{}{beyond}", three_digits(to)));
        buf.set_string(area.x, area.y, &left, theme.dim);
        let start = area.right().saturating_sub(right.len() as u16).max(area.x);
        buf.set_string(start, area.y, &right, theme.dim);
        let up = if theme.glyphs.ascii { "^" } else { "▴" };
        let places = self.itl.each_ref().map(|counts| {
            let share = ((counts.percentile_ms(50.0)? - from) / (to - from)).clamp(0.0, 1.0);
            Some(area.x + (share * f64::from(area.width.saturating_sub(1))).round() as u16)
        });
        for (side, x) in places.iter().enumerate().filter_map(|(side, x)| Some((side, (*x)?))) {
            let style = if places[0] == places[1] { both(theme) } else { theme.sides()[side] };
            buf[(x, area.y)].set_symbol(up).set_style(style);
        }
    }
}

fn both(theme: &Theme) -> Style {
    theme.both_sides()
}

/// The sign of A, B or both in the legend.
fn swatch(theme: &Theme, of: usize) -> String {
    match theme.sides_differ() && !theme.glyphs.ascii {
        true => "█".to_owned(),
        false => ["A", "B", "#"][of].to_owned(),
    }
}

fn indented<'l>(mut spans: Vec<Text<'l>>) -> Line<'l> {
    spans.insert(0, Text::raw(" "));
    Line::from(spans)
}

/// From a little below the 1st percentiles to a little above the 99th, or the extremes of few values; `None` if a side
/// has too few values.
fn range(itl: &[Counts; 2]) -> Option<(f64, f64)> {
    if itl.iter().any(|counts| counts.n() < 2) {
        return None;
    }
    // Two tokens may arrive at once: one such gap would take half of the range.
    let low = itl.iter().filter_map(|counts| match counts.n() {
        100.. => counts.percentile_ms(1.0),
        _ => counts.min_ms(),
    });
    let from = low.fold(f64::INFINITY, f64::min);
    let high = itl.iter().filter_map(|counts| counts.percentile_ms(99.0).or(counts.max_ms()));
    let span = (high.fold(from, f64::max) - from).max(from * 0.02);
    Some(((from - 0.1 * span).max(0.0), from + 1.15 * span))
}

/// The number of cells of a bin: with few values, narrow bins would show noise.
fn bin_width(itl: &[Counts; 2], width: u16) -> u16 {
    let fewest = itl.iter().map(Counts::n).min().unwrap_or(0) as f64;
    let bins = (4.0 * fewest.sqrt()).max(1.0);
    ((f64::from(width) / bins).ceil() as u16).clamp(1, width.max(1))
}
