//! The streams of a server over time: a row for each, with its requests one after another.

use ratatui::{buffer::Buffer, layout::Rect, style::Style, text::Line, widgets::Widget};

use super::lanes::{margins, mark_cursor};
use crate::{
    base::units::{grouped, millis, three_digits},
    event::Stamp,
    state::TokenMark,
    tui::{
        theme::Theme,
        view::View,
        widgets::{Lane, TimeAxis, cut, heat_of},
    },
};

/// A request on its row.
struct Bar {
    stream: u32,
    start: Stamp,
    first: Option<Stamp>,
    end: Stamp,
    failed: bool,
    measured: bool,
}

/// The streams that had a request in the time range of the view.
pub struct Streams {
    bars: Vec<Bar>,
    count: usize,
}

/// What stands for the time to the first token, and for that of the tokens.
pub fn glyphs(theme: &Theme) -> (&'static str, &'static str) {
    if theme.glyphs.ascii { (".", "#") } else { ("░", "█") }
}

/// A cell of a row of gaps; the greatest of several is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Cell {
    Idle,
    /// Between the start of a request and its first token.
    ToFirst,
    /// A gap between tokens that has this heat.
    Gap(usize),
}

impl Streams {
    pub fn of(view: &View<'_>) -> Streams {
        let (from, to) = match view.range {
            Some(range) => range,
            None => view.stream_range(view.cursor()),
        };
        let server = &view.state.server;
        let ended = server.lanes.iter().map(|lane| Bar {
            stream: lane.stream,
            start: lane.start,
            first: lane.first,
            end: lane.end,
            failed: lane.failed,
            measured: lane.measured,
        });
        let running = view.state.active.iter().map(|active| Bar {
            stream: active.stream,
            start: active.start(),
            first: active.first_token,
            end: view.state.now,
            failed: false,
            measured: active.started.is_measured(),
        });
        let bars: Vec<Bar> = ended.chain(running).filter(|bar| bar.end >= from && bar.start <= to).collect();
        let count = bars.iter().map(|bar| bar.stream as usize + 1).max().unwrap_or(0);
        Streams { bars, count }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// `16 streams, last 2 s`.
    pub fn title(&self, view: &View<'_>) -> String {
        let (from, to) = view.time_range();
        let span = three_digits(to.since(from).as_secs_f64());
        let when = match view.state.now.0.saturating_sub(to.0) < 1_000_000 {
            true => format!("last {span} s"),
            false => format!("{span} s up to {:.1} s", to.secs()),
        };
        match self.count {
            1 => format!("1 stream, {when}"),
            n => format!("{} streams, {when}", grouped(n as i64)),
        }
    }

    /// How many streams share a row of `rows`.
    fn per_row(&self, rows: u16) -> usize {
        self.count.div_ceil(usize::from(rows).max(1)).max(1)
    }

    /// Labels, rows and the time below them; returns the cells.
    fn frame(&self, view: &View<'_>, area: Rect, buf: &mut Buffer) -> Rect {
        let (label, readout) = margins(area.width);
        let rows = area.height.saturating_sub(1).max(1);
        let cells =
            Lane::plot_area(Rect { height: rows.min(self.count.max(1) as u16), ..area }, label, readout);
        let per_row = self.per_row(cells.height);
        for (row, y) in (cells.y..cells.bottom()).enumerate() {
            let (first, last) = (row * per_row + 1, ((row + 1) * per_row).min(self.count));
            let text = match (first, last) {
                (first, last) if first < last => format!("{first}-{last}"),
                (first, last) if first == last => first.to_string(),
                _ => continue,
            };
            buf.set_stringn(area.x + 1, y, text, label.saturating_sub(2) as usize, view.theme.dim);
        }
        if area.height > cells.height {
            let axis = Rect { y: cells.bottom(), height: 1, ..cells };
            view.time_axis().draw(buf, axis, view.theme);
        }
        cells
    }

    /// Requests, each from its start to its end; the readout has the last TTFT of a row.
    pub fn draw_requests(&self, view: &View<'_>, area: Rect, buf: &mut Buffer) {
        let theme = view.theme;
        let cells = self.frame(view, area, buf);
        let (axis, per_row) = (view.time_axis(), self.per_row(cells.height));
        let (to_first, tokens) = glyphs(theme);
        let mut latest: Vec<Option<(String, Style)>> = vec![None; cells.height as usize];
        for bar in &self.bars {
            let row = bar.stream as usize / per_row;
            let Some(told) = latest.get_mut(row) else { continue };
            let y = cells.y + row as u16;
            let first = bar.first.unwrap_or(bar.end);
            let [a, b, c] = [bar.start, first, bar.end].map(|t| column(&axis, t, cells.width));
            // A request begins with at least one cell of it.
            let b = b.max(a + u16::from(bar.start >= axis.from));
            for x in a..=c.min(cells.width.saturating_sub(1)) {
                let (symbol, style) = match x {
                    _ if bar.failed => (tokens, theme.bad),
                    x if x < b => (to_first, theme.prefill),
                    _ => (tokens, if bar.measured { theme.decode } else { theme.dim }),
                };
                buf[(cells.x + x, y)].set_symbol(symbol).set_style(style);
            }
            *told = Some(match (bar.failed, bar.first) {
                (true, _) => ("failed".to_owned(), theme.bad),
                (false, Some(first)) => {
                    (format!("TTFT {}", millis(first.since(bar.start).as_secs_f64() * 1e3)), theme.dim)
                }
                (false, None) => ("waits".to_owned(), theme.prefill),
            });
        }
        let told = latest.into_iter().map(|told| told.filter(|_| per_row == 1));
        draw_readouts(view, told, cells, area, buf);
        mark_cursor(view, cells, buf);
    }

    /// Every gap between tokens over the time that it took, by how late the token was. `selected` is marked.
    pub fn draw_gaps(
        &self,
        view: &View<'_>,
        tokens: &[&TokenMark],
        selected: Option<&TokenMark>,
        median_ms: f64,
        area: Rect,
        buf: &mut Buffer,
    ) {
        let theme = view.theme;
        let frame = self.frame(view, area, buf);
        let (axis, per_row) = (view.time_axis(), self.per_row(frame.height));
        let width = frame.width as usize;
        let mut rows = vec![vec![Cell::Idle; width]; frame.height as usize];
        let mut slowest = vec![0_u64; frame.height as usize];
        let mut fill = |row: usize, from: Stamp, to: Stamp, cell: Cell| {
            let Some(cells) = rows.get_mut(row) else { return };
            let (a, b) = (column(&axis, from, frame.width) as usize, column(&axis, to, frame.width) as usize);
            cells[a.min(width)..(b + 1).min(width)].iter_mut().for_each(|old| *old = cell.max(*old));
        };
        for bar in &self.bars {
            fill(bar.stream as usize / per_row, bar.start, bar.first.unwrap_or(bar.end), Cell::ToFirst);
        }
        for mark in tokens.iter().filter(|mark| !mark.first && mark.t >= axis.from && mark.t <= axis.to) {
            let row = mark.stream as usize / per_row;
            let heat = heat_of(mark.gap_ns as f64 / 1e6, median_ms);
            fill(row, Stamp(mark.t.0.saturating_sub(mark.gap_ns)), mark.t, Cell::Gap(heat));
            if let Some(slowest) = slowest.get_mut(row) {
                *slowest = mark.gap_ns.max(*slowest);
            }
        }
        let heights =
            if theme.glyphs.ascii { ["_", ".", "+", "*", "#"] } else { ["▂", "▃", "▅", "▆", "█"] };
        for (row, cells) in rows.iter().enumerate() {
            for (x, cell) in cells.iter().enumerate() {
                let (symbol, style) = match cell {
                    Cell::Idle => continue,
                    Cell::ToFirst => (glyphs(theme).0, theme.prefill),
                    Cell::Gap(heat) => (heights[*heat], theme.heat[*heat]),
                };
                buf[(frame.x + x as u16, frame.y + row as u16)].set_symbol(symbol).set_style(style);
            }
        }
        if let Some(mark) = selected.filter(|mark| mark.t >= axis.from && mark.t <= axis.to) {
            let row = mark.stream as usize / per_row;
            let x = column(&axis, mark.t, frame.width).min(frame.width.saturating_sub(1));
            if row < rows.len() && frame.width > 0 {
                buf.set_style(
                    Rect { x: frame.x + x, y: frame.y + row as u16, width: 1, height: 1 },
                    theme.selected,
                );
            }
        }
        let told = slowest.into_iter().map(|ns| {
            let ms = ns as f64 / 1e6;
            let heat = heat_of(ms, median_ms);
            (ns > 0)
                .then(|| (format!("max {}", millis(ms)), if heat > 1 { theme.heat[heat] } else { theme.dim }))
        });
        draw_readouts(view, told, frame, area, buf);
        mark_cursor(view, frame, buf);
    }
}

/// The column of a moment; those before the range are in the first.
fn column(axis: &TimeAxis, t: Stamp, width: u16) -> u16 {
    let span = axis.to.since(axis.from).as_nanos().max(1) as f64;
    (t.since(axis.from).as_nanos() as f64 / span * f64::from(width)).min(f64::from(width)) as u16
}

/// A text right of each row.
fn draw_readouts(
    view: &View<'_>,
    rows: impl Iterator<Item = Option<(String, Style)>>,
    cells: Rect,
    area: Rect,
    buf: &mut Buffer,
) {
    let glyphs = view.theme.glyphs;
    for (y, told) in (cells.y..cells.bottom()).zip(rows) {
        let Some((text, style)) = told else { continue };
        let place =
            Rect { x: cells.right(), y, width: area.right().saturating_sub(cells.right()), height: 1 };
        let text = cut(&format!("{} ", glyphs.plain(&text)), place.width as usize, glyphs.ascii);
        Line::styled(text, style).right_aligned().render(place, buf);
    }
}
