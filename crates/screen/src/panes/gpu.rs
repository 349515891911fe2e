//! GPU: power, clocks, utilisation, temperature, memory and clock event reasons; without a GPU, the host.

mod processes;
mod table;

use crate::{
    layout::Hit,
    pane::{Pane, Spec},
    ui::moved,
    view::View,
    widgets::{Chart, Lane, cut, draw_box, draw_gauge, draw_pointed, fit, label_value, note, spans},
};
use crossterm::event::KeyCode;
use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    style::{Modifier, Style},
    text::{Line, Span as Text},
    widgets::{Paragraph, Widget},
};

use super::{
    headlines::gpu_verdict,
    host::{host_pane, host_parts},
    lanes::{ChartLane, HOLD_NS, LABEL, draw_rows, margins, mark_cursor, recorded_row},
};
use llmprof_base::{
    cells,
    table::Table,
    units::{GIB, binary_bytes, percent, percent_digits, three_digits},
};
use llmprof_event::{Allocator, GpuSource, Refused, Stamp, readings::Reading, reasons};
use llmprof_record::state::{GpuState, Series};

pub struct GpuPane<'a>(pub View<'a>);

pub const PANE: Spec = Spec {
    title: "GPU",
    keys: &[KeyCode::Char('2')],
    help: "GPU: power, clocks, utilisation; without a GPU, the host",
    is_special: false,
    why_empty: "no GPU and no host were sampled",
    has_content: |_, state| {
        !state.gpus.is_empty() || state.gpu_absent.is_some() || !state.host.cpu_pct.is_empty()
    },
    draw: |view, area, buf| GpuPane(view).render(area, buf),
    table: readings,
    select: |ui, by, extent| match extent.gpus > 1 && !ui.gpu_open {
        true => ui.gpu = Some(moved(extent.gpu, by, extent.gpus)),
        false => (Spec::EMPTY.select)(ui, by, extent),
    },
    rows: |view| view.gpu().map_or(0, |gpu| rows(gpu).len()),
    ..Spec::EMPTY
};

/// The readings of all GPUs in the table, of the enlarged one, or of the host, over the time range of the charts, at
/// the kept resolution.
fn readings(view: &View<'_>) -> Table {
    let mut table = Table::keyed("device,reading,unit,t_s,min,mean,max");
    let (from, to) = view.time_range();
    let mut add = |device: &str, reading: &str, unit: &str, series: &Series| {
        for (t, bucket) in series.within(from, to) {
            let [min, mean, max] = [bucket.min, bucket.mean(), bucket.max].map(|value| value.to_string());
            table.push(cells![device, reading, unit, t.secs(), min, mean, max]);
        }
    };
    let gpus = match view.gpu() {
        Some(_) if view.shows_gpu_table() => view.state.gpus.iter().collect(),
        shown => Vec::from_iter(shown),
    };
    if gpus.is_empty() {
        let host = &view.state.host;
        for (reading, unit, series) in [
            ("cpu_pct", "%", &host.cpu_pct),
            ("process_pct", "% of a core", &host.process_pct),
            ("clock_mhz", "MHz", &host.freq_mhz),
            ("mem_used_bytes", "B", &host.mem_used_bytes),
            ("process_rss_bytes", "B", &host.process_rss_bytes),
            ("package_power_w", "W", &host.package_power_w),
        ] {
            add("host", reading, unit, series);
        }
    }
    for gpu in gpus {
        let device = format!("GPU {} {}", gpu.info.index, gpu.info.name);
        for reading in Reading::ALL {
            let about = reading.about();
            add(&device, about.key, about.unit, gpu.series(*reading));
        }
        for (bit, series) in &gpu.reasons {
            add(&device, &format!("held by {}", reasons::named(*bit).name()), "1 while active", series);
        }
    }
    table
}

/// The readings with their labels: charts first, then those with a bar.
const ROWS: [(Reading, &str); 11] = [
    (Reading::Power, "power W"),
    (Reading::SmClock, "SM MHz"),
    (Reading::Temp, "temp °C"),
    (Reading::GpuUtil, "GPU util"),
    (Reading::SmActive, "SM active"),
    (Reading::Tensor, "tensor"),
    (Reading::Dram, "DRAM"),
    (Reading::MemUtil, "mem util"),
    (Reading::Occupancy, "occupancy"),
    (Reading::MemClock, "memory MHz"),
    (Reading::MemUsed, "memory"),
];
/// The number of readings that are always drawn as large charts.
const LARGE: usize = 3;

impl Widget for GpuPane<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let view = &self.0;
        let Some(main) = view.gpu() else {
            return host_pane(view, area, buf);
        };
        let table = view.shows_gpu_table();
        let verdict = match table {
            true => table::verdict(view),
            false => Line::from(own_verdict(view, main)),
        };
        let rows = (verdict.width() as u16).div_ceil(area.width.saturating_sub(9).max(1));
        let least = if table { table::least_height(view, area) } else { 16 };
        let verdict_rows = rows.min(4).min(area.height.saturating_sub(least));
        let (body, below) = (
            Rect { height: area.height - verdict_rows, ..area },
            Rect { y: area.bottom() - verdict_rows, height: verdict_rows, ..area },
        );
        match table {
            true => table::draw(view, body, buf),
            false => gpu_box(view, main, body, buf),
        }
        if verdict_rows > 0 {
            draw_pointed(view.theme, verdict, below, buf);
        }
    }
}

/// The verdict on `gpu`, if there is one.
fn own_verdict<'a>(view: &View<'_>, gpu: &GpuState) -> Vec<Text<'a>> {
    match view.workload_gpu() {
        Some(judged) if judged.info.index == gpu.info.index => gpu_verdict(view),
        _ => Vec::new(),
    }
}

fn title(gpu: &GpuState) -> String {
    let simulated = if is_simulated(gpu) { " · simulated" } else { "" };
    format!("GPU {} · {}{simulated}", gpu.info.index, gpu.info.name)
}

fn is_simulated(gpu: &GpuState) -> bool {
    gpu.info.source == GpuSource::Sim
}

fn gpu_box(view: &View<'_>, gpu: &GpuState, area: Rect, buf: &mut Buffer) {
    let mut title = title(gpu);
    if gpu.info.profiled {
        title += " · profiled";
    }
    let mut aside = format!("{} · driver {}", gpu.info.source, gpu.info.driver);
    if gpu.lost.is_some() {
        aside = "lost".to_owned();
    } else if let Some(age) = gpu.last_read().and_then(|at| stale(view.state.now, at)) {
        aside = format!("{age}, {aside}");
    }
    if view.state.gpus.len() > 1 {
        let all = format!("Esc all {} GPUs", view.state.gpus.len());
        aside = if area.width >= 100 { format!("{aside} · {all}") } else { all };
    }
    let inner = draw_box(view.theme, (&title, &aside), area, buf);
    let readings = rows(gpu);
    let (large, bars): (Vec<_>, Vec<_>) = readings.iter().copied().enumerate().partition(|(i, _)| *i < LARGE);
    // The selected one is drawn as a large chart too.
    let selected = bars.iter().find(|(i, _)| *i == view.ui.row(Pane::Gpu)).copied();
    let large: Vec<_> = large.into_iter().chain(selected).collect();
    let across = if inner.width >= 96 { 2 } else { 1 };
    let bar_rows = (bars.len() as u16).div_ceil(across);
    let flags = gpu.reasons.len() as u16;
    let detail = 3.min(inner.height / 6);
    // Charts keep three rows each; bars, then processes, get the rest.
    let spare = inner.height.saturating_sub(flags + detail + 1 + 3 * large.len() as u16);
    let bar_rows = bar_rows.min(spare);
    let list = processes::height(gpu);
    let list = if spare >= bar_rows + list + 3 { list } else { 0 };
    let [charts, axis, lanes, bar_area, process_area, below] = Layout::vertical([
        Constraint::Min(0),
        Constraint::Length(1),
        Constraint::Length(flags),
        Constraint::Length(bar_rows),
        Constraint::Length(list),
        Constraint::Length(detail),
    ])
    .areas(inner);
    let large = large.into_iter().map(|(i, (reading, label))| row(view, gpu, reading, label, i)).collect();
    draw_rows(view, large, recorded_row(view, charts, buf), buf);
    let (label, readout) = margins(inner.width);
    reason_lanes(view, gpu, lanes, buf);
    let timed = Rect { height: charts.height + axis.height + lanes.height, ..charts };
    mark_cursor(view, Lane::plot_area(timed, label, readout), buf);
    view.time_axis().draw(buf, Lane::plot_area(axis, label, readout), view.theme);
    draw_bars(view, gpu, &bars, across, bar_area, buf);
    processes::draw(view, gpu, process_area, buf);
    let mut lines = vec![
        reading_line(view, gpu, below.width),
        also_line(view, gpu, below.width),
        sampler_line(view, below.width),
    ];
    if list == 0 {
        lines.splice(1..1, processes::summary(view, gpu, below.width));
    }
    Paragraph::new(lines).render(below, buf);
}

/// Label, bar, value and history of each reading, in one or two columns.
fn draw_bars(
    view: &View<'_>,
    gpu: &GpuState,
    bars: &[(usize, (Reading, &'static str))],
    across: u16,
    area: Rect,
    buf: &mut Buffer,
) {
    const BAR: u16 = 16;
    let theme = view.theme;
    let (from, to) = view.time_range();
    if area.height == 0 {
        return;
    }
    let width = area.width / across;
    for (n, (i, (reading, label))) in bars.iter().enumerate() {
        let (column, line) = (n as u16 / area.height, n as u16 % area.height);
        if column >= across {
            break;
        }
        let place = Rect { x: area.x + column * width, y: area.y + line, width, height: 1 };
        let row = row(view, gpu, *reading, label, *i);
        let style = if row.selected { theme.accent.add_modifier(Modifier::BOLD) } else { theme.dim };
        view.on_click(place, Hit::Row(*i));
        buf.set_stringn(place.x + 1, place.y, label, LABEL as usize - 2, style);
        let rest = Rect { x: place.x + LABEL, width: width.saturating_sub(LABEL + 1), ..place };
        if row.series.is_empty() {
            let reason = row
                .reason
                .map_or_else(|| "n/a".to_owned(), |reason| format!("n/a {} {reason}", theme.glyphs.none));
            note(theme, &cut(&reason, rest.width as usize, theme.glyphs.ascii)).render(rest, buf);
            continue;
        }
        let bar = Rect { width: BAR.min(rest.width / 3), ..rest };
        let share = value(view, gpu, *reading).map_or(0.0, |value| value as f32 / row.range.1);
        draw_gauge(buf, bar, share, &theme.shades(row.style), theme);
        let value = row.readout.unwrap_or_default();
        let wide = 15.min(rest.width - bar.width);
        let readout = Rect { x: bar.right() + 1, width: wide, ..rest };
        Line::styled(theme.glyphs.plain(&value), theme.text).right_aligned().render(readout, buf);
        let x = readout.right() + 2;
        let history = Rect { x, width: rest.right().saturating_sub(x), ..rest };
        let columns = spans(&row.series.held_columns(from, to, history.width as usize * 2, HOLD_NS));
        Chart::new(theme, &columns, row.range, row.style).render(history, buf);
    }
}

/// The rows of a GPU. If it has no GPM counters, one row gives the reason for all of them.
pub fn rows(gpu: &GpuState) -> Vec<(Reading, &'static str)> {
    let shown = |reading: Reading| {
        let is_gpm = Reading::GPM.contains(&reading);
        let refused = gpu.info.refusal(reading).is_some();
        !gpu.series(reading).is_empty() || !is_gpm || (refused && reading == Reading::SmActive)
    };
    ROWS.into_iter().filter(|(reading, _)| shown(*reading)).collect()
}

/// A reading as a row.
pub fn row<'a>(
    view: &View<'a>,
    gpu: &'a GpuState,
    reading: Reading,
    label: &'static str,
    i: usize,
) -> ChartLane<'a> {
    let theme = view.theme;
    let info = &gpu.info;
    let series = gpu.series(reading);
    let refused = gpu.info.refusal(reading);
    let (limit, style): (Option<f32>, Style) = match reading {
        Reading::Power => (info.power_limit_w, theme.power),
        Reading::SmClock => (info.sm_clock_max_mhz.map(|mhz| mhz as f32), theme.clock),
        Reading::MemClock => (info.mem_clock_max_mhz.map(|mhz| mhz as f32), theme.clock),
        Reading::Temp => (info.slowdown_temp_c.map(|celsius| celsius as f32), theme.temperature),
        Reading::MemUsed => (info.mem_total_bytes.map(|bytes| bytes as f32), theme.memory),
        _ => (Some(100.0), theme.utilisation),
    };
    let bottom = if reading == Reading::Temp { 20.0 } else { 0.0 };
    let top = limit.or(series.range().map(|(_, max)| max)).unwrap_or(1.0).max(bottom + 1.0);
    let reason = refused.map(|Refused { reason, remedy, .. }| match remedy {
        Some(remedy) => format!("{reason} {} {remedy}", theme.glyphs.none),
        None => reason.to_string(),
    });
    ChartLane {
        label,
        series,
        range: (bottom, top),
        style,
        readout: value(view, gpu, reading).map(|value| readout(reading, value, limit)),
        extreme: match reading {
            Reading::MemUsed => |bytes| three_digits(bytes / GIB),
            _ => |value| format!("{value:.0}"),
        },
        reason,
        limit: limit.filter(|_| matches!(reading, Reading::Power | Reading::SmClock | Reading::Temp)),
        // A maximum clock is not a problem.
        warns: reading != Reading::SmClock,
        selected: view.ui.row(Pane::Gpu) == i,
        collapses: false,
    }
}

/// At the cursor, or the current one.
fn value(view: &View<'_>, gpu: &GpuState, reading: Reading) -> Option<f64> {
    match view.cursor() {
        Some(_) => view.value(gpu.series(reading)),
        None => gpu.value(reading),
    }
}

fn readout(reading: Reading, value: f64, limit: Option<f32>) -> String {
    let of = |value: String, limit: Option<String>| match limit {
        Some(limit) => format!("{value} / {limit}"),
        None => value,
    };
    match reading {
        Reading::MemUsed => of(three_digits(value / GIB), limit.map(|limit| binary_bytes(limit as u64))),
        Reading::Temp => of(format!("{value:.0}"), limit.map(|limit| format!("{limit:.0} °C"))),
        Reading::Power => of(format!("{value:.0}"), limit.map(|limit| format!("{limit:.0} W"))),
        Reading::SmClock | Reading::MemClock => {
            of(format!("{value:.0}"), limit.map(|limit| format!("{limit:.0} MHz")))
        }
        _ => percent(value),
    }
}

/// Source and age of the selected reading.
fn reading_line<'a>(view: &View<'_>, gpu: &GpuState, width: u16) -> Line<'a> {
    let theme = view.theme;
    let rows = rows(gpu);
    let Some((reading, _)) = rows.get(view.ui.row(Pane::Gpu)).or(rows.last()).copied() else {
        return Line::default();
    };
    let about = reading.about();
    let mut parts = vec![label_value(theme, " selected:", about.label, "")];
    match gpu.age(reading, view.state.now) {
        Some(age) => {
            // Without instant power, the average is shown.
            let about = match (reading, gpu.info.refusal(reading)) {
                (Reading::Power, Some(_)) => Reading::PowerAverage.about(),
                _ => about,
            };
            let (source, window) = match gpu.info.source {
                GpuSource::Sim => ("simulation", about.window),
                GpuSource::Dcgm => ("the DCGM exporter", "at its last scrape"),
                _ => (about.source, about.window),
            };
            parts.push(label_value(theme, "from", source, ""));
            parts.push(label_value(theme, "", window, ""));
            parts.push(label_value(theme, "", &three_digits(age.as_secs_f64()), "s old"));
        }
        None => {
            let refused = gpu.info.refusal(reading);
            let reason = refused.map_or_else(|| "no sample yet".to_owned(), |r| r.reason.to_string());
            let remedy = refused.and_then(|r| r.remedy.clone());
            parts.extend([Some(reason), remedy].into_iter().flatten().map(|text| vec![dim(view, &text)]));
        }
    }
    fit(theme, parts, width)
}

fn dim<'a>(view: &View<'_>, text: &str) -> Text<'a> {
    Text::styled(text.to_owned(), view.theme.dim)
}

/// Readings without their own row.
fn also_line<'a>(view: &View<'_>, gpu: &GpuState, width: u16) -> Line<'a> {
    let theme = view.theme;
    let value = |reading| gpu.value(reading);
    let mut parts = vec![vec![dim(view, " also:")]];
    let mut add = |label: &str, value: Option<String>, unit: &str| {
        parts.extend(value.map(|value| label_value(theme, label, &value, unit)));
    };
    for (allocator, label) in [(Allocator::Gpu, "own buffers"), (Allocator::Heap, "heap")] {
        let sample = view.state.allocators.latest(allocator).filter(|_| gpu.info.profiled);
        add(label, sample.map(|sample| binary_bytes(sample.live_bytes)), "");
    }
    let rounded = |reading| value(reading).map(|value| format!("{value:.0}"));
    add("average", rounded(Reading::PowerAverage), "W");
    add("memory", rounded(Reading::MemTemp), "°C");
    let fan = [value(Reading::Fan).map(percent), rounded(Reading::FanRpm).map(|rpm| format!("{rpm} rpm"))];
    let fan = fan.into_iter().flatten().collect::<Vec<_>>().join(", ");
    add("fan", Some(fan).filter(|fan| !fan.is_empty()), "");
    let link = value(Reading::PcieGen).zip(value(Reading::PcieWidth));
    add("PCIe", link.map(|(generation, lanes)| format!("gen{generation:.0} x{lanes:.0}")), "");
    let rate = |a, b| value(a).zip(value(b)).map(|(sent, received)| three_digits(sent + received));
    add("traffic", rate(Reading::PcieTx, Reading::PcieRx), "MiB/s");
    add("NVLink", rate(Reading::NvlinkTx, Reading::NvlinkRx), "MiB/s");
    let errors = value(Reading::EccCorrected).zip(value(Reading::EccUncorrected));
    add("ECC", errors.map(|(corrected, not)| format!("{corrected:.0} + {not:.0}")), "");
    fit(theme, parts, width)
}

/// The overhead of sampling.
fn sampler_line<'a>(view: &View<'_>, width: u16) -> Line<'a> {
    let theme = view.theme;
    let Some(cost) = &view.state.sampler else {
        let reason = match view.state.main_gpu().map(|gpu| &gpu.info.source) {
            Some(GpuSource::Sim) => "none, the GPU is simulated",
            Some(GpuSource::Dcgm) => "none, an exporter samples the GPU",
            _ => "not measured yet",
        };
        return note(theme, &format!(" sampling overhead: {reason}"));
    };
    let mut parts = Vec::new();
    if let Some(pct) = cost.cpu_pct {
        parts.push(label_value(theme, " sampling overhead", &percent_digits(pct), "% of a core"));
    }
    parts.push(label_value(theme, "in calls", &percent_digits(cost.duty_pct), "% of the time"));
    let calls = cost.calls.iter().filter_map(|call| Some((call, call.p50_us?)));
    if let Some((call, p50)) = calls.max_by(|a, b| a.1.total_cmp(&b.1)) {
        let micros = |us: Option<f32>| {
            us.map_or_else(|| theme.glyphs.none.to_owned(), |us| three_digits(f64::from(us)))
        };
        let times = format!("p50 {} p99 {} µs, n={}", micros(Some(p50)), micros(call.p99_us), call.n);
        parts.push(label_value(theme, "slowest", &call.call, &times));
    }
    fit(theme, parts, width)
}

/// The reasons with a lane: in a chart of a few seconds, only those that were active then.
pub(super) fn shown_reasons<'a>(
    view: &View<'_>,
    gpu: &'a GpuState,
) -> impl Iterator<Item = (u64, &'a Series)> {
    let (from, to) = view.time_range();
    let all = view.range.is_none();
    let was_active = move |series: &Series| {
        let columns = series.held_columns(from, to, 1, HOLD_NS);
        columns.iter().flatten().any(|bucket| bucket.max > 0.0)
    };
    gpu.reasons
        .iter()
        .map(|(bit, series)| (*bit, series))
        .filter(move |(_, series)| all || was_active(series))
}

/// Clock event reasons over time, one line per reason that was ever active.
pub(super) fn reason_lanes(view: &View<'_>, gpu: &GpuState, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let (from, to) = view.time_range();
    let (label, readout) = margins(area.width);
    let chart = Lane::plot_area(area, label, readout);
    for ((bit, series), y) in shown_reasons(view, gpu).zip(area.top()..area.bottom()) {
        let reason = reasons::named(bit);
        let active = view.value(series).is_some_and(|v| v > 0.0);
        let style = theme.reason(bit);
        let name = cut(&reason.name(), label as usize - 2, theme.glyphs.ascii);
        buf.set_stringn(area.x + 1, y, name, label as usize - 2, style);
        for (x, part) in series.held_columns(from, to, chart.width as usize, HOLD_NS).into_iter().enumerate()
        {
            if part.is_some_and(|b| b.max > 0.0) {
                let block = if theme.glyphs.ascii { "#" } else { "▄" };
                buf[(chart.x + x as u16, y)].set_symbol(block).set_style(style);
            }
        }
        let state = if active { "active " } else { "" };
        let place = Rect { x: chart.right(), y, width: readout, height: 1 };
        Line::styled(state, style).right_aligned().render(place, buf);
    }
}

/// The device in one line, the most important part first.
pub fn summary_line<'a>(view: &View<'_>, width: u16) -> Line<'a> {
    let theme = view.theme;
    match view.workload_gpu() {
        Some(gpu) => fit(theme, gpu_parts(view, gpu), width),
        None => fit(theme, host_parts(view), width),
    }
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
    let mut add = |label: &str, value: Option<String>, unit: &str| {
        parts.extend(value.map(|value| label_value(theme, label, &value, unit)));
    };
    let info = &gpu.info;
    let value = |reading| gpu.value(reading);
    let rounded = |reading| value(reading).map(|value| format!("{value:.0}"));
    let power_unit = info.power_limit_w.map_or_else(|| "W".into(), |limit| format!("of {limit:.0} W"));
    add("", rounded(Reading::Power), &power_unit);
    add("SM", rounded(Reading::SmClock), "MHz");
    let margin = gpu.slowdown_temp_ahead_c().zip(value(Reading::Temp)).map(|(limit, t)| f64::from(limit) - t);
    let temp_unit = margin.map_or_else(|| "°C".into(), |m| format!("°C, {m:.0} below slowdown"));
    add("", rounded(Reading::Temp), &temp_unit);
    let pct = |reading| value(reading).map(percent_digits);
    add("tensor", pct(Reading::Tensor), "%");
    match pct(Reading::Dram) {
        Some(dram) => add("DRAM", Some(dram), "%"),
        None => add("util", pct(Reading::GpuUtil), "%"),
    }
    let gib = |bytes: f64| three_digits(bytes / GIB);
    let total = value(Reading::MemTotal).or(info.mem_total_bytes.map(|bytes| bytes as f64));
    let memory_unit = total.map_or_else(|| "GiB".into(), |total| format!("of {} GiB", gib(total)));
    add("memory", value(Reading::MemUsed).map(gib), &memory_unit);
    let faults = gpu.reasons_now.map_or(0, |(_, bits)| reasons::faults(bits));
    for reason in reasons::active(faults) {
        parts.insert(0, vec![Text::styled(reason.name(), theme.warn)]);
    }
    if let Some(age) = stale(view.state.now, at) {
        parts.insert(0, vec![Text::styled(age, theme.bad)]);
    }
    parts
}

/// The age of a reading, if it is old.
fn stale(now: Stamp, at: Stamp) -> Option<String> {
    let age = now.since(at).as_secs_f64();
    (age > 3.0).then(|| format!("{age:.0} s old"))
}

/// The overhead of the profiler, as a short text.
pub fn overhead(view: &View<'_>) -> Option<String> {
    let observer = view.state.observer.as_ref()?;
    let mut parts = Vec::new();
    if observer.lost > 0 {
        parts.push(format!("{} events lost", observer.lost));
    }
    parts.extend(observer.consumer_pct.map(|pct| format!("profiler overhead {pct:.1} % of a core")));
    parts.extend(observer.frame_ms.map(|ms| format!("frame {} ms", three_digits(f64::from(ms)))));
    Some(parts.join(" · ")).filter(|text| !text.is_empty())
}
