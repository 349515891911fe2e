//! A parser for the lines of tokens, which are nearly all lines of a recording. It is much faster than serde.

use llmprof_event::{Envelope, Event, Stamp, Token};

/// The event in a line that the recorder wrote for a token; `None` for any other line, which serde parses.
pub fn token_line(line: &[u8]) -> Option<Envelope> {
    let mut rest = Rest(line);
    let t = rest.field(b"{\"t\":")?;
    let request = rest.field(b",\"e\":{\"token\":{\"r\":")?;
    let index = rest.field(b",\"i\":")?;
    let id = rest.field(b",\"id\":")?;
    let device_ns = rest.field(b",\"d\":");
    rest.skip(b"}}}\n")?;
    let short = |value: u64| u32::try_from(value).ok();
    let token = Token {
        request: short(request)?,
        index: short(index)?,
        id: short(id)?,
        device_ns,
        speculation: None,
    };
    rest.0.is_empty().then_some(Envelope { t: Stamp(t), event: Event::Token(token) })
}

struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn skip(&mut self, text: &[u8]) -> Option<()> {
        self.0 = self.0.strip_prefix(text)?;
        Some(())
    }

    /// The number after `name`. Consumes nothing if `name` is not next.
    fn field(&mut self, name: &[u8]) -> Option<u64> {
        let after = self.0.strip_prefix(name)?;
        let digits = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
        // JSON numbers have no leading zero; twenty digits may overflow.
        if digits == 0 || digits > 19 || (digits > 1 && after[0] == b'0') {
            return None;
        }
        self.0 = &after[digits..];
        Some(after[..digits].iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(envelope: &Envelope) -> Vec<u8> {
        let mut line = serde_json::to_vec(envelope).unwrap();
        line.push(b'\n');
        line
    }

    proptest! {
        #[test]
        fn written_lines_read_back(t in 0..u64::MAX / 2, request: u32, index: u32, id: u32, device_ns in prop::option::of(0..u64::MAX / 2)) {
            let envelope = Envelope { t: Stamp(t), event: Event::Token(Token { request, index, id, device_ns, speculation: None }) };
            prop_assert_eq!(token_line(&written(&envelope)), Some(envelope));
        }

        /// A line of almost this form is left to serde, or has the same meaning for both.
        #[test]
        fn serde_agrees(device in prop::option::of(0u64..200), at in 0usize..80, byte in prop::sample::select(&b"0189{}\":,.-eE+ trnid\n"[..]), cut in 0usize..5) {
            let token = Token { request: 10, index: 255, id: 4_294_967_295, device_ns: device, speculation: None };
            let mut line = written(&Envelope { t: Stamp(1_234_567_890), event: Event::Token(token) });
            let n = line.len();
            line[at % n] = byte;
            line.truncate(n - cut);
            if let Some(envelope) = token_line(&line) {
                prop_assert_eq!(envelope, serde_json::from_slice::<Envelope>(&line).unwrap());
            }
        }
    }

    #[test]
    fn other_lines_are_left_to_serde() {
        for line in [
            "",
            "{\"t\":1,\"e\":\"workload_paused\"}\n",
            "{\"t\":1,\"e\":{\"token\":{\"r\":0,\"i\":0,\"id\":4294967296}}}\n",
            "{\"t\":99999999999999999999,\"e\":{\"token\":{\"r\":0,\"i\":0,\"id\":1}}}\n",
            "{\"t\":01,\"e\":{\"token\":{\"r\":0,\"i\":0,\"id\":1}}}\n",
            "{\"t\":1,\"e\":{\"token\":{\"r\":0,\"i\":0,\"id\":1,\"d\":null}}}\n",
            "{\"t\":1,\"e\":{\"token\":{\"r\":0,\"i\":0,\"id\":1}}} \n",
        ] {
            assert_eq!(token_line(line.as_bytes()), None, "{line}");
        }
    }
}
