//! Values over time as lines of braille dots, or as bars of plain characters in ASCII.

use ratatui::{buffer::Buffer, layout::Rect, style::Style, text::Line, widgets::Widget};

use super::Dots;
use crate::{
    state::Bucket,
    tui::theme::{Glyphs, Theme},
};

/// What a dot column shows: the extremes within it and the mean.
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

/// Draws `columns`, two for each cell, between `bottom` and `top`. A column without a value stays empty.
/// The area under the line is shaded.
pub fn plot(
    buf: &mut Buffer,
    area: Rect,
    columns: &[Option<Span>],
    (bottom, top): (f32, f32),
    style: Style,
    theme: &Theme,
) {
    if area.is_empty() || top <= bottom {
        return;
    }
    let share = |value: f32| ((value - bottom) / (top - bottom)).clamp(0.0, 1.0);
    if theme.glyphs.ascii {
        plot_bars(buf, area, columns, share, style, theme.glyphs);
    } else {
        plot_dots(buf, area, columns, share, style, theme.border);
    }
}

fn plot_dots(
    buf: &mut Buffer,
    area: Rect,
    columns: &[Option<Span>],
    share: impl Fn(f32) -> f32,
    style: Style,
    shade: Style,
) {
    let mut dots = Dots::new(area, false);
    let (width, height) = dots.size();
    let dot = |value: f32| (share(value) * (height - 1) as f32).round() as usize;
    let mut lowest: Vec<Option<usize>> = vec![None; area.width as usize];
    let mut previous: Option<usize> = None;
    for (x, span) in columns.iter().take(width).enumerate() {
        let Some(span) = span else {
            previous = None;
            continue;
        };
        let (mut low, mut high, mid) = (dot(span.low), dot(span.high), dot(span.mid));
        // A step between neighbours is drawn, so that the line is continuous.
        if let Some(before) = previous {
            low = low.min(before + 1).min(mid);
            high = high.max(before.saturating_sub(1)).max(mid);
        }
        (low..=high).for_each(|y| dots.set(x, y, style));
        lowest[x / 2] = Some(lowest[x / 2].map_or(low, |lowest| lowest.min(low)));
        previous = Some(mid);
    }
    for (column, low) in lowest.into_iter().enumerate() {
        let Some((x, y)) = low.and_then(|low| dots.cell(2 * column, low)) else { continue };
        (y + 1..area.bottom()).for_each(|y| {
            buf[(x, y)].set_symbol("⠂").set_style(shade);
        });
    }
    dots.draw(buf);
}

fn plot_bars(
    buf: &mut Buffer,
    area: Rect,
    columns: &[Option<Span>],
    share: impl Fn(f32) -> f32,
    style: Style,
    glyphs: Glyphs,
) {
    let steps = area.height as usize * glyphs.bars.len();
    for (column, pair) in area.columns().zip(columns.chunks(2)) {
        if let Some(span) = pair.iter().flatten().max_by(|a, b| a.mid.total_cmp(&b.mid)) {
            let height = (share(span.mid) * (steps - 1) as f32).round() as usize + 1;
            draw_bar(buf, column, height, glyphs, style);
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

/// A labelled line over time with its latest value at the right.
pub struct Lane<'a> {
    pub label: &'a str,
    pub readout: String,
    pub columns: Vec<Option<Span>>,
    pub range: (f32, f32),
    pub style: Style,
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
        let chart = Self::plot_area(area, self.label_width, self.readout_width);
        plot(buf, chart, &self.columns, self.range, self.style, self.theme);
        let readout = Line::styled(glyphs.plain(&self.readout), self.theme.text).right_aligned();
        let x = chart.right();
        readout.render(Rect { x, width: area.right().saturating_sub(x), height: 1, ..area }, buf);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::ThemeName, tui::theme::Depth};

    fn drawn(columns: &[Option<f32>], width: u16, height: u16, glyphs: Glyphs) -> String {
        let area = Rect::new(0, 0, width, height);
        let mut buf = Buffer::empty(area);
        let spans: Vec<_> = columns.iter().map(|v| v.map(Span::flat)).collect();
        let theme = Theme::new(ThemeName::NoColour, Depth::Ansi, glyphs);
        plot(&mut buf, area, &spans, (0.0, 1.0), Style::new(), &theme);
        (0..height).map(|y| (0..width).map(|x| buf[(x, y)].symbol()).collect::<String>() + "\n").collect()
    }

    #[test]
    fn a_line_rises_and_a_gap_stays_empty() {
        let rise = [Some(0.0), Some(0.33), Some(0.66), Some(1.0), None, None];
        assert_eq!(drawn(&rise, 3, 1, Glyphs::UNICODE), "⡠⠊ \n");
        assert_eq!(drawn(&[Some(0.0), Some(0.0), Some(1.0), Some(1.0)], 2, 1, Glyphs::ASCII), "_#\n");
    }

    #[test]
    fn values_out_of_range_are_drawn_at_the_edge() {
        assert_eq!(drawn(&[Some(9.0), Some(-9.0)], 1, 1, Glyphs::UNICODE).chars().count(), 2);
    }
}
