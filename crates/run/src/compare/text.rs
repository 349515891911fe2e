//! A comparison as text, Markdown and JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::GatedComparison;
use llmprof_analysis::compare::{
    Comparison, Gate, GateOutcome, OperatorChange, OperatorClock, OwnerChange, Verdict, Waterfall,
    changed_families, comparison_table, describe_difference, describe_method, describe_side,
    undecided_reasons, visible_rows,
};
use llmprof_base::{
    foreign::{MAX_LINE, line},
    markup::inert_markdown,
    units::three_digits,
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
