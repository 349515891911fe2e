//! Quantised weights as GGUF stores them: blocks of codes with scales. A weight is `scale · code + offset`.

use half::f16;

/// Weights of the smallest block; larger blocks consist of groups of this size.
pub(crate) const GROUP: usize = 32;
/// Weights that share a scale in some formats.
pub(crate) const HALF: usize = 16;

/// A quantised type of ggml.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
    Mxfp4,
}

/// The weights of the codes of IQ4_NL and IQ4_XS.
pub(crate) const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Twice the values of MXFP4: a sign, two exponent bits and one mantissa bit (e2m1).
pub(crate) const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

impl Format {
    pub const ALL: [Format; 13] = [
        Format::Q4_0,
        Format::Q4_1,
        Format::Q5_0,
        Format::Q5_1,
        Format::Q8_0,
        Format::Q2K,
        Format::Q3K,
        Format::Q4K,
        Format::Q5K,
        Format::Q6K,
        Format::Iq4Nl,
        Format::Iq4Xs,
        Format::Mxfp4,
    ];

    /// Weights of a block.
    pub fn weights(self) -> usize {
        match self {
            Format::Q4_0
            | Format::Q4_1
            | Format::Q5_0
            | Format::Q5_1
            | Format::Q8_0
            | Format::Iq4Nl
            | Format::Mxfp4 => 32,
            Format::Q2K | Format::Q3K | Format::Q4K | Format::Q5K | Format::Q6K | Format::Iq4Xs => 256,
        }
    }

    /// Bytes of a block.
    pub fn bytes(self) -> usize {
        match self {
            Format::Q4_0 | Format::Iq4Nl => 18,
            Format::Q4_1 => 20,
            Format::Q5_0 => 22,
            Format::Q5_1 => 24,
            Format::Q8_0 => 34,
            Format::Q2K => 84,
            Format::Q3K => 110,
            Format::Q4K => 144,
            Format::Q5K => 176,
            Format::Q6K => 210,
            Format::Iq4Xs => 136,
            Format::Mxfp4 => 17,
        }
    }
}

/// The half floats of a block: its scale, and the second one that some formats have.
pub(crate) fn halves(format: Format, block: &[u8]) -> [[u8; 2]; 2] {
    let (first, second) = match format {
        Format::Mxfp4 => return [power_of_two(block[0]).to_le_bytes(), [0; 2]],
        Format::Q4_0 | Format::Q5_0 | Format::Q8_0 | Format::Iq4Nl | Format::Iq4Xs => (0, None),
        Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => (0, Some(2)),
        Format::Q2K => (80, Some(82)),
        Format::Q3K => (108, None),
        Format::Q6K => (208, None),
    };
    [Some(first), second].map(|at| at.map_or([0; 2], |at| [block[at], block[at + 1]]))
}

/// Half of 2 to the power of `exponent` - 127: codes stand for twice their values. Values outside the range of a half
/// float become the nearest one in it: scales below 2⁻²⁴ are zero, and none is above 2¹⁵.
fn power_of_two(exponent: u8) -> f16 {
    f16::from_f32(2f32.powi(i32::from(exponent.min(143)) - 128))
}

/// The small scales of both halves of group `g`: for Q2_K with the minimum in the upper bits, for Q4_K and Q5_K the
/// scale and the minimum of the group, for IQ4_XS twice the scale of the group.
pub(crate) fn small_scales(format: Format, block: &[u8], g: usize) -> [u8; 2] {
    match format {
        Format::Q2K => [block[2 * g], block[2 * g + 1]],
        // Sixteen 6-bit numbers: the lower four bits in the first eight bytes, the upper two in the last four.
        Format::Q3K => [2 * g, 2 * g + 1].map(|i| {
            let packed = &block[96..108];
            let low = (packed[i % 8] >> (4 * (i / 8))) & 15;
            let high = (packed[8 + i % 4] >> (2 * (i / 4))) & 3;
            (low | high << 4).wrapping_sub(32)
        }),
        Format::Q4K | Format::Q5K => {
            let packed = &block[4..16];
            match g {
                0..4 => [packed[g] & 63, packed[g + 4] & 63],
                _ => [
                    (packed[g + 4] & 15) | (packed[g - 4] >> 6) << 4,
                    (packed[g + 4] >> 4) | (packed[g] >> 6) << 4,
                ],
            }
        }
        Format::Q6K => [block[192 + 2 * g], block[193 + 2 * g]],
        Format::Iq4Xs => {
            let low = (block[4 + g / 2] >> (4 * (g % 2))) & 15;
            let high = (u16::from_le_bytes([block[2], block[3]]) >> (2 * g)) as u8 & 3;
            [(low | high << 4).wrapping_sub(32); 2]
        }
        // Groups are blocks.
        _ => [1; 2],
    }
}

/// The codes of group `g`, none below zero.
pub(crate) fn codes(format: Format, block: &[u8], g: usize) -> [u8; GROUP] {
    let nibble = |at: usize, i: usize| (block[at + i % 16] >> (4 * (i / 16))) & 15;
    let bit = |at: usize, i: usize| (block[at + i / 8] >> (i % 8)) & 1;
    // 128 weights share 32 bytes, two bits each.
    let two = |at: usize, i: usize| (block[at + 32 * (g / 4) + i] >> (2 * (g % 4))) & 3;
    std::array::from_fn(|i| match format {
        Format::Q4_0 | Format::Iq4Nl => nibble(2, i),
        Format::Mxfp4 => nibble(1, i),
        Format::Q4_1 => nibble(4, i),
        Format::Q5_0 => nibble(6, i) | bit(2, i) << 4,
        Format::Q5_1 => nibble(8, i) | bit(4, i) << 4,
        Format::Q8_0 => block[2 + i] ^ 0x80,
        Format::Iq4Xs => nibble(8 + 16 * g, i),
        Format::Q2K => two(16, i),
        Format::Q3K => two(32, i) | ((block[i] >> g) & 1) << 2,
        Format::Q4K => (block[16 + 32 * (g / 2) + i] >> (4 * (g % 2))) & 15,
        Format::Q5K => (block[48 + 32 * (g / 2) + i] >> (4 * (g % 2))) & 15 | ((block[16 + i] >> g) & 1) << 4,
        // 128 weights have their low bits in 64 bytes: all lower nibbles come first, then the upper ones.
        Format::Q6K => {
            let low = block[64 * (g / 4) + 32 * (g % 2) + i] >> (4 * (g % 4 / 2));
            low & 15 | two(128, i) << 4
        }
    })
}
