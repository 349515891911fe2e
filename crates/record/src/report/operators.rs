//! The operators of a run: `operators.md`, as measured on the GPU and on the host; otherwise as estimated from the
//! model's shape.

use std::fmt::Write;

use super::{
    items::{hints, list},
    title,
};
use crate::state::{HostOperators, OperatorBasis, RunState};
use llm_cost::cost::StepCost;
use llmprof_base::{
    cells,
    table::{Cell, Column, Table},
    units::{Unit, grouped, millis},
};
use llmprof_event::{HeapGrowth, ModelEngine, Phase, WorkKind};

/// `None` if neither kernels nor a shape were recorded.
pub(super) fn operators_md(state: &RunState) -> Option<String> {
    let title = title(state);
    let mut out = format!("# Operators: {title}\n\n");
    let mut any = false;
    for phase in Phase::WORK {
        let host = state.operators.phase(phase).filter(|host| host.steps > 0);
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
    let number = |title, unit| Column::number(title).unit(unit);
    let mut table = Table::new([
        Column::text("operator"),
        Column::number("calls"),
        number("time", Unit::Millis),
        number("share", Unit::Share),
        number("FLOP/s", Unit::Scaled("FLOP/s")),
        number("B/s", Unit::Scaled("B/s")),
        number("of peak", Unit::Percent),
        Column::text("class"),
        Column::text("kernels"),
    ]);
    for row in &state.operator_rows(phase) {
        let kernels: Vec<&str> = row.kernels.iter().take(3).map(|(name, _)| name.as_str()).collect();
        let more = row.kernels.len().saturating_sub(kernels.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        table.push(cells![
            row.name(),
            row.calls_per_step,
            row.ns_per_step / 1e6,
            row.share,
            row.achieved.map(|timed| timed.flop_per_s()),
            row.achieved.map(|timed| timed.bytes_per_s()),
            row.pct_of_peaks.map(|share| share.max_pct()),
            row.verdict.as_ref().ok().map(|verdict| verdict.class.word()),
            format!("`{}`{more}", kernels.join("`, `")),
        ]);
    }
    let _ = writeln!(out, "{}", table.markdown());
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
    let share = |ns: u64| ns as f64 / host.attributed_ns().max(1) as f64;
    let ms = |ns: f64| ns / 1e6;
    let allocated = |heap: Option<HeapGrowth>| heap.map(|heap| heap.allocated_bytes as f64 / steps);
    let peak = |heap: Option<HeapGrowth>| heap.map(|heap| heap.peak_bytes);
    let number = |title, unit| Column::number(title).unit(unit);
    let mut table = Table::new([
        Column::text("operator"),
        Column::number("calls"),
        number("per step", Unit::Millis),
        number("share", Unit::Share),
        number("mean", Unit::Millis),
        number("min", Unit::Millis),
        number("max", Unit::Millis),
        number("FLOP/s", Unit::Scaled("FLOP/s")),
        number("B/s", Unit::Scaled("B/s")),
        number("allocated", Unit::Scaled("B")),
        number("peak", Unit::Scaled("B")),
        Column::text("shapes"),
    ]);
    let (step, none) = (ms(host.attributed_ns() as f64 / steps), Cell::default);
    let (held, most) = (allocated(host.heap), peak(host.heap));
    table.push(cells!["**step**", "1", step, 1.0, step, none(), none(), none(), none(), held, most, ""]);
    for spent in &host.times {
        let row = achieved.iter().find(|row| row.operator == Some(spent.operator));
        let achieved = row.and_then(|row| row.achieved);
        table.push(cells![
            spent.operator.to_string(),
            spent.calls as f64 / steps,
            ms(spent.ns as f64 / steps),
            share(spent.ns),
            ms(spent.ns as f64 / spent.calls.max(1) as f64),
            ms(spent.min_ns as f64),
            ms(spent.max_ns as f64),
            achieved.map(|timed| timed.flop_per_s()),
            achieved.map(|timed| timed.bytes_per_s()),
            allocated(spent.heap),
            peak(spent.heap),
            state.operand_shapes(phase, spent.operator).map(|text| format!("`{text}`")),
        ]);
    }
    let own = host.self_ns();
    let own = cells!["*outside operators*", "", ms(own as f64 / steps), share(own)];
    table.push(own.into_iter().chain(vec![Cell::from(""); 8]));
    let _ = writeln!(out, "{}", table.markdown());
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
    let share = |part: f64, all: f64| (all > 0.0).then(|| part / all);
    let number = |title, unit| Column::number(title).unit(unit);
    let mut table = Table::new([
        Column::text("operator"),
        number("calls", Unit::Count),
        number("FLOP", Unit::Scaled("FLOP")),
        number("share", Unit::Share),
        number("bytes", Unit::Scaled("B")),
        number("share", Unit::Share),
        Column::number("FLOP/B"),
    ]);
    for operator in &cost.operators {
        let all = &operator.all;
        table.push(cells![
            operator.operator.name(),
            operator.calls,
            all.flops(),
            share(all.flops(), total.flops()),
            all.bytes(),
            share(all.bytes(), total.bytes()),
            all.intensity(),
        ]);
    }
    let _ = writeln!(out, "{}", table.markdown());
}
