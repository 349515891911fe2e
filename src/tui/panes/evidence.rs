//! The numbers behind the verdict: the ledger, what it rests on, what to do, and how far the run can be trusted.

use ratatui::text::{Line, Span as Text};

use crate::{
    analysis::{energy::energy, throttle::table},
    base::units::{percent, three_digits},
    tui::{theme::Theme, view::View},
};

/// All of it, as lines that may be longer than `width`; the table keeps within it.
pub fn evidence<'a>(view: &View<'_>, width: u16) -> Vec<Line<'a>> {
    let theme = view.theme;
    let state = view.state;
    let mut lines = Vec::new();
    let plain = |text: &str| theme.glyphs.plain(text);
    match view.gpu().and_then(|gpu| state.diagnosis_of(gpu)) {
        Some(diagnosis) => {
            lines.push(Line::styled(plain(&diagnosis.verdict), theme.text));
            if !diagnosis.causes.is_empty() {
                heading(theme, &mut lines, "what held the clock, and what that cost");
                let text = plain(&table::text_within(&diagnosis.causes, width as usize - 2));
                for (i, row) in text.lines().enumerate() {
                    let style = if i == 0 { theme.dim } else { theme.text };
                    lines.push(Line::styled(format!("  {row}"), style));
                }
                for cause in diagnosis.causes.iter().filter(|cause| cause.cost_pct.is_some()) {
                    let looks = format!("{} s from samples only", three_digits(cause.sampled_s));
                    let words = format!("  {}, {}: {}; {looks}", cause.phase, cause.reason, cause.basis);
                    lines.push(Line::styled(plain(&words), theme.dim));
                }
            }
            if !diagnosis.advice.is_empty() {
                heading(theme, &mut lines, "what to do");
                lines.extend(diagnosis.advice.iter().map(|advice| item(theme, &plain(advice))));
            }
        }
        None => lines.push(Line::styled("Nothing was seen of a GPU.", theme.dim)),
    }
    if let Some(gpu) = view.gpu() {
        if let Some(heat) = gpu.heat() {
            heading(theme, &mut lines, "heat");
            let speed = |tok_s: Option<f64>| tok_s.map_or_else(|| "–".to_owned(), three_digits);
            let words = format!(
                "{:.0} °C, {:+.1} °C a minute; {}; one sequence at the start {} tok/s, lately {} tok/s",
                heat.temp_c,
                heat.c_per_min,
                if heat.steady { "at rest" } else { "not at rest" },
                speed(heat.burst_tok_s),
                speed(heat.sustained_tok_s)
            );
            lines.push(item(theme, &plain(&words)));
            lines.extend(heat.describe().map(|text| item(theme, &plain(&text))));
        }
        if let Some(energy) = energy(&gpu.ledger) {
            heading(theme, &mut lines, "energy");
            lines.extend(energy.lines().iter().map(|line| item(theme, &plain(line))));
        }
        if !gpu.processes_seen.is_empty() {
            heading(theme, &mut lines, "others on the card");
            for (t, process) in &gpu.processes_seen {
                lines.push(item(theme, &format!("{process}, first seen at {:.1} s", t.secs())));
            }
        }
    }
    if let Some(trust) = state.trust() {
        heading(theme, &mut lines, &format!("trust: {} of {}", trust.score, trust.of));
        match trust.issues.is_empty() {
            true => lines.push(item(theme, "nothing speaks against comparing this run")),
            false => lines.extend(trust.issues.iter().map(|issue| item(theme, &plain(&issue.to_string())))),
        }
    }
    if let Some(cost) = &state.sampler {
        heading(theme, &mut lines, "what looking costs");
        let cpu = cost.cpu_pct.map_or_else(|| "–".to_owned(), percent);
        let duty = percent(cost.duty_pct);
        lines.push(item(theme, &plain(&format!("{cpu} of a core; {duty} of the time in calls"))));
        for call in &cost.calls {
            let micros =
                |us: Option<f32>| us.map_or_else(|| "–".to_owned(), |us| three_digits(f64::from(us)));
            let (p50, p99) = (micros(call.p50_us), micros(call.p99_us));
            let words =
                format!("{:<24}{:<6}p50 {p50:>7} µs  p99 {p99:>7} µs  n={}", call.call, call.tier, call.n);
            lines.push(item(theme, &plain(&words)));
        }
    }
    lines
}

fn heading(theme: &Theme, lines: &mut Vec<Line<'_>>, text: &str) {
    lines.push(Line::default());
    lines.push(Line::styled(theme.glyphs.plain(text), theme.accent));
}

fn item<'a>(theme: &Theme, text: &str) -> Line<'a> {
    Line::from(vec![Text::raw("  "), Text::styled(text.to_owned(), theme.text)])
}
