//! The distribution of a latency, with its percentiles.

use ratatui::{buffer::Buffer, layout::Rect, widgets::Widget};

use crate::{
    theme::Theme,
    widgets::{draw_bar, draw_box, note},
};
use llmprof_analysis::distribution::Distribution;
use llmprof_base::units::three_digits;

/// A narrower histogram shows too little.
pub const MIN_WIDTH: u16 = 36;

/// Counts in bins of equal width, from the minimum to a little above the 99th percentile.
pub struct Histogram<'a> {
    pub distribution: &'a Distribution,
    pub title: &'static str,
    pub theme: &'a Theme,
}

impl Widget for Histogram<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let Histogram { distribution, title, theme } = self;
        let percentiles = [50.0, 90.0, 99.0].map(|p| distribution.percentile_ms(p));
        let marks = ["p50", "p90", "p99"].into_iter().zip(percentiles);
        let known: Vec<(&str, f64)> = marks.filter_map(|(name, ms)| Some((name, ms?))).collect();
        let aside: Vec<String> =
            known.iter().map(|(name, ms)| format!("{name} {}", three_digits(*ms))).collect();
        let inner = draw_box(theme, (&format!("{title}, ms"), &aside.join(" · ")), area, buf);
        let Some((from, to)) = range(distribution) else {
            return note(theme, " too few values").render(inner, buf);
        };
        let cells = Rect { x: inner.x + 1, width: inner.width.saturating_sub(2), ..inner };
        let bars = Rect { height: cells.height.saturating_sub(1), ..cells };
        let counts = distribution.bins_ms(from, to, cells.width as usize);
        let most = counts.iter().copied().max().unwrap_or(0).max(1);
        let ramp = theme.load();
        for (i, (column, count)) in bars.columns().zip(&counts).enumerate() {
            // A square root makes the tail visible next to the peak.
            let share = (*count as f64 / most as f64).sqrt();
            let eighths = (share * f64::from(bars.height) * 8.0).round() as usize;
            let height = if *count > 0 { eighths.max(1) } else { 0 };
            draw_bar(buf, column, height, theme.glyphs, ramp.at(i as f32 / cells.width.max(1) as f32));
        }
        draw_axis(buf, Rect { y: cells.bottom() - 1, height: 1, ..cells }, (from, to), &known, theme);
    }
}

/// The ends of the range, and a mark at each percentile, with its name if there is room.
fn draw_axis(buf: &mut Buffer, axis: Rect, (from, to): (f64, f64), marks: &[(&str, f64)], theme: &Theme) {
    let column = |ms: f64| {
        let share = ((ms - from) / (to - from)).clamp(0.0, 1.0);
        (share * f64::from(axis.width - 1)).round() as u16
    };
    let mut taken = vec![false; axis.width as usize];
    let mut put = |at: u16, text: &str, style| {
        let (first, width) = (usize::from(at), text.chars().count());
        // A blank cell on both sides.
        let room = first.saturating_sub(1)..(first + width + 1).min(taken.len());
        if first + width > taken.len() || taken[room].iter().any(|taken| *taken) {
            return;
        }
        taken[first..first + width].fill(true);
        buf.set_string(axis.x + at, axis.y, text, style);
    };
    let up = if theme.glyphs.ascii { "^" } else { "▴" };
    for (i, (name, ms)) in marks.iter().enumerate() {
        let at = column(*ms);
        let next = marks.get(i + 1).map_or(axis.width, |(_, ms)| column(*ms));
        let named = format!("{up}{name}");
        let width = named.chars().count() as u16;
        put(at, if at + width < next { &named } else { up }, theme.accent);
    }
    let [left, right] = [from, to].map(three_digits);
    put(0, &left, theme.dim);
    put(axis.width.saturating_sub(right.chars().count() as u16), &right, theme.dim);
}

/// From a little below the 1st percentile to a little above the 99th, or from the minimum to the maximum.
fn range(distribution: &Distribution) -> Option<(f64, f64)> {
    let (min, max) = (distribution.min_ms()?, distribution.max_ms()?);
    let tail = |p| distribution.percentile_ms(p).filter(|_| distribution.n() >= 100);
    let (from, to) = match (tail(1.0), tail(99.0)) {
        (Some(low), Some(high)) => {
            let margin = (high - low) * 0.3;
            ((low - margin).max(min), high + margin)
        }
        _ => (min, max),
    };
    (distribution.n() > 1).then_some((from, to.max(from * 1.02)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theme::{Depth, Glyphs};
    use llmprof_config::ThemeName;

    #[test]
    fn marks_and_ends_do_not_overwrite_each_other() {
        let theme = Theme::new(ThemeName::NoColour, Depth::Ansi, Glyphs::UNICODE);
        let axis = |marks: &[(&str, f64)]| {
            let area = Rect::new(0, 0, 40, 1);
            let mut buf = Buffer::empty(area);
            draw_axis(&mut buf, area, (1.0, 2.0), marks, &theme);
            (0..40).map(|x| buf[(x, 0)].symbol()).collect::<String>()
        };
        assert_eq!(axis(&[("p50", 1.4), ("p90", 1.7)]), "1.00            ▴p50       ▴p90     2.00");
        assert_eq!(
            axis(&[("p50", 1.5), ("p90", 1.53), ("p99", 1.6)]).trim_end(),
            "1.00                ▴  ▴p99         2.00"
        );
        assert_eq!(axis(&[("p50", 1.0), ("p90", 2.0)]), "▴p50                                   ▴");
    }
}
