//! GPU: power, clocks, use, temperature, memory, and why the clock is held down; without a GPU, the host.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::Style,
    text::{Line, Span as Text},
    widgets::{Paragraph, Widget, Wrap},
};

use crate::{
    analysis::units::{bytes, three_digits},
    event::Stamp,
    state::{GpuState, HostState, Series},
    tui::{
        view::View,
        widgets::{Lane, boxed, fit, label_value, note, spans},
    },
};

pub struct GpuPane<'a>(pub View<'a>);

const LABEL: u16 = 12;
const READOUT: u16 = 20;
/// A sample is taken to hold until the next; longer than this it is a gap.
const HOLD_NS: u64 = 2_500_000_000;

/// One value over time, as the pane lists it.
struct Row<'a> {
    label: &'static str,
    series: &'a Series,
    range: (f32, f32),
    style: Style,
    readout: Option<String>,
    /// Why there is no value.
    why: Option<String>,
}

impl Widget for GpuPane<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let view = &self.0;
        let state = view.state;
        if state.gpus.is_empty() {
            return host_pane(view, area, buf);
        }
        let each = area.height / state.gpus.len() as u16;
        for (i, gpu) in state.gpus.iter().enumerate() {
            let area = Rect { y: area.y + i as u16 * each, height: each, ..area };
            gpu_box(view, gpu, area, buf);
        }
    }
}

fn refusal(gpu: &GpuState, reading: &str) -> Option<String> {
    gpu.info.refused.iter().find(|r| r.reading == reading).map(|r| r.reason.clone())
}

fn gpu_box(view: &View<'_>, gpu: &GpuState, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let profiled = if gpu.info.profiled { " · profiled" } else { "" };
    let title = format!("GPU {} · {}{profiled}", gpu.info.index, gpu.info.name);
    let aside = format!("{} · driver {}", gpu.info.source, gpu.info.driver);
    let latest = gpu.latest.as_ref().map(|(_, s)| s);
    let of = |value: String, limit: Option<String>| match limit {
        Some(limit) => format!("{value} / {limit}"),
        None => value,
    };
    let info = &gpu.info;
    let max_mhz = info.sm_clock_max_mhz.map(|m| m as f32);
    let rows = vec![
        Row {
            label: "power W",
            series: &gpu.power_w,
            range: (0.0, info.power_limit_w.unwrap_or(gpu.power_w.range().map_or(1.0, |r| r.1))),
            style: theme.power,
            readout: latest
                .and_then(|s| s.power_w)
                .map(|w| of(format!("{w:.0}"), info.power_limit_w.map(|l| format!("{l:.0} W")))),
            why: refusal(gpu, "power_w"),
        },
        Row {
            label: "SM MHz",
            series: &gpu.sm_clock_mhz,
            range: (0.0, max_mhz.unwrap_or(gpu.sm_clock_mhz.range().map_or(1.0, |r| r.1))),
            style: theme.clock,
            readout: latest
                .and_then(|s| s.sm_clock_mhz)
                .map(|m| of(m.to_string(), info.sm_clock_max_mhz.map(|l| format!("{l} MHz")))),
            why: refusal(gpu, "sm_clock_mhz"),
        },
        Row {
            label: "memory MHz",
            series: &gpu.mem_clock_mhz,
            range: (
                0.0,
                info.mem_clock_max_mhz.map_or(gpu.mem_clock_mhz.range().map_or(1.0, |r| r.1), |m| m as f32),
            ),
            style: theme.clock,
            readout: latest
                .and_then(|s| s.mem_clock_mhz)
                .map(|m| of(m.to_string(), info.mem_clock_max_mhz.map(|l| format!("{l} MHz")))),
            why: refusal(gpu, "mem_clock_mhz"),
        },
        Row {
            label: "GPU use %",
            series: &gpu.gpu_util_pct,
            range: (0.0, 100.0),
            style: theme.utilisation,
            readout: latest.and_then(|s| s.gpu_util_pct).map(|p| format!("{p:.0} %")),
            why: refusal(gpu, "gpu_util_pct"),
        },
        Row {
            label: "mem use %",
            series: &gpu.mem_util_pct,
            range: (0.0, 100.0),
            style: theme.utilisation,
            readout: latest.and_then(|s| s.mem_util_pct).map(|p| format!("{p:.0} %")),
            why: refusal(gpu, "mem_util_pct"),
        },
        Row {
            label: "temp °C",
            series: &gpu.temp_c,
            range: (20.0, info.slowdown_temp_c.map_or(100.0, |t| t as f32)),
            style: theme.temperature,
            readout: latest
                .and_then(|s| s.temp_c)
                .map(|t| of(format!("{t:.0}"), info.slowdown_temp_c.map(|l| format!("{l} °C slows")))),
            why: refusal(gpu, "temp_c"),
        },
        Row {
            label: "memory",
            series: &gpu.mem_used_bytes,
            range: (
                0.0,
                info.mem_total_bytes.map_or(gpu.mem_used_bytes.range().map_or(1.0, |r| r.1), |b| b as f32),
            ),
            style: theme.memory,
            readout: latest
                .and_then(|s| s.mem_used_bytes)
                .map(|b| of(bytes(b), info.mem_total_bytes.map(|t| three_digits(t as f64 / 1e9)))),
            why: refusal(gpu, "mem_used_bytes"),
        },
    ];
    let flags = gpu.reasons.len() as u16;
    let inner = rows_box(view, (&title, &aside), rows, flags, area, buf);
    reason_lanes(view, gpu, inner, buf);
}

/// Draws the rows in a frame and gives what is left of it, `keep` lines at the least.
fn rows_box(
    view: &View<'_>,
    titles: (&str, &str),
    rows: Vec<Row<'_>>,
    keep: u16,
    area: Rect,
    buf: &mut Buffer,
) -> Rect {
    let theme = view.theme;
    let (from, to) = view.stretch();
    let span = to.since(from).as_secs_f64();
    let aside = format!("{} · last {span:.0} s, + - zoom", titles.1);
    let aside = if area.width as usize > titles.0.len() + aside.len() + 8 {
        aside
    } else {
        format!("last {span:.0} s")
    };
    let block = boxed(theme, titles.0, &aside);
    let inner = block.inner(area);
    block.render(area, buf);
    let (label, readout) =
        if inner.width >= 50 { (LABEL, READOUT) } else { (LABEL, inner.width.saturating_sub(LABEL)) };
    let keep = keep.min(inner.height / 3);
    let count = rows.len() as u16;
    let height = ((inner.height - keep) / count.max(1)).clamp(1, 6);
    let mut y = inner.y;
    for row in rows {
        if y + height > inner.bottom() {
            break;
        }
        let area = Rect { y, height, ..inner };
        y += height;
        let chart = Lane::plot_area(area, label, readout);
        let columns = row.series.held_columns(from, to, chart.width as usize * 2, HOLD_NS);
        let readout_text =
            row.readout.unwrap_or_else(|| if row.series.is_empty() { "n/a".into() } else { String::new() });
        let lane = Lane {
            label: &format!(" {}", row.label),
            readout: format!("{readout_text} "),
            columns: spans(&columns),
            range: row.range,
            style: row.style,
            theme,
            label_width: label,
            readout_width: readout,
        };
        lane.render(area, buf);
        if let (true, Some(why)) = (row.series.is_empty(), row.why) {
            note(theme, &format!("not there: {why}")).render(Rect { y: area.y, height: 1, ..chart }, buf);
        }
    }
    Rect { y, height: inner.bottom() - y, ..inner }
}

/// Why the clock is held down, a line for each reason there ever was.
fn reason_lanes(view: &View<'_>, gpu: &GpuState, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let (from, to) = view.stretch();
    let (label, readout) = if area.width >= 50 { (LABEL, READOUT) } else { (LABEL, 0) };
    let chart = Lane::plot_area(area, label, readout);
    for ((bit, series), y) in gpu.reasons.iter().zip(area.top()..area.bottom()) {
        let reason = crate::reasons::named(*bit);
        let active = series.last().is_some_and(|(_, v)| v > 0.0);
        let style = if reason.fault() { theme.warn } else { theme.dim };
        buf.set_stringn(area.x + 1, y, "reason", label as usize - 2, theme.dim);
        for (x, part) in series.held_columns(from, to, chart.width as usize, HOLD_NS).into_iter().enumerate()
        {
            if part.is_some_and(|b| b.max > 0.0) {
                buf[(chart.x + x as u16, y)].set_symbol(theme.glyphs.active).set_style(style);
            }
        }
        if readout > 0 {
            let words = format!("{} ", reason.name());
            let at = Rect { x: chart.right(), y, width: readout, height: 1 };
            Line::styled(words, if active { style } else { theme.dim }).right_aligned().render(at, buf);
        }
    }
}

fn host_pane(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let host = &view.state.host;
    let absent = absence(view);
    let absent_height = match absent {
        Some(_) if area.height >= 12 => 4,
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
    vec![
        Row {
            label: "CPU %",
            series: &host.cpu_pct,
            range: (0.0, 100.0),
            style: theme.utilisation,
            readout: host.cpu_pct.last().map(|(_, p)| format!("{p:.0} %")),
            why: None,
        },
        Row {
            label: "own CPU %",
            series: &host.process_pct,
            range: (0.0, 100.0 * cores as f32),
            style: theme.decode,
            readout: latest.and_then(|s| s.process_pct).map(|p| format!("{p:.0} / {} %", cores * 100)),
            why: None,
        },
        Row {
            label: "clock MHz",
            series: &host.freq_mhz,
            range: (0.0, top(&host.freq_mhz)),
            style: theme.clock,
            readout: latest.and_then(|s| s.freq_mhz).map(|m| format!("{m:.0} MHz")),
            why: Some("the system tells no core clock".into()),
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
        },
        Row {
            label: "own memory",
            series: &host.process_rss_bytes,
            range: (0.0, total.map_or(top(&host.process_rss_bytes), |t| t as f32)),
            style: theme.memory,
            readout: latest.and_then(|s| s.process_rss_bytes).map(bytes),
            why: None,
        },
        Row {
            label: "package W",
            series: &host.package_power_w,
            range: (0.0, top(&host.package_power_w)),
            style: theme.power,
            readout: latest.and_then(|s| s.package_power_w).map(|w| format!("{w:.1} W")),
            why: host.info.as_ref().map(|i| i.power_source.clone()),
        },
    ]
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
        line.push(Text::styled(format!("{} {pct:>3.0} %   ", theme.glyphs.bars[step]), style));
    }
    Line::from(line).render(area, buf);
}

/// The device in one line, most telling first.
pub fn summary_line<'a>(view: &View<'_>, width: u16) -> Line<'a> {
    let theme = view.theme;
    match view.state.profiled_gpu() {
        Some(gpu) => fit(theme, gpu_parts(view, gpu), width),
        None => fit(theme, host_parts(view), width),
    }
}

fn gpu_parts<'a>(view: &View<'_>, gpu: &GpuState) -> Vec<Vec<Text<'a>>> {
    let theme = view.theme;
    let Some((at, s)) = &gpu.latest else {
        return vec![vec![Text::styled("no sample yet", theme.dim)]];
    };
    let mut parts = Vec::new();
    if let Some(w) = s.power_w {
        let limit = gpu.info.power_limit_w.map_or_else(|| "W".into(), |l| format!("of {l:.0} W"));
        parts.push(label_value(theme, "", &format!("{w:.0}"), &limit));
    }
    if let Some(mhz) = s.sm_clock_mhz {
        parts.push(label_value(theme, "SM", &mhz.to_string(), "MHz"));
    }
    if let Some(t) = s.temp_c {
        let margin = gpu.info.slowdown_temp_c.map(|limit| limit as f32 - t);
        let unit = margin.map_or_else(|| "°C".into(), |m| format!("°C, {m:.0} below slowdown"));
        parts.push(label_value(theme, "", &format!("{t:.0}"), &unit));
    }
    if let Some(p) = s.gpu_util_pct {
        parts.push(label_value(theme, "use", &format!("{p:.0}"), "%"));
    }
    if let Some(used) = s.mem_used_bytes {
        let total = s.mem_total_bytes.or(gpu.info.mem_total_bytes);
        let unit = total.map_or_else(|| "GB".into(), |t| format!("of {} GB", three_digits(t as f64 / 1e9)));
        parts.push(label_value(theme, "memory", &three_digits(used as f64 / 1e9), &unit));
    }
    let active = s.reasons.unwrap_or(0);
    for (bit, _) in gpu.reasons.iter().filter(|(bit, _)| active & bit != 0) {
        let reason = crate::reasons::named(*bit);
        if reason.fault() {
            parts.insert(0, vec![Text::styled(reason.name(), theme.warn)]);
        }
    }
    if let Some(age) = stale(view.state.now, *at) {
        parts.insert(0, vec![Text::styled(age, theme.bad)]);
    }
    parts
}

/// Words for a reading that is no longer fresh.
fn stale(now: Stamp, at: Stamp) -> Option<String> {
    let age = now.since(at).as_secs_f64();
    (age > 3.0).then(|| format!("{age:.0} s old"))
}

fn host_parts<'a>(view: &View<'_>) -> Vec<Vec<Text<'a>>> {
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
            &format!("{pct:.0}"),
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

/// The device in a frame, as Overview has it.
pub fn summary_box(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let (title, aside) = match view.state.profiled_gpu() {
        Some(gpu) => (format!("GPU {} · {}", gpu.info.index, gpu.info.name), gpu.info.source.clone()),
        None => match &view.state.host.info {
            Some(info) if view.state.gpus.is_empty() => {
                (format!("host · {}", info.cpu), "no GPU, see 2".to_owned())
            }
            Some(info) => (format!("host · {}", info.cpu), "the GPU is not used, see 2".to_owned()),
            None => ("host".to_owned(), String::new()),
        },
    };
    let block = boxed(theme, &title, &aside);
    let inner = block.inner(area);
    block.render(area, buf);
    let inner = Rect { x: inner.x + 1, width: inner.width.saturating_sub(2), ..inner };
    summary_line(view, inner.width).render(inner, buf);
    if inner.height > 1 {
        observer_line(view, inner.width).render(Rect { y: inner.y + 1, height: 1, ..inner }, buf);
    }
}

/// What profiling itself costs.
fn observer_line<'a>(view: &View<'_>, width: u16) -> Line<'a> {
    let theme = view.theme;
    let Some(o) = &view.state.observer else { return note(theme, "profiler: not metered yet") };
    let mut parts = Vec::new();
    if let Some(pct) = o.consumer_pct {
        parts.push(label_value(theme, "profiler", &format!("{pct:.1}"), "% of a core"));
    }
    if let Some(ms) = o.frame_ms {
        parts.push(label_value(theme, "frame", &three_digits(f64::from(ms)), "ms"));
    }
    parts.push(label_value(theme, "backlog", &o.backlog.to_string(), "events"));
    if o.lost > 0 {
        parts.insert(0, vec![Text::styled(format!("{} events lost", o.lost), theme.bad)]);
    }
    fit(theme, parts, width)
}
