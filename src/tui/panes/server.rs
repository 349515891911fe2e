//! Server: what it does, what TTFT consists of, and its requests over time.

use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::{Line, Span as Text},
    widgets::{Paragraph, Widget},
};

use super::{
    gpu,
    lanes::{Row, draw_rows, margins, mark_cursor, rows_box},
};
use crate::{
    base::units::{millis, percent, three_digits},
    event::{GpuSource, Stamp, readings::Reading},
    state::{GpuState, Series, TtftPart},
    tui::{
        view::View,
        widgets::{Lane, cut, draw_box, note, wrapped},
    },
};

/// The readings below the requests.
const GPU_ROWS: [(Reading, &str); 2] = [(Reading::SmClock, "SM clock"), (Reading::Power, "power")];
const MAX_REASONS: u16 = 3;

pub struct ServerPane<'a>(pub View<'a>);

impl Widget for ServerPane<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let view = &self.0;
        let server = &view.state.server;
        let Some(found) = &server.found else {
            let inner = draw_box(view.theme, ("server", ""), area, buf);
            let text = match view.state.serves() {
                true => " the server does not answer yet",
                false => {
                    " no server: llmprof-tui run runtime=openai runtime.server.url=http://HOST:PORT, or watch URL"
                }
            };
            return note(view.theme, text).render(inner, buf);
        };
        let remarks: Vec<String> = view.state.server_remarks().iter().map(ToString::to_string).collect();
        let words: Vec<String> =
            remarks.iter().flat_map(|text| wrapped(text, area.width.saturating_sub(4) as usize)).collect();
        let said = (words.len() as u16).min(area.height / 4);
        let parts = TtftPart::ALL.into_iter().filter(|part| server.part(*part).n() > 0).count() as u16;
        let parts = if area.height >= 18 && parts > 0 { parts + 3 } else { 0 };
        let gpu = gpu_lines(view);
        let lanes = if area.height >= 24 { (area.height - parts - said) / 3 + gpu / 2 } else { 0 };
        let [charts, waterfall, requests, below] = Layout::vertical([
            Constraint::Min(4),
            Constraint::Length(parts),
            Constraint::Length(lanes),
            Constraint::Length(said),
        ])
        .areas(area);
        let title = format!("{} · {}", found.kind, found.url);
        let aside = match (&found.metrics, &found.model) {
            (None, _) => "no metrics of its own".to_owned(),
            (Some(_), Some(model)) => model.clone(),
            (Some(_), None) => String::new(),
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

fn rows<'a>(view: &View<'a>) -> Vec<Row<'a>> {
    let (theme, server) = (view.theme, &view.state.server);
    let row =
        |label, series: &'a Series, top: Option<f32>, style: Style, unit: fn(f64) -> String, why: &str| {
            let top = top.unwrap_or_else(|| series.range().map_or(1.0, |(_, max)| (max * 1.05).max(1.0)));
            Row {
                label,
                series,
                range: (0.0, top),
                style,
                readout: view.value(series).map(unit),
                extreme: unit,
                reason: Some(why.to_owned()),
                limit: None,
                warns: false,
                selected: false,
            }
        };
    let count: fn(f64) -> String = three_digits;
    let absent = "not reported by this server";
    let mut rows = vec![
        row("running", &server.running, None, theme.decode, count, absent),
        row("queued", &server.queued, None, theme.warn, count, absent),
        Row {
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
            "none yet, or none that are known here",
        ));
    }
    if view.state.serves() {
        rows.push(row("client lag", &server.lag_ms, None, theme.dim, millis, "not measured yet"));
    }
    rows
}

/// The parts of TTFT, each where it passes.
fn draw_waterfall(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let (theme, server) = (view.theme, &view.state.server);
    let ttft = &view.state.total.ttft;
    let aside = ttft
        .mean_ms()
        .map(|mean| format!("TTFT {} mean, n = {}", millis(mean), ttft.n()))
        .unwrap_or_default();
    let inner = draw_box(theme, ("TTFT by part", &aside), area, buf);
    let parts: Vec<TtftPart> = TtftPart::ALL.into_iter().filter(|part| server.part(*part).n() > 0).collect();
    let total: f64 = parts.iter().filter_map(|part| server.part(*part).mean_ms()).sum();
    let wide = inner.width >= 70;
    let columns = if wide { 4 } else { 1 };
    let (label, figures) = (12, if wide { 43 } else { 10 });
    let bar = inner.width.saturating_sub(label + figures + 1);
    let mut begun = 0.0;
    for (y, part) in (inner.y..inner.bottom()).zip(std::iter::once(None).chain(parts.iter().map(Some))) {
        let place = Rect { y, height: 1, ..inner };
        let right = Rect { x: inner.right().saturating_sub(figures), width: figures, ..place };
        let Some(part) = part else {
            let names = ["mean", "p50", "p90", "p99"].map(|name| format!("{name:>9}"));
            Line::styled(names[..columns].join("  ") + " ", theme.dim).right_aligned().render(right, buf);
            continue;
        };
        let times = server.part(*part);
        let mean = times.mean_ms().unwrap_or(0.0);
        let column = |ms: f64| if total > 0.0 { (ms / total * f64::from(bar)).round() as u16 } else { 0 };
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
        let text = |ms: Option<f64>| ms.map_or_else(|| "–".to_owned(), millis);
        let figures =
            [Some(mean), times.percentile_ms(50.0), times.percentile_ms(90.0), times.percentile_ms(99.0)];
        let figures: Vec<String> =
            figures.into_iter().map(|ms| format!("{:>9}", theme.glyphs.plain(&text(ms)))).collect();
        Line::styled(figures[..columns].join("  ") + " ", theme.text).right_aligned().render(right, buf);
    }
}

/// The GPU of the server, where it is at hand.
fn server_gpu<'a>(view: &View<'a>) -> Option<&'a GpuState> {
    let gpu = view.state.main_gpu()?;
    let is_its = view.state.server.is_local() || gpu.info.source == GpuSource::Dcgm;
    Some(gpu).filter(|gpu| is_its && !gpu.series(Reading::SmClock).is_empty())
}

/// Lines for its clock, its power and what limits it.
fn gpu_lines(view: &View<'_>) -> u16 {
    server_gpu(view).map_or(0, |gpu| GPU_ROWS.len() as u16 + (gpu.reasons.len() as u16).min(MAX_REASONS))
}

/// Requests as lanes over time, the newest below; under them the GPU.
fn draw_lanes(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let whole = draw_box(theme, ("requests", "to the first token ░, tokens █"), area, buf);
    let lines = gpu_lines(view);
    let below = if whole.height >= lines + 3 { lines } else { 0 };
    let [inner, below] = Layout::vertical([Constraint::Min(0), Constraint::Length(below)]).areas(whole);
    if let Some(gpu) = server_gpu(view).filter(|_| below.height > 0) {
        let rows = GPU_ROWS.map(|(reading, label)| gpu::row(view, gpu, reading, label, usize::MAX));
        let used = draw_rows(view, rows.into(), Rect { height: GPU_ROWS.len() as u16, ..below }, buf);
        let reasons = Rect { y: below.y + used, height: below.height.saturating_sub(used), ..below };
        gpu::reason_lanes(view, gpu, reasons, buf);
    }
    let (label, readout) = margins(inner.width);
    let cells = Lane::plot_area(inner, label, readout);
    let (from, to) = view.time_range();
    let span = to.since(from).as_nanos().max(1) as f64;
    let column = |t: Stamp| (t.since(from).as_nanos() as f64 / span * f64::from(cells.width)) as u16;
    let shown: Vec<_> =
        view.state.server.lanes.iter().filter(|lane| lane.end >= from && lane.start <= to).collect();
    let (to_first, tokens) = if theme.glyphs.ascii { (".", "#") } else { ("░", "█") };
    let skipped = shown.len().saturating_sub(cells.height as usize);
    for (y, lane) in (cells.y..cells.bottom()).zip(&shown[skipped..]) {
        let first = lane.first.unwrap_or(lane.end);
        buf.set_stringn(
            inner.x + 1,
            y,
            format!("{}", lane.request),
            label.saturating_sub(2) as usize,
            theme.dim,
        );
        let (a, b, c) =
            (column(lane.start), column(first), column(lane.end).min(cells.width.saturating_sub(1)));
        for x in a..=c {
            let (symbol, style) = match x {
                _ if lane.failed => (tokens, theme.bad),
                x if x < b => (to_first, theme.prefill),
                _ => (tokens, if lane.measured { theme.decode } else { theme.dim }),
            };
            if x < cells.width {
                buf[(cells.x + x, y)].set_symbol(symbol).set_style(style);
            }
        }
        let text = match lane.failed {
            true => "failed".to_owned(),
            false => millis(first.since(lane.start).as_secs_f64() * 1e3),
        };
        let place = Rect { x: cells.right(), y, width: inner.right() - cells.right(), height: 1 };
        Line::from(Text::styled(
            cut(&format!("{text} "), place.width as usize, theme.glyphs.ascii),
            theme.dim,
        ))
        .right_aligned()
        .render(place, buf);
    }
    mark_cursor(view, cells, buf);
}
