//! Values over time as rows in a box: a label, a line, the last value.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::{Modifier, Style},
    text::Line,
    widgets::Widget,
};

use crate::{
    layout::Hit,
    view::View,
    widgets::{Lane, before_now, draw_box, draw_cursor, note, spans},
};
use llmprof_event::reasons;
use llmprof_record::state::{Bucket, Series};

pub const LABEL: u16 = 12;
pub const READOUT: u16 = 20;
/// A sample is valid until the next one, but no longer than this.
pub const HOLD_NS: u64 = 2_500_000_000;

/// One value over time.
pub struct ChartLane<'a> {
    pub label: &'static str,
    pub series: &'a Series,
    pub range: (f32, f32),
    pub style: Style,
    /// The line across the chart.
    pub limit: Option<f32>,
    /// Whether the colour warns near its limit.
    pub warns: bool,
    pub readout: Option<String>,
    /// The format of its minimum and maximum.
    pub extreme: fn(f64) -> String,
    /// Why there is no value.
    pub reason: Option<String>,
    pub selected: bool,
    /// Whether one line is enough if it has been 0 all the time.
    pub collapses: bool,
}

/// Marks the columns of `area` in which kernels were recorded, in its first row, over the time range; returns the rest.
/// The rest is the whole area if there were none, or if there is no spare row.
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
    rows: Vec<ChartLane<'_>>,
    keep: u16,
    area: Rect,
    buf: &mut Buffer,
) -> Rect {
    let theme = view.theme;
    let (from, to) = view.time_range();
    let span = to.since(from).as_secs_f64();
    let shown = match view.cursor() {
        Some(cursor) => format!("at {}", before_now(view.state.now, cursor)),
        None => format!("last {span:.0} s"),
    };
    let long = format!("{aside} · {shown}, + - zoom");
    let fits = area.width as usize > title.len() + long.len() + 8;
    let aside = if fits { long } else { shown };
    let inner = draw_box(theme, (title, &aside), area, buf);
    let keep = keep.min(inner.height / 3);
    let mut rest = inner;
    if inner.height > keep + rows.len() as u16 {
        rest = recorded_row(view, inner, buf);
    }
    let rows_area = Rect { height: rest.height.saturating_sub(keep), ..rest };
    let used = draw_rows(view, rows, rows_area, buf);
    let (label, readout) = margins(inner.width);
    mark_cursor(
        view,
        Lane::plot_area(Rect { height: rest.y + used - inner.y, ..inner }, label, readout),
        buf,
    );
    Rect { y: rest.y + used, height: rest.height - used, ..rest }
}

/// Draws a row with the time in which kernels were recorded at the top of `area`; returns the rest, which is the whole
/// area if there was none.
pub fn recorded_row(view: &View<'_>, area: Rect, buf: &mut Buffer) -> Rect {
    let theme = view.theme;
    let (label, readout) = margins(area.width);
    let row = Lane::plot_area(area, label, readout);
    let rest = mark_recorded(view, row, buf);
    if rest.y > row.y {
        buf.set_stringn(area.x + 1, area.y, "kernels", label.saturating_sub(2) as usize, theme.dim);
        let place = Rect { x: row.right(), width: area.right() - row.right(), height: 1, ..area };
        Line::styled("recorded ", theme.accent).right_aligned().render(place, buf);
    }
    Rect { y: rest.y, height: rest.height, ..area }
}

/// Draws the cursor through the charts in `cells`, and registers them with the mouse.
pub fn mark_cursor(view: &View<'_>, cells: Rect, buf: &mut Buffer) {
    let axis = view.time_axis();
    view.on_click(cells, Hit::Time(axis));
    if let Some(column) = axis.cursor_column(cells.width) {
        draw_cursor(buf, cells, column, view.theme);
    }
}

/// Widths of label and readout.
pub fn margins(width: u16) -> (u16, u16) {
    if width >= 50 { (LABEL, READOUT) } else { (LABEL, width.saturating_sub(LABEL)) }
}

/// Draws the rows below each other, equally high; returns the height used.
pub fn draw_rows(view: &View<'_>, rows: Vec<ChartLane<'_>>, area: Rect, buf: &mut Buffer) -> u16 {
    let theme = view.theme;
    let (from, to) = view.time_range();
    let (label, readout) = margins(area.width);
    let is_flat = |row: &ChartLane<'_>| row.collapses && row.series.range().is_none_or(|(_, max)| max == 0.0);
    let flat = rows.iter().filter(|row| is_flat(row)).count() as u16;
    let height = (area.height.saturating_sub(flat) / (rows.len() as u16 - flat).max(1)).clamp(1, 12);
    let mut y = area.y;
    for row in rows {
        let height = if is_flat(&row) { 1 } else { height };
        if y + height > area.bottom() {
            break;
        }
        let area = Rect { y, height, ..area };
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
            ramp: row.limit.filter(|_| row.warns).map(|_| theme.load()),
            limit: row.limit,
            theme,
            label_width: label,
            readout_width: readout,
        };
        lane.render(area, buf);
        if height >= 4 && readout >= READOUT {
            let place = Rect { x: chart.right(), y: area.y + 1, width: readout - 1, height: height - 1 };
            draw_extremes(view, &columns, row.extreme, place, buf);
        }
        if row.selected {
            let label = Rect { width: label.min(area.width), height: 1, ..area };
            buf.set_style(label, theme.accent.add_modifier(Modifier::BOLD));
        }
        if let (true, Some(reason)) = (row.series.is_empty(), row.reason) {
            note(theme, &format!("n/a {dash} {reason}", dash = theme.glyphs.none))
                .render(Rect { height: 1, ..chart }, buf);
        }
    }
    y - area.y
}

/// The minimum, the median and the maximum on the screen, below each other.
fn draw_extremes(
    view: &View<'_>,
    columns: &[Option<Bucket>],
    text: fn(f64) -> String,
    area: Rect,
    buf: &mut Buffer,
) {
    let buckets = || columns.iter().flatten();
    let mut means: Vec<f32> = buckets().map(Bucket::mean).collect();
    if means.is_empty() {
        return;
    }
    let middle = means.len() / 2;
    let median = *means.select_nth_unstable_by(middle, f32::total_cmp).1;
    let min = buckets().map(|b| b.min).fold(f32::INFINITY, f32::min);
    let max = buckets().map(|b| b.max).fold(f32::NEG_INFINITY, f32::max);
    for ((name, value), y) in
        [("max", max), ("p50", median), ("min", min)].into_iter().zip(area.y..area.bottom())
    {
        let value = text(f64::from(value));
        let line = Line::styled(format!("{name} {value:>6} "), view.theme.dim).right_aligned();
        line.render(Rect { y, height: 1, ..area }, buf);
    }
}

/// A reason that was active, and its colour.
pub type ReasonLabel = (std::borrow::Cow<'static, str>, Style);

/// Draws a row at the bottom of `area` in which the throttled columns of `cells` have the colour of the reason. Returns the
/// reasons; without one, nothing is drawn.
pub fn reason_strip(view: &View<'_>, cells: Rect, area: Rect, buf: &mut Buffer) -> Vec<ReasonLabel> {
    let theme = view.theme;
    let (from, to) = view.time_range();
    let Some(gpu) = view.workload_gpu().filter(|_| area.height >= 4) else { return Vec::new() };
    let mut limits = Vec::new();
    let y = area.bottom() - 1;
    for (bit, series) in gpu.reasons.iter().filter(|(bit, _)| reasons::named(*bit).fault()) {
        let style = theme.reason(*bit);
        let columns = series.held_columns(from, to, cells.width as usize, HOLD_NS);
        let active = |part: &Option<Bucket>| part.is_some_and(|b| b.max > 0.0);
        for (x, _) in (cells.left()..cells.right()).zip(&columns).filter(|(_, part)| active(part)) {
            buf[(x, y)].set_symbol(if theme.glyphs.ascii { "#" } else { "▀" }).set_style(style);
        }
        if columns.iter().any(active) {
            limits.push((reasons::named(*bit).name(), style));
        }
    }
    if !limits.is_empty() {
        let label = Line::styled("limit ", theme.dim).right_aligned();
        label.render(Rect { y, height: 1, width: cells.x - area.x, ..area }, buf);
    }
    limits
}
