//! JSON as profilers write it, made valid while it is read.
//!
//! Numbers that are not finite (`nan`, `-inf`) and bare words become empty strings of the same length. Strings have a
//! limit: an endless string would fill the memory.

use std::io::{self, BufRead, Read};

/// Maximum length of a string; names of kernels have a few kilobytes.
const MAX_STRING: usize = 1 << 20;
/// Longer words outside of strings are passed on unchanged, and are not valid JSON.
const MAX_WORD: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Within {
    Nothing,
    /// With the length so far.
    Text(usize),
    /// After a backslash.
    Escape(usize),
}

/// Reads JSON from `input` and repairs it.
pub struct Repaired<R> {
    input: R,
    within: Within,
    /// A word outside of strings whose end was not read yet.
    word: Vec<u8>,
    /// Repaired content that was not returned yet.
    ready: Vec<u8>,
    taken: usize,
}

impl<R: BufRead> Repaired<R> {
    pub fn new(input: R) -> Repaired<R> {
        Repaired { input, within: Within::Nothing, word: Vec::new(), ready: Vec::new(), taken: 0 }
    }

    /// Repairs more content; nothing at the end of the input.
    fn fill(&mut self) -> io::Result<()> {
        self.ready.clear();
        self.taken = 0;
        while self.ready.is_empty() {
            let chunk = match self.input.fill_buf() {
                Ok(chunk) => chunk,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            if chunk.is_empty() {
                finish(&mut self.word, &mut self.ready);
                return Ok(());
            }
            let length = chunk.len();
            repair(chunk, &mut self.within, &mut self.word, &mut self.ready)?;
            self.input.consume(length);
        }
        Ok(())
    }
}

fn repair(mut chunk: &[u8], within: &mut Within, word: &mut Vec<u8>, out: &mut Vec<u8>) -> io::Result<()> {
    while let Some((first, rest)) = chunk.split_first() {
        match *within {
            Within::Text(length) => {
                let end = memchr::memchr2(b'"', b'\\', chunk).unwrap_or(chunk.len());
                let length = length + end;
                if length > MAX_STRING {
                    let text = format!("it has a string of more than {} MB", MAX_STRING >> 20);
                    return Err(io::Error::new(io::ErrorKind::InvalidData, text));
                }
                out.extend_from_slice(&chunk[..end]);
                chunk = &chunk[end..];
                *within = Within::Text(length);
                if let Some((mark, rest)) = chunk.split_first() {
                    out.push(*mark);
                    *within = if *mark == b'"' { Within::Nothing } else { Within::Escape(length + 1) };
                    chunk = rest;
                }
            }
            Within::Escape(length) => {
                out.push(*first);
                *within = Within::Text(length + 1);
                chunk = rest;
            }
            Within::Nothing => {
                let is_word = first.is_ascii_alphanumeric() || matches!(first, b'-' | b'+' | b'.' | b'_');
                if is_word && word.len() < MAX_WORD {
                    word.push(*first);
                } else {
                    finish(word, out);
                    out.push(*first);
                    if *first == b'"' {
                        *within = Within::Text(0);
                    }
                }
                chunk = rest;
            }
        }
    }
    Ok(())
}

/// Passes a word on, as an empty string if it is not a JSON value.
fn finish(word: &mut Vec<u8>, out: &mut Vec<u8>) {
    let bare = word.strip_prefix(b"-").unwrap_or(word);
    let is_value = matches!(bare, b"true" | b"false" | b"null")
        || bare.iter().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'+' | b'e' | b'E'));
    if is_value || word.len() < 2 {
        out.append(word);
        return;
    }
    out.extend_from_slice(b"\"\"");
    out.resize(out.len() + word.len() - 2, b' ');
    word.clear();
}

impl<R: BufRead> Read for Repaired<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.ready.len() {
            self.fill()?;
        }
        let ready = &self.ready[self.taken..];
        let length = ready.len().min(buffer.len());
        buffer[..length].copy_from_slice(&ready[..length]);
        self.taken += length;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use proptest::prelude::*;

    use super::*;

    fn repaired(text: &[u8], chunk: usize) -> io::Result<String> {
        let mut out = Vec::new();
        Repaired::new(BufReader::with_capacity(chunk, text)).read_to_end(&mut out)?;
        Ok(String::from_utf8_lossy(&out).into_owned())
    }

    #[test]
    fn values_that_are_no_json_become_empty_strings() {
        for (text, wanted) in [
            (r#"{"a": nan, "b": [-inf, inf], "c": NaN}"#, r#"{"a": "" , "b": [""  , "" ], "c": "" }"#),
            (r#"{"a": ncclFloat32, "b": 0x262ca50}"#, r#"{"a": ""         , "b": ""       }"#),
            (
                r#"{"a": true, "b": -1.5e+3, "c": null, "d": false}"#,
                r#"{"a": true, "b": -1.5e+3, "c": null, "d": false}"#,
            ),
            (r#"{"nan": "nan \" inf \\", "b": 1}"#, r#"{"nan": "nan \" inf \\", "b": 1}"#),
            ("inf", "\"\" "),
            ("", ""),
        ] {
            for chunk in [1, 3, 100] {
                assert_eq!(repaired(text.as_bytes(), chunk).unwrap(), wanted);
            }
        }
    }

    #[test]
    fn a_string_that_does_not_end_is_refused() {
        let endless = io::repeat(b'x').take(1 << 30);
        let text = BufReader::new(b"{\"a\": \"".as_slice().chain(endless));
        let e = io::copy(&mut Repaired::new(text), &mut io::sink()).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::InvalidData);
    }

    proptest! {
        #[test]
        fn valid_json_is_not_changed(values in prop::collection::vec((".{0,8}", any::<i32>(), -1e9..1e9f64), 0..4), chunk in 1usize..40) {
            let text = serde_json::to_string(&values).unwrap();
            prop_assert_eq!(repaired(text.as_bytes(), chunk).unwrap(), text);
        }

        #[test]
        fn the_length_stays(bytes in prop::collection::vec(any::<u8>(), 0..200), chunk in 1usize..40) {
            let mut out = Vec::new();
            let read = Repaired::new(BufReader::with_capacity(chunk, bytes.as_slice())).read_to_end(&mut out).unwrap();
            prop_assert_eq!(read, bytes.len());
        }
    }
}
