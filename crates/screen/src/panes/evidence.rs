//! The numbers behind the verdict: limits of the clock, advice, energy, trust, and the overhead of sampling.

use ratatui::text::{Line, Span as Text};

use crate::{theme::Theme, view::View};
use llmprof_analysis::throttle::table;
use llmprof_base::units::{percent, three_digits};

/// The lines of the evidence, which may be longer than `width`, except the table.
pub fn evidence<'a>(view: &View<'_>, width: u16) -> Vec<Line<'a>> {
    let theme = view.theme;
    let state = view.state;
    let mut lines = Vec::new();
    let plain = |text: &str| theme.glyphs.plain(text);
    match view.gpu().and_then(|gpu| state.diagnosis_of(gpu)) {
        Some(diagnosis) => {
            lines.push(Line::styled(plain(&diagnosis.verdict), theme.text));
            if !diagnosis.causes.is_empty() {
                heading(theme, &mut lines, "what limited the clock, and its cost");
                let table = table::table(&diagnosis.causes).within(width as usize - 2, &table::DISPENSABLE);
                let text = plain(&table.text());
                for (i, row) in text.lines().enumerate() {
                    let style = if i == 0 { theme.dim } else { theme.text };
                    lines.push(Line::styled(format!("  {row}"), style));
                }
                for cause in diagnosis.causes.iter().filter(|cause| cause.cost_pct.is_some()) {
                    let text = format!(
                        "  {}, {}: {}; {} s from samples only",
                        cause.phase,
                        cause.reason,
                        cause.basis,
                        three_digits(cause.sampled_s)
                    );
                    lines.push(Line::styled(plain(&text), theme.dim));
                }
            }
            if !diagnosis.advice.is_empty() {
                heading(theme, &mut lines, "what to do");
                lines.extend(diagnosis.advice.iter().map(|advice| item(theme, &plain(advice))));
            }
        }
        None => lines.push(Line::styled("No GPU sample.", theme.dim)),
    }
    if let Some(gpu) = view.gpu() {
        if let Some(heat) = gpu.heat() {
            heading(theme, &mut lines, "temperature");
            let steady = if heat.steady { "steady" } else { "not steady" };
            let mut text = format!("{:.0} °C, {:+.1} °C/min, {steady}", heat.temp_c, heat.c_per_min);
            if let (Some(before), Some(now)) = (heat.burst_tok_s, heat.sustained_tok_s) {
                let [before, now] = [before, now].map(three_digits);
                text += &format!("; one sequence: {before} tok/s at the start, {now} tok/s now");
            }
            lines.push(item(theme, &plain(&text)));
            lines.extend(heat.describe().map(|text| item(theme, &plain(&text))));
        }
        if let Some(energy) = state.energy(gpu) {
            heading(theme, &mut lines, "energy");
            lines.extend(energy.lines().iter().map(|line| item(theme, &plain(line))));
        }
        if !gpu.processes_seen.is_empty() {
            heading(theme, &mut lines, "other processes on the GPU");
            for (t, process) in &gpu.processes_seen {
                lines.push(item(theme, &format!("{process}, first seen at {:.1} s", t.secs())));
            }
        }
    }
    if let Some(cost) = state.kernels.recording.cost() {
        heading(theme, &mut lines, "recording of kernels");
        lines.push(item(theme, &plain(&cost.to_string())));
    }
    if let Some(trust) = state.trust() {
        heading(theme, &mut lines, &format!("trust: {} of {}", trust.score, trust.of));
        match trust.issues.is_empty() {
            true => lines.push(item(theme, "no reason against comparing this run")),
            false => lines.extend(trust.issues.iter().map(|issue| item(theme, &plain(&issue.to_string())))),
        }
    }
    if let Some(cost) = &state.sampler {
        heading(theme, &mut lines, "sampling overhead");
        let number = |n: Option<f32>| n.map_or_else(|| "–".to_owned(), |n| three_digits(f64::from(n)));
        let cpu = cost.cpu_pct.map_or_else(|| "–".to_owned(), percent);
        let duty = percent(cost.duty_pct);
        lines.push(item(theme, &plain(&format!("{cpu} of a core; {duty} of the time in calls"))));
        for call in &cost.calls {
            let (p50, p99) = (number(call.p50_us), number(call.p99_us));
            let text =
                format!("{:<24}{:<6}p50 {p50:>7} µs  p99 {p99:>7} µs  n={}", call.call, call.tier, call.n);
            lines.push(item(theme, &plain(&text)));
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
