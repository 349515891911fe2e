//! The lines of a table.

use ratatui::{style::Style, text::Span};
use unicode_width::UnicodeWidthStr;

use super::{cut, cut_start};
use crate::theme::Theme;
use llmprof_base::table::{Align, Table, Tone};

/// A table, and the columns that a pane shows.
pub struct TableLines<'t> {
    theme: &'t Theme,
    pub table: Table,
    /// Indexes of columns with their widths, from left to right. A text is cut to fit, with a cell between it and
    /// a text after it.
    shown: Vec<(usize, usize)>,
    /// A column whose cells have styles of their own.
    styles: Option<(usize, Vec<Style>)>,
    /// Columns whose headings have styles of their own.
    headed: Vec<(usize, Style)>,
}

impl<'t> TableLines<'t> {
    /// `shown` has the keys of columns with their widths.
    pub fn new<'k>(
        theme: &'t Theme,
        table: Table,
        shown: impl IntoIterator<Item = (&'k str, usize)>,
    ) -> TableLines<'t> {
        let shown = shown.into_iter().filter_map(|(key, width)| Some((table.index(key)?, width))).collect();
        TableLines { theme, table, shown, styles: None, headed: Vec::new() }
    }

    /// The headings.
    pub fn heading<'a>(&self) -> Vec<Span<'a>> {
        self.spans(|column| {
            let own = self.headed.iter().find(|(headed, _)| *headed == column).map(|(_, style)| *style);
            (self.table.columns[column].heading().to_owned(), own.unwrap_or(self.theme.dim))
        })
    }

    pub fn row<'a>(&self, row: usize) -> Vec<Span<'a>> {
        self.spans(|column| {
            let cell = &self.table.rows[row][column];
            let own = self.styles.as_ref().filter(|(styled, _)| *styled == column);
            let own = own.and_then(|(_, styles)| styles.get(row).copied());
            (cell.text(), own.unwrap_or(self.theme.tone(cell.tone)))
        })
    }

    /// Adds a column that takes the rest of `width`.
    pub fn fill(mut self, key: &str, width: u16) -> TableLines<'t> {
        let taken: usize = self.heading().iter().map(Span::width).sum();
        let gap =
            if self.align(self.shown.len().wrapping_sub(1)) == Some(Align::Right) { GAP.len() } else { 0 };
        let width = usize::from(width).saturating_sub(taken + gap);
        self.shown.extend(self.table.index(key).map(|column| (column, width)));
        self
    }

    /// With a style for each cell of a column.
    pub fn styled(self, key: &str, styles: impl IntoIterator<Item = Style>) -> TableLines<'t> {
        let styles = self.table.index(key).map(|column| (column, Vec::from_iter(styles)));
        TableLines { styles, ..self }
    }

    /// With styles for the headings of these columns.
    pub fn headed<'k>(self, styles: impl IntoIterator<Item = (&'k str, Style)>) -> TableLines<'t> {
        let styles = styles.into_iter().filter_map(|(key, style)| Some((self.table.index(key)?, style)));
        let headed = styles.collect();
        TableLines { headed, ..self }
    }

    fn align(&self, place: usize) -> Option<Align> {
        self.shown.get(place).map(|(column, _)| self.table.columns[*column].align)
    }

    fn spans<'a>(&self, cell: impl Fn(usize) -> (String, Style)) -> Vec<Span<'a>> {
        let is_text = |place: usize| self.align(place).is_some_and(|align| align != Align::Right);
        let ascii = self.theme.glyphs.ascii;
        let span = |(place, (column, width)): (usize, &(usize, usize))| {
            let (text, style) = cell(*column);
            let text = self.theme.glyphs.plain(&text);
            let room = width - usize::from(is_text(place + 1)).min(*width);
            let text = match self.table.columns[*column].align {
                Align::Right => text,
                Align::Left => cut(&text, room, ascii),
                Align::Path => cut_start(&text, room, ascii),
            };
            let padding = " ".repeat(width.saturating_sub(text.width()));
            Span::styled(
                match (is_text(place), place > 0 && !is_text(place - 1)) {
                    (false, _) => padding + &text,
                    (true, false) => text + &padding,
                    (true, true) => format!("{GAP}{text}{padding}"),
                },
                style,
            )
        };
        self.shown.iter().enumerate().map(span).collect()
    }
}

/// Between a number and a text after it.
const GAP: &str = "  ";

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
