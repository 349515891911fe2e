//! The operators of a run: `operators.md`. As they were measured, on the GPU and on the host, else as the model's shape says.

use std::fmt::Write;

use crate::{
    base::units::{grouped, millis, percent, scaled, three_digits},
    event::{EngineKind, HeapGrowth, Phase},
    model::cost::StepCost,
    state::{HostOperators, OperatorBasis, RunState},
};

/// `None` where neither kernels nor a shape were recorded.
pub(super) fn operators_md(state: &RunState) -> Option<String> {
    let title = state.run.as_ref().map_or("a run", |run| &run.model);
    let mut out = format!("# Operators of {title}\n\n");
    let mut any = false;
    for phase in [Phase::Prefill, Phase::Decode] {
        let host = state.operators.of(phase).filter(|host| host.steps > 0);
        match (state.operator_basis(phase), state.step_cost(phase)) {
            (Some((OperatorBasis::Kernels, _)), _) => measured(&mut out, state, phase),
            // The table below says it all.
            (Some((OperatorBasis::WallTime, _)), _) => {}
            (None, Some(cost)) => reckoned(&mut out, state, phase, &cost),
            (None, None) if host.is_none() => continue,
            (None, None) => {}
        }
        host.into_iter().for_each(|host| on_host(&mut out, state, phase, host));
        any = true;
    }
    any.then_some(out)
}

fn none() -> String {
    "–".to_owned()
}

fn measured(out: &mut String, state: &RunState, phase: Phase) {
    let rows = state.operator_rows(phase);
    let steps = state.kernels.live(phase).map_or(0, |live| live.steps);
    let _ = writeln!(
        out,
        "## {}: kernels of {} steps\n\nTimes are means of a step, by the GPU's clock; FLOP and bytes are from the model's \
         shape.\n\n| operator | calls | time | share | FLOP/s | B/s | of roof | class | kernels |\n|---|---|---|---|---|---|---|---|---|",
        phase.name(),
        grouped(steps as i64)
    );
    for row in &rows {
        let kernels: Vec<&str> = row.kernels.iter().take(3).map(|(name, _)| name.as_str()).collect();
        let more = row.kernels.len().saturating_sub(kernels.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} | {} | `{}`{more} |",
            row.name(),
            three_digits(row.calls_per_step),
            millis(row.ns_per_step / 1e6),
            percent(row.share * 100.0),
            row.achieved.map_or_else(none, |timed| scaled(timed.flop_per_s(), "FLOP/s")),
            row.achieved.map_or_else(none, |timed| scaled(timed.bytes_per_s(), "B/s")),
            row.pct_of_peaks.map_or_else(none, |share| percent(share.most())),
            row.verdict.as_ref().map_or_else(|_| none(), |verdict| verdict.class.word().to_owned()),
            kernels.join("`, `").replace('|', "\\|")
        );
    }
    out.push('\n');
    let hints = super::markdown::hints(state, phase);
    for hint in &hints {
        let _ = writeln!(out, "- {hint}.");
    }
    if !hints.is_empty() {
        out.push('\n');
    }
}

/// What the engine's thread spent on each: the work itself on the CPU, launching it on a GPU.
fn on_host(out: &mut String, state: &RunState, phase: Phase, host: &HostOperators) {
    let on_cpu = state.run.as_ref().is_some_and(|run| run.device.is_cpu());
    let steps = match host.steps {
        1 => "one step".to_owned(),
        n => format!("{} steps", grouped(n as i64)),
    };
    let _ = match on_cpu {
        true => writeln!(
            out,
            "## {}: wall time of {steps}\n\nMeasured on the thread that does the steps; FLOP and bytes are from the \
             model's shape.\n",
            phase.name()
        ),
        false => writeln!(
            out,
            "## {}: on the host, {steps}\n\nWhat launching takes on the engine's thread, not what the GPU takes.\n",
            phase.name()
        ),
    };
    if host.untold_steps > 0 {
        let _ = writeln!(
            out,
            "{} of them, {} each, told no operators: {}.\n",
            grouped(host.untold_steps as i64),
            millis(host.untold_ns as f64 / host.untold_steps as f64 / 1e6),
            untold_because(state)
        );
    }
    if host.times.is_empty() {
        return;
    }
    let rows = if on_cpu { state.operator_rows(phase) } else { Vec::new() };
    let cost = state.step_cost(phase);
    let _ = writeln!(
        out,
        "| operator | calls | a step | of it | mean | min | max | FLOP/s | B/s | allocated | peak | shapes |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|"
    );
    let told = host.told_steps().max(1) as f64;
    let pct = |ns: u64| percent(ns as f64 / host.told_ns().max(1) as f64 * 100.0);
    let time = |ns: f64| millis(ns / 1e6);
    let heap = |heap: Option<HeapGrowth>| {
        let cell = |bytes: Option<f64>| bytes.map_or_else(none, |bytes| scaled(bytes, "B"));
        [
            cell(heap.map(|heap| heap.allocated_bytes as f64 / told)),
            cell(heap.map(|heap| heap.peak_bytes as f64)),
        ]
        .join(" | ")
    };
    let _ = writeln!(
        out,
        "| **step** | 1 | {} | 100 % | {} | – | – | – | – | {} | |",
        time(host.told_ns() as f64 / told),
        time(host.told_ns() as f64 / told),
        heap(host.heap)
    );
    for spent in &host.times {
        let achieved =
            rows.iter().find(|row| row.operator == Some(spent.operator)).and_then(|row| row.achieved);
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            spent.operator,
            three_digits(spent.calls as f64 / told),
            time(spent.ns as f64 / told),
            pct(spent.ns),
            time(spent.ns as f64 / spent.calls.max(1) as f64),
            time(spent.min_ns as f64),
            time(spent.max_ns as f64),
            achieved.map_or_else(none, |timed| scaled(timed.flop_per_s(), "FLOP/s")),
            achieved.map_or_else(none, |timed| scaled(timed.bytes_per_s(), "B/s")),
            heap(spent.heap),
            state.operand_shapes(phase, spent.operator).map_or_else(none, |text| format!("`{text}`"))
        );
    }
    let _ = writeln!(
        out,
        "| *the step itself* | | {} | {} | | | | | | | | |\n",
        time(host.self_ns() as f64 / told),
        pct(host.self_ns())
    );
    if let Some(cost) = &cost {
        let _ =
            writeln!(out, "Shapes are of a step of {} positions after {}.\n", cost.step.new, cost.step.past);
    }
}

fn untold_because(state: &RunState) -> &'static str {
    match state.run.as_ref().map(|run| &run.engine) {
        Some(EngineKind::CandleTransformers) => {
            "candle-transformers' models do not tell them; runtime=candle does"
        }
        _ => {
            "the host launches such a step as one CUDA graph; `runtime.cuda_graphs=false` launches operator by operator"
        }
    }
}

fn reckoned(out: &mut String, state: &RunState, phase: Phase, cost: &StepCost) {
    let total = cost.total();
    let why = match state.run.as_ref().is_some_and(|run| run.device.is_cpu()) {
        true => "Operators were not timed in this phase (`profiling.operators.enable=true` times them).",
        false => {
            "No kernels were recorded in this phase (`profiling.cupti.enable=true` or the key `K` records them)."
        }
    };
    let _ = writeln!(
        out,
        "## {}: as reckoned, not measured\n\n{why} A step of {} positions after {}, by the model's shape.\n\n\
         | operator | calls | FLOP | of all | bytes | of all | FLOP/B |\n|---|---|---|---|---|---|---|",
        phase.name(),
        cost.step.new,
        cost.step.past
    );
    let pct = |part: f64, all: f64| {
        if all > 0.0 { percent(part / all * 100.0) } else { none() }
    };
    for operator in &cost.operators {
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} |",
            operator.operator.name(),
            grouped(operator.calls as i64),
            scaled(operator.all.flops(), "FLOP"),
            pct(operator.all.flops(), total.flops()),
            scaled(operator.all.bytes(), "B"),
            pct(operator.all.bytes(), total.bytes()),
            operator.all.intensity().map_or_else(none, three_digits)
        );
    }
    out.push('\n');
}
