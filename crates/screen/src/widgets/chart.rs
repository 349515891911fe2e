//! Values over time as a filled area, with its limit, its median, ticks and a time axis.

use ratatui::{
    buffer::{Buffer, Cell},
    layout::Rect,
    style::Style,
    text::Line,
    widgets::Widget,
};

use crate::theme::{Glyphs, Ramp, Resolution, Theme};
use llmprof_base::units::three_digits;
use llmprof_config::ChartStyle;
use llmprof_event::Stamp;
use llmprof_record::state::Bucket;

/// The values of half a cell: the extremes and the mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    pub low: f32,
    pub high: f32,
    pub mid: f32,
}

impl Span {
    /// A single value.
    pub fn flat(value: f32) -> Span {
        Span { low: value, high: value, mid: value }
    }
}

/// Buckets as spans.
pub fn spans(buckets: &[Option<Bucket>]) -> Vec<Option<Span>> {
    buckets.iter().map(|b| b.map(|b| Span { low: b.min, high: b.max, mid: b.mean() })).collect()
}

/// A filled area between the bottom of the range and the values. Columns without a value stay empty.
pub struct Chart<'a> {
    /// Two per cell.
    pub columns: &'a [Option<Span>],
    pub range: (f32, f32),
    pub ramp: Ramp,
    /// A line across the chart, e.g. the power limit or the maximum clock.
    pub limit: Option<f32>,
    /// A dashed line across.
    pub median: Option<f32>,
    /// Whether values are at the left, with a line behind the chart for each.
    pub ticks: bool,
    pub theme: &'a Theme,
}

/// Cells left of a chart for its ticks.
pub const TICKS: u16 = 7;
/// A lower chart has no row to spare for the line of its limit.
const MIN_ROWS_FOR_A_LIMIT: u16 = 3;

impl<'a> Chart<'a> {
    pub fn new(theme: &'a Theme, columns: &'a [Option<Span>], range: (f32, f32), style: Style) -> Chart<'a> {
        let ramp = theme.shades(style);
        Chart { columns, range, ramp, limit: None, median: None, ticks: false, theme }
    }

    /// The cells of `area` that hold values.
    pub fn cells(area: Rect, ticks: bool) -> Rect {
        let left = if ticks { TICKS.min(area.width) } else { 0 };
        Rect { x: area.x + left, width: area.width - left, ..area }
    }

    /// The range with one row above the limit, which holds its line.
    fn range_with_limit(&self, rows: u16) -> (f32, f32) {
        let (bottom, top) = self.range;
        match self.limit.filter(|limit| *limit > bottom && rows >= MIN_ROWS_FOR_A_LIMIT) {
            Some(limit) if top <= limit * 1.001 => {
                (bottom, bottom + (limit - bottom) * f32::from(rows) / f32::from(rows - 1))
            }
            _ => (bottom, top),
        }
    }
}

/// The positions of values in the cells of a chart.
struct Scale {
    area: Rect,
    bottom: f32,
    top: f32,
}

impl Scale {
    fn share(&self, value: f32) -> f32 {
        ((value - self.bottom) / (self.top - self.bottom)).clamp(0.0, 1.0)
    }

    /// The row of cells that a value is in.
    fn row(&self, value: f32) -> u16 {
        let from_bottom = (self.share(value) * f32::from(self.area.height)).ceil().max(1.0) as u16;
        self.area.bottom() - from_bottom.min(self.area.height)
    }

    /// The middle of a row, 0 at the bottom and 1 at the top.
    fn share_of_row(&self, y: u16) -> f32 {
        (f32::from(self.area.bottom() - y) - 0.5) / f32::from(self.area.height)
    }
}

impl Widget for Chart<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let ticks = self.ticks && area.width > 3 * TICKS;
        let cells = Chart::cells(area, ticks);
        let (bottom, top) = self.range_with_limit(area.height);
        if cells.is_empty() || top <= bottom {
            return;
        }
        let scale = Scale { area: cells, bottom, top };
        if ticks {
            self.draw_ticks(area, &scale, buf);
        }
        self.draw_limit(&scale, buf);
        self.fill(&scale, buf);
        self.draw_median(&scale, buf);
    }
}

impl Chart<'_> {
    fn fill(&self, scale: &Scale, buf: &mut Buffer) {
        let cells = scale.area;
        let steps = self.theme.glyphs.chart.rows();
        let all = (usize::from(cells.height) * steps) as f32;
        let height = |span: &Option<Span>| {
            span.map_or(0, |span| ((scale.share(span.mid) * all).round() as usize).max(1))
        };
        let one_column = self.theme.glyphs.chart.columns() == 1;
        let heights: Vec<[usize; 2]> = self
            .columns
            .chunks(2)
            .map(|pair| [height(&pair[0]), height(pair.get(1).unwrap_or(&pair[0]))])
            .map(|halves| match halves {
                [0, one] | [one, 0] if one_column => [one; 2],
                [left, right] if one_column => [(left + right).div_ceil(2); 2],
                halves => halves,
            })
            .collect();
        for y in cells.top()..cells.bottom() {
            let below = usize::from(cells.bottom() - 1 - y) * steps;
            let style = self.ramp.at(scale.share_of_row(y));
            let first = buf.index_of(cells.x, y);
            for (cell, halves) in
                buf.content[first..first + usize::from(cells.width)].iter_mut().zip(&heights)
            {
                let filled = halves.map(|height| height.saturating_sub(below).min(steps));
                if filled != [0, 0] {
                    set_symbol(cell, self.theme.glyphs, filled);
                    cell.set_style(style);
                }
            }
        }
    }

    fn draw_limit(&self, scale: &Scale, buf: &mut Buffer) {
        let cells = scale.area;
        let Some(limit) = self.limit.filter(|limit| *limit < scale.top) else { return };
        let row = scale.row(limit).saturating_sub(1).max(cells.y);
        let line = if self.theme.glyphs.ascii { "_" } else { "▁" };
        for x in cells.left()..cells.right() {
            buf[(x, row)].set_symbol(line).set_style(self.theme.limit);
        }
    }

    fn draw_median(&self, scale: &Scale, buf: &mut Buffer) {
        let Some(median) = self.median.filter(|m| (scale.bottom..=scale.top).contains(m)) else { return };
        draw_dashes(buf, Rect { y: scale.row(median), height: 1, ..scale.area }, self.theme);
    }

    fn draw_ticks(&self, area: Rect, scale: &Scale, buf: &mut Buffer) {
        let line = if self.theme.glyphs.ascii { "." } else { "┈" };
        let above = self.limit.filter(|limit| *limit < scale.top);
        let highest = above.unwrap_or(scale.top);
        let mut values = vec![highest];
        if area.height >= 5 {
            values.push(scale.bottom + (highest - scale.bottom) / 2.0);
        }
        if area.height >= 2 {
            values.push(scale.bottom);
        }
        for value in values {
            let row = scale.row(value);
            let text = Line::styled(tick(value), self.theme.dim).right_aligned();
            text.render(Rect { y: row, height: 1, width: TICKS - 1, ..area }, buf);
            if value > scale.bottom {
                for x in scale.area.left()..scale.area.right() {
                    buf[(x, row)].set_symbol(line).set_style(self.theme.border);
                }
            }
        }
    }
}

/// Dashes across a row.
pub fn draw_dashes(buf: &mut Buffer, row: Rect, theme: &Theme) {
    let dash = if theme.glyphs.ascii { "-" } else { "╌" };
    for x in row.left()..row.right() {
        draw_over(&mut buf[(x, row.y)], dash, theme.dim, theme);
    }
}

/// A line down the column of the cursor.
pub fn draw_cursor(buf: &mut Buffer, area: Rect, column: u16, theme: &Theme) {
    let line = if theme.glyphs.ascii { "|" } else { "│" };
    for y in area.top()..area.bottom() {
        draw_over(&mut buf[(area.x + column, y)], line, theme.accent, theme);
    }
}

/// Draws a part of a line over a chart: plain if nothing is drawn there, otherwise on the area's colour. The edge of
/// the area is kept.
fn draw_over(cell: &mut Cell, line: &str, style: Style, theme: &Theme) {
    let full = if theme.glyphs.ascii { "#" } else { "█" };
    match cell.symbol() {
        " " | "┈" | "." | "╌" | "-" => {
            cell.set_symbol(line).set_style(style);
        }
        symbol if symbol == full || symbol == "⣿" => {
            let area = cell.fg;
            cell.set_symbol(line).set_fg(theme.text.fg.unwrap_or(area)).set_bg(area);
        }
        _ => {}
    }
}

/// A value on an axis, without unnecessary digits.
fn tick(value: f32) -> String {
    let whole = (value - value.round()).abs() < 1e-3 * value.abs().max(1e-3);
    match value.abs() {
        _ if whole && value.abs() < 10_000.0 => format!("{value:.0}"),
        _ => three_digits(f64::from(value)),
    }
}

/// Sets the symbol of a cell filled this high in its halves, of which one is not empty.
fn set_symbol(cell: &mut Cell, glyphs: Glyphs, [left, right]: [usize; 2]) {
    match glyphs.chart {
        Resolution::Ascii | Resolution::Styled(ChartStyle::Block) => {
            cell.set_symbol(glyphs.bars[left - 1]);
        }
        Resolution::Styled(ChartStyle::Quadrant) => {
            const QUADRANTS: [[&str; 3]; 3] = [[" ", "▗", "▐"], ["▖", "▄", "▟"], ["▌", "▙", "█"]];
            cell.set_symbol(QUADRANTS[left][right]);
        }
        Resolution::Styled(ChartStyle::Braille) => {
            const LEFT: [u32; 5] = [0x00, 0x40, 0x44, 0x46, 0x47];
            const RIGHT: [u32; 5] = [0x00, 0x80, 0xa0, 0xb0, 0xb8];
            cell.set_char(char::from_u32(0x2800 + LEFT[left] + RIGHT[right]).unwrap_or(' '));
        }
    }
}

/// Draws a bar from the bottom of a column, `height` eighths of a cell high.
pub fn draw_bar(buf: &mut Buffer, column: Rect, height: usize, glyphs: Glyphs, style: Style) {
    let mut left = height;
    for cell in column.rows().rev().take(height.div_ceil(8)) {
        buf[cell.as_position()].set_symbol(glyphs.bars[left.min(8) - 1]).set_style(style);
        left = left.saturating_sub(8);
    }
}

/// A share as a bar in one row, in eighths of a cell, on a dim track.
pub fn draw_gauge(buf: &mut Buffer, area: Rect, share: f32, ramp: &Ramp, theme: &Theme) {
    const PARTS: [&str; 8] = ["▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"];
    let eighths = (share.clamp(0.0, 1.0) * f32::from(area.width) * 8.0).round() as usize;
    let track = if theme.glyphs.ascii { "." } else { "·" };
    for (i, x) in (area.left()..area.right()).enumerate() {
        let filled = eighths.saturating_sub(8 * i).min(8);
        let cell = &mut buf[(x, area.y)];
        match filled {
            0 => cell.set_symbol(track).set_style(theme.border),
            _ if theme.glyphs.ascii => cell.set_symbol("#").set_style(ramp.at(share)),
            filled => cell.set_symbol(PARTS[filled - 1]).set_style(ramp.at(share)),
        };
    }
}

/// The time range of a chart's columns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeAxis {
    pub from: Stamp,
    pub to: Stamp,
    /// The current time of the run; later than `to` if an earlier part is shown.
    pub now: Stamp,
    pub cursor: Option<Stamp>,
}

impl TimeAxis {
    fn seconds(&self) -> f64 {
        self.to.since(self.from).as_secs_f64()
    }

    /// The duration of a column, with `width` columns.
    pub fn column_ns(&self, width: u16) -> u64 {
        self.to.0.saturating_sub(self.from.0) / u64::from(width.max(1))
    }

    /// The middle of a column.
    pub fn moment(&self, column: u16, width: u16) -> Stamp {
        let share = (f64::from(column) + 0.5) / f64::from(width.max(1));
        Stamp(self.from.0 + (share * self.to.0.saturating_sub(self.from.0) as f64) as u64)
    }

    /// The column of a moment, if it is shown.
    fn column(&self, moment: Stamp, width: u16) -> Option<u16> {
        let inside = self.from <= moment && moment <= self.to && self.from < self.to && width > 0;
        inside.then(|| {
            let share = moment.since(self.from).as_secs_f64() / self.seconds();
            ((share * f64::from(width)) as u16).min(width - 1)
        })
    }

    pub fn cursor_column(&self, width: u16) -> Option<u16> {
        self.column(self.cursor?, width)
    }

    /// The times below the columns of `area`, as seconds before now, in one row.
    pub fn draw(&self, buf: &mut Buffer, area: Rect, theme: &Theme) {
        let seconds = self.seconds();
        if area.width < 16 || seconds <= 0.0 {
            return;
        }
        let place = |moment: f64, text: &str| {
            let share = ((moment - self.from.secs()) / seconds).clamp(0.0, 1.0);
            let x = area.x + (share * f64::from(area.width - 1)).round() as u16;
            let width = text.chars().count() as u16;
            let x = x.saturating_sub(width / 2).clamp(area.x, area.right() - width);
            Rect { x, width, height: 1, ..area }
        };
        let cursor = self.cursor.filter(|cursor| self.column(*cursor, area.width).is_some());
        let cursor = cursor.map(|cursor| {
            let text = format!(" {} ", before_now(self.now, cursor));
            (place(cursor.secs(), &text), text)
        });
        let mut label = |moment: f64, text: &str| {
            let place = place(moment, text);
            if cursor.as_ref().is_none_or(|(taken, _)| !taken.intersects(place)) {
                buf.set_string(place.x, place.y, text, theme.dim);
            }
        };
        // A label about every 20 cells.
        let step = nice_step(seconds * 20.0 / f64::from(area.width));
        let end = self.now.min(self.to).secs();
        let mut before = ((self.now.secs() - end) / step).floor() * step + step;
        while self.now.secs() - before > self.from.secs() + seconds * 0.03 {
            label(self.now.secs() - before, &format!(" -{} ", short_seconds(before)));
            before += step;
        }
        // Seconds as numbers are rounded.
        if self.to.0.saturating_add(1_000_000) >= self.now.0 {
            label(self.to.secs(), " now ");
        }
        if let Some((place, text)) = cursor {
            buf.set_string(place.x, place.y, text, theme.text.patch(theme.selected));
        }
    }
}

/// `-12.3 s`: the time before now.
pub fn before_now(now: Stamp, moment: Stamp) -> String {
    format!("-{:.1} s", now.since(moment).as_secs_f64())
}

fn short_seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 60.0 && (s % 60.0) < 1e-6 => format!("{:.0} min", s / 60.0),
        s if s >= 1.0 => format!("{s:.0} s"),
        s => format!("{:.0} ms", s * 1e3),
    }
}

/// The next of 1, 2, 5, 10 … seconds, then of minutes.
fn nice_step(at_least: f64) -> f64 {
    let steps = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0];
    steps.into_iter().find(|step| *step >= at_least).unwrap_or_else(|| (at_least / 1200.0).ceil() * 1200.0)
}

/// A labelled chart with its latest value at the right.
pub struct Lane<'a> {
    pub label: &'a str,
    pub readout: String,
    pub columns: Vec<Option<Span>>,
    pub range: (f32, f32),
    pub style: Style,
    /// The colours of the area; by default those of `style`.
    pub ramp: Option<Ramp>,
    pub limit: Option<f32>,
    pub theme: &'a Theme,
    pub label_width: u16,
    pub readout_width: u16,
}

impl Lane<'_> {
    /// The part of `area` between label and readout.
    pub fn plot_area(area: Rect, label_width: u16, readout_width: u16) -> Rect {
        let width = area.width.saturating_sub(label_width + readout_width);
        Rect { x: area.x + label_width.min(area.width), width, ..area }
    }
}

impl Widget for Lane<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        if area.is_empty() {
            return;
        }
        let glyphs = self.theme.glyphs;
        let label = glyphs.plain(self.label);
        buf.set_stringn(area.x, area.y, label, self.label_width.saturating_sub(1) as usize, self.theme.dim);
        let place = Self::plot_area(area, self.label_width, self.readout_width);
        let mut chart = Chart::new(self.theme, &self.columns, self.range, self.style);
        chart.ramp = self.ramp.unwrap_or(chart.ramp);
        chart.limit = self.limit;
        chart.render(place, buf);
        let readout = Line::styled(glyphs.plain(&self.readout), self.theme.text).right_aligned();
        let x = place.right();
        readout.render(Rect { x, width: area.right().saturating_sub(x), height: 1, ..area }, buf);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theme::Depth;
    use llmprof_config::ThemeName;

    fn theme(glyphs: Glyphs) -> Theme {
        Theme::new(ThemeName::NoColour, Depth::Ansi, glyphs)
    }

    fn text(buf: &Buffer) -> String {
        let area = buf.area;
        (0..area.height)
            .map(|y| (0..area.width).map(|x| buf[(x, y)].symbol()).collect::<String>() + "\n")
            .collect()
    }

    fn drawn(
        columns: &[Option<f32>],
        (width, height): (u16, u16),
        glyphs: Glyphs,
        change: fn(&mut Chart<'_>),
    ) -> String {
        let area = Rect::new(0, 0, width, height);
        let mut buf = Buffer::empty(area);
        let spans: Vec<_> = columns.iter().map(|v| v.map(Span::flat)).collect();
        let theme = theme(glyphs);
        let mut chart = Chart::new(&theme, &spans, (0.0, 1.0), Style::new());
        change(&mut chart);
        chart.render(area, &mut buf);
        text(&buf)
    }

    #[test]
    fn an_area_is_filled_at_every_resolution_and_a_gap_stays_empty() {
        let rise = [Some(0.0), Some(0.25), Some(0.5), Some(1.0), None, None];
        for (chart, wanted) in
            [(ChartStyle::Block, "▂▆ \n"), (ChartStyle::Quadrant, "▄▟ \n"), (ChartStyle::Braille, "⣀⣼ \n")]
        {
            let glyphs = Glyphs { chart: Resolution::Styled(chart), ..Glyphs::UNICODE };
            assert_eq!(drawn(&rise, (3, 1), glyphs, |_| {}), wanted, "{chart:?}");
        }
        assert_eq!(
            drawn(&[Some(0.0), Some(0.0), Some(1.0), Some(1.0)], (2, 1), Glyphs::ASCII, |_| {}),
            "_#\n"
        );
        assert_eq!(
            drawn(&[Some(0.5), Some(0.5), Some(1.0), Some(1.0)], (2, 2), Glyphs::UNICODE, |_| {}),
            " █\n██\n"
        );
    }

    #[test]
    fn an_area_has_no_gap_below_its_edge() {
        let halves = [Some(1.0), Some(0.3), Some(1.0), Some(1.0)];
        let drawn = drawn(&halves, (2, 4), Glyphs::UNICODE, |_| {});
        assert_eq!(drawn, " █\n▅█\n██\n██\n");
    }

    #[test]
    fn values_out_of_range_are_drawn_at_the_edge() {
        assert_eq!(drawn(&[Some(9.0), Some(9.0), Some(-9.0), None], (2, 1), Glyphs::UNICODE, |_| {}), "█▁\n");
    }

    #[test]
    fn the_limit_is_a_line_above_the_area() {
        let full = [Some(1.0); 6];
        assert_eq!(drawn(&full, (3, 3), Glyphs::UNICODE, |chart| chart.limit = Some(1.0)), "▁▁▁\n███\n███\n");
        // Two rows are not enough for it.
        assert_eq!(drawn(&full, (3, 2), Glyphs::UNICODE, |chart| chart.limit = Some(1.0)), "███\n███\n");
    }

    #[test]
    fn the_median_is_dashed() {
        let half = [Some(0.5), Some(0.5), None, None];
        let text = drawn(&half, (2, 4), Glyphs::UNICODE, |chart| chart.median = Some(0.3));
        assert_eq!(text, "  \n  \n╌╌\n█ \n");
    }

    #[test]
    fn ticks_have_their_values() {
        let text = drawn(&[Some(0.5); 60], (30, 5), Glyphs::UNICODE, |chart| {
            chart.ticks = true;
            chart.range = (0.0, 700.0);
        });
        let starts: Vec<&str> = text.lines().map(|line| line[..6].trim()).collect();
        assert_eq!(starts, ["700", "", "350", "", "0"], "{text}");
        assert_eq!(tick(3.75), "3.75");
    }

    #[test]
    fn times_are_seconds_before_the_end() {
        let axis = |seconds: u64, width: u16| {
            let mut buf = Buffer::empty(Rect::new(0, 0, width, 1));
            let to = Stamp(seconds * 1_000_000_000);
            let axis = TimeAxis { from: Stamp(0), to, now: to, cursor: None };
            axis.draw(&mut buf, Rect::new(0, 0, width, 1), &theme(Glyphs::UNICODE));
            text(&buf)
        };
        let minute = axis(60, 80);
        assert!(
            minute.contains(" -45 s ") && minute.contains(" -15 s ") && minute.ends_with(" now \n"),
            "{minute}"
        );
        assert!(axis(1200, 100).contains(" -5 min "), "{}", axis(1200, 100));
        assert_eq!(axis(60, 10).trim(), "");
    }

    #[test]
    fn a_part_before_now_has_its_times_and_the_cursor() {
        let seconds = |s: f64| Stamp::from_secs_f64(s);
        let axis = TimeAxis {
            from: seconds(10.0),
            to: seconds(70.0),
            now: seconds(100.0),
            cursor: Some(seconds(25.5)),
        };
        let mut buf = Buffer::empty(Rect::new(0, 0, 80, 1));
        axis.draw(&mut buf, Rect::new(0, 0, 80, 1), &theme(Glyphs::UNICODE));
        let text = text(&buf);
        assert!(text.contains(" -74.5 s ") && text.contains(" -45 s ") && !text.contains("now"), "{text}");
        assert!(!text.contains("-15 s"), "{text}");
    }

    #[test]
    fn every_column_gives_a_moment_that_is_in_it() {
        for width in [1, 7, 80, 199] {
            for (from, to) in [(0, 1_000), (5_000_000_000, 65_000_000_000), (1, 3_600_000_000_000)] {
                let axis = TimeAxis { from: Stamp(from), to: Stamp(to), now: Stamp(to), cursor: None };
                for column in 0..width {
                    assert_eq!(axis.column(axis.moment(column, width), width), Some(column), "{axis:?}");
                }
                assert_eq!(axis.column(Stamp(to + 1), width), None);
            }
        }
        let empty = TimeAxis { from: Stamp(3), to: Stamp(3), now: Stamp(3), cursor: Some(Stamp(3)) };
        assert_eq!(empty.cursor_column(9), None);
    }

    #[test]
    fn a_gauge_ends_in_eighths_of_a_cell() {
        let mut buf = Buffer::empty(Rect::new(0, 0, 4, 1));
        let theme = theme(Glyphs::UNICODE);
        draw_gauge(&mut buf, Rect::new(0, 0, 4, 1), 0.375, &theme.load(), &theme);
        assert_eq!(text(&buf), "█▌··\n");
    }
}
