//! Two snapshots side by side, without a verdict.

use ratatui::{
    style::Style,
    text::{Line, Span as Text},
};

use super::{ROWS, change};
use crate::{
    theme::Theme,
    widgets::{note, wrapped},
};
use llmprof_base::units::{grouped, three_digits};
use llmprof_record::state::Snapshot;

/// The numbers of both, and the differences.
pub fn table<'a>(theme: &Theme, a: &Snapshot, b: &Snapshot, width: u16) -> Vec<Line<'a>> {
    let unit_width = if width >= 50 { 6 } else { 0 };
    let name_width = if width >= 50 { 13 } else { 9 };
    let wide = (usize::from(width).saturating_sub(name_width + unit_width + 2) / 3).clamp(6, 20);
    let cut = |name: &str| name.chars().take(wide - 1).collect::<String>();
    let row = |name: &str, unit: &str, cells: [String; 3], styles: [Style; 3]| {
        let unit = theme.glyphs.plain(unit).chars().take(unit_width).collect::<String>();
        let mut line = vec![
            Text::styled(
                format!(" {:<name_width$}", name.chars().take(name_width).collect::<String>()),
                theme.text,
            ),
            Text::styled(format!("{unit:<unit_width$}"), theme.dim),
        ];
        line.extend(
            cells.into_iter().zip(styles).map(|(cell, style)| Text::styled(format!("{cell:>wide$}"), style)),
        );
        Line::from(line)
    };
    let heading = [cut(&a.name), cut(&b.name), cut(if wide > 11 { "difference" } else { "diff" })];
    let [side_a, side_b] = theme.sides();
    let mut lines = vec![row("", "", heading, [side_a, side_b, theme.dim])];
    let cell = |v: Option<f64>| v.map_or_else(|| theme.glyphs.none.to_owned(), three_digits);
    for (name, unit, value) in ROWS {
        let (x, y) = (value(a), value(b));
        if x.is_none() && y.is_none() {
            continue;
        }
        let difference = match change(unit, x, y) {
            Some(text) if wide < 9 => theme.glyphs.plain(&text).replace(' ', ""),
            Some(text) => theme.glyphs.plain(&text),
            None => theme.glyphs.none.to_owned(),
        };
        lines.push(row(name, unit, [cell(x), cell(y), difference], [theme.text, theme.text, theme.number]));
    }
    let counts = |snapshot: &Snapshot| {
        let metrics = &snapshot.metrics;
        [
            three_digits(metrics.to_s - metrics.from_s),
            grouped(metrics.requests as i64),
            grouped(metrics.output_tokens as i64),
        ]
    };
    let titles = [("duration", "s"), ("requests", "n"), ("tokens", "n")];
    for ((name, unit), (of_a, of_b)) in titles.into_iter().zip(counts(a).into_iter().zip(counts(b))) {
        lines.push(row(name, unit, [of_a, of_b, String::new()], [theme.dim; 3]));
    }
    lines
}

/// The workload of each.
pub fn notes<'a>(theme: &Theme, a: &Snapshot, b: &Snapshot, width: u16) -> Vec<Vec<Line<'a>>> {
    let of = |(side, snapshot): (&str, &Snapshot)| {
        let overrides =
            if snapshot.overrides.is_empty() { "no overrides".into() } else { snapshot.overrides.join(" ") };
        let text = format!("{side} {}: {}, {overrides}", snapshot.name, snapshot.model);
        let lines = wrapped(&theme.glyphs.plain(&text), (width as usize).saturating_sub(2));
        lines.iter().map(|line| note(theme, &format!(" {line}"))).collect()
    };
    ["A", "B"].into_iter().zip([a, b]).map(of).collect()
}
