//! The rows of the fleet: GPUs or nodes, with as many columns as fit.

use ratatui::{
    buffer::Buffer,
    layout::{Position, Rect},
    style::Style,
    text::Line,
    widgets::Widget,
};

use super::ui::{FleetUi, Node};
use crate::{theme::Theme, widgets::cut};
use llmprof_analysis::fleet::{Fleet, GpuVerdict, Measure, Order, State, faults, limit_now, since_text};
use llmprof_base::units::{percent_digits, three_digits};
use llmprof_event::{readings::Reading, reasons};

/// A column: its minimum width, its maximum width, and the width of the table from which on it is shown.
struct Column {
    title: &'static str,
    least: u16,
    most: u16,
    from: u16,
    right: bool,
    /// The order that its title selects.
    order: Option<Order>,
}

const fn column(title: &'static str, least: u16, most: u16, from: u16, right: bool) -> Column {
    Column { title, least, most, from, right, order: None }
}

impl Column {
    const fn sorts(self, order: Order) -> Column {
        Column { order: Some(order), ..self }
    }
}

const GPU: [Column; 15] = [
    column("", 1, 1, 0, false),
    column("node", 8, 24, 0, false).sorts(Order::Node),
    column("GPU", 3, 5, 0, false),
    column("model", 10, 20, 110, false),
    column("work", 8, 20, 170, false),
    column("lost", 5, 5, 40, true).sorts(Order::Lost),
    column("MHz", 5, 5, 50, true).sorts(Order::Clock),
    column("W", 4, 5, 56, true).sorts(Order::Power),
    column("°C", 3, 4, 56, true).sorts(Order::Temperature),
    column("use", 4, 5, 60, true).sorts(Order::Utilisation),
    column("tensor", 6, 7, 140, true),
    column("DRAM", 5, 6, 120, true),
    column("limit", 10, 26, 70, false),
    column("errors", 9, 34, 76, false),
    column("since", 8, 9, 64, true),
];

const NODES: [Column; 8] = [
    column("", 1, 1, 0, false),
    column("node", 10, 30, 0, false).sorts(Order::Node),
    column("GPUs", 4, 6, 0, true),
    column("lost", 6, 8, 30, true).sorts(Order::Lost),
    column("W", 7, 9, 44, true).sorts(Order::Power),
    column("max °C", 6, 8, 50, true).sorts(Order::Temperature),
    column("use", 5, 6, 56, true).sorts(Order::Utilisation),
    column("", 8, 100, 66, false),
];

/// The positions of the columns; those that do not fit are empty.
fn places(columns: &[Column], hidden: &[&str], area: Rect) -> Vec<Rect> {
    const GAP: u16 = 1;
    let shown = |c: &Column| area.width >= c.from && !hidden.contains(&c.title);
    let mut widths: Vec<u16> = columns.iter().map(|c| if shown(c) { c.least } else { 0 }).collect();
    let used = |widths: &[u16]| widths.iter().filter(|w| **w > 0).map(|w| w + GAP).sum::<u16>();
    let mut spare = area.width.saturating_sub(used(&widths));
    // Wider gaps first, then wider columns.
    let shown = widths.iter().filter(|width| **width > 0).count() as u16;
    let gap = GAP + u16::from(spare >= 2 * shown);
    spare = spare.saturating_sub((gap - GAP) * shown);
    while spare > 0 {
        let before = spare;
        for (width, column) in widths.iter_mut().zip(columns) {
            if spare > 0 && *width > 0 && *width < column.most {
                *width += 1;
                spare -= 1;
            }
        }
        if before == spare {
            break;
        }
    }
    let mut x = area.x;
    widths
        .into_iter()
        .map(|width| {
            let place = Rect { x, width: width.min(area.right().saturating_sub(x)), height: 1, ..area };
            x = (x + if width > 0 { width + gap } else { 0 }).min(area.right());
            place
        })
        .collect()
}

fn put(theme: &Theme, text: &str, style: Style, right: bool, place: Rect, buf: &mut Buffer) {
    if place.width == 0 {
        return;
    }
    let line = Line::styled(cut(&theme.glyphs.plain(text), place.width as usize, theme.glyphs.ascii), style);
    if right { line.right_aligned().render(place, buf) } else { line.render(place, buf) }
}

/// The columns in which no GPU has a value.
pub fn empty_columns(fleet: &Fleet) -> Vec<&'static str> {
    let gpus = &fleet.snapshot.gpus;
    let has = |reading| gpus.iter().any(|gpu| gpu.get(reading).is_some());
    let columns = [
        ("work", gpus.iter().any(|gpu| gpu.work.is_some())),
        ("tensor", has(Reading::Tensor)),
        ("DRAM", has(Reading::Dram)),
    ];
    columns.into_iter().filter(|(_, has)| !has).map(|(title, _)| title).collect()
}

/// The columns of the list, and their places.
fn columns(ui: &FleetUi, hidden: &[&str], area: Rect) -> impl Iterator<Item = (&'static Column, Rect)> {
    let (columns, hidden): (&'static [Column], _) = if ui.nodes { (&NODES, &[][..]) } else { (&GPU, hidden) };
    columns.iter().zip(places(columns, hidden, area))
}

/// The title of the sort column is highlighted.
pub fn heading(theme: &Theme, ui: &FleetUi, hidden: &[&str], area: Rect, buf: &mut Buffer) {
    for (column, place) in columns(ui, hidden, area) {
        let style = if column.order == Some(ui.order) { theme.accent } else { theme.dim };
        put(theme, column.title, style, column.right, place, buf);
    }
}

/// The order that the title at `position` selects.
pub fn order_at(ui: &FleetUi, hidden: &[&str], area: Rect, position: Position) -> Option<Order> {
    columns(ui, hidden, area).find(|(_, place)| place.contains(position))?.0.order
}

/// The sign and the colour of a state.
pub fn sign(theme: &Theme, row: &GpuVerdict) -> (&'static str, Style) {
    let glyphs = theme.glyphs;
    match row.state {
        State::Slow => (glyphs.dot, lost_style(theme, row.loss.map_or(0.0, |loss| loss.lost_pct))),
        State::Errors => (glyphs.dot, theme.bad),
        State::Silent => (glyphs.hollow_dot, theme.warn),
        State::Limited => (glyphs.dot, theme.power),
        State::Working => (glyphs.dot, theme.good),
        State::Unknown => (glyphs.hollow_dot, theme.text),
        State::Idle => (glyphs.hollow_dot, theme.dim),
    }
}

/// From a few percent to a third.
fn lost_style(theme: &Theme, pct: f64) -> Style {
    theme.heat[if pct >= 25.0 {
        4
    } else if pct >= 10.0 {
        3
    } else {
        2
    }]
}

pub fn draw_gpu(
    theme: &Theme,
    fleet: &Fleet,
    row: &GpuVerdict,
    hidden: &[&str],
    selected: bool,
    area: Rect,
    buf: &mut Buffer,
) {
    let gpu = fleet.gpu(row);
    if selected {
        buf.set_style(area, theme.selected);
    }
    let quiet = matches!(row.state, State::Idle | State::Silent);
    let base = if quiet { theme.dim } else { theme.text };
    let of = |style: Style| if selected { style.patch(theme.selected) } else { style };
    let none = theme.glyphs.none.to_owned();
    let number = |reading| gpu.get(reading).map_or_else(|| none.clone(), |value| format!("{value:.0}"));
    let share =
        |reading| gpu.get(reading).map_or_else(|| none.clone(), |pct| format!("{} %", percent_digits(pct)));
    let (dot, dot_style) = sign(theme, row);
    let slow = row.loss.map(|loss| lost_style(theme, loss.lost_pct));
    let slow_sm = row.loss.is_some_and(|loss| loss.measure == Measure::SmClock);
    let limit = gpu.sample.reasons.map(reasons::faults).and_then(|bits| reasons::active(bits).next());
    let limit_style = match (slow, limit) {
        (Some(slow), _) if !slow_sm => slow,
        (_, limit) => limit.map_or(theme.dim, |reason| theme.reason(reason.bit())),
    };
    let is_hot = limit.is_some_and(|reason| reason.bit() & reasons::THERMAL != 0);
    let matters = row.faults.iter().any(|fault| fault.matters());
    let lost = row.loss.map_or_else(|| none.clone(), |loss| format!("{} %", percent_digits(loss.lost_pct)));
    let cells: [(String, Style); 15] = [
        (dot.to_owned(), dot_style),
        (gpu.node.clone(), base),
        (gpu.index(), if quiet { theme.dim } else { theme.number }),
        (gpu.short_model().to_owned(), theme.dim),
        (gpu.work.clone().unwrap_or_else(|| none.clone()), theme.dim),
        (lost, slow.unwrap_or(theme.dim)),
        (number(Reading::SmClock), if slow_sm { slow.unwrap_or(base) } else { base }),
        (number(Reading::Power), base),
        (number(Reading::Temp), if is_hot { theme.temperature } else { base }),
        (share(Reading::GpuUtil), base),
        (share(Reading::Tensor), base),
        (share(Reading::Dram), base),
        (limit_now(gpu, row), limit_style),
        (faults(row), if matters { theme.bad } else { theme.dim }),
        (since_text(fleet, row), if row.state == State::Silent { theme.warn } else { base }),
    ];
    for (place, ((text, style), column)) in places(&GPU, hidden, area).into_iter().zip(cells.iter().zip(&GPU))
    {
        put(theme, text, of(*style), column.right, place, buf);
    }
}

pub fn draw_node(
    theme: &Theme,
    fleet: &Fleet,
    node: &Node<'_>,
    selected: bool,
    area: Rect,
    buf: &mut Buffer,
) {
    if selected {
        buf.set_style(area, theme.selected);
    }
    let of = |style: Style| if selected { style.patch(theme.selected) } else { style };
    let none = theme.glyphs.none.to_owned();
    let worst = node.rows.iter().map(|i| &fleet.rows[*i]).min_by(|a, b| {
        let lost = |row: &GpuVerdict| row.loss.map_or(0.0, |loss| loss.lost_pct);
        a.state.cmp(&b.state).then(lost(b).total_cmp(&lost(a)))
    });
    let (dot, dot_style) = worst.map_or((theme.glyphs.hollow_dot, theme.dim), |row| sign(theme, row));
    let lost = if node.lost_gpus > 0.0 { format!("{:.2}", node.lost_gpus) } else { none.clone() };
    let lost_style = if node.lost_gpus > 0.0 { lost_style(theme, 100.0 * node.lost_gpus) } else { theme.dim };
    let rounded = |value: Option<f64>| value.map_or_else(|| none.clone(), |value| format!("{value:.0}"));
    let cells: [(String, Style); 8] = [
        (dot.to_owned(), dot_style),
        (node.name.to_owned(), theme.text),
        (node.rows.len().to_string(), theme.number),
        (lost, lost_style),
        (node.power_w.map_or_else(|| none.clone(), three_digits), theme.text),
        (rounded(node.temp_max_c), theme.text),
        (node.util_pct.map_or_else(|| none.clone(), |pct| format!("{} %", percent_digits(pct))), theme.text),
        (String::new(), theme.dim),
    ];
    let all = places(&NODES, &[], area);
    for (place, ((text, style), column)) in all.iter().zip(cells.iter().zip(&NODES)) {
        put(theme, text, of(*style), column.right, *place, buf);
    }
    let dots = all[all.len() - 1];
    for (i, x) in node.rows.iter().zip((dots.left()..dots.right()).step_by(2)) {
        let (sign, style) = sign(theme, &fleet.rows[*i]);
        buf.set_stringn(x, dots.y, sign, 1, of(style));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_sort_where_they_are_drawn() {
        let area = Rect::new(3, 5, 200, 1);
        for (nodes, wanted) in [(false, "node lost MHz W °C use"), (true, "node lost W max °C use")] {
            let ui = FleetUi { nodes, ..FleetUi::default() };
            let titles = columns(&ui, &[], area).filter(|(_, place)| {
                let middle = Position::new(place.x + place.width / 2, 5);
                place.width > 0 && order_at(&ui, &[], area, middle).is_some()
            });
            let titles: Vec<&str> = titles.map(|(column, _)| column.title).collect();
            assert_eq!(titles.join(" "), wanted);
            assert_eq!(order_at(&ui, &[], area, Position::new(10, 6)), None, "a row");
        }
    }

    #[test]
    fn columns_fit_and_do_not_overlap() {
        for width in 20..=260 {
            for columns in [&GPU[..], &NODES[..]] {
                let all = places(columns, &[], Rect::new(3, 0, width, 1));
                let mut x = 3;
                for place in all.iter().filter(|place| place.width > 0) {
                    assert!(place.x >= x && place.right() <= 3 + width, "{width}: {all:?}");
                    x = place.right();
                }
            }
        }
    }
}
