//! The processes on a GPU: users, and their share of it.

use ratatui::{buffer::Buffer, layout::Rect, style::Style, text::Line, widgets::Widget};

use crate::{
    view::View,
    widgets::{cut, fit, label_value},
};
use llmprof_base::{
    foreign::line,
    units::{binary_bytes, percent},
};
use llmprof_event::{GpuProcess, Query};
use llmprof_record::state::GpuState;

/// Maximum listed processes; the others are counted.
const MAX_LISTED: usize = 6;
/// Characters of a name.
const MAX_NAME: usize = 60;

/// The lines of the list; 0 without processes.
pub(super) fn height(gpu: &GpuState) -> u16 {
    match gpu.processes.len() {
        0 => 0,
        n => 1 + n.min(MAX_LISTED) as u16,
    }
}

/// The busiest first, then the largest.
fn sorted(gpu: &GpuState) -> Vec<&GpuProcess> {
    let mut processes: Vec<_> = gpu.processes.iter().collect();
    processes.sort_by_key(|process| std::cmp::Reverse((process.sm_pct, process.mem_bytes)));
    processes
}

fn name(process: &GpuProcess) -> String {
    match &process.name {
        Some(name) => line(name, MAX_NAME),
        None => "outside of this container".to_owned(),
    }
}

/// One line per process, below a heading.
pub(super) fn draw(view: &View<'_>, gpu: &GpuState, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    if area.height < 2 {
        return;
    }
    let mut put = |y: u16, [pid, user, used, memory, name]: [&str; 5], style: Style| {
        let user = cut(user, 12, theme.glyphs.ascii);
        let text = format!(" {pid:>9}  {user:<12} {used:>6} {memory:>12}  {name}");
        let text = cut(&theme.glyphs.plain(&text), area.width as usize, theme.glyphs.ascii);
        Line::styled(text, style).render(Rect { y, height: 1, ..area }, buf);
    };
    let refused = match gpu.info.refusal(Query::ProcessUtilisation) {
        Some(refused) => format!(" · use: {}", refused.reason),
        None if gpu.processes.iter().all(|process| process.own && process.sm_pct.is_none()) => {
            " · use: read while other processes are on the GPU".to_owned()
        }
        None => String::new(),
    };
    let more = gpu.processes.len().saturating_sub(MAX_LISTED);
    let more = if more > 0 { format!(" · {more} more") } else { String::new() };
    put(area.y, ["pid", "user", "use", "memory", &format!("process{more}{refused}")], theme.dim);
    let none = || theme.glyphs.none.to_owned();
    for (process, y) in sorted(gpu).into_iter().take(MAX_LISTED).zip(area.y + 1..area.bottom()) {
        let cells = [
            process.pid.to_string(),
            process.user.as_deref().map_or_else(none, |user| line(user, MAX_NAME)),
            process.sm_pct.map_or_else(none, percent),
            process.mem_bytes.map_or_else(none, binary_bytes),
            name(process) + if process.own { " (this run)" } else { "" },
        ];
        let style = if process.own { theme.text } else { theme.number };
        put(y, cells.each_ref().map(String::as_str), style);
    }
}

/// A summary on one line, if there is no room for the list.
pub(super) fn summary<'a>(view: &View<'_>, gpu: &GpuState, width: u16) -> Option<Line<'a>> {
    let theme = view.theme;
    let mut parts = Vec::new();
    for (i, process) in sorted(gpu).into_iter().enumerate() {
        let facts = [process.user.clone(), process.sm_pct.map(percent), process.mem_bytes.map(binary_bytes)];
        let facts: Vec<String> = facts.into_iter().flatten().map(|fact| line(&fact, MAX_NAME)).collect();
        let label = if i == 0 { format!(" {} on the GPU:", count(gpu)) } else { String::new() };
        let who = if process.own { "this run".to_owned() } else { name(process) };
        parts.push(label_value(theme, &label, &who, &facts.join(", ")));
    }
    (!parts.is_empty()).then(|| fit(theme, parts, width))
}

/// `1 process`, `3 processes`.
pub(super) fn count(gpu: &GpuState) -> String {
    match gpu.processes.len() {
        1 => "1 process".to_owned(),
        n => format!("{n} processes"),
    }
}
