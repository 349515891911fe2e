//! The delimiters and decimal marks of a text file, detected from its beginning.

use std::io::{self, BufRead, Read};

use super::{
    cells::{CsvRow, Rows},
    quantity::{Decimal, DecimalVotes, ThreeDigits},
};

/// The header is within this many bytes, after the output of the profiler and the program. So are enough numbers to
/// detect their locale.
pub const BEGINNING: u64 = 1 << 20;

/// Tried in this order.
pub const DELIMITERS: [u8; 3] = [b',', b';', b'\t'];

/// The delimiter and the decimal mark of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dialect {
    pub delimiter: u8,
    pub decimal: Decimal,
}

impl Dialect {
    /// The dialect in which `header` accepts a row of `beginning`. `header` returns the columns whose numbers are
    /// examined.
    fn detect(
        beginning: &[u8],
        three_digits: ThreeDigits,
        header: impl Fn(CsvRow) -> Option<Vec<usize>>,
    ) -> Dialect {
        for delimiter in DELIMITERS {
            let mut rows = Rows::new(beginning, delimiter);
            let Some(columns) = first(&mut rows, &header) else { continue };
            let mut votes = DecimalVotes::default();
            while let Ok(Some(row)) = rows.next_row() {
                columns.iter().filter_map(|column| row.get(*column)).for_each(|cell| votes.count(cell));
            }
            return Dialect { delimiter, decimal: votes.decided(three_digits) };
        }
        Dialect { delimiter: DELIMITERS[0], decimal: Decimal::default() }
    }
}

fn first(
    rows: &mut Rows<impl BufRead>,
    header: &impl Fn(CsvRow) -> Option<Vec<usize>>,
) -> Option<Vec<usize>> {
    while let Ok(Some(row)) = rows.next_row() {
        if let Some(columns) = header(row) {
            return Some(columns);
        }
    }
    None
}

/// The rows of a file in its own dialect. The input may be a pipe: it is read once.
pub fn rows<R: BufRead>(
    mut input: R,
    three_digits: ThreeDigits,
    header: impl Fn(CsvRow) -> Option<Vec<usize>>,
) -> io::Result<(Rows<impl BufRead>, Decimal)> {
    // The full size is allocated at once: growing would need twice as much memory.
    let mut beginning = Vec::with_capacity(BEGINNING as usize);
    input.by_ref().take(BEGINNING).read_to_end(&mut beginning)?;
    let Dialect { delimiter, decimal } = Dialect::detect(&beginning, three_digits, header);
    Ok((Rows::new(io::Cursor::new(beginning).chain(input), delimiter), decimal))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialect(text: &str) -> Dialect {
        Dialect::detect(text.as_bytes(), ThreeDigits::Fraction, |row| {
            (row.len() == 2 && row.get(0) == Some(b"a")).then(|| vec![1])
        })
    }

    #[test]
    fn delimiter_and_decimals_are_detected() {
        let of = |delimiter, decimal| Dialect { delimiter, decimal };
        assert_eq!(dialect("a,b\nx,\"1.5\"\n"), of(b',', Decimal::Point));
        assert_eq!(dialect("a,b\n9.0,\"1,5\"\n"), of(b',', Decimal::Comma), "other columns do not count");
        assert_eq!(dialect("1.5;2.5\n\"a\";b\nx;1.234,5\n"), of(b';', Decimal::Comma));
        assert_eq!(dialect("a\tb\nx\t1,234\n"), of(b'\t', Decimal::Point));
        assert_eq!(dialect("nothing"), of(b',', Decimal::Point));
    }

    #[test]
    fn the_rows_begin_at_the_beginning() {
        let (mut rows, _) = rows(&b"x\na;b\n1;2\n"[..], ThreeDigits::Fraction, |row| {
            (row.get(0) == Some(b"a")).then(Vec::new)
        })
        .unwrap();
        let mut lines = 0;
        while let Some(row) = rows.next_row().unwrap() {
            lines += 1;
            assert!(lines == 1 || row.iter().count() == 2);
        }
        assert_eq!(lines, 3);
    }
}
