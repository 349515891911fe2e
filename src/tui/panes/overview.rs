//! Overview: throughput, latency, the last tokens, the device in a line, and the verdict.

use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Margin, Rect},
    text::{Line, Span as Text},
    widgets::{Paragraph, Widget, Wrap},
};

use super::{gpu, lanes::mark_recorded, tokens};
use crate::{
    analysis::{distribution::Distribution, throttle::Tone},
    base::units::{grouped, millis, percent, scaled, three_digits},
    event::{Outcome, Phase},
    tui::{
        view::View,
        widgets::{Span, draw_box, draw_pointed, fit, label_value, note, plot},
    },
};

pub struct OverviewPane<'a>(pub View<'a>);

impl Widget for OverviewPane<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let view = &self.0;
        if area.height < 13 || area.width < 56 {
            return in_few_lines(view, area, buf);
        }
        let mut verdict = verdict(view);
        // Lines break between words: some of every line stays empty.
        let rows = |line: &Line<'_>| (line.width() as u16).div_ceil(area.width.saturating_sub(9).max(1));
        // Sentences that do not fit are left to the evidence.
        while rows(&verdict) > VERDICT_ROWS && verdict.spans.len() > 1 {
            verdict.spans.pop();
        }
        let verdict_height = rows(&verdict).clamp(1, VERDICT_ROWS);
        let device_height = if area.height >= 24 { 4 } else { 3 };
        let chart_height =
            if area.height >= 34 { area.height - 8 - 9 - device_height - verdict_height } else { 0 };
        let [top, chart, strip, device, below] = Layout::vertical([
            Constraint::Length(match area.height {
                20.. => 7,
                18.. => 6,
                _ => 5,
            }),
            Constraint::Length(chart_height),
            Constraint::Min(3),
            Constraint::Length(device_height),
            Constraint::Length(verdict_height),
        ])
        .areas(area);
        let [left, right] =
            Layout::horizontal([Constraint::Percentage(45), Constraint::Percentage(55)]).areas(top);
        throughput(view, left, buf);
        latency(view, right, buf);
        if chart_height >= 5 {
            throughput_chart(view, chart, buf);
        }
        tokens::strip_box(view, strip, buf);
        gpu::summary_box(view, device, buf);
        draw_pointed(view.theme, verdict, below, buf);
    }
}

const VERDICT_ROWS: u16 = 5;

/// The verdict as plain text.
pub fn verdict_text(view: &View<'_>) -> String {
    verdict(view).to_string().trim().to_owned()
}

/// What the run shows, or why there is no verdict yet.
fn verdict<'a>(view: &View<'a>) -> Line<'a> {
    let theme = view.theme;
    let plain = |text: &str| theme.glyphs.plain(text);
    let mut sentences = Vec::new();
    if let Some(finished) = view.state.finished.as_ref().filter(|f| f.outcome != Outcome::Completed) {
        let cause = finished.cause.as_deref().unwrap_or("no cause was given");
        let verb = if finished.outcome == Outcome::Failed { "failed" } else { "was interrupted" };
        let style = theme.outcome(finished.outcome);
        sentences.push(Text::styled(plain(&format!("The run {verb}: {cause}. ")), style));
    }
    sentences.extend(gpu_verdict(view));
    sentences.extend(view.state.verdict().map(|sentence| Text::styled(plain(&sentence), theme.text)));
    if !sentences.is_empty() {
        return Line::from(sentences);
    }
    if let (Phase::Preparing, Some(loading), Some(run)) =
        (view.state.phase, &view.state.loading, &view.state.run)
    {
        return Line::from(vec![
            Text::styled(gauge(view, loading.share()), theme.accent),
            Text::styled(plain(&loading.describe(run.weight_bytes)), theme.text),
        ]);
    }
    let warming_up = view.state.active.as_ref().is_some_and(|a| a.started.warmup);
    let reason = match view.state.phase {
        Phase::Preparing => "Preparing: no measurements yet.",
        _ if warming_up => "Warming up: these tokens are not counted.",
        _ if view.state.watches() => "No GPU sample yet.",
        _ => "No measurements yet.",
    };
    note(theme, reason)
}

/// A short bar, in blocks; empty where the share is not known.
fn gauge(view: &View<'_>, share: Option<f64>) -> String {
    const CELLS: usize = 20;
    let Some(share) = share else { return String::new() };
    let (full, empty) = if view.theme.glyphs.ascii { ("#", ".") } else { ("█", "░") };
    let filled = (share * CELLS as f64).round() as usize;
    format!("{}{} ", full.repeat(filled), empty.repeat(CELLS.saturating_sub(filled)))
}

/// What limits the GPU; coloured if something is wrong.
pub fn gpu_verdict<'a>(view: &View<'_>) -> Vec<Text<'a>> {
    let theme = view.theme;
    let diagnosed = view.workload_gpu().and_then(|gpu| Some((gpu, view.state.diagnosis_now(gpu)?)));
    let Some((gpu, diagnosis)) = diagnosed else { return Vec::new() };
    let style = match diagnosis.tone {
        Tone::Fine => theme.good,
        Tone::Note | Tone::Unknown => theme.text,
        Tone::Bad => theme.warn,
    };
    let mut sentences = vec![Text::styled(theme.glyphs.plain(&format!("{} ", diagnosis.verdict)), style)];
    let slowdown = gpu.heat().filter(|heat| heat.slowdown_in_s.is_some()).and_then(|heat| heat.describe());
    sentences.extend(slowdown.map(|text| Text::styled(theme.glyphs.plain(&format!("{text} ")), theme.warn)));
    sentences
}

fn throughput(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let inner = draw_box(theme, ("throughput", ""), area, buf);
    let (now, rate) = headline(view);
    let number = |value: Option<f64>| value.map_or_else(|| theme.glyphs.none.to_owned(), three_digits);
    let mean = number(view.state.total.decode_tok_s());
    let mut lines = vec![
        Line::from(label_value(theme, "", &number(now), rate.unit())),
        Line::from(label_value(theme, "decode mean", &mean, "tok/s")),
    ];
    let prefill = number(view.state.total.prefill_tok_s());
    let mut prefill_line = label_value(theme, "prefill", &prefill, "tok/s");
    if let Some(mfu) = view.state.mfu() {
        prefill_line.push(Text::raw("  "));
        prefill_line.extend(label_value(theme, "MFU", &percent(mfu.share * 100.0), ""));
    }
    lines.push(Line::from(prefill_line));
    let output = number(view.state.total.output_tok_s());
    lines.insert(1, Line::from(label_value(theme, "output", &output, "tok/s wall clock")));
    if let Some(mbu) = now.and_then(|rate| view.state.mbu_at(rate)) {
        let of = format!("of {}", scaled(mbu.peak, "B/s"));
        lines.push(Line::from(label_value(theme, "MBU", &percent(mbu.share * 100.0), &of)));
    } else if let (Some(bytes), Some(rate)) = (view.state.decode_step_bytes(), now) {
        let bytes_s = bytes as f64 * rate / f64::from(view.state.batch());
        lines.push(Line::from(label_value(theme, "reads", &scaled(bytes_s, "B/s"), "(estimate)")));
    }
    let width = lines.iter().map(Line::width).max().unwrap_or(0) as u16 + 3;
    Paragraph::new(lines).render(inner.inner(Margin::new(1, 0)), buf);
    if inner.width > width + 8 && inner.height > 1 {
        let chart = Rect { x: inner.x + width, width: inner.width - width - 1, ..inner };
        tok_s_line(view, chart, buf);
    }
}

/// What the first number of the pane is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    Now,
    Mean,
}

impl Rate {
    fn unit(self) -> &'static str {
        match self {
            Rate::Now => "tok/s now",
            Rate::Mean => "tok/s",
        }
    }
}

/// The decode rate now; of the whole run once it has finished.
pub fn headline(view: &View<'_>) -> (Option<f64>, Rate) {
    match view.state.finished {
        Some(_) => (view.state.total.decode_tok_s(), Rate::Mean),
        None => (view.state.recent_decode_tok_s(2.0), Rate::Now),
    }
}

/// Draws decode tokens per second over the time range; returns the top of the axis.
fn tok_s_line(view: &View<'_>, area: Rect, buf: &mut Buffer) -> Option<f32> {
    let (from, to) = view.time_range();
    let batch = view.state.batch() as f32;
    let per_second = |itl_ms: f32| batch * 1e3 / itl_ms.max(1e-6);
    let columns: Vec<_> = view
        .state
        .itl_columns(from, to, area.width as usize * 2)
        .into_iter()
        .map(|b| b.map(|b| Span::flat(per_second(b.mean()))))
        .collect();
    let top = columns.iter().flatten().map(|s| s.mid).fold(0.0, f32::max) * 1.05;
    let chart = mark_recorded(view, area, buf);
    plot(buf, chart, &join_gaps(columns), (0.0, top), view.theme.decode, view.theme);
    (top > 0.0).then_some(top)
}

/// Slow tokens leave columns empty; a column between two tokens gets the value of the later one.
fn join_gaps(mut columns: Vec<Option<Span>>) -> Vec<Option<Span>> {
    const MAX_GAP: usize = 12;
    let mut next: Option<(usize, Span)> = None;
    for i in (0..columns.len()).rev() {
        match (columns[i], next) {
            (Some(span), _) => next = Some((i, span)),
            (None, Some((at, span))) if at - i < MAX_GAP && i > 0 => columns[i] = Some(span),
            _ => {}
        }
    }
    columns
}

fn throughput_chart(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let (from, to) = view.time_range();
    let aside = format!("last {:.0} s", to.since(from).as_secs_f64());
    let recorded = view.state.kernels.recording.overlaps(from, to);
    let title = if recorded { "decode tok/s · kernels recorded where marked" } else { "decode tok/s" };
    let inner = draw_box(view.theme, (title, &aside), area, buf);
    let chart = Rect { x: inner.x + 8, width: inner.width.saturating_sub(9), ..inner };
    if view.state.itl_ms.is_empty() {
        note(view.theme, " no token yet").render(inner, buf);
        return;
    }
    if let Some(top) = tok_s_line(view, chart, buf) {
        axis_label(view, inner, inner.y, &three_digits(f64::from(top)), buf);
        axis_label(view, inner, inner.y + inner.height / 2, &three_digits(f64::from(top) / 2.0), buf);
        axis_label(view, inner, inner.bottom() - 1, "0", buf);
    }
}

fn axis_label(view: &View<'_>, area: Rect, y: u16, text: &str, buf: &mut Buffer) {
    let place = Rect { y, height: 1, width: 7, ..area };
    Line::styled(text.to_owned(), view.theme.dim).right_aligned().render(place, buf);
}

/// A column of the latency table.
struct Column {
    heading: &'static str,
    value: fn(&Distribution) -> Option<f64>,
    /// Dropped first if it is the highest.
    rank: usize,
}

const COLUMNS: [Column; 5] = [
    Column { heading: "last", value: Distribution::last_ms, rank: 1 },
    Column { heading: "p50", value: |d| d.percentile_ms(50.0), rank: 0 },
    Column { heading: "p90", value: |d| d.percentile_ms(90.0), rank: 3 },
    Column { heading: "p99", value: |d| d.percentile_ms(99.0), rank: 2 },
    Column { heading: "max", value: Distribution::max_ms, rank: 4 },
];

fn latency(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    // A recorded run has nothing else.
    let aside = match (view.state.total.is_recorded(), view.state.total.left_out().is_some()) {
        (true, _) => "ms, kernels recorded",
        (false, true) => "ms, without recording",
        (false, false) => "ms",
    };
    let inner = draw_box(theme, ("latency", aside), area, buf);
    let total = &view.state.total;
    // The median by the GPU's clock, next to the host's.
    let by_gpu = total.device_step.n() > 0;
    // Wide enough for a gap before the largest count.
    let counts = [&total.ttft, &total.tpot, &total.itl, &total.e2e].map(|d| grouped(d.n() as i64));
    let n_width = counts.iter().map(|n| n.len() + 1).max().unwrap_or(0).max(9);
    let room = (inner.width.saturating_sub(6 + n_width as u16) / 8).saturating_sub(by_gpu.into()).clamp(1, 5)
        as usize;
    let columns: Vec<&Column> = COLUMNS.iter().filter(|column| column.rank < room).collect();
    let mut heading = vec![Text::raw("      ")];
    heading.extend(columns.iter().map(|c| Text::styled(format!("{:>8}", c.heading), theme.dim)));
    if by_gpu {
        heading.push(Text::styled(format!("{:>8}", "GPU p50"), theme.dim));
    }
    heading.push(Text::styled(format!("{:>n_width$}", "n"), theme.dim));
    let mut lines = vec![Line::from(heading)];
    let rows = [
        ("TTFT", &total.ttft, Some(&total.device_prefill)),
        ("TPOT", &total.tpot, None),
        ("ITL", &total.itl, Some(&total.device_step)),
        ("E2E", &total.e2e, None),
    ];
    let cell = |ms: Option<f64>, style| {
        let text = ms.map_or_else(|| theme.glyphs.none.to_owned(), three_digits);
        Text::styled(format!("{text:>8}"), style)
    };
    for ((name, distribution, on_device), n) in rows.into_iter().zip(&counts) {
        let mut line = vec![Text::styled(format!(" {name:<5}"), theme.accent)];
        line.extend(columns.iter().map(|column| {
            cell((column.value)(distribution), if column.rank == 0 { theme.number } else { theme.text })
        }));
        if by_gpu {
            line.push(cell(on_device.and_then(|d| d.percentile_ms(50.0)), theme.text));
        }
        line.push(Text::styled(format!("{n:>n_width$}"), theme.dim));
        lines.push(Line::from(line));
    }
    Paragraph::new(lines).render(inner, buf);
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
            label_value(theme, "", &rate(decode), kind.unit()),
            label_value(theme, "output", &rate(total.output_tok_s()), ""),
            label_value(theme, "prefill", &rate(total.prefill_tok_s()), ""),
        ],
        area.width,
    )];
    let rows = [("TTFT", &total.ttft), ("TPOT", &total.tpot), ("ITL", &total.itl), ("E2E", &total.e2e)];
    // The last one only where the device and the verdict fit too.
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
