//! The lines of a log as text, and the cells of a line.

use std::io::{self, BufRead, BufReader, Read};

/// A longer line is not one of a telemetry log.
const MAX_LINE: usize = 1 << 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Utf8,
    Utf16 { big_endian: bool },
}

/// The numbered lines of a text in UTF-8, or in UTF-16 with a byte order mark.
pub(super) struct Lines<R> {
    input: BufReader<R>,
    encoding: Encoding,
    number: u64,
}

impl<R: Read> Lines<R> {
    pub(super) fn open(input: R) -> io::Result<Lines<R>> {
        let mut input = BufReader::new(input);
        let (encoding, mark) = match input.fill_buf()? {
            [0xff, 0xfe, ..] => (Encoding::Utf16 { big_endian: false }, 2),
            [0xfe, 0xff, ..] => (Encoding::Utf16 { big_endian: true }, 2),
            [0xef, 0xbb, 0xbf, ..] => (Encoding::Utf8, 3),
            _ => (Encoding::Utf8, 0),
        };
        input.consume(mark);
        Ok(Lines { input, encoding, number: 0 })
    }

    /// The next line that is not blank, with its number. Invalid bytes become U+FFFD.
    pub(super) fn read_next(&mut self) -> io::Result<Option<(u64, String)>> {
        loop {
            let line = match self.encoding {
                Encoding::Utf8 => self.read_utf8()?,
                Encoding::Utf16 { big_endian } => self.read_utf16(big_endian)?,
            };
            let Some(line) = line else { return Ok(None) };
            self.number += 1;
            if !line.trim().is_empty() {
                return Ok(Some((self.number, line)));
            }
        }
    }

    fn read_utf8(&mut self) -> io::Result<Option<String>> {
        let mut bytes = Vec::new();
        let read = self.input.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut bytes)?;
        self.check_length(read)?;
        Ok((read > 0).then(|| String::from_utf8_lossy(&bytes).into_owned()))
    }

    fn read_utf16(&mut self, big_endian: bool) -> io::Result<Option<String>> {
        let mut units = Vec::new();
        while let Some(unit) = self.read_unit(big_endian)? {
            units.push(unit);
            self.check_length(units.len())?;
            if unit == u16::from(b'\n') {
                break;
            }
        }
        Ok((!units.is_empty()).then(|| String::from_utf16_lossy(&units)))
    }

    /// Two bytes; a single one at the end is dropped.
    fn read_unit(&mut self, big_endian: bool) -> io::Result<Option<u16>> {
        let mut pair = [0; 2];
        match self.input.read_exact(&mut pair) {
            Ok(()) if big_endian => Ok(Some(u16::from_be_bytes(pair))),
            Ok(()) => Ok(Some(u16::from_le_bytes(pair))),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn check_length(&self, length: usize) -> io::Result<()> {
        match length < MAX_LINE {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("line {} is longer than {MAX_LINE} characters", self.number + 1),
            )),
        }
    }
}

/// The separator of the cells of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Separator {
    Char(char),
    /// Any number of blanks, as in `nvidia-smi dmon`.
    Blanks,
}

impl Separator {
    /// The separator of a header: the most frequent of `,`, `;` and tab.
    pub(super) fn detect(header: &str) -> Separator {
        let count = |separator: char| header.matches(separator).count();
        match [',', ';', '\t'].into_iter().max_by_key(|separator| count(*separator)) {
            Some(separator) if count(separator) > 0 => Separator::Char(separator),
            _ => Separator::Blanks,
        }
    }

    /// The cells of a line, without blanks and quotes around them. A separator within quotes is part of its cell.
    pub(super) fn split(self, line: &str) -> Vec<String> {
        let cell = |text: &str| text.trim().trim_matches('"').trim().to_owned();
        let mut quoted = false;
        match self {
            Separator::Blanks => line.split_whitespace().map(cell).collect(),
            Separator::Char(separator) => line
                .trim_end_matches(['\r', '\n'])
                .split(|c: char| {
                    quoted ^= c == '"';
                    c == separator && !quoted
                })
                .map(cell)
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &[u8]) -> Vec<(u64, String)> {
        let mut lines = Lines::open(bytes).unwrap();
        std::iter::from_fn(|| lines.read_next().unwrap()).collect()
    }

    #[test]
    fn texts_of_any_encoding_are_the_same_lines() {
        let text = "a;ü\r\n\r\nb;𝄞";
        let expected = [(1, "a;ü\r\n".to_owned()), (3, "b;𝄞".to_owned())];
        let wide = |mark: u16, bytes: fn(u16) -> [u8; 2]| -> Vec<u8> {
            std::iter::once(mark).chain(text.encode_utf16()).flat_map(bytes).collect()
        };
        assert_eq!(lines(text.as_bytes()), expected);
        assert_eq!(lines(format!("\u{feff}{text}").as_bytes()), expected);
        assert_eq!(lines(&wide(0xfeff, u16::to_le_bytes)), expected);
        assert_eq!(lines(&wide(0xfeff, u16::to_be_bytes)), expected);
        assert_eq!(lines(&[0xff, 0xfe, b'a', 0, 1]), [(1, "a".to_owned())], "a torn last character");
        assert!(Lines::open(vec![b'x'; MAX_LINE + 1].as_slice()).unwrap().read_next().is_err());
    }

    #[test]
    fn cells_are_split_at_the_separator_of_the_header() {
        let cases: &[(&str, &str, &[&str])] = &[
            ("a, b", "1, \"2,5 W\", 3\n", &["1", "2,5 W", "3"]),
            ("a;b", "1;2,5 W;\r\n", &["1", "2,5 W", ""]),
            ("a\tb", "1\t2", &["1", "2"]),
            ("a b", "  1   2 ", &["1", "2"]),
            ("a,b", "\"torn, line", &["torn, line"]),
        ];
        for (header, line, cells) in cases {
            assert_eq!(Separator::detect(header).split(line), *cells, "{line}");
        }
    }
}
