//! Values over time as lines of braille dots, or of plain characters where those can't be shown.

use ratatui::{buffer::Buffer, layout::Rect, style::Style, text::Line, widgets::Widget};

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

/// Buckets as they are.
pub fn spans(buckets: &[Option<Bucket>]) -> Vec<Option<Span>> {
    buckets.iter().map(|b| b.map(|b| Span { low: b.min, high: b.max, mid: b.mean() })).collect()
}

/// Draws `columns`, two for each cell, between `bottom` and `top`. A column without a value stays empty.
/// What lies under the line is shaded, so that a tall chart reads as an amount.
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
    if theme.glyphs.ascii {
        plot_bars(buf, area, columns, (bottom, top), style, theme.glyphs);
    } else {
        plot_dots(buf, area, columns, (bottom, top), style, theme.border);
    }
}

/// A single dot in the middle of a cell.
const SHADE: u8 = 0x02;

fn plot_dots(
    buf: &mut Buffer,
    area: Rect,
    columns: &[Option<Span>],
    (bottom, top): (f32, f32),
    style: Style,
    shade: Style,
) {
    // Bits of a braille cell, by column and by row from the top.
    const DOTS: [[u8; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];
    let (width, rows) = (area.width as usize, area.height as usize * 4);
    let level = |value: f32| {
        let share = ((value - bottom) / (top - bottom)).clamp(0.0, 1.0);
        (share * (rows - 1) as f32).round() as usize
    };
    let mut cells = vec![0u8; width * area.height as usize];
    let mut lowest = vec![usize::MAX; width];
    let mut previous: Option<usize> = None;
    for (x, span) in columns.iter().take(width * 2).enumerate() {
        let Some(span) = span else {
            previous = None;
            continue;
        };
        let (mut low, mut high, mid) = (level(span.low), level(span.high), level(span.mid));
        // A step between neighbours is drawn, so that the line does not fall apart.
        if let Some(before) = previous {
            low = low.min(before + 1).min(mid);
            high = high.max(before.saturating_sub(1)).max(mid);
        }
        for dot in low..=high {
            let row = rows - 1 - dot;
            cells[row / 4 * width + x / 2] |= DOTS[x % 2][row % 4];
        }
        lowest[x / 2] = lowest[x / 2].min(low);
        previous = Some(mid);
    }
    for (i, bits) in cells.into_iter().enumerate() {
        let (column, row) = (i % width, i / width);
        let under = lowest[column] != usize::MAX && row > (rows - 1 - lowest[column]) / 4;
        let (bits, style) = match bits {
            0 if under => (SHADE, shade),
            0 => continue,
            bits => (bits, style),
        };
        let dots = char::from_u32(0x2800 + u32::from(bits)).unwrap_or(' ');
        buf[(area.x + column as u16, area.y + row as u16)].set_char(dots).set_style(style);
    }
}

fn plot_bars(
    buf: &mut Buffer,
    area: Rect,
    columns: &[Option<Span>],
    (bottom, top): (f32, f32),
    style: Style,
    glyphs: Glyphs,
) {
    let steps = glyphs.bars.len();
    let levels = area.height as usize * steps;
    for (x, pair) in columns.chunks(2).take(area.width as usize).enumerate() {
        let Some(span) = pair.iter().flatten().max_by(|a, b| a.mid.total_cmp(&b.mid)) else { continue };
        let share = ((span.mid - bottom) / (top - bottom)).clamp(0.0, 1.0);
        let mut left = (share * (levels - 1) as f32).round() as usize + 1;
        for row in (0..area.height).rev() {
            if left == 0 {
                break;
            }
            let glyph = glyphs.bars[left.min(steps) - 1];
            buf[(area.x + x as u16, area.y + row)].set_symbol(glyph).set_style(style);
            left = left.saturating_sub(steps);
        }
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
    /// The part of `area` that the line itself takes.
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
        let at = Rect {
            x: chart.right(),
            y: area.y,
            width: area.right().saturating_sub(chart.right()),
            height: 1,
        };
        readout.render(at, buf);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::ThemeName, tui::theme::Depth};

    fn drawn(columns: &[Option<f32>], width: u16, height: u16, glyphs: Glyphs) -> String {
        let area = Rect::new(0, 0, width, height);
        let mut buf = Buffer::empty(area);
        let spans: Vec<_> = columns.iter().map(|v| v.map(|v| Span { low: v, high: v, mid: v })).collect();
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
