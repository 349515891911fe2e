//! Parsing of the line that bash sends, up to the cursor.

use llmprof_config::Candidate;

/// The words of a line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    /// The words between the program's name and the cursor, without quotes.
    pub(super) before: Vec<String>,
    /// The word at the cursor, up to it and without quotes.
    pub(super) current: String,
    /// Bytes of `current` that bash treats as an earlier word and keeps.
    kept: usize,
    /// The quote that is open at the cursor.
    quote: Option<char>,
}

impl Line {
    /// The text that replaces the word in bash's sense; `None` for a candidate that does not continue it.
    ///
    /// The shell reads it as exactly the candidate: names of files are not the user's own input. A finished word is
    /// followed by a space, except within quotes, which the user closes.
    pub(super) fn insertion(&self, candidate: &Candidate) -> Option<String> {
        let rest = candidate.text.strip_prefix(&self.current[..self.kept])?;
        let mut text = String::with_capacity(rest.len() + 1);
        for c in rest.chars() {
            match self.quote {
                Some('\'') if c == '\'' => text.push_str("'\\''"),
                Some('"') if "\"\\$`".contains(c) => text.extend(['\\', c]),
                None if " \"'\\$`!&;|<>()[]{}*?#".contains(c) => text.extend(['\\', c]),
                _ => text.push(c),
            }
        }
        if candidate.complete && self.quote.is_none() {
            text.push(' ');
        }
        Some(text)
    }
}

/// Splits a line as a shell does. Bash also breaks words at `breaks` (`=`, `:`, …) and inserts after the last of them.
pub(super) fn split(line: &str, breaks: &str) -> Line {
    let mut words: Vec<String> = Vec::new();
    let mut word = Line::default();
    let mut begun = false;
    let mut quote = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            (_, Some(open)) if c == open => {
                quote = None;
            }
            ('\\', None | Some('"')) => word.current.extend(chars.next()),
            (_, Some(_)) => word.current.push(c),
            ('\'' | '"', None) => {
                quote = Some(c);
                word.kept = word.current.len();
            }
            (_, None) if c.is_whitespace() => {
                if std::mem::take(&mut begun) {
                    words.push(std::mem::take(&mut word).current);
                }
                continue;
            }
            (_, None) => {
                word.current.push(c);
                if breaks.contains(c) {
                    word.kept = word.current.len();
                }
            }
        }
        begun = true;
    }
    let is_assignment = |word: &String| word.contains('=');
    let program = words.iter().position(|word| !is_assignment(word)).map_or(words.len(), |i| i + 1);
    word.before = words.split_off(program);
    word.quote = quote;
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    const BREAKS: &str = " \t\n\"'@><=;|&(:";

    #[test]
    fn words_and_word_breaks() {
        /// The line, its words, the current one, its start, and the open quote.
        type Case = (&'static str, &'static [&'static str], &'static str, usize, Option<char>);
        let table: &[Case] = &[
            ("llmprof-tui ", &[], "", 0, None),
            ("llmprof-tui run mo", &["run"], "mo", 0, None),
            ("llmprof-tui model=", &[], "model=", 6, None),
            ("llmprof-tui model=a,b", &[], "model=a,b", 6, None),
            ("A=1 B=2 ./llmprof-tui  run  x", &["run"], "x", 0, None),
            ("llmprof-tui 'a b' \"c\\\"d\" e\\ f", &["a b", "c\"d"], "e f", 0, None),
            ("llmprof-tui \"model=q", &[], "model=q", 0, Some('"')),
            ("llmprof-tui model='q", &[], "model=q", 6, Some('\'')),
            ("llmprof-tui '' x", &[""], "x", 0, None),
            ("llmprof-tui é=ü", &[], "é=ü", 3, None),
            ("llmprof-tui x\\", &[], "x", 0, None),
            ("", &[], "", 0, None),
        ];
        for (line, before, current, kept, quote) in table {
            let split = split(line, BREAKS);
            let wanted = (*before, *current, *kept, *quote);
            let before: Vec<&str> = split.before.iter().map(String::as_str).collect();
            assert_eq!((&before[..], split.current.as_str(), split.kept, split.quote), wanted, "{line}");
        }
    }

    #[test]
    fn inserted_text() {
        let put = |line: &str, text: &str, whole| {
            split(line, BREAKS).insertion(&Candidate {
                text: text.into(),
                note: String::new(),
                complete: whole,
            })
        };
        assert_eq!(put("p mo", "model=", false).unwrap(), "model=");
        assert_eq!(put("p model=q", "model=qwen", true).unwrap(), "qwen ");
        assert_eq!(put("p x=a", "x=a b$", true).unwrap(), "a\\ b\\$ ");
        assert_eq!(put("p \"model=q", "model=qwen", true).unwrap(), "model=qwen");
        assert_eq!(put("p \"x=a", "x=a$(b)`c`\"", true).unwrap(), "x=a\\$(b)\\`c\\`\\\"");
        assert_eq!(put("p x='a", "x=a$(b)'c", true).unwrap(), "a$(b)'\\''c");
        assert_eq!(put("p ~mo", "~model", true).unwrap(), "~model ");
        assert_eq!(put("p model=q", "other", true), None);
    }
}
