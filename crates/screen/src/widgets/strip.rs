//! One cell per token: its height and colour show its ITL.

use ratatui::{buffer::Buffer, layout::Rect, style::Style, widgets::Widget};

use super::chart::draw_bar;
use crate::theme::Theme;
use llmprof_record::state::TokenMark;

/// Tokens from left to right, the newest last.
pub struct TokenStrip<'a> {
    pub tokens: Vec<&'a TokenMark>,
    /// The run's median ITL in milliseconds, with which each gap is compared.
    pub median_ms: f64,
    pub theme: &'a Theme,
    /// Column under the cursor, if any.
    pub cursor: Option<usize>,
}

/// The level of a gap above the median: 0 not above, 4 far above.
pub fn heat_of(gap_ms: f64, median_ms: f64) -> usize {
    TokenStrip::STEPS.iter().take_while(|step| gap_ms > median_ms * **step).count()
}

impl TokenStrip<'_> {
    /// Multiples of the median at which the colour changes.
    pub const STEPS: [f64; 4] = [1.1, 1.3, 2.0, 4.0];

    /// The height of a multiple of the median: logarithmic, from half of it at 0 to four times at 1.
    pub fn share(factor: f64) -> f64 {
        (factor.log2() + 1.0) / 3.0
    }

    /// Height of a gap in eighths of a cell.
    fn eighths(&self, gap_ms: f64, rows: u16) -> usize {
        let full = usize::from(rows) * 8;
        let share = TokenStrip::share(gap_ms / self.median_ms);
        ((share * full as f64).round().max(1.0) as usize).min(full)
    }

    fn style(&self, mark: &TokenMark) -> Style {
        if mark.warmup {
            return self.theme.dim;
        }
        self.theme.heat[heat_of(mark.gap_ns as f64 / 1e6, self.median_ms)]
    }
}

impl Widget for TokenStrip<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let glyphs = self.theme.glyphs;
        for (x, (column, mark)) in area.columns().zip(&self.tokens).enumerate() {
            if mark.first {
                for cell in column.rows() {
                    buf[cell.as_position()].set_symbol(glyphs.first_token).set_style(self.theme.prefill);
                }
            } else {
                let height = self.eighths(mark.gap_ns as f64 / 1e6, area.height);
                draw_bar(buf, column, height, glyphs, self.style(mark));
            }
            if self.cursor == Some(x) {
                buf.set_style(column, self.theme.selected);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_increases_with_the_gap() {
        let heats: Vec<usize> =
            [0.5, 1.0, 1.2, 1.5, 3.0, 9.0].into_iter().map(|gap| heat_of(gap, 1.0)).collect();
        assert_eq!(heats, [0, 0, 1, 2, 3, 4]);
    }
}
