//! The operators of a run: `operators.md`, as measured on the GPU and on the host; otherwise as estimated from the
//! model's shape.

use std::fmt::Write;

use super::{
    items::{hints, list, none},
    title,
};
use crate::state::{HostOperators, OperatorBasis, RunState};
use llm_cost::cost::StepCost;
use llmprof_base::{
    table,
    units::{bytes, grouped, millis, percent, scaled, three_digits},
};
use llmprof_event::{HeapGrowth, ModelEngine, Phase, WorkKind};

/// `None` if neither kernels nor a shape were recorded.
pub(super) fn operators_md(state: &RunState) -> Option<String> {
    let title = title(state);
    let mut out = format!("# Operators: {title}\n\n");
    let mut any = false;
    for phase in Phase::WORK {
        let host = state.operators.of(phase).filter(|host| host.steps > 0);
        match (state.operator_basis(phase), state.step_cost(phase)) {
            (Some((OperatorBasis::Kernels, _)), _) => measured(&mut out, state, phase),
            // The host's table contains everything.
            (Some((OperatorBasis::WallTime, _)), _) => {}
            (None, Some(cost)) => estimated(&mut out, state, phase, &cost),
            (None, None) if host.is_none() => continue,
            (None, None) => {}
        }
        if let Some(host) = host {
            on_host(&mut out, state, phase, host);
        }
        any = true;
    }
    any.then_some(out)
}

fn measured(out: &mut String, state: &RunState, phase: Phase) {
    let steps = state.kernels.live(phase).map_or(0, |live| live.total.steps);
    let counted = match steps {
        1 => "one step".to_owned(),
        n => format!("{} steps", grouped(n as i64)),
    };
    let _ = writeln!(
        out,
        "## {}: kernels of {counted}\n\nTimes are means per step, measured by the GPU's clock. FLOPs and bytes are computed \
         from the model's shape.\n",
        phase.name(),
    );
    let heading = ["operator", "calls", "time", "share", "FLOP/s", "B/s", "of peak", "class", "kernels"];
    let mut rows = vec![heading.map(str::to_owned)];
    for row in &state.operator_rows(phase) {
        let kernels: Vec<&str> = row.kernels.iter().take(3).map(|(name, _)| name.as_str()).collect();
        let more = row.kernels.len().saturating_sub(kernels.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        rows.push([
            row.name().to_owned(),
            three_digits(row.calls_per_step),
            millis(row.ns_per_step / 1e6),
            percent(row.share * 100.0),
            row.achieved.map_or_else(none, |timed| scaled(timed.flop_per_s(), "FLOP/s")),
            row.achieved.map_or_else(none, |timed| scaled(timed.bytes_per_s(), "B/s")),
            row.pct_of_peaks.map_or_else(none, |share| percent(share.max_pct())),
            row.verdict.as_ref().map_or_else(|_| none(), |verdict| verdict.class.word().to_owned()),
            format!("`{}`{more}", kernels.join("`, `")),
        ]);
    }
    let _ = writeln!(out, "{}", table::markdown(&rows, |column| (1..7).contains(&column)));
    list(out, &hints(state, phase));
}

/// Time of each operator on the engine's thread: the work itself on the CPU, launches on a GPU.
fn on_host(out: &mut String, state: &RunState, phase: Phase, host: &HostOperators) {
    let on_cpu = state.run.as_ref().is_some_and(|run| run.device.is_cpu());
    let steps = match host.steps {
        1 => "one step".to_owned(),
        n => format!("{} steps", grouped(n as i64)),
    };
    let name = phase.name();
    let _ = match on_cpu {
        true => writeln!(
            out,
            "## {name}: wall time of {steps}\n\nMeasured on the engine's thread. FLOPs and bytes are computed from the \
             model's shape.\n"
        ),
        false => writeln!(
            out,
            "## {name}: on the host, {steps}\n\nThe time the engine's thread needs to launch the work, not the time of \
             the GPU.\n"
        ),
    };
    if host.unattributed_steps > 0 {
        let _ = writeln!(
            out,
            "{} of them ({} each) have no operators: {}.\n",
            grouped(host.unattributed_steps as i64),
            millis(host.unattributed_ns as f64 / host.unattributed_steps as f64 / 1e6),
            no_operators_because(state)
        );
    }
    if host.times.is_empty() {
        return;
    }
    let achieved = if on_cpu { state.operator_rows(phase) } else { Vec::new() };
    let steps = host.attributed_steps().max(1) as f64;
    let share = |ns: u64| percent(ns as f64 / host.attributed_ns().max(1) as f64 * 100.0);
    let time = |ns: f64| millis(ns / 1e6);
    let allocated = |heap: Option<HeapGrowth>| {
        heap.map_or_else(none, |heap| scaled(heap.allocated_bytes as f64 / steps, "B"))
    };
    let peak = |heap: Option<HeapGrowth>| heap.map_or_else(none, |heap| bytes(heap.peak_bytes));
    let heading = [
        "operator",
        "calls",
        "per step",
        "share",
        "mean",
        "min",
        "max",
        "FLOP/s",
        "B/s",
        "allocated",
        "peak",
        "shapes",
    ];
    let step = time(host.attributed_ns() as f64 / steps);
    let mut rows = vec![
        heading.map(str::to_owned),
        [
            "**step**".to_owned(),
            "1".to_owned(),
            step.clone(),
            percent(100.0),
            step,
            none(),
            none(),
            none(),
            none(),
            allocated(host.heap),
            peak(host.heap),
            String::new(),
        ],
    ];
    for spent in &host.times {
        let row = achieved.iter().find(|row| row.operator == Some(spent.operator));
        let achieved = row.and_then(|row| row.achieved);
        rows.push([
            spent.operator.to_string(),
            three_digits(spent.calls as f64 / steps),
            time(spent.ns as f64 / steps),
            share(spent.ns),
            time(spent.ns as f64 / spent.calls.max(1) as f64),
            time(spent.min_ns as f64),
            time(spent.max_ns as f64),
            achieved.map_or_else(none, |timed| scaled(timed.flop_per_s(), "FLOP/s")),
            achieved.map_or_else(none, |timed| scaled(timed.bytes_per_s(), "B/s")),
            allocated(spent.heap),
            peak(spent.heap),
            state.operand_shapes(phase, spent.operator).map_or_else(none, |text| format!("`{text}`")),
        ]);
    }
    let mut rest: [String; 12] = Default::default();
    rest[0] = "*outside operators*".to_owned();
    rest[2] = time(host.self_ns() as f64 / steps);
    rest[3] = share(host.self_ns());
    rows.push(rest);
    let _ = writeln!(out, "{}", table::markdown(&rows, |column| (1..11).contains(&column)));
    if let Some(cost) = state.step_cost(phase) {
        let _ =
            writeln!(out, "Shapes of a step with {} positions after {}.\n", cost.step.new, cost.step.past);
    }
}

fn no_operators_because(state: &RunState) -> &'static str {
    match state.kind() {
        WorkKind::Model(ModelEngine::CandleTransformers) => {
            "models of candle-transformers do not report operators; runtime=candle does"
        }
        _ => {
            "the host launches such a step as one CUDA graph; `runtime.cuda_graphs=false` launches each operator \
             separately"
        }
    }
}

fn estimated(out: &mut String, state: &RunState, phase: Phase, cost: &StepCost) {
    let total = cost.total();
    let reason = match state.run.as_ref().is_some_and(|run| run.device.is_cpu()) {
        true => "Operators were not timed in this phase (`profiling.operators.enable=true` times them).",
        false => {
            "No kernels were recorded in this phase (`profiling.cupti.enable=true` or the key `K` records them)."
        }
    };
    let _ = writeln!(
        out,
        "## {}: estimated, not measured\n\n{reason} A step with {} positions after {}, computed from the model's shape.\n",
        phase.name(),
        cost.step.new,
        cost.step.past
    );
    let share = |part: f64, all: f64| if all > 0.0 { percent(part / all * 100.0) } else { none() };
    let heading = ["operator", "calls", "FLOP", "share", "bytes", "share", "FLOP/B"];
    let mut rows = vec![heading.map(str::to_owned)];
    for operator in &cost.operators {
        rows.push([
            operator.operator.name().to_owned(),
            grouped(operator.calls as i64),
            scaled(operator.all.flops(), "FLOP"),
            share(operator.all.flops(), total.flops()),
            scaled(operator.all.bytes(), "B"),
            share(operator.all.bytes(), total.bytes()),
            operator.all.intensity().map_or_else(none, three_digits),
        ]);
    }
    let _ = writeln!(out, "{}", table::markdown(&rows, |column| column > 0));
}
