//! Values over time as rows in a box: a label, a line, the last value.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::{Modifier, Style},
    text::Line,
    widgets::Widget,
};

use crate::{
    state::Series,
    tui::{
        view::View,
        widgets::{Lane, draw_box, note, spans},
    },
};

pub const LABEL: u16 = 12;
pub const READOUT: u16 = 20;
/// A sample is valid until the next one, but no longer than this.
pub const HOLD_NS: u64 = 2_500_000_000;

/// One value over time.
pub struct Row<'a> {
    pub label: &'static str,
    pub series: &'a Series,
    pub range: (f32, f32),
    pub style: Style,
    pub readout: Option<String>,
    /// Why there is no value.
    pub reason: Option<String>,
    pub selected: bool,
}

/// Marks the columns of `area` in which kernels were recorded, in its first row, over the time range; returns the rest. All
/// of it where there were none, or where it has no row to spare.
pub fn mark_recorded(view: &View<'_>, area: Rect, buf: &mut Buffer) -> Rect {
    let (from, to) = view.time_range();
    if area.height < 2 || !view.state.kernels.recording.overlaps(from, to) {
        return area;
    }
    let theme = view.theme;
    let recorded = view.state.kernels.recording.columns(from, to, area.width as usize);
    for (x, _) in (area.left()..area.right()).zip(recorded).filter(|(_, recorded)| *recorded) {
        buf[(x, area.y)].set_symbol(theme.glyphs.active).set_style(theme.accent);
    }
    Rect { y: area.y + 1, height: area.height - 1, ..area }
}

/// Draws the rows in a box and returns the rest of it, at least `keep` lines.
pub fn rows_box(
    view: &View<'_>,
    (title, aside): (&str, &str),
    rows: Vec<Row<'_>>,
    keep: u16,
    area: Rect,
    buf: &mut Buffer,
) -> Rect {
    let theme = view.theme;
    let (from, to) = view.time_range();
    let span = to.since(from).as_secs_f64();
    let long = format!("{aside} · last {span:.0} s, + - zoom");
    let fits = area.width as usize > title.len() + long.len() + 8;
    let aside = if fits { long } else { format!("last {span:.0} s") };
    let inner = draw_box(theme, (title, &aside), area, buf);
    let (label, readout) =
        if inner.width >= 50 { (LABEL, READOUT) } else { (LABEL, inner.width.saturating_sub(LABEL)) };
    let keep = keep.min(inner.height / 3);
    let mut y = inner.y;
    if view.state.kernels.recording.overlaps(from, to) && inner.height > keep + rows.len() as u16 {
        let row = Lane::plot_area(Rect { height: 2, ..inner }, label, readout);
        mark_recorded(view, row, buf);
        buf.set_stringn(inner.x + 1, y, "kernels", label.saturating_sub(2) as usize, theme.dim);
        let place = Rect { x: row.right(), y, width: inner.right() - row.right(), height: 1 };
        Line::styled("recorded ", theme.accent).right_aligned().render(place, buf);
        y += 1;
    }
    let height = ((inner.bottom() - y - keep) / (rows.len() as u16).max(1)).clamp(1, 6);
    for row in rows {
        if y + height > inner.bottom() {
            break;
        }
        let area = Rect { y, height, ..inner };
        y += height;
        let chart = Lane::plot_area(area, label, readout);
        let columns = row.series.held_columns(from, to, chart.width as usize * 2, HOLD_NS);
        let missing = || if row.series.is_empty() { "n/a".into() } else { String::new() };
        let lane = Lane {
            label: &format!(" {}", row.label),
            readout: format!("{} ", row.readout.unwrap_or_else(missing)),
            columns: spans(&columns),
            range: row.range,
            style: row.style,
            theme,
            label_width: label,
            readout_width: readout,
        };
        lane.render(area, buf);
        if row.selected {
            let label = Rect { width: label.min(area.width), height: 1, ..area };
            buf.set_style(label, theme.accent.add_modifier(Modifier::BOLD));
        }
        if let (true, Some(reason)) = (row.series.is_empty(), row.reason) {
            note(theme, &format!("n/a {dash} {reason}", dash = theme.glyphs.none))
                .render(Rect { height: 1, ..chart }, buf);
        }
    }
    Rect { y, height: inner.bottom() - y, ..inner }
}
