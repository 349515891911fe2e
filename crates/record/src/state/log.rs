//! The lines of the Log pane. Output of a program that repeats except for numbers is one line with a count.

use std::collections::VecDeque;

use super::push_bounded;
use llmprof_event::{Notice, Stamp};

const MAX_LINES: usize = 1000;
/// A line is folded into an equal one among this many previous lines.
const NEAR: usize = 12;

#[derive(Debug, Clone, PartialEq)]
pub struct LogLine {
    /// When it was last printed.
    pub t: Stamp,
    /// The text as it was last printed.
    pub notice: Notice,
    pub times: u64,
    /// Its text without numbers and punctuation; lines of a program with equal patterns are folded.
    pattern: String,
}

#[derive(Debug, Clone, Default)]
pub struct Log {
    lines: VecDeque<LogLine>,
}

impl Log {
    pub(super) fn add(&mut self, t: Stamp, notice: &Notice) {
        let pattern = if notice.is_output() { words(&notice.text) } else { String::new() };
        let is_equal = |line: &&mut LogLine| {
            notice.is_output() && line.notice.source == notice.source && line.pattern == pattern
        };
        match self.lines.iter_mut().rev().take(NEAR).find(is_equal) {
            Some(known) => {
                (known.t, known.times) = (t, known.times + 1);
                known.notice = notice.clone();
            }
            None => push_bounded(
                &mut self.lines,
                MAX_LINES,
                LogLine { t, notice: notice.clone(), times: 1, pattern },
            ),
        }
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &LogLine> {
        self.lines.iter()
    }

    pub fn len(&self) -> usize {
        self.lines.len()
    }

    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

/// The words of a line, without numbers, punctuation and progress bars.
fn words(text: &str) -> String {
    let mut words = String::new();
    for word in text.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty()) {
        words.push_str(word);
        words.push(' ');
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_event::Level;

    fn shown(lines: &[(&str, &str)]) -> Vec<(String, u64)> {
        let mut log = Log::default();
        for (i, (source, text)) in lines.iter().enumerate() {
            let (source, text) = ((*source).to_owned(), (*text).to_owned());
            log.add(Stamp(i as u64), &Notice { level: Level::Info, source, text });
        }
        log.iter().map(|line| (line.notice.text.clone(), line.times)).collect()
    }

    #[test]
    fn lines_that_repeat_up_to_numbers_are_one() {
        let access =
            |port: u32| format!("INFO:     127.0.0.1:{port} - \"POST /v1/completions HTTP/1.1\" 200 OK");
        let (first, second) = (access(41_200), access(41_216));
        let bad = "INFO:     127.0.0.1:41200 - \"POST /v1/completions HTTP/1.1\" 500 Internal Server Error";
        let found = shown(&[("stdout", &first), ("stdout", bad), ("stdout", &second), ("stderr", &first)]);
        assert_eq!(found, [(second, 2), (bad.to_owned(), 1), (first, 1)]);
    }

    #[test]
    fn a_progress_bar_is_its_last_state() {
        let found = shown(&[
            ("stderr", "Capturing CUDA graphs:  12%|█▏        | 6/51 [00:01<00:06,  6.9it/s]"),
            ("stderr", "Capturing CUDA graphs: 100%|██████████| 51/51 [00:07<00:00,  6.9it/s]"),
        ]);
        assert_eq!(found.len(), 1);
        assert!(found[0].0.contains("100%"), "{found:?}");
    }

    #[test]
    fn neither_messages_of_the_program_itself_nor_distant_ones_are_folded() {
        assert_eq!(shown(&[("gpu", "GPU 0: lost"), ("gpu", "GPU 1: lost")]).len(), 2);
        let letters: Vec<String> = (0..20u8).map(|i| char::from(b'a' + i).to_string()).collect();
        let mut lines: Vec<(&str, &str)> = vec![("stdout", "ready")];
        lines.extend(letters.iter().map(|letter| ("stdout", letter.as_str())));
        lines.push(("stdout", "ready"));
        assert_eq!(shown(&lines).len(), 22);
    }
}
