//! The parts of a comparison as text, for documents and for the screen.

use std::fmt::Write;

use super::{
    Comparison, Difference, Metric, MetricComparison, OVERRIDE, SampleSize, Side, Statistic, Waterfall,
};
use crate::interval::MIN_VALUES;
use llmprof_base::{
    cells,
    table::{Cell, Column, Table, Tone},
    units::{percent, ratio_change, three_digits},
};

/// A row per metric: both values, the change with its interval, and the verdict.
pub fn comparison_table<'a>(rows: impl IntoIterator<Item = &'a MetricComparison>) -> Table {
    let mut table = Table::new([
        Column::text("").key("metric"),
        Column::number("A").key("a"),
        Column::number("B").key("b"),
        Column::number("B vs A").key("change").tone(Tone::Number),
        Column::number("95 % CI").key("interval"),
        Column::number("in cycles").key("cycles"),
        Column::text("verdict").key("verdict"),
    ]);
    for row in rows {
        let value = |value: Option<f64>| value.map(|value| row.metric.format_value(value));
        // Two values have a ratio even if there is no interval.
        let ratio = row.ratio.map(|ratio| ratio.estimate).or_else(|| Some(row.b? / row.a?));
        let interval = row.ratio.map(|ratio| match row.metric.is_count() {
            true => "counted".to_owned(),
            false => format!("{} to {}", ratio_change(ratio.low), ratio_change(ratio.high)),
        });
        let in_cycles = row.in_cycles.map(|cycles| ratio_change(cycles.estimate));
        table.push(cells![
            row.label.as_str(),
            value(row.a),
            value(row.b),
            ratio.map(ratio_change),
            interval,
            in_cycles.unwrap_or_default(),
            Cell::from(row.word).tone(row.verdict.tone()),
        ]);
    }
    table
}

/// The rows to show: those that neither side has are left out, unless there are no others.
pub fn visible_rows(comparison: &Comparison) -> impl Iterator<Item = &MetricComparison> {
    let known = |row: &&MetricComparison| row.a.is_some() || row.b.is_some();
    let nothing = !comparison.rows.iter().any(|row| known(&row));
    comparison.rows.iter().filter(move |row| nothing || known(row))
}

/// The reasons why rows are undecided, and reservations about decided ones: the labels of the rows, and the reason. The
/// headline's reason is in the sentence.
pub fn undecided_reasons(comparison: &Comparison) -> Vec<(String, &str)> {
    let in_sentence = comparison.headline().and_then(|row| row.reason.as_deref());
    let mut reasons: Vec<(String, &str)> = Vec::new();
    for row in visible_rows(comparison) {
        let Some(reason) = row.reason.as_deref().filter(|reason| Some(*reason) != in_sentence) else {
            continue;
        };
        match reasons.iter_mut().find(|(_, known)| *known == reason) {
            Some((labels, _)) => *labels += &format!(", {}", row.label),
            None => reasons.push((row.label.clone(), reason)),
        }
    }
    reasons
}

/// Whether a difference is intended, and what it is.
pub fn describe_difference(difference: &Difference) -> (&'static str, String) {
    let Difference { what, a, b, meant, .. } = difference;
    let kind = match (meant, difference.blocks()) {
        (Some(_), _) => "intended",
        (None, true) => "unintended",
        (None, false) => "also",
    };
    let name = match meant {
        Some(key) if *what == OVERRIDE => key.clone(),
        Some(cause) => format!("{what} (by {cause})"),
        None => (*what).to_owned(),
    };
    (kind, format!("{name}: {a} → {b}"))
}

/// The measurements of a side, and the issues that block a comparison.
pub fn describe_side(side: &Side) -> String {
    let mut text = format!("{} requests", side.requests);
    if let Some(cv) = side.tpot_cv {
        let _ = write!(text, ", TPOT varies by {}", percent(100.0 * cv));
    }
    for (phase, share) in [("prefill", side.throttled_prefill), ("decode", side.throttled_decode)] {
        if share >= 0.005 {
            let _ = write!(text, ", clock limited in {} of {phase}", percent(100.0 * share));
        }
    }
    for remark in &side.remarks {
        let _ = write!(text, "; {remark}");
    }
    let issues: Vec<String> = side.blocking_issues.iter().map(ToString::to_string).collect();
    match issues.is_empty() {
        true => text,
        false => format!("cannot be trusted: {} ({text})", issues.join("; ")),
    }
}

/// Whether a mean comes from tokens because there are too few requests.
fn is_from_tokens(row: &MetricComparison) -> bool {
    let of_percentile = matches!(row.metric, Metric::Itl(Statistic::Percentile(_)));
    matches!(row.n, Some(SampleSize::Tokens { .. })) && !of_percentile
}

/// An explanation of the verdicts.
pub fn describe_method(comparison: &Comparison) -> String {
    let method = match comparison.pairs {
        Some(pairs) => {
            format!(" A, B and the intervals are geometric means over {pairs} interleaved pairs of runs.")
        }
        None if comparison.rows.iter().any(is_from_tokens) => {
            format!(" With fewer than {MIN_VALUES} requests, TPOT is from blocks of consecutive tokens.")
        }
        None => " Means are resampled; percentiles have binomial intervals.".to_owned(),
    };
    let headline = comparison.headline().map_or_else(String::new, |row| {
        format!(" {} is tested at 5 %: expect 1 false positive in 20.", row.label)
    });
    let others = match comparison.corrected_rows {
        0 => String::new(),
        1 => " One other row is tested, at 5 % too.".to_owned(),
        n => format!(" The other {n} rows are corrected together (Holm), at 5 % for all of them."),
    };
    format!("SAME: the interval is within ±{}.{headline}{others}{method}", percent(100.0 * comparison.margin))
}

/// The kernels that only one side has.
pub fn changed_families(waterfall: &Waterfall) -> Vec<String> {
    let both = [("appeared", &waterfall.appeared), ("disappeared", &waterfall.vanished)];
    let known = both.into_iter().filter(|(_, families)| !families.is_empty());
    known
        .map(|(title, families)| {
            let families: Vec<String> =
                families.iter().map(|(name, n)| format!("{name} ({} per token)", three_digits(*n))).collect();
            format!("{title}: {}", families.join(", "))
        })
        .collect()
}
