//! Values over time as rows in a frame: a label, a line, the last value.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::{Modifier, Style},
    widgets::Widget,
};

use crate::{
    state::Series,
    tui::{
        view::View,
        widgets::{Lane, boxed, note, spans},
    },
};

pub const LABEL: u16 = 12;
pub const READOUT: u16 = 20;
/// A sample is taken to hold until the next; longer than this it is a gap.
pub const HOLD_NS: u64 = 2_500_000_000;

/// One value over time, as a pane lists it.
pub struct Row<'a> {
    pub label: &'static str,
    pub series: &'a Series,
    pub range: (f32, f32),
    pub style: Style,
    pub readout: Option<String>,
    /// Why there is no value.
    pub why: Option<String>,
    /// The user is looking at it.
    pub chosen: bool,
}

/// Draws the rows in a frame and gives what is left of it, `keep` lines at the least.
pub fn rows_box(
    view: &View<'_>,
    titles: (&str, &str),
    rows: Vec<Row<'_>>,
    keep: u16,
    area: Rect,
    buf: &mut Buffer,
) -> Rect {
    let theme = view.theme;
    let (from, to) = view.stretch();
    let span = to.since(from).as_secs_f64();
    let aside = format!("{} · last {span:.0} s, + - zoom", titles.1);
    let aside = if area.width as usize > titles.0.len() + aside.len() + 8 {
        aside
    } else {
        format!("last {span:.0} s")
    };
    let block = boxed(theme, titles.0, &aside);
    let inner = block.inner(area);
    block.render(area, buf);
    let (label, readout) =
        if inner.width >= 50 { (LABEL, READOUT) } else { (LABEL, inner.width.saturating_sub(LABEL)) };
    let keep = keep.min(inner.height / 3);
    let count = rows.len() as u16;
    let height = ((inner.height - keep) / count.max(1)).clamp(1, 6);
    let mut y = inner.y;
    for row in rows {
        if y + height > inner.bottom() {
            break;
        }
        let area = Rect { y, height, ..inner };
        y += height;
        let chart = Lane::plot_area(area, label, readout);
        let columns = row.series.held_columns(from, to, chart.width as usize * 2, HOLD_NS);
        let readout_text =
            row.readout.unwrap_or_else(|| if row.series.is_empty() { "n/a".into() } else { String::new() });
        let lane = Lane {
            label: &format!(" {}", row.label),
            readout: format!("{readout_text} "),
            columns: spans(&columns),
            range: row.range,
            style: row.style,
            theme,
            label_width: label,
            readout_width: readout,
        };
        lane.render(area, buf);
        if row.chosen {
            let at = Rect { width: label.min(area.width), height: 1, ..area };
            buf.set_style(at, theme.accent.add_modifier(Modifier::BOLD));
        }
        if let (true, Some(why)) = (row.series.is_empty(), row.why) {
            note(theme, &format!("n/a {dash} {why}", dash = theme.glyphs.none))
                .render(Rect { y: area.y, height: 1, ..chart }, buf);
        }
    }
    Rect { y, height: inner.bottom() - y, ..inner }
}
