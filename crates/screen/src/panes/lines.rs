//! Lines: the Python lines of a followed program, by the time in which the GPU was idle.

use crate::{
    export::data,
    pane::Spec,
    theme::Theme,
    view::View,
    widgets::{cut, draw_box, draw_note},
};
use crossterm::event::KeyCode;
use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::Style,
    text::{Line, Span as Text},
    widgets::Widget,
};

use llmprof_base::units::{grouped, percent};
use llmprof_event::HostActivity;
use llmprof_record::state::{HostLine, Stacks};

pub struct LinesPane<'a>(pub View<'a>);

pub const PANE: Spec = Spec {
    title: "Lines",
    keys: &[KeyCode::Char('i')],
    help: "Lines: the Python lines of another program, and those while the GPU was idle",
    is_special: true,
    why_empty: "no Python program was followed",
    has_content: |_, state| state.stacks.is_there(),
    draw: |view, area, buf| LinesPane(view).render(area, buf),
    table: data::python_lines,
    select: Spec::without_rows,
    row: None,
};

const SHARE: usize = 9;
const STATE: usize = 24;
const THREAD: usize = 18;
/// From this width on, the thread is a column.
const WITH_THREAD: u16 = 100;

impl Widget for LinesPane<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let view = &self.0;
        let theme = view.theme;
        let stacks = &view.state.stacks;
        let lines = stacks.lines();
        let inner = draw_box(theme, ("Python lines", &aside(stacks)), area, buf);
        if lines.is_empty() {
            let text = "No lines yet: the threads of a Python program that is started by exec or joined by attach are sampled 50 times per \
                        second (profiling.stacks).";
            return draw_note(theme, text, inner, buf);
        }
        let has_idle = stacks.idle().is_some();
        titles(theme, has_idle, inner.width).render(Rect { height: 1, ..inner }, buf);
        for (line, y) in lines.iter().zip(inner.y + 1..inner.bottom()) {
            row(theme, line, has_idle, inner.width).render(Rect { y, height: 1, ..inner }, buf);
        }
    }
}

/// `GPU idle 120 of 300 recorded samples · 1,200 samples`.
fn aside(stacks: &Stacks) -> String {
    let count = |n: u64| grouped(i64::try_from(n).unwrap_or(i64::MAX));
    match stacks.idle() {
        Some((idle, recorded)) => {
            format!("GPU idle in {} of {} samples while kernels were recorded", count(idle), count(recorded))
        }
        None => format!("{} samples", count(stacks.samples())),
    }
}

fn titles<'a>(theme: &Theme, has_idle: bool, width: u16) -> Line<'a> {
    let idle = if has_idle { format!("{:>SHARE$} ", "GPU idle") } else { String::new() };
    let thread = if width >= WITH_THREAD { format!("{:<THREAD$} ", "thread") } else { String::new() };
    Line::styled(format!("{idle}{:>SHARE$}  {:<STATE$} {thread}{}", "all", "state", "line"), theme.dim)
}

fn row<'a>(theme: &Theme, line: &HostLine<'_>, has_idle: bool, width: u16) -> Line<'a> {
    let share = |share: Option<f64>| share.map_or_else(|| "–".to_owned(), |share| percent(100.0 * share));
    let ascii = theme.glyphs.ascii;
    let plain = |text: &str| theme.glyphs.plain(text);
    let mut spans = Vec::new();
    if has_idle {
        spans.push(Text::styled(plain(&format!("{:>SHARE$} ", share(line.idle_share))), theme.number));
    }
    spans.push(Text::styled(plain(&format!("{:>SHARE$}  ", share(Some(line.share)))), theme.text));
    let state = cut(&plain(&line.state.to_string()), STATE, ascii);
    spans.push(Text::styled(format!("{state:<STATE$} "), style(theme, line.state)));
    if width >= WITH_THREAD {
        let thread = cut(&plain(line.thread), THREAD, ascii);
        spans.push(Text::styled(format!("{thread:<THREAD$} "), theme.dim));
    }
    let taken: usize = spans.iter().map(Text::width).sum();
    let room = usize::from(width).saturating_sub(taken);
    spans.push(Text::styled(cut(&plain(line.line), room, ascii), theme.text));
    Line::from(spans)
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
