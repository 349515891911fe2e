//! The operators of a run: `operators.md`. As their kernels were seen, else as the model's shape says.

use std::fmt::Write;

use crate::{
    analysis::{
        operators::OperatorRow,
        units::{grouped, millis, scaled, three_digits},
    },
    event::Phase,
    model::cost::StepCost,
    state::RunState,
};

/// `None` where neither kernels nor a shape were recorded.
pub(super) fn operators_md(state: &RunState) -> Option<String> {
    let title = state.run.as_ref().map_or("a run", |run| &run.model);
    let mut out = format!("# Operators of {title}\n\n");
    let mut any = false;
    for phase in [Phase::Prefill, Phase::Decode] {
        let rows = state.operator_rows(phase);
        match state.step_cost(phase) {
            _ if !rows.is_empty() => measured(&mut out, state, phase, &rows),
            Some(cost) => reckoned(&mut out, phase, &cost),
            None => continue,
        }
        any = true;
    }
    any.then_some(out)
}

fn none() -> String {
    "–".to_owned()
}

fn measured(out: &mut String, state: &RunState, phase: Phase, rows: &[OperatorRow]) {
    let steps = state.kernels.live(phase).map_or(0, |live| live.steps);
    let _ = writeln!(
        out,
        "## {}: kernels of {} steps\n\nTimes are means of a step, by the GPU's clock; FLOP and bytes are from the model's \
         shape.\n\n| operator | calls | time | share | FLOP/s | B/s | of roof | class | kernels |\n|---|---|---|---|---|---|---|---|---|",
        phase.name(),
        grouped(steps as i64)
    );
    for row in rows {
        let kernels: Vec<&str> = row.kernels.iter().take(3).map(|(name, _)| name.as_str()).collect();
        let more = row.kernels.len().saturating_sub(kernels.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} % | {} | {} | {} | {} | `{}`{more} |",
            row.name(),
            three_digits(row.calls_per_step),
            millis(row.ns_per_step / 1e6),
            three_digits(row.share * 100.0),
            row.achieved.map_or_else(none, |timed| scaled(timed.flop_per_s(), "FLOP/s")),
            row.achieved.map_or_else(none, |timed| scaled(timed.bytes_per_s(), "B/s")),
            row.pct_of_peaks.map_or_else(none, |share| format!("{} %", three_digits(share.most()))),
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

fn reckoned(out: &mut String, phase: Phase, cost: &StepCost) {
    let total = cost.total();
    let _ = writeln!(
        out,
        "## {}: as reckoned, not measured\n\nNo kernels were recorded in this phase (`profiling.cupti.enable=true` or the key \
         `K` records them). A step of {} positions after {}, by the model's shape.\n\n\
         | operator | calls | FLOP | of all | bytes | of all | FLOP/B |\n|---|---|---|---|---|---|---|",
        phase.name(),
        cost.step.new,
        cost.step.past
    );
    let pct = |part: f64, all: f64| {
        if all > 0.0 { format!("{} %", three_digits(part / all * 100.0)) } else { none() }
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
