//! Kernels: the GPU's time by kernel, live and from nsys and ncu reports.

mod against;
mod bound;
mod detail;
mod head;
mod same;
mod source;
mod table;
mod timeline;

use crate::{
    pane::Spec,
    ui::{Action, Effect, KernelsExtent, RunCommand},
    view::View,
    widgets::{cut, draw_box, wrapped},
};
use crossterm::event::KeyCode;
use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Margin, Rect},
    text::{Line, Span as Text},
    widgets::{Paragraph, Widget, Wrap},
};
use unicode_width::UnicodeWidthStr;

use self::{
    against::Against,
    bound::Bounds,
    same::rows_of,
    source::{Source, Sources},
};
use gpu_traces::show::TableView;
use llmprof_analysis::classify::Class;
use llmprof_base::{
    cells,
    table::{Cell, Column, Table},
    units::{grouped, percent},
};
use llmprof_event::{
    StepTimeline, Tool, TraceState, WorkKind,
    kernels::{Extent, Group, Sort, SortBy, names as kernel_names},
};

pub struct KernelsPane<'a>(pub View<'a>);

pub const PANE: Spec = Spec {
    title: "Kernels",
    keys: &[KeyCode::Char('4')],
    help: "Kernels: the GPU's time by kernel",
    is_special: false,
    why_empty: "no kernels were recorded",
    has_content: |_, state| {
        let kernels = &state.kernels;
        let live = [&kernels.prefill, &kernels.mixed, &kernels.decode, &kernels.outside];
        let live = live.iter().any(|live| !live.is_empty());
        live || !kernels.reports.is_empty() || kernels.tool_run.is_some()
    },
    draw: |view, area, buf| KernelsPane(view).render(area, buf),
    table: shown_rows,
    select: |ui, by, extent| ui.kernels.move_by(by, extent.kernels),
    row: |ui| &mut ui.kernels.row,
    open: Some(Action::ToggleKernelDetails),
    ..Spec::EMPTY
};

/// The rows as the pane groups, sorts and filters them; each counter is a column.
fn shown_rows(view: &View<'_>) -> Table {
    let mut table = Table::keyed(
        "source,name,operator,range,calls,steps,share_pct,total_ns,mean_ns,median_ns,min_ns,max_ns,stddev_ns,grid,\
         block,registers,shared_bytes,graph_calls,bytes,flops,class",
    );
    let Some(known) = rows(view) else { return table };
    let rows = &known.shown.table.rows;
    let mut counters: Vec<(&str, &str)> =
        rows.iter().flat_map(|row| row.counters.iter().map(|(name, unit, _)| (name, unit))).collect();
    counters.sort_unstable();
    counters.dedup();
    table.columns.extend(counters.iter().map(|(name, unit)| match *unit {
        "" => Column::data((*name).to_owned()),
        unit => Column::data(format!("{name} [{unit}]")),
    }));
    let extent = |extent: Option<Extent>| extent.map(|[x, y, z]| format!("{x}x{y}x{z}"));
    for (row, class) in rows.iter().zip(&known.classes) {
        let times = [row.total_ns, row.mean_ns, row.median_ns, row.min_ns, row.max_ns, row.stddev_ns];
        let mut cells = cells![
            known.source.clone(),
            row.name.clone(),
            row.operator.map(|operator| operator.name()),
            row.range.clone(),
            row.calls,
            known.steps,
            known.shown.share(row),
        ];
        cells.extend(times.map(Cell::from));
        cells.extend(cells![
            extent(row.grid),
            extent(row.block),
            row.registers,
            row.shared_bytes,
            row.graph_calls,
            row.bytes,
            row.flops,
            class.map(|class| class.word()),
        ]);
        cells.extend(counters.iter().map(|(name, _)| Cell::from(row.counters.mean(name))));
        table.push(cells);
    }
    table
}

/// From this width on, the details are next to the table.
const SIDE_BY_SIDE: u16 = 140;
/// The minimum height of the table.
const MIN_TABLE: u16 = 12;

impl Widget for KernelsPane<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let view = &self.0;
        let Some(sources) = Sources::from_view(view) else {
            return empty(view, area, buf);
        };
        let source = sources.shown();
        let shown = source.shown(&view.ui.kernels);
        let open = view.ui.kernels.open && !shown.table.rows.is_empty();
        if open && area.width < SIDE_BY_SIDE {
            return detail::draw(view, &sources, &shown, area, buf);
        }
        let (mut left, below) = split(timeline_of(&source), area);
        if open {
            let [table, details] = Layout::horizontal([Constraint::Fill(1); 2]).areas(left);
            detail::draw(view, &sources, &shown, details, buf);
            left = table;
        }
        table_box(view, &sources, &shown, left, buf);
        if let (Some(timeline), false) = (timeline_of(&source), below.is_empty()) {
            timeline::draw(view, timeline, below, buf);
        }
    }
}

/// The limits of moving by keys.
pub fn extent(view: &View<'_>) -> KernelsExtent {
    let Some(sources) = Sources::from_view(view) else { return KernelsExtent::default() };
    let settings = &view.ui.kernels;
    let source = sources.shown();
    let timeline = timeline_of(&source);
    KernelsExtent {
        sources: sources.all.len(),
        source: sources.index,
        rows: source.shown(settings).table.rows.len(),
        group: source.group(settings),
        operators: source.has_operators(),
        zooms: timeline.map_or(0, |_| timeline::ZOOMS),
        parts: timeline.map_or(0, |timeline| timeline::parts(timeline, settings.zoom)),
    }
}

/// The rows on the screen, for an export.
pub struct KernelRows {
    pub source: String,
    /// The number of steps that divides calls and times.
    pub steps: Option<u64>,
    pub shown: TableView,
    /// One per row.
    pub classes: Vec<Option<Class>>,
}

/// `None` without any kernels.
pub fn rows(view: &View<'_>) -> Option<KernelRows> {
    let source = Sources::from_view(view)?.shown();
    let shown = source.shown(&view.ui.kernels);
    let bounds = Bounds::from_view(view, &source);
    // As in the table: only kernels have a class.
    let known = bounds.are_known(&source, &shown.table.rows);
    let class = |row| bounds.verdict(row).ok().map(|verdict| verdict.class).filter(|_| known);
    let classes = shown.table.rows.iter().map(class).collect();
    Some(KernelRows { source: source.title(), steps: source.steps().map(|(n, _)| n), shown, classes })
}

fn timeline_of<'a>(source: &Source<'a>) -> Option<&'a StepTimeline> {
    match source {
        Source::Live { live, .. } => live.timeline.as_ref(),
        Source::Timed { host, .. } => host.timeline.as_ref(),
        Source::Table { .. } => None,
    }
    .filter(|timeline| !timeline.spans.is_empty())
}

/// The table above, the timeline below if both fit.
fn split(timeline: Option<&StepTimeline>, area: Rect) -> (Rect, Rect) {
    let Some(timeline) = timeline.filter(|_| area.width >= 40) else { return (area, Rect::default()) };
    let room = area.height.saturating_sub(MIN_TABLE);
    let (min, wanted) = (timeline::min_height(timeline), timeline::wanted_height(timeline));
    if room < min {
        return (area, Rect::default());
    }
    // A lane per operator, if that leaves half of the area to the table.
    let height = if wanted <= room.min(area.height / 2) { wanted } else { min };
    let [above, below] = Layout::vertical([Constraint::Min(0), Constraint::Length(height)]).areas(area);
    (above, below)
}

/// The numbers and hints of the source, and its rows.
fn table_box(view: &View<'_>, sources: &Sources<'_>, shown: &TableView, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let source = &sources.shown();
    let what = if matches!(source, Source::Timed { .. }) { "operators" } else { "kernels" };
    let against = Against::from_view(view, source);
    let mut title = match sources.all.len() {
        1 => format!("{what} · {}", source.title()),
        n => format!("{what} · {} · {} of {n}", source.title(), sources.index + 1),
    };
    if let Some(against) = &against {
        title += &format!(" · {}", against.title());
    }
    let room = (area.width as usize).saturating_sub(title.width() + 8);
    let aside = order(view, source);
    let aside = if aside.width() <= room { aside.as_str() } else { "" };
    let inner = draw_box(theme, (&title, aside), area, buf);
    let mut room = inner;
    let mut put = |line: Line<'_>| {
        // Two lines are reserved for the table.
        if room.height > 2 {
            line.render(Rect { height: 1, ..room }, buf);
            room = Rect { y: room.y + 1, height: room.height - 1, ..room };
        }
    };
    if let Some(run) = &view.state.kernels.tool_run {
        let lines = if inner.height > 12 { 3 } else { 1 };
        head::tool_run(theme, run, inner.width).into_iter().take(lines).for_each(&mut put);
    }
    if sources.all.len() > 1 && inner.height > 10 {
        put(tabs(view, sources, inner.width));
    }
    if inner.height > 4 {
        put(head::numbers(view, source, inner.width));
    }
    // At most a quarter of the lines, and only complete sentences.
    let mut left = (inner.height / 4).min(6) as usize;
    for hint in head::hints(view, source, shown) {
        let lines = wrapped(&theme.glyphs.plain(&hint), (inner.width as usize).saturating_sub(2));
        let Some(rest) = left.checked_sub(lines.len()) else { break };
        left = rest;
        lines.into_iter().for_each(|line| put(Line::styled(format!(" {line}"), theme.text)));
    }
    let lines = foot(view, source, shown, against.as_ref(), inner.width);
    let height = (room.height.saturating_sub(MIN_ROWS)).min(lines.len() as u16);
    let [room, below] = Layout::vertical([Constraint::Min(0), Constraint::Length(height)]).areas(room);
    for (line, place) in lines.into_iter().zip(below.rows()) {
        line.render(place, buf);
    }
    table::draw(view, (source, against.as_ref()), shown, room, buf);
}

/// The number of table lines that the foot must leave.
const MIN_ROWS: u16 = 6;
/// Lines for the name of the selected row.
const NAME_LINES: usize = 2;

/// The full name of the selected row, or the kernels in it; and the kernels of the last snapshot that are gone.
fn foot<'a>(
    view: &View<'_>,
    source: &Source<'_>,
    shown: &TableView,
    against: Option<&Against>,
    width: u16,
) -> Vec<Line<'a>> {
    let theme = view.theme;
    let width = (width as usize).saturating_sub(2);
    let rows = &shown.table.rows;
    let Some(row) = rows.get(view.ui.kernels.row).or(rows.last()) else { return Vec::new() };
    let table = source.table();
    let mut names: Vec<String> = Vec::new();
    let parts: Vec<_> = rows_of(&table, source.group(&view.ui.kernels), row).into_iter().collect();
    for part in &parts {
        let name = kernel_names::demangled(&part.name).into_owned();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let text = match names.as_slice() {
        [] => kernel_names::demangled(&row.name).into_owned(),
        [only] if *only == row.name => only.clone(),
        names => format!("{}: {}", row.name, names.join(", ")),
    };
    let mut lines = wrapped(&theme.glyphs.plain(&text), width);
    if lines.len() > NAME_LINES {
        let rest = lines.split_off(NAME_LINES - 1).join(" ");
        lines.push(cut(&rest, width, theme.glyphs.ascii));
    }
    let mut lines: Vec<Line<'a>> =
        lines.into_iter().map(|line| Line::styled(format!(" {line}"), theme.dim)).collect();
    let is_part = |name: &str| name == row.name || parts.iter().any(|part| part.name == name);
    let line = view.state.launches.line_of(is_part).filter(|_| matches!(source, Source::Live { .. }));
    if let Some((place, share)) = line {
        let share = if share < 0.995 { format!(" ({})", percent(100.0 * share)) } else { String::new() };
        let launched = format!("launched from {place}{share}");
        let launched = cut(&theme.glyphs.plain(&launched), width, theme.glyphs.ascii);
        lines.push(Line::styled(format!(" {launched}"), theme.dim));
    }
    if let Some(gone) = against.and_then(Against::gone) {
        let gone = cut(&theme.glyphs.plain(&gone), width, theme.glyphs.ascii);
        lines.push(Line::styled(format!(" {gone}"), theme.dim));
    }
    lines
}

/// Grouping, order and filter of the rows.
fn order(view: &View<'_>, source: &Source<'_>) -> String {
    let settings = &view.ui.kernels;
    let group = match source.group(settings) {
        Group::Operator => "by operator",
        Group::Family => "by family",
        Group::Name => "by name",
        Group::None => "single launches",
    };
    let Sort { by, ascending } = settings.sort;
    let sort = match (by, ascending) {
        (SortBy::Time, false) => "largest first",
        (SortBy::Time, true) => "smallest first",
        (SortBy::Calls, false) => "most calls first",
        (SortBy::Calls, true) => "fewest calls first",
        (SortBy::Mean, false) => "longest mean first",
        (SortBy::Mean, true) => "shortest mean first",
    };
    match settings.filter.as_str() {
        "" => format!("{group}, {sort}"),
        filter => format!("{group}, {sort}, containing \"{filter}\""),
    }
}

/// The sources side by side, the selected one highlighted.
fn tabs<'a>(view: &View<'_>, sources: &Sources<'_>, width: u16) -> Line<'a> {
    let (theme, at) = (view.theme, sources.index);
    let titles = sources.titles();
    let title = |i: usize| format!(" {} ", theme.glyphs.plain(&titles[i]));
    // As many around the selected one as fit.
    let (mut first, mut last, mut used) = (at, at, title(at).width() + 2);
    loop {
        let after = (last + 1 < titles.len()).then(|| title(last + 1).width());
        let before = (first > 0).then(|| title(first - 1).width());
        match (after, before) {
            (Some(wide), _) if used + wide <= width as usize => (last, used) = (last + 1, used + wide),
            (_, Some(wide)) if used + wide <= width as usize => (first, used) = (first - 1, used + wide),
            _ => break,
        }
    }
    let mut spans = vec![Text::raw(" ")];
    for i in first..=last {
        let style = if i == at { theme.badge } else { theme.dim };
        spans.push(Text::styled(cut(&title(i), width as usize, theme.glyphs.ascii), style));
    }
    Line::from(spans)
}

fn count(n: u64) -> String {
    grouped(i64::try_from(n).unwrap_or(i64::MAX))
}

/// Why there are no kernels, and how to record them.
fn empty(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let inner = draw_box(theme, ("kernels", ""), area, buf).inner(Margin::new(1, 0));
    let plain = |text: &str| theme.glyphs.plain(text);
    let kernels = &view.state.kernels;
    let mut lines: Vec<Line<'_>> = Vec::new();
    if let Some(run) = &kernels.tool_run {
        lines.extend(head::tool_run(theme, run, inner.width));
        lines.push(Line::default());
    }
    let run = view.state.run.as_ref();
    let on_gpu = run.is_some_and(|run| run.device.is_cuda());
    // A recording cannot start anything.
    let may = |command: RunCommand| {
        view.replay.is_none() && view.obstacle(&Action::Do(Effect::Run(command))).is_none()
    };
    let tools = may(RunCommand::RunUnder(Tool::Nsys))
        .then_some("n re-runs under nsys, c under ncu; their reports appear here");
    let has_ended = view.state.finished.is_some();
    let live = (may(RunCommand::ToggleKernels) && !has_ended).then_some("K records kernels while they run");
    let (reason, hints) = match kernels.trace.as_ref().map(|trace| (&trace.tool, &trace.state)) {
        Some((tool, TraceState::Refused { reason, remedy })) => {
            lines.push(Line::styled(plain(&format!("{tool} cannot record kernels:")), theme.warn));
            lines.push(Line::styled(plain(reason), theme.text));
            (remedy.clone(), vec![tools])
        }
        _ if has_ended && view.state.followed().is_some() => {
            (view.state.verdict().unwrap_or_default(), Vec::new())
        }
        Some((tool, TraceState::Starting | TraceState::On)) => {
            (format!("{tool} is recording; the first kernels appear within seconds."), vec![tools])
        }
        Some((_, TraceState::Off)) => ("Kernels are not being recorded.".to_owned(), vec![live, tools]),
        None if view.replay.is_some() => ("No kernels recorded up to this moment.".to_owned(), Vec::new()),
        None if run.is_some_and(|run| run.simulated) => {
            ("A simulation runs no kernels.".to_owned(), Vec::new())
        }
        None => match view.state.kind() {
            WorkKind::Watch => {
                let reason =
                    "No workload: `llmprof-tui exec` and `attach` record the kernels of other programs.";
                (reason.to_owned(), Vec::new())
            }
            WorkKind::Server if view.state.device().is_none() => {
                let reason = "No kernels recorded. Those of a server are recorded if runtime.server.command starts it, or if \
                              `llmprof-tui attach` joins it.";
                (reason.to_owned(), Vec::new())
            }
            WorkKind::Program if !view.state.programs.has_cuda() => {
                ("The program has not started CUDA.".to_owned(), Vec::new())
            }
            WorkKind::Python if !has_ended => {
                let reason = "Operators appear after the last measured request: PyTorch is profiled then.";
                (reason.to_owned(), if on_gpu { vec![live, tools] } else { Vec::new() })
            }
            _ if run.is_some() && !on_gpu => {
                ("This run uses the CPU: there are no GPU kernels.".to_owned(), Vec::new())
            }
            _ if has_ended => ("No kernels were recorded.".to_owned(), vec![tools]),
            _ => ("No kernels recorded yet.".to_owned(), vec![live, tools]),
        },
    };
    if !reason.is_empty() {
        lines.push(Line::styled(plain(&reason), theme.text));
    }
    let hints = hints.into_iter().flatten().chain(["llmprof-tui kernels FILE shows an nsys or ncu report"]);
    lines.push(Line::default());
    lines.extend(hints.map(|hint| Line::styled(hint, theme.dim)));
    Paragraph::new(lines).wrap(Wrap { trim: true }).render(inner, buf);
}
