//! What the numbers of a run rest on: `assumptions.md`.

use std::fmt::Write;

use super::metrics::energy_of;
use crate::{cli::cost::ASSUMPTIONS, event::TraceState, state::RunState};

pub(super) fn assumptions_md(state: &RunState) -> String {
    let title = state.run.as_ref().map_or("a run", |run| &run.model);
    let mut out = format!("# What the numbers of {title} rest on\n\n");
    let sections = [
        ("The workload", workload(state)),
        ("Times", times(state)),
        ("The card", card(state)),
        ("Operations and bytes", cost(state)),
        ("Kernels", kernels(state)),
    ];
    for (title, lines) in sections {
        let _ = writeln!(out, "## {title}\n");
        for line in lines {
            let _ = writeln!(out, "- {line}");
        }
        out.push('\n');
    }
    out
}

fn workload(state: &RunState) -> Vec<String> {
    let Some(run) = &state.run else { return vec!["there was no run".to_owned()] };
    let mut lines = Vec::new();
    if run.simulated {
        lines.push("time, tokens and the GPU are simulated: nothing was measured".to_owned());
    }
    if run.synthetic_weights {
        lines.push(
            "weights are random numbers of the model's true shape: speed and bytes are those of trained ones, answers \
             are not"
                .to_owned(),
        );
    }
    if let Some(tool) = &run.perturbed {
        lines.push(format!("it ran under {tool}: times are longer than without it"));
    }
    lines.push("a request is one batch of sequences of equal length; requests follow one another".to_owned());
    lines.push(format!("warm-up requests ({}) are in no latency", run.warmup));
    lines
}

fn times(state: &RunState) -> Vec<String> {
    let mut lines = vec![
        "a token is timed when its id has reached the host".to_owned(),
        "while the workload is paused, no latency grows".to_owned(),
        "percentiles are within 0.1 % and not given from fewer samples than they need".to_owned(),
    ];
    if state.total.device_step.n() > 0 {
        lines.push("times of the device are by its own clock, from events around each step".to_owned());
    }
    if state.operators.prefill.steps + state.operators.decode.steps > 0 {
        let on_cpu = state.run.as_ref().is_some_and(|run| run.device.is_cpu());
        let what = if on_cpu { "the work itself" } else { "launching, not the GPU's work" };
        lines.push(format!("times of operators on the host are by the thread that does the steps: {what}"));
    }
    if let Some(observer) = state.observer.filter(|observer| observer.lost > 0) {
        lines.push(format!("{} lines of the recording were lost", observer.lost));
    }
    lines
}

fn card(state: &RunState) -> Vec<String> {
    let mut lines = Vec::new();
    match state.peaks() {
        Ok(peaks) => lines.push(format!("what the device can do at most is from: {}", peaks.source)),
        Err(why) => lines.push(format!("what the device can do at most is not known: {why}")),
    }
    lines.extend(state.gpu_absent.as_ref().map(|absent| format!("no GPU was looked at: {}", absent.reason)));
    if let Some(gpu) = state.main_gpu() {
        lines.push(format!("readings of {} come from {}", gpu.info.name, gpu.info.source));
        lines.extend(
            gpu.info
                .refused
                .iter()
                .map(|refused| format!("not read: {} ({})", refused.reading, refused.reason)),
        );
        lines.push("between two looks at the card it was as at the first of them".to_owned());
    }
    if let Some(energy) = energy_of(state) {
        lines.push(format!("energy comes from {}; uncertain by {}", energy.method, energy.uncertainty));
    }
    lines
}

fn cost(state: &RunState) -> Vec<String> {
    match state.run.as_ref().and_then(|run| run.shape.as_ref()) {
        Some(_) => ASSUMPTIONS.iter().map(|assumption| (*assumption).to_owned()).collect(),
        None => vec!["the model's shape was not recorded, so there is no cost".to_owned()],
    }
}

fn kernels(state: &RunState) -> Vec<String> {
    let mut lines = Vec::new();
    match state.kernels.trace.as_ref().map(|trace| (&trace.tool, &trace.state)) {
        Some((tool, TraceState::Refused { reason, .. })) => {
            lines.push(format!("kernels were not recorded by {tool}: {reason}"));
        }
        Some((tool, _)) => {
            lines.push(format!(
                "kernels were recorded by {tool} while they ran, which takes some time itself"
            ));
        }
        None => lines.push("kernels were not recorded as they ran".to_owned()),
    }
    lines.extend(state.kernels.reports.iter().map(|report| {
        format!("{} looked at a run of its own ({}), which is slower than this one", report.tool, report.file)
    }));
    lines.push("what bounds an operator is an estimate wherever no counters were read".to_owned());
    lines
}
