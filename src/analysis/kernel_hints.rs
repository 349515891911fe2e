//! What the kernels of a phase say, in words with their numbers, the most telling first.

use super::{launches::LaunchMeter, operators::OperatorRow};
use crate::base::units::{percent, three_digits};
use crate::{
    analysis::classify::Class,
    event::{Phase, kernels::KernelRow},
};

/// The kernels of some steps of a phase; sums over all of them.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    pub phase: Phase,
    pub steps: u64,
    pub meter: LaunchMeter,
    pub dropped: u64,
    pub rows: &'a [KernelRow],
    pub operators: &'a [OperatorRow],
}

/// A kernel shorter than this is over before it is worth a launch.
const SHORT_NS: f64 = 3_000.0;
/// From here on a ceiling is near.
const NEAR_PCT: f64 = 75.0;
/// Less than this of a step is not worth a word.
const WORTH_A_WORD: f64 = 0.05;

/// Everything there is to say of one phase.
pub fn hints(seen: &Seen<'_>) -> Vec<String> {
    let mut hints = Vec::new();
    hints.extend(bound(seen));
    hints.push(launches(seen));
    hints.extend(waiting_operators(seen));
    hints.extend(others(seen));
    if seen.dropped > 0 {
        hints.push(format!(
            "{}: {} records were lost: shares are of those that were kept",
            seen.phase.name(),
            seen.dropped
        ));
    }
    hints
}

/// What one step of the phase is called.
fn unit(phase: Phase) -> &'static str {
    if phase == Phase::Decode { "token" } else { "prefill" }
}

fn named(rows: &[&OperatorRow]) -> String {
    let names: Vec<&str> = rows.iter().map(|row| row.name()).collect();
    match names.len() {
        0..=4 => names.join(", "),
        n => format!("{} and {} more", names[..3].join(", "), n - 3),
    }
}

fn of_class<'a>(seen: &Seen<'a>, classes: &[Class]) -> Vec<&'a OperatorRow> {
    let fits =
        |row: &&OperatorRow| row.verdict.as_ref().is_ok_and(|verdict| classes.contains(&verdict.class));
    seen.operators.iter().filter(fits).collect()
}

/// How near the operators that are bound by memory, or by operations, are to their ceiling.
fn bound(seen: &Seen<'_>) -> Option<String> {
    let groups =
        [Class::Memory, Class::Compute, Class::Balanced].map(|class| (class, of_class(seen, &[class])));
    let share = |rows: &[&OperatorRow]| rows.iter().map(|row| row.share).sum::<f64>();
    let (class, rows) =
        groups.into_iter().max_by(|a, b| share(&a.1).total_cmp(&share(&b.1))).filter(|g| !g.1.is_empty())?;
    // Weighted by time: what all of them together reached.
    let ns: f64 = rows.iter().map(|row| row.ns_per_step).sum();
    let pct = |of: fn(&super::roofline::Share) -> f64| {
        rows.iter().filter_map(|row| Some(of(row.pct_of_peaks.as_ref()?) * row.ns_per_step)).sum::<f64>() / ns
    };
    let (pct, ceiling) = match class {
        Class::Compute => (pct(|share| share.flops_pct), "peak FLOP/s"),
        _ => (pct(|share| share.bytes_pct), "DRAM bandwidth"),
    };
    let verdict = match pct {
        pct if pct > 100.0 => "beyond the limit, so caches spare some of it".to_owned(),
        pct if pct >= NEAR_PCT => "near the limit".to_owned(),
        pct => format!("up to {} × from the limit", three_digits(100.0 / pct.max(1.0))),
    };
    Some(format!(
        "{}: {} of GPU time in {} {} ({}) at {} of {ceiling}: {verdict}",
        seen.phase.name(),
        percent(share(&rows) * 100.0),
        rows.len(),
        if rows.len() == 1 { "operator" } else { "operators" },
        named(&rows),
        percent(pct),
    ))
}

/// How many there are, how long the GPU waits for them, and what CUDA graphs do about it.
fn launches(seen: &Seen<'_>) -> String {
    let short = seen.rows.iter().filter(|row| row.mean_ns.is_some_and(|ns| ns < SHORT_NS));
    let short = short.map(|row| row.calls as f64).sum::<f64>() / seen.steps.max(1) as f64;
    let few = match short >= 1.0 {
        true => format!(", {short:.0} of them of < {} µs", SHORT_NS / 1e3),
        false => String::new(),
    };
    let LaunchMeter { launches, .. } = seen.meter;
    format!("{}: {launches:.0} launches/{}{few}. {}", seen.phase.name(), unit(seen.phase), seen.meter.words())
}

/// Operators that keep neither memory nor units busy.
fn waiting_operators(seen: &Seen<'_>) -> Option<String> {
    let rows = of_class(seen, &[Class::Latency, Class::Launch]);
    let share: f64 = rows.iter().map(|row| row.share).sum();
    (share >= WORTH_A_WORD).then(|| {
        format!(
            "{}: {} of GPU time in operators that keep neither memory nor units busy ({}): fusing them would help",
            seen.phase.name(),
            percent(share * 100.0),
            named(&rows)
        )
    })
}

/// Kernels that belong to nothing.
fn others(seen: &Seen<'_>) -> Option<String> {
    let row = seen.operators.iter().find(|row| row.operator.is_none())?;
    (row.share >= WORTH_A_WORD).then(|| {
        format!(
            "{}: {} of GPU time in kernels of which nobody told what they work on",
            seen.phase.name(),
            percent(row.share * 100.0)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        analysis::{
            classify::Verdict,
            launches::Steps,
            roofline::{Share, Timed},
        },
        model::Operator,
    };

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
        }
    }

    fn meter(graph_launches: u64, busy_ns: u64) -> LaunchMeter {
        let steps = Steps {
            steps: 100,
            launches: 22_800,
            graph_launches,
            span_ns: 450_000_000,
            busy_ns,
            between_ns: 5_000_000,
        };
        LaunchMeter::of(steps).unwrap()
    }

    fn seen<'a>(operators: &'a [OperatorRow], rows: &'a [KernelRow]) -> Seen<'a> {
        let meter = meter(0, 400_000_000);
        Seen { phase: Phase::Decode, steps: 100, meter, dropped: 0, rows, operators }
    }

    #[test]
    fn the_most_telling_stands_first_with_its_numbers() {
        let operators = [
            operator(Operator::GateUp, Class::Memory, 0.5, 80.0),
            operator(Operator::Down, Class::Memory, 0.25, 80.0),
            operator(Operator::Rope, Class::Launch, 0.15, 2.0),
            operator(Operator::MlpNorm, Class::Launch, 0.1, 2.0),
        ];
        let short = KernelRow { calls: 8500, mean_ns: Some(2_000.0), ..KernelRow::named("rope_bf16") };
        let rows = [short];
        let said = hints(&seen(&operators, &rows));
        assert_eq!(
            said[0],
            "decode: 75 % of GPU time in 2 operators (gate_up, down) at 80 % of DRAM bandwidth: near the limit"
        );
        // 0.5 ms of gaps a step, of which 227 gaps of a graph would take 0.11.
        assert!(
            said[1].starts_with("decode: 228 launches/token, 85 of them of < 3 µs. The GPU waits"),
            "{said:?}"
        );
        assert!(said[1].contains("would save about 0.387 ms (8.49 %)"), "{said:?}");
        assert!(said[2].contains("25 % of GPU time") && said[2].contains("rope, mlp_norm"), "{said:?}");
        assert_eq!(said.len(), 3, "{said:?}");
    }

    #[test]
    fn what_does_not_hold_is_not_said() {
        let operators = [operator(Operator::GateUp, Class::Memory, 0.95, 62.0)];
        let in_graphs = Seen { meter: meter(22_800, 445_000_000), ..seen(&operators, &[]) };
        let said = hints(&in_graphs);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("1.61 × from the limit"), "{said:?}");
        assert!(said[1].contains("Not launch-bound") && said[1].contains("as a CUDA graph"), "{said:?}");
        let lossy = hints(&Seen { dropped: 3, ..in_graphs });
        assert!(lossy[2].contains("3 records were lost"), "{lossy:?}");
    }
}
