//! The lines of a table.

use ratatui::{style::Style, text::Span};
use unicode_width::UnicodeWidthStr;

use super::cut;
use crate::theme::Theme;
use llmprof_base::table::{Align, Table, Tone};

/// A table, and the columns that a pane shows.
pub struct TableLines<'t> {
    pub theme: &'t Theme,
    pub table: Table,
    /// Indexes of columns with their widths, from left to right. Texts are cut, and two cells separate one from a
    /// number before it.
    pub shown: Vec<(usize, usize)>,
}

impl TableLines<'_> {
    /// The headings.
    pub fn heading<'a>(&self) -> Vec<Span<'a>> {
        self.spans(|column| (self.table.columns[column].heading().to_owned(), self.theme.dim))
    }

    pub fn row<'a>(&self, row: usize) -> Vec<Span<'a>> {
        self.spans(|column| {
            let cell = &self.table.rows[row][column];
            (cell.text(), self.theme.tone(cell.tone))
        })
    }

    fn spans<'a>(&self, cell: impl Fn(usize) -> (String, Style)) -> Vec<Span<'a>> {
        let align = |place: usize| self.shown.get(place).map(|(column, _)| self.table.columns[*column].align);
        let span = |(place, (column, width)): (usize, &(usize, usize))| {
            let (text, style) = cell(*column);
            let text = self.theme.glyphs.plain(&text);
            let padding = |text: &str| " ".repeat(width.saturating_sub(text.width()));
            if align(place) == Some(Align::Right) {
                return Span::styled(padding(&text) + &text, style);
            }
            let gap = usize::from(align(place + 1) == Some(Align::Left));
            let text = cut(&text, width.saturating_sub(gap), self.theme.glyphs.ascii);
            let after_number = place > 0 && align(place - 1) == Some(Align::Right);
            let before = if after_number { "  " } else { "" };
            let padding = padding(&text);
            Span::styled(format!("{before}{text}{padding}"), style)
        };
        self.shown.iter().enumerate().map(span).collect()
    }
}

impl Theme {
    pub fn tone(&self, tone: Tone) -> Style {
        match tone {
            Tone::Plain => self.text,
            Tone::Dim => self.dim,
            Tone::Number => self.number,
            Tone::Good => self.good,
            Tone::Warn => self.warn,
            Tone::Bad => self.bad,
            Tone::Accent => self.accent,
        }
    }
}
