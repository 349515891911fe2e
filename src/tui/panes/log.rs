//! Log: the messages of the program, newest at the bottom.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    text::{Line, Span as Text},
    widgets::{Paragraph, Widget, Wrap},
};

use crate::{
    base::units::grouped,
    event::{Level, Notice},
    state::{LogLine, RunState},
    tui::{
        view::View,
        widgets::{draw_box, note},
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
        let inner = draw_box(theme, ("log", &aside), area, buf);
        let matching: Vec<_> = matching(view).collect();
        if matching.is_empty() {
            let text = match filter.as_str() {
                "" => " no messages",
                _ => " no line contains this text; press / to change it",
            };
            return note(theme, text).render(inner, buf);
        }
        let end = matching.len() - view.ui.log_back.min(matching.len() - 1);
        let wide = inner.width >= 60;
        let lines: Vec<Line<'_>> = matching[..end].iter().map(|shown| line(view, shown, wide)).collect();
        // As many as fit, from the newest backwards; long lines are wrapped.
        let width = inner.width.saturating_sub(4).max(1) as usize;
        let mut room = inner.height as usize;
        let mut first = lines.len();
        while first > 0 && room >= lines[first - 1].width().div_ceil(width).max(1) {
            first -= 1;
            room -= lines[first].width().div_ceil(width).max(1);
        }
        first = first.min(lines.len() - 1);
        Paragraph::new(lines[first..].to_vec()).wrap(Wrap { trim: false }).render(inner, buf);
    }
}

fn name(level: Level) -> &'static str {
    match level {
        Level::Info => "info",
        Level::Warn => "warn",
        Level::Error => "error",
    }
}

/// The lines that contain the filter, in their text, their source or their level.
pub fn matching<'a>(view: &View<'a>) -> impl Iterator<Item = &'a LogLine> {
    let state: &'a RunState = view.state;
    let filter = view.ui.log_filter.to_lowercase();
    let has = move |notice: &Notice| {
        let parts = [&notice.text.to_lowercase(), notice.source.as_str(), name(notice.level)];
        filter.is_empty() || parts.into_iter().any(|part| part.contains(&filter))
    };
    state.log.iter().filter(move |line| has(&line.notice))
}

fn line<'a>(view: &View<'_>, shown: &LogLine, wide: bool) -> Line<'a> {
    let theme = view.theme;
    let LogLine { t, notice, times, .. } = shown;
    let mark = format!("{:<5} ", name(notice.level));
    let mut spans = vec![Text::styled(mark, theme.level(notice.level))];
    if wide {
        spans.insert(0, Text::styled(format!(" {:>8.1} s  ", t.secs()), theme.dim));
        spans.push(Text::styled(format!("{:<9} ", notice.source), theme.accent));
    }
    if *times > 1 {
        let count = format!("×{} ", grouped(i64::try_from(*times).unwrap_or(i64::MAX)));
        spans.push(Text::styled(theme.glyphs.plain(&count), theme.accent));
    }
    spans.push(Text::styled(theme.glyphs.plain(&notice.text), theme.text));
    Line::from(spans)
}
