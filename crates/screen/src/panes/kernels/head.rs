//! The lines above the table: a running tool, the source in numbers, hints.

use ratatui::text::{Line, Span as Text};

use super::{
    count,
    source::{Source, StepUnit},
};
use crate::{
    theme::Theme,
    view::View,
    widgets::{fit, label_value, wrapped},
};
use gpu_traces::show::TableView;
use llmprof_analysis::{launches::LaunchMeter, program::Activity};
use llmprof_base::units::{millis, percent, percent_change, percent_digits, three_digits};
use llmprof_event::{Phase, ToolRun, ToolState, TraceState};

/// The progress of a run under a tool; nothing once its report exists.
pub fn tool_run<'a>(theme: &Theme, run: &ToolRun, width: u16) -> Vec<Line<'a>> {
    // A tool that captures all phases has no phase.
    let what = match run.phase {
        Phase::Idle => run.tool.clone(),
        phase => format!("{} {}", run.tool, phase.name()),
    };
    let (text, style) = match &run.state {
        ToolState::Working { doing, share } => {
            let share = share.map(|share| format!(", {}", percent(share.clamp(0.0, 1.0) * 100.0)));
            (format!("{what}: {doing}{}", share.unwrap_or_default()), theme.accent)
        }
        ToolState::Failed { reason, remedy } if remedy.is_empty() => {
            (format!("{what} failed: {reason}"), theme.bad)
        }
        ToolState::Failed { reason, remedy } => (format!("{what} failed: {reason}; {remedy}"), theme.bad),
        ToolState::Cancelled => (format!("{what} was cancelled"), theme.warn),
        ToolState::Done => return Vec::new(),
    };
    let lines = wrapped(&theme.glyphs.plain(&text), (width as usize).saturating_sub(2));
    lines.into_iter().map(|line| Line::styled(format!(" {line}"), style)).collect()
}

/// The numbers of the source, as many as fit.
pub fn numbers<'a>(view: &View<'_>, source: &Source<'_>, width: u16) -> Line<'a> {
    let theme = view.theme;
    let parts = match source {
        Source::Live { phase, live, unit, trace } => {
            let name = if *phase == Phase::Idle { "no steps known" } else { phase.name() };
            let mut parts = vec![vec![Text::styled(format!(" {name}"), theme.phase(*phase))]];
            if let Some(trace) = trace {
                let (text, style) = match &trace.state {
                    TraceState::Starting | TraceState::On => (trace.tool.clone(), theme.dim),
                    TraceState::Off => (format!("{}, off", trace.tool), theme.warn),
                    TraceState::Refused { .. } => (format!("{}, not available", trace.tool), theme.warn),
                };
                parts.push(vec![Text::styled(text, style)]);
            }
            if live.total.dropped > 0 {
                let text = format!("{} records dropped", count(live.total.dropped));
                parts.push(vec![Text::styled(text, theme.bad)]);
            }
            if let Some(meter) = live.launch_meter() {
                parts.extend(live_numbers(theme, &meter, *unit));
            }
            if let Some(cost) = view
                .state
                .kernels
                .recording
                .cost()
                .filter(|cost| *phase == Phase::Decode && cost.cost_pct > 0.0)
            {
                parts.push(label_value(
                    theme,
                    "recording costs",
                    &percent_change(cost.cost_pct),
                    "of a step",
                ));
            }
            if let Some(activity) = Activity::from_window(&live.total).filter(|_| *phase == Phase::Idle) {
                let busy = activity.busy_ns as f64 / activity.recorded_ns.max(1) as f64;
                parts.push(label_value(theme, "", &count(activity.kernels), "kernels"));
                parts.push(label_value(
                    theme,
                    "GPU busy",
                    &percent_digits(100.0 * busy.min(1.0)),
                    "% of the recorded time",
                ));
                return fit(theme, parts, width);
            }
            let noun = if live.total.steps == 1 { "step" } else { "steps" };
            parts.push(label_value(theme, "", &count(live.total.steps), noun));
            parts
        }
        Source::Timed { phase, unit, host } => {
            let step_ms = host.attributed_ns() as f64 / host.attributed_steps().max(1) as f64 / 1e6;
            let within = 1.0 - host.self_ns() as f64 / host.attributed_ns().max(1) as f64;
            vec![
                vec![Text::styled(format!(" {}", phase.name()), theme.phase(*phase))],
                vec![Text::styled("CPU, engine thread", theme.dim)],
                label_value(theme, "", &millis(step_ms), &format!("per {unit}")),
                label_value(theme, "", &percent_digits(within * 100.0), "% in operators"),
                label_value(theme, "", &count(host.attributed_steps()), "steps"),
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

fn live_numbers<'a>(theme: &Theme, meter: &LaunchMeter, unit: StepUnit) -> Vec<Vec<Text<'a>>> {
    // A mean below a nanosecond is shown as zero.
    let time = |ns: f64| if ns < 1.0 { "0 ms".to_owned() } else { millis(ns / 1e6) };
    let mut parts =
        vec![label_value(theme, "", &three_digits(meter.launches), &format!("kernels per {unit}"))];
    if let Some(share) = meter.idle_share() {
        let pct = percent_digits(share * 100.0);
        parts.push(label_value(theme, "GPU idle", &pct, "% of the time"));
    }
    parts.push(label_value(theme, "", &time(meter.busy_ns), "in kernels"));
    parts.push(label_value(theme, "", &time(meter.gaps_ns), "between kernels"));
    parts.push(label_value(theme, "", &time(meter.between_ns), "between steps"));
    parts
}

/// The hints of the source, the most important first.
pub fn hints(view: &View<'_>, source: &Source<'_>, shown: &TableView) -> Vec<String> {
    match source {
        Source::Live { phase, .. } | Source::Timed { phase, .. } => view.state.kernel_hints(*phase),
        _ => {
            let notes = shown.table.notes.iter().map(|note| format!("Note: {note}"));
            shown.hints.iter().cloned().chain(notes).collect()
        }
    }
}
