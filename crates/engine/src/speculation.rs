//! Speculative decoding: draft tokens are cheap to compute, and the model verifies several of them in one step.
//!
//! A draft token is accepted if the model samples the same one, so the answer is the same as the model's own. After
//! the last accepted token, the model's own token follows.

use std::time::Duration;

use llmprof_base::noise;
use llmprof_event::{AllocatorSample, ExpertUse, Speculation};
use llmprof_workload::{
    Engine, EngineError, Prompts,
    listener::{Listeners, Span},
};

/// An engine with one sequence, to which tokens can be appended and from which the last ones can be taken back.
pub trait Revisable: Engine {
    /// Positions in the cache.
    fn position(&self) -> usize;

    /// Extends the sequence by `ids` in one step, and returns the model's token after each of them.
    fn extend(&mut self, ids: &[u32]) -> Result<Vec<u32>, EngineError>;

    /// Takes back the positions from `position` on.
    fn take_back(&mut self, position: usize) -> Result<(), EngineError>;

    /// Extends the sequence by `ids` and then by the model's own tokens; returns `count` of these, the last of which is
    /// not in the cache.
    fn propose(&mut self, ids: &[u32], count: usize) -> Result<Vec<u32>, EngineError> {
        let mut chosen = Vec::with_capacity(count);
        let mut next = self.extend(ids)?;
        while let Some(id) = next.pop().filter(|_| chosen.len() < count) {
            chosen.push(id);
            if chosen.len() < count {
                next = self.extend(&[id])?;
            }
        }
        Ok(chosen)
    }
}

/// The source of draft tokens.
pub enum Proposer {
    /// A smaller model.
    Draft(Draft),
    /// The text that followed the previous occurrence of the newest tokens, at most `longest` of them.
    Ngram { longest: usize },
}

/// A smaller model that follows the sequence.
pub struct Draft {
    engine: Box<dyn Revisable>,
    vocab: u32,
}

impl Draft {
    pub fn new(engine: Box<dyn Revisable>, vocab: usize) -> Draft {
        Draft { engine, vocab: u32::try_from(vocab).unwrap_or(u32::MAX).max(1) }
    }

    /// Replaces tokens of the larger model's vocabulary that this one lacks: only the draft tokens depend on it.
    fn known(&self, ids: &[u32]) -> Vec<u32> {
        ids.iter().map(|id| id % self.vocab).collect()
    }

    fn begin(&mut self, prompts: &Prompts) -> Result<(), EngineError> {
        let ids = self.known(&prompts.ids);
        self.engine.prefill(&Prompts { ids, batch: prompts.batch }).map(drop)
    }

    /// Returns `count` tokens after `text`.
    fn propose(&mut self, text: &[u32], count: usize) -> Result<Vec<u32>, EngineError> {
        // Draft tokens that were not accepted are taken back; the newest token is always run again.
        let position = self.engine.position().min(text.len() - 1);
        self.engine.take_back(position)?;
        let new = self.known(&text[position..]);
        self.engine.propose(&new, count)
    }
}

/// An assumed acceptance rate, because random weights do not agree with each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Assumed {
    /// The probability that a draft token is accepted if all before it were.
    pub acceptance: f64,
    pub seed: u64,
}

/// An engine whose steps return one or more tokens.
pub struct Speculator {
    model: Box<dyn Revisable>,
    proposer: Proposer,
    /// Maximum draft tokens per step.
    tokens: usize,
    assumed: Option<Assumed>,
    /// Prompt and answer.
    text: Vec<u32>,
    last: Option<Speculation>,
    steps: u64,
    listeners: Listeners,
}

impl Speculator {
    pub fn new(
        model: Box<dyn Revisable>,
        proposer: Proposer,
        tokens: usize,
        assumed: Option<Assumed>,
    ) -> Speculator {
        Speculator {
            model,
            proposer,
            tokens,
            assumed,
            text: Vec::new(),
            last: None,
            steps: 0,
            listeners: Listeners::default(),
        }
    }

    fn proposed(&mut self) -> Result<Vec<u32>, EngineError> {
        match &mut self.proposer {
            Proposer::Draft(draft) => {
                let (text, tokens) = (&self.text, self.tokens);
                self.listeners.during(Span::Draft, || draft.propose(text, tokens))
            }
            Proposer::Ngram { longest } => {
                let mut found = after_last_occurrence(&self.text, *longest, self.tokens).to_vec();
                // An assumed acceptance rate needs draft tokens in every step.
                if self.assumed.is_some() && found.is_empty() {
                    found = self.text[self.text.len().saturating_sub(self.tokens)..].to_vec();
                }
                Ok(found)
            }
        }
    }

    /// The number of accepted draft tokens; `chosen` are the model's own tokens.
    fn accepted(&self, proposed: &[u32], chosen: &[u32]) -> usize {
        let agrees = |i: usize| match self.assumed {
            Some(Assumed { acceptance, seed }) => {
                noise::unit(noise::bits(seed, self.steps), i as u64) < acceptance
            }
            None => proposed[i] == chosen[i],
        };
        (0..proposed.len()).take_while(|i| agrees(*i)).count()
    }
}

impl Engine for Speculator {
    fn prefill(&mut self, prompts: &Prompts) -> Result<Vec<u32>, EngineError> {
        if prompts.batch != 1 {
            return Err(EngineError::Backend(format!(
                "speculative decoding runs one sequence at a time, not {}",
                prompts.batch
            )));
        }
        self.last = None;
        let first = self.model.prefill(prompts)?;
        if let Proposer::Draft(draft) = &mut self.proposer {
            draft.begin(prompts)?;
        }
        self.text.clone_from(&prompts.ids);
        self.text.extend(&first);
        Ok(first)
    }

    fn decode(&mut self) -> Result<Vec<u32>, EngineError> {
        let Some(newest) = self.text.last().copied().filter(|_| self.model.position() > 0) else {
            return Err(EngineError::Backend("decode called before prefill".to_owned()));
        };
        let proposed = self.proposed()?;
        let position = self.model.position();
        let ids: Vec<u32> = [newest].into_iter().chain(proposed.iter().copied()).collect();
        let chosen = self.model.extend(&ids)?;
        let accepted = self.accepted(&proposed, &chosen);
        // The newest token and the accepted ones; the model's last token is not in the cache yet.
        self.model.take_back(position + 1 + accepted)?;
        let mut new = proposed[..accepted].to_vec();
        new.push(chosen[accepted]);
        self.text.extend(&new);
        self.steps += 1;
        self.last = Some(Speculation { proposed: proposed.len() as u32, accepted: accepted as u32 });
        Ok(new)
    }

    fn synchronize(&mut self) -> Result<(), EngineError> {
        if let Proposer::Draft(draft) = &mut self.proposer {
            draft.engine.synchronize()?;
        }
        self.model.synchronize()
    }

    fn reset(&mut self) -> Result<(), EngineError> {
        self.text.clear();
        if let Proposer::Draft(draft) = &mut self.proposer {
            draft.engine.reset()?;
        }
        self.model.reset()
    }

    /// The time of the model's step and of the draft tokens before it.
    fn device_time(&self) -> Option<Duration> {
        let of_model = self.model.device_time()?;
        match &self.proposer {
            // Prefill runs only the model.
            Proposer::Draft(draft) if self.last.is_some() => Some(of_model + draft.engine.device_time()?),
            _ => Some(of_model),
        }
    }

    fn allocator(&self) -> Option<AllocatorSample> {
        self.model.allocator()
    }

    fn expert_use(&self) -> Result<Option<ExpertUse>, EngineError> {
        self.model.expert_use()
    }

    fn speculation(&self) -> Option<Speculation> {
        self.last
    }

    fn remark(&self) -> Option<String> {
        self.model.remark()
    }

    fn set_listeners(&mut self, listeners: Listeners) {
        self.listeners = listeners.clone();
        self.model.set_listeners(listeners);
    }
}

/// The tokens after the last earlier occurrence of the newest tokens: of the longest suffix that occurs, one to
/// `longest` tokens.
fn after_last_occurrence(text: &[u32], longest: usize, count: usize) -> &[u32] {
    for n in (1..=longest.min(text.len().saturating_sub(1))).rev() {
        let (before, newest) = (&text[..text.len() - 1], &text[text.len() - n..]);
        if let Some(at) = before.windows(n).rposition(|window| window == newest) {
            let found = &text[at + n..];
            return &found[..count.min(found.len())];
        }
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts up from the newest token, except that a multiple of `odd` is followed by itself.
    struct Counting {
        cache: Vec<u32>,
        odd: u32,
        steps: usize,
    }

    impl Counting {
        fn boxed(odd: u32) -> Box<Counting> {
            Box::new(Counting { cache: Vec::new(), odd, steps: 0 })
        }

        fn next(&self, id: u32) -> u32 {
            if id.is_multiple_of(self.odd) { id + 3 } else { id + 1 }
        }
    }

    impl Engine for Counting {
        fn prefill(&mut self, prompts: &Prompts) -> Result<Vec<u32>, EngineError> {
            self.cache.clone_from(&prompts.ids);
            Ok(vec![self.next(*prompts.ids.last().unwrap())])
        }

        fn decode(&mut self) -> Result<Vec<u32>, EngineError> {
            unreachable!()
        }

        fn synchronize(&mut self) -> Result<(), EngineError> {
            Ok(())
        }

        fn reset(&mut self) -> Result<(), EngineError> {
            self.cache.clear();
            Ok(())
        }
    }

    impl Revisable for Counting {
        fn position(&self) -> usize {
            self.cache.len()
        }

        fn extend(&mut self, ids: &[u32]) -> Result<Vec<u32>, EngineError> {
            self.steps += 1;
            self.cache.extend(ids);
            Ok(ids.iter().map(|id| self.next(*id)).collect())
        }

        fn take_back(&mut self, position: usize) -> Result<(), EngineError> {
            assert!(position <= self.cache.len());
            self.cache.truncate(position);
            Ok(())
        }
    }

    fn answer(speculator: &mut Speculator, prompt: &[u32], steps: usize) -> (Vec<u32>, Vec<Speculation>) {
        let mut ids = speculator.prefill(&Prompts { ids: prompt.to_vec(), batch: 1 }).unwrap();
        let mut all = Vec::new();
        for _ in 0..steps {
            ids.extend(speculator.decode().unwrap());
            all.push(speculator.speculation().unwrap());
            // Everything but the newest token is in the model's cache.
            assert_eq!(speculator.model.position() + 1, prompt.len() + ids.len());
        }
        (ids, all)
    }

    fn alone(prompt: &[u32], odd: u32, count: usize) -> Vec<u32> {
        let model = Counting::boxed(odd);
        let mut ids = vec![model.next(*prompt.last().unwrap())];
        while ids.len() < count {
            ids.push(model.next(*ids.last().unwrap()));
        }
        ids
    }

    #[test]
    fn the_answer_is_the_models_own() {
        // The draft errs at multiples of five, which the model does not.
        for tokens in 1..6 {
            let draft = Proposer::Draft(Draft::new(Counting::boxed(5), 1 << 20));
            let mut speculator = Speculator::new(Counting::boxed(1 << 30), draft, tokens, None);
            for prompt in [&[1, 2, 3][..], &[10]] {
                let (ids, steps) = answer(&mut speculator, prompt, 12);
                assert_eq!(ids, alone(prompt, 1 << 30, ids.len()), "{tokens}");
                let accepted: u32 = steps.iter().map(|step| step.accepted).sum();
                assert_eq!(ids.len(), 1 + steps.len() + accepted as usize);
                assert!(steps.iter().all(|step| step.accepted <= step.proposed), "{steps:?}");
                assert!(accepted > 0);
                speculator.reset().unwrap();
            }
        }
        // With the same model as the draft, everything is accepted.
        let draft = Proposer::Draft(Draft::new(Counting::boxed(7), 1 << 20));
        let mut speculator = Speculator::new(Counting::boxed(7), draft, 4, None);
        let (ids, steps) = answer(&mut speculator, &[3], 5);
        assert_eq!((ids.len(), steps), (26, vec![Speculation { proposed: 4, accepted: 4 }; 5]));
    }

    #[test]
    fn a_batch_is_refused() {
        let mut speculator = Speculator::new(Counting::boxed(5), Proposer::Ngram { longest: 2 }, 3, None);
        assert!(speculator.decode().is_err());
        let error = speculator.prefill(&Prompts { ids: vec![1, 2], batch: 2 }).unwrap_err();
        assert_eq!(error.to_string(), "speculative decoding runs one sequence at a time, not 2");
    }

    #[test]
    fn drafts_continue_the_last_occurrence() {
        let text = [1, 2, 3, 9, 1, 2, 4, 7, 1, 2];
        assert_eq!(after_last_occurrence(&text, 3, 2), [4, 7]);
        assert_eq!(after_last_occurrence(&text, 3, 9), [4, 7, 1, 2]);
        assert_eq!(after_last_occurrence(&text[..9], 3, 3), [2, 4, 7]);
        assert_eq!(after_last_occurrence(&[5, 5, 5], 3, 4), [5]);
        assert_eq!(after_last_occurrence(&[1, 2, 3], 3, 4), [0; 0]);
        assert_eq!(after_last_occurrence(&[1], 3, 4), [0; 0]);
        let mut speculator =
            Speculator::new(Counting::boxed(1 << 30), Proposer::Ngram { longest: 2 }, 3, None);
        // 4 was followed by 5 6 7 before.
        let (ids, steps) = answer(&mut speculator, &[4, 5, 6, 7, 2, 3], 2);
        assert_eq!(ids, [4, 5, 6, 7, 8, 9]);
        assert_eq!(steps[0], Speculation { proposed: 3, accepted: 3 });
    }

    #[test]
    fn an_assumed_acceptance_is_kept() {
        for acceptance in [0.0, 0.6, 1.0] {
            let assumed = Some(Assumed { acceptance, seed: 3 });
            let draft = Proposer::Draft(Draft::new(Counting::boxed(2), 50));
            let mut speculator = Speculator::new(Counting::boxed(3), draft, 4, assumed);
            let (_, steps) = answer(&mut speculator, &[1], 2000);
            // The probabilities of one, two, three and four.
            let expected: f64 = (1..=4).map(|n| f64::powi(acceptance, n)).sum();
            let found = steps.iter().map(|step| f64::from(step.accepted)).sum::<f64>() / 2000.0;
            assert!((found - expected).abs() < 0.1, "{acceptance}: {found}, not {expected}");
        }
    }
}
