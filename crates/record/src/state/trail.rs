//! The last tokens, individually.

use std::collections::VecDeque;

use super::push_bounded;
use llmprof_event::Stamp;

/// A token that reached the host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenMark {
    pub t: Stamp,
    /// Time since the previous token, or since the start of the request for a first token.
    pub gap_ns: u64,
    pub id: u32,
    pub request: u32,
    /// The row in which its request is drawn.
    pub stream: u32,
    /// Tokens of the step: more than one only with accepted draft tokens.
    pub tokens: u32,
    pub first: bool,
    pub warmup: bool,
    /// Kernels were recorded while it was generated.
    pub recorded: bool,
}

/// Several seconds of a server with many streams.
const KEPT: usize = 16_384;

#[derive(Debug, Clone)]
pub struct TokenTrail {
    marks: VecDeque<TokenMark>,
    count: u64,
}

impl Default for TokenTrail {
    fn default() -> Self {
        TokenTrail { marks: VecDeque::with_capacity(KEPT), count: 0 }
    }
}

impl TokenTrail {
    pub(super) fn push(&mut self, mark: TokenMark) {
        push_bounded(&mut self.marks, KEPT, mark);
        self.count += 1;
    }

    /// The number of tokens so far; the index of the newest plus one.
    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn len(&self) -> usize {
        self.marks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// Up to `count` tokens, ending `back` tokens before the newest.
    pub fn window(&self, back: usize, count: usize) -> impl DoubleEndedIterator<Item = &TokenMark> {
        let end = self.marks.len().saturating_sub(back);
        self.marks.range(end.saturating_sub(count)..end)
    }

    pub fn since(&self, t: Stamp) -> impl DoubleEndedIterator<Item = &TokenMark> {
        self.marks.range(self.marks.partition_point(|mark| mark.t < t)..)
    }

    /// The number of tokens after `t`.
    pub fn after(&self, t: Stamp) -> usize {
        self.marks.len() - self.marks.partition_point(|mark| mark.t <= t)
    }

    pub fn last(&self) -> Option<&TokenMark> {
        self.marks.back()
    }
}
