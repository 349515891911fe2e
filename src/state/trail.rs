//! The last tokens, one by one.

use std::collections::VecDeque;

use crate::event::Stamp;

/// A token that reached the host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenMark {
    pub t: Stamp,
    /// Time since the token before, or since the request's start for a first token.
    pub gap_ns: u64,
    pub id: u32,
    pub request: u32,
    pub first: bool,
    pub warmup: bool,
}

const KEPT: usize = 8192;

#[derive(Debug, Clone)]
pub struct TokenTrail(VecDeque<TokenMark>);

impl Default for TokenTrail {
    fn default() -> Self {
        TokenTrail(VecDeque::with_capacity(KEPT))
    }
}

impl TokenTrail {
    pub(super) fn push(&mut self, mark: TokenMark) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(mark);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `count` tokens, or as many as there are, up to `back` tokens before the newest.
    pub fn window(&self, back: usize, count: usize) -> impl DoubleEndedIterator<Item = &TokenMark> {
        let end = self.0.len().saturating_sub(back);
        self.0.range(end.saturating_sub(count)..end)
    }

    pub fn since(&self, t: Stamp) -> impl DoubleEndedIterator<Item = &TokenMark> {
        self.0.range(self.0.partition_point(|mark| mark.t < t)..)
    }

    pub fn last(&self) -> Option<&TokenMark> {
        self.0.back()
    }
}
