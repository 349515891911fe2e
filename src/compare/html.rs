//! A comparison as one file that needs nothing else: sentences, a table, intervals drawn.

use std::fmt::Write;

use super::{
    Judged,
    words::{COLUMNS, cells, difference_words, gate_words, margin_words, told, trust_words},
};
use crate::{
    analysis::compare::{Comparison, Row, Verdict},
    base::markup::escaped,
};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:62em;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;width:100%}td,th{padding:.25em .6em;text-align:right;border-bottom:1px solid #ddd}\
td:first-child,th:first-child{text-align:left}.better{color:#0a7d32}.worse{color:#b3261e}.undecided{color:#8a6100}\
.same{color:#666}.quiet{color:#666}h1{font-size:1.3em}@media(prefers-color-scheme:dark){body{background:#151515;color:#ddd}\
td,th{border-color:#333}.better{color:#5bd083}.worse{color:#ff8a80}.undecided{color:#e0b040}.same,.quiet{color:#999}}";

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Same => "same",
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Undecided => "undecided",
    }
}

/// All comparisons in one page.
pub fn html(judged: &[Judged]) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>llmprof-tui compare</title>\n<style>{STYLE}</style></head><body>\n"
    );
    for judged in judged {
        page(&mut out, judged);
    }
    out + "</body></html>"
}

fn page(out: &mut String, judged: &Judged) {
    let comparison = &judged.comparison;
    if let Some(label) = &judged.label {
        let _ = writeln!(out, "<h2>{}</h2>", escaped(label));
    }
    let _ = writeln!(
        out,
        "<h1><span class=\"{}\">{}</span> {}</h1>",
        class(comparison.verdict),
        comparison.word,
        escaped(&comparison.sentence)
    );
    let heading: String = COLUMNS.iter().map(|column| format!("<th>{column}</th>")).collect();
    let _ = writeln!(out, "<table><tr>{heading}<th></th></tr>");
    for row in told(comparison) {
        let cells = cells(row);
        let cell: String = cells[..6].iter().map(|cell| format!("<td>{}</td>", escaped(cell))).collect();
        let _ = writeln!(
            out,
            "<tr>{cell}<td class=\"{}\" title=\"{}\">{}</td><td>{}</td></tr>",
            class(row.verdict),
            escaped(row.reason.as_deref().unwrap_or_default()),
            row.word,
            bar(comparison, row)
        );
    }
    let _ = writeln!(out, "</table><p class=\"quiet\">{}</p><ul>", escaped(&margin_words(comparison)));
    for (name, side) in [("A", &comparison.a), ("B", &comparison.b)] {
        let words = format!("{name}: {}, {}; {}", side.name, side.what, trust_words(side));
        let _ = writeln!(out, "<li>{}</li>", escaped(&words));
    }
    for (kind, words) in comparison.differences.iter().map(difference_words) {
        let _ = writeln!(out, "<li>{kind}: {}</li>", escaped(&words));
    }
    for (gate, held) in &judged.gates {
        let _ = writeln!(out, "<li>gate {}: {}</li>", escaped(&gate.to_string()), escaped(&gate_words(held)));
    }
    for advice in &comparison.advice {
        let _ = writeln!(out, "<li>→ {}</li>", escaped(advice));
    }
    let _ = writeln!(out, "</ul>");
    if let Some(fall) = &comparison.waterfall {
        let _ = writeln!(
            out,
            "<h3>Decode, µs a step</h3><table><tr><th></th><th>A</th><th>B</th><th>B − A</th></tr>"
        );
        for part in fall.parts.iter().take(20) {
            let _ = writeln!(
                out,
                "<tr><td>{}</td><td>{:.2}</td><td>{:.2}</td><td>{:+.2}</td></tr>",
                escaped(&part.what),
                part.a_us,
                part.b_us,
                part.delta_us()
            );
        }
        let _ = writeln!(out, "</table>");
    }
}

/// The interval on a scale of ±10 %, with the margin behind it.
fn bar(comparison: &Comparison, row: &Row) -> String {
    const HALF: f64 = 0.1;
    let Some(ratio) = row.ratio else { return String::new() };
    let x = |share: f64| 60.0 + 58.0 * (share / HALF).clamp(-1.0, 1.0);
    let (low, high) = (x(ratio.low - 1.0), x(ratio.high - 1.0));
    let (from, to) = (x(-comparison.margin), x(comparison.margin));
    format!(
        "<svg width=\"120\" height=\"14\" class=\"{}\" role=\"img\" aria-label=\"95 % interval\"><rect x=\"{from:.1}\" y=\"1\" width=\"{:.1}\" height=\"12\" fill=\"#8884\"/><line x1=\"60\" y1=\"0\" x2=\"60\" y2=\"14\" stroke=\"#888\"/><line x1=\"{low:.1}\" y1=\"7\" x2=\"{high:.1}\" y2=\"7\" stroke=\"currentColor\" stroke-width=\"3\"/><circle cx=\"{:.1}\" cy=\"7\" r=\"3.5\" fill=\"currentColor\"/></svg>",
        class(row.verdict),
        to - from,
        x(ratio.estimate - 1.0)
    )
}
