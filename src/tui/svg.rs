//! A drawn screen as an SVG picture.

use crate::base::markup::escaped;

use std::fmt::Write;

use ratatui::{
    buffer::{Buffer, Cell},
    style::{Color, Modifier},
};

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
    let area = buffer.area;
    let (width, height) = (
        f32::from(area.width) * CELL_WIDTH + 2.0 * MARGIN,
        f32::from(area.height) * CELL_HEIGHT + 2.0 * MARGIN,
    );
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\">\n<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{}\"/>\n\
         <g font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"14\" xml:space=\"preserve\">\n",
        paper.background
    );
    for y in area.top()..area.bottom() {
        background(&mut out, buffer, y, paper);
        for x in area.left()..area.right() {
            symbol(&mut out, buffer, (x, y), paper);
        }
    }
    out += "</g>\n</svg>\n";
    out
}

/// Foreground and background of a cell.
fn colours(cell: &Cell, paper: Paper) -> (String, String) {
    let (front, back) = (hex(cell.fg, paper.text), hex(cell.bg, paper.background));
    if cell.modifier.contains(Modifier::REVERSED) { (back, front) } else { (front, back) }
}

/// Cells of one colour are one rectangle: separate ones would show seams.
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

fn symbol(out: &mut String, buffer: &Buffer, (x, y): (u16, u16), paper: Paper) {
    let cell = &buffer[(x, y)];
    let (front, _) = colours(cell, paper);
    let (left, top) = (MARGIN + f32::from(x) * CELL_WIDTH, MARGIN + f32::from(y) * CELL_HEIGHT);
    let symbol = cell.symbol().trim();
    if symbol.is_empty() {
        return;
    }
    let weight = if cell.modifier.contains(Modifier::BOLD) { " font-weight=\"bold\"" } else { "" };
    let faint = if cell.modifier.contains(Modifier::DIM) { " opacity=\"0.6\"" } else { "" };
    let text = escaped(symbol);
    let baseline = top + BASELINE;
    let _ = writeln!(
        out,
        "<text x=\"{left:.1}\" y=\"{baseline:.1}\" fill=\"{front}\"{weight}{faint}>{text}</text>"
    );
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
