//! Server-sent events: the `data` of each, however the reads divide them.

/// Maximum length of an event; longer ones are skipped and counted.
const MAX_EVENT_BYTES: usize = 1 << 20;

#[derive(Debug, Default)]
pub struct Events {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    /// Whether the current line, or its event, is too long.
    skips_line: bool,
    skips_event: bool,
    /// The number of events that were too long.
    pub skipped: u64,
    after_return: bool,
}

impl Events {
    /// Calls `each` with the data of every event that `bytes` complete.
    pub fn feed(&mut self, bytes: &[u8], each: &mut impl FnMut(&[u8])) {
        let mut rest = bytes;
        while !rest.is_empty() {
            // CR LF is one line end.
            if std::mem::take(&mut self.after_return) && rest[0] == b'\n' {
                rest = &rest[1..];
                continue;
            }
            let Some(end) = memchr::memchr2(b'\n', b'\r', rest) else {
                self.keep(rest);
                return;
            };
            self.after_return = rest[end] == b'\r';
            if self.line.is_empty() && !self.skips_line && end <= MAX_EVENT_BYTES {
                self.end_line(&rest[..end], each);
            } else {
                self.keep(&rest[..end]);
                let mut line = std::mem::take(&mut self.line);
                self.end_line(&line, each);
                line.clear();
                self.line = line;
            }
            rest = &rest[end + 1..];
        }
    }

    /// Appends to an incomplete line.
    fn keep(&mut self, part: &[u8]) {
        self.skips_line |= self.line.len() + part.len() > MAX_EVENT_BYTES;
        if !self.skips_line {
            self.line.extend_from_slice(part);
        }
    }

    /// The stream has ended: an event without its blank line counts.
    pub fn finish(&mut self, each: &mut impl FnMut(&[u8])) {
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() || self.skips_line {
            self.end_line(&line, each);
        }
        self.dispatch(each);
    }

    fn end_line(&mut self, line: &[u8], each: &mut impl FnMut(&[u8])) {
        if std::mem::take(&mut self.skips_line) {
            self.skips_event = true;
        } else if line.is_empty() {
            self.dispatch(each);
        } else if let Some(value) = line.strip_prefix(b"data:") {
            let value = value.strip_prefix(b" ").unwrap_or(value);
            if self.data.len() + value.len() > MAX_EVENT_BYTES {
                self.skips_event = true;
            } else {
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
                self.has_data = true;
            }
        }
        // Other fields and comments (`:`) are ignored.
    }

    fn dispatch(&mut self, each: &mut impl FnMut(&[u8])) {
        if std::mem::take(&mut self.skips_event) {
            self.skipped += 1;
        } else if self.has_data {
            each(&self.data);
        }
        self.data.clear();
        self.has_data = false;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(parts: &[&[u8]]) -> Vec<String> {
        let (mut events, mut out) = (Events::default(), Vec::new());
        let mut each = |data: &[u8]| out.push(String::from_utf8_lossy(data).into_owned());
        parts.iter().for_each(|part| events.feed(part, &mut each));
        events.finish(&mut each);
        out
    }

    #[test]
    fn events_of_all_shapes_are_read() {
        let text = ": keep-alive\n\ndata: a\n\ndata:b\r\n\r\nevent: x\nid: 4\ndata: c\ndata: d\n\nretry: 5\n\ndata: [DONE]";
        assert_eq!(read(&[text.as_bytes()]), ["a", "b", "c\nd", "[DONE]"]);
    }

    #[test]
    fn events_beyond_the_limit_are_skipped_and_counted() {
        let mut events = Events::default();
        let mut seen = 0;
        let mut each = |_: &[u8]| seen += 1;
        events.feed(b"data: ", &mut each);
        for _ in 0..40 {
            events.feed(&[b'x'; 100_000], &mut each);
        }
        events.feed(b"\n\ndata: ok\n\n", &mut each);
        assert_eq!((seen, events.skipped), (1, 1));
        assert!(events.line.capacity() < 4 * MAX_EVENT_BYTES);
    }

    proptest! {
        #[test]
        fn reads_may_be_cut_anywhere(texts in prop::collection::vec("[^\r\n]{0,20}", 0..6), cuts in prop::collection::vec(1usize..9, 1..30), crlf: bool) {
            let end = if crlf { "\r\n" } else { "\n" };
            let stream: String = texts.iter().map(|text| format!("data: {text}{end}{end}")).collect();
            let (mut rest, mut parts) = (stream.as_bytes(), Vec::new());
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break }
                let (part, left) = rest.split_at((*cut).min(rest.len()));
                parts.push(part);
                rest = left;
            }
            prop_assert_eq!(read(&parts), texts);
        }
    }
}
