//! The host: what the CPU and its memory do, in place of a GPU or beside it.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    text::{Line, Span as Text},
    widgets::{Paragraph, Widget, Wrap},
};

use super::lanes::{LABEL, Row, rows_box};
use crate::{
    base::units::{bytes, percent, percent_digits, three_digits},
    event::Allocator,
    state::{HostState, Series},
    tui::{
        view::View,
        widgets::{boxed, label_value, note},
    },
};

/// The host in full, and why there is no GPU.
pub fn host_pane(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let host = &view.state.host;
    let absent = absence(view);
    let rows_of = |text: &str| (text.chars().count() as u16).div_ceil(area.width.saturating_sub(10).max(1));
    let absent_height = match &absent {
        Some((reason, remedy)) if area.height >= 12 => 2 + (rows_of(reason) + rows_of(remedy)).min(6),
        Some(_) => 1,
        None => 0,
    };
    let (top, bottom) =
        (Rect { height: absent_height.min(area.height), ..area }, area.height.saturating_sub(absent_height));
    if let Some((reason, remedy)) = absent {
        let lines = vec![
            Line::from(vec![
                Text::styled("No GPU: ", theme.warn),
                Text::styled(theme.glyphs.plain(&reason), theme.text),
            ]),
            note(theme, &remedy),
        ];
        let mut text = top;
        if absent_height >= 4 {
            let block = boxed(theme, "GPU", "the host is shown instead");
            text = block.inner(top);
            block.render(top, buf);
        }
        Paragraph::new(lines).wrap(Wrap { trim: true }).render(text, buf);
    }
    let area = Rect { y: area.y + absent_height.min(area.height), height: bottom, ..area };
    if area.height < 3 {
        return;
    }
    let (title, aside) = match &host.info {
        Some(info) => (format!("host · {}", info.cpu), format!("{} cores", info.cores)),
        None => ("host".to_owned(), String::new()),
    };
    if host.latest.is_none() {
        let block = boxed(theme, &title, &aside);
        note(theme, " no sample yet").render(block.inner(area), buf);
        return block.render(area, buf);
    }
    let cores = host.latest.as_ref().map_or(0, |(_, s)| s.core_pct.len()).max(1);
    let core_rows = if cores <= 64 && area.height > 10 { 1 } else { 0 };
    let rest = rows_box(view, (&title, &aside), host_rows(view, host, cores), core_rows, area, buf);
    core_bars(view, rest, buf);
}

fn absence(view: &View<'_>) -> Option<(String, String)> {
    view.state.gpu_absent.as_ref().map(|a| (a.reason.clone(), a.remedy.clone()))
}

fn host_rows<'a>(view: &View<'a>, host: &'a HostState, cores: usize) -> Vec<Row<'a>> {
    let theme = view.theme;
    let latest = host.latest.as_ref().map(|(_, s)| s);
    let total = host.info.as_ref().and_then(|i| i.mem_total_bytes);
    let top = |series: &Series| series.range().map_or(1.0, |r| r.1 * 1.05);
    let mut rows = vec![
        Row {
            label: "CPU %",
            series: &host.cpu_pct,
            range: (0.0, 100.0),
            style: theme.utilisation,
            readout: host.cpu_pct.last().map(|(_, p)| percent(p)),
            why: None,
            chosen: false,
        },
        Row {
            label: "own CPU %",
            series: &host.process_pct,
            range: (0.0, 100.0 * cores as f32),
            style: theme.decode,
            readout: latest
                .and_then(|s| s.process_pct)
                .map(|p| format!("{} / {} %", percent_digits(p), cores * 100)),
            why: None,
            chosen: false,
        },
        Row {
            label: "clock MHz",
            series: &host.freq_mhz,
            range: (0.0, top(&host.freq_mhz)),
            style: theme.clock,
            readout: latest.and_then(|s| s.freq_mhz).map(|m| format!("{m:.0} MHz")),
            why: Some("the system tells no core clock".into()),
            chosen: false,
        },
        Row {
            label: "memory",
            series: &host.mem_used_bytes,
            range: (0.0, total.map_or(top(&host.mem_used_bytes), |t| t as f32)),
            style: theme.memory,
            readout: latest.and_then(|s| s.mem_used_bytes).map(|b| match total {
                Some(t) => format!("{} / {}", three_digits(b as f64 / 1e9), bytes(t)),
                None => bytes(b),
            }),
            why: None,
            chosen: false,
        },
        Row {
            label: "own memory",
            series: &host.process_rss_bytes,
            range: (0.0, total.map_or(top(&host.process_rss_bytes), |t| t as f32)),
            style: theme.memory,
            readout: latest.and_then(|s| s.process_rss_bytes).map(bytes),
            why: None,
            chosen: false,
        },
        Row {
            label: "package W",
            series: &host.package_power_w,
            range: (0.0, top(&host.package_power_w)),
            style: theme.power,
            readout: latest.and_then(|s| s.package_power_w).map(|w| format!("{w:.1} W")),
            why: host.info.as_ref().map(|i| i.power_source.clone()),
            chosen: false,
        },
    ];
    let allocators = &view.state.allocators;
    if let (Some(heap), Some(series)) =
        (allocators.latest(Allocator::Heap), allocators.live_bytes(Allocator::Heap))
    {
        let live = bytes(heap.live_bytes);
        rows.push(Row {
            label: "heap",
            series,
            range: (0.0, heap.reserved_bytes.unwrap_or(heap.peak_bytes) as f32),
            style: theme.memory,
            readout: Some(match heap.reserved_bytes {
                Some(reserved) => format!("{live} / {}", bytes(reserved)),
                None => live,
            }),
            why: None,
            chosen: false,
        });
    }
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
        let style = theme.heat[[1, 1, 1, 1, 1, 1, 2, 2][step]];
        let bar = theme.glyphs.bars[step];
        // Many cores are shown as bars alone.
        let cell =
            if sample.core_pct.len() > 6 { bar.to_owned() } else { format!("{bar} {:>5}   ", percent(*pct)) };
        line.push(Text::styled(cell, style));
    }
    Line::from(line).render(area, buf);
}

/// The host in a line, most telling first.
pub fn host_parts<'a>(view: &View<'_>) -> Vec<Vec<Text<'a>>> {
    let theme = view.theme;
    let host = &view.state.host;
    let Some((_, s)) = &host.latest else {
        return vec![vec![Text::styled("no sample yet", theme.dim)]];
    };
    let mut parts = Vec::new();
    if let Some((_, pct)) = host.cpu_pct.last() {
        parts.push(label_value(
            theme,
            "CPU",
            &percent_digits(pct),
            &format!("% of {} cores", s.core_pct.len()),
        ));
    }
    if let Some(p) = s.process_pct {
        parts.push(label_value(theme, "own", &format!("{:.1}", p / 100.0), "cores"));
    }
    if let Some(used) = s.mem_used_bytes {
        let total = host.info.as_ref().and_then(|i| i.mem_total_bytes);
        let unit = total.map_or_else(|| "GB".into(), |t| format!("of {} GB", three_digits(t as f64 / 1e9)));
        parts.push(label_value(theme, "memory", &three_digits(used as f64 / 1e9), &unit));
    }
    if let Some(mhz) = s.freq_mhz {
        parts.push(label_value(theme, "", &three_digits(f64::from(mhz) / 1e3), "GHz"));
    }
    if let Some(w) = s.package_power_w {
        parts.push(label_value(theme, "package", &format!("{w:.0}"), "W"));
    }
    parts
}
