//! Untrusted text: names, messages and values from files, devices and programs, sanitised before they are printed.

use std::{
    borrow::Cow,
    fmt::{self, Display, Write},
};

/// Maximum characters of a line that is shown. Longer lines are cut.
pub const MAX_LINE: usize = 2_000;

/// Whether a character affects a terminal or its neighbours instead of being shown: controls except line breaks and
/// tabs, direction controls, characters without width that are not part of a letter, and tags.
pub fn is_hidden(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{feff}' => true,
        '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' => true,
        '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}' => true,
        c => c.is_control(),
    }
}

/// `text` with its hidden characters as JSON writes them, such as `\u001b`: JSON stays valid.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    text.chars().for_each(|c| push_visible(&mut out, c));
    Cow::Owned(out)
}

fn push_visible(out: &mut String, c: char) {
    if !is_hidden(c) {
        return out.push(c);
    }
    for unit in c.encode_utf16(&mut [0; 2]) {
        // Writing to a string does not fail.
        let _ = write!(out, "\\u{unit:04x}");
    }
}

/// `text` in one line of at most `max` characters, with an ellipsis if it was cut.
pub fn line(text: &str, max: usize) -> String {
    let mut out = String::new();
    for (n, c) in text.chars().enumerate() {
        if n == max {
            out.push('…');
            break;
        }
        push_visible(&mut out, if matches!(c, '\n' | '\t') { ' ' } else { c });
    }
    out
}

/// A message in one line of at most [`MAX_LINE`] characters, cut in the middle: its beginning names the subject, its
/// end the remedy.
pub fn message(text: &str) -> String {
    let shown = line(text, usize::MAX);
    let length = shown.chars().count();
    if length <= MAX_LINE {
        return shown;
    }
    let tail = MAX_LINE / 4;
    let chars = |from: usize, n: usize| shown.chars().skip(from).take(n).collect::<String>();
    format!("{}…{}", chars(0, MAX_LINE - tail - 1), chars(length - tail, tail))
}

/// Lines to be shown: hidden characters are visible, and no line is longer than [`MAX_LINE`].
pub struct Lines<T>(pub T);

impl<T: Display> Display for Lines<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut on_line = 0;
        for c in self.0.to_string().chars() {
            on_line = if c == '\n' { 0 } else { on_line + 1 };
            match on_line {
                0..=MAX_LINE if !is_hidden(c) => f.write_char(c)?,
                0..=MAX_LINE => f.write_str(&visible(c.encode_utf8(&mut [0; 4])))?,
                n if n == MAX_LINE + 1 => f.write_char('…')?,
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hidden_characters_become_visible() {
        for (text, shown) in [
            ("plain é 模型 👩‍💻\n\tx", "plain é 模型 👩‍💻\n\tx"),
            ("\u{1b}]0;title\u{7}", "\\u001b]0;title\\u0007"),
            ("\u{9b}31m\u{7f}\r", "\\u009b31m\\u007f\\u000d"),
            ("a\u{202e}b\u{2066}c\u{200f}", "a\\u202eb\\u2066c\\u200f"),
            ("\u{feff}\u{200b}\u{2028}", "\\ufeff\\u200b\\u2028"),
            ("\u{e0041}", "\\udb40\\udc41"),
        ] {
            assert_eq!(visible(text), shown);
        }
        assert_eq!(line("a\nb\u{1b}c", 9), "a b\\u001bc");
        assert_eq!((line("abc", 3), line("abcd", 3)), ("abc".to_owned(), "abc…".to_owned()));
    }

    #[test]
    fn a_long_message_keeps_its_remedy() {
        let text = message(&format!("x.gguf: \n{}: use another", "\u{1b}".repeat(6_000)));
        assert!(text.starts_with("x.gguf:  \\u001b") && text.ends_with(": use another"), "{text}");
        assert_eq!(text.chars().count(), MAX_LINE);
        assert_eq!(message("short\n"), "short ");
    }

    #[test]
    fn long_lines_are_cut_each_by_itself() {
        let long = "x".repeat(6_000);
        let shown = Lines(format!("{long}\nshort\u{1b}\n{long}")).to_string();
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[1], "short\\u001b");
        for cut in [lines[0], lines[2]] {
            assert_eq!((cut.chars().count(), cut.ends_with('…')), (MAX_LINE + 1, true));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn json_stays_the_same_value(text: String) {
            let json = serde_json::to_string(&text).unwrap();
            let shown = visible(&json);
            prop_assert!(!shown.contains(is_hidden));
            prop_assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text);
        }
    }
}
