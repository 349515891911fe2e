//! A comparison: the sentence, a row per metric, both sides and their differences, reasons and advice.

use ratatui::{
    style::Style,
    text::{Line, Span as Text},
};

use super::{Names, change};
use crate::{
    theme::Theme,
    widgets::{TableLines, wrapped, wrapped_behind},
};
use llmprof_analysis::compare::{
    Comparison, MetricComparison, comparison_table, describe_difference, describe_method, describe_side,
    undecided_reasons, visible_rows,
};
use llmprof_base::{
    cells,
    table::Tone,
    units::{Unit, percent},
};

/// The width of the interval drawn around zero, and that from which on it is there.
const WHISKER: usize = 25;
const WITH_WHISKERS: u16 = 118;

/// Columns of the table at a width, with their own widths; name and verdict are always shown.
fn columns(width: u16) -> &'static [(&'static str, usize)] {
    match width {
        96.. => &[("a", 14), ("b", 14), ("change", 9), ("interval", 20), ("cycles", 11)],
        70.. => &[("a", 13), ("b", 13), ("change", 8), ("interval", 19)],
        46.. => &[("a", 12), ("b", 12), ("change", 8)],
        _ => &[("change", 8)],
    }
}

/// A number of both sides without a verdict.
pub struct UnjudgedRow {
    pub name: &'static str,
    pub unit: &'static str,
    pub a: Option<f64>,
    pub b: Option<f64>,
}

/// The sentence and the table.
pub fn numbers<'a>(
    theme: &Theme,
    comparison: &Comparison,
    unjudged: &[UnjudgedRow],
    names: &Names,
    width: u16,
) -> Vec<Line<'a>> {
    let plain = |text: &str| theme.glyphs.plain(text);
    let word = format!(" {}  ", comparison.word);
    let room = (width as usize).saturating_sub(1);
    let mut sentence = wrapped_behind(word.len(), &plain(&comparison.sentence), room).into_iter();
    let mut lines = vec![Line::from(vec![
        Text::styled(word, theme.tone(comparison.verdict.tone())),
        Text::styled(sentence.next().unwrap_or_default(), theme.text),
    ])];
    lines.extend(sentence.map(|line| Line::styled(format!(" {line}"), theme.text)));
    lines.push(Line::default());
    let scale = Scale::new(comparison);
    let has_whiskers = width >= WITH_WHISKERS;
    let judged = visible_rows(comparison).filter(|row| unjudged.iter().all(|other| other.name != row.label));
    let judged: Vec<&MetricComparison> = judged.collect();
    let table = table(theme, &judged, unjudged, names, width);
    let mut heading = table.heading();
    if has_whiskers {
        let range = format!("{:^WHISKER$}", format!("-{0} to +{0}", percent(scale.reach * 100.0)));
        heading.push(Text::styled(plain(&range), theme.dim));
    }
    let indented = |cells: Vec<Text<'a>>| [vec![Text::raw(" ")], cells].concat();
    lines.push(Line::from(indented(heading)));
    for row in 0..table.table.rows.len() {
        let mut line = indented(table.row(row));
        if let Some(row) = judged.get(row) {
            line.extend(has_whiskers.then(|| whisker(theme, row, WHISKER, scale)).into_iter().flatten());
            line.push(Text::styled(format!("  {}", row.word), theme.tone(row.verdict.tone())));
        }
        lines.push(Line::from(line));
    }
    lines
}

/// The rows with a verdict, then those without.
fn table<'t>(
    theme: &'t Theme,
    judged: &[&MetricComparison],
    unjudged: &[UnjudgedRow],
    names: &Names,
    width: u16,
) -> TableLines<'t> {
    let mut table = comparison_table(judged.iter().copied());
    for row in unjudged.iter().filter(|row| row.a.is_some() || row.b.is_some()) {
        let unit = Unit::Of(row.unit);
        let change = change(row.unit, row.a, row.b);
        let cells = cells![row.name, unit.cell(row.a), unit.cell(row.b), change, "", "", ""];
        table.push(cells.into_iter().map(|cell| cell.tone(Tone::Dim)));
    }
    let shown = columns(width);
    for (side, (key, width)) in shown.iter().filter(|(key, _)| ["a", "b"].contains(key)).enumerate() {
        table.rename(key, names.labelled(side, width - 1, theme.glyphs));
    }
    let name_width = if width >= 46 { 13 } else { 10 };
    let mut shown = Vec::from(shown);
    shown.insert(0, ("metric", name_width));
    TableLines::new(theme, table, shown).headed(["a", "b"].into_iter().zip(theme.sides()))
}

/// The full names of both sides, their differences, the advice, the sample sizes, why rows are undecided, and the
/// method.
pub fn notes<'a>(theme: &Theme, comparison: &Comparison, width: u16) -> Vec<Vec<Line<'a>>> {
    let mut notes: Vec<Vec<Line<'a>>> = Vec::new();
    let room = (width as usize).saturating_sub(4);
    let mut put = |prefix: &str, text: &str, styles: [Style; 2]| {
        let lines = wrapped(&theme.glyphs.plain(text), room).into_iter().enumerate();
        let line = |(i, line): (usize, String)| {
            let prefix = if i == 0 { theme.glyphs.plain(prefix) } else { String::new() };
            Line::from(vec![Text::styled(format!(" {prefix:<2}"), styles[0]), Text::styled(line, styles[1])])
        };
        notes.push(lines.map(line).collect());
    };
    let sides = [("A", &comparison.a), ("B", &comparison.b)];
    for ((letter, side), style) in sides.into_iter().zip(theme.sides()) {
        put(letter, &side.name, [style, theme.text]);
    }
    if comparison.differences.is_empty() {
        put("", "no difference in configuration, device or program", [theme.dim, theme.dim]);
    }
    for difference in &comparison.differences {
        let (kind, text) = describe_difference(difference);
        let style = if difference.blocks() { theme.warn } else { theme.text };
        put("≠", &format!("{text}  ({kind})"), [style, style]);
    }
    for advice in &comparison.advice {
        put("→", &format!("{advice}."), [theme.accent, theme.text]);
    }
    for ((letter, side), style) in sides.into_iter().zip(theme.sides()) {
        let trusted = if side.blocking_issues.is_empty() { theme.dim } else { theme.warn };
        put(letter, &format!("{}; {}", side.what, describe_side(side)), [style, trusted]);
    }
    for (labels, reason) in undecided_reasons(comparison) {
        put("", &format!("{labels}: {reason}."), [theme.dim, theme.dim]);
    }
    put("", &describe_method(comparison), [theme.dim, theme.dim]);
    notes
}

/// The scale of the whiskers.
#[derive(Clone, Copy)]
struct Scale {
    /// The change at both ends: the largest of all intervals, up to a limit.
    reach: f64,
    /// Changes within this margin count as none.
    margin: f64,
}

impl Scale {
    fn new(comparison: &Comparison) -> Scale {
        let ratios = comparison.rows.iter().filter_map(|row| row.ratio);
        let ends = ratios.flat_map(|ratio| [ratio.low, ratio.high]).map(|end| (end - 1.0).abs());
        let margin = comparison.margin;
        Scale { reach: ends.fold(3.0 * margin, f64::max).min(0.5), margin }
    }
}

/// An interval around zero: its ends, its middle, and the band of the margin.
fn whisker<'a>(theme: &Theme, row: &MetricComparison, width: usize, scale: Scale) -> Vec<Text<'a>> {
    let inside = width - 2;
    let place = |change: f64| {
        let share = (change / scale.reach).clamp(-1.0, 1.0) / 2.0 + 0.5;
        (share * (inside - 1) as f64).round() as usize
    };
    let (low, middle, high) = match row.ratio {
        Some(ratio) => (place(ratio.low - 1.0), place(ratio.estimate - 1.0), place(ratio.high - 1.0)),
        None => return vec![Text::raw(" ".repeat(width))],
    };
    let (zero, band) = (place(0.0), theme.tint(theme.dim));
    let [axis, line, point] = if theme.glyphs.ascii { ["|", "-", "o"] } else { ["│", "━", "●"] };
    let mut spans = vec![Text::raw("  ")];
    for cell in 0..inside {
        let is_same = (place(-scale.margin)..=place(scale.margin)).contains(&cell);
        let (symbol, style) = match cell {
            cell if cell == middle => (point, theme.tone(row.verdict.tone())),
            cell if (low..=high).contains(&cell) => (line, theme.tone(row.verdict.tone())),
            cell if cell == zero => (axis, theme.dim),
            _ => (" ", theme.dim),
        };
        spans.push(Text::styled(symbol, if is_same { style.patch(band) } else { style }));
    }
    spans
}
