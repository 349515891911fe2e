//! A key or password, and its removal from the output of programs and servers.

use std::{
    collections::VecDeque,
    fmt,
    io::{self, Read},
};

use memchr::memmem;

/// Shorter secrets would match parts of ordinary words.
const MIN_STRIPPED: usize = 4;
const REPLACEMENT: &str = "(key)";

/// A secret text. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl Secret {
    /// Untrusted text without the secret, which a server may repeat.
    pub fn strip(&self, text: String) -> String {
        match self.is_stripped() && text.contains(&self.0) {
            true => text.replace(&self.0, REPLACEMENT),
            false => text,
        }
    }

    fn is_stripped(&self) -> bool {
        self.0.len() >= MIN_STRIPPED
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A stream with the secret removed, which may arrive in parts of any size. Only a part that may be the beginning of
/// the secret is held back.
pub struct WithoutSecret<R> {
    inner: R,
    secret: Secret,
    /// The end of what was read, which may be the beginning of the secret.
    held: Vec<u8>,
    ready: VecDeque<u8>,
}

impl<R: Read> WithoutSecret<R> {
    pub fn new(inner: R, secret: Secret) -> WithoutSecret<R> {
        WithoutSecret { inner, secret, held: Vec::new(), ready: VecDeque::new() }
    }

    /// Releases bytes that cannot belong to the secret.
    fn take(&mut self, bytes: &[u8]) {
        if !self.secret.is_stripped() {
            return self.ready.extend(bytes);
        }
        let secret = self.secret.0.as_bytes();
        self.held.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(found) = memmem::find(&self.held[at..], secret) {
            self.ready.extend(&self.held[at..at + found]);
            self.ready.extend(REPLACEMENT.as_bytes());
            at += found + secret.len();
        }
        let rest = &self.held[at..];
        let longest = rest.len().min(secret.len() - 1);
        let begun = (1..=longest).rev().find(|n| rest.ends_with(&secret[..*n])).unwrap_or(0);
        let end = self.held.len() - begun;
        self.ready.extend(&self.held[at..end]);
        self.held.drain(..end);
    }
}

impl<R: Read> Read for WithoutSecret<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let mut bytes = [0; 4096];
        while self.ready.is_empty() {
            match self.inner.read(&mut bytes)? {
                0 if self.held.is_empty() => return Ok(0),
                0 => self.ready.extend(std::mem::take(&mut self.held)),
                n => self.take(&bytes[..n]),
            }
        }
        self.ready.read(to)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A stream that returns one part per read.
    struct Parts<'a>(VecDeque<&'a [u8]>);

    impl Read for Parts<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            // An empty read would be the end of the stream.
            let part = std::iter::from_fn(|| self.0.pop_front()).find(|part| !part.is_empty());
            part.map_or(Ok(0), |mut part| part.read(to))
        }
    }

    fn filtered(secret: &str, parts: &[&[u8]]) -> String {
        let parts = Parts(parts.iter().copied().collect());
        let mut text = String::new();
        WithoutSecret::new(parts, Secret(secret.to_owned())).read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_secret_is_found_across_parts_and_nothing_else_is_held_back() {
        assert_eq!(
            filtered("sk-12345", &[b"key sk-1", b"2345, sk-12", b"x sk-12345"]),
            "key (key), sk-12x (key)"
        );
        assert_eq!(filtered("aaab", &[b"aa", b"aab aaa"]), "a(key) aaa", "a beginning within a beginning");
        assert_eq!(filtered("abc", &[b"abc"]), "abc", "too short");
        let parts: [&[u8]; 2] = [b"42 %\r", b"43 %\r"];
        let mut stream = WithoutSecret::new(Parts(parts.into()), Secret("sk-12345".into()));
        let mut first = [0; 80];
        assert_eq!(stream.read(&mut first).unwrap(), 5, "a progress bar is shown at once");
    }

    proptest! {
        #[test]
        fn a_stream_in_parts_equals_the_whole_text(text in "[abk-]{0,60}", secret in "[abk-]{4,6}", cuts in prop::collection::vec(0usize..60, 0..6)) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).chain([0, text.len()]).collect();
            cuts.sort_unstable();
            let parts: Vec<&[u8]> = cuts.windows(2).map(|pair| &text.as_bytes()[pair[0]..pair[1]]).collect();
            let whole = Secret(secret.clone()).strip(text.clone());
            prop_assert_eq!(filtered(&secret, &parts), whole);
        }
    }
}
