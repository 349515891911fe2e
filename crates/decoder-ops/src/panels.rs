//! Quantised weights in the order in which the vector code of this machine multiplies them.
//!
//! A panel has sixteen rows. For each group of 32 columns it has the scales of all rows side by side and the codes as
//! quads: four columns of sixteen rows, 64 bytes. No bit is added to a code; small scales that a format packs into six
//! bits become bytes.

use candle_core::{Result, bail};
use half::f16;
use rayon::prelude::*;

use crate::blocks::{self, E2M1, Format, GROUP, HALF, IQ4};

/// Rows of a panel.
pub(crate) const ROWS: usize = 16;
/// Columns of a quad.
pub(crate) const QUAD: usize = 4;
/// Quads of a group.
pub(crate) const QUADS: usize = GROUP / QUAD;
/// Bytes of a quad with one byte per code.
pub(crate) const LANES: usize = ROWS * QUAD;
/// Bytes of the half floats of sixteen rows.
pub(crate) const HALVES: usize = 2 * ROWS;

/// The kinds of scales of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scales {
    /// A half float.
    One,
    /// A half float for the scale and one for the offset.
    Two,
    /// Two half floats for eight groups, and for each group a byte for the scale and one for the offset to subtract.
    Pairs,
    /// Two half floats for eight groups, and for each half group a byte: the scale in the lower bits, the offset to
    /// subtract in the upper ones.
    Nibbles,
    /// A half float for eight groups, and a signed byte for each group.
    Signed,
    /// A half float for eight groups, and a signed byte for each half group.
    SignedHalves,
}

/// How the weights of a format follow from its codes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    pub bits: usize,
    pub scales: Scales,
    /// The code of weight zero, if the format's offsets follow from it.
    pub zero: f32,
    /// Codes are indexes into this table, whose values are 128 too large.
    pub table: Option<&'static [u8; 16]>,
}

impl Rule {
    pub const fn for_format(format: Format) -> Rule {
        let (bits, scales, zero) = match format {
            Format::Q4_0 => (4, Scales::One, 8.0),
            Format::Q4_1 => (4, Scales::Two, 0.0),
            Format::Q5_0 => (5, Scales::One, 16.0),
            Format::Q5_1 => (5, Scales::Two, 0.0),
            Format::Q8_0 => (8, Scales::One, 128.0),
            Format::Q2K => (2, Scales::Nibbles, 0.0),
            Format::Q3K => (3, Scales::SignedHalves, 4.0),
            Format::Q4K => (4, Scales::Pairs, 0.0),
            Format::Q5K => (5, Scales::Pairs, 0.0),
            Format::Q6K => (6, Scales::SignedHalves, 32.0),
            Format::Iq4Nl | Format::Mxfp4 => (4, Scales::One, 128.0),
            Format::Iq4Xs => (4, Scales::Signed, 128.0),
        };
        let table = match format {
            Format::Iq4Nl | Format::Iq4Xs => Some(&OF_IQ4),
            Format::Mxfp4 => Some(&OF_E2M1),
            _ => None,
        };
        Rule { bits, scales, zero, table }
    }

    /// Groups that share half floats.
    pub const fn groups(self) -> usize {
        match self.scales {
            Scales::One | Scales::Two => 1,
            Scales::Pairs | Scales::Nibbles | Scales::Signed | Scales::SignedHalves => 8,
        }
    }

    /// Bytes of the half floats at the beginning.
    pub const fn head(self) -> usize {
        match self.scales {
            Scales::One | Scales::Signed | Scales::SignedHalves => HALVES,
            Scales::Two | Scales::Pairs | Scales::Nibbles => 2 * HALVES,
        }
    }

    /// Bytes of the small scales of a group.
    pub const fn small(self) -> usize {
        match self.scales {
            Scales::One | Scales::Two => 0,
            Scales::Signed => ROWS,
            Scales::Pairs | Scales::Nibbles | Scales::SignedHalves => 2 * ROWS,
        }
    }

    /// Bytes of a group's codes.
    pub const fn codes(self) -> usize {
        self.bits * GROUP * ROWS / 8
    }

    /// Bytes of groups that share half floats.
    pub const fn bytes(self) -> usize {
        self.head() + self.groups() * (self.small() + self.codes())
    }

    /// Whether the halves of a group have their own scales.
    pub const fn has_halves(self) -> bool {
        matches!(self.scales, Scales::Nibbles | Scales::SignedHalves)
    }

    /// Whether codes above 127 occur.
    pub const fn is_wide(self) -> bool {
        self.table.is_some() || self.bits == 8
    }
}

static OF_IQ4: [u8; 16] = above_zero(IQ4);
static OF_E2M1: [u8; 16] = above_zero(E2M1);

const fn above_zero(numbers: [i8; 16]) -> [u8; 16] {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        table[i] = numbers[i] as u8 ^ 0x80;
        i += 1;
    }
    table
}

/// The parts of a code of `bits` bits: the lower bits, and the bits above them, which may be none.
pub(crate) const fn parts(bits: usize) -> [usize; 2] {
    match bits {
        2 => [2, 0],
        3 => [2, 1],
        4 => [4, 0],
        5 => [4, 1],
        6 => [4, 2],
        _ => [8, 0],
    }
}

/// The 64-byte plane that has `bits` bits of quad `quad`, and their position in its bytes.
///
/// The quads of a half are at the same position of consecutive planes, or side by side in one plane.
pub(crate) const fn plane(bits: usize, quad: usize) -> (usize, usize) {
    match bits {
        8 => (quad, 0),
        4 => (quad % 4, 4 * (quad / 4)),
        2 => (quad / 4, 2 * (quad % 4)),
        _ => (0, quad),
    }
}

/// A matrix of quantised weights, in panels.
pub struct Panels {
    pub(crate) format: Format,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) bytes: Vec<u8>,
}

impl Panels {
    /// From rows of blocks in GGUF's format.
    pub fn new(format: Format, blocks: &[u8], columns: usize) -> Result<Panels> {
        if columns == 0 || !columns.is_multiple_of(format.weights()) {
            bail!("rows of {columns} weights are not complete blocks of {format:?}");
        }
        let row_bytes = columns / format.weights() * format.bytes();
        if !blocks.len().is_multiple_of(row_bytes) {
            bail!("{} bytes are not complete rows of {columns} weights in {format:?}", blocks.len());
        }
        let rows = blocks.len() / row_bytes;
        let mut panels =
            Panels { format, rows, columns, bytes: vec![0; Panels::size(format, rows, columns)] };
        let panel_bytes = panels.panel_bytes();
        let sixteen = panels.bytes.par_chunks_exact_mut(panel_bytes).zip(blocks.par_chunks(ROWS * row_bytes));
        sixteen.for_each(|(panel, rows)| {
            for (row, blocks) in rows.chunks_exact(row_bytes).enumerate() {
                let panel = panel.chunks_exact_mut(Rule::for_format(format).bytes());
                for (part, block) in panel.zip(blocks.chunks_exact(format.bytes())) {
                    pack(format, part, block, row);
                }
            }
        });
        Ok(panels)
    }

    /// The size of a matrix in bytes.
    pub fn size(format: Format, rows: usize, columns: usize) -> usize {
        rows.div_ceil(ROWS) * (columns / format.weights() * Rule::for_format(format).bytes())
    }

    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.columns)
    }

    pub(crate) fn panel_bytes(&self) -> usize {
        self.columns / self.format.weights() * Rule::for_format(self.format).bytes()
    }

    /// The weights of row `row`.
    pub(crate) fn row(&self, row: usize, out: &mut [f32]) {
        let rule = Rule::for_format(self.format);
        let panel = &self.bytes[row / ROWS * self.panel_bytes()..][..self.panel_bytes()];
        let row = row % ROWS;
        let parts_of_row = panel.chunks_exact(rule.bytes());
        for (out, bytes) in out.chunks_exact_mut(self.format.weights()).zip(parts_of_row) {
            let (head, groups) = bytes.split_at(rule.head());
            let half = |at: usize| f16::from_le_bytes([head[at + 2 * row], head[at + 2 * row + 1]]).to_f32();
            let first = half(0);
            let second = if rule.head() > HALVES { half(HALVES) } else { 0.0 };
            let groups = groups.chunks_exact(rule.small() + rule.codes());
            for (out, group) in out.chunks_exact_mut(GROUP).zip(groups) {
                let (small, planes) = group.split_at(rule.small());
                let byte = |half: usize| small[half * ROWS + row];
                for (i, out) in out.iter_mut().enumerate() {
                    let (scale, offset) = match rule.scales {
                        Scales::One => (first, -rule.zero * first),
                        Scales::Two => (first, second),
                        Scales::Pairs => (first * f32::from(byte(0)), -second * f32::from(byte(1))),
                        Scales::Nibbles => {
                            let both = byte(i / HALF);
                            (first * f32::from(both & 15), -second * f32::from(both >> 4))
                        }
                        Scales::Signed | Scales::SignedHalves => {
                            let half = if rule.has_halves() { i / HALF } else { 0 };
                            let scale = first * f32::from(byte(half) as i8);
                            (scale, -rule.zero * scale)
                        }
                    };
                    *out = scale * f32::from(code(rule, planes, row, i)) + offset;
                }
            }
        }
    }
}

/// The code of a row in column `column` of a group.
fn code(rule: Rule, planes: &[u8], row: usize, column: usize) -> u8 {
    let (quad, lane) = (column / QUAD, row * QUAD + column % QUAD);
    let [base, top] = parts(rule.bits);
    let of = |from: usize, bits: usize| {
        let (plane, shift) = plane(bits, quad);
        (planes[from + plane * LANES + lane] >> shift) & mask(bits)
    };
    let code = of(0, base) | if top > 0 { of(base * LANES, top) << base } else { 0 };
    rule.table.map_or(code, |table| table[usize::from(code)])
}

pub(crate) const fn mask(bits: usize) -> u8 {
    (255u16 >> (8 - bits)) as u8
}

/// Writes a block into its row of a panel.
fn pack(format: Format, part: &mut [u8], block: &[u8], row: usize) {
    let rule = Rule::for_format(format);
    let (head, groups) = part.split_at_mut(rule.head());
    for (head, half) in head.chunks_exact_mut(HALVES).zip(blocks::halves(format, block)) {
        head[2 * row..][..2].copy_from_slice(&half);
    }
    for (g, group) in groups.chunks_exact_mut(rule.small() + rule.codes()).enumerate() {
        let (small, planes) = group.split_at_mut(rule.small());
        for (small, scale) in small.chunks_exact_mut(ROWS).zip(blocks::small_scales(format, block, g)) {
            small[row] = scale;
        }
        for (column, code) in blocks::codes(format, block, g).into_iter().enumerate() {
            let (quad, lane) = (column / QUAD, row * QUAD + column % QUAD);
            let [base, top] = parts(rule.bits);
            for (from, bits, place) in [(0, base, 0), (base * LANES, top, base)] {
                if bits > 0 {
                    let (plane, shift) = plane(bits, quad);
                    planes[from + plane * LANES + lane] |= ((code >> place) & mask(bits)) << shift;
                }
            }
        }
    }
}
