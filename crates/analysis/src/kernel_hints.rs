//! Findings about the kernels of a phase, with their numbers, the most important first.

use super::{classify::Class, launches::LaunchMeter, operators::OperatorRow, roofline::Share};
use llmprof_base::units::{grouped, percent, three_digits};
use llmprof_event::{KernelWindow, Phase};

/// The kernels of a phase and its operators.
#[derive(Debug, Clone, Copy)]
pub struct PhaseKernels<'a> {
    pub window: &'a KernelWindow,
    pub meter: LaunchMeter,
    pub operators: &'a [OperatorRow],
    /// Whether a decode step gives several tokens of a sequence.
    pub several_tokens: bool,
}

/// A shorter kernel takes less time than its launch.
const SHORT_NS: f64 = 3_000.0;
/// From this percentage on, a ceiling is near.
const NEAR_PCT: f64 = 75.0;
/// A smaller share of a step is not reported.
const MIN_SHARE: f64 = 0.05;

/// All findings about one phase.
pub fn hints(kernels: &PhaseKernels<'_>) -> Vec<String> {
    let mut hints = Vec::new();
    hints.extend(bound(kernels));
    hints.push(launches(kernels));
    hints.extend(latency_bound(kernels));
    hints.extend(unattributed(kernels));
    hints.extend(above_peak(kernels));
    if kernels.window.dropped > 0 {
        hints.push(format!("{} records were dropped: shares refer to the rest", kernels.window.dropped));
    }
    if kernels.window.unmeasured > 0 {
        hints.push(format!(
            "{} records without a measured duration were left out: recording began while the kernel ran",
            grouped(kernels.window.unmeasured as i64)
        ));
    }
    let phase = kernels.window.phase.name();
    hints.iter().map(|hint| format!("{phase}: {hint}")).collect()
}

/// The name of one step of the phase.
fn unit(kernels: &PhaseKernels<'_>) -> &'static str {
    match kernels.window.phase {
        Phase::Decode if kernels.several_tokens => "step",
        Phase::Decode => "token",
        Phase::Vision => "request",
        Phase::Mixed => "step",
        _ => "prefill",
    }
}

fn named(rows: &[&OperatorRow]) -> String {
    let names: Vec<&str> = rows.iter().map(|row| row.name()).collect();
    match names.len() {
        0..=4 => names.join(", "),
        n => format!("{} and {} more", names[..3].join(", "), n - 3),
    }
}

fn of_class<'a>(kernels: &PhaseKernels<'a>, classes: &[Class]) -> Vec<&'a OperatorRow> {
    let fits =
        |row: &&OperatorRow| row.verdict.as_ref().is_ok_and(|verdict| classes.contains(&verdict.class));
    kernels.operators.iter().filter(fits).collect()
}

/// How close the memory-bound or compute-bound operators are to their ceiling.
fn bound(kernels: &PhaseKernels<'_>) -> Option<String> {
    let groups =
        [Class::Memory, Class::Compute, Class::Balanced].map(|class| (class, of_class(kernels, &[class])));
    let share = |rows: &[&OperatorRow]| rows.iter().map(|row| row.share).sum::<f64>();
    let (class, rows) = groups
        .into_iter()
        .max_by(|a, b| share(&a.1).total_cmp(&share(&b.1)))
        .filter(|g| share(&g.1) >= MIN_SHARE)?;
    // Weighted by time: the overall rate.
    let ns: f64 = rows.iter().map(|row| row.ns_per_step).sum();
    let pct = |of: fn(&Share) -> f64| {
        rows.iter().filter_map(|row| Some(of(row.pct_of_peaks.as_ref()?) * row.ns_per_step)).sum::<f64>() / ns
    };
    let (pct, ceiling) = match class {
        Class::Compute => (pct(|share| share.flops_pct), "peak FLOP/s"),
        _ => (pct(|share| share.bytes_pct), "DRAM bandwidth"),
    };
    let verdict = match pct {
        pct if pct >= NEAR_PCT => "near the limit".to_owned(),
        pct => format!("could be up to {}× faster", three_digits(100.0 / pct.max(1.0))),
    };
    Some(format!(
        "{} of GPU time in {} {} ({}) at {} of {ceiling}: {verdict}",
        percent(share(&rows) * 100.0),
        rows.len(),
        if rows.len() == 1 { "operator" } else { "operators" },
        named(&rows),
        percent(pct),
    ))
}

/// The number of launches, how long the GPU waits for them, and what CUDA graphs change.
fn launches(kernels: &PhaseKernels<'_>) -> String {
    let PhaseKernels { window, meter, .. } = kernels;
    let short = window.rows.iter().filter(|row| row.mean_ns.is_some_and(|ns| ns < SHORT_NS));
    let short = short.map(|row| row.calls as f64).sum::<f64>() / window.steps.max(1) as f64;
    let short = match short >= 1.0 {
        true => format!(", {short:.0} of them shorter than {} µs", SHORT_NS / 1e3),
        false => String::new(),
    };
    format!("{:.0} launches/{}{short}. {}", meter.launches, unit(kernels), meter.describe())
}

/// Operators that use neither memory nor compute units well.
fn latency_bound(kernels: &PhaseKernels<'_>) -> Option<String> {
    let rows = of_class(kernels, &[Class::Latency, Class::Launch]);
    let share: f64 = rows.iter().map(|row| row.share).sum();
    (share >= MIN_SHARE).then(|| {
        format!(
            "{} of GPU time in operators that keep neither memory nor SMs busy ({}): fusing them would help",
            percent(share * 100.0),
            named(&rows)
        )
    })
}

/// Operators whose cost exceeds the peak.
fn above_peak(kernels: &PhaseKernels<'_>) -> Option<String> {
    let rows: Vec<&OperatorRow> =
        kernels.operators.iter().filter(|row| row.is_above_peak && row.share >= MIN_SHARE).collect();
    let why = rows.first()?.verdict.as_ref().err()?;
    Some(format!(
        "{} ({} of GPU time): {why}",
        named(&rows),
        percent(rows.iter().map(|row| row.share).sum::<f64>() * 100.0)
    ))
}

/// Kernels without an operator.
fn unattributed(kernels: &PhaseKernels<'_>) -> Option<String> {
    let row = kernels.operators.iter().find(|row| row.operator.is_none())?;
    (row.share >= MIN_SHARE)
        .then(|| format!("{} of GPU time in kernels without a known operator", percent(row.share * 100.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{classify::Verdict, roofline::Timed};
    use llm_cost::Operator;
    use llmprof_event::kernels::KernelRow;

    fn operator(operator: Operator, class: Class, share: f64, bytes_pct: f64) -> OperatorRow {
        OperatorRow {
            operator: Some(operator),
            calls_per_step: 28.0,
            ns_per_step: share * 4e6,
            share,
            kernels: Vec::new(),
            achieved: Some(Timed { flops: 1.0, bytes: 1.0, seconds: 1.0 }),
            pct_of_peaks: Some(Share { flops_pct: 1.0, bytes_pct }),
            verdict: Ok(Verdict { class, rule: String::new() }),
            is_above_peak: false,
        }
    }

    fn window(graph_launches: u64, busy_ns: u64) -> KernelWindow {
        KernelWindow {
            phase: Phase::Decode,
            steps: 100,
            launches: 22_800,
            graph_launches,
            span_ns: 450_000_000,
            busy_ns,
            between_ns: 5_000_000,
            ..KernelWindow::default()
        }
    }

    fn hints_of(window: &KernelWindow, operators: &[OperatorRow]) -> Vec<String> {
        hints(&PhaseKernels {
            window,
            meter: LaunchMeter::from_window(window).unwrap(),
            operators,
            several_tokens: false,
        })
    }

    #[test]
    fn the_most_important_comes_first_with_its_numbers() {
        let operators = [
            operator(Operator::GateUp, Class::Memory, 0.5, 80.0),
            operator(Operator::Down, Class::Memory, 0.25, 80.0),
            operator(Operator::Rope, Class::Launch, 0.15, 2.0),
            operator(Operator::MlpNorm, Class::Launch, 0.1, 2.0),
        ];
        let short = KernelRow { calls: 8500, mean_ns: Some(2_000.0), ..KernelRow::named("rope_bf16") };
        let window = KernelWindow { rows: vec![short], ..window(0, 400_000_000) };
        let found = hints_of(&window, &operators);
        assert_eq!(
            found[0],
            "decode: 75 % of GPU time in 2 operators (gate_up, down) at 80 % of DRAM bandwidth: near the limit"
        );
        // 0.5 ms of gaps per step, of which the 227 gaps of a graph would keep 0.11.
        assert!(
            found[1].starts_with("decode: 228 launches/token, 85 of them shorter than 3 µs. The GPU is idle"),
            "{found:?}"
        );
        assert!(found[1].contains("would save about 0.387 ms per step (8.5 %)"), "{found:?}");
        assert!(found[2].contains("25 % of GPU time") && found[2].contains("rope, mlp_norm"), "{found:?}");
        assert_eq!(found.len(), 3, "{found:?}");
    }

    #[test]
    fn only_what_applies_is_reported() {
        let operators = [operator(Operator::GateUp, Class::Memory, 0.95, 62.0)];
        let in_graphs = window(22_800, 445_000_000);
        let found = hints_of(&in_graphs, &operators);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("could be up to 1.61× faster"), "{found:?}");
        assert!(found[1].contains("Not launch-bound") && found[1].contains("as a CUDA graph"), "{found:?}");
        let lossy = hints_of(&KernelWindow { dropped: 3, ..in_graphs }, &operators);
        assert!(lossy[2].contains("3 records were dropped"), "{lossy:?}");
    }
}
