//! Operators of a profile: host times from the worker, kernels from PyTorch's trace.

use super::protocol::Timed;
use llm_cost::Operator;
use llmprof_event::{
    KernelWindow, OperatorTime, OperatorWindow, Phase,
    kernels::{KernelRow, KernelTable, Kind},
};

/// The worker's annotations: `llmprof:decode` around a step, `llmprof:qkv` around an operator.
const MARK: &str = "llmprof:";

/// The phase with this name in annotations.
fn phase_named(name: &str) -> Option<Phase> {
    Phase::WORK.into_iter().find(|phase| phase.name() == name)
}

/// Times of operators on the host; `None` if the phase is not one of this program's.
pub fn host_window(timed: &Timed) -> Option<OperatorWindow> {
    let phase = phase_named(&timed.phase)?;
    let mut operators: Vec<OperatorTime> = Vec::new();
    for (name, calls, ns, min_ns, max_ns) in &timed.rows {
        let Some(operator) = Operator::named(name).filter(|_| *calls > 0) else { continue };
        if operators.iter().any(|known| known.operator == operator) {
            continue;
        }
        let (min_ns, max_ns) = (*min_ns.min(max_ns), *max_ns.max(min_ns));
        operators.push(OperatorTime { operator, calls: *calls, ns: *ns, min_ns, max_ns, heap: None });
    }
    operators.sort_by_key(|time| time.operator);
    // Operators are within steps, so their sum is at most that of the steps.
    let sum = operators.iter().fold(0u64, |sum, time| sum.saturating_add(time.ns));
    Some(OperatorWindow {
        phase,
        steps: timed.steps,
        host_ns: timed.ns.max(sum),
        operators,
        ..OperatorWindow::default()
    })
}

/// Phase and operator of a kernel by the annotations around its launch, the innermost last.
fn place(range: &str) -> (Option<Phase>, Option<Operator>) {
    let mut found = (None, None);
    for name in range.split('/').filter_map(|part| part.strip_prefix(MARK)) {
        match phase_named(name) {
            Some(phase) => found = (Some(phase), None),
            None => found.1 = Operator::named(name).or(found.1),
        }
    }
    found
}

/// Sets the operator of each kernel's row.
pub fn assign(tables: &mut [KernelTable]) {
    for row in tables.iter_mut().filter(|table| table.kind == Kind::Kernels).flat_map(|table| &mut table.rows)
    {
        row.operator = row.range.as_deref().and_then(|range| place(range).1).or(row.operator);
    }
}

/// The duration of a mean measured step of a phase, without a profiler.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct MeanStep {
    /// From its first kernel to its last, by CUDA events; else on the host.
    pub step_ns: f64,
    /// The rest of the time between two tokens.
    pub between_ns: f64,
}

/// The kernels of each phase of a trace, with the number of its steps. A profiler adds overhead to every launch, so the
/// time around kernels is that of the measured steps.
pub fn kernel_windows(
    tables: &[KernelTable],
    measured: impl Fn(Phase) -> Option<MeanStep>,
) -> Vec<KernelWindow> {
    let of_kind = |kind: Kind| tables.iter().filter(move |table| table.kind == kind);
    let annotations = |phase: Phase| {
        let name = format!("{MARK}{}", phase.name());
        of_kind(Kind::Ranges)
            .flat_map(|table| &table.rows)
            .filter(move |row| row.name.rsplit('/').next() == Some(&name))
    };
    let mut windows = Vec::new();
    for phase in Phase::WORK {
        let rows: Vec<KernelRow> = of_kind(Kind::Kernels)
            .flat_map(|table| &table.rows)
            .filter(|row| row.range.as_deref().is_some_and(|range| place(range).0 == Some(phase)))
            .map(|row| KernelRow { range: None, ..row.clone() })
            .collect();
        let steps = annotations(phase).map(|row| row.calls).max().unwrap_or(0);
        if rows.is_empty() || steps == 0 {
            continue;
        }
        let busy_ns = rows.iter().filter_map(|row| row.total_ns).sum::<f64>() as u64;
        let launches = rows.iter().map(|row| row.calls).sum();
        let graph_launches = rows.iter().filter_map(|row| row.graph_calls).sum();
        let mean = measured(phase).unwrap_or_default();
        windows.push(KernelWindow {
            phase,
            steps,
            span_ns: busy_ns.max((mean.step_ns * steps as f64) as u64),
            busy_ns,
            between_ns: (mean.between_ns.max(0.0) * steps as f64) as u64,
            launches,
            graph_launches,
            rows,
            ..KernelWindow::default()
        });
    }
    windows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_belong_to_the_innermost_annotation() {
        for (range, expected) in [
            (
                "llmprof:decode/llmprof:rope/llmprof:attention/aten::sdpa",
                (Some(Phase::Decode), Some(Operator::Attention)),
            ),
            ("llmprof:decode/aten::add", (Some(Phase::Decode), None)),
            ("llmprof:prefill/llmprof:qkv/llmprof:unknown/x", (Some(Phase::Prefill), Some(Operator::Qkv))),
            ("llmprof:prefill/llmprof:vision/llmprof:qkv", (Some(Phase::Vision), Some(Operator::Qkv))),
            ("decode/qkv", (None, None)),
            ("", (None, None)),
        ] {
            assert_eq!(place(range), expected, "{range}");
        }
    }

    #[test]
    fn times_of_a_hostile_worker_stay_in_order() {
        let row = |name: &str, calls, ns| (name.to_owned(), calls, ns, 9, 3);
        let timed = Timed {
            phase: "decode".to_owned(),
            steps: 2,
            ns: 10,
            rows: vec![
                row("down", 2, 20),
                row("qkv", 2, u64::MAX),
                row("qkv", 1, 1),
                row("x", 1, 1),
                row("rope", 0, 1),
            ],
        };
        let window = host_window(&timed).unwrap();
        let names: Vec<_> = window.operators.iter().map(|time| time.operator).collect();
        assert_eq!(names, [Operator::Qkv, Operator::Down]);
        assert_eq!((window.operators[0].min_ns, window.operators[0].max_ns), (3, 9));
        assert!(window.host_ns >= 20);
        assert_eq!(host_window(&Timed { phase: "idle".to_owned(), ..timed }), None);
    }
}
