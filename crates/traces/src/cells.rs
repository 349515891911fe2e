//! Rows of CSV in the output of a tool: quoted cells, ragged rows, one row in memory at a time.
//!
//! The `csv` crate does not fit: it skips the blank lines that separate the tables of nsys, has no limit on the
//! length of a row, and reads ncu's raw page at two thirds of the speed.

use std::io::{self, BufRead};

/// A longer row is not a row of a table.
pub const MAX_ROW_BYTES: usize = 4 << 20;

/// Reads rows one after another.
///
/// Quoting follows RFC 4180 with two exceptions: a quote within an unquoted cell is an ordinary character, and the end of
/// the file ends a quoted cell. Rows may have any number of cells; a blank line is a row without cells.
pub struct Rows<R> {
    input: R,
    delimiter: u8,
    line: Vec<u8>,
    cells: Vec<(usize, usize)>,
    bytes_read: u64,
}

/// One row.
#[derive(Clone, Copy)]
pub struct CsvRow<'r> {
    line: &'r [u8],
    cells: &'r [(usize, usize)],
}

impl<R: BufRead> Rows<R> {
    pub fn new(input: R, delimiter: u8) -> Rows<R> {
        Rows { input, delimiter, line: Vec::new(), cells: Vec::new(), bytes_read: 0 }
    }

    /// The next row; `None` at the end. A row longer than [`MAX_ROW_BYTES`] is an error of the kind `InvalidData`.
    pub fn next_row(&mut self) -> io::Result<Option<CsvRow<'_>>> {
        self.line.clear();
        self.cells.clear();
        if !self.append_line()? {
            return Ok(None);
        }
        if self.bytes_read == self.line.len() as u64 && self.line.starts_with("\u{feff}".as_bytes()) {
            self.line.drain(..3);
        }
        let mut at = 0;
        if trimmed_end(&self.line) == 0 {
            return Ok(Some(CsvRow { line: &self.line, cells: &self.cells }));
        }
        loop {
            let (cell, next) = match self.line.get(at) {
                Some(b'"') => self.quoted(at)?,
                _ => self.plain(at),
            };
            self.cells.push(cell);
            match next {
                Some(next) => at = next,
                None => return Ok(Some(CsvRow { line: &self.line, cells: &self.cells })),
            }
        }
    }

    /// Appends a line with its line break; false at the end of the input.
    fn append_line(&mut self) -> io::Result<bool> {
        let before = self.line.len();
        loop {
            let chunk = match self.input.fill_buf() {
                Ok(chunk) => chunk,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            if chunk.is_empty() {
                break;
            }
            let end = memchr::memchr(b'\n', chunk);
            let taken = end.map_or(chunk.len(), |at| at + 1);
            self.line.extend_from_slice(&chunk[..taken]);
            self.input.consume(taken);
            self.bytes_read += taken as u64;
            if self.line.len() > MAX_ROW_BYTES {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("a row of more than {} MB", MAX_ROW_BYTES >> 20),
                ));
            }
            if end.is_some() {
                break;
            }
        }
        Ok(self.line.len() > before)
    }

    /// The cell from `at` to a delimiter or the end of the line, and where the next cell begins.
    fn plain(&self, at: usize) -> ((usize, usize), Option<usize>) {
        let end = trimmed_end(&self.line).max(at);
        match memchr::memchr(self.delimiter, &self.line[at..end]) {
            Some(next) => ((at, at + next), Some(at + next + 1)),
            None => ((at, end), None),
        }
    }

    /// The cell whose opening quote is at `at`. Doubled quotes within become one, in place.
    fn quoted(&mut self, at: usize) -> io::Result<((usize, usize), Option<usize>)> {
        let begin = at + 1;
        let (mut from, mut written) = (begin, begin);
        loop {
            let quote = self.closing_quote(from)?;
            if written != from {
                self.line.copy_within(from..quote, written);
            }
            written += quote - from;
            match self.line.get(quote + 1) {
                Some(b'"') => {
                    self.line[written] = b'"';
                    written += 1;
                    from = quote + 2;
                }
                Some(after) if *after == self.delimiter => return Ok(((begin, written), Some(quote + 2))),
                // Text between the closing quote and the delimiter is dropped.
                _ => {
                    let rest = (quote + 1).min(self.line.len());
                    let next = memchr::memchr(self.delimiter, &self.line[rest..]).map(|at| rest + at + 1);
                    return Ok(((begin, written), next));
                }
            }
        }
    }

    /// The position of the next quote, reading further lines if necessary; without one, the end of the text.
    fn closing_quote(&mut self, from: usize) -> io::Result<usize> {
        let mut searched = from;
        loop {
            if let Some(quote) = memchr::memchr(b'"', &self.line[searched..]) {
                return Ok(searched + quote);
            }
            searched = self.line.len();
            if !self.append_line()? {
                return Ok(trimmed_end(&self.line).max(from));
            }
        }
    }
}

/// The length of a line without its line break.
fn trimmed_end(line: &[u8]) -> usize {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line).len()
}

impl<'r> CsvRow<'r> {
    /// Whether the line is blank.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// The number of cells.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// The cell in a column; `None` if the row is shorter.
    #[inline]
    pub fn get(&self, column: usize) -> Option<&'r [u8]> {
        let (begin, end) = *self.cells.get(column)?;
        Some(&self.line[begin..end])
    }

    /// The cell as text; invalid UTF-8 is replaced.
    pub fn text(&self, column: usize) -> Option<std::borrow::Cow<'r, str>> {
        self.get(column).map(|cell| String::from_utf8_lossy(cell.trim_ascii()))
    }

    pub fn iter(&self) -> impl Iterator<Item = &'r [u8]> {
        let line = self.line;
        self.cells.iter().map(move |(begin, end)| &line[*begin..*end])
    }

    /// All cells as text.
    pub fn texts(&self) -> Vec<String> {
        self.iter().map(|cell| String::from_utf8_lossy(cell.trim_ascii()).into_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(text: &[u8]) -> Vec<Vec<Vec<u8>>> {
        let mut rows = Rows::new(text, b',');
        let mut found = Vec::new();
        while let Some(row) = rows.next_row().unwrap() {
            found.push(row.iter().map(<[u8]>::to_vec).collect());
        }
        found
    }

    fn texts(text: &str) -> Vec<Vec<String>> {
        let text_of = |cell: Vec<u8>| String::from_utf8(cell).unwrap();
        all(text.as_bytes()).into_iter().map(|row| row.into_iter().map(text_of).collect()).collect()
    }

    #[test]
    fn cells_of_all_kinds() {
        assert_eq!(texts("a,b\r\n\"1,234\",\n\nx"), [vec!["a", "b"], vec!["1,234", ""], vec![], vec!["x"]]);
        assert_eq!(texts("\"say \"\"hi\"\"\",\"two\nlines\",z\n"), [vec!["say \"hi\"", "two\nlines", "z"]]);
        assert_eq!(texts("==PROF== \"x\" is, left\n"), [vec!["==PROF== \"x\" is", " left"]]);
        assert_eq!(texts("\"never ends,1\n2"), [vec!["never ends,1\n2"]]);
        assert_eq!(texts("\u{feff}a,b"), [vec!["a", "b"]]);
    }

    #[test]
    fn cells_are_separated_only_by_the_delimiter() {
        let mut rows = Rows::new(&b"\"a;b\" x;1.234,5;\"c\";\n"[..], b';');
        let row = rows.next_row().unwrap().unwrap();
        assert_eq!(row.texts(), ["a;b", "1.234,5", "c", ""]);
    }

    #[test]
    fn a_file_without_lines_is_rejected_before_it_fills_the_memory() {
        let endless = io::BufReader::new(io::Read::take(io::repeat(b'x'), 1 << 30));
        let mut rows = Rows::new(endless, b',');
        assert_eq!(rows.next_row().err().unwrap().kind(), io::ErrorKind::InvalidData);
        assert!(rows.bytes_read < 2 * MAX_ROW_BYTES as u64);
    }

    proptest! {
        #[test]
        fn reads_what_the_csv_crate_writes(
            rows in prop::collection::vec(prop::collection::vec("[a-z0-9 ,\"\n.]{0,12}", 1..6), 1..8)
        ) {
            let mut writer = csv::WriterBuilder::new()
                .flexible(true)
                .quote_style(csv::QuoteStyle::Always)
                .from_writer(Vec::new());
            for row in &rows {
                writer.write_record(row).unwrap();
            }
            let bytes = writer.into_inner().unwrap();
            prop_assert_eq!(texts(std::str::from_utf8(&bytes).unwrap()), rows);
        }

        #[test]
        fn chunk_size_does_not_change_the_rows(
            bytes in prop::collection::vec(prop::sample::select(b"ab,\"\n\r\xff".to_vec()), 0..60), chunk in 1usize..9
        ) {
            let at_once = all(&bytes);
            let mut rows = Rows::new(io::BufReader::with_capacity(chunk, bytes.as_slice()), b',');
            let mut parts = Vec::new();
            while let Some(row) = rows.next_row().unwrap() {
                parts.push(row.iter().map(<[u8]>::to_vec).collect::<Vec<_>>());
            }
            prop_assert_eq!(at_once, parts);
        }
    }
}
