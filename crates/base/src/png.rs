//! Images as PNG files: RGB with 8 bits, without filters.

use super::gz::{crc32, zlib};

/// An image in memory.
#[derive(Debug, Clone)]
pub struct Picture {
    pub width: u32,
    pub height: u32,
    /// Three bytes per pixel, row by row.
    pixels: Vec<u8>,
}

impl Picture {
    /// An image of one colour.
    pub fn filled(width: u32, height: u32, colour: [u8; 3]) -> Picture {
        let pixels = colour.repeat(width as usize * height as usize);
        Picture { width, height, pixels }
    }

    /// Fills the part of a rectangle that is within the image.
    pub fn fill(&mut self, x: u32, y: u32, width: u32, height: u32, colour: [u8; 3]) {
        let right = x.saturating_add(width).min(self.width);
        for row in y..y.saturating_add(height).min(self.height) {
            for column in x..right {
                let at = 3 * (row as usize * self.width as usize + column as usize);
                self.pixels[at..at + 3].copy_from_slice(&colour);
            }
        }
    }

    /// The outline of a rectangle.
    pub fn outline(&mut self, (x, y): (u32, u32), (width, height): (u32, u32), thick: u32, colour: [u8; 3]) {
        self.fill(x, y, width, thick, colour);
        self.fill(x, (y + height).saturating_sub(thick), width, thick, colour);
        self.fill(x, y, thick, height, colour);
        self.fill((x + width).saturating_sub(thick), y, thick, height, colour);
    }

    /// As a file.
    pub fn png(&self) -> Vec<u8> {
        let stride = 3 * self.width as usize;
        let mut rows = Vec::with_capacity((stride + 1) * self.height as usize);
        for row in self.pixels.chunks(stride.max(1)) {
            // No filter.
            rows.push(0);
            rows.extend_from_slice(row);
        }
        let mut header = Vec::new();
        header.extend_from_slice(&self.width.to_be_bytes());
        header.extend_from_slice(&self.height.to_be_bytes());
        header.extend_from_slice(&[8, 2, 0, 0, 0]);
        let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
        for (name, data) in [(b"IHDR", header), (b"IDAT", zlib(&rows)), (b"IEND", Vec::new())] {
            let mut part = name.to_vec();
            part.extend_from_slice(&data);
            file.extend_from_slice(&(data.len() as u32).to_be_bytes());
            file.extend_from_slice(&part);
            file.extend_from_slice(&crc32(&part).to_be_bytes());
        }
        file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_stay_within_the_image() {
        let mut picture = Picture::filled(3, 2, [9, 9, 9]);
        picture.fill(1, 1, u32::MAX, u32::MAX, [1, 2, 3]);
        picture.fill(7, 7, 1, 1, [5, 5, 5]);
        let dark = picture.pixels.chunks(3).filter(|pixel| *pixel == [1, 2, 3]).count();
        assert_eq!(dark, 2);
        let file = picture.png();
        assert_eq!(&file[..8], b"\x89PNG\r\n\x1a\n");
        // The CRC of an empty IEND chunk, as in every PNG file.
        assert_eq!(&file[file.len() - 4..], &[0xAE, 0x42, 0x60, 0x82]);
    }
}
