//! Synthetic images for vision-language models.

use base64::{Engine, prelude::BASE64_STANDARD};

use llmprof_base::{noise, png::Picture};

/// The size of blocks of one colour: an image with structure compresses well, and is no worse for a model than noise.
const BLOCK: u32 = 16;

/// A square image as a data URL.
pub fn data_url(side: u32, seed: u64) -> String {
    format!("data:image/png;base64,{}", BASE64_STANDARD.encode(blocks(side, seed).png()))
}

/// Coloured blocks.
fn blocks(side: u32, seed: u64) -> Picture {
    let mut picture = Picture::filled(side, side, [0; 3]);
    for y in 0..side.div_ceil(BLOCK) {
        for x in 0..side.div_ceil(BLOCK) {
            let [r, g, b, ..] = noise::bits(seed, u64::from(y) << 32 | u64::from(x)).to_le_bytes();
            picture.fill(x * BLOCK, y * BLOCK, BLOCK, BLOCK, [r, g, b]);
        }
    }
    picture
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_differ() {
        assert_ne!(blocks(64, 1).png(), blocks(64, 2).png());
        assert!(data_url(8, 0).starts_with("data:image/png;base64,iVBORw0KGgo"));
    }
}
