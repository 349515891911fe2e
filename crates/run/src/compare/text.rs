//! A comparison as text, Markdown and JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::GatedComparison;
use llmprof_analysis::{
    compare::{
        Comparison, Difference, Gate, GateOutcome, Metric, OVERRIDE, OperatorChange, OperatorClock,
        OwnerChange, Row, SampleSize, Side, Statistic, Verdict, Waterfall,
    },
    interval::MIN_VALUES,
};
use llmprof_base::{
    cells,
    foreign::{MAX_LINE, line},
    markup::inert_markdown,
    table::{Cell, Column, Table, Tone},
    units::{percent, ratio_change, three_digits},
};

/// Version of the output of `compare --json`.
const SCHEMA: u32 = 1;

/// 0 unless a gate is broken (1), or something is undecided (3): a gate, or without gates the headline.
pub fn exit_code(comparisons: &[GatedComparison]) -> u8 {
    let outcomes = || comparisons.iter().flat_map(|gated| &gated.gates).map(|(_, outcome)| outcome);
    let undecided =
        |gated: &GatedComparison| gated.gates.is_empty() && gated.comparison.verdict == Verdict::Undecided;
    if outcomes().any(|outcome| *outcome == GateOutcome::Broken) {
        1
    } else if outcomes().any(|outcome| matches!(outcome, GateOutcome::Undecided(_)))
        || comparisons.iter().any(undecided)
    {
        3
    } else {
        0
    }
}

/// A row per metric: both values, the change with its interval, and the verdict.
pub fn comparison_table<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Table {
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
pub fn visible_rows(comparison: &Comparison) -> impl Iterator<Item = &Row> {
    let known = |row: &&Row| row.a.is_some() || row.b.is_some();
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
fn is_from_tokens(row: &Row) -> bool {
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

/// The changes of operators, the largest first, with a bar relative to that.
fn waterfall_lines(waterfall: &Waterfall) -> Vec<String> {
    const MAX_PARTS: usize = 8;
    let (shown, rest, rest_us) = waterfall.largest(MAX_PARTS);
    let largest = shown.iter().map(|part| part.delta_us().abs()).fold(0.0, f64::max);
    let width = shown.iter().map(|part| part.what.chars().count()).max().unwrap_or(0);
    let line = |part: &OperatorChange| {
        let bar = "█".repeat((20.0 * part.delta_us().abs() / largest).round().max(1.0) as usize);
        let (a, b) = (three_digits(part.a_us), three_digits(part.b_us));
        format!("{:<width$}  {a:>7} → {b:>7}  {:>+9.2}  {bar}", part.what, part.delta_us())
    };
    let mut lines: Vec<String> = shown.iter().map(line).collect();
    if rest > 0 {
        lines.push(format!("… and {rest} more, {rest_us:+.2}"));
    }
    lines.extend(changed_families(waterfall));
    lines
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

/// The changes of owners, the largest first, with the interval over pairs of runs.
fn owner_lines(comparison: &Comparison) -> Vec<String> {
    const MAX_OWNERS: usize = 10;
    let width = comparison.owners.iter().map(|change| change.owner.chars().count()).max().unwrap_or(0);
    let line = |change: &OwnerChange| {
        let (a, b) = (three_digits(change.a_us), three_digits(change.b_us));
        let interval = change
            .interval_us
            .map_or_else(String::new, |[low, high]| format!("  95 % CI {low:+.2} to {high:+.2}"));
        format!("{:<width$}  {a:>7} → {b:>7}  {:>+9.2}{interval}", change.owner, change.delta_us)
    };
    let (shown, rest) = comparison.owners.split_at(comparison.owners.len().min(MAX_OWNERS));
    let mut lines: Vec<String> = shown.iter().map(line).collect();
    if !rest.is_empty() {
        let rest_us: f64 = rest.iter().map(|change| change.delta_us).sum();
        lines.push(format!("… and {} more, {rest_us:+.2}", rest.len()));
    }
    lines
}

const OWNERS_TITLE: &str = "Change per owner of the time between tokens, µs per token";

/// The clock of the operators, if it is not that of their kernels.
fn waterfall_unit(waterfall: &Waterfall) -> &'static str {
    match waterfall.clock {
        OperatorClock::Kernels => "µs per step",
        OperatorClock::WallTime => "µs of wall time per step",
    }
}

/// The waterfall, if it has any content.
fn waterfall_of(comparison: &Comparison) -> Option<&Waterfall> {
    comparison.waterfall.as_ref().filter(|waterfall| !waterfall.is_empty())
}

/// For a terminal: the sentence, the table, the reasons, the advice.
pub fn text(gated: &GatedComparison) -> String {
    let comparison = &gated.comparison;
    let mut out = String::new();
    if let Some(label) = &gated.label {
        let _ = writeln!(out, "{}", one_line(label));
    }
    let _ = writeln!(out, "{}: {}\n", comparison.word, comparison.sentence);
    for (name, side) in [("A", &comparison.a), ("B", &comparison.b)] {
        let [side_name, what, more] =
            [&side.name, &side.what, &describe_side(side)].map(|text| one_line(text));
        let _ = writeln!(out, "{name}  {side_name}\n   {what}\n   {more}");
    }
    let _ = writeln!(out, "\n{}", comparison_table(visible_rows(comparison)).text());
    let _ = writeln!(out, "\n{}", describe_method(comparison));
    for (labels, reason) in undecided_reasons(comparison) {
        let _ = writeln!(out, "{labels}: {reason}.");
    }
    if !comparison.differences.is_empty() {
        let _ = writeln!(out, "\nDifferences:");
        for (kind, difference) in comparison.differences.iter().map(describe_difference) {
            let _ = writeln!(out, "  {kind:<12}{}", one_line(&difference));
        }
    }
    if !comparison.owners.is_empty() {
        let _ = writeln!(out, "\n{OWNERS_TITLE}:");
        for line in owner_lines(comparison) {
            let _ = writeln!(out, "  {line}");
        }
    }
    if let Some(waterfall) = waterfall_of(comparison) {
        let _ = writeln!(out, "\nChange per operator (decode, {}):", waterfall_unit(waterfall));
        for line in waterfall_lines(waterfall) {
            let _ = writeln!(out, "  {line}");
        }
    }
    if !comparison.caveats.is_empty() {
        let _ = writeln!(out, "\nDoes not compare:");
        for caveat in &comparison.caveats {
            let _ = writeln!(out, "  {caveat}");
        }
    }
    if !gated.gates.is_empty() {
        let _ = writeln!(out, "\nGates:");
        for (gate, outcome) in &gated.gates {
            let _ = writeln!(out, "  {gate}  {outcome}");
        }
    }
    for advice in &comparison.advice {
        let _ = writeln!(out, "\n→ {advice}.");
    }
    out.trim_end().to_owned()
}

/// Names of runs, models and GPUs are untrusted.
fn one_line(text: &str) -> String {
    line(text, MAX_LINE)
}

/// The same as Markdown, for a pull request.
pub fn markdown(gated: &GatedComparison) -> String {
    let comparison = &gated.comparison;
    let label = gated.label.as_ref().map_or_else(String::new, |label| format!("### {}\n\n", one_line(label)));
    let table = comparison_table(visible_rows(comparison)).markdown();
    let notes = notes_markdown(gated);
    inert_markdown(&format!("{label}**{}**: {}\n\n{table}\n{notes}", comparison.word, comparison.sentence))
}

/// The text after the table: method, reasons, sides, differences, gates, waterfall, advice.
pub(super) fn notes_markdown(gated: &GatedComparison) -> String {
    let comparison = &gated.comparison;
    let mut out = format!("{}\n\n", describe_method(comparison));
    for (labels, reason) in undecided_reasons(comparison) {
        let _ = writeln!(out, "- {}", one_line(&format!("{labels}: {reason}")));
    }
    for (name, side) in [("A", &comparison.a), ("B", &comparison.b)] {
        let text = format!("{name}: `{}`, {}; {}", side.name, side.what, describe_side(side));
        let _ = writeln!(out, "- {}", one_line(&text));
    }
    for (kind, difference) in comparison.differences.iter().map(describe_difference) {
        let _ = writeln!(out, "- {}", one_line(&format!("{kind}: {difference}")));
    }
    for caveat in &comparison.caveats {
        let _ = writeln!(out, "- does not compare: {caveat}");
    }
    for (gate, outcome) in &gated.gates {
        let _ = writeln!(out, "- gate `{gate}`: {outcome}");
    }
    if !comparison.owners.is_empty() {
        let lines = owner_lines(comparison).join("\n");
        let _ = writeln!(out, "\n{OWNERS_TITLE}:\n\n```text\n{lines}\n```");
    }
    if let Some(waterfall) = waterfall_of(comparison) {
        let lines = waterfall_lines(waterfall).join("\n");
        let unit = waterfall_unit(waterfall);
        let _ = writeln!(out, "\nDecode, {unit}:\n\n```text\n{lines}\n```");
    }
    for advice in &comparison.advice {
        let _ = writeln!(out, "\n→ {advice}.");
    }
    out.trim_end().to_owned()
}

/// One JSON object; with `comparisons` if sweeps were compared.
pub fn json(comparisons: &[GatedComparison]) -> Value {
    let one = |gated: &GatedComparison| {
        let mut object = serde_json::to_value(&gated.comparison).unwrap_or_default();
        let gate = |(gate, outcome): &(Gate, GateOutcome)| {
            let mut object = json!(outcome);
            object["gate"] = json!(gate.to_string());
            object
        };
        object["gates"] = gated.gates.iter().map(gate).collect();
        object["label"] = json!(gated.label);
        object["schema"] = json!(SCHEMA);
        object
    };
    let mut object = match comparisons {
        [only] => one(only),
        several => json!({"schema": SCHEMA, "comparisons": several.iter().map(one).collect::<Vec<_>>()}),
    };
    object["exit_code"] = json!(exit_code(comparisons));
    object
}
