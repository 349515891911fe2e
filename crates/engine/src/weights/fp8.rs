//! FP8 (e4m3) weights and their scales, as published checkpoints have them.

use super::{packed::Stored, values::wide};

/// Columns that share a scale.
pub const SCALED: usize = 128;
/// Rows that share one where all of a block of 128 do; matrices of which several are below each other begin at multiples of it.
const SCALED_ROWS: usize = 16;

/// Rows of codes, each with scales for every 128 of its columns.
#[derive(Debug, PartialEq)]
pub struct Fp8Rows {
    pub codes: Vec<u8>,
    pub rows: usize,
    /// Row by row of blocks of `scale_rows` × 128.
    pub scales: Vec<f32>,
    pub scale_rows: usize,
}

/// The value of a code.
pub fn number(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 0xf), f32::from(code & 7));
    let size = match (exponent, code & 0x7f) {
        (_, 0x7f) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
    };
    if code & 0x80 == 0 { size } else { -size }
}

/// A matrix of `rows` × `columns` with its scales, as stored.
pub(super) struct Fp8<'a> {
    rows: usize,
    columns: usize,
    codes: &'a [u8],
    scales: Vec<f32>,
    of: Scaling,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Scaling {
    Matrix,
    Row,
    /// 128 × 128.
    Block,
}

impl<'a> Fp8<'a> {
    /// `None` if the shapes or types do not match.
    pub fn new([rows, columns]: [usize; 2], codes: &'a [u8], scales: &Stored<'_>) -> Option<Fp8<'a>> {
        let values = wide(scales.plain()?, scales.data);
        let of = match *scales.shape.as_slice() {
            [] | [1] | [1, 1] if rows > 1 => Scaling::Matrix,
            [n] | [n, 1] if n == rows => Scaling::Row,
            [r, c] if r == rows.div_ceil(SCALED) && c == columns.div_ceil(SCALED) => Scaling::Block,
            _ => return None,
        };
        let count = scales.shape.iter().product::<usize>();
        let fits = rows.checked_mul(columns) == Some(codes.len()) && count == values.len();
        fits.then_some(Fp8 { rows, columns, codes, scales: values, of })
    }

    fn scale(&self, row: usize, column: usize) -> f32 {
        match self.of {
            Scaling::Matrix => self.scales[0],
            Scaling::Row => self.scales[row],
            Scaling::Block => self.scales[row / SCALED * self.columns.div_ceil(SCALED) + column / SCALED],
        }
    }

    pub fn values(&self) -> Vec<f32> {
        let numbers: Vec<f32> = (0..=255).map(number).collect();
        let row = |row: usize| {
            let codes = &self.codes[row * self.columns..][..self.columns];
            let numbers = &numbers;
            codes.iter().enumerate().map(move |(at, code)| numbers[usize::from(*code)] * self.scale(row, at))
        };
        (0..self.rows).flat_map(row).collect()
    }

    /// Rows that share a scale on a device.
    fn scale_rows(&self) -> usize {
        if self.of == Scaling::Row { 1 } else { SCALED_ROWS }
    }
}

/// Bytes of a matrix on a device.
pub fn bytes(rows: usize, columns: usize) -> u64 {
    (rows * columns + rows.div_ceil(SCALED_ROWS) * columns.div_ceil(SCALED) * 4) as u64
}

/// The matrices stacked by rows; `None` if they cannot share one table of scales, or if a size is not a multiple of 16.
pub(super) fn stacked(parts: &[Fp8<'_>]) -> Option<Fp8Rows> {
    let columns = parts.first()?.columns;
    let scale_rows = parts.iter().map(Fp8::scale_rows).min()?;
    let (_, before) = parts.split_last()?;
    let aligned = before.iter().all(|part| part.rows.is_multiple_of(scale_rows));
    if !columns.is_multiple_of(16) || !aligned || parts.iter().any(|part| part.columns != columns) {
        return None;
    }
    let mut joined = Fp8Rows { codes: Vec::new(), rows: 0, scales: Vec::new(), scale_rows };
    for part in parts {
        joined.codes.extend_from_slice(part.codes);
        joined.rows += part.rows;
        for row in (0..part.rows).step_by(scale_rows) {
            joined.scales.extend((0..columns).step_by(SCALED).map(|column| part.scale(row, column)));
        }
    }
    Some(joined)
}

#[cfg(test)]
mod tests {
    use candle_core::DType;
    use float8::F8E4M3;

    use super::*;

    fn scales<'a>(shape: &[usize], data: &'a [u8]) -> Stored<'a> {
        Stored { shape: shape.to_vec(), dtype: Some(DType::F32), data }
    }

    #[test]
    fn codes_have_the_numbers_of_another_implementation() {
        for code in 0..=255u8 {
            let (ours, theirs) = (number(code), F8E4M3::from_bits(code).to_f32());
            assert!(ours == theirs || (ours.is_nan() && theirs.is_nan()), "{code}: {ours} {theirs}");
        }
    }

    #[test]
    fn scales_by_matrix_row_and_block() {
        // 1.0 and 2.0, in rows of 144.
        let codes: Vec<u8> = (0..20 * 144).map(|i| if i % 2 == 0 { 0x38 } else { 0x40 }).collect();
        let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let one = bytes(&[0.5]);
        let matrix = Fp8::new([20, 144], &codes, &scales(&[], &one)).unwrap();
        assert_eq!(matrix.values()[..3], [0.5, 1.0, 0.5]);
        let by_row = bytes(&(0..20).map(|i| i as f32).collect::<Vec<_>>());
        let rows = Fp8::new([20, 144], &codes, &scales(&[20, 1], &by_row)).unwrap();
        assert_eq!(rows.values()[144 * 7 + 1], 14.0);
        let by_block = bytes(&[1.0, 3.0]);
        let blocks = Fp8::new([20, 144], &codes, &scales(&[1, 2], &by_block)).unwrap();
        assert_eq!((blocks.values()[127], blocks.values()[129]), (2.0, 6.0));
        let joined =
            stacked(&[Fp8::new([16, 144], &codes[..16 * 144], &scales(&[1], &one)).unwrap(), blocks])
                .unwrap();
        assert_eq!((joined.rows, joined.scale_rows), (36, 16));
        assert_eq!(joined.scales, [0.5, 0.5, 1.0, 3.0, 1.0, 3.0]);
        assert_eq!(stacked(&[rows]).unwrap().scales.len(), 40);
        // Twenty rows are not a multiple of sixteen.
        let matrices = [(); 2].map(|()| Fp8::new([20, 144], &codes, &scales(&[], &one)).unwrap());
        assert_eq!(stacked(&matrices), None);
        assert!(Fp8::new([20, 144], &codes, &scales(&[3, 2], &by_row[..24])).is_none());
        assert!(Fp8::new([20, 144], &codes[1..], &scales(&[], &one)).is_none());
    }
}
