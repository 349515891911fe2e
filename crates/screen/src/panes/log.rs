//! Log: the messages of the program, newest at the bottom.

use crate::{
    pane::{Pane, Spec},
    view::View,
    widgets::{draw_box, note, wrapped},
};
use crossterm::event::KeyCode;
use ratatui::{
    buffer::Buffer,
    layout::Rect,
    text::{Line, Span as Text},
    widgets::{Paragraph, Widget},
};
use unicode_width::UnicodeWidthStr;

use llmprof_base::{cells, table::Table, units::grouped};
use llmprof_event::{Level, Notice};
use llmprof_record::state::{LogLine, RunState};

pub struct LogPane<'a>(pub View<'a>);

pub const PANE: Spec = Spec {
    title: "Log",
    keys: &[KeyCode::Char('8')],
    help: "Log: the messages of the program",
    is_special: false,
    why_empty: "no messages",
    has_content: |_, state| !state.log.is_empty(),
    draw: |view, area, buf| LogPane(view).render(area, buf),
    table: messages,
    rows: |view| view.state.log.len(),
    // Counted from the newest line; up moves back.
    select: |ui, by, extent| (Spec::EMPTY.select)(ui, -by, extent),
    ..Spec::EMPTY
};

/// The lines that match the filter.
fn messages(view: &View<'_>) -> Table {
    let mut table = Table::keyed("t_s,level,source,times,text");
    for LogLine { t, notice, times, .. } in matching(view) {
        let level = match notice.level {
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
        };
        table.push(cells![t.secs(), level, notice.source.clone(), *times, notice.text.clone()]);
    }
    table
}

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
        let end = matching.len() - view.ui.row(Pane::Log).min(matching.len() - 1);
        // As many as fit, from the newest backwards; long lines are wrapped.
        let (room, mut shown) = (inner.height as usize, Vec::new());
        for message in matching[..end].iter().rev() {
            let lines = lines(view, message, inner.width);
            if shown.len() + lines.len() > room && !shown.is_empty() {
                break;
            }
            shown.extend(lines.into_iter().rev());
        }
        shown.reverse();
        Paragraph::new(shown).render(inner, buf);
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

/// A message on as many lines as it needs.
fn lines<'a>(view: &View<'_>, shown: &LogLine, width: u16) -> Vec<Line<'a>> {
    let theme = view.theme;
    let LogLine { t, notice, times, .. } = shown;
    let mark = format!("{:<5} ", name(notice.level));
    let mut spans = vec![Text::styled(mark, theme.level(notice.level))];
    if width >= 60 {
        spans.insert(0, Text::styled(format!(" {:>8.1} s  ", t.secs()), theme.dim));
        spans.push(Text::styled(format!("{:<9} ", notice.source), theme.accent));
    }
    if *times > 1 {
        let count = format!("×{} ", grouped(i64::try_from(*times).unwrap_or(i64::MAX)));
        spans.push(Text::styled(theme.glyphs.plain(&count), theme.accent));
    }
    let indent = Line::from(spans.clone()).width();
    let room = usize::from(width).saturating_sub(indent + 1).max(1);
    let text = theme.glyphs.plain(&notice.text);
    let parts = if text.width() <= room { vec![text] } else { wrapped(&text, room) };
    let mut parts = parts.into_iter().map(|part| Text::styled(part, theme.text));
    spans.extend(parts.next());
    let below = parts.map(|part| Line::from(vec![Text::raw(" ".repeat(indent)), part]));
    std::iter::once(Line::from(spans)).chain(below).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        theme::{Depth, Glyphs, Theme},
        ui::UiState,
    };
    use llmprof_config::ThemeName;
    use llmprof_event::{Envelope, Event, Stamp};

    #[test]
    fn a_line_that_does_not_fit_continues_below_its_text() {
        let mut state = RunState::default();
        let ui = UiState::new(ThemeName::Dark);
        let theme = Theme::new(ui.theme, Depth::True, Glyphs::UNICODE);
        let text =
            "the clocks are limited by power for most of the time, which costs about a quarter of the speed";
        let notice = Notice { level: Level::Warn, source: "telemetry".into(), text: text.into() };
        state.apply(&Envelope { t: Stamp::from_secs_f64(1.5), event: Event::Notice(notice) });
        let line = state.log.iter().next().unwrap();
        for (width, indent) in [(80, 29), (50, 6)] {
            let shown: Vec<String> =
                lines(&View::new(&state, &ui, &theme), line, width).iter().map(ToString::to_string).collect();
            assert!(shown.len() > 1, "{shown:?}");
            let blank = " ".repeat(indent);
            for below in &shown[1..] {
                assert!(below.starts_with(&blank) && !below[indent..].starts_with(' '), "{shown:#?}");
            }
            let words: Vec<&str> = shown.iter().flat_map(|line| line[indent..].split_whitespace()).collect();
            assert_eq!(words.join(" "), text);
        }
    }
}
