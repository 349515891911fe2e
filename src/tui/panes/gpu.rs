//! GPU: power, clocks, activity, temperature, memory, and why the clock is held down; without a GPU, the host.

use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::{Line, Span as Text},
    widgets::{Paragraph, Widget, Wrap},
};

use super::{
    host::{host_pane, host_parts},
    lanes::{HOLD_NS, LABEL, READOUT, Row, rows_box},
    overview::card_verdict,
};
use crate::{
    base::units::{bytes, percent, percent_digits, three_digits},
    event::{Allocator, GpuSource, Refused, Stamp, readings::Reading},
    state::GpuState,
    tui::{
        view::View,
        widgets::{Lane, boxed, fit, label_value, note},
    },
};

pub struct GpuPane<'a>(pub View<'a>);

/// The rows of the pane: what each is called where there is little room.
const ROWS: [(Reading, &str); 11] = [
    (Reading::Power, "power W"),
    (Reading::SmClock, "SM MHz"),
    (Reading::MemClock, "memory MHz"),
    (Reading::GpuUtil, "GPU use %"),
    (Reading::SmActive, "SM active %"),
    (Reading::Occupancy, "occupancy %"),
    (Reading::Tensor, "tensor %"),
    (Reading::Dram, "DRAM %"),
    (Reading::MemUtil, "mem use %"),
    (Reading::Temp, "temp °C"),
    (Reading::MemUsed, "memory"),
];

impl Widget for GpuPane<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let view = &self.0;
        let Some(main) = view.gpu() else {
            return host_pane(view, area, buf);
        };
        let others: Vec<&GpuState> =
            view.state.gpus.iter().filter(|gpu| gpu.info.index != main.info.index).collect();
        let strips = (others.len() as u16).min(area.height / 3);
        let verdict = Line::from(card_verdict(view));
        let rows = (verdict.width() as u16).div_ceil(area.width.saturating_sub(9).max(1));
        let words = if area.height - strips >= 16 { rows.min(4) } else { 0 };
        gpu_box(view, main, Rect { height: area.height - strips - words, ..area }, buf);
        let below = Rect { y: area.bottom() - strips - words, height: words, ..area };
        let [mark, text] = Layout::horizontal([Constraint::Length(3), Constraint::Min(1)]).areas(below);
        if words > 0 {
            Line::styled(format!(" {}", view.theme.glyphs.pointer), view.theme.accent).render(mark, buf);
            Paragraph::new(verdict).wrap(Wrap { trim: true }).render(text, buf);
        }
        for (gpu, y) in others.into_iter().zip(area.bottom() - strips..area.bottom()) {
            let mut parts = gpu_parts(view, gpu);
            parts.insert(
                0,
                vec![Text::styled(format!(" GPU {} {}", gpu.info.index, gpu.info.name), view.theme.dim)],
            );
            fit(view.theme, parts, area.width).render(Rect { y, height: 1, ..area }, buf);
        }
    }
}

/// Index and name, and whether there is such a card at all.
fn card_name(gpu: &GpuState) -> String {
    let simulated = if gpu.info.source == GpuSource::Sim { " · simulated" } else { "" };
    format!("GPU {} · {}{simulated}", gpu.info.index, gpu.info.name)
}

fn gpu_box(view: &View<'_>, gpu: &GpuState, area: Rect, buf: &mut Buffer) {
    let mut title = card_name(gpu);
    if gpu.info.profiled {
        title += " · profiled";
    }
    let mut aside = format!("{} · driver {}", gpu.info.source, gpu.info.driver);
    if gpu.lost.is_some() {
        aside = "gone".to_owned();
    } else if let Some(age) = gpu.last_read().and_then(|at| stale(view.state.now, at)) {
        aside = format!("{age}, {aside}");
    }
    let flags = gpu.reasons.len() as u16;
    let detail = 3.min(area.height.saturating_sub(8));
    let rows =
        rows(gpu).into_iter().enumerate().map(|(i, (reading, label))| row(view, gpu, reading, label, i));
    let left = rows_box(view, (&title, &aside), rows.collect(), flags + detail, area, buf);
    let lanes = Rect { height: left.height.saturating_sub(detail), ..left };
    reason_lanes(view, gpu, lanes, buf);
    let below = Rect { y: lanes.bottom(), height: left.height - lanes.height, ..left };
    detail_lines(view, gpu, below, buf);
}

/// The rows of a card. What a whole family of cards does not have takes one row, which says why.
pub fn rows(gpu: &GpuState) -> Vec<(Reading, &'static str)> {
    let shown = |reading: Reading| {
        let is_gpm = Reading::GPM.contains(&reading);
        let refused = gpu.refusal(reading).is_some();
        !gpu.series(reading).is_empty() || !is_gpm || (refused && reading == Reading::SmActive)
    };
    ROWS.into_iter().filter(|(reading, _)| shown(*reading)).collect()
}

/// A reading as a row.
fn row<'a>(view: &View<'a>, gpu: &'a GpuState, reading: Reading, label: &'static str, i: usize) -> Row<'a> {
    let theme = view.theme;
    let info = &gpu.info;
    let series = gpu.series(reading);
    let refused = gpu.refusal(reading);
    let (limit, style): (Option<f32>, Style) = match reading {
        Reading::Power => (info.power_limit_w, theme.power),
        Reading::SmClock => (info.sm_clock_max_mhz.map(|mhz| mhz as f32), theme.clock),
        Reading::MemClock => (info.mem_clock_max_mhz.map(|mhz| mhz as f32), theme.clock),
        Reading::Temp => (info.slowdown_temp_c.map(|celsius| celsius as f32), theme.temperature),
        Reading::MemUsed => (info.mem_total_bytes.map(|bytes| bytes as f32), theme.memory),
        _ => (Some(100.0), theme.utilisation),
    };
    let least = if reading == Reading::Temp { 20.0 } else { 0.0 };
    let most = limit.or(series.range().map(|(_, most)| most)).unwrap_or(1.0).max(least + 1.0);
    let why = refused.map(|Refused { reason, remedy, .. }| match remedy {
        Some(remedy) => format!("{reason} {} {remedy}", theme.glyphs.none),
        None => reason.to_string(),
    });
    Row {
        label,
        series,
        range: (least, most),
        style,
        readout: gpu.value(reading).map(|value| readout(reading, value, limit)),
        why,
        chosen: view.ui.reading == i,
    }
}

fn readout(reading: Reading, value: f64, limit: Option<f32>) -> String {
    let of = |value: String, limit: Option<String>| match limit {
        Some(limit) => format!("{value} / {limit}"),
        None => value,
    };
    match reading {
        Reading::MemUsed => of(three_digits(value / 1e9), limit.map(|limit| bytes(limit as u64))),
        Reading::Temp => of(format!("{value:.0}"), limit.map(|limit| format!("{limit:.0} °C slows"))),
        Reading::Power => of(format!("{value:.0}"), limit.map(|limit| format!("{limit:.0} W"))),
        Reading::SmClock | Reading::MemClock => {
            of(format!("{value:.0}"), limit.map(|limit| format!("{limit:.0} MHz")))
        }
        _ => percent(value),
    }
}

/// Where the chosen reading comes from and how fresh it is; what looking costs.
fn detail_lines(view: &View<'_>, gpu: &GpuState, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let rows = rows(gpu);
    let Some((reading, _)) = rows.get(view.ui.reading).or(rows.last()).copied() else { return };
    let about = reading.about();
    let mut parts = vec![label_value(theme, " chosen:", about.label, "")];
    match gpu.age(reading, view.state.now) {
        Some(age) => {
            // Where there is no instant power, the average is shown.
            let about = match (reading, gpu.refusal(reading)) {
                (Reading::Power, Some(_)) => Reading::PowerAverage.about(),
                _ => about,
            };
            let (source, window) = match gpu.info.source {
                GpuSource::Sim => ("the simulation", about.window),
                _ => (about.source, about.window),
            };
            parts.push(label_value(theme, "from", source, ""));
            parts.push(label_value(theme, "stands for", window, ""));
            parts.push(label_value(theme, "", &three_digits(age.as_secs_f64()), "s old"));
        }
        None => {
            let refused = gpu.refusal(reading);
            let reason =
                refused.map_or_else(|| "not read yet".to_owned(), |refused| refused.reason.to_string());
            parts.push(vec![Text::styled(reason, theme.dim)]);
            let remedy = refused.and_then(|refused| refused.remedy.clone());
            parts.extend(remedy.map(|remedy| vec![Text::styled(remedy, theme.dim)]));
        }
    }
    let lines =
        [fit(theme, parts, area.width), also_line(view, gpu, area.width), sampler_line(view, area.width)];
    for (line, y) in lines.into_iter().zip(area.top()..area.bottom()) {
        line.render(Rect { y, height: 1, ..area }, buf);
    }
}

/// What else was read, where a line over time would say little.
fn also_line<'a>(view: &View<'_>, gpu: &GpuState, width: u16) -> Line<'a> {
    let theme = view.theme;
    let value = |reading| gpu.value(reading);
    let mut parts = vec![vec![Text::styled(" also:", theme.dim)]];
    let mut add = |label: &str, value: Option<String>, unit: &str| {
        parts.extend(value.map(|value| label_value(theme, label, &value, unit)));
    };
    for (allocator, label) in [(Allocator::Gpu, "own buffers"), (Allocator::Heap, "heap")] {
        let held = view.state.allocators.latest(allocator).filter(|_| gpu.info.profiled);
        add(label, held.map(|held| bytes(held.live_bytes)), "");
    }
    let whole = |value: Option<f64>| value.map(|value| format!("{value:.0}"));
    add("average", whole(value(Reading::PowerAverage)), "W");
    add("memory", whole(value(Reading::MemTemp)), "°C");
    add("fan", value(Reading::Fan).map(percent_digits), "%");
    let link = value(Reading::PcieGen).zip(value(Reading::PcieWidth));
    add("PCIe", link.map(|(generation, lanes)| format!("{generation:.0} × {lanes:.0}")), "");
    let rate = |a, b| value(a).zip(value(b)).map(|(sent, received)| three_digits(sent + received));
    add("moves", rate(Reading::PcieTx, Reading::PcieRx), "MiB/s");
    add("NVLink", rate(Reading::NvlinkTx, Reading::NvlinkRx), "MiB/s");
    let errors = value(Reading::EccCorrected).zip(value(Reading::EccUncorrected));
    add("ECC", errors.map(|(corrected, not)| format!("{corrected:.0} + {not:.0}")), "");
    fit(theme, parts, width)
}

/// What looking at the GPUs costs.
fn sampler_line<'a>(view: &View<'_>, width: u16) -> Line<'a> {
    let theme = view.theme;
    let Some(cost) = &view.state.sampler else {
        let simulated = view.state.main_gpu().is_some_and(|gpu| gpu.info.source == GpuSource::Sim);
        let word = if simulated {
            " sampler: nothing is asked of a simulated card"
        } else {
            " sampler: not metered yet"
        };
        return note(theme, word);
    };
    let mut parts = Vec::new();
    if let Some(pct) = cost.cpu_pct {
        parts.push(label_value(theme, " sampler", &percent_digits(pct), "% of a core"));
    }
    parts.push(label_value(theme, "in calls", &percent_digits(cost.duty_pct), "% of the time"));
    let dearest = cost.calls.iter().filter_map(|call| Some((call, call.p50_us?)));
    if let Some((call, p50)) = dearest.max_by(|a, b| a.1.total_cmp(&b.1)) {
        let micros = |us: Option<f32>| {
            us.map_or_else(|| theme.glyphs.none.to_owned(), |us| three_digits(f64::from(us)))
        };
        let times = format!("p50 {} p99 {} µs, n={}", micros(Some(p50)), micros(call.p99_us), call.n);
        parts.push(label_value(theme, "dearest", &call.call, &times));
    }
    fit(theme, parts, width)
}

/// Why the clock is held down, a line for each reason there ever was.
fn reason_lanes(view: &View<'_>, gpu: &GpuState, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let (from, to) = view.stretch();
    let (label, readout) = if area.width >= 50 { (LABEL, READOUT) } else { (LABEL, 0) };
    let chart = Lane::plot_area(area, label, readout);
    for ((bit, series), y) in gpu.reasons.iter().zip(area.top()..area.bottom()) {
        let reason = crate::event::reasons::named(*bit);
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

/// The device in one line, most telling first.
pub fn summary_line<'a>(view: &View<'_>, width: u16) -> Line<'a> {
    let theme = view.theme;
    match shown_gpu(view) {
        Some(gpu) => fit(theme, gpu_parts(view, gpu), width),
        None => fit(theme, host_parts(view), width),
    }
}

/// The GPU that stands for the machine: the workload's, or any while others' work is looked at.
fn shown_gpu<'a>(view: &View<'a>) -> Option<&'a GpuState> {
    view.gpu().filter(|gpu| gpu.info.profiled || view.state.watches())
}

fn gpu_parts<'a>(view: &View<'_>, gpu: &GpuState) -> Vec<Vec<Text<'a>>> {
    let theme = view.theme;
    if let Some((_, lost)) = &gpu.lost {
        return vec![vec![Text::styled(theme.glyphs.plain(&lost.reason), theme.bad)]];
    }
    let Some(at) = gpu.last_read() else {
        return vec![vec![Text::styled("no sample yet", theme.dim)]];
    };
    let mut parts = Vec::new();
    if let Some(w) = gpu.value(Reading::Power) {
        let limit = gpu.info.power_limit_w.map_or_else(|| "W".into(), |l| format!("of {l:.0} W"));
        parts.push(label_value(theme, "", &format!("{w:.0}"), &limit));
    }
    if let Some(mhz) = gpu.value(Reading::SmClock) {
        parts.push(label_value(theme, "SM", &format!("{mhz:.0}"), "MHz"));
    }
    if let Some(t) = gpu.value(Reading::Temp) {
        let margin = gpu.info.slowdown_temp_c.map(|limit| f64::from(limit) - t);
        let unit = margin.map_or_else(|| "°C".into(), |m| format!("°C, {m:.0} below slowdown"));
        parts.push(label_value(theme, "", &format!("{t:.0}"), &unit));
    }
    for (reading, name) in [(Reading::Tensor, "tensor"), (Reading::Dram, "DRAM")] {
        if let Some(pct) = gpu.value(reading) {
            parts.push(label_value(theme, name, &percent_digits(pct), "%"));
        }
    }
    if let (Some(p), None) = (gpu.value(Reading::GpuUtil), gpu.value(Reading::Dram)) {
        parts.push(label_value(theme, "use", &percent_digits(p), "%"));
    }
    if let Some(used) = gpu.value(Reading::MemUsed) {
        let total = gpu.value(Reading::MemTotal).or(gpu.info.mem_total_bytes.map(|bytes| bytes as f64));
        let unit = total.map_or_else(|| "GB".into(), |t| format!("of {} GB", three_digits(t / 1e9)));
        parts.push(label_value(theme, "memory", &three_digits(used / 1e9), &unit));
    }
    let active = gpu.reasons_now.map_or(0, |(_, bits)| bits);
    for (bit, _) in gpu.reasons.iter().filter(|(bit, _)| active & bit != 0) {
        let reason = crate::event::reasons::named(*bit);
        if reason.fault() {
            parts.insert(0, vec![Text::styled(reason.name(), theme.warn)]);
        }
    }
    if let Some(age) = stale(view.state.now, at) {
        parts.insert(0, vec![Text::styled(age, theme.bad)]);
    }
    parts
}

/// Words for a reading that is no longer fresh.
fn stale(now: Stamp, at: Stamp) -> Option<String> {
    let age = now.since(at).as_secs_f64();
    (age > 3.0).then(|| format!("{age:.0} s old"))
}

/// The device in a frame, as Overview has it.
pub fn summary_box(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let (title, aside) = match shown_gpu(view) {
        Some(gpu) => (card_name(gpu), String::new()),
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
        parts.push(label_value(theme, "profiler", &percent_digits(pct), "% of a core"));
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
