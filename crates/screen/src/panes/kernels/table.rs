//! The table of kernels: as many columns as fit, the name last.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::Style,
    text::{Line, Span as Text},
    widgets::Widget,
};
use unicode_width::UnicodeWidthStr;

use super::{
    against::Against,
    bound::Bounds,
    count,
    source::{Source, StepUnit},
};
use crate::{
    layout::Hit,
    theme::Theme,
    ui::SortColumn,
    view::View,
    widgets::{ListLayout, cut, note},
};
use gpu_traces::{
    change::Change,
    show::{KERNEL_TIME, TableView, amount_text},
};
use llm_cost::Operator;
use llmprof_base::units::{grouped, millis, ratio_change, scaled, share_percent, three_digits};
use llmprof_event::kernels::{Extent, KernelRow, Kind, Measure, SortBy};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Share,
    Bar,
    Amount,
    Calls,
    Mean,
    Change,
    Min,
    Max,
    Launched,
    Grid,
    Block,
    Registers,
    Shared,
    Class,
    Operator,
}

/// From left to right, each with its width and its rank. The highest rank is dropped first.
const COLUMNS: [(Column, usize, u8); 15] = [
    (Column::Share, 8, 0),
    (Column::Bar, 11, 7),
    (Column::Amount, 11, 4),
    (Column::Calls, 11, 5),
    (Column::Mean, 10, 1),
    (Column::Change, 9, 2),
    (Column::Min, 10, 8),
    (Column::Max, 10, 8),
    (Column::Launched, 13, 6),
    (Column::Grid, 14, 9),
    (Column::Block, 9, 10),
    (Column::Registers, 6, 11),
    (Column::Shared, 10, 12),
    (Column::Class, 10, 3),
    (Column::Operator, 16, 6),
];

/// The minimum width of a name.
const MIN_NAME: usize = 14;
/// With a wider name, another column is worth more.
const GOOD_NAME: usize = 30;
const BAR: usize = 9;
/// Smaller changes are dimmed.
const SAME: f64 = 0.01;

/// The input of a table's cells.
struct Cells<'t, 'v> {
    view: &'t View<'v>,
    source: &'t Source<'v>,
    shown: &'t TableView,
    bounds: Bounds,
    against: Option<&'t Against>,
}

/// Draws as many rows as fit, including the selected one.
pub fn draw<'v>(
    view: &View<'v>,
    (source, against): (&Source<'v>, Option<&Against>),
    shown: &TableView,
    area: Rect,
    buf: &mut Buffer,
) {
    let theme = view.theme;
    if area.is_empty() {
        return;
    }
    let rows = &shown.table.rows;
    if rows.is_empty() {
        let text = match view.ui.kernels.filter.as_str() {
            "" => " no rows".to_owned(),
            filter => format!(" no row contains \"{filter}\"; press / to change it"),
        };
        return note(theme, &text).render(area, buf);
    }
    let cells = Cells { view, source, shown, bounds: Bounds::from_view(view, source), against };
    let columns = cells.fitting(area.width as usize);
    let taken: usize = columns.iter().map(|(_, width)| width).sum();
    let name_width = (area.width as usize).saturating_sub(taken + 3);
    // With only one line, a row replaces the heading.
    let titled = area.height > 1;
    if titled {
        let place = Rect { height: 1, ..area };
        heading(view, source, &columns, name_width).render(place, buf);
        sort_by_click(view, &columns, place);
    }
    let body = Rect { y: area.y + u16::from(titled), height: area.height - u16::from(titled), ..area };
    let list = ListLayout::new(body, rows.len(), view.ui.kernels.row);
    for (i, place) in list.rows() {
        cells.line(&rows[i], &columns, name_width).render(place, buf);
        view.on_click(place, Hit::Row(i));
        if i == list.selected {
            buf.set_style(place, theme.selected);
        }
    }
}

impl Cells<'_, '_> {
    /// The columns that the source has values for and that fit, with their widths.
    fn fitting(&self, width: usize) -> Vec<(Column, usize)> {
        let Cells { source, shown, bounds, .. } = self;
        let rows = &shown.table.rows;
        let any = |has: fn(&KernelRow) -> bool| rows.iter().any(has);
        let filled = |column: Column| match column {
            Column::Share | Column::Bar => shown.total.is_some_and(|total| total > 0.0),
            Column::Amount | Column::Calls => true,
            Column::Mean => any(|row| row.mean_ns.is_some()),
            Column::Change => self.against.is_some(),
            Column::Min => any(|row| row.min_ns.is_some()),
            Column::Max => any(|row| row.max_ns.is_some()),
            Column::Launched => {
                matches!(source.kind(), Kind::Ranges | Kind::Operators)
                    && any(|row| row.counters.get(KERNEL_TIME).is_some())
            }
            Column::Grid => any(|row| row.grid.is_some()),
            Column::Block => any(|row| row.block.is_some()),
            Column::Registers => any(|row| row.registers.is_some()),
            Column::Shared => any(|row| row.shared_bytes.is_some()),
            Column::Class => bounds.are_known(source, rows),
            Column::Operator => any(|row| row.operator.is_some_and(|operator| operator.name() != row.name)),
        };
        let mut columns: Vec<(Column, usize, u8)> =
            COLUMNS.into_iter().filter(|(column, ..)| filled(*column)).collect();
        let longest = rows.iter().map(|row| name(row).width()).max().unwrap_or(0);
        let wanted = longest.clamp(MIN_NAME, GOOD_NAME) + 3;
        while columns.iter().map(|(_, width, _)| width).sum::<usize>() + wanted > width {
            let Some(last) = columns.iter().map(|(.., rank)| *rank).max().filter(|rank| *rank > 0) else {
                break;
            };
            columns.retain(|(.., rank)| *rank != last);
        }
        columns.into_iter().map(|(column, width, _)| (column, width)).collect()
    }

    fn line<'a>(&self, row: &KernelRow, columns: &[(Column, usize)], name_width: usize) -> Line<'a> {
        let theme = self.view.theme;
        let mut spans = Vec::with_capacity(columns.len() + 1);
        for (column, width) in columns {
            let (text, style) = self.cell(row, *column);
            let text = text.map_or_else(|| theme.glyphs.none.to_owned(), |text| theme.glyphs.plain(&text));
            let text = cut(&text, width - if is_word(*column) { 2 } else { 1 }, theme.glyphs.ascii);
            spans.push(Text::styled(padded(&text, *width, is_word(*column)), style));
        }
        let name = cut(&theme.glyphs.plain(&name(row)), name_width, theme.glyphs.ascii);
        let style = theme.operator(row.operator.map(Operator::kind));
        spans
            .push(Text::styled(format!("  {name}"), if row.operator.is_some() { style } else { theme.text }));
        Line::from(spans)
    }

    fn cell(&self, row: &KernelRow, column: Column) -> (Option<String>, Style) {
        let Cells { view, source, shown, bounds, .. } = self;
        let theme = view.theme;
        let time = |ns: Option<f64>| ns.map(|ns| millis(ns / 1e6));
        let steps = source.steps().map(|(n, _)| n as f64);
        match column {
            Column::Share => (shown.share(row).map(share_percent), theme.number),
            Column::Bar => {
                // Scaled to the largest; the share next to it is relative to the total.
                let largest = shown.table.rows.iter().filter_map(|row| shown.share(row)).fold(0.0, f64::max);
                let bar = bar(theme, shown.share(row).unwrap_or(0.0) / largest.max(1e-9), BAR);
                (Some(bar), theme.operator(row.operator.map(Operator::kind)))
            }
            Column::Amount => {
                let amount = shown.table.amount(row).map(|amount| amount / steps.unwrap_or(1.0));
                (amount.map(|amount| amount_text(source.kind().measure(), amount)), theme.text)
            }
            Column::Calls => {
                let calls = match steps {
                    Some(steps) => per_step(row.calls as f64 / steps),
                    None => count(row.calls),
                };
                (Some(calls), theme.text)
            }
            Column::Mean => (time(row.mean_ns), theme.text),
            Column::Change => self.change(row),
            Column::Min => (time(row.min_ns.filter(|ns| *ns > 0.0)), theme.dim),
            Column::Max => (time(row.max_ns), theme.dim),
            Column::Launched => (time(row.counters.mean(KERNEL_TIME)), theme.text),
            Column::Grid => (row.grid.map(extent), theme.dim),
            Column::Block => (row.block.map(extent), theme.dim),
            Column::Registers => (row.registers.map(|n| n.to_string()), theme.dim),
            Column::Shared => (row.shared_bytes.map(|n| scaled(n as f64, "B")), theme.dim),
            Column::Class => match bounds.verdict(row) {
                Ok(verdict) => (Some(verdict.class.word().to_owned()), theme.class(verdict.class)),
                Err(_) => (None, theme.dim),
            },
            Column::Operator => {
                let style = theme.operator(row.operator.map(Operator::kind));
                (row.operator.map(|operator| operator.name().to_owned()), style)
            }
        }
    }

    /// The change of the row's time since the last snapshot.
    fn change(&self, row: &KernelRow) -> (Option<String>, Style) {
        let theme = self.view.theme;
        match self.against.and_then(|against| against.of_row(row)) {
            None => (None, theme.dim),
            Some(Change::New) => (Some("new".to_owned()), theme.accent),
            Some(Change::Gone) => (Some("gone".to_owned()), theme.dim),
            Some(Change::Time(ratio)) => {
                let style = match ratio - 1.0 {
                    change if change.abs() < SAME => theme.dim,
                    change if change > 0.0 => theme.bad,
                    _ => theme.good,
                };
                (Some(ratio_change(ratio)), style)
            }
        }
    }
}

impl Column {
    /// The order that its title selects.
    fn sorts(self) -> Option<SortBy> {
        match self {
            Column::Share | Column::Bar | Column::Amount => Some(SortBy::Time),
            Column::Calls => Some(SortBy::Calls),
            Column::Mean => Some(SortBy::Mean),
            _ => None,
        }
    }
}

/// Registers the titles that sort the table with the mouse.
fn sort_by_click(view: &View<'_>, columns: &[(Column, usize)], heading: Rect) {
    let mut x = heading.x;
    for (column, width) in columns {
        let place = Rect { x, width: *width as u16, ..heading }.intersection(heading);
        x = x.saturating_add(*width as u16);
        if let Some(by) = column.sorts() {
            view.on_click(place, Hit::Sort(SortColumn::Kernels(by)));
        }
    }
}

fn heading<'a>(
    view: &View<'_>,
    source: &Source<'_>,
    columns: &[(Column, usize)],
    name_width: usize,
) -> Line<'a> {
    let per = source.steps().map(|(_, unit)| unit);
    let title = |column: Column| match column {
        Column::Share => "share",
        Column::Bar => "",
        Column::Amount => match (per, source.kind().measure()) {
            (Some(StepUnit::Token), _) => "per token",
            (Some(StepUnit::Step | StepUnit::Prefill | StepUnit::Images), _) => "per step",
            (None, Measure::Time) => source.kind().time_noun(),
            (None, Measure::Bytes) => "bytes",
            (None, Measure::Flops) => "FLOPs",
        },
        Column::Calls => match per {
            Some(StepUnit::Token) => "calls/tok",
            Some(StepUnit::Step | StepUnit::Prefill | StepUnit::Images) => "calls/step",
            None => source.count_nouns().1,
        },
        Column::Mean => "mean",
        Column::Change => "change",
        Column::Min => "min",
        Column::Max => "max",
        Column::Launched => KERNEL_TIME,
        Column::Grid => "grid",
        Column::Block => "block",
        Column::Registers => "regs",
        Column::Shared => "shared",
        Column::Class => "class",
        Column::Operator => "operator",
    };
    let theme = view.theme;
    let mut spans = Vec::with_capacity(columns.len() + 1);
    for (column, width) in columns {
        let is_sorted = column.sorts() == Some(view.ui.kernels.sort.by);
        let text = padded(&theme.glyphs.plain(title(*column)), *width, is_word(*column));
        spans.push(Text::styled(text, if is_sorted { theme.accent } else { theme.dim }));
    }
    let noun = cut(&theme.glyphs.plain(source.noun()), name_width, theme.glyphs.ascii);
    spans.push(Text::styled(format!("  {noun}"), theme.dim));
    Line::from(spans)
}

fn is_word(column: Column) -> bool {
    matches!(column, Column::Bar | Column::Class | Column::Operator)
}

/// Numbers right-aligned, text left-aligned after two blanks; wide characters take two cells.
fn padded(text: &str, width: usize, word: bool) -> String {
    let blank = |n: usize| " ".repeat(n);
    match word {
        true => format!("  {text}{}", blank(width.saturating_sub(text.width() + 2))),
        false => format!("{}{text}", blank(width.saturating_sub(text.width()))),
    }
}

/// `28`, `0.25`: integers without decimals.
fn per_step(n: f64) -> String {
    match n {
        n if n > 0.0 && n < 0.0005 => "<0.001".into(),
        n if n >= 0.5 && n.fract().abs() < 0.005 => grouped(n.round() as i64),
        n => three_digits(n),
    }
}

/// `152×4`: trailing ones are left out.
pub fn extent([x, y, z]: Extent) -> String {
    match (y, z) {
        (1, 1) => x.to_string(),
        (_, 1) => format!("{x}×{y}"),
        _ => format!("{x}×{y}×{z}"),
    }
}

/// A share as a bar of `width` cells, in eighths of a cell unless ASCII.
pub fn bar(theme: &Theme, share: f64, width: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    if theme.glyphs.ascii {
        return "#".repeat((share * width as f64).round() as usize);
    }
    let eighths = (share * (width * 8) as f64).round() as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

/// The name of a row, with its range.
fn name(row: &KernelRow) -> String {
    match &row.range {
        Some(range) => format!("{} in {range}", row.name),
        None => row.name.clone(),
    }
}
