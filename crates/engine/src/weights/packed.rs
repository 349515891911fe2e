//! 4-bit weights in safetensors, as AWQ and GPTQ store them: eight codes per word, and a scale and a zero point per group of
//! columns. A weight is `scale · (code − zero)`.

use candle_core::DType;
use decoder_ops::Format;
use half::{bf16, f16};
use rayon::prelude::*;

use super::{QuantisedRows, values::wide};
use llmprof_config::Dtype;

const BITS: usize = 4;
/// Codes of a word.
const PER_WORD: usize = 32 / BITS;
/// The row, of eight, whose code is in each nibble of an AWQ word.
const AWQ_ORDER: [usize; PER_WORD] = [0, 2, 4, 6, 1, 3, 5, 7];
/// Rows that are converted together: their words are neighbours.
const ROWS_TOGETHER: usize = 16 * PER_WORD;
/// Columns of a block of Q4_1.
const BLOCK: usize = 32;

/// A stored tensor.
pub(super) struct Stored<'a> {
    pub shape: Vec<usize>,
    /// `None` for a type that candle does not have.
    pub dtype: Option<DType>,
    pub data: &'a [u8],
}

impl Stored<'_> {
    /// Words of 32 bits, as many as the shape requires.
    fn is_words(&self) -> bool {
        matches!(self.dtype, Some(DType::I32 | DType::U32)) && self.holds(4)
    }

    /// The type of unquantised values.
    pub fn plain(&self) -> Option<Dtype> {
        match self.dtype? {
            DType::F32 => Some(Dtype::F32),
            DType::F16 => Some(Dtype::F16),
            DType::BF16 => Some(Dtype::Bf16),
            _ => None,
        }
    }

    /// Unquantised values in a range.
    pub fn numbers(&self, range: std::ops::Range<usize>) -> Option<Vec<f32>> {
        let dtype = self.plain()?;
        let bytes = dtype.bytes() as usize;
        Some(wide(dtype, self.data.get(range.start * bytes..range.end * bytes)?))
    }

    pub fn holds(&self, bytes: usize) -> bool {
        let count = self.shape.iter().try_fold(bytes, |all, size| all.checked_mul(*size));
        count == Some(self.data.len())
    }
}

/// How codes are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packing {
    /// A word has eight rows of one column, in AWQ's order.
    Awq,
    /// A word has eight columns of one row.
    Gptq,
}

/// The tensors of one matrix of `rows` × `columns`.
pub(super) struct Packed<'a> {
    packing: Packing,
    rows: usize,
    columns: usize,
    /// Columns that share a scale.
    group: usize,
    codes: Stored<'a>,
    zeros: Stored<'a>,
    scales: Stored<'a>,
    /// The group of each column, if the file lists it.
    groups: Option<Vec<usize>>,
    /// The offset that is added to a stored zero point.
    zero_offset: i32,
}

impl<'a> Packed<'a> {
    /// `None` if the shapes or types do not match.
    pub fn new(
        [rows, columns]: [usize; 2],
        [codes, zeros, scales]: [Stored<'a>; 3],
        groups: Option<&Stored<'a>>,
        gptq_zero_offset: i32,
    ) -> Option<Packed<'a>> {
        let packing = match *codes.shape.as_slice() {
            [a, b] if a == columns && b * PER_WORD == rows => Packing::Awq,
            [a, b] if a * PER_WORD == columns && b == rows => Packing::Gptq,
            _ => return None,
        };
        let &[count, of_scales] = scales.shape.as_slice() else { return None };
        let group = columns.checked_div(count).filter(|group| group * count == columns && *group > 0)?;
        let fits = of_scales == rows
            && zeros.shape == [count, rows / PER_WORD]
            && rows.is_multiple_of(PER_WORD)
            && codes.is_words()
            && zeros.is_words()
            && scales.plain().is_some_and(|dtype| scales.holds(dtype.bytes() as usize));
        let groups = match groups {
            None => None,
            Some(listed) if listed.is_words() && listed.shape == [columns] => {
                let listed: Vec<usize> = (0..columns).map(|i| word(listed.data, i) as usize).collect();
                if listed.iter().any(|group| *group >= count) {
                    return None;
                }
                Some(listed)
            }
            Some(_) => return None,
        };
        let zero_offset = if packing == Packing::Gptq { gptq_zero_offset } else { 0 };
        fits.then_some(Packed { packing, rows, columns, group, codes, zeros, scales, groups, zero_offset })
    }

    fn group_of(&self, column: usize) -> usize {
        self.groups.as_ref().map_or(column / self.group, |groups| groups[column])
    }

    fn code(&self, row: usize, column: usize) -> u32 {
        let (at, nibble) = match self.packing {
            Packing::Awq => (column * (self.rows / PER_WORD) + row / PER_WORD, awq_nibble(row)),
            Packing::Gptq => (column / PER_WORD * self.rows + row, column % PER_WORD),
        };
        word(self.codes.data, at) >> (BITS * nibble) & 15
    }

    fn zero(&self, row: usize, group: usize) -> i32 {
        let nibble = if self.packing == Packing::Awq { awq_nibble(row) } else { row % PER_WORD };
        let stored =
            word(self.zeros.data, group * (self.rows / PER_WORD) + row / PER_WORD) >> (BITS * nibble);
        (stored & 15) as i32 + self.zero_offset
    }

    fn scale(&self, row: usize, group: usize) -> f32 {
        number(&self.scales, group * self.rows + row)
    }

    /// The dequantised weights, in rows.
    pub fn values(&self) -> Vec<f32> {
        let mut values = vec![0f32; self.rows * self.columns];
        values.par_chunks_mut(ROWS_TOGETHER * self.columns).enumerate().for_each(|(i, rows)| {
            for column in 0..self.columns {
                let group = self.group_of(column);
                for (j, row) in rows.chunks_mut(self.columns).enumerate() {
                    let at = i * ROWS_TOGETHER + j;
                    row[column] =
                        self.scale(at, group) * (self.code(at, column) as i32 - self.zero(at, group)) as f32;
                }
            }
        });
        values
    }

    /// Whether each block has columns of only one group.
    pub fn fits_blocks(&self) -> bool {
        let is_one = |start: usize| {
            let mut rest = start + 1..start + BLOCK;
            rest.all(|column| column < self.columns && self.group_of(column) == self.group_of(start))
        };
        (0..self.columns).step_by(BLOCK).all(is_one)
    }

    /// The weights as blocks of Q4_1, which has the same codes, the same scales as half floats, and `−scale · zero` as another. `None`
    /// where they do not [fit](Self::fits_blocks).
    pub fn blocks(&self) -> Option<QuantisedRows> {
        if !self.fits_blocks() {
            return None;
        }
        let format = Format::Q4_1;
        let starts: Vec<usize> = (0..self.columns).step_by(BLOCK).collect();
        let row_bytes = starts.len() * format.bytes();
        let mut bytes = vec![0; self.rows * row_bytes];
        bytes.par_chunks_mut(ROWS_TOGETHER * row_bytes).enumerate().for_each(|(i, rows)| {
            for (b, &start) in starts.iter().enumerate() {
                let group = self.group_of(start);
                for (j, row) in rows.chunks_mut(row_bytes).enumerate() {
                    let at = i * ROWS_TOGETHER + j;
                    let block = &mut row[b * format.bytes()..][..format.bytes()];
                    let scale = self.scale(at, group);
                    block[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
                    let offset = -scale * self.zero(at, group) as f32;
                    block[2..4].copy_from_slice(&f16::from_f32(offset).to_le_bytes());
                    for (k, byte) in block[4..].iter_mut().enumerate() {
                        let (low, high) = (self.code(at, start + k), self.code(at, start + BLOCK / 2 + k));
                        *byte = (low | high << 4) as u8;
                    }
                }
            }
        });
        Some(QuantisedRows { format, bytes, rows: self.rows })
    }
}

/// The `at`-th number of an unquantised tensor.
fn number(stored: &Stored<'_>, at: usize) -> f32 {
    let data = stored.data;
    let two = || [data[2 * at], data[2 * at + 1]];
    match stored.dtype {
        Some(DType::F16) => f16::from_le_bytes(two()).to_f32(),
        Some(DType::BF16) => bf16::from_le_bytes(two()).to_f32(),
        _ => f32::from_bits(word(data, at)),
    }
}

fn awq_nibble(row: usize) -> usize {
    AWQ_ORDER.iter().position(|of| *of == row % PER_WORD).unwrap_or(0)
}

/// The `i`-th word. The data are as long as the shape requires, and may lie anywhere.
fn word(data: &[u8], i: usize) -> u32 {
    let bytes = &data[4 * i..4 * i + 4];
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_do_not_fit_together_are_refused() {
        let zeros = vec![0u8; 4096];
        let stored = |shape: &[usize], dtype: DType, bytes: usize| Stored {
            shape: shape.to_vec(),
            dtype: Some(dtype),
            data: &zeros[..bytes],
        };
        let codes = || stored(&[64, 2], DType::I32, 512);
        let points = || stored(&[2, 2], DType::I32, 16);
        let scales = || stored(&[2, 16], DType::F16, 64);
        let new = |parts| Packed::new([16, 64], parts, None, 1);
        assert!(new([codes(), points(), scales()]).is_some_and(|packed| packed.blocks().is_some()));
        let wrong = [
            [stored(&[64, 3], DType::I32, 768), points(), scales()],
            [stored(&[64, 2], DType::F32, 512), points(), scales()],
            // Shorter than the shape requires.
            [stored(&[64, 2], DType::I32, 508), points(), scales()],
            [codes(), stored(&[3, 2], DType::I32, 24), scales()],
            [codes(), points(), stored(&[0, 16], DType::F16, 0)],
            [codes(), points(), stored(&[3, 16], DType::F16, 96)],
            [codes(), points(), stored(&[2, 16], DType::I32, 128)],
            [codes(), points(), stored(&[2, 16], DType::F16, 62)],
        ];
        for parts in wrong {
            let shapes: Vec<_> = parts.iter().map(|part| part.shape.clone()).collect();
            assert!(new(parts).is_none(), "{shapes:?}");
        }
        // A group that does not exist.
        let mut groups = vec![0u8; 256];
        groups[100] = 2;
        let groups = Stored { shape: vec![64], dtype: Some(DType::I32), data: &groups };
        assert!(Packed::new([16, 64], [codes(), points(), scales()], Some(&groups), 1).is_none());
    }
}
