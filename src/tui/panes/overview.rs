//! Overview: throughput, latency, the last tokens, the GPU in a line, and what it means.

use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    text::{Line, Span as Text},
    widgets::{Paragraph, Widget, Wrap},
};

use super::{gpu, tokens};
use crate::{
    analysis::{distribution::Distribution, throttle::Tone},
    base::units::{grouped, millis, percent, scaled, three_digits},
    event::{Outcome, Phase},
    tui::{
        view::View,
        widgets::{Span, boxed, fit, label_value, note, plot},
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
        // Words do not break: some of every line stays empty.
        let rows = |line: &Line<'_>| (line.width() as u16).div_ceil(area.width.saturating_sub(9).max(1));
        // What does not fit as a whole is left to the evidence.
        while rows(&verdict) > VERDICT_ROWS && verdict.spans.len() > 1 {
            verdict.spans.pop();
        }
        let verdict_height = rows(&verdict).clamp(1, VERDICT_ROWS);
        let device_height = if area.height >= 24 { 4 } else { 3 };
        let chart_height =
            if area.height >= 34 { area.height - 7 - 9 - device_height - verdict_height } else { 0 };
        let [top, chart, strip, device, words] = Layout::vertical([
            Constraint::Length(if area.height >= 18 { 6 } else { 5 }),
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
        let glyph = view.theme.glyphs.pointer;
        let [mark, text] = Layout::horizontal([Constraint::Length(3), Constraint::Min(1)]).areas(words);
        Line::styled(format!(" {glyph}"), view.theme.accent).render(mark, buf);
        Paragraph::new(verdict).wrap(Wrap { trim: true }).render(text, buf);
    }
}

const VERDICT_ROWS: u16 = 5;

/// The verdict as plain text.
pub fn verdict_words(view: &View<'_>) -> String {
    verdict(view).to_string().trim().to_owned()
}

/// What the run means, or why there is nothing to say yet.
fn verdict<'a>(view: &View<'a>) -> Line<'a> {
    let theme = view.theme;
    let plain = |text: &str| theme.glyphs.plain(text);
    let failure = view.state.finished.as_ref().filter(|f| f.outcome != Outcome::Completed);
    if let Some(finished) = failure {
        let cause = finished.cause.as_deref().unwrap_or("no cause was given");
        let (word, style) = match finished.outcome {
            Outcome::Failed => ("failed", theme.bad),
            _ => ("was interrupted", theme.warn),
        };
        let mut words = vec![Text::styled(plain(&format!("The run {word}: {cause}. ")), style)];
        words.extend(card_verdict(view));
        words.extend(view.state.verdict().map(|sentence| Text::styled(plain(&sentence), theme.text)));
        return Line::from(words);
    }
    let mut words = card_verdict(view);
    words.extend(view.state.verdict().map(|sentence| Text::styled(plain(&sentence), theme.text)));
    if !words.is_empty() {
        return Line::from(words);
    }
    match view.state.phase {
        Phase::Preparing => note(theme, "Preparing: nothing is measured yet."),
        _ if view.state.active.as_ref().is_some_and(|a| a.started.warmup) => {
            note(theme, "Warming up: these tokens are shown, but not counted.")
        }
        _ if view.state.watches() => note(theme, "Nothing was seen of a GPU yet."),
        _ => note(theme, "Nothing measured yet."),
    }
}

/// What holds the card back, or that nothing does; coloured where something is wrong.
pub fn card_verdict<'a>(view: &View<'_>) -> Vec<Text<'a>> {
    let theme = view.theme;
    let gpu = view.gpu().filter(|gpu| gpu.info.profiled || view.state.watches());
    let Some((gpu, diagnosis)) = gpu.and_then(|gpu| Some((gpu, view.state.diagnosis_now(gpu)?))) else {
        return Vec::new();
    };
    let style = match diagnosis.tone {
        Tone::Fine => theme.good,
        Tone::Note | Tone::Unknown => theme.text,
        Tone::Bad => theme.warn,
    };
    let mut words = vec![Text::styled(theme.glyphs.plain(&format!("{} ", diagnosis.verdict)), style)];
    let coming = gpu.heat().filter(|heat| heat.slowdown_in_s.is_some()).and_then(|heat| heat.describe());
    words.extend(coming.map(|coming| Text::styled(theme.glyphs.plain(&format!("{coming} ")), theme.warn)));
    words
}

fn throughput(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let block = boxed(theme, "throughput", "");
    let inner = block.inner(area);
    block.render(area, buf);
    let (now, unit) = headline(view);
    let number = now.map_or_else(|| theme.glyphs.none.to_owned(), three_digits);
    let mut lines = vec![Line::from(label_value(theme, "", &number, unit))];
    let mean = view.state.total.decode_tok_s().map(three_digits);
    lines.push(Line::from(label_value(
        theme,
        "decode mean",
        mean.as_deref().unwrap_or(theme.glyphs.none),
        "tok/s",
    )));
    let prefill = view.state.total.prefill_tok_s().map(three_digits);
    let mut prefill_line =
        label_value(theme, "prefill", prefill.as_deref().unwrap_or(theme.glyphs.none), "tok/s");
    if let Some(mfu) = view.state.mfu() {
        prefill_line.push(Text::raw("  "));
        prefill_line.extend(label_value(theme, "MFU", &percent(mfu.share * 100.0), ""));
    }
    lines.push(Line::from(prefill_line));
    if let Some(mbu) = now.and_then(|rate| view.state.mbu_at(rate)) {
        let of = format!("of {}", scaled(mbu.peak, "B/s"));
        lines.push(Line::from(label_value(theme, "MBU", &percent(mbu.share * 100.0), &of)));
    } else if let (Some(bytes), Some(rate)) = (view.state.decode_step_bytes(), now) {
        let bytes_s = bytes as f64 * rate / f64::from(view.state.batch());
        lines.push(Line::from(label_value(theme, "reads about", &scaled(bytes_s, "B/s"), "(estimate)")));
    }
    let width = lines.iter().map(Line::width).max().unwrap_or(0) as u16 + 2;
    for (y, mut line) in (inner.top()..inner.bottom()).zip(lines) {
        line.spans.insert(0, Text::raw(" "));
        line.render(Rect { y, height: 1, ..inner }, buf);
    }
    let width = width + 1;
    if inner.width > width + 8 && inner.height > 1 {
        let chart = Rect { x: inner.x + width, width: inner.width - width - 1, ..inner };
        tok_s_line(view, chart, buf);
    }
}

/// The number that stands first: the speed of this moment, and of the whole run once it is over.
pub fn headline(view: &View<'_>) -> (Option<f64>, &'static str) {
    match view.state.finished {
        Some(_) => (view.state.total.decode_tok_s(), "tok/s"),
        None => (view.state.recent_decode_tok_s(2.0), "tok/s now"),
    }
}

/// Decode tokens per second over the stretch the charts show.
fn tok_s_line(view: &View<'_>, area: Rect, buf: &mut Buffer) -> Option<f32> {
    let (from, to) = view.stretch();
    let batch = view.state.batch() as f32;
    let per_second = |itl_ms: f32| batch * 1e3 / itl_ms.max(1e-6);
    let columns: Vec<_> = view
        .state
        .itl_ms
        .columns(from, to, area.width as usize * 2)
        .into_iter()
        .map(|b| {
            b.map(|b| Span {
                low: per_second(b.mean()),
                high: per_second(b.mean()),
                mid: per_second(b.mean()),
            })
        })
        .collect();
    let top = columns.iter().flatten().map(|s| s.mid).fold(0.0, f32::max) * 1.05;
    plot(buf, area, &join_gaps(columns), (0.0, top), view.theme.decode, view.theme);
    (top > 0.0).then_some(top)
}

/// Slow tokens leave dot columns without one; a column between two tokens takes the value of the later.
fn join_gaps(mut columns: Vec<Option<Span>>) -> Vec<Option<Span>> {
    const LONGEST: usize = 12;
    let mut next: Option<(usize, Span)> = None;
    for i in (0..columns.len()).rev() {
        match (columns[i], next) {
            (Some(span), _) => next = Some((i, span)),
            (None, Some((at, span))) if at - i < LONGEST && i > 0 => columns[i] = Some(span),
            _ => {}
        }
    }
    columns
}

fn throughput_chart(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let (from, to) = view.stretch();
    let aside = format!("last {:.0} s", to.since(from).as_secs_f64());
    let block = boxed(view.theme, "decode tok/s", &aside);
    let inner = block.inner(area);
    block.render(area, buf);
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
    let at = Rect { y, height: 1, width: 7, ..area };
    Line::styled(text.to_owned(), view.theme.dim).right_aligned().render(at, buf);
}

/// A column of the latency table: heading, and its value in a distribution.
type Column = (&'static str, fn(&Distribution) -> Option<f64>);

fn latency(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let block = boxed(theme, "latency", "ms");
    let inner = block.inner(area);
    block.render(area, buf);
    // Dropped from the front when there is not enough room for all.
    let all: [Column; 5] = [
        ("max", Distribution::max_ms),
        ("p90", |d| d.percentile_ms(90.0)),
        ("p99", |d| d.percentile_ms(99.0)),
        ("last", Distribution::last_ms),
        ("p50", |d| d.percentile_ms(50.0)),
    ];
    let order = ["last", "p50", "p90", "p99", "max"];
    let total = &view.state.total;
    // The median by the GPU's own clock, beside the host's, where there is one.
    let by_gpu = total.device_step.n() > 0;
    let room = (inner.width.saturating_sub(6 + 9) / 8).saturating_sub(by_gpu.into()).clamp(1, 5) as usize;
    let mut columns = all[all.len() - room..].to_vec();
    columns.sort_by_key(|(name, _)| order.iter().position(|o| o == name));
    let mut heading = vec![Text::raw("      ")];
    heading.extend(columns.iter().map(|(name, _)| Text::styled(format!("{name:>8}"), theme.dim)));
    if by_gpu {
        heading.push(Text::styled(format!("{:>8}", "GPU p50"), theme.dim));
    }
    heading.push(Text::styled(format!("{:>9}", "n"), theme.dim));
    let mut lines = vec![Line::from(heading)];
    let rows = [
        ("TTFT", &total.ttft, Some(&total.device_prefill)),
        ("TPOT", &total.tpot, None),
        ("ITL", &total.itl, Some(&total.device_step)),
    ];
    for (name, distribution, on_device) in rows {
        let mut line = vec![Text::styled(format!(" {name:<5}"), theme.accent)];
        for (heading, value) in &columns {
            let cell = value(distribution).map_or_else(|| theme.glyphs.none.to_owned(), three_digits);
            let style = if *heading == "p50" { theme.number } else { theme.text };
            line.push(Text::styled(format!("{cell:>8}"), style));
        }
        if by_gpu {
            let cell = on_device.and_then(|d| d.percentile_ms(50.0));
            let cell = cell.map_or_else(|| theme.glyphs.none.to_owned(), three_digits);
            line.push(Text::styled(format!("{cell:>8}"), theme.text));
        }
        line.push(Text::styled(format!("{:>9}", grouped(distribution.n() as i64)), theme.dim));
        lines.push(Line::from(line));
    }
    for (y, line) in (inner.top()..inner.bottom()).zip(lines) {
        line.render(Rect { y, height: 1, ..inner }, buf);
    }
}

/// The essentials, for a terminal too small for frames.
fn in_few_lines(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let total = &view.state.total;
    let none = theme.glyphs.none;
    let rate = |v: Option<f64>| v.map_or_else(|| none.to_owned(), three_digits);
    let (decode, unit) = headline(view);
    let mut lines = vec![fit(
        theme,
        vec![
            label_value(theme, "", &rate(decode), unit),
            label_value(theme, "prefill", &rate(total.prefill_tok_s()), ""),
        ],
        area.width,
    )];
    for (name, d) in [("TTFT", &total.ttft), ("TPOT", &total.tpot), ("ITL", &total.itl)] {
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
