//! The host: CPU and memory, if there is no GPU.

use ratatui::{
    buffer::Buffer,
    layout::{Margin, Rect},
    style::Style,
    text::{Line, Span as Text},
    widgets::{Paragraph, Widget, Wrap},
};

use super::lanes::{ChartLane, LABEL, rows_box};
use crate::{
    view::View,
    widgets::{draw_box, label_value, note},
};
use llmprof_base::units::{GIB, binary_bytes, percent, percent_digits, three_digits};
use llmprof_event::Allocator;
use llmprof_record::state::{HostState, Series};

/// The host, and why there is no GPU.
pub fn host_pane(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let host = &view.state.host;
    let used = absence(view, area, buf);
    let area = Rect { y: area.y + used, height: area.height - used, ..area };
    if area.height < 3 {
        return;
    }
    let (title, aside) = match &host.info {
        Some(info) => (format!("host · {}", info.cpu), format!("{} cores", info.cores)),
        None => ("host".to_owned(), String::new()),
    };
    let Some((_, latest)) = &host.latest else {
        let inner = draw_box(theme, (&title, &aside), area, buf);
        let has_ended = view.state.finished.is_some();
        let text = if has_ended { " no sample was taken" } else { " no sample yet" };
        return note(theme, text).render(inner, buf);
    };
    let cores = latest.core_pct.len().max(1);
    let core_rows = if cores <= 64 && area.height > 10 { 1 } else { 0 };
    let rest = rows_box(view, (&title, &aside), host_rows(view, host, cores), core_rows, area, buf);
    core_bars(view, rest, buf);
}

/// Draws why there is no GPU; returns the rows used.
fn absence(view: &View<'_>, area: Rect, buf: &mut Buffer) -> u16 {
    let theme = view.theme;
    let Some(absent) = &view.state.gpu_absent else { return 0 };
    let rows = |text: &str| (text.chars().count() as u16).div_ceil(area.width.saturating_sub(12).max(1));
    let height = match area.height {
        12.. => 2 + (rows(&absent.reason) + rows(&absent.remedy)).min(6),
        height => height.min(1),
    };
    let mut place = Rect { height, ..area };
    if height >= 4 {
        place = draw_box(theme, ("GPU", "showing the host instead"), place, buf).inner(Margin::new(1, 0));
    }
    let lines = vec![
        Line::from(vec![
            Text::styled("No GPU: ", theme.warn),
            Text::styled(theme.glyphs.plain(&absent.reason), theme.text),
        ]),
        note(theme, &absent.remedy),
    ];
    Paragraph::new(lines).wrap(Wrap { trim: true }).render(place, buf);
    height
}

/// The format of a value, with its unit and without it for a maximum.
#[derive(Clone, Copy)]
struct Unit {
    full: fn(f64) -> String,
    alone: fn(f64) -> String,
}

const PERCENT: Unit = Unit { full: percent, alone: percent_digits };
const MEGAHERTZ: Unit = Unit { full: |mhz| format!("{mhz:.0} MHz"), alone: |mhz| format!("{mhz:.0}") };
const WATT: Unit = Unit { full: |w| format!("{w:.1} W"), alone: |w| format!("{w:.1}") };
const MEMORY: Unit =
    Unit { full: |bytes| binary_bytes(bytes as u64), alone: |bytes| three_digits(bytes / GIB) };

fn host_rows<'a>(view: &View<'a>, host: &'a HostState, cores: usize) -> Vec<ChartLane<'a>> {
    let theme = view.theme;
    let total = host.info.as_ref().and_then(|i| i.mem_total_bytes);
    let row = |label, series: &'a Series, top: Option<f32>, style: Style, unit: Unit, of: Option<String>| {
        let top = top.unwrap_or_else(|| series.range().map_or(1.0, |(_, max)| max * 1.05));
        let readout = view.value(series).map(|value| match &of {
            Some(of) => format!("{} / {of}", (unit.alone)(value)),
            None => (unit.full)(value),
        });
        let extreme = unit.full;
        ChartLane {
            label,
            series,
            range: (0.0, top),
            style,
            readout,
            extreme,
            reason: None,
            limit: None,
            warns: false,
            selected: false,
            collapses: false,
        }
    };
    let max_memory = total.map(|t| t as f32);
    let all_cores = Some(format!("{} %", cores * 100));
    let of_total = total.map(binary_bytes);
    let (cpu, own_cpu) = (&host.cpu_pct, &host.process_pct);
    let mut rows = vec![
        row("CPU %", cpu, Some(100.0), theme.utilisation, PERCENT, None),
        row("own CPU %", own_cpu, Some(100.0 * cores as f32), theme.decode, PERCENT, all_cores),
        ChartLane {
            reason: Some("the system reports no core clock".into()),
            ..row("clock MHz", &host.freq_mhz, None, theme.clock, MEGAHERTZ, None)
        },
        row("memory", &host.mem_used_bytes, max_memory, theme.memory, MEMORY, of_total),
        row("own memory", &host.process_rss_bytes, max_memory, theme.memory, MEMORY, None),
        ChartLane {
            reason: host.info.as_ref().map(|i| i.power_source.clone()),
            ..row("package W", &host.package_power_w, None, theme.power, WATT, None)
        },
    ];
    let allocators = &view.state.allocators;
    let heap = allocators.latest(Allocator::Heap).zip(allocators.live_bytes(Allocator::Heap));
    rows.extend(heap.map(|(heap, series)| {
        let top = heap.reserved_bytes.unwrap_or(heap.peak_bytes) as f32;
        let unit = Unit { alone: MEMORY.full, ..MEMORY };
        row("heap", series, Some(top), theme.memory, unit, heap.reserved_bytes.map(binary_bytes))
    }));
    rows
}

/// Every core as one bar.
fn core_bars(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let Some((_, sample)) = &view.state.host.latest else { return };
    if area.height == 0 {
        return;
    }
    let theme = view.theme;
    let mut line = vec![Text::styled(format!("{:<width$}", " cores", width = LABEL as usize), theme.dim)];
    for pct in &sample.core_pct {
        let step = ((pct / 100.0 * 7.0).round() as usize).min(7);
        let style = theme.heat[if step < 6 { 1 } else { 2 }];
        let bar = theme.glyphs.bars[step];
        // With many cores, only the bars.
        let cell =
            if sample.core_pct.len() > 6 { bar.to_owned() } else { format!("{bar} {:>5}   ", percent(*pct)) };
        line.push(Text::styled(cell, style));
    }
    Line::from(line).render(area, buf);
}

/// The host on one line, the most important part first.
pub fn host_parts<'a>(view: &View<'_>) -> Vec<Vec<Text<'a>>> {
    let theme = view.theme;
    let host = &view.state.host;
    let Some((_, s)) = &host.latest else {
        return vec![vec![Text::styled("no sample yet", theme.dim)]];
    };
    let mut parts = Vec::new();
    let mut add = |label: &str, value: Option<String>, unit: &str| {
        parts.extend(value.map(|value| label_value(theme, label, &value, unit)));
    };
    let cpu = host.cpu_pct.last().map(|(_, pct)| percent_digits(pct));
    add("CPU", cpu, &format!("% of {} cores", s.core_pct.len()));
    add("own", s.process_pct.map(|p| format!("{:.1}", p / 100.0)), "cores");
    let total = host.info.as_ref().and_then(|i| i.mem_total_bytes);
    let unit = total.map_or_else(|| "GiB".into(), |t| format!("of {} GiB", three_digits(t as f64 / GIB)));
    add("memory", s.mem_used_bytes.map(|used| three_digits(used as f64 / GIB)), &unit);
    add("", s.freq_mhz.map(|mhz| three_digits(f64::from(mhz) / 1e3)), "GHz");
    add("package", s.package_power_w.map(|w| format!("{w:.0}")), "W");
    parts
}
