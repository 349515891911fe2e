//! Several GPUs: one row each, with the history of every reading below its value.

use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    style::{Modifier, Style},
    text::{Line, Span},
    widgets::Widget,
};

use super::{processes, row, stale};
use crate::{
    layout::Hit,
    panes::lanes::HOLD_NS,
    view::View,
    widgets::{Chart, cut, draw_box, spans},
};
use llmprof_base::{
    foreign::line,
    units::{GIB, percent, three_digits},
};
use llmprof_event::{readings::Reading, reasons};
use llmprof_record::state::{Bucket, GpuState};

/// The columns with a chart: their heading and the width of their values.
const READINGS: [(Reading, &str, u16); 5] = [
    (Reading::GpuUtil, "use", 7),
    (Reading::Power, "power", 11),
    (Reading::Temp, "temp", 7),
    (Reading::SmClock, "SM clock", 10),
    (Reading::MemUsed, "memory", 14),
];
const INDEX: u16 = 4;
const NAME: u16 = 11;
const MAX_NAME: u16 = 26;
const LIMIT: u16 = 12;
/// Maximum characters of a GPU's name or an error message, which are untrusted.
const MAX_CHARS: usize = 80;

/// Maximum lines of a row: its values, charts and a blank one.
const MAX_ROW: u16 = 7;
/// Rows of at least this height end with a blank line.
const SPACED: u16 = 4;

/// The height the table needs: values, and a line of charts if there is room for it.
pub(super) fn least_height(view: &View<'_>, area: Rect) -> u16 {
    let gpus = view.state.gpus.len() as u16;
    let frame = 3;
    if 2 * gpus + frame < area.height { 2 * gpus + frame } else { gpus + frame }
}

/// The areas of a row, from left to right: index, name, readings, limit. Those that do not fit are empty.
fn columns(area: Rect) -> [Rect; 8] {
    let mut widths = READINGS.map(|(.., width)| width);
    let mut limit = LIMIT;
    let fixed = INDEX + NAME;
    for dropped in (1..widths.len()).rev() {
        if fixed + limit + widths.iter().sum::<u16>() > area.width {
            widths[dropped] = 0;
        }
    }
    if fixed + limit + widths[0] > area.width {
        limit = 0;
    }
    let spare = area.width.saturating_sub(fixed + limit + widths.iter().sum::<u16>());
    let name = NAME + (spare / 3).min(MAX_NAME - NAME);
    let each = (spare - (name - NAME)) / 6;
    let [using, power, temp, clock, memory] = widths.map(|width| if width > 0 { width + each } else { 0 });
    Layout::horizontal([
        Constraint::Length(INDEX),
        Constraint::Length(name),
        Constraint::Length(using),
        Constraint::Length(power),
        Constraint::Length(temp),
        Constraint::Length(clock),
        Constraint::Length(memory),
        if limit > 0 { Constraint::Fill(1) } else { Constraint::Length(0) },
    ])
    .areas(area)
}

/// Draws the table, which always includes the selected GPU.
pub(super) fn draw(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let gpus = &view.state.gpus;
    let (from, to) = view.time_range();
    let span = format!("last {:.0} s", to.since(from).as_secs_f64());
    let keys = if theme.glyphs.ascii { "up down" } else { "↑ ↓" };
    let aside = match area.width {
        70.. => format!("{keys} select, Enter opens · {span}"),
        _ => span,
    };
    let inner = draw_box(theme, (&format!("{} GPUs", gpus.len()), &aside), area, buf);
    if inner.height < 2 {
        return;
    }
    heading(view, Rect { height: 1, ..inner }, buf);
    let body = Rect { y: inner.y + 1, height: inner.height - 1, ..inner };
    let height = (body.height / gpus.len() as u16).clamp(1, MAX_ROW);
    let fitting = (body.height / height).max(1) as usize;
    let first = (view.gpu_index() + 1).saturating_sub(fitting);
    let places = (body.y..).step_by(height as usize).take(fitting);
    for ((i, gpu), y) in gpus.iter().enumerate().skip(first).zip(places) {
        draw_gpu(view, (i, gpu), Rect { y, height: height.min(body.bottom() - y), ..body }, buf);
    }
}

fn heading(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let [index, name, readings @ .., limit] = columns(area);
    let dim = view.theme.dim;
    Line::styled(" GPU", dim).render(index.union(name), buf);
    for (place, (_, text, _)) in readings.into_iter().zip(READINGS) {
        Line::styled(text, dim).right_aligned().render(place, buf);
    }
    Line::styled("  limit now", dim).render(limit, buf);
}

fn draw_gpu(view: &View<'_>, (i, gpu): (usize, &GpuState), area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    view.on_click(area, Hit::Row(i));
    let values = Rect { height: 1, ..area };
    let selected = i == view.gpu_index();
    if selected {
        buf.set_style(values, theme.selected);
    }
    let style = |style: Style| if selected { style.patch(theme.selected) } else { style };
    let [index, name, readings @ .., limit] = columns(values);
    let strong = style(theme.number.add_modifier(Modifier::BOLD));
    Line::styled(format!(" {}", gpu.info.index), strong).render(index, buf);
    let name_only = gpu.info.name.trim_start_matches("NVIDIA ").trim_start_matches("GeForce ");
    let short = line(name_only, MAX_CHARS);
    let put = |text: &str, place: Rect, style: Style, buf: &mut Buffer| {
        let text = cut(&theme.glyphs.plain(text), place.width as usize, theme.glyphs.ascii);
        Line::styled(text, style).render(place, buf);
    };
    put(&short, name, style(theme.text), buf);
    let charts = area.height - 1 - u16::from(area.height >= SPACED);
    let below = Rect { y: area.y + 1, height: charts, ..area };
    if charts > 0 {
        put(&about(gpu), Rect { height: 1, ..columns(below)[1] }, theme.dim, buf);
    }
    let rest = readings[0].union(limit);
    if let Some((_, lost)) = &gpu.lost {
        let place = Rect { x: rest.x + 2, width: rest.width.saturating_sub(2), ..rest };
        return put(&line(&lost.reason, MAX_CHARS), place, style(theme.bad), buf);
    }
    for (place, (reading, ..)) in readings.into_iter().zip(READINGS) {
        let text = value(gpu, reading).unwrap_or_else(|| theme.glyphs.none.to_owned());
        Line::styled(theme.glyphs.plain(&text), style(theme.text)).right_aligned().render(place, buf);
        draw_history(view, gpu, reading, Rect { y: below.y, height: below.height, ..place }, buf);
    }
    let place = Rect { x: limit.x + 2, width: limit.width.saturating_sub(2), ..limit };
    let (text, colour) = limits(view, gpu, style);
    put(&text, place, colour, buf);
    if charts > 0 {
        draw_limits(view, gpu, Rect { y: below.bottom() - 1, ..place }, buf);
    }
}

/// The text of a GPU's row in addition to its readings.
fn about(gpu: &GpuState) -> String {
    let mut parts = Vec::new();
    if gpu.info.profiled {
        parts.push("profiled".to_owned());
    }
    if !gpu.processes.is_empty() {
        parts.push(processes::count(gpu));
    }
    parts.join(", ")
}

fn value(gpu: &GpuState, reading: Reading) -> Option<String> {
    let info = &gpu.info;
    let value = gpu.value(reading)?;
    let of = |limit: Option<f64>| limit.map_or_else(String::new, |limit| format!("/{}", three_digits(limit)));
    Some(match reading {
        Reading::Power => format!("{value:.0}{} W", of(info.power_limit_w.map(f64::from))),
        Reading::Temp => format!("{value:.0} °C"),
        Reading::SmClock => format!("{value:.0} MHz"),
        Reading::MemUsed => {
            let total = gpu.value(Reading::MemTotal).or(info.mem_total_bytes.map(|bytes| bytes as f64));
            format!("{}{} GiB", three_digits(value / GIB), of(total.map(|total| total / GIB)))
        }
        _ => percent(value),
    })
}

fn draw_history(view: &View<'_>, gpu: &GpuState, reading: Reading, area: Rect, buf: &mut Buffer) {
    let (from, to) = view.time_range();
    let area = Rect { x: area.x + 2, width: area.width.saturating_sub(2), ..area };
    if area.is_empty() {
        return;
    }
    let row = row(view, gpu, reading, "", usize::MAX);
    let columns = spans(&row.series.held_columns(from, to, area.width as usize * 2, HOLD_NS));
    Chart::new(view.theme, &columns, row.range, row.style).render(area, buf);
}

/// What limits the clock now, and its colour.
fn limits(view: &View<'_>, gpu: &GpuState, style: impl Fn(Style) -> Style) -> (String, Style) {
    let theme = view.theme;
    if let Some(age) = gpu.last_read().and_then(|at| stale(view.state.now, at)) {
        return (age, style(theme.bad));
    }
    let Some((_, bits)) = gpu.reasons_now else { return (theme.glyphs.none.to_owned(), style(theme.dim)) };
    let faults: Vec<_> = reasons::active(reasons::faults(bits)).collect();
    if let Some(first) = faults.first() {
        let names: Vec<_> = faults.iter().map(|reason| reason.name()).collect();
        return (names.join(", "), style(theme.reason(first.bit())));
    }
    let harmless: Vec<_> = reasons::active(bits).map(|reason| reason.name()).collect();
    let text = if harmless.is_empty() { "none".to_owned() } else { harmless.join(", ") };
    (text, style(theme.dim))
}

/// The time in which a limit was active, in its colour.
fn draw_limits(view: &View<'_>, gpu: &GpuState, area: Rect, buf: &mut Buffer) {
    let (from, to) = view.time_range();
    let block = if view.theme.glyphs.ascii { "#" } else { "▄" };
    for (bit, series) in gpu.reasons.iter().filter(|(bit, _)| reasons::named(*bit).fault()) {
        let columns = series.held_columns(from, to, area.width as usize, HOLD_NS);
        let active = |part: &Option<Bucket>| part.is_some_and(|bucket| bucket.max > 0.0);
        for (x, _) in (area.left()..area.right()).zip(&columns).filter(|(_, part)| active(part)) {
            buf[(x, area.y)].set_symbol(block).set_style(view.theme.reason(*bit));
        }
    }
}

/// The verdict on the selected GPU, or on the one of the workload, named.
pub(super) fn verdict<'a>(view: &View<'_>) -> Line<'a> {
    let mut text = super::gpu_verdict(view);
    if let Some(gpu) = view.workload_gpu().filter(|_| !text.is_empty()) {
        text.insert(0, Span::styled(format!("GPU {}: ", gpu.info.index), view.theme.dim));
    }
    Line::from(text)
}
