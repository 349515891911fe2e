//! A comparison: the sentence, a row per metric, both sides and their differences, reasons and advice.

use ratatui::{
    style::Style,
    text::{Line, Span as Text},
};

use super::{Names, change};
use crate::{
    theme::Theme,
    widgets::{cut, wrapped, wrapped_behind},
};
use llmprof_analysis::compare::{
    Comparison, Row, Verdict, describe_difference, describe_method, describe_side, row_cells,
    undecided_reasons, visible_rows,
};
use llmprof_base::units::{percent, three_digits};

/// The column with the interval drawn around zero.
const WHISKER: usize = 6;

/// Columns of the table at a width, with their own widths; name and verdict are always shown.
fn columns(width: u16) -> &'static [(usize, usize)] {
    match width {
        118.. => &[(1, 14), (2, 14), (3, 9), (4, 20), (5, 11), (WHISKER, 25)],
        96.. => &[(1, 14), (2, 14), (3, 9), (4, 20), (5, 11)],
        70.. => &[(1, 13), (2, 13), (3, 8), (4, 19)],
        46.. => &[(1, 12), (2, 12), (3, 8)],
        _ => &[(3, 8)],
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
        Text::styled(word, colour(theme, comparison.verdict)),
        Text::styled(sentence.next().unwrap_or_default(), theme.text),
    ])];
    lines.extend(sentence.map(|line| Line::styled(format!(" {line}"), theme.text)));
    lines.push(Line::default());
    let shown = columns(width);
    let scale = Scale::new(comparison);
    let name_width = if width >= 46 { 13 } else { 10 };
    let [side_a, side_b] = theme.sides();
    let heading = shown.iter().map(|(column, wide)| {
        let (name, style) = match column {
            1 => (names.labelled(0, wide - 1, theme.glyphs), side_a),
            2 => (names.labelled(1, wide - 1, theme.glyphs), side_b),
            3 => ("B vs A".to_owned(), theme.dim),
            4 => ("95 % CI".to_owned(), theme.dim),
            5 => ("in cycles".to_owned(), theme.dim),
            _ => {
                let range = format!("{:^wide$}", format!("-{0} to +{0}", percent(scale.reach * 100.0)));
                return Text::styled(plain(&range), theme.dim);
            }
        };
        Text::styled(format!("{:>wide$}", cut(&plain(&name), wide - 1, theme.glyphs.ascii)), style)
    });
    let blank = Text::raw(" ".repeat(name_width + 1));
    lines.push(Line::from(std::iter::once(blank).chain(heading).collect::<Vec<_>>()));
    let rows = visible_rows(comparison).filter(|row| unjudged.iter().all(|other| other.name != row.label));
    lines.extend(rows.map(|row| line(theme, row, shown, name_width, scale)));
    let known = unjudged.iter().filter(|row| row.a.is_some() || row.b.is_some());
    lines.extend(known.map(|row| unjudged_line(theme, row, shown, name_width)));
    lines
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
fn whisker<'a>(theme: &Theme, row: &Row, width: usize, scale: Scale) -> Vec<Text<'a>> {
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
            cell if cell == middle => (point, colour(theme, row.verdict)),
            cell if (low..=high).contains(&cell) => (line, colour(theme, row.verdict)),
            cell if cell == zero => (axis, theme.dim),
            _ => (" ", theme.dim),
        };
        spans.push(Text::styled(symbol, if is_same { style.patch(band) } else { style }));
    }
    spans
}

fn line<'a>(theme: &Theme, row: &Row, shown: &[(usize, usize)], name_width: usize, scale: Scale) -> Line<'a> {
    let cells = row_cells(row);
    let name = cut(&row.label, name_width - 1, theme.glyphs.ascii);
    let mut spans = vec![Text::styled(format!(" {name:<name_width$}"), theme.text)];
    for (column, wide) in shown {
        if *column == WHISKER {
            spans.extend(whisker(theme, row, *wide, scale));
            continue;
        }
        let style = if *column == 3 { theme.number } else { theme.text };
        let cell = theme.glyphs.plain(&cells[*column]);
        spans.push(Text::styled(format!("{cell:>wide$}"), style));
    }
    spans.push(Text::styled(format!("  {}", row.word), colour(theme, row.verdict)));
    Line::from(spans)
}

fn unjudged_line<'a>(
    theme: &Theme,
    row: &UnjudgedRow,
    shown: &[(usize, usize)],
    name_width: usize,
) -> Line<'a> {
    let none = || theme.glyphs.none.to_owned();
    let value = |value: Option<f64>| {
        value.map_or_else(none, |value| theme.glyphs.plain(&format!("{} {}", three_digits(value), row.unit)))
    };
    let cell = |column: usize| match column {
        1 => value(row.a),
        2 => value(row.b),
        3 => change(row.unit, row.a, row.b).map_or_else(none, |text| theme.glyphs.plain(&text)),
        _ => String::new(),
    };
    let cells: String = shown.iter().map(|(column, wide)| format!("{:>wide$}", cell(*column))).collect();
    let name = cut(row.name, name_width - 1, theme.glyphs.ascii);
    Line::styled(format!(" {name:<name_width$}{cells}"), theme.dim)
}

fn colour(theme: &Theme, verdict: Verdict) -> Style {
    match verdict {
        Verdict::Same => theme.dim,
        Verdict::Better => theme.good,
        Verdict::Worse => theme.bad,
        Verdict::Undecided => theme.warn,
    }
}
