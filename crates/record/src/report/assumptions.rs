//! The assumptions behind the numbers of a run: `assumptions.md`.

use std::fmt::Write;

use super::{cost::ASSUMPTIONS, list_item, metrics::energy_of, title};
use crate::state::RunState;
use llmprof_event::TraceState;

pub(super) fn assumptions_md(state: &RunState) -> String {
    let title = title(state);
    let mut out = format!("# Assumptions: {title}\n\n");
    let sections = [
        ("Workload", workload(state)),
        ("Times", times(state)),
        ("GPU", gpu(state)),
        ("FLOPs and bytes", cost(state)),
        ("Kernels", kernels(state)),
    ];
    for (title, lines) in sections {
        let _ = writeln!(out, "## {title}\n");
        for line in lines {
            out += &list_item(&line);
        }
        out.push('\n');
    }
    out
}

fn workload(state: &RunState) -> Vec<String> {
    let Some(run) = &state.run else {
        return vec!["there was no run: these are files of a profiler".to_owned()];
    };
    let mut lines = Vec::new();
    if run.simulated {
        lines.push("time, tokens and the GPU are simulated: nothing was measured".to_owned());
    }
    if run.synthetic_weights {
        lines.push(
            "weights are random numbers in the model's real shape: speed and bytes are those of trained weights, the \
             answers are not"
                .to_owned(),
        );
    }
    if let Some(tool) = &run.perturbed {
        lines.push(format!("it ran under {tool}, whose overhead is part of every time"));
    }
    if state.kind().infers_steps() {
        lines.push("steps, phases and operators of the program are inferred from its kernels".to_owned());
        lines.push("a step counts as one token, because its batch size is unknown".to_owned());
        return lines;
    }
    lines.push(
        "a request is one batch of sequences of equal length; requests run one after another".to_owned(),
    );
    lines.push(format!("warm-up requests ({}) are excluded from latencies", run.warmup));
    lines
}

fn times(state: &RunState) -> Vec<String> {
    let mut lines = vec![
        match state.kind().infers_steps() {
            true => "a step is timed at the end of its last kernel, or of the copy that marks it".to_owned(),
            false => "a token is timed when its id reaches the host".to_owned(),
        },
        "pauses of the workload and time in which the process was stopped are excluded from latencies".to_owned(),
        "percentiles are linear interpolations between the two nearest ranks, exact up to 1,024 samples and to 0.1 % \
         beyond, and need a minimum number of samples (p50: 2, p90: 10, p99: 100)"
            .to_owned(),
    ];
    if state.total.device_step.n() > 0 {
        lines.push("device times are measured by the GPU's clock, with events around each step".to_owned());
    }
    if state.operators.prefill.steps + state.operators.decode.steps > 0 {
        let on_cpu = state.run.as_ref().is_some_and(|run| run.device.is_cpu());
        let what = if on_cpu { "the work itself" } else { "launches, not the GPU's work" };
        lines.push(format!("operator times on the host are measured on the engine's thread: {what}"));
    }
    if let Some(observer) = state.observer.filter(|observer| observer.lost > 0) {
        lines.push(format!("{} lines of the recording were lost", observer.lost));
    }
    lines
}

fn gpu(state: &RunState) -> Vec<String> {
    let mut lines = Vec::new();
    match state.peaks() {
        Ok(peaks) => lines.push(format!("peaks of the device: {}", peaks.source)),
        Err(why) => lines.push(format!("peaks of the device are unknown: {why}")),
    }
    lines.extend(state.gpu_absent.as_ref().map(|absent| format!("no GPU was sampled: {}", absent.reason)));
    if let Some(gpu) = state.main_gpu() {
        lines.push(format!("readings of {} are from {}", gpu.info.name, gpu.info.source));
        lines.extend(
            gpu.info
                .refused
                .iter()
                .map(|refused| format!("not read: {} ({})", refused.reading, refused.reason)),
        );
        lines.push("between two samples the GPU is assumed to stay as in the first".to_owned());
    }
    if let Some(energy) = energy_of(state) {
        lines.push(format!("energy: {}; uncertainty: {}", energy.method, energy.uncertainty));
    }
    lines
}

fn cost(state: &RunState) -> Vec<String> {
    match state.run.as_ref().and_then(|run| run.shape.as_ref()) {
        Some(_) => ASSUMPTIONS.iter().map(|assumption| (*assumption).to_owned()).collect(),
        None => vec!["the model's shape was not recorded: FLOPs and bytes are unknown".to_owned()],
    }
}

fn kernels(state: &RunState) -> Vec<String> {
    let mut lines = Vec::new();
    match state.kernels.trace.as_ref().map(|trace| (&trace.tool, &trace.state)) {
        Some((tool, TraceState::Refused { reason, .. })) => {
            lines.push(format!("kernels were not recorded by {tool}: {reason}"));
        }
        Some((tool, _)) => {
            let latencies = match state.total.is_recorded() {
                true => "latencies include its overhead",
                false => "latencies leave that time out",
            };
            lines.push(format!("kernels were recorded by {tool} during the run: {latencies}"));
        }
        None => lines.push("kernels were not recorded during the run".to_owned()),
    }
    lines.extend(state.kernels.reports.iter().map(|report| {
        format!("{} profiled a separate run ({}), which is slower than this one", report.tool, report.file)
    }));
    lines.push("the bound of an operator is an estimate if no hardware counters were read".to_owned());
    lines
}
