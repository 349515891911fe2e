//! The distribution of a latency, with its percentiles.

use ratatui::{buffer::Buffer, layout::Rect, widgets::Widget};

use crate::{
    analysis::distribution::Distribution,
    base::units::three_digits,
    tui::{
        theme::Theme,
        widgets::{draw_bar, draw_box, note},
    },
};

/// A narrower one says too little.
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
            // A square root shows the tail beside the peak.
            let share = (*count as f64 / most as f64).sqrt();
            let eighths = (share * f64::from(bars.height) * 8.0).round() as usize;
            let height = if *count > 0 { eighths.max(1) } else { 0 };
            draw_bar(buf, column, height, theme.glyphs, ramp.at(i as f32 / cells.width.max(1) as f32));
        }
        let axis = cells.bottom() - 1;
        let mut free_from = cells.x;
        for (name, ms) in known {
            let share = ((ms - from) / (to - from)).clamp(0.0, 1.0);
            let x = cells.x + (share * f64::from(cells.width - 1)).round() as u16;
            let up = if theme.glyphs.ascii { "^" } else { "▴" };
            buf[(x, axis)].set_symbol(up).set_style(theme.accent);
            if x >= free_from && x + 1 + name.len() as u16 <= cells.right() {
                buf.set_string(x + 1, axis, name, theme.dim);
                free_from = x + 2 + name.len() as u16;
            }
        }
    }
}

/// From the minimum to a little above the 99th percentile, or to the maximum.
fn range(distribution: &Distribution) -> Option<(f64, f64)> {
    let from = distribution.min_ms()?;
    let to = distribution.percentile_ms(99.0).map(|p99| p99 + (p99 - from) * 0.15);
    let to = to.unwrap_or(distribution.max_ms()?).max(from * 1.02);
    (distribution.n() > 1).then_some((from, to))
}
