//! A canvas of braille dots, or of plain characters in ASCII.

use ratatui::{buffer::Buffer, layout::Rect, style::Style};

/// Two dots wide and four high per cell. A cell has the style of its last dot.
pub struct Dots {
    area: Rect,
    cells: Vec<(u8, Style)>,
    ascii: bool,
}

impl Dots {
    pub fn new(area: Rect, ascii: bool) -> Dots {
        Dots { area, cells: vec![(0, Style::new()); area.area() as usize], ascii }
    }

    /// Dots across and down.
    pub fn size(&self) -> (usize, usize) {
        (self.area.width as usize * 2, self.area.height as usize * 4)
    }

    /// Sets the dot at `x` from the left and `y` from the bottom, if that is inside.
    pub fn set(&mut self, x: usize, y: usize, style: Style) {
        // Bits of a braille cell, by column and by row from the top.
        const DOTS: [[u8; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];
        let (width, height) = self.size();
        if x >= width || y >= height {
            return;
        }
        let row = height - 1 - y;
        let cell = &mut self.cells[row / 4 * self.area.width as usize + x / 2];
        cell.0 |= DOTS[x % 2][row % 4];
        cell.1 = style;
    }

    /// The cell that the dot is in.
    pub fn cell(&self, x: usize, y: usize) -> Option<(u16, u16)> {
        let (width, height) = self.size();
        let inside = x < width && y < height;
        inside.then(|| (self.area.x + x as u16 / 2, self.area.y + (height - 1 - y) as u16 / 4))
    }

    pub fn draw(&self, buf: &mut Buffer) {
        for (i, (bits, style)) in self.cells.iter().enumerate().filter(|(_, (bits, _))| *bits != 0) {
            let (column, row) = (i as u16 % self.area.width, i as u16 / self.area.width);
            let dots =
                if self.ascii { '.' } else { char::from_u32(0x2800 + u32::from(*bits)).unwrap_or(' ') };
            buf[(self.area.x + column, self.area.y + row)].set_char(dots).set_style(*style);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_are_drawn_where_they_were_set() {
        let area = Rect::new(1, 1, 3, 2);
        let mut buf = Buffer::empty(Rect::new(0, 0, 5, 4));
        let mut dots = Dots::new(area, false);
        assert_eq!(dots.size(), (6, 8));
        dots.set(0, 0, Style::new());
        dots.set(5, 7, Style::new());
        dots.set(6, 0, Style::new());
        dots.set(0, 8, Style::new());
        dots.draw(&mut buf);
        assert_eq!(buf[(1, 2)].symbol(), "⡀");
        assert_eq!(buf[(3, 1)].symbol(), "⠈");
        assert_eq!((dots.cell(0, 0), dots.cell(5, 7), dots.cell(6, 0)), (Some((1, 2)), Some((3, 1)), None));
        Dots::new(Rect::new(0, 0, 0, 0), true).draw(&mut buf);
    }
}
