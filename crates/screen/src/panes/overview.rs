//! Overview: tiles, tok/s over time with throttle reasons, throughput, latency, and the verdict.

use crate::{
    pane::Spec,
    view::View,
    widgets::{Chart, Span, TICKS, before_now, cut, draw_box, fit, label_value, note, spans, wrapped},
};
use crossterm::event::KeyCode;
use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    style::Modifier,
    text::{Line, Span as Text},
    widgets::{Paragraph, Widget, Wrap},
};

use super::{
    gpu,
    headlines::{Rate, gpu_verdict, headline, rate_unit},
    histogram::{Histogram, MIN_WIDTH},
    lanes::{HOLD_NS, mark_cursor, mark_recorded, reason_strip},
    tiles,
    tokens::no_token,
};
use llmprof_analysis::{distribution::Distribution, startup::Stage};
use llmprof_base::{
    cells,
    table::{Cell, Table},
    units::{grouped, millis, percent, scaled, three_digits},
};
use llmprof_event::{Outcome, Phase, WorkKind, readings::Reading};
use llmprof_record::state::{Bucket, GpuState, Series};

pub struct OverviewPane<'a>(pub View<'a>);

pub const PANE: Spec = Spec {
    title: "Overview",
    keys: &[KeyCode::Char('1')],
    help: "Overview: throughput, latency, and what limits them",
    is_special: false,
    why_empty: "no workload was measured",
    has_content: |_, state| state.run.is_some() && state.kind().has_workload(),
    draw: |view, area, buf| OverviewPane(view).render(area, buf),
    table: values,
    ..Spec::EMPTY
};

/// One row per value.
fn values(view: &View<'_>) -> Table {
    let state = view.state;
    let mut table = Table::keyed("part,name,what,unit,value");
    let mut add = |part: &str, name: &str, what: &str, unit: &str, value: Cell| {
        if !value.is_missing() && !value.text().is_empty() {
            table.push(cells![part, name, what, unit, value]);
        }
    };
    if let Some(run) = &state.run {
        for (name, value) in [
            ("model", run.model.clone()),
            ("dtype", run.dtype.clone()),
            ("engine", run.kind.to_string()),
            ("device", state.device().map_or_else(String::new, ToString::to_string)),
        ] {
            add("run", name, "", "", value.into());
        }
        add("run", "simulated", "", "", Cell::from(run.simulated));
    }
    add("run", "time", "", "s", Cell::from(state.now.secs()));
    let (now, rate) = headline(view);
    if rate == Rate::Now {
        let what = if state.kind().has_concurrent_requests() { "output" } else { "decode" };
        add("throughput", what, "now", "tok/s", Cell::from(now));
    }
    add("throughput", "decode", "mean", "tok/s", Cell::from(state.decode_tok_s()));
    add("throughput", "prefill", "mean", "tok/s", Cell::from(state.total.prefill_tok_s()));
    add("throughput", "output", "wall clock", "tok/s", Cell::from(state.total.output_tok_s()));
    add("throughput", "GPU idle", "share", "1", Cell::from(state.gpu_idle().map(|idle| idle.share)));
    add("throughput", "MFU", "share", "1", Cell::from(state.mfu().map(|used| used.share)));
    let mbu = now.and_then(|rate| state.mbu_at(rate));
    add("throughput", "MBU", "share", "1", Cell::from(mbu.map(|used| used.share)));
    for (name, distribution) in state.latencies(&state.total) {
        let s = distribution.summary();
        add("latency", name, "n", "", Cell::from(s.n));
        let values = [("mean", s.mean), ("p50", s.p50), ("p90", s.p90), ("p99", s.p99)];
        let ends = [("min", s.min), ("max", s.max), ("last", distribution.last_ms())];
        values
            .into_iter()
            .chain(ends)
            .for_each(|(what, ms)| add("latency", name, what, "ms", Cell::from(ms)));
    }
    for (name, distribution) in
        state.total.left_out().into_iter().flat_map(|metrics| state.latencies(metrics))
    {
        let s = distribution.summary();
        add("latency, kernels recorded", name, "n", "", Cell::from(s.n));
        add("latency, kernels recorded", name, "mean", "ms", Cell::from(s.mean));
        add("latency, kernels recorded", name, "p50", "ms", Cell::from(s.p50));
    }
    let cost = state.kernels.recording.cost();
    add("latency, kernels recorded", "cost", "of a step", "%", Cell::from(cost.map(|cost| cost.cost_pct)));
    if let Some(gpu) = view.gpu() {
        add("GPU", "name", "", "", Cell::from(gpu.info.name.clone()));
        if let Some(energy) = state.energy(gpu) {
            let requests = energy.requests.map(|requests| requests.j_per_output_token);
            add("energy", "requests", "per output token", "J", Cell::from(requests));
            for phase in &energy.phases {
                add("energy", phase.phase.name(), "", "J", Cell::from(phase.joules));
                add("energy", phase.phase.name(), "per token", "J", Cell::from(phase.j_per_token));
            }
        }
        for reading in Reading::ALL {
            let about = reading.about();
            add("GPU", about.key, "last", about.unit, Cell::from(gpu.value(*reading)));
        }
        for cause in state.diagnosis_of(gpu).into_iter().flat_map(|diagnosis| diagnosis.causes) {
            let name = format!("{} in {}", cause.reason, cause.phase);
            add("limit", &name, "held", "s", Cell::from(cause.active_s));
            add("limit", &name, "time_share", "1", Cell::from(cause.time_share));
            add("limit", &name, "clock", "MHz", Cell::from(cause.clock_mhz));
            add("limit", &name, "clock_free", "MHz", Cell::from(cause.clock_free_mhz));
            add("limit", &name, "cost", "%", Cell::from(cause.cost_pct));
            add("limit", &name, "cost", "ms/token", Cell::from(cause.ms_per_token));
            add("limit", &name, "lost", "tokens", Cell::from(cause.tokens_lost));
            add("limit", &name, "basis", "", Cell::from(cause.basis.to_string()));
        }
    }
    if let Some(trust) = state.trust() {
        add("trust", "score", &format!("of {}", trust.of), "", Cell::from(trust.score));
        trust.issues.iter().for_each(|issue| add("trust", "doubt", "", "", Cell::from(issue.to_string())));
    }
    add("verdict", "", "", "", Cell::from(verdict_text(view)));
    table
}

fn has_boxes(area: Rect) -> bool {
    area.height >= 18 && area.width >= 56
}

/// Whether the pane shows the trust of the run.
pub fn shows_trust(view: &View<'_>, area: Rect) -> bool {
    has_boxes(area) && tiles::show_trust(view, area)
}

/// Rows of the verdict; the rest is in the evidence.
const VERDICT: u16 = 3;
/// Rows of the boxes of throughput and latency.
const TABLES: u16 = 7;

impl Widget for OverviewPane<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let view = &self.0;
        if !has_boxes(area) {
            return in_few_lines(view, area, buf);
        }
        let [top, chart, tables, below] = Layout::vertical([
            Constraint::Length(tiles::ROWS),
            Constraint::Min(4),
            Constraint::Length(TABLES),
            Constraint::Length(VERDICT),
        ])
        .areas(area);
        tiles::draw(view, top, buf);
        throughput_chart(view, chart, buf);
        let [left, right] =
            Layout::horizontal([Constraint::Length(34.min(area.width * 2 / 5)), Constraint::Min(0)])
                .areas(tables);
        throughput(view, left, buf);
        let wide = right.width >= LATENCY_WIDTH + MIN_WIDTH;
        let [table, rest] = Layout::horizontal([
            if wide { Constraint::Length(LATENCY_WIDTH) } else { Constraint::Fill(1) },
            if wide { Constraint::Fill(1) } else { Constraint::Length(0) },
        ])
        .areas(right);
        latency(view, table, buf);
        if wide {
            Histogram {
                distribution: &view.state.total.itl,
                title: view.state.gap_name(),
                theme: view.theme,
            }
            .render(rest, buf);
        }
        draw_verdict(view, below, buf);
    }
}

/// Wide enough for all columns of the latency table.
const LATENCY_WIDTH: u16 = 68;

/// One fact per line, the first one emphasised. The rest is in the evidence.
fn draw_verdict(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let width = area.width.saturating_sub(4) as usize;
    let mut rows: Vec<Line<'_>> = Vec::new();
    for (i, fact) in verdict(view).spans.into_iter().enumerate() {
        let style = if i == 0 { fact.style.add_modifier(Modifier::BOLD) } else { fact.style };
        let lines = wrapped(fact.content.trim(), width);
        rows.extend(lines.into_iter().map(|line| Line::styled(line, style)));
    }
    let hidden = rows.len() > area.height as usize;
    rows.truncate(area.height as usize);
    if hidden && let Some(last) = rows.last_mut() {
        let style = last.spans.first().map_or(theme.text, |span| span.style).patch(last.style);
        let more = if theme.glyphs.ascii { "... v for more" } else { "… v for more" };
        let text = cut(&last.to_string(), width.saturating_sub(more.chars().count() + 1), theme.glyphs.ascii);
        let text = text.trim_end_matches(['…', '.', ' ']).to_owned();
        *last = Line::from(vec![Text::styled(format!("{text} "), style), Text::styled(more, theme.accent)]);
    }
    buf.set_string(area.x + 1, area.y, theme.glyphs.pointer, theme.accent);
    Paragraph::new(rows).render(Rect { x: area.x + 3, width: width as u16, ..area }, buf);
}

/// The verdict as plain text.
pub fn verdict_text(view: &View<'_>) -> String {
    verdict(view).to_string().trim().to_owned()
}

/// The summary of the run, or why there is no verdict yet.
fn verdict<'a>(view: &View<'a>) -> Line<'a> {
    let theme = view.theme;
    let plain = |text: &str| theme.glyphs.plain(text);
    // Before a server answers, there is nothing else to report, whatever the GPU does.
    if let Some((stage, seconds, line)) = view.state.starting() {
        let text = format!("The server starts: {stage} for {seconds:.0} s. Its last line: {line}");
        return Line::from(Text::styled(plain(&text), theme.accent));
    }
    let mut sentences = Vec::new();
    if let Some(finished) = view.state.finished.as_ref().filter(|f| f.outcome != Outcome::Completed) {
        let cause = finished.cause.as_deref().unwrap_or("no cause was given");
        let verb = if finished.outcome == Outcome::Failed { "failed" } else { "was interrupted" };
        let style = theme.outcome(finished.outcome);
        sentences.push(Text::styled(plain(&format!("The run {verb}: {cause}. ")), style));
    }
    let limit = view.state.limit().map(|limit| format!("{limit} "));
    sentences.extend(limit.map(|text| Text::styled(plain(&text), theme.text)));
    let speed = view.state.verdict().map(|sentence| Text::styled(plain(&format!("{sentence} ")), theme.text));
    // For a server, and for a program with unknown steps, the speed comes before the GPU.
    match view.state.load_tested().is_some() || view.state.found_no_steps() {
        true => sentences.extend(speed.into_iter().chain(gpu_verdict(view))),
        false => sentences.extend(gpu_verdict(view).into_iter().chain(speed)),
    }
    if !sentences.is_empty() {
        return Line::from(sentences);
    }
    if let (Phase::Preparing, Some(loading), Some(text)) =
        (view.state.phase, &view.state.loading, view.state.loading_text())
    {
        let text = gauge(view, loading.share()) + &plain(&text);
        return Line::from(Text::styled(text, theme.accent));
    }
    let warming_up = view.state.active.latest().is_some_and(|a| a.started.warmup);
    let reason = match view.state.phase {
        Phase::Preparing => "Preparing: no measurements yet.",
        _ if warming_up => "Warming up: these tokens are not counted.",
        _ if !view.state.kind().has_workload() => "No GPU sample yet.",
        _ => "No measurements yet.",
    };
    note(theme, reason)
}

/// A short bar, in blocks; empty if the share is not known.
fn gauge(view: &View<'_>, share: Option<f64>) -> String {
    const CELLS: usize = 20;
    let Some(share) = share else { return String::new() };
    let (full, empty) = if view.theme.glyphs.ascii { ("#", ".") } else { ("█", "░") };
    let filled = (share * CELLS as f64).round() as usize;
    format!("{}{} ", full.repeat(filled), empty.repeat(CELLS.saturating_sub(filled)))
}

fn throughput(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let inner = draw_box(theme, ("throughput", rate_unit(view)), area, buf);
    let number = |value: Option<f64>| value.map_or_else(|| theme.glyphs.none.to_owned(), three_digits);
    let (now, _) = headline(view);
    let decode = |label| (label, number(view.state.decode_tok_s()), String::new());
    let output = ("output, wall clock", number(view.state.total.output_tok_s()), String::new());
    let mut rows = match view.state.kind() {
        WorkKind::Server => vec![output, decode("one stream, mean")],
        // The number of tokens per step is not known.
        WorkKind::Program => vec![decode("decode, mean")],
        WorkKind::Model(_) | WorkKind::Sim | WorkKind::Python | WorkKind::Watch => {
            vec![decode("decode, mean"), output]
        }
    };
    if let Some(server) = view.state.load_tested() {
        let latest = server.latest.as_ref();
        let streams = view.state.active.count();
        let age = server.silent_for(view.state.now);
        let age = age.map_or_else(String::new, |age| format!("{:.0} s ago", age.as_secs_f64()));
        rows.push(match latest.and_then(|s| s.running) {
            Some(n) => ("running", three_digits(n), age.clone()),
            None => ("running", three_digits(streams as f64), String::new()),
        });
        rows.extend(latest.and_then(|s| s.queued).map(|n| ("queued", three_digits(n), age)));
        let seconds = view.state.total.wall_ns as f64 / 1e9;
        if server.slo().is_some() && seconds > 0.0 {
            rows.push(("goodput", three_digits(server.good as f64 / seconds), "requests/s".to_owned()));
        }
    }
    match view.state.speculation {
        Some(tally) => {
            let share = tally.acceptance().map(|share| percent(share * 100.0));
            let accepted = share.unwrap_or_else(|| theme.glyphs.none.to_owned());
            rows.push(("tokens per step", number(tally.tokens_per_step()), String::new()));
            rows.push(("acceptance rate", accepted, String::new()));
        }
        None => {
            let images = view.state.vision.as_ref().and_then(|tally| tally.tokens_per_image());
            rows.extend(images.map(|tokens| ("tokens per image", three_digits(tokens), String::new())));
            if !view.state.kind().infers_steps() {
                rows.push(("prefill", number(view.state.total.prefill_tok_s()), String::new()));
            }
            let mfu = view.state.mfu();
            rows.extend(mfu.map(|mfu| ("MFU", percent(mfu.share * 100.0), String::new())));
        }
    }
    if let Some(mbu) = now.and_then(|rate| view.state.mbu_at(rate)) {
        rows.push(("MBU", percent(mbu.share * 100.0), format!("of {}", scaled(mbu.peak, "B/s"))));
    } else if let (Some(bytes), Some(rate)) =
        (view.state.decode_step_bytes(), now.filter(|_| !view.state.kind().has_concurrent_requests()))
    {
        let bytes_s = bytes as f64 * rate / (f64::from(view.state.batch()) * view.state.tokens_per_step());
        rows.push(("reads, estimate", scaled(bytes_s, "B/s"), String::new()));
    }
    let lines = rows.into_iter().map(|(label, value, of)| {
        let width = inner.width.saturating_sub(2) as usize;
        let label = if of.is_empty() { label.to_owned() } else { format!("{label} {of}") };
        let room = width.saturating_sub(value.chars().count() + 1);
        let label = cut(&label, room, theme.glyphs.ascii);
        let gap = " ".repeat(width.saturating_sub(label.chars().count() + value.chars().count()));
        Line::from(vec![
            Text::styled(format!(" {label}{gap}"), theme.dim),
            Text::styled(theme.glyphs.plain(&value), theme.number),
        ])
    });
    Paragraph::new(lines.collect::<Vec<_>>()).render(inner, buf);
}

/// The tokens per second of this program's requests. Servers report theirs too, some of them in blocks or at the end of
/// a request.
fn output_of_server<'a>(view: &View<'a>) -> Option<&'a Series> {
    let server = view.state.load_tested()?;
    [server.tokens_per_s.over(), &server.output_tok_s].into_iter().find(|series| series.range().is_some())
}

/// Decode tokens per second over the time range, two values per cell of `cells`.
fn tok_s_columns(view: &View<'_>, cells: u16) -> Vec<Option<Span>> {
    let (from, to) = view.time_range();
    if let Some(output) = output_of_server(view) {
        let columns = output.columns(from, to, cells as usize * 2);
        let column_s = to.since(from).as_secs_f64() / columns.len().max(1) as f64;
        return held(columns, column_s);
    }
    let tokens = (f64::from(view.state.batch()) * view.state.tokens_per_step()) as f32;
    let per_second = |itl_ms: f32| tokens * 1e3 / itl_ms.max(1e-6);
    let columns = view.state.itl_columns(from, to, cells as usize * 2);
    let column_ms = to.since(from).as_secs_f64() * 1e3 / columns.len().max(1) as f64;
    let prefill_ms = view.state.ttft_ms.last().map_or(0.0, |(_, ttft_ms)| ttft_ms);
    join_gaps(columns, column_ms, prefill_ms)
        .into_iter()
        .map(|b| b.map(|b| Span::flat(per_second(b.mean()))))
        .collect()
}

/// A server is read once per second: columns between two readings have the later one.
fn held(columns: Vec<Option<Bucket>>, column_s: f64) -> Vec<Option<Span>> {
    const LONGEST_S: f64 = 2.5;
    let mut next: Option<(usize, f32)> = None;
    let mut held: Vec<Option<Span>> = vec![None; columns.len()];
    for (i, column) in columns.iter().enumerate().rev() {
        if let Some(bucket) = column {
            next = Some((i, bucket.mean()));
        }
        held[i] =
            next.filter(|(at, _)| (at - i) as f64 * column_s <= LONGEST_S).map(|(_, rate)| Span::flat(rate));
    }
    held
}

/// Slow tokens and prefills leave columns empty: the columns of a token, and of a prefill before it, get its value. A
/// pause belongs to no token.
fn join_gaps(mut columns: Vec<Option<Bucket>>, column_ms: f64, prefill_ms: f32) -> Vec<Option<Bucket>> {
    let mut next: Option<(usize, Bucket)> = None;
    for i in (0..columns.len()).rev() {
        match (columns[i], next) {
            (Some(itl), _) => next = Some((i, itl)),
            (None, Some((at, itl))) if (at - i) as f64 * column_ms <= f64::from(itl.max + prefill_ms) => {
                columns[i] = Some(itl);
            }
            _ => {}
        }
    }
    columns
}

/// The stages of a server's start, with bars of their times.
fn stages<'a>(view: &View<'_>, width: u16) -> Vec<Line<'a>> {
    let theme = view.theme;
    let startup = &view.state.startup;
    let Some((current, seconds, _)) = view.state.starting() else { return Vec::new() };
    let mut rows: Vec<(Stage, f64, bool)> = startup.stages().map(|(stage, s)| (stage, s, false)).collect();
    rows.push((current, seconds, true));
    let longest = rows.iter().map(|(_, s, _)| *s).fold(1.0, f64::max);
    let room = f64::from(width.saturating_sub(32));
    let block = if theme.glyphs.ascii { "#" } else { "█" };
    let line = |(stage, seconds, is_current): (Stage, f64, bool)| {
        let bar = block.repeat((room * seconds / longest).round() as usize);
        Line::from(vec![
            Text::styled(format!(" {:<17}", stage.name()), if is_current { theme.accent } else { theme.dim }),
            Text::styled(format!("{seconds:>7.1} s "), theme.number),
            Text::styled(bar, if is_current { theme.accent } else { theme.prefill }),
        ])
    };
    rows.into_iter().map(line).collect()
}

/// Decode tok/s as an area with its median, prefills below it, and the throttle reasons.
fn throughput_chart(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let (from, to) = view.time_range();
    let inside = area.width.saturating_sub(2);
    let columns = tok_s_columns(view, inside.saturating_sub(TICKS + 1));
    let mut sorted: Vec<f32> = columns.iter().flatten().map(|span| span.mid).collect();
    sorted.sort_by(f32::total_cmp);
    let at_cursor = view.time_axis().cursor_column(columns.len() as u16 / 2);
    let aside = match sorted.as_slice() {
        _ if let Some(column) = at_cursor => {
            let rate = columns[2 * usize::from(column)]
                .map_or("no token".to_owned(), |span| format!("{} tok/s", three_digits(f64::from(span.mid))));
            format!("at {}: {rate}", before_now(view.state.now, view.cursor().unwrap_or_default()))
        }
        [] => String::new(),
        [min, .., max] if area.width >= 70 => {
            let [min, p50, max] = [*min, sorted[sorted.len() / 2], *max].map(|v| three_digits(f64::from(v)));
            format!("min {min} · p50 {p50} · max {max}")
        }
        _ => format!("p50 {}", three_digits(f64::from(sorted[sorted.len() / 2]))),
    };
    let recorded = view.state.kernels.recording.overlaps(from, to);
    let is_output = output_of_server(view).is_some();
    let rate = if is_output { "output" } else { "decode" };
    let marked = if recorded { " · kernels recorded where marked" } else { "" };
    let title = match view.state.starting() {
        Some(_) => "the server starts".to_owned(),
        None => format!("{rate} {}{marked}", rate_unit(view)),
    };
    let room = usize::from(area.width).saturating_sub(aside.chars().count() + 8);
    let title =
        if title.chars().count() > room { title.split(" · ").next().unwrap_or(&title) } else { &title };
    let inner = draw_box(theme, (title, &aside), area, buf);
    if sorted.is_empty() {
        return match stages(view, inner.width) {
            lines if lines.is_empty() => note(theme, no_token(view)).render(inner, buf),
            lines => Paragraph::new(lines).render(inner, buf),
        };
    }
    let chart = Rect { width: inner.width.saturating_sub(1), ..inner };
    let cells = Chart::cells(chart, true);
    let (lanes, lanes_height) = device_lanes(view, chart.height);
    let [chart, below] =
        Layout::vertical([Constraint::Min(0), Constraint::Length(lanes_height)]).areas(chart);
    draw_lanes(view, lanes, below, buf);
    let limits = reason_strip(view, cells, chart, buf);
    let mut x = area.x + title.chars().count() as u16 + 5;
    for (name, style) in &limits {
        let text = format!("{} {name} ", if theme.glyphs.ascii { "#" } else { "■" });
        if usize::from(x) + text.len() + aside.len() + 4 < usize::from(area.right()) {
            buf.set_string(x, area.y, &text, *style);
            x += text.chars().count() as u16 + 1;
        }
    }
    let chart = Rect { height: chart.height.saturating_sub((!limits.is_empty()).into()), ..chart };
    let marked = mark_recorded(view, Chart::cells(chart, true), buf);
    let chart = Rect { y: marked.y, height: marked.height, ..chart };
    let top = sorted.last().copied().unwrap_or(1.0) * 1.08;
    let mut area_chart = Chart::new(theme, &columns, (0.0, top), theme.decode);
    area_chart.median = Some(sorted[sorted.len() / 2]);
    area_chart.ticks = true;
    area_chart.render(chart, buf);
    mark_cursor(view, cells, buf);
    view.time_axis().draw(buf, Rect { y: area.bottom() - 1, height: 1, ..cells }, theme);
}

/// Power and clock below tok/s, if there is room, and their height.
fn device_lanes<'a>(view: &View<'a>, height: u16) -> (Vec<(&'static str, Reading, &'a GpuState)>, u16) {
    let Some(gpu) = view.workload_gpu().filter(|_| height >= 14) else { return (Vec::new(), 0) };
    let lanes = [("power W", Reading::Power), ("SM MHz", Reading::SmClock), ("temp °C", Reading::Temp)];
    let lanes: Vec<_> = lanes
        .into_iter()
        .take(if height >= 24 { 3 } else { 2 })
        .filter(|(_, reading)| !gpu.series(*reading).is_empty())
        .map(|(label, reading)| (label, reading, gpu))
        .collect();
    let each = (height / 7).clamp(3, 5);
    let all = lanes.len() as u16 * each;
    (lanes, all)
}

fn draw_lanes(view: &View<'_>, lanes: Vec<(&'static str, Reading, &GpuState)>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let (from, to) = view.time_range();
    let places = Layout::vertical(vec![Constraint::Fill(1); lanes.len()]).split(area);
    for ((label, reading, gpu), place) in lanes.into_iter().zip(places.iter()) {
        // A blank row separates it from the chart above.
        let heading = Rect { height: 1, ..*place };
        let place = Rect { y: place.y + 1, height: place.height.saturating_sub(1), ..*place };
        let row = gpu::row(view, gpu, reading, label, usize::MAX);
        let cells = Chart::cells(place, true);
        let columns = spans(&row.series.held_columns(from, to, cells.width as usize * 2, HOLD_NS));
        let title = Line::from(vec![
            Text::styled(format!("{label}  "), row.style),
            Text::styled(theme.glyphs.plain(&row.readout.unwrap_or_default()), theme.text),
        ]);
        title.render(Rect { x: cells.x, width: cells.width, ..heading }, buf);
        let mut chart = Chart::new(theme, &columns, row.range, row.style);
        chart.ticks = true;
        chart.render(place, buf);
    }
}

/// A column of the latency table.
struct Column {
    heading: &'static str,
    clock: Clock,
    value: fn(&Distribution) -> Option<f64>,
    /// Dropped first if it is the highest.
    rank: usize,
}

/// The clock of a column's times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clock {
    Host,
    Gpu,
}

const COLUMNS: [Column; 6] = [
    Column { heading: "last", clock: Clock::Host, value: Distribution::last_ms, rank: 1 },
    Column { heading: "p50", clock: Clock::Host, value: |d| d.percentile_ms(50.0), rank: 0 },
    Column { heading: "p90", clock: Clock::Host, value: |d| d.percentile_ms(90.0), rank: 4 },
    Column { heading: "p99", clock: Clock::Host, value: |d| d.percentile_ms(99.0), rank: 2 },
    Column { heading: "max", clock: Clock::Host, value: Distribution::max_ms, rank: 5 },
    Column { heading: "GPU p50", clock: Clock::Gpu, value: |d| d.percentile_ms(50.0), rank: 3 },
];

/// As many columns as fit, those of the GPU's clock only if it was read.
fn latency_columns(by_gpu: bool, room: usize) -> Vec<&'static Column> {
    let is_there = |column: &&Column| by_gpu || column.clock == Clock::Host;
    let mut columns: Vec<&Column> = COLUMNS.iter().filter(is_there).collect();
    while columns.len() > room.max(1) {
        let highest = columns.iter().map(|column| column.rank).max();
        columns.retain(|column| Some(column.rank) != highest);
    }
    columns
}

fn latency(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    // A run with recording throughout has only these.
    let aside = match (view.state.total.is_recorded(), view.state.total.left_out().is_some()) {
        (true, _) => "ms, kernels recorded",
        (false, true) => "ms, without recording",
        (false, false) => "ms",
    };
    let title = if view.state.kind().infers_steps() { "latency, inferred" } else { "latency" };
    let inner = draw_box(theme, (title, aside), area, buf);
    let total = &view.state.total;
    let by_gpu = total.device_step.n() > 0;
    let distributions = match total.vision.n() {
        0 => [&total.ttft, &total.tpot, &total.itl, &total.e2e],
        _ => [&total.vision, &total.ttft, &total.tpot, &total.itl],
    };
    let counts = distributions.map(|d| grouped(d.n() as i64));
    let n_width = count_width(&counts);
    let columns = latency_columns(by_gpu, usize::from(inner.width.saturating_sub(6 + n_width as u16) / 8));
    let mut heading = vec![Text::raw("      ")];
    heading.extend(columns.iter().map(|c| Text::styled(format!("{:>8}", c.heading), theme.dim)));
    heading.push(Text::styled(format!("{:>n_width$}", "n"), theme.dim));
    let mut lines = vec![Line::from(heading)];
    let mut rows = vec![
        ("TTFT", &total.ttft, Some(&total.device_prefill)),
        ("TPOT", &total.tpot, None),
        (view.state.short_gap_name(), &total.itl, Some(&total.device_step)),
        ("E2E", &total.e2e, None),
    ];
    if total.vision.n() > 0 {
        // There is room for four rows: that of images is more important than the total.
        rows.pop();
        rows.insert(0, ("image", &total.vision, Some(&total.device_vision)));
    }
    let cell = |ms: Option<f64>, style| {
        let text = ms.map_or_else(|| theme.glyphs.none.to_owned(), three_digits);
        Text::styled(format!("{text:>8}"), style)
    };
    for ((name, distribution, on_device), n) in rows.into_iter().zip(&counts) {
        let mut line = vec![Text::styled(format!(" {name:<5}"), theme.accent)];
        line.extend(columns.iter().map(|column| {
            let measured = match column.clock {
                Clock::Host => Some(distribution),
                Clock::Gpu => on_device,
            };
            let style = if column.rank == 0 { theme.number } else { theme.text };
            cell(measured.and_then(column.value), style)
        }));
        line.push(Text::styled(format!("{n:>n_width$}"), theme.dim));
        lines.push(Line::from(line));
    }
    Paragraph::new(lines).render(inner, buf);
    if let Some(text) = gpu::overhead(view) {
        let text = format!(" {} ", theme.glyphs.plain(&text));
        let width = text.chars().count() as u16;
        if width + 4 <= area.width {
            buf.set_string(area.right() - width - 2, area.bottom() - 1, text, theme.dim);
        }
    }
}

/// The width of column `n`, with a gap before the largest count.
fn count_width(counts: &[String]) -> usize {
    counts.iter().map(|n| n.len() + 1).max().unwrap_or(0).max(9)
}

/// The essentials, for a terminal too small for boxes.
fn in_few_lines(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let total = &view.state.total;
    let none = theme.glyphs.none;
    let rate = |v: Option<f64>| v.map_or_else(|| none.to_owned(), three_digits);
    let (decode, kind) = headline(view);
    let mut lines = vec![fit(
        theme,
        vec![
            label_value(theme, "", &rate(decode), &kind.unit(view)),
            label_value(theme, "output", &rate(total.output_tok_s()), ""),
            label_value(theme, "prefill", &rate(total.prefill_tok_s()), ""),
        ],
        area.width,
    )];
    let gap = (view.state.short_gap_name(), &total.itl);
    let rows = [("TTFT", &total.ttft), ("TPOT", &total.tpot), gap, ("E2E", &total.e2e)];
    // The last one only if the device and the verdict fit too.
    for (name, d) in rows.into_iter().take(if area.height > 6 { 4 } else { 3 }) {
        let ms = |v: Option<f64>| v.map_or_else(|| none.to_owned(), millis);
        lines.push(fit(
            theme,
            vec![
                match d.percentile_ms(50.0) {
                    Some(p50) => label_value(theme, &format!("{name:<4} p50"), &millis(p50), ""),
                    None => label_value(theme, &format!("{name:<4} last"), &ms(d.last_ms()), ""),
                },
                label_value(theme, "n", &d.n().to_string(), ""),
                label_value(theme, "p99", &ms(d.percentile_ms(99.0)), ""),
            ],
            area.width,
        ));
    }
    lines.push(gpu::summary_line(view, area.width));
    lines.push(verdict(view));
    Paragraph::new(lines).wrap(Wrap { trim: true }).render(area, buf);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_of_the_gpu_is_dropped_before_p99() {
        let headings = |by_gpu, room| {
            latency_columns(by_gpu, room).iter().map(|column| column.heading).collect::<Vec<_>>()
        };
        assert_eq!(headings(true, 6), ["last", "p50", "p90", "p99", "max", "GPU p50"]);
        assert_eq!(headings(true, 4), ["last", "p50", "p99", "GPU p50"]);
        // At 80 columns.
        assert_eq!(headings(true, 3), ["last", "p50", "p99"]);
        assert_eq!(headings(false, 4), ["last", "p50", "p90", "p99"]);
        assert_eq!(headings(true, 0), ["p50"]);
    }

    #[test]
    fn no_count_touches_its_neighbour() {
        for (n, width) in [(7, 9), (9_999_999, 10), (12_345_678, 11), (1_234_567_890, 14)] {
            let counts = [grouped(1), grouped(n)];
            assert_eq!(count_width(&counts), width);
            assert!(format!("{:>width$}", counts[1]).starts_with(' '), "{n}");
        }
    }
}
