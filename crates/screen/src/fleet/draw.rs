//! A frame of the fleet: header, list, findings about the selected row, footer; or the history of one GPU.

use jiff::{Timestamp, tz::TimeZone};
use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Position, Rect},
    text::{Line, Span},
    widgets::{Paragraph, Widget},
};
use unicode_width::UnicodeWidthStr;

use super::{
    keys::{BINDINGS, HISTORY_KEYS, Scope},
    table,
    ui::{FleetUi, Node, Opened, Overlay, listed, nodes},
};
use crate::{
    frame::replace_hidden,
    panes::gpu::GpuPane,
    theme::Theme,
    view::View,
    widgets::{ListLayout, cut, draw_box, fit, input_line, inside_box, label_value, note, popup, wrapped},
};
use llmprof_analysis::fleet::{Fleet, GpuVerdict, Order};
use llmprof_base::units::rough_seconds;

/// The input of a frame.
#[derive(Clone, Copy)]
pub struct FleetView<'a> {
    pub ui: &'a FleetUi,
    pub theme: &'a Theme,
    pub fleet: Option<&'a Fleet>,
    /// The address of Prometheus, without a login.
    pub source: &'a str,
    /// Why the last refresh failed.
    pub error: Option<&'a str>,
    /// Seconds since the displayed snapshot was received; `None` in a recording.
    pub age_s: Option<f64>,
    /// The displayed refresh of a recording, the number of refreshes, and whether it is playing.
    pub replay: Option<(usize, usize, bool)>,
    /// Whether a recording is being written.
    pub recording: bool,
}

/// The rows of the list on the screen: the same for drawing and for the mouse.
pub fn list_layout(view: &FleetView<'_>, area: Rect) -> ListLayout {
    let rows = view.fleet.map_or(0, |fleet| match view.ui.nodes {
        true => nodes(fleet, view.ui).len(),
        false => listed(fleet, view.ui).len(),
    });
    let parts = Parts::new(view, area);
    let inside = inside_box(parts.list);
    let body = Rect { y: inside.y + 1, height: inside.height.saturating_sub(1), ..inside };
    ListLayout::scrolled(body, rows, view.ui.row, view.ui.top)
}

/// The line of the titles in the box of the list.
fn heading_of(list: Rect) -> Rect {
    let inside = inside_box(list);
    Rect { height: inside.height.min(1), ..inside }
}

/// The order that a click at `position` selects: on the title of a column.
pub fn order_at(view: &FleetView<'_>, area: Rect, position: Position) -> Option<Order> {
    let hidden = table::empty_columns(view.fleet?);
    table::order_at(view.ui, &hidden, heading_of(Parts::new(view, area).list), position)
}

struct Parts {
    header: Rect,
    map: Rect,
    list: Rect,
    words: Rect,
    footer: Rect,
}

impl Parts {
    fn new(view: &FleetView<'_>, area: Rect) -> Parts {
        let words = match area.height {
            0..=11 => 0,
            12..=29 => 4,
            _ => 5,
        };
        let map = if area.height >= 34 && !view.ui.nodes { map_height(view, area) } else { 0 };
        let [header, map, list, words, footer] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(map),
            Constraint::Min(0),
            Constraint::Length(words),
            Constraint::Length(1),
        ])
        .areas(area);
        Parts { header, map, list, words, footer }
    }
}

impl Widget for FleetView<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        buf.set_style(area, self.theme.ground);
        if area.width < 24 || area.height < 5 {
            return Line::raw("llmprof: too small").render(area, buf);
        }
        match &self.ui.opened {
            Some(opened) => draw_history(&self, opened, area, buf),
            None => draw_list(&self, area, buf),
        }
        match &self.ui.overlay {
            Overlay::None => {}
            Overlay::Help { scroll } => help(&self, *scroll, area, buf),
            Overlay::Filter(input) => {
                let place = popup(self.theme, ("filter", "Enter applies · Esc closes"), (60, 3), area, buf);
                input_line(self.theme.text, input, place).render(place, buf);
            }
        }
        replace_hidden(if self.theme.glyphs.ascii { "?" } else { "\u{fffd}" }, buf);
    }
}

/// The time of day by the local clock.
fn clock(unix_s: f64) -> String {
    let moment = Timestamp::from_millisecond((unix_s * 1e3) as i64).unwrap_or_default();
    moment.to_zoned(TimeZone::system()).strftime("%H:%M:%S").to_string()
}

/// The age above which a snapshot counts as old: a refresh has failed, or is slow.
const OLD_S: f64 = 45.0;

fn header(view: &FleetView<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let mut right = Vec::new();
    if view.recording {
        right.push(vec![Span::styled("recording", theme.accent)]);
    }
    match (view.replay, view.fleet) {
        (Some((at, of, playing)), fleet) => {
            let sign = if playing { theme.glyphs.play } else { theme.glyphs.pause };
            let time = fleet.map_or_else(String::new, |fleet| clock(fleet.snapshot.unix_s));
            right.insert(
                0,
                vec![Span::styled(format!("{sign} {time} refresh {}/{of}", at + 1), theme.accent)],
            );
        }
        (None, Some(fleet)) => {
            let age = view.age_s.unwrap_or(0.0);
            let style = if view.error.is_some() || age > OLD_S { theme.bad } else { theme.dim };
            right.insert(0, vec![Span::styled(format!("{} old", rough_seconds(age)), style)]);
            if area.width >= 100 {
                let took = format!("{:.0}", fleet.snapshot.took_ms);
                right.push(label_value(theme, "query", &took, "ms"));
            }
        }
        (None, None) => {
            let text = if view.error.is_some() { "no answer" } else { "querying Prometheus" };
            right.insert(0, vec![Span::styled(text, theme.warn)]);
        }
    }
    let right = fit(theme, right, area.width / 2);
    let badge = vec![Span::styled(" llmprof fleet ", theme.badge)];
    let mut left = Line::from(badge);
    left.push_span(Span::raw(" "));
    let room = area.width.saturating_sub(right.width() as u16 + left.width() as u16 + 3);
    let mut parts = Vec::new();
    if let Some(fleet) = view.fleet {
        let totals = &fleet.totals;
        parts.push(label_value(theme, "", &totals.gpus.to_string(), "GPUs"));
        for (n, what, style) in [
            (totals.slow, "slow", theme.heat[4]),
            (totals.errors, "with errors", theme.bad),
            (totals.silent, "silent", theme.warn),
        ] {
            if n > 0 {
                parts.push(vec![Span::styled(format!("{n} {what}"), style)]);
            }
        }
        parts.push(label_value(theme, "on", &totals.nodes.to_string(), "nodes"));
        for (n, what) in [(totals.limited, "limited"), (totals.unknown, "unknown"), (totals.idle, "idle")] {
            if n > 0 {
                parts.push(label_value(theme, "", &n.to_string(), what));
            }
        }
    }
    parts.push(vec![Span::styled(theme.glyphs.plain(view.source), theme.dim)]);
    left.spans.extend(fit(theme, parts, room).spans);
    left.render(area, buf);
    let place = Rect { width: area.width.saturating_sub(1), ..area };
    right.right_aligned().render(place, buf);
}

fn draw_list(view: &FleetView<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let parts = Parts::new(view, area);
    header(view, parts.header, buf);
    let Some(fleet) = view.fleet else {
        let inner = draw_box(theme, ("fleet", ""), parts.list, buf);
        let text = view.error.unwrap_or("querying Prometheus for GPUs…");
        let lines = wrapped(&theme.glyphs.plain(text), inner.width.saturating_sub(2) as usize);
        let style = if view.error.is_some() { theme.warn } else { theme.dim };
        for (line, y) in lines.into_iter().zip(inner.top() + 1..inner.bottom()) {
            buf.set_string(inner.x + 1, y, line, style);
        }
        return footer(view, parts.footer, buf);
    };
    if parts.map.height > 0 {
        draw_map(view, fleet, parts.map, buf);
    }
    let layout = list_layout(view, area);
    let all_nodes = if view.ui.nodes { nodes(fleet, view.ui) } else { Vec::new() };
    let all_rows = if view.ui.nodes { Vec::new() } else { listed(fleet, view.ui) };
    let n = if view.ui.nodes { all_nodes.len() } else { all_rows.len() };
    let what = match (&view.ui.node, view.ui.nodes) {
        (_, true) => "nodes".to_owned(),
        (Some(node), false) => format!("GPUs of {node}"),
        (None, false) => "GPUs".to_owned(),
    };
    let reversed = if view.ui.reversed { ", reversed" } else { "" };
    let mut title = format!("{what} · by {}{reversed}", view.ui.order);
    if !view.ui.filter.is_empty() {
        title += &format!(" · filter {:?}", view.ui.filter);
    }
    let title = cut(&title, parts.list.width.saturating_sub(22) as usize, theme.glyphs.ascii);
    let aside = if n == 0 { String::new() } else { format!("{} of {n}", layout.selected + 1) };
    draw_box(theme, (&title, &aside), parts.list, buf);
    let hidden = table::empty_columns(fleet);
    let heading = heading_of(parts.list);
    if n == 0 {
        let text = if view.ui.filter.is_empty() {
            "no GPU"
        } else {
            "no GPU contains that text; Esc clears the filter"
        };
        note(theme, &format!(" {text}")).render(heading, buf);
    } else {
        table::heading(theme, view.ui, &hidden, heading, buf);
    }
    for (i, place) in layout.rows() {
        let selected = i == layout.selected;
        if let Some(node) = all_nodes.get(i) {
            table::draw_node(theme, fleet, node, selected, place, buf);
        } else if let Some(row) = all_rows.get(i) {
            table::draw_gpu(theme, fleet, &fleet.rows[*row], &hidden, selected, place, buf);
        }
    }
    let selected = all_rows.get(layout.selected).map(|i| &fleet.rows[*i]);
    words(view, fleet, selected, all_nodes.get(layout.selected), parts.words, buf);
    footer(view, parts.footer, buf);
}

/// The findings about the selected row; below it, the notes on the data.
fn words(
    view: &FleetView<'_>,
    fleet: &Fleet,
    row: Option<&GpuVerdict>,
    node: Option<&Node<'_>>,
    area: Rect,
    buf: &mut Buffer,
) {
    if area.height == 0 {
        return;
    }
    let theme = view.theme;
    let width = area.width.saturating_sub(4) as usize;
    let mut lines: Vec<(String, ratatui::style::Style)> = Vec::new();
    if let Some(error) = view.error {
        let text = format!("The last refresh failed: {error}");
        lines.extend(wrapped(&text, width).into_iter().map(|line| (line, theme.bad)));
    }
    if let Some(row) = row {
        let gpu = fleet.gpu(row);
        let text = format!("{} GPU {}: {}", gpu.node, gpu.index(), fleet.sentence(row));
        lines.extend(wrapped(&text, width).into_iter().map(|line| (line, theme.text)));
    }
    if let Some(node) = node {
        let text = match node.lost_gpus > 0.0 {
            true => format!(
                "{}: its GPUs lose the speed of {:.2} GPUs in total (estimated from their clocks and those of peers). \
                 Enter lists them.",
                node.name, node.lost_gpus
            ),
            false => format!("{}: no GPU is slower than its peers. Enter lists them.", node.name),
        };
        lines.extend(wrapped(&text, width).into_iter().map(|line| (line, theme.text)));
    }
    let remark = fleet.remarks.first().map(|remark| {
        let more = match fleet.remarks.len() {
            1 => String::new(),
            n => format!(" (and {} more: --once prints them)", n - 1),
        };
        format!("Note: {remark}{more}")
    });
    let rest = (area.height as usize).saturating_sub(lines.len());
    let remarks = remark.map(|text| wrapped(&text, width)).unwrap_or_default();
    lines.extend(remarks.into_iter().take(rest).map(|line| (line, theme.dim)));
    for (i, ((line, style), y)) in lines.into_iter().zip(area.top()..area.bottom()).enumerate() {
        if i == 0 {
            buf.set_string(area.x + 1, y, theme.glyphs.pointer, theme.accent);
        }
        buf.set_stringn(area.x + 3, y, theme.glyphs.plain(&line), width, style);
    }
}

/// Width of a node on the map, and the length of its name.
fn map_cell(fleet: &Fleet) -> (u16, u16, usize) {
    let mut counts: Vec<(&str, u16)> = Vec::new();
    for gpu in &fleet.snapshot.gpus {
        match counts.last_mut().filter(|(name, _)| *name == gpu.node) {
            Some((_, n)) => *n += 1,
            None => counts.push((&gpu.node, 1)),
        }
    }
    let name = counts.iter().map(|(name, _)| name.width() as u16).max().unwrap_or(0).min(18);
    let gpus = counts.iter().map(|(_, n)| *n).max().unwrap_or(0).min(32);
    (name + 1 + gpus + 3, name, counts.len())
}

fn map_height(view: &FleetView<'_>, area: Rect) -> u16 {
    let Some(fleet) = view.fleet else { return 0 };
    let (cell, _, n) = map_cell(fleet);
    let across = (area.width.saturating_sub(3) / cell.max(1)).max(1) as usize;
    (n.div_ceil(across) as u16 + 2).min(area.height / 4)
}

/// A dot per GPU, node by node.
fn draw_map(view: &FleetView<'_>, fleet: &Fleet, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let (cell, name_width, n) = map_cell(fleet);
    let inside = inside_box(area);
    let across = (inside.width.saturating_sub(1) / cell.max(1)).max(1) as usize;
    let fitting = across * inside.height as usize;
    let aside = match n > fitting {
        true => format!("one dot per GPU · {fitting} of {n} nodes"),
        false => "one dot per GPU".to_owned(),
    };
    let inner = draw_box(theme, ("map", &aside), area, buf);
    let mut by_place: Vec<Option<&GpuVerdict>> = vec![None; fleet.snapshot.gpus.len()];
    fleet.rows.iter().for_each(|row| by_place[row.at] = Some(row));
    let (mut at, mut node) = (0, 0);
    while at < by_place.len() && node < fitting {
        let name = &fleet.snapshot.gpus[at].node;
        let end = fleet.snapshot.gpus[at..].iter().take_while(|gpu| gpu.node == *name).count() + at;
        // Column by column.
        let rows = n.div_ceil(across).clamp(1, inner.height.max(1) as usize);
        let (column, line) = (node / rows, node % rows);
        let (x, y) = (inner.x + 1 + column as u16 * cell, inner.y + line as u16);
        if x + cell <= inner.right() + 2 {
            buf.set_stringn(
                x,
                y,
                cut(name, name_width as usize, theme.glyphs.ascii),
                name_width as usize,
                theme.dim,
            );
            for (row, i) in by_place[at..end].iter().flatten().zip(0..cell - name_width - 3) {
                let (sign, style) = table::sign(theme, row);
                buf.set_stringn(x + name_width + 1 + i, y, sign, 1, style);
            }
        }
        (at, node) = (end, node + 1);
    }
}

fn draw_history(view: &FleetView<'_>, opened: &Opened, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let gpu = &opened.gpu;
    let [head, body, words, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(if area.height >= 20 { 3 } else { 0 }),
        Constraint::Length(1),
    ])
    .areas(area);
    let mut parts = vec![
        vec![Span::styled(format!("{} GPU {}", gpu.node, gpu.index()), theme.number)],
        vec![Span::styled(gpu.short_model().to_owned(), theme.text)],
    ];
    if let (Some(state), Some(end)) = (&opened.state, opened.end_unix_s) {
        let span = rough_seconds(state.now.secs());
        parts.push(label_value(theme, "", &span, &format!("up to {}", clock(end))));
        parts.push(label_value(theme, "one value in", &rough_seconds(opened.step_s), ""));
    }
    parts.extend(gpu.work.clone().map(|work| label_value(theme, "work", &work, "")));
    parts.extend(gpu.uuid.clone().map(|uuid| vec![Span::styled(uuid, theme.dim)]));
    let mut line = Line::from(vec![Span::styled(" llmprof fleet ", theme.badge), Span::raw(" ")]);
    let room = head.width.saturating_sub(line.width() as u16);
    line.spans.extend(fit(theme, parts, room).spans);
    line.render(head, buf);
    match (&opened.state, &opened.error) {
        (Some(state), _) => GpuPane(View::new(state, &opened.ui, theme)).render(body, buf),
        (None, error) => {
            let inner = draw_box(theme, ("history", ""), body, buf);
            let text = error.as_deref().unwrap_or("querying Prometheus for its history…");
            let style = if error.is_some() { theme.warn } else { theme.dim };
            let lines = wrapped(&theme.glyphs.plain(text), inner.width.saturating_sub(2) as usize);
            for (line, y) in lines.into_iter().zip(inner.top() + 1..inner.bottom()) {
                buf.set_string(inner.x + 1, y, line, style);
            }
        }
    }
    let row = view.fleet.and_then(|fleet| {
        let row = fleet.rows.iter().find(|row| fleet.gpu(row).key == gpu.key)?;
        Some(fleet.sentence(row))
    });
    let failed = opened.error.as_ref().filter(|_| opened.state.is_some());
    let failed = failed.map(|e| format!("The history was not read again: {e}"));
    if let Some(text) = failed.or(row) {
        let width = words.width.saturating_sub(4) as usize;
        let lines = wrapped(&theme.glyphs.plain(&text), width);
        for (i, (line, y)) in lines.into_iter().zip(words.top()..words.bottom()).enumerate() {
            if i == 0 {
                buf.set_string(words.x + 1, y, theme.glyphs.pointer, theme.accent);
            }
            buf.set_stringn(words.x + 3, y, line, width, theme.text);
        }
    }
    let arrows = if theme.glyphs.ascii { ["left right", "up down"] } else { ["← →", "↑ ↓"] };
    let refresh = view.replay.is_none().then_some(("r", "refresh"));
    let first = [(arrows[0], "cursor"), (arrows[1], "reading"), ("+ -", "zoom")].into_iter().chain(refresh);
    let keys: Vec<(&str, &str)> = first.chain([("Esc", "back"), ("?", "help"), ("q", "quit")]).collect();
    key_line(view, &keys, foot, buf);
}

fn key_line(view: &FleetView<'_>, keys: &[(&str, &str)], area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let place = Rect { width: area.width.saturating_sub(1), ..area };
    let width = place.width as usize;
    // A message has priority; the last keys stay.
    let mut left = width;
    if let Some(message) = &view.ui.message {
        let text = cut(message, width.saturating_sub(1), theme.glyphs.ascii);
        buf.set_stringn(area.x + 1, area.y, &text, width.saturating_sub(1), theme.warn);
        left = width.saturating_sub(text.width() + 1);
    }
    let fits = |(key, what): &&(&str, &str)| {
        let needed = key.width() + what.width() + 3;
        let fits = left >= needed;
        left = if fits { left - needed } else { 0 };
        fits
    };
    let mut shown: Vec<&(&str, &str)> = keys.iter().rev().take_while(fits).collect();
    shown.reverse();
    let spans = shown.into_iter().flat_map(|(key, what)| {
        [Span::styled(format!("  {key}"), theme.accent), Span::styled(format!(" {what}"), theme.dim)]
    });
    spans.collect::<Line<'_>>().right_aligned().render(place, buf);
}

fn footer(view: &FleetView<'_>, area: Rect, buf: &mut Buffer) {
    let ascii = view.theme.glyphs.ascii;
    let active = |scope: Scope| match scope {
        Scope::Anywhere => true,
        Scope::Replay => view.replay.is_some(),
    };
    let name = |short: &'static str| match short {
        "history" if view.ui.nodes => "open",
        "nodes" if view.ui.nodes => "GPUs",
        "play" if view.replay.is_some_and(|(.., playing)| playing) => "pause",
        short => short,
    };
    let shown = BINDINGS.iter().filter(|b| !b.short.is_empty() && active(b.scope));
    let live = shown.filter(|b| view.replay.is_none() || b.short != "refresh");
    let keys: Vec<(String, &str)> =
        live.map(|b| (crate::keys::key_name(b.keys[0], ascii), name(b.short))).collect();
    let keys: Vec<(&str, &str)> = keys.iter().map(|(key, short)| (key.as_str(), *short)).collect();
    key_line(view, &keys, area, buf);
}

fn help_lines<'a>(view: &FleetView<'_>) -> Vec<Line<'a>> {
    let theme = view.theme;
    let row = |keys: String, help: &'static str| {
        let keys = theme.glyphs.plain(&keys);
        Line::from(vec![Span::styled(format!("  {keys:<10} "), theme.number), Span::styled(help, theme.text)])
    };
    let title = |text: &'static str| Line::styled(format!(" {text}"), theme.accent);
    let of = |scope: Scope| {
        let bindings = BINDINGS.iter().filter(move |b| b.scope == scope);
        bindings.map(|b| row(b.label(theme.glyphs.ascii), b.help)).collect::<Vec<_>>()
    };
    let mut lines = vec![title("list")];
    lines.extend(of(Scope::Anywhere));
    lines.extend([Line::default(), title("history of a GPU")]);
    lines.extend(HISTORY_KEYS.map(|(keys, help)| row(keys.to_owned(), help)));
    lines.extend([Line::default(), title("recording (--replay)")]);
    lines.extend(of(Scope::Replay));
    lines.extend([Line::default(), title("terms")]);
    for (word, help) in [
        ("slow", "clock below median - 3 sigma (MAD) of 4 or more peers"),
        ("peers", "same model, same job; without job labels, similar activity"),
        ("lost", "1 - clock / median: an estimate, and an upper bound"),
        ("silent", "not scraped for 2 min or longer; not the same as idle"),
        ("limited", "a limit is active, and its peers are as slow"),
    ] {
        lines.push(row(word.to_owned(), help));
    }
    lines
}

/// The largest scroll of the help.
pub fn help_end(view: &FleetView<'_>, area: Rect) -> usize {
    (help_lines(view).len() + 2).saturating_sub(area.height as usize)
}

fn help(view: &FleetView<'_>, scroll: usize, area: Rect, buf: &mut Buffer) {
    let lines = help_lines(view);
    let hint =
        if view.theme.glyphs.ascii { "up, down scroll - Esc closes" } else { "↑ ↓ scroll · Esc closes" };
    let inner = popup(view.theme, ("help", hint), (78, lines.len() as u16 + 2), area, buf);
    let scroll = scroll.min(help_end(view, area));
    Paragraph::new(lines).scroll((scroll as u16, 0)).render(inner, buf);
}
