//! Kernels: what the GPU's time goes to, as they run and as nsys and ncu wrote them down.

mod bound;
mod detail;
mod head;
mod source;
mod table;
mod timeline;

use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    text::{Line, Span as Text},
    widgets::{Paragraph, Widget, Wrap},
};
use unicode_width::UnicodeWidthStr;

use self::{
    bound::Bounds,
    source::{Source, looked_at, titles},
};
use crate::{
    analysis::classify::Class,
    event::{
        StepTimeline, TraceState,
        kernels::{Group, SortBy},
    },
    kernels::show::Shown,
    tui::{
        ui::KernelsExtent,
        view::View,
        widgets::{boxed, cut, wrapped},
    },
};

pub struct KernelsPane<'a>(pub View<'a>);

/// From here on what is known of a row stands beside the table.
const SIDE_BY_SIDE: u16 = 140;
/// The table keeps so many lines, whatever is below.
const LEAST_TABLE: u16 = 12;

impl Widget for KernelsPane<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let view = &self.0;
        let Some((all, at, source)) = looked_at(view) else {
            return nothing(view, area, buf);
        };
        let shown = source.shown(&view.ui.kernels);
        let open = view.ui.kernels.open && !shown.table.rows.is_empty();
        if open && area.width < SIDE_BY_SIDE {
            return detail::draw(view, &source, &shown, area, buf);
        }
        let (left, below) = split(timeline_of(&source), area);
        let (left, beside) = match open {
            true => {
                let [left, beside] = Layout::horizontal([Constraint::Fill(1); 2]).areas(left);
                (left, Some(beside))
            }
            false => (left, None),
        };
        table_box(view, (&all, at, &source), &shown, left, buf);
        if let Some(beside) = beside {
            detail::draw(view, &source, &shown, beside, buf);
        }
        if let (Some(timeline), false) = (timeline_of(&source), below.is_empty()) {
            timeline::draw(view, timeline, below, buf);
        }
    }
}

/// What keys can move in.
pub fn extent(view: &View<'_>) -> KernelsExtent {
    let Some((all, at, source)) = looked_at(view) else { return KernelsExtent::default() };
    let look = &view.ui.kernels;
    let timeline = timeline_of(&source);
    KernelsExtent {
        sources: all.len(),
        source: at,
        rows: source.shown(look).table.rows.len(),
        group: source.group(look),
        operators: source.tells_operators(),
        zooms: timeline.map_or(0, |_| timeline::ZOOMS),
        stretches: timeline.map_or(0, |timeline| timeline::stretches(timeline, look.zoom)),
    }
}

/// The rows on the screen, what they are of, and what bounds each.
pub struct KernelRows {
    pub source: String,
    /// Steps that calls and times are shared out over, and what one of them is.
    pub steps: Option<(u64, &'static str)>,
    pub shown: Shown,
    /// One for each row.
    pub classes: Vec<Option<Class>>,
}

/// `None` while no kernel is known.
pub fn rows(view: &View<'_>) -> Option<KernelRows> {
    let (_, _, source) = looked_at(view)?;
    let shown = source.shown(&view.ui.kernels);
    let bounds = Bounds::of(view, &source);
    // As in the table: only kernels have a class.
    let told = bounds.are_told(&source, &shown.table.rows);
    let class = |row| bounds.verdict(row).ok().map(|verdict| verdict.class).filter(|_| told);
    let classes = shown.table.rows.iter().map(class).collect();
    Some(KernelRows { source: source.title(), steps: source.steps(), shown, classes })
}

fn timeline_of<'a>(source: &Source<'a>) -> Option<&'a StepTimeline> {
    match source {
        Source::Live { live, .. } => live.timeline.as_ref(),
        Source::Timed { host, .. } => host.timeline.as_ref(),
        Source::Table { .. } => None,
    }
    .filter(|timeline| !timeline.spans.is_empty())
}

/// The table above, the timeline below where there is room for both.
fn split(timeline: Option<&StepTimeline>, area: Rect) -> (Rect, Rect) {
    let Some(timeline) = timeline.filter(|_| area.width >= 40) else { return (area, Rect::default()) };
    let room = area.height.saturating_sub(LEAST_TABLE);
    let (least, wanted) = (timeline::least_height(timeline), timeline::wanted_height(timeline));
    if room < least {
        return (area, Rect::default());
    }
    // All operators where that leaves the table its half.
    let height = if wanted <= room.min(area.height / 2) { wanted } else { least };
    let [above, below] = Layout::vertical([Constraint::Min(0), Constraint::Length(height)]).areas(area);
    (above, below)
}

/// The source in numbers and words, and its rows.
fn table_box(
    view: &View<'_>,
    (all, at, source): (&[Source<'_>], usize, &Source<'_>),
    shown: &Shown,
    area: Rect,
    buf: &mut Buffer,
) {
    let theme = view.theme;
    let what = if matches!(source, Source::Timed { .. }) { "operators" } else { "kernels" };
    let title = match all.len() {
        1 => format!("{what} · {}", source.title()),
        n => format!("{what} · {} · {} of {n}", source.title(), at + 1),
    };
    let room = (area.width as usize).saturating_sub(title.width() + 8);
    let aside = order(view, source);
    let block = boxed(theme, &title, if aside.width() <= room { &aside } else { "" });
    let inner = block.inner(area);
    block.render(area, buf);
    let mut room = inner;
    let mut put = |line: Line<'_>| {
        // Two lines are the table's, whatever else there is to say.
        if room.height > 2 {
            line.render(Rect { height: 1, ..room }, buf);
            room = Rect { y: room.y + 1, height: room.height - 1, ..room };
        }
    };
    if let Some(run) = &view.state.kernels.tool_run {
        let most = if inner.height > 12 { 3 } else { 1 };
        head::tool_run(theme, run, inner.width).into_iter().take(most).for_each(&mut put);
    }
    if all.len() > 1 && inner.height > 10 {
        put(tabs(view, all, at, inner.width));
    }
    if inner.height > 4 {
        put(head::numbers(view, source, inner.width));
    }
    // A quarter of the room at the most, and only whole sentences.
    let mut left = (inner.height / 4).min(6) as usize;
    for hint in head::hints(view, source, shown) {
        let lines = wrapped(&theme.glyphs.plain(&hint), (inner.width as usize).saturating_sub(2));
        let Some(rest) = left.checked_sub(lines.len()) else { break };
        left = rest;
        lines.into_iter().for_each(|line| put(Line::styled(format!(" {line}"), theme.text)));
    }
    table::draw(view, source, shown, room, buf);
}

/// How the rows are put together and sorted, and what they have to contain.
fn order(view: &View<'_>, source: &Source<'_>) -> String {
    let look = &view.ui.kernels;
    let group = match source.group(look) {
        Group::Operator => "by operator",
        Group::Family => "by family",
        Group::Name => "by name",
        Group::None => "single launches",
    };
    let sort = match look.sort {
        SortBy::Time => "most first",
        SortBy::Calls => "most calls first",
        SortBy::Mean => "longest mean first",
    };
    match look.filter.as_str() {
        "" => format!("{group}, {sort}"),
        filter => format!("{group}, {sort}, containing \"{filter}\""),
    }
}

/// The sources side by side, the chosen one standing out.
fn tabs<'a>(view: &View<'_>, all: &[Source<'_>], at: usize, width: u16) -> Line<'a> {
    let theme = view.theme;
    let titles = titles(all);
    let title = |i: usize| format!(" {} ", theme.glyphs.plain(&titles[i]));
    // As many around the chosen one as there is room for.
    let (mut first, mut last, mut used) = (at, at, title(at).width() + 2);
    loop {
        let after = (last + 1 < all.len()).then(|| title(last + 1).width());
        let before = (first > 0).then(|| title(first - 1).width());
        match (after, before) {
            (Some(wide), _) if used + wide <= width as usize => (last, used) = (last + 1, used + wide),
            (_, Some(wide)) if used + wide <= width as usize => (first, used) = (first - 1, used + wide),
            _ => break,
        }
    }
    let mut spans = vec![Text::raw(" ")];
    for i in first..=last {
        let style = if i == at { theme.selected } else { theme.dim };
        spans.push(Text::styled(cut(&title(i), width as usize, theme.glyphs.ascii), style));
    }
    Line::from(spans)
}

/// Why there is nothing to show, and what would change that.
fn nothing(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let block = boxed(theme, "kernels", "");
    let inner = block.inner(area);
    block.render(area, buf);
    let inner = Rect { x: inner.x + 1, width: inner.width.saturating_sub(2), ..inner };
    let plain = |text: &str| theme.glyphs.plain(text);
    let kernels = &view.state.kernels;
    let mut lines: Vec<Line<'_>> = Vec::new();
    if let Some(run) = &kernels.tool_run {
        lines.extend(head::tool_run(theme, run, inner.width));
        lines.push(Line::default());
    }
    let run = view.state.run.as_ref();
    let on_gpu = run.is_some_and(|run| run.device.is_cuda());
    let mut ways = vec!["n runs the same under nsys, c under ncu; what they find comes here"];
    let why = match kernels.trace.as_ref().map(|trace| (&trace.tool, &trace.state)) {
        Some((tool, TraceState::Refused { reason, remedy })) => {
            lines.push(Line::styled(plain(&format!("{tool} records no kernels:")), theme.warn));
            lines.push(Line::styled(plain(reason), theme.text));
            (!remedy.is_empty()).then(|| remedy.clone())
        }
        Some((tool, TraceState::On)) => {
            Some(format!("{tool} records; the first kernels come within seconds."))
        }
        Some((_, TraceState::Off)) => {
            ways.insert(0, "K records kernels as they run");
            Some("Kernels are not being recorded.".to_owned())
        }
        None if view.replay.is_some() => Some("This recording has no kernels up to here.".to_owned()),
        None if run.is_some_and(|run| run.simulated) => {
            ways.clear();
            Some("A simulation runs no kernels.".to_owned())
        }
        None if view.state.watches() => {
            ways.clear();
            Some("Others' kernels can't be seen from here: run their program under nsys or ncu.".to_owned())
        }
        None if run.is_some() && !on_gpu => {
            ways.clear();
            Some("This run works on the CPU: there are no kernels of a GPU to see.".to_owned())
        }
        None => {
            ways.insert(0, "K records kernels as they run");
            Some("No kernel was recorded yet.".to_owned())
        }
    };
    if view.replay.is_some() {
        // Nothing can be started from a recording.
        ways.clear();
    }
    lines.extend(why.map(|why| Line::styled(plain(&why), theme.text)));
    ways.push("llmprof-tui kernels FILE shows what nsys or ncu wrote elsewhere");
    lines.push(Line::default());
    lines.extend(ways.into_iter().map(|way| Line::styled(plain(way), theme.dim)));
    Paragraph::new(lines).wrap(Wrap { trim: true }).render(inner, buf);
}
