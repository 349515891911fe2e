//! What stands above the table: a tool at work, the source in numbers, what it says in words.

use ratatui::text::{Line, Span as Text};

use super::source::Source;
use crate::{
    analysis::launches::LaunchMeter,
    base::units::{grouped, millis, percent, percent_digits, three_digits},
    event::{ToolRun, ToolState, TraceState},
    kernels::show::Shown,
    tui::{
        theme::Theme,
        view::View,
        widgets::{fit, label_value, wrapped},
    },
};

/// A run under a tool, as far as it has come; nothing once its report is there.
pub fn tool_run<'a>(theme: &Theme, run: &ToolRun, width: u16) -> Vec<Line<'a>> {
    let what = format!("{} of {}", run.tool, run.phase.name());
    let (words, style) = match &run.state {
        ToolState::Working { doing, share } => {
            let share = share.map(|share| format!(", {}", percent(share.clamp(0.0, 1.0) * 100.0)));
            (format!("{what}: {doing}{}", share.unwrap_or_default()), theme.accent)
        }
        ToolState::Failed { reason, remedy } if remedy.is_empty() => {
            (format!("{what} failed: {reason}"), theme.bad)
        }
        ToolState::Failed { reason, remedy } => (format!("{what} failed: {reason}; {remedy}"), theme.bad),
        ToolState::Cancelled => (format!("{what} was called off"), theme.warn),
        ToolState::Done => return Vec::new(),
    };
    let words = theme.glyphs.plain(&words);
    let lines = wrapped(&words, (width as usize).saturating_sub(2));
    lines.into_iter().map(|line| Line::styled(format!(" {line}"), style)).collect()
}

/// The source in numbers, as many as there is room for.
pub fn numbers<'a>(view: &View<'_>, source: &Source<'_>, width: u16) -> Line<'a> {
    let theme = view.theme;
    let parts = match source {
        Source::Live { phase, live, trace } => {
            let (_, of) = source.steps().unwrap_or((0, "step"));
            let mut parts = vec![vec![Text::styled(format!(" {}", phase.name()), theme.phase(*phase))]];
            if let Some(trace) = trace {
                let word = match &trace.state {
                    TraceState::On => trace.tool.clone(),
                    TraceState::Off => format!("{}, switched off", trace.tool),
                    TraceState::Refused { .. } => format!("{}, refused", trace.tool),
                };
                let style = if trace.state == TraceState::On { theme.dim } else { theme.warn };
                parts.push(vec![Text::styled(word, style)]);
            }
            if live.total.dropped > 0 {
                let words = format!("{} records dropped", grouped(count(live.total.dropped)));
                parts.push(vec![Text::styled(words, theme.bad)]);
            }
            if let Some(meter) = live.launch_meter() {
                parts.extend(live_numbers(theme, &meter, of));
            }
            let word = if live.total.steps == 1 { "step" } else { "steps" };
            parts.push(label_value(theme, "", &grouped(count(live.total.steps)), word));
            parts
        }
        Source::Timed { phase, host } => {
            let told = host.attributed_steps().max(1) as f64;
            let (_, of) = source.steps().unwrap_or((0, "step"));
            let step_ms = host.attributed_ns() as f64 / told / 1e6;
            let within = 1.0 - host.self_ns() as f64 / host.attributed_ns().max(1) as f64;
            vec![
                vec![Text::styled(format!(" {}", phase.name()), theme.phase(*phase))],
                vec![Text::styled("on the CPU, by the engine's thread", theme.dim)],
                label_value(theme, "", &millis(step_ms), &format!("a {of}")),
                label_value(theme, "", &percent_digits(within * 100.0), "% in operators"),
                label_value(theme, "", &grouped(count(host.attributed_steps())), "steps"),
            ]
        }
        Source::Table { report, table } => {
            let mut parts = vec![vec![Text::styled(format!(" {}", table.source), theme.text)]];
            parts.extend(table.device.as_ref().map(|name| vec![Text::styled(name.clone(), theme.dim)]));
            parts.extend(report.phase.map(|phase| vec![Text::styled(phase.name(), theme.phase(phase))]));
            parts.push(vec![Text::styled(report.file.clone(), theme.dim)]);
            if !table.source.starts_with(&report.tool) {
                parts.push(vec![Text::styled(report.tool.clone(), theme.dim)]);
            }
            parts
        }
    };
    let plain = |span: Text<'a>| Text::styled(theme.glyphs.plain(&span.content), span.style);
    let parts = parts.into_iter().map(|part| part.into_iter().map(plain).collect()).collect();
    fit(theme, parts, width)
}

fn live_numbers<'a>(theme: &Theme, meter: &LaunchMeter, of: &str) -> Vec<Vec<Text<'a>>> {
    let time = |ns: f64| millis(ns / 1e6);
    let mut parts = vec![label_value(theme, "", &three_digits(meter.launches), &format!("kernels a {of}"))];
    if let Some(share) = meter.busy_share() {
        let pct = percent_digits(share * 100.0);
        parts.push(label_value(theme, "GPU busy", &pct, "% of the step"));
    }
    parts.push(label_value(theme, "", &time(meter.busy_ns), "in kernels"));
    parts.push(label_value(theme, "", &time(meter.gaps_ns), "between them"));
    parts.push(label_value(theme, "", &time(meter.between_ns), "between steps"));
    parts
}

/// What it says, the most telling first.
pub fn hints(view: &View<'_>, source: &Source<'_>, shown: &Shown) -> Vec<String> {
    match source {
        Source::Live { phase, .. } => view.state.kernel_hints(*phase),
        Source::Timed { .. } => Vec::new(),
        _ => {
            let notes = shown.table.notes.iter().map(|note| format!("Note: {note}"));
            shown.hints.iter().cloned().chain(notes).collect()
        }
    }
}

fn count(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
