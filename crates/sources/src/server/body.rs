//! The framing of a response body: by a length, in chunks, or until the connection is closed.

use thiserror::Error;

/// Maximum length of a line that announces a chunk.
const MAX_CHUNK_LINE: usize = 1024;
const MAX_TRAILER_BYTES: usize = 16 << 10;

#[derive(Debug, Error, PartialEq, Eq)]
pub enum BodyError {
    #[error("the server closed the connection in the middle of the answer")]
    Incomplete,
    #[error("the answer has a broken chunk")]
    BrokenChunk,
}

#[derive(Debug)]
pub struct Body(Framing);

#[derive(Debug)]
enum Framing {
    Length(u64),
    Chunked(Chunked),
    UntilClose,
    Done,
}

#[derive(Debug)]
enum Chunked {
    /// The part of the size line that was read so far.
    Size(Vec<u8>),
    Data(u64),
    /// The line end after a chunk; the number of its bytes that were read.
    DataEnd(u8),
    /// Lines after the last chunk, up to an empty one: the length of this line, and of all.
    Trailer(usize, usize),
}

impl Body {
    pub fn length(bytes: u64) -> Body {
        Body(if bytes == 0 { Framing::Done } else { Framing::Length(bytes) })
    }

    pub fn chunked() -> Body {
        Body(Framing::Chunked(Chunked::Size(Vec::new())))
    }

    pub fn until_close() -> Body {
        Body(Framing::UntilClose)
    }

    pub fn is_done(&self) -> bool {
        matches!(self.0, Framing::Done)
    }

    /// Whether its end is known without closing the connection.
    pub fn has_end(&self) -> bool {
        !matches!(self.0, Framing::UntilClose)
    }

    /// The connection was closed.
    pub fn closed(&mut self) -> Result<(), BodyError> {
        match self.0 {
            Framing::UntilClose | Framing::Done => {
                self.0 = Framing::Done;
                Ok(())
            }
            _ => Err(BodyError::Incomplete),
        }
    }

    /// Appends the body's part of `bytes` to `out`. Returns the number of bytes used: all, or up to the end of the
    /// body.
    pub fn decode(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<usize, BodyError> {
        let mut used = 0;
        while used < bytes.len() {
            let rest = &bytes[used..];
            match &mut self.0 {
                Framing::Done => break,
                Framing::UntilClose => {
                    out.extend_from_slice(rest);
                    used = bytes.len();
                }
                Framing::Length(left) => {
                    let count = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    out.extend_from_slice(&rest[..count]);
                    *left -= count as u64;
                    used += count;
                    if *left == 0 {
                        self.0 = Framing::Done;
                    }
                }
                Framing::Chunked(state) => {
                    let (count, next) = state.step(rest, out)?;
                    used += count;
                    match next {
                        Next::Same => {}
                        Next::State(next) => *state = next,
                        Next::End => self.0 = Framing::Done,
                    }
                }
            }
        }
        Ok(used)
    }
}

enum Next {
    Same,
    State(Chunked),
    End,
}

impl Chunked {
    fn step(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(usize, Next), BodyError> {
        match self {
            Chunked::Size(line) => {
                let end = bytes.iter().position(|byte| *byte == b'\n');
                let part = &bytes[..end.unwrap_or(bytes.len())];
                line.extend_from_slice(part);
                if line.len() > MAX_CHUNK_LINE {
                    return Err(BodyError::BrokenChunk);
                }
                let Some(end) = end else { return Ok((bytes.len(), Next::Same)) };
                let next = match size_of_chunk(line)? {
                    0 => Chunked::Trailer(0, 0),
                    size => Chunked::Data(size),
                };
                Ok((end + 1, Next::State(next)))
            }
            Chunked::Data(left) => {
                let count = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                out.extend_from_slice(&bytes[..count]);
                *left -= count as u64;
                Ok((count, if *left == 0 { Next::State(Chunked::DataEnd(0)) } else { Next::Same }))
            }
            Chunked::DataEnd(seen) => match (*seen, bytes[0]) {
                (0, b'\r') => {
                    *seen = 1;
                    Ok((1, Next::Same))
                }
                (_, b'\n') => Ok((1, Next::State(Chunked::Size(Vec::new())))),
                _ => Err(BodyError::BrokenChunk),
            },
            Chunked::Trailer(line, all) => {
                *all += 1;
                if *all > MAX_TRAILER_BYTES {
                    return Err(BodyError::BrokenChunk);
                }
                match bytes[0] {
                    b'\n' if *line == 0 => return Ok((1, Next::End)),
                    b'\n' => *line = 0,
                    b'\r' => {}
                    _ => *line += 1,
                }
                Ok((1, Next::Same))
            }
        }
    }
}

/// The hexadecimal number before an extension.
fn size_of_chunk(line: &[u8]) -> Result<u64, BodyError> {
    let text = std::str::from_utf8(line).map_err(|_| BodyError::BrokenChunk)?;
    let number = text.split(';').next().unwrap_or_default().trim();
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(BodyError::BrokenChunk);
    }
    u64::from_str_radix(number, 16).map_err(|_| BodyError::BrokenChunk)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(mut body: Body, parts: &[&[u8]]) -> Result<(Vec<u8>, bool), BodyError> {
        let mut out = Vec::new();
        for part in parts {
            body.decode(part, &mut out)?;
        }
        Ok((out, body.is_done()))
    }

    #[test]
    fn broken_chunks_are_refused() {
        for text in ["x\r\n", "\r\n", "5\r\nabcdeX", "-1\r\n", "fffffffffffffffff\r\n"] {
            assert_eq!(decode(Body::chunked(), &[text.as_bytes()]), Err(BodyError::BrokenChunk), "{text:?}");
        }
        let mut half = Body::chunked();
        half.decode(b"5\r\nab", &mut Vec::new()).unwrap();
        assert_eq!(half.closed(), Err(BodyError::Incomplete));
    }

    #[test]
    fn bytes_after_the_end_are_left() {
        let mut body = Body::chunked();
        let mut out = Vec::new();
        let text = b"3;x=1\r\nabc\r\n0\r\nT: 1\r\n\r\nHTTP/1.1";
        assert_eq!(body.decode(text, &mut out).unwrap(), text.len() - 8);
        assert_eq!((out.as_slice(), body.is_done()), (&b"abc"[..], true));
        assert_eq!(decode(Body::length(2), &[b"abc"]).unwrap(), (b"ab".to_vec(), true));
    }

    proptest! {
        #[test]
        fn chunks_are_read_however_they_arrive(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..8), cuts in prop::collection::vec(1usize..30, 1..20)) {
            let mut text = Vec::new();
            for chunk in &chunks {
                text.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                text.extend_from_slice(chunk);
                text.extend_from_slice(b"\r\n");
            }
            text.extend_from_slice(b"0\r\n\r\n");
            let mut body = Body::chunked();
            let (mut out, mut rest) = (Vec::new(), text.as_slice());
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break }
                let (part, left) = rest.split_at((*cut).min(rest.len()));
                prop_assert_eq!(body.decode(part, &mut out).unwrap(), part.len());
                rest = left;
            }
            prop_assert!(body.is_done());
            prop_assert_eq!(out, chunks.concat());
        }

        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut out = Vec::new();
            let _ = Body::chunked().decode(&bytes, &mut out);
            prop_assert!(out.len() <= bytes.len());
        }
    }
}
