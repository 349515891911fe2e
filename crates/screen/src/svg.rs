//! A drawn screen as an SVG picture.

use llmprof_base::markup::escaped;

use std::fmt::Write;

use ratatui::{
    buffer::{Buffer, Cell},
    style::{Color, Modifier},
};
use unicode_width::UnicodeWidthStr;

const CELL_WIDTH: f32 = 8.4;
const CELL_HEIGHT: f32 = 17.0;
const BASELINE: f32 = 13.0;
const MARGIN: f32 = 10.0;

/// The default colours of a terminal.
#[derive(Debug, Clone, Copy)]
pub struct Paper {
    pub background: &'static str,
    pub text: &'static str,
}

impl Paper {
    pub const DARK: Paper = Paper { background: "#14171c", text: "#d8dee9" };
    pub const LIGHT: Paper = Paper { background: "#ffffff", text: "#24292f" };
}

/// The screen in `buffer` as an SVG document.
pub fn svg(buffer: &Buffer, paper: Paper) -> String {
    document(buffer, paper, |out| screen(out, buffer, paper))
}

/// Screens of one size, each for `seconds`, in a loop, as one SVG document.
pub fn animated_svg(screens: &[Buffer], seconds: f64, paper: Paper) -> String {
    let Some(first) = screens.first() else { return String::new() };
    let all = seconds * screens.len() as f64;
    document(first, paper, |out| {
        let share = 100.0 / screens.len() as f64;
        let _ = writeln!(
            out,
            "<style>@keyframes shown{{0%{{visibility:visible}}{share:.3}%{{visibility:hidden}}}}\
             .screen{{visibility:hidden;animation:shown {all}s step-end infinite}}</style>"
        );
        for (i, buffer) in screens.iter().enumerate() {
            let delay = seconds * i as f64;
            let _ = writeln!(out, "<g class=\"screen\" style=\"animation-delay:{delay}s\">");
            screen(out, buffer, paper);
            *out += "</g>\n";
        }
    })
}

/// A document of the size of `buffer` with this content.
fn document(buffer: &Buffer, paper: Paper, content: impl FnOnce(&mut String)) -> String {
    let area = buffer.area;
    let (width, height) = (
        f32::from(area.width) * CELL_WIDTH + 2.0 * MARGIN,
        f32::from(area.height) * CELL_HEIGHT + 2.0 * MARGIN,
    );
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\">\n<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{}\"/>\n\
         <g font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"14\" shape-rendering=\"crispEdges\">\n",
        paper.background
    );
    content(&mut out);
    out += "</g>\n</svg>\n";
    out
}

fn screen(out: &mut String, buffer: &Buffer, paper: Paper) {
    for y in buffer.area.top()..buffer.area.bottom() {
        background(out, buffer, y, paper);
        symbols(out, buffer, y, paper);
    }
}

/// Foreground and background of a cell.
fn colours(cell: &Cell, paper: Paper) -> (String, String) {
    let (front, back) = (hex(cell.fg, paper.text), hex(cell.bg, paper.background));
    if cell.modifier.contains(Modifier::REVERSED) { (back, front) } else { (front, back) }
}

/// Cells of one colour are one rectangle: separate ones would have visible seams.
fn background(out: &mut String, buffer: &Buffer, y: u16, paper: Paper) {
    let area = buffer.area;
    let row: Vec<String> = (area.left()..area.right()).map(|x| colours(&buffer[(x, y)], paper).1).collect();
    let mut x = 0.0;
    for same in row.chunk_by(|a, b| a == b) {
        let (left, top) = (MARGIN + x * CELL_WIDTH, MARGIN + f32::from(y) * CELL_HEIGHT);
        let width = same.len() as f32 * CELL_WIDTH;
        x += same.len() as f32;
        if same[0] != paper.background {
            let _ = writeln!(
                out,
                "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{CELL_HEIGHT}\" fill=\"{}\"/>",
                same[0]
            );
        }
    }
}

/// Cells of one style: words are one text with the exact width of its cells, blocks and dots are drawn.
fn symbols(out: &mut String, buffer: &Buffer, y: u16, paper: Paper) {
    let area = buffer.area;
    let style = |x: u16| {
        let cell = &buffer[(x, y)];
        (colours(cell, paper).0, cell.modifier & (Modifier::BOLD | Modifier::DIM), is_drawn(cell.symbol()))
    };
    let xs: Vec<u16> = (area.left()..area.right()).collect();
    for run in xs.chunk_by(|a, b| style(*a) == style(*b)) {
        let (front, modifier, drawn) = style(run[0]);
        match drawn {
            true => {
                run.chunk_by(|a, b| buffer[(*a, y)].symbol() == buffer[(*b, y)].symbol()).for_each(|same| {
                    draw_cells(out, buffer[(same[0], y)].symbol(), (same[0], y), same.len(), &front);
                })
            }
            false => {
                let text: String = run.iter().map(|x| buffer[(*x, y)].symbol()).collect();
                write_text(out, &text, (run[0], y), &front, modifier);
            }
        }
    }
}

fn corner((x, y): (u16, u16)) -> (f32, f32) {
    (MARGIN + f32::from(x) * CELL_WIDTH, MARGIN + f32::from(y) * CELL_HEIGHT)
}

fn write_text(out: &mut String, text: &str, (x, y): (u16, u16), front: &str, modifier: Modifier) {
    let skipped = (text.len() - text.trim_start().len()) as u16;
    let text = text.trim();
    if text.is_empty() {
        return;
    }
    let (left, top) = corner((x + skipped, y));
    let baseline = top + BASELINE;
    let weight = if modifier.contains(Modifier::BOLD) { " font-weight=\"bold\"" } else { "" };
    let faint = if modifier.contains(Modifier::DIM) { " opacity=\"0.6\"" } else { "" };
    let width = text.width() as f32 * CELL_WIDTH;
    let _ = writeln!(
        out,
        "<text x=\"{left:.1}\" y=\"{baseline:.1}\" textLength=\"{width:.1}\" fill=\"{front}\"{weight}{faint}>{}</text>",
        // Consecutive spaces would collapse into one.
        escaped(text).replace(' ', "\u{a0}")
    );
}

/// Whether the cell is drawn as shapes: fonts place blocks and braille dots slightly outside of their cells.
fn is_drawn(symbol: &str) -> bool {
    matches!(symbol.chars().next(), Some('▀'..='▟' | '\u{2800}'..='\u{28ff}'))
}

/// Draws `count` equal cells.
fn draw_cells(out: &mut String, symbol: &str, at: (u16, u16), count: usize, front: &str) {
    let Some(symbol) = symbol.chars().next() else { return };
    let (left, top) = corner(at);
    let mut rect = |x: f32, y: f32, width: f32, height: f32, opacity: f32| {
        let opacity = if opacity < 1.0 { format!(" opacity=\"{opacity}\"") } else { String::new() };
        let _ = writeln!(
            out,
            "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\" fill=\"{front}\"{opacity}/>"
        );
    };
    let across = count as f32 * CELL_WIDTH;
    let from_bottom =
        |eighths: u32| (top + CELL_HEIGHT * (8 - eighths) as f32 / 8.0, CELL_HEIGHT * eighths as f32 / 8.0);
    match symbol {
        '▀' => rect(left, top, across, CELL_HEIGHT / 2.0, 1.0),
        '▁'..='█' => {
            let (y, height) = from_bottom(symbol as u32 - '▁' as u32 + 1);
            rect(left, y, across, height, 1.0);
        }
        '░' | '▒' | '▓' => {
            let opacity = 0.25 * (symbol as u32 - '░' as u32 + 1) as f32;
            rect(left, top, across, CELL_HEIGHT, opacity);
        }
        _ => {
            for i in 0..count {
                let left = left + i as f32 * CELL_WIDTH;
                draw_one(&mut rect, symbol, left, top);
            }
        }
    }
}

/// A cell whose symbol does not cover the full width.
fn draw_one(rect: &mut impl FnMut(f32, f32, f32, f32, f32), symbol: char, left: f32, top: f32) {
    let (half_w, half_h) = (CELL_WIDTH / 2.0, CELL_HEIGHT / 2.0);
    // Upper left, upper right, lower left, lower right.
    let quadrants: &[usize] = match symbol {
        '▉'..='▏' => {
            let eighths = 8 - (symbol as u32 - '█' as u32);
            return rect(left, top, CELL_WIDTH * eighths as f32 / 8.0, CELL_HEIGHT, 1.0);
        }
        '▐' => &[1, 3],
        '▖' => &[2],
        '▗' => &[3],
        '▘' => &[0],
        '▙' => &[0, 2, 3],
        '▚' => &[0, 3],
        '▛' => &[0, 1, 2],
        '▜' => &[0, 1, 3],
        '▝' => &[1],
        '▞' => &[1, 2],
        '▟' => &[1, 2, 3],
        braille => {
            // By row from the top, then by column.
            const BITS: [[u32; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];
            let bits = braille as u32 - 0x2800;
            const SIDE: f32 = 2.2;
            for (row, columns) in BITS.iter().enumerate() {
                for (column, bit) in columns.iter().enumerate().filter(|(_, bit)| bits & **bit != 0) {
                    let _ = bit;
                    let x = left + half_w * (column as f32 + 0.5) - SIDE / 2.0;
                    let y = top + CELL_HEIGHT / 4.0 * (row as f32 + 0.5) - SIDE / 2.0;
                    rect(x, y, SIDE, SIDE, 1.0);
                }
            }
            return;
        }
    };
    for quadrant in quadrants {
        let (column, row) = (quadrant % 2, quadrant / 2);
        rect(left + half_w * column as f32, top + half_h * row as f32, half_w, half_h, 1.0);
    }
}

fn hex(colour: Color, fallback: &str) -> String {
    match colour {
        Color::Rgb(r, g, b) => format!("#{r:02x}{g:02x}{b:02x}"),
        Color::Black => "#000000".into(),
        Color::Red | Color::LightRed => "#e06c75".into(),
        Color::Green | Color::LightGreen => "#a3be8c".into(),
        Color::Yellow | Color::LightYellow => "#ebcb8b".into(),
        Color::Blue | Color::LightBlue => "#7aa2f7".into(),
        Color::Magenta | Color::LightMagenta => "#c099ff".into(),
        Color::Cyan | Color::LightCyan => "#88c0d0".into(),
        Color::Gray | Color::DarkGray => "#8a93a3".into(),
        Color::White => "#ffffff".into(),
        Color::Indexed(i @ 16..=231) => {
            let step = |n: u8| if n == 0 { 0 } else { 55 + 40 * n };
            let i = i - 16;
            format!("#{:02x}{:02x}{:02x}", step(i / 36), step(i / 6 % 6), step(i % 6))
        }
        Color::Indexed(i @ 232..) => format!("#{0:02x}{0:02x}{0:02x}", 8 + 10 * (i - 232)),
        Color::Reset | Color::Indexed(_) => fallback.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::{layout::Rect, style::Style};

    use super::*;

    #[test]
    fn blocks_are_drawn_exactly_in_their_cells() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 4, 1));
        buffer.set_string(0, 0, "▄▄█▌", Style::new().fg(Color::Rgb(1, 2, 3)));
        let picture = svg(&buffer, Paper::DARK);
        assert!(!picture.contains("<text"), "{picture}");
        // Two halves as one, a whole cell, and the left half of one.
        assert!(picture.contains("x=\"10.00\" y=\"18.50\" width=\"16.80\" height=\"8.50\""), "{picture}");
        assert!(picture.contains("x=\"26.80\" y=\"10.00\" width=\"8.40\" height=\"17.00\""), "{picture}");
        assert!(picture.contains("x=\"35.20\" y=\"10.00\" width=\"4.20\" height=\"17.00\""), "{picture}");
        buffer.set_string(0, 0, "⠁   ", Style::new());
        assert_eq!(svg(&buffer, Paper::DARK).matches("<rect").count(), 2, "the paper and one dot");
    }

    #[test]
    fn screens_of_a_tour_follow_each_other() {
        let screens = [Buffer::with_lines(["one"]), Buffer::with_lines(["two"])];
        let tour = animated_svg(&screens, 3.0, Paper::DARK);
        assert!(tour.contains("animation:shown 6s") && tour.contains("animation-delay:3s"), "{tour}");
        assert!(tour.contains("50.000%{visibility:hidden}"), "{tour}");
        assert_eq!(animated_svg(&[], 3.0, Paper::DARK), "");
    }

    #[test]
    fn a_cell_keeps_its_position_colour_and_weight() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 3, 1));
        buffer.set_string(1, 0, "<", Style::new().fg(Color::Rgb(1, 2, 3)).add_modifier(Modifier::BOLD));
        let picture = svg(&buffer, Paper::DARK);
        assert!(picture.contains("x=\"18.4\"") && picture.contains("#010203"), "{picture}");
        assert!(picture.contains("font-weight=\"bold\">&lt;</text>"), "{picture}");
        buffer.set_style(Rect::new(1, 0, 2, 1), Style::new().bg(Color::Rgb(4, 5, 6)));
        let picture = svg(&buffer, Paper::DARK);
        assert_eq!(picture.matches("#040506").count(), 1, "one rectangle for both: {picture}");
        assert!(picture.contains("width=\"16.8\""), "{picture}");
    }
}
