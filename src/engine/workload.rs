//! What a run asks of an engine: how many requests, with which prompts, how long.

use std::sync::Arc;

use super::Prompts;
use crate::base::noise;

/// `warmup` requests that don't count, then `requests` that do.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    pub requests: u32,
    pub warmup: u32,
    /// Go on after the last request until told that it is enough.
    pub until_told: bool,
    pub batch: u32,
    pub prompts: PromptSet,
    /// Of each sequence, at most.
    pub output_tokens: u32,
    /// Tokens that end a sequence; none of them makes every sequence as long as it may be.
    pub stop_ids: Vec<u32>,
    pub seed: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub enum PromptSet {
    /// Random ids below `vocab`, the same for the same seed and request.
    Random { tokens: u32, vocab: u32 },
    /// One for each request, from the first again after the last. Never empty.
    Given(Arc<[Prompt]>),
}

/// A text and its ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    pub text: String,
    pub ids: Vec<u32>,
}

impl Workload {
    /// The prompts of a request, warm-up counted in. Given texts differ in length, and a batch is of equal
    /// length: all its sequences begin with the same one.
    pub fn prompts(&self, request: u32) -> Prompts {
        let batch = self.batch as usize;
        let ids = match &self.prompts {
            PromptSet::Random { tokens, vocab } => {
                let seed = noise::bits(self.seed, u64::from(request));
                let count = u64::from(self.batch) * u64::from(*tokens);
                (0..count).map(|i| (noise::bits(seed, i) % u64::from(*vocab)) as u32).collect()
            }
            PromptSet::Given(prompts) => self.given(prompts, request).ids.repeat(batch),
        };
        Prompts { ids, batch }
    }

    /// The text of a request's prompt, where there is one.
    pub fn text(&self, request: u32) -> Option<&str> {
        match &self.prompts {
            PromptSet::Random { .. } => None,
            PromptSet::Given(prompts) => Some(&self.given(prompts, request).text),
        }
    }

    /// Tokens of the longest prompt.
    pub fn prompt_tokens(&self) -> u32 {
        match &self.prompts {
            PromptSet::Random { tokens, .. } => *tokens,
            PromptSet::Given(prompts) => prompts.iter().map(|p| p.ids.len()).max().unwrap_or(0) as u32,
        }
    }

    /// The first measured request has the first prompt, whatever was warmed up with.
    fn given<'a>(&self, prompts: &'a [Prompt], request: u32) -> &'a Prompt {
        let at = request.checked_sub(self.warmup).unwrap_or(request);
        &prompts[at as usize % prompts.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_prompts_come_in_turn_and_measuring_begins_with_the_first() {
        let prompt = |text: &str, ids: &[u32]| Prompt { text: text.to_owned(), ids: ids.to_vec() };
        let workload = Workload {
            requests: 3,
            warmup: 1,
            until_told: false,
            batch: 2,
            prompts: PromptSet::Given(Arc::new([prompt("a", &[1, 2]), prompt("b", &[3])])),
            output_tokens: 4,
            stop_ids: Vec::new(),
            seed: 0,
        };
        let texts: Vec<_> = (0..4).map(|request| workload.text(request).unwrap()).collect();
        assert_eq!(texts, ["a", "a", "b", "a"]);
        assert_eq!(workload.prompts(0), Prompts { ids: vec![1, 2, 1, 2], batch: 2 });
        assert_eq!(workload.prompts(2).len(), 1);
        assert_eq!(workload.prompt_tokens(), 2);
    }
}
