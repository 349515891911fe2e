//! Log: what the program had to say, newest at the bottom.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    text::{Line, Span as Text},
    widgets::{Paragraph, Widget},
};

use crate::{
    event::Level,
    tui::{
        view::View,
        widgets::{boxed, note},
    },
};

pub struct LogPane<'a>(pub View<'a>);

impl Widget for LogPane<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let view = &self.0;
        let theme = view.theme;
        let filter = view.ui.log_filter.to_lowercase();
        let aside =
            if filter.is_empty() { String::new() } else { format!("containing \"{}\"", view.ui.log_filter) };
        let block = boxed(theme, "log", &aside);
        let inner = block.inner(area);
        block.render(area, buf);
        let matching: Vec<_> = view
            .state
            .log
            .iter()
            .filter(|(_, n)| {
                filter.is_empty() || n.text.to_lowercase().contains(&filter) || n.source.contains(&filter)
            })
            .collect();
        if matching.is_empty() {
            let text =
                if filter.is_empty() { " nothing to report" } else { " no line contains that; / changes it" };
            return note(theme, text).render(inner, buf);
        }
        let end = matching.len() - view.ui.log_back.min(matching.len() - 1);
        let first = end.saturating_sub(inner.height as usize);
        let lines: Vec<Line<'_>> = matching[first..end]
            .iter()
            .map(|(t, notice)| {
                let mark = match notice.level {
                    Level::Info => "info ",
                    Level::Warn => "warn ",
                    Level::Error => "error",
                };
                Line::from(vec![
                    Text::styled(format!(" {:>8.1} s  ", t.secs()), theme.dim),
                    Text::styled(format!("{mark} "), theme.level(notice.level)),
                    Text::styled(format!("{:<9} ", notice.source), theme.accent),
                    Text::styled(theme.glyphs.plain(&notice.text), theme.text),
                ])
            })
            .collect();
        Paragraph::new(lines).render(inner, buf);
    }
}
