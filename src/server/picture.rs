//! Synthetic pictures for models that see.

use base64::{Engine, prelude::BASE64_STANDARD};

use crate::base::{
    gz::{crc32, zlib},
    noise,
};

/// Pixels of one colour: a picture with structure compresses, and is no worse for a model than noise.
const BLOCK: u32 = 16;

/// A square picture as a data URL.
pub fn data_url(side: u32, seed: u64) -> String {
    format!("data:image/png;base64,{}", BASE64_STANDARD.encode(png(side, seed)))
}

/// Coloured blocks, RGB with 8 bits.
fn png(side: u32, seed: u64) -> Vec<u8> {
    let mut rows = Vec::with_capacity((side * (3 * side + 1)) as usize);
    for y in 0..side {
        // No filter.
        rows.push(0);
        for x in 0..side {
            let block = u64::from(y / BLOCK) << 32 | u64::from(x / BLOCK);
            rows.extend_from_slice(&noise::bits(seed, block).to_le_bytes()[..3]);
        }
    }
    let mut header = Vec::new();
    header.extend_from_slice(&side.to_be_bytes());
    header.extend_from_slice(&side.to_be_bytes());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_png_files_that_differ() {
        let file = png(64, 1);
        assert_eq!(&file[..8], b"\x89PNG\r\n\x1a\n");
        // Of an empty IEND, as in every PNG file.
        assert_eq!(&file[file.len() - 4..], &[0xAE, 0x42, 0x60, 0x82]);
        assert_ne!(file, png(64, 2));
        assert!(data_url(8, 0).starts_with("data:image/png;base64,iVBORw0KGgo"));
    }
}
