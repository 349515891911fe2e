//! A comparison for people and for machines.

use std::fmt::Write;

use serde_json::{Value, json};

use super::Judged;
use crate::{
    analysis::{
        compare::{Comparison, Difference, Held, Row, Side, Verdict, Waterfall},
        interval::Interval,
    },
    base::{
        table::aligned,
        units::{percent, ratio_change, three_digits},
    },
};

/// Version of what `compare --json` prints.
const SCHEMA: u32 = 1;

/// The columns of the table.
pub(super) const COLUMNS: [&str; 7] = ["", "A", "B", "B to A", "95 %", "in cycles", "verdict"];

/// 0 unless a gate is broken (1), or something is undecided (3): a gate, or without gates the headline.
pub fn exit_code(judged: &[Judged]) -> u8 {
    let gates = || judged.iter().flat_map(|judged| &judged.gates).map(|(_, held)| held);
    let undecided =
        |judged: &Judged| judged.gates.is_empty() && judged.comparison.verdict == Verdict::Undecided;
    match () {
        () if gates().any(|held| *held == Held::Broken) => 1,
        () if gates().any(|held| matches!(held, Held::Undecided(_))) => 3,
        () if judged.iter().any(undecided) => 3,
        () => 0,
    }
}

fn interval(of: Interval, is_count: bool) -> String {
    match is_count {
        true => "counted".to_owned(),
        false => format!("{} to {}", ratio_change(of.low), ratio_change(of.high)),
    }
}

/// A row in the order of the table's columns.
pub fn cells(row: &Row) -> [String; 7] {
    let none = || "–".to_owned();
    let value = |value: Option<f64>| value.map_or_else(none, |value| row.of.shown(value));
    [
        row.label.clone(),
        value(row.a),
        value(row.b),
        // Two numbers have a difference, though nobody can say what it is worth.
        row.ratio
            .map(|ratio| ratio.estimate)
            .or_else(|| Some(row.b? / row.a?))
            .map_or_else(none, ratio_change),
        row.ratio.map_or_else(none, |ratio| interval(ratio, row.of.is_count())),
        row.in_cycles.map_or_else(String::new, |cycles| ratio_change(cycles.estimate)),
        row.word.to_owned(),
    ]
}

/// The rows worth a line: what neither side has is left out, unless that is all there is.
pub fn told(comparison: &Comparison) -> impl Iterator<Item = &Row> {
    let known = |row: &&Row| row.a.is_some() || row.b.is_some();
    let nothing = !comparison.rows.iter().any(|row| known(&row));
    comparison.rows.iter().filter(move |row| nothing || known(row))
}

/// Why rows are undecided, each reason once with those it is for. The headline's is in the sentence.
pub fn reasons(comparison: &Comparison) -> Vec<(String, String)> {
    let mut reasons: Vec<(String, Vec<&str>)> = Vec::new();
    for row in told(comparison) {
        let Some(reason) = &row.reason else { continue };
        match reasons.iter_mut().find(|(known, _)| known == reason) {
            Some((_, labels)) => labels.push(&row.label),
            None => reasons.push((reason.clone(), vec![&row.label])),
        }
    }
    let shown = |(reason, labels): (String, Vec<&str>)| (labels.join(", "), reason);
    reasons.into_iter().map(shown).filter(|(_, reason)| !comparison.sentence.contains(reason)).collect()
}

/// Whether it was meant, and what it is.
pub fn difference_words(difference: &Difference) -> (String, String) {
    let Difference { what, a, b, meant, .. } = difference;
    let kind = match (meant, difference.blocks()) {
        (Some(_), _) => "meant",
        (None, true) => "not meant",
        (None, false) => "besides",
    };
    let name = match (what, meant) {
        (&"override", Some(key)) => key.clone(),
        (what, Some(by)) => format!("{what} (by {by})"),
        (what, None) => (*what).to_owned(),
    };
    (kind.to_owned(), format!("{name}: {a} → {b}"))
}

/// How far a side can be trusted, and why not.
pub fn trust_words(side: &Side) -> String {
    let mut words = format!("{} requests", side.requests);
    if let Some(cv) = side.tpot_cv {
        let _ = write!(words, ", TPOT varies by {}", percent(100.0 * cv));
    }
    for (phase, share) in [("prefill", side.held_back_prefill), ("decode", side.held_back_decode)] {
        if share >= 0.005 {
            let _ = write!(words, ", held back {} of {phase}", percent(100.0 * share));
        }
    }
    for remark in &side.remarks {
        let _ = write!(words, "; {remark}");
    }
    match side.doubts.is_empty() {
        true => words,
        false => format!("not to be trusted: {} ({words})", side.doubts.join("; ")),
    }
}

pub(super) fn margin_words(comparison: &Comparison) -> String {
    let how = match comparison.pairs {
        Some(pairs) => format!("{pairs} pairs of runs, done in turn; intervals are of the mean over pairs"),
        None => "Bootstrap over requests; tokens in blocks of whole requests".to_owned(),
    };
    format!(
        "SAME is within {} for sure. Each line stands alone: of twenty without a difference one may claim one. {how}.",
        percent(100.0 * comparison.margin)
    )
}

pub(super) fn gate_words(held: &Held) -> String {
    match held {
        Held::Held => "held".to_owned(),
        Held::Broken => "BROKEN".to_owned(),
        Held::Undecided(reason) => format!("UNDECIDED: {reason}"),
    }
}

/// Lines of the fall from A to B, the greatest first; a bar says how much of the greatest each is.
fn fall_lines(fall: &Waterfall) -> Vec<String> {
    const MOST: usize = 8;
    let greatest = fall.parts.iter().map(|part| part.delta_us().abs()).fold(0.0, f64::max);
    let width = fall.parts.iter().take(MOST).map(|part| part.what.chars().count()).max().unwrap_or(0);
    let mut lines: Vec<String> = fall
        .parts
        .iter()
        .take(MOST)
        .map(|part| {
            let bar = "█".repeat((20.0 * part.delta_us().abs() / greatest).round().max(1.0) as usize);
            let (a, b) = (three_digits(part.a_us), three_digits(part.b_us));
            format!("{:<width$}  {a:>7} → {b:>7}  {:>+9.2}  {bar}", part.what, part.delta_us())
        })
        .collect();
    let rest: f64 = fall.parts.iter().skip(MOST).map(|part| part.delta_us()).sum();
    if fall.parts.len() > MOST {
        lines.push(format!("… and {} more, {rest:+.2}", fall.parts.len() - MOST));
    }
    let families = |list: &[(String, f64)]| {
        list.iter()
            .map(|(name, n)| format!("{name} ({} a token)", three_digits(*n)))
            .collect::<Vec<_>>()
            .join(", ")
    };
    for (word, list) in [("appeared", &fall.appeared), ("vanished", &fall.vanished)] {
        if !list.is_empty() {
            lines.push(format!("{word}: {}", families(list)));
        }
    }
    lines
}

/// For a person at a terminal: the sentence, the table, why, what to do.
pub fn text(judged: &Judged) -> String {
    let comparison = &judged.comparison;
    let mut out = String::new();
    if let Some(label) = &judged.label {
        let _ = writeln!(out, "{label}");
    }
    let _ = writeln!(out, "{}: {}\n", comparison.word, comparison.sentence);
    for (name, side) in [("A", &comparison.a), ("B", &comparison.b)] {
        let _ = writeln!(out, "{name}  {}\n   {}\n   {}", side.name, side.what, trust_words(side));
    }
    let mut rows = vec![COLUMNS.map(str::to_owned)];
    rows.extend(told(comparison).map(cells));
    let _ = writeln!(out, "\n{}", aligned(&rows, |column| (1..6).contains(&column)));
    let _ = writeln!(out, "\n{}", margin_words(comparison));
    for (labels, reason) in reasons(comparison) {
        let _ = writeln!(out, "{labels}: {reason}.");
    }
    if !comparison.differences.is_empty() {
        let _ = writeln!(out, "\nWhat differs:");
        for (kind, words) in comparison.differences.iter().map(difference_words) {
            let _ = writeln!(out, "  {kind:<10}{words}");
        }
    }
    if let Some(fall) = comparison.waterfall.as_ref().filter(|fall| **fall != Waterfall::default()) {
        let _ = writeln!(out, "\nWhat makes the difference (decode, µs a step):");
        for line in fall_lines(fall) {
            let _ = writeln!(out, "  {line}");
        }
    }
    if !judged.gates.is_empty() {
        let _ = writeln!(out, "\nGates:");
        for (gate, held) in &judged.gates {
            let _ = writeln!(out, "  {gate}  {}", gate_words(held));
        }
    }
    for advice in &comparison.advice {
        let _ = writeln!(out, "\n→ {advice}.");
    }
    out.trim_end().to_owned()
}

/// The same as Markdown, for a pull request.
pub fn markdown(judged: &Judged) -> String {
    let comparison = &judged.comparison;
    let plain = |text: &str| text.replace('|', "\\|");
    let mut out = String::new();
    if let Some(label) = &judged.label {
        let _ = writeln!(out, "### {}\n", plain(label));
    }
    let _ = writeln!(out, "**{}**: {}\n", comparison.word, comparison.sentence);
    let _ = writeln!(out, "| {} |\n|{}", COLUMNS.join(" | "), "---|".repeat(COLUMNS.len()));
    for row in told(comparison) {
        let _ = writeln!(out, "| {} |", cells(row).join(" | "));
    }
    let _ = writeln!(out, "\n{}\n", margin_words(comparison));
    for (labels, reason) in reasons(comparison) {
        let _ = writeln!(out, "- {labels}: {reason}");
    }
    for (name, side) in [("A", &comparison.a), ("B", &comparison.b)] {
        let _ =
            writeln!(out, "- {name}: `{}`, {}; {}", side.name, plain(&side.what), plain(&trust_words(side)));
    }
    for (kind, words) in comparison.differences.iter().map(difference_words) {
        let _ = writeln!(out, "- {kind}: {}", plain(&words));
    }
    for (gate, held) in &judged.gates {
        let _ = writeln!(out, "- gate `{gate}`: {}", gate_words(held));
    }
    if let Some(fall) = comparison.waterfall.as_ref().filter(|fall| **fall != Waterfall::default()) {
        let _ = writeln!(out, "\nDecode, µs a step:\n\n```text\n{}\n```", fall_lines(fall).join("\n"));
    }
    for advice in &comparison.advice {
        let _ = writeln!(out, "\n→ {}.", plain(advice));
    }
    out.trim_end().to_owned()
}

/// One object for machines; `comparisons` where sweeps were compared.
pub fn json(judged: &[Judged]) -> Value {
    let one = |judged: &Judged| {
        let mut object = serde_json::to_value(&judged.comparison).unwrap_or_default();
        let gate = |(gate, held): &(crate::analysis::compare::Gate, Held)| {
            let mut told = json!(held);
            told["gate"] = json!(gate.to_string());
            told
        };
        object["gates"] = judged.gates.iter().map(gate).collect();
        object["label"] = json!(judged.label);
        object["schema"] = json!(SCHEMA);
        object
    };
    let mut object = match judged {
        [only] => one(only),
        several => json!({"schema": SCHEMA, "comparisons": several.iter().map(one).collect::<Vec<_>>()}),
    };
    object["exit_code"] = json!(exit_code(judged));
    object
}
