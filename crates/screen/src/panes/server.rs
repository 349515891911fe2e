//! Server: its load, the parts of TTFT, and its requests over time.

use crate::{
    pane::{Pane, Spec},
    view::View,
    widgets::{ListLayout, cut, draw_box, draw_note, wrapped},
};
use crossterm::event::KeyCode;
use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::Line,
    widgets::{Paragraph, Widget},
};

use super::{
    gpu,
    lanes::{ChartLane, draw_rows, rows_box},
    streams::{self, Streams},
};
use llmprof_base::{
    cells,
    foreign::{MAX_LINE, line},
    table::Table,
    units::{millis, percent, three_digits},
};
use llmprof_event::{GpuSource, readings::Reading};
use llmprof_record::{
    report::bill_text,
    state::{GpuState, MeanOf, PartTimes, Series, ServerState, TtftPart},
};

/// The readings below the requests.
const GPU_ROWS: [(Reading, &str); 2] = [(Reading::SmClock, "SM clock"), (Reading::Power, "power")];
const MAX_REASONS: u16 = 3;
/// With fewer lines, the selected server has all of them.
const MIN_LIST_AREA: u16 = 14;
/// Maximum characters of a URL in the list.
const MAX_URL: usize = 60;
/// Lines that are reserved for the charts.
const CHARTS: u16 = 12;

pub struct ServerPane<'a>(pub View<'a>);

pub const PANE: Spec = Spec {
    title: "Server",
    keys: &[KeyCode::Char('9')],
    help: "Server: queue, cache, batch, TTFT by part, requests",
    is_special: true,
    why_empty: "no server was load-tested or monitored",
    has_content: |_, state| {
        state.servers().any(|server| server.url().is_some()) || state.load_tested().is_some()
    },
    draw: |view, area, buf| ServerPane(view).render(area, buf),
    table: requests,
    rows: |view| view.state.servers().count(),
    ..Spec::EMPTY
};

/// One row per kept request.
fn requests(view: &View<'_>) -> Table {
    let mut table = Table::keyed("request,start_s,first_token_s,end_s,measured,failed");
    for lane in &view.state.server.lanes {
        let first = lane.first.map(|first| first.secs());
        let times = cells![lane.request, lane.start.secs(), first, lane.end.secs()];
        table.push(times.into_iter().chain(cells![lane.measured, lane.failed]));
    }
    table
}

impl Widget for ServerPane<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let view = &self.0;
        let area = draw_list(view, area, buf);
        let server = view.server();
        let Some(found) = &server.found else {
            let inner = draw_box(view.theme, (server.url().unwrap_or("server"), ""), area, buf);
            let text = match (server.silence(view.state.now), view.state.load_tested()) {
                (Some(silence), _) => silence,
                (None, Some(_)) => "the server does not answer yet".to_owned(),
                (None, None) => {
                    "no server: llmprof-tui run runtime=openai runtime.server.url=http://HOST:PORT, or watch URL"
                        .to_owned()
                }
            };
            return draw_note(view.theme, &text, inner, buf);
        };
        let remarks = remarks(view);
        let words: Vec<String> =
            remarks.iter().flat_map(|text| wrapped(text, area.width.saturating_sub(4) as usize)).collect();
        let said = (words.len() as u16).min(area.height / 4);
        let parts = server.ttft_parts().len() as u16;
        let parts = if area.height >= 18 && parts > 0 { parts + 3 } else { 0 };
        let gpu = gpu_lines(&view.over(view.stream_range(view.cursor())));
        // One line per stream, but not more than the charts leave.
        let streams = Streams::from_view(view).count().min(usize::from(area.height)) as u16;
        let most = area.height.saturating_sub(parts + said + CHARTS);
        let lanes = if area.height >= 24 && most >= 6 { (streams + gpu + 3).clamp(6, most) } else { 0 };
        let [charts, waterfall, requests, below] = Layout::vertical([
            Constraint::Min(4),
            Constraint::Length(parts),
            Constraint::Length(lanes),
            Constraint::Length(said),
        ])
        .areas(area);
        let title = format!("{} · {}", found.kind, found.url);
        let aside = match (&found.metrics, &found.model) {
            _ if server.silent.is_some() => server.silence(view.state.now).unwrap_or_default(),
            (None, _) => "no metrics endpoint".to_owned(),
            (Some(_), Some(model)) => model.clone(),
            (Some(_), None) => "the server's metrics".to_owned(),
        };
        rows_box(view, (&title, &aside), rows(view), 0, charts, buf);
        if parts > 0 {
            draw_waterfall(view, waterfall, buf);
        }
        if lanes >= 3 {
            draw_lanes(view, requests, buf);
        }
        let words: Vec<Line> =
            words.into_iter().take(said as usize).map(|line| Line::styled(line, view.theme.text)).collect();
        if said > 0 {
            buf.set_string(below.x + 1, below.y, view.theme.glyphs.pointer, view.theme.accent);
            Paragraph::new(words)
                .render(Rect { x: below.x + 3, width: below.width.saturating_sub(3), ..below }, buf);
        }
    }
}

/// Why the server is slow; for a silent server only that it is silent, because its last values are not current.
fn remarks(view: &View<'_>) -> Vec<String> {
    let (state, server) = (view.state, view.server());
    match &server.silent {
        Some((since, why)) if !state.kind().has_workload() => {
            let age = state.now.since(*since).as_secs_f64();
            vec![format!(
                "The server has not answered for {age:.0} s ({}). The values are from before that; it is retried \
                 until it answers.",
                line(why, MAX_LINE)
            )]
        }
        _ => {
            let remarks = state.remarks_on(server).into_iter().map(|remark| remark.to_string());
            // Only a load test has requests of its own.
            remarks.chain(state.load_tested().and_then(|_| bill_text(state))).collect()
        }
    }
}

/// Several servers, one of them selected. Returns the remaining area.
fn draw_list(view: &View<'_>, area: Rect, buf: &mut Buffer) -> Rect {
    let servers: Vec<&ServerState> = view.state.servers().collect();
    if servers.len() < 2 || area.height < MIN_LIST_AREA {
        return area;
    }
    let height = (servers.len() as u16 + 2).min(area.height / 3);
    let [list, below] = Layout::vertical([Constraint::Length(height), Constraint::Min(0)]).areas(area);
    let title = format!("{} servers", servers.len());
    let inner = draw_box(view.theme, (&title, "↑ ↓ select"), list, buf);
    let layout = ListLayout::new(inner, servers.len(), view.ui.row(Pane::Server));
    // The URL of a recording is untrusted.
    let url = |server: &ServerState| line(server.url().unwrap_or("not queried yet"), MAX_URL);
    let wide = servers.iter().map(|server| url(server).chars().count()).max().unwrap_or(0);
    for (row, place) in layout.rows() {
        let server = servers[row];
        let selected = row == layout.selected;
        let (summary, style) = match server.silence(view.state.now) {
            Some(silence) => (silence, view.theme.bad),
            None => (summary(server), view.theme.text),
        };
        let pointer = if selected { view.theme.glyphs.pointer } else { " " };
        let text = format!("{pointer} {:wide$}  {summary}", url(server));
        let text = cut(&text, place.width as usize, view.theme.glyphs.ascii);
        let style = if selected { style.patch(view.theme.accent) } else { style };
        Line::styled(text, style).render(place, buf);
    }
    below
}

/// The current state of a server, on one line.
fn summary(server: &ServerState) -> String {
    let Some(found) = &server.found else { return String::new() };
    let value = |series: &Series| series.last().map(|(_, value)| f64::from(value));
    let figures = [
        (value(&server.running).map(three_digits), "running"),
        (value(&server.queued).map(three_digits), "queued"),
        (value(&server.kv_used).map(percent), "KV cache"),
        (value(&server.output_tok_s).map(three_digits), "tok/s"),
    ];
    let figures = figures.into_iter().filter_map(|(value, name)| Some(format!("  {} {name}", value?)));
    found.kind.to_string() + &figures.collect::<String>()
}

fn rows<'a>(view: &View<'a>) -> Vec<ChartLane<'a>> {
    let (theme, server) = (view.theme, view.server());
    // The last report of a silent server is not its current state.
    let silent = server.silent.as_ref().filter(|_| view.cursor().is_none());
    let age = silent.map(|(since, _)| format!(", {:.0} s ago", view.state.now.since(*since).as_secs_f64()));
    let age = age.unwrap_or_default();
    let row =
        |label, series: &'a Series, top: Option<f32>, style: Style, unit: fn(f64) -> String, why: &str| {
            let top = top.unwrap_or_else(|| series.range().map_or(1.0, |(_, max)| (max * 1.05).max(1.0)));
            ChartLane {
                label,
                series,
                range: (0.0, top),
                style,
                readout: view.value(series).map(|value| format!("{}{age}", unit(value))),
                extreme: unit,
                reason: Some(why.to_owned()),
                limit: None,
                warns: false,
                selected: false,
                collapses: true,
            }
        };
    let count: fn(f64) -> String = three_digits;
    let absent = "not reported by this server";
    let mut rows = vec![
        row("running", &server.running, None, theme.decode, count, absent),
        row("queued", &server.queued, None, theme.warn, count, absent),
        ChartLane {
            warns: true,
            limit: Some(95.0),
            ..row("KV cache %", &server.kv_used, Some(100.0), theme.memory, percent, absent)
        },
        row("batch", &server.batch, None, theme.utilisation, count, absent),
        row("out tok/s", &server.output_tok_s, None, theme.decode, count, absent),
    ];
    rows.retain(|row| !row.series.is_empty());
    if rows.is_empty() {
        rows.push(row(
            "metrics",
            &server.running,
            None,
            theme.decode,
            count,
            "none yet, or none that this program reads",
        ));
    }
    if view.state.load_tested().is_some() {
        let p99 = |ms: f64| format!("{} p99", millis(ms));
        let lag = row("client lag", &server.lag_ms, None, theme.dim, p99, "not measured yet");
        // The client's own value, which is measured while the server is silent too.
        let readout = view.value(&server.lag_ms).map(p99);
        rows.push(ChartLane { extreme: millis, readout, ..lag });
    }
    rows
}

/// The parts of TTFT, each at its time.
fn draw_waterfall(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let (theme, server) = (view.theme, view.server());
    // The same requests as those of the parts.
    let aside = server
        .ttft_mean_ms()
        .map(|mean| format!("TTFT {} mean, n = {}", millis(mean), server.part(TtftPart::Wait).n()))
        .unwrap_or_default();
    let inner = draw_box(theme, ("TTFT by part", &aside), area, buf);
    let parts = server.ttft_parts();
    let total: f64 = parts.iter().filter_map(|times| times.mean_ms).sum();
    let wide = inner.width >= 70;
    let columns = if wide { 4 } else { 1 };
    let (label, figures) = (12, if wide { 43 } else { 10 });
    let bar = inner.width.saturating_sub(label + figures + 1);
    let mut begun = 0.0;
    let rows = std::iter::once(None).chain(parts.iter().copied().map(Some));
    for (y, times) in (inner.y..inner.bottom()).zip(rows) {
        let place = Rect { y, height: 1, ..inner };
        let right = Rect { x: inner.right().saturating_sub(figures), width: figures, ..place };
        let Some(times @ PartTimes { part, mean_ms, of }) = times else {
            let names = ["mean", "p50", "p90", "p99"].map(|name| format!("{name:>9}"));
            Line::styled(names[..columns].join("  ") + " ", theme.dim).right_aligned().render(right, buf);
            continue;
        };
        let column = |ms: f64| if total > 0.0 { (ms / total * f64::from(bar)).round() as u16 } else { 0 };
        let mean = mean_ms.unwrap_or(0.0);
        let (from, to) = (column(begun), column(begun + mean).min(bar));
        begun += mean;
        buf.set_stringn(place.x + 1, y, part.name(), label as usize, theme.dim);
        let style = match part {
            TtftPart::ClientLag | TtftPart::Connect | TtftPart::Send => theme.dim,
            TtftPart::Queue => theme.warn,
            TtftPart::Prefill => theme.prefill,
            TtftPart::Wait => theme.decode,
        };
        for x in from..to.max(from + u16::from(mean > 0.0)).min(bar) {
            buf[(place.x + label + x, y)].set_symbol(theme.glyphs.active).set_style(style);
        }
        let figure = |ms: Option<f64>| format!("{:>9}", ms.map_or_else(String::new, millis));
        let at = |p: f64| figure(times.distribution().and_then(|d| d.percentile_ms(p)));
        let mean = mean_ms.map_or_else(|| format!("{:>9}", theme.glyphs.none), |ms| figure(Some(ms)));
        let figures = match of {
            MeanOf::Requests(_) => [mean, at(50.0), at(90.0), at(99.0)][..columns].join("  "),
            _ if !wide => mean,
            MeanOf::SomeRequests => format!("{mean}  {:31}", "not reported by all"),
            MeanOf::ServerRequests => format!("{mean}  {:31}", "the server's mean"),
            MeanOf::Rest if mean_ms.is_none() => format!("{mean}  {:31}", "the server's means exceed TTFT"),
            MeanOf::Rest => format!("{mean}  {:31}", "the rest"),
        };
        Line::styled(theme.glyphs.plain(&figures) + " ", theme.text).right_aligned().render(right, buf);
    }
}

/// The GPU of the server, if it is on this machine.
fn server_gpu<'a>(view: &View<'a>) -> Option<&'a GpuState> {
    let gpu = view.state.main_gpu()?;
    let is_its = view.server().is_local() || gpu.info.source == GpuSource::Dcgm;
    Some(gpu).filter(|gpu| is_its && !gpu.series(Reading::SmClock).is_empty())
}

/// Lines for its clock, its power and its limits.
fn gpu_lines(view: &View<'_>) -> u16 {
    server_gpu(view).map_or(0, |gpu| {
        GPU_ROWS.len() as u16 + (gpu::shown_reasons(view, gpu).count() as u16).min(MAX_REASONS)
    })
}

/// The streams with their requests over time; below them the GPU.
fn draw_lanes(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let view = &view.over(view.stream_range(view.cursor()));
    let streams = Streams::from_view(view);
    let (to_first, tokens) = streams::glyphs(theme);
    let legend = format!("to the first token {to_first}, tokens {tokens} · [ ] zoom");
    let title = format!("requests · {}", streams.title(view));
    let whole = draw_box(theme, (&title, &legend), area, buf);
    let lines = gpu_lines(view);
    let below = if whole.height >= lines + 4 { lines } else { 0 };
    let [inner, below] = Layout::vertical([Constraint::Min(0), Constraint::Length(below)]).areas(whole);
    if let Some(gpu) = server_gpu(view).filter(|_| below.height > 0) {
        let rows = GPU_ROWS.map(|(reading, label)| gpu::row(view, gpu, reading, label, usize::MAX));
        let used = draw_rows(view, rows.into(), Rect { height: GPU_ROWS.len() as u16, ..below }, buf);
        let reasons = Rect { y: below.y + used, height: below.height.saturating_sub(used), ..below };
        gpu::reason_lanes(view, gpu, reasons, buf);
    }
    streams.draw_requests(view, inner, buf);
}
