//! Boxes and lines of text.

use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Margin, Rect},
    style::{Modifier, Style},
    symbols::border,
    text::{Line, Span},
    widgets::{Block, Borders, Clear, Paragraph, Widget, Wrap},
};
use tui_input::Input;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::theme::Theme;

const ASCII_BORDER: border::Set<'_> = border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};

/// Draws a box with a title at the left and a dimmed one at the right; returns its inside.
pub fn draw_box(theme: &Theme, (title, aside): (&str, &str), area: Rect, buf: &mut Buffer) -> Rect {
    let set = if theme.glyphs.ascii { ASCII_BORDER } else { border::ROUNDED };
    let mut block = Block::new()
        .borders(Borders::ALL)
        .border_set(set)
        .border_style(theme.border)
        .title_top(Line::styled(format!(" {} ", theme.glyphs.plain(title)), theme.accent));
    if !aside.is_empty() {
        block = block
            .title_top(Line::styled(format!(" {} ", theme.glyphs.plain(aside)), theme.dim).right_aligned());
    }
    let inner = block.inner(area);
    block.render(area, buf);
    inner
}

/// An empty box in the middle of `area`, over the existing content; returns its inside.
pub fn popup(
    theme: &Theme,
    titles: (&str, &str),
    (width, height): (u16, u16),
    area: Rect,
    buf: &mut Buffer,
) -> Rect {
    let (width, height) = (width.min(area.width), height.min(area.height));
    let (x, y) = (area.x + (area.width - width) / 2, area.y + (area.height - height) / 2);
    let area = Rect { x, y, width, height };
    Clear.render(area, buf);
    buf.set_style(area, theme.ground);
    draw_box(theme, titles, area, buf)
}

/// The inside of [`draw_box`].
pub fn inside_box(area: Rect) -> Rect {
    Block::new().borders(Borders::ALL).inner(area)
}

/// Draws wrapped text after a pointer.
pub fn draw_pointed(theme: &Theme, text: Line<'_>, area: Rect, buf: &mut Buffer) {
    let [mark, place] = Layout::horizontal([Constraint::Length(3), Constraint::Min(1)]).areas(area);
    Line::styled(format!(" {}", theme.glyphs.pointer), theme.accent).render(mark, buf);
    Paragraph::new(text).wrap(Wrap { trim: true }).render(place, buf);
}

/// `label value unit`, with the value emphasised.
pub fn label_value<'a>(theme: &Theme, label: &str, value: &str, unit: &str) -> Vec<Span<'a>> {
    let mut spans = Vec::with_capacity(3);
    if !label.is_empty() {
        spans.push(Span::styled(format!("{label} "), theme.dim));
    }
    spans.push(Span::styled(theme.glyphs.plain(value), theme.number));
    if !unit.is_empty() {
        spans.push(Span::styled(format!(" {}", theme.glyphs.plain(unit)), theme.dim));
    }
    spans
}

/// A sentence for a pane without content.
pub fn note<'a>(theme: &Theme, text: &str) -> Line<'a> {
    Line::styled(theme.glyphs.plain(text), theme.dim)
}

/// Draws such a sentence on as many lines as it needs.
pub fn draw_note(theme: &Theme, text: &str, area: Rect, buf: &mut Buffer) {
    let lines = Paragraph::new(note(theme, text)).wrap(Wrap { trim: true });
    lines.render(area.inner(Margin::new(1, 0)), buf);
}

/// The first parts that fit into `width` with a separator between them; more important ones come first.
pub fn fit<'a>(theme: &Theme, parts: Vec<Vec<Span<'a>>>, width: u16) -> Line<'a> {
    let separator = format!(" {} ", theme.glyphs.separator);
    let mut line: Vec<Span<'a>> = Vec::new();
    let mut used = 0;
    for part in parts {
        let gap = if line.is_empty() { 0 } else { separator.width() };
        let wide: usize = part.iter().map(Span::width).sum();
        if used + gap + wide > width as usize {
            continue;
        }
        if gap > 0 {
            line.push(Span::styled(separator.clone(), theme.border));
        }
        line.extend(part);
        used += gap + wide;
    }
    Line::from(line)
}

/// As much of a text as fits, with an ellipsis if it is cut.
pub fn cut(text: &str, width: usize, ascii: bool) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let sign = if ascii { "..." } else { "…" };
    let mut kept = String::new();
    for c in text.chars() {
        if kept.width() + c.width().unwrap_or(0) + sign.width() > width {
            break;
        }
        kept.push(c);
    }
    if kept.is_empty() { kept } else { kept + sign }
}

/// The end of a text, as much as fits, with an ellipsis if it is cut.
pub fn cut_start(text: &str, width: usize, ascii: bool) -> String {
    let total = text.width();
    if total <= width {
        return text.to_owned();
    }
    let sign = if ascii { "..." } else { "…" };
    let Some(room) = width.checked_sub(sign.width()) else { return String::new() };
    let mut skipped = 0;
    let rest = text.char_indices().find(|(_, c)| {
        let fits = total - skipped <= room;
        skipped += c.width().unwrap_or(0);
        fits
    });
    format!("{sign}{}", rest.map_or("", |(at, _)| &text[at..]))
}

/// A text on lines of at most `width`, broken between words; a word longer than a line is broken anywhere.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    wrapped_behind(0, text, width)
}

/// The same if `taken` cells of the first line are in use; that line stays empty if no word fits.
pub fn wrapped_behind(taken: usize, text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let (mut lines, mut line, mut used) = (Vec::new(), String::new(), taken);
    for word in text.split_whitespace() {
        let gap = usize::from(!line.is_empty());
        if used + gap + word.width() <= width {
            line += &" "[..gap];
            line += word;
            used += gap + word.width();
            continue;
        }
        if used > 0 {
            lines.push(std::mem::take(&mut line));
            used = 0;
        }
        for c in word.chars() {
            let wide = c.width().unwrap_or(0);
            if used + wide > width && used > 0 {
                lines.push(std::mem::take(&mut line));
                used = 0;
            }
            line.push(c);
            used += wide;
        }
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

/// The text being typed, scrolled so that the cursor is visible.
pub fn input_line<'a>(style: Style, input: &Input, area: Rect) -> Line<'a> {
    let width = area.width.saturating_sub(1) as usize;
    let skip = input.visual_scroll(width.max(1));
    let shown: Vec<char> = input.value().chars().skip(skip).collect();
    let (before, rest) = shown.split_at(input.cursor().saturating_sub(skip).min(shown.len()));
    let (at, after) = rest.split_at(rest.len().min(1));
    let text = |chars: &[char]| chars.iter().collect::<String>();
    let cursor = Style::new().add_modifier(Modifier::REVERSED);
    Line::from(vec![
        Span::styled(text(before), style),
        Span::styled(if at.is_empty() { " ".to_owned() } else { text(at) }, style.patch(cursor)),
        Span::styled(text(after), style),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_long_text_is_kept() {
        assert_eq!(cut_start("a/b.py:1 f", 20, false), "a/b.py:1 f");
        assert_eq!(cut_start("vllm/sched.py:210 schedule", 14, false), "…:210 schedule");
        assert_eq!(cut_start("vllm/sched.py:210 schedule", 14, true), "...10 schedule");
        assert_eq!(cut_start("漢字漢字", 4, false), "…字");
        assert_eq!((cut_start("abc", 1, false), cut_start("abc", 0, false)), ("…".into(), String::new()));
    }

    #[test]
    fn lines_break_between_words() {
        for (text, width, wanted) in [
            ("one two three", 7, &["one two", "three"][..]),
            ("one  two", 80, &["one two"]),
            ("abcdef gh", 4, &["abcd", "ef", "gh"]),
            ("核 kernel", 3, &["核", "ker", "nel"]),
            ("核", 1, &["核"]),
            ("ab", 0, &["a", "b"]),
            ("", 5, &[]),
        ] {
            assert_eq!(wrapped(text, width), wanted, "{text:?} in {width}");
        }
        assert_eq!(wrapped_behind(4, "one two three", 8), ["one", "two", "three"]);
        assert_eq!(wrapped_behind(7, "one two", 8), ["", "one two"]);
    }
}
