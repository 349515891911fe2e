//! A comparison as one self-contained HTML page: sentences, a table, the intervals as drawings.

use std::fmt::Write;

use super::{GatedComparison, text::notes_markdown};
use llmprof_analysis::compare::{Comparison, MetricComparison, Verdict, comparison_table, visible_rows};
use llmprof_base::markup::{escaped, html_from_markdown, html_page};

const STYLE: &str = "td,th{text-align:right}td:first-child,th:first-child{text-align:left}h1{font-size:1.3rem;margin-top:1.5rem}\
.better{color:var(--good)}.worse{color:var(--bad)}.undecided{color:var(--warn)}.same{color:var(--faint)}";

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Same => "same",
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Undecided => "undecided",
    }
}

/// All comparisons in one page.
pub fn html(comparisons: &[GatedComparison]) -> String {
    let mut body = String::new();
    comparisons.iter().for_each(|gated| section(&mut body, gated));
    html_page("llmprof-tui compare", STYLE, &body).trim_end().to_owned()
}

fn section(out: &mut String, gated: &GatedComparison) {
    let comparison = &gated.comparison;
    if let Some(label) = &gated.label {
        let _ = writeln!(out, "<h2>{}</h2>", escaped(label));
    }
    let _ = writeln!(
        out,
        "<h1><span class=\"{}\">{}</span> {}</h1>",
        class(comparison.verdict),
        comparison.word,
        escaped(&comparison.sentence)
    );
    let table = comparison_table(visible_rows(comparison));
    let heading: String =
        table.columns.iter().map(|column| format!("<th>{}</th>", column.heading())).collect();
    let _ = writeln!(out, "<table><tr>{heading}<th></th></tr>");
    for (row, cells) in visible_rows(comparison).zip(&table.rows) {
        let cell: String =
            cells[..6].iter().map(|cell| format!("<td>{}</td>", escaped(&cell.text()))).collect();
        let _ = writeln!(
            out,
            "<tr>{cell}<td class=\"{}\" title=\"{}\">{}</td><td>{}</td></tr>",
            class(row.verdict),
            escaped(row.reason.as_deref().unwrap_or_default()),
            row.word,
            bar(comparison, row)
        );
    }
    let _ = writeln!(out, "</table>\n{}", html_from_markdown(&notes_markdown(gated)));
}

/// The interval on a scale of ±10 %, with the margin behind it.
fn bar(comparison: &Comparison, row: &MetricComparison) -> String {
    const HALF: f64 = 0.1;
    let Some(ratio) = row.ratio else { return String::new() };
    let x = |share: f64| 60.0 + 58.0 * (share / HALF).clamp(-1.0, 1.0);
    let (low, high) = (x(ratio.low - 1.0), x(ratio.high - 1.0));
    let (from, to) = (x(-comparison.margin), x(comparison.margin));
    format!(
        "<svg width=\"120\" height=\"14\" class=\"{}\" role=\"img\" aria-label=\"95 % confidence interval\"><rect x=\"{from:.1}\" y=\"1\" width=\"{:.1}\" height=\"12\" fill=\"#8884\"/><line x1=\"60\" y1=\"0\" x2=\"60\" y2=\"14\" stroke=\"#888\"/><line x1=\"{low:.1}\" y1=\"7\" x2=\"{high:.1}\" y2=\"7\" stroke=\"currentColor\" stroke-width=\"3\"/><circle cx=\"{:.1}\" cy=\"7\" r=\"3.5\" fill=\"currentColor\"/></svg>",
        class(row.verdict),
        to - from,
        x(ratio.estimate - 1.0)
    )
}
