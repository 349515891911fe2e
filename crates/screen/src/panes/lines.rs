//! Lines: the Python lines of a followed program, by the time in which the GPU was idle and by the kernels that they
//! launched.

use crate::{
    pane::Spec,
    theme::Theme,
    view::View,
    widgets::{cut, draw_box, draw_note},
};
use crossterm::event::KeyCode;
use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::{Line, Span as Text},
    widgets::Widget,
};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use llmprof_base::{
    cells,
    table::Table,
    units::{grouped, millis, percent, share_percent},
};
use llmprof_event::HostActivity;
use llmprof_record::state::{HostLine, LaunchGroup, LaunchPlace, Stacks};

pub struct LinesPane<'a>(pub View<'a>);

pub const PANE: Spec = Spec {
    title: "Lines",
    keys: &[KeyCode::Char('i')],
    help: "Lines: Python lines by GPU idle time and by GPU time",
    is_special: true,
    why_empty: "no Python program was followed",
    has_content: |_, state| state.stacks.is_there() || state.launches.is_there(),
    draw: |view, area, buf| LinesPane(view).render(area, buf),
    table: python_lines,
    select: Spec::without_rows,
    row: None,
};

/// The Python lines of a followed program.
fn python_lines(view: &View<'_>) -> Table {
    let mut table = Table::keyed("thread,state,line,share,share_while_gpu_idle");
    for line in view.state.stacks.lines() {
        table.push(cells![line.thread, line.state.to_string(), line.line, line.share, line.idle_share]);
    }
    table
}

const SHARE: usize = 9;
const STATE: usize = 24;
const THREAD: usize = 18;
const KERNEL: usize = 40;
/// From these widths on, the column is there.
const WITH_ALL: u16 = 60;
const WITH_STATE: u16 = 70;
const WITH_THREAD: u16 = 100;

impl Widget for LinesPane<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let view = &self.0;
        if !view.state.launches.is_there() {
            return draw_host(view, area, buf);
        }
        let halves = Layout::vertical([Constraint::Fill(1), Constraint::Fill(1)]);
        let [upper, lower] = halves.areas(area);
        draw_host(view, upper, buf);
        draw_launches(view, lower, buf);
    }
}

/// Where the threads were.
fn draw_host(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let stacks = &view.state.stacks;
    let lines = stacks.lines();
    let inner = draw_box(theme, ("Python lines", &aside(stacks)), area, buf);
    if lines.is_empty() {
        let text = why_empty(view);
        return draw_note(theme, text, inner, buf);
    }
    let columns = Columns::fitting(stacks.idle().is_some(), inner.width);
    titles(theme, &columns).render(Rect { height: 1, ..inner }, buf);
    for (line, y) in lines.iter().zip(inner.y + 1..inner.bottom()) {
        row(theme, line, &columns, inner.width).render(Rect { y, height: 1, ..inner }, buf);
    }
}

/// What the lines launched.
fn draw_launches(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let launches = &view.state.launches;
    let all = launches.all();
    let aside = format!(
        "{} in {} kernels recorded with their launches",
        millis(all.ns as f64 / 1e6),
        grouped(i64::try_from(all.launches).unwrap_or(i64::MAX))
    );
    let inner = draw_box(theme, ("GPU time by line", &aside), area, buf);
    let (with_kernel, with_launches) = (inner.width >= WITH_THREAD, inner.width >= WITH_ALL);
    let mut titles = format!("{:>SHARE$} {:>SHARE$} ", "share", "GPU time");
    if with_launches {
        titles += &format!("{:>SHARE$} ", "launches");
    }
    if with_kernel {
        titles += &format!(" {:<KERNEL$}", "largest kernel");
    }
    Line::styled(titles + " line", theme.dim).render(Rect { height: 1, ..inner }, buf);
    for (place, y) in launches.places(LaunchGroup::Line).iter().zip(inner.y + 1..inner.bottom()) {
        launched_row(theme, place, (with_launches, with_kernel), inner.width)
            .render(Rect { y, height: 1, ..inner }, buf);
    }
}

fn launched_row<'a>(
    theme: &Theme,
    place: &LaunchPlace<'_>,
    (with_launches, with_kernel): (bool, bool),
    width: u16,
) -> Line<'a> {
    let ascii = theme.glyphs.ascii;
    let plain = |text: &str| theme.glyphs.plain(text);
    let cell = |text: String| plain(&format!("{text:>SHARE$} "));
    let mut spans = vec![
        Text::styled(cell(share_percent(100.0 * place.share)), theme.number),
        Text::styled(cell(millis(place.launched.ns as f64 / 1e6)), theme.text),
    ];
    if with_launches {
        let launches = grouped(i64::try_from(place.launched.launches).unwrap_or(i64::MAX));
        spans.push(Text::styled(cell(launches), theme.text));
    }
    if with_kernel {
        let name = place.kernels.first().map_or("", |(name, _)| name);
        spans.push(Text::styled(format!(" {:<KERNEL$}", cut(&plain(name), KERNEL, ascii)), theme.dim));
    }
    let taken: usize = spans.iter().map(Text::width).sum();
    let room = usize::from(width).saturating_sub(taken + 1);
    spans.push(Text::styled(format!(" {}", end_of(&plain(place.text()), room, ascii)), theme.text));
    Line::from(spans)
}

fn why_empty(view: &View<'_>) -> &'static str {
    match (view.state.followed().is_some(), view.state.finished.is_some()) {
        (false, _) => "no Python program: llmprof-tui exec -- python PROGRAM, or attach PID",
        (true, false) => {
            "no line was sampled yet: the threads of Python processes are sampled 50 times per second"
        }
        (true, true) => "no line of a Python program was sampled",
    }
}

/// `GPU idle in 120 of 300 samples between recorded kernels`, or `1,200 samples`.
fn aside(stacks: &Stacks) -> String {
    let count = |n: u64| grouped(i64::try_from(n).unwrap_or(i64::MAX));
    match stacks.idle() {
        Some((idle, recorded)) => {
            format!("GPU idle in {} of {} samples between recorded kernels", count(idle), count(recorded))
        }
        None => format!("{} samples", count(stacks.samples())),
    }
}

/// The columns before the line.
struct Columns {
    idle: bool,
    all: bool,
    state: bool,
    thread: bool,
}

impl Columns {
    fn fitting(has_idle: bool, width: u16) -> Columns {
        Columns {
            idle: has_idle,
            all: !has_idle || width >= WITH_ALL,
            state: width >= WITH_STATE,
            thread: width >= WITH_THREAD,
        }
    }
}

fn titles<'a>(theme: &Theme, columns: &Columns) -> Line<'a> {
    let titles = [
        (columns.idle, format!("{:>SHARE$} ", "GPU idle")),
        (columns.all, format!("{:>SHARE$} ", "all")),
        (columns.state, format!(" {:<STATE$}", "state")),
        (columns.thread, format!(" {:<THREAD$}", "thread")),
        (true, " line".to_owned()),
    ];
    let shown: String =
        titles.into_iter().filter(|(is_shown, _)| *is_shown).map(|(_, title)| title).collect();
    Line::styled(shown, theme.dim)
}

fn row<'a>(theme: &Theme, line: &HostLine<'_>, columns: &Columns, width: u16) -> Line<'a> {
    let ascii = theme.glyphs.ascii;
    let plain = |text: &str| theme.glyphs.plain(text);
    let share = |share: Option<f64>| {
        plain(&format!("{:>SHARE$} ", share.map_or_else(|| "–".to_owned(), |share| percent(100.0 * share))))
    };
    let padded = |text: &str, width: usize| format!(" {:<width$}", cut(&plain(text), width, ascii));
    let cells = [
        (columns.idle, Text::styled(share(line.idle_share), theme.number)),
        (columns.all, Text::styled(share(Some(line.share)), theme.text)),
        (columns.state, Text::styled(padded(&line.state.to_string(), STATE), style(theme, line.state))),
        (columns.thread, Text::styled(padded(&line.thread, THREAD), theme.dim)),
    ];
    let mut spans: Vec<Text<'a>> =
        cells.into_iter().filter(|(is_shown, _)| *is_shown).map(|(_, cell)| cell).collect();
    let taken: usize = spans.iter().map(Text::width).sum();
    let room = usize::from(width).saturating_sub(taken + 1);
    spans.push(Text::styled(format!(" {}", end_of(&plain(line.line), room, ascii)), theme.text));
    Line::from(spans)
}

/// The end of a text, which has the line and the function.
fn end_of(text: &str, width: usize, ascii: bool) -> String {
    let total = text.width();
    if total <= width {
        return text.to_owned();
    }
    let sign = if ascii { "..." } else { "…" };
    let room = width.saturating_sub(sign.width());
    let mut skipped = 0;
    let rest = text.char_indices().find(|(_, c)| {
        let fits = total - skipped <= room;
        skipped += c.width().unwrap_or(0);
        fits
    });
    rest.map_or_else(String::new, |(at, _)| format!("{sign}{}", &text[at..]))
}

fn style(theme: &Theme, state: &HostActivity) -> Style {
    match state {
        HostActivity::RunningPython | HostActivity::RunningNative => theme.decode,
        HostActivity::WaitingForGil | HostActivity::WaitingForLock | HostActivity::WaitingForCpu => {
            theme.warn
        }
        HostActivity::WaitingForGpu => theme.utilisation,
        HostActivity::SystemCall | HostActivity::Sleeping | HostActivity::PageFault => theme.clock,
        HostActivity::Stopped | HostActivity::Unknown | HostActivity::Other(_) => theme.dim,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_long_line_is_kept() {
        assert_eq!(end_of("a/b.py:1 f", 20, false), "a/b.py:1 f");
        assert_eq!(end_of("vllm/sched.py:210 schedule", 14, false), "…:210 schedule");
        assert_eq!(end_of("vllm/sched.py:210 schedule", 14, true), "...10 schedule");
        assert_eq!(end_of("漢字漢字", 4, false), "…字");
        assert_eq!(end_of("abc", 0, false), "");
    }
}
