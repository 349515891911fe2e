//! The workload of a run: how many requests, their prompts and their lengths.

use std::sync::Arc;

use crate::Prompts;
use llmprof_base::noise;

/// `warmup` requests that are not measured, then `requests` that are.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    pub requests: u32,
    pub warmup: u32,
    /// Whether the workload continues after the last request until the run is ended from outside.
    pub open_ended: bool,
    pub batch: u32,
    pub prompts: PromptSet,
    /// Maximum output tokens of each sequence.
    pub output_tokens: u32,
    /// Tokens that end a sequence; if empty, every sequence has `output_tokens`.
    pub stop_ids: Vec<u32>,
    pub seed: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub enum PromptSet {
    /// Random ids below `vocab`, the same for the same seed and request.
    Random { tokens: u32, vocab: u32 },
    /// One prompt per request, repeated from the first after the last. Never empty.
    Given(Arc<[Prompt]>),
}

/// A text and its ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    pub text: String,
    pub ids: Vec<u32>,
}

impl Workload {
    /// The prompts of a request, counted from the first warm-up request. Given texts differ in length and a batch has
    /// one length, so all its sequences get the same text.
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

    /// The text of a request's prompt, if there is one.
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

    /// The first measured request has the first prompt, independent of the number of warm-up requests.
    fn given<'a>(&self, prompts: &'a [Prompt], request: u32) -> &'a Prompt {
        let index = request.checked_sub(self.warmup).unwrap_or(request);
        &prompts[index as usize % prompts.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_prompts_cycle_and_measurement_starts_with_the_first() {
        let prompt = |text: &str, ids: &[u32]| Prompt { text: text.to_owned(), ids: ids.to_vec() };
        let workload = Workload {
            requests: 3,
            warmup: 1,
            open_ended: false,
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
