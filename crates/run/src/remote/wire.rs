//! Frames and requests on a pipe. Input from the other end is bounded before it is stored.

use std::io::{self, BufRead, ErrorKind, Read, Write};

use serde::{Serialize, de::DeserializeOwned};

use super::protocol::{Frame, MAX_PAYLOAD};
use llmprof_base::read;

/// Maximum length of a line of either end.
pub const MAX_LINE_BYTES: u64 = 1 << 20;
/// Maximum output of a login shell before that of the program.
const MAX_GREETING_BYTES: usize = 256 << 10;

/// Writes `frame` with its bytes and flushes.
pub fn send(out: &mut impl Write, frame: &Frame, payload: &[u8]) -> io::Result<()> {
    debug_assert_eq!(frame.payload(), payload.len());
    send_line(out, frame)?;
    out.write_all(payload)?;
    out.flush()
}

pub fn send_line(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    out.write_all(&line)
}

/// The next frame with its bytes; `None` at the end.
pub fn receive(input: &mut impl BufRead) -> io::Result<Option<(Frame, Vec<u8>)>> {
    let Some(frame) = receive_line::<Frame>(input)? else { return Ok(None) };
    if frame.payload() > MAX_PAYLOAD {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            "a frame is larger than any that the program sends",
        ));
    }
    let mut payload = vec![0; frame.payload()];
    input.read_exact(&mut payload)?;
    Ok(Some((frame, payload)))
}

/// The next line as a value; `None` at the end.
pub fn receive_line<T: DeserializeOwned>(input: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    if !read::line(input, MAX_LINE_BYTES, &mut line)? {
        return Ok(None);
    }
    if line.last() != Some(&b'\n') {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(serde_json::from_slice(&line)?))
}

/// The first line that begins like a hello: a login shell may have printed other lines before it. Returns it with that
/// output.
pub fn first_line(input: &mut impl BufRead) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let mut greeting = Vec::new();
    loop {
        let mut line = Vec::new();
        let room = (MAX_GREETING_BYTES - greeting.len()) as u64;
        input.by_ref().take(room).read_until(b'\n', &mut line)?;
        if line.starts_with(br#"{"hello":"#) {
            return Ok((line, greeting));
        }
        greeting.extend_from_slice(&line);
        if line.is_empty() || greeting.len() >= MAX_GREETING_BYTES {
            return Ok((Vec::new(), greeting));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn frames_round_trip() {
        let mut pipe = Vec::new();
        let events = Frame::Events { run: 2, at: 9, len: 5 };
        send(&mut pipe, &events, b"a\n{\0\xff").unwrap();
        send(&mut pipe, &Frame::Exit { code: 3 }, b"").unwrap();
        let mut input = BufReader::new(&pipe[..]);
        assert_eq!(receive(&mut input).unwrap(), Some((events, b"a\n{\0\xff".to_vec())));
        assert_eq!(receive(&mut input).unwrap(), Some((Frame::Exit { code: 3 }, Vec::new())));
        assert_eq!(receive(&mut input).unwrap(), None);
    }

    #[test]
    fn shell_output_is_skipped() {
        let text = b"Welcome\n\x1b[31mred\n{\"hello\":1}\nrest";
        let (line, greeting) = first_line(&mut BufReader::new(&text[..])).unwrap();
        assert_eq!((&line[..], &greeting[..]), (&b"{\"hello\":1}\n"[..], &b"Welcome\n\x1b[31mred\n"[..]));
        let (line, greeting) = first_line(&mut BufReader::new(io::repeat(b'x'))).unwrap();
        assert_eq!((line.len(), greeting.len()), (0, MAX_GREETING_BYTES));
    }

    #[test]
    fn a_larger_frame_is_refused_before_it_is_read() {
        let line = format!("{{\"chunk\":{{\"len\":{}}}}}\n", MAX_PAYLOAD + 1);
        assert_eq!(receive(&mut BufReader::new(line.as_bytes())).unwrap_err().kind(), ErrorKind::InvalidData);
        let mut endless = BufReader::new(io::repeat(b'{'));
        assert_eq!(receive(&mut endless).unwrap_err().kind(), ErrorKind::FileTooLarge);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_a_frame_or_an_error(bytes: Vec<u8>) {
            let mut input = BufReader::new(&bytes[..]);
            while let Ok(Some(_)) = receive(&mut input) {}
        }
    }
}
