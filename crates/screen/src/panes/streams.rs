//! The streams of a server over time: a row per stream, with its requests one after another.

use ratatui::{buffer::Buffer, layout::Rect, style::Style, text::Line, widgets::Widget};

use super::lanes::{margins, mark_cursor};
use crate::{
    theme::Theme,
    view::View,
    widgets::{Lane, TimeAxis, cut, draw_bar, heat_of},
};
use llmprof_base::units::{grouped, millis, three_digits};
use llmprof_event::Stamp;
use llmprof_record::state::TokenMark;

/// Maximum lines of a row of gaps.
const MOST_LINES: u16 = 3;
/// The height of a gap by its heat.
const EIGHTHS: [usize; 5] = [2, 3, 5, 6, 8];

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

/// The glyphs of the time to the first token, and of the tokens.
pub fn glyphs(theme: &Theme) -> (&'static str, &'static str) {
    if theme.glyphs.ascii { (".", "#") } else { ("░", "▄") }
}

/// A cell of a row of gaps; the largest of several gaps is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Cell {
    Idle,
    /// Between the start of a request and its first token.
    ToFirst,
    /// A gap between tokens with this heat.
    Gap(usize),
}

impl Streams {
    pub fn from_view(view: &View<'_>) -> Streams {
        let (from, to) = view.range.unwrap_or_else(|| view.stream_range(view.cursor()));
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

    /// The number of lines of the rows, at most `room`.
    pub fn lines(&self, room: u16) -> u16 {
        let rows = self.count.clamp(1, usize::from(room.max(1))) as u16;
        rows * (room / rows).clamp(1, MOST_LINES)
    }

    /// Labels, and the time axis below the rows. A row has up to `most_lines` lines.
    fn frame(&self, view: &View<'_>, area: Rect, most_lines: u16, buf: &mut Buffer) -> Frame {
        let (label, readout) = margins(area.width);
        let room = area.height.saturating_sub(1).max(1);
        let per_row = self.count.div_ceil(usize::from(room)).max(1);
        let rows = self.count.div_ceil(per_row).max(1) as u16;
        let lines = (room / rows).clamp(1, most_lines);
        let cells = Lane::plot_area(Rect { height: rows * lines, ..area }, label, readout);
        let frame = Frame { cells, lines, per_row, axis: view.time_axis() };
        for row in 0..rows {
            let first = usize::from(row) * per_row + 1;
            let last = (first + per_row - 1).min(self.count);
            let text = if first < last { format!("{first}-{last}") } else { first.to_string() };
            let width = label.saturating_sub(2) as usize;
            buf.set_stringn(area.x + 1, frame.bottom_line(row.into()), text, width, view.theme.dim);
        }
        if area.height > cells.height {
            frame.axis.draw(buf, Rect { y: cells.bottom(), height: 1, ..cells }, view.theme);
        }
        frame
    }

    /// Requests, each from its start to its end; the readout has the last TTFT of a row.
    pub fn draw_requests(&self, view: &View<'_>, area: Rect, buf: &mut Buffer) {
        let theme = view.theme;
        let frame = self.frame(view, area, 1, buf);
        let (to_first, tokens) = glyphs(theme);
        let mut latest: Vec<Option<(String, Style)>> = vec![None; frame.rows()];
        for bar in &self.bars {
            let row = bar.stream as usize / frame.per_row;
            let Some(told) = latest.get_mut(row) else { continue };
            let first = bar.first.unwrap_or(bar.end);
            let [a, b, c] = [bar.start, first, bar.end].map(|t| frame.column(t));
            // A request begins with at least one cell.
            let b = b.max(a + u16::from(bar.start >= frame.axis.from));
            for x in a..=c.min(frame.cells.width.saturating_sub(1)) {
                let (symbol, style) = match x {
                    _ if bar.failed => (tokens, theme.bad),
                    x if x < b => (to_first, theme.prefill),
                    _ => (tokens, if bar.measured { theme.decode } else { theme.dim }),
                };
                buf[(frame.cells.x + x, frame.bottom_line(row))].set_symbol(symbol).set_style(style);
            }
            *told = Some(match (bar.failed, bar.first) {
                (true, _) => ("failed".to_owned(), theme.bad),
                (false, Some(first)) => {
                    (format!("TTFT {}", millis(first.since(bar.start).as_secs_f64() * 1e3)), theme.dim)
                }
                (false, None) => ("waits".to_owned(), theme.prefill),
            });
        }
        let told = latest.into_iter().map(|told| told.filter(|_| frame.per_row == 1));
        frame.draw_readouts(view, told, area, buf);
        mark_cursor(view, frame.cells, buf);
    }

    /// Every gap between tokens to scale, coloured by how late the token was. `selected` is marked.
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
        let frame = self.frame(view, area, MOST_LINES, buf);
        let width = frame.cells.width as usize;
        let mut rows = vec![vec![Cell::Idle; width]; frame.rows()];
        let mut slowest = vec![0_u64; rows.len()];
        let mut fill = |row: usize, from: Stamp, to: Stamp, cell: Cell| {
            let Some(cells) = rows.get_mut(row) else { return };
            let (a, b) = (frame.column(from) as usize, frame.column(to) as usize);
            cells[a.min(width)..(b + 1).min(width)].iter_mut().for_each(|old| *old = cell.max(*old));
        };
        for bar in &self.bars {
            fill(bar.stream as usize / frame.per_row, bar.start, bar.first.unwrap_or(bar.end), Cell::ToFirst);
        }
        let is_shown =
            |mark: &&&TokenMark| !mark.first && mark.t >= frame.axis.from && mark.t <= frame.axis.to;
        for mark in tokens.iter().filter(is_shown) {
            let row = mark.stream as usize / frame.per_row;
            let heat = heat_of(mark.gap_ns as f64 / 1e6, median_ms);
            fill(row, Stamp(mark.t.0.saturating_sub(mark.gap_ns)), mark.t, Cell::Gap(heat));
            if let Some(slowest) = slowest.get_mut(row) {
                *slowest = mark.gap_ns.max(*slowest);
            }
        }
        for (row, cells) in rows.iter().enumerate() {
            let y = frame.bottom_line(row) + 1 - frame.lines;
            for (x, cell) in cells.iter().enumerate() {
                let column = Rect { x: frame.cells.x + x as u16, y, width: 1, height: frame.lines };
                match cell {
                    Cell::Idle => {}
                    Cell::ToFirst => {
                        let line = (column.x, column.bottom() - 1);
                        buf[line].set_symbol(glyphs(theme).0).set_style(theme.prefill);
                    }
                    Cell::Gap(heat) => {
                        // A blank line above each row separates the rows.
                        let full =
                            (usize::from(frame.lines) * 8).saturating_sub(usize::from(frame.lines > 1) * 4);
                        let height = (full * EIGHTHS[*heat] / 8).max(1);
                        draw_bar(buf, column, height, theme.glyphs, theme.heat[*heat]);
                    }
                }
            }
        }
        if let Some(mark) = selected.filter(|mark| is_shown(&mark) || mark.first) {
            let row = mark.stream as usize / frame.per_row;
            let x = frame.column(mark.t).min(frame.cells.width.saturating_sub(1));
            if row < rows.len() && width > 0 {
                let y = frame.bottom_line(row) + 1 - frame.lines;
                let place = Rect { x: frame.cells.x + x, y, width: 1, height: frame.lines };
                buf.set_style(place, theme.selected);
            }
        }
        let told = slowest.into_iter().map(|ns| {
            let ms = ns as f64 / 1e6;
            let heat = heat_of(ms, median_ms);
            (ns > 0)
                .then(|| (format!("max {}", millis(ms)), if heat > 1 { theme.heat[heat] } else { theme.dim }))
        });
        frame.draw_readouts(view, told, area, buf);
        mark_cursor(view, frame.cells, buf);
    }
}

/// The position of the rows of streams.
struct Frame {
    cells: Rect,
    /// Lines per row.
    lines: u16,
    /// Streams per row.
    per_row: usize,
    axis: TimeAxis,
}

impl Frame {
    fn rows(&self) -> usize {
        usize::from(self.cells.height / self.lines)
    }

    fn bottom_line(&self, row: usize) -> u16 {
        self.cells.y + (row as u16 + 1) * self.lines - 1
    }

    /// The column of a moment; earlier moments are in the first one.
    fn column(&self, t: Stamp) -> u16 {
        let span = self.axis.to.since(self.axis.from).as_nanos().max(1) as f64;
        let width = f64::from(self.cells.width);
        (t.since(self.axis.from).as_nanos() as f64 / span * width).min(width) as u16
    }

    /// A text right of each row.
    fn draw_readouts(
        &self,
        view: &View<'_>,
        rows: impl Iterator<Item = Option<(String, Style)>>,
        area: Rect,
        buf: &mut Buffer,
    ) {
        let glyphs = view.theme.glyphs;
        let (x, width) = (self.cells.right(), area.right().saturating_sub(self.cells.right()));
        for (row, told) in rows.enumerate() {
            let Some((text, style)) = told else { continue };
            let place = Rect { x, y: self.bottom_line(row), width, height: 1 };
            let text = cut(&format!("{} ", glyphs.plain(&text)), width as usize, glyphs.ascii);
            Line::styled(text, style).right_aligned().render(place, buf);
        }
    }
}
