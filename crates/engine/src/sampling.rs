//! Samples the next token: the most likely one, or a seeded random draw.

use llmprof_base::noise;
use llmprof_config::InferConfig;

/// How tokens are sampled from logits.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Draws at random; otherwise the most likely token is taken.
    pub do_sample: bool,
    /// Above one flattens the distribution, below one sharpens it.
    pub temperature: f64,
    /// Draws among this many of the most likely tokens; `None` draws among all.
    pub top_k: Option<usize>,
    /// Draws among the smallest set of most likely tokens with at least this total probability.
    pub top_p: f64,
    /// No sequence of this many tokens is repeated; zero allows repetition.
    pub no_repeat_ngram_size: usize,
    pub seed: u64,
}

impl Sampling {
    pub fn greedy() -> Sampling {
        let (do_sample, no_repeat_ngram_size) = (false, 0);
        Sampling { do_sample, temperature: 1.0, top_k: None, top_p: 1.0, no_repeat_ngram_size, seed: 0 }
    }

    pub fn from_config(infer: &InferConfig, seed: u64) -> Sampling {
        Sampling {
            do_sample: infer.do_sample,
            temperature: infer.temperature,
            top_k: infer.top_k.map(|k| k.get() as usize),
            top_p: infer.top_p,
            no_repeat_ngram_size: infer.no_repeat_ngram_size as usize,
            seed,
        }
    }

    /// Whether sampling is an argmax, which a device can compute without copying the logits to the host.
    pub fn is_argmax(&self) -> bool {
        !self.do_sample && self.no_repeat_ngram_size == 0
    }
}

/// Samples tokens on the host. The same seed gives the same tokens from the same logits.
#[derive(Debug)]
pub struct Picker {
    sampling: Sampling,
    /// Tokens of each sequence, prompt included, if repetition is not allowed.
    histories: Vec<Vec<u32>>,
    draws: u64,
}

impl Picker {
    pub fn new(sampling: Sampling) -> Picker {
        Picker { sampling, histories: Vec::new(), draws: 0 }
    }

    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Starts a new batch of sequences with these prompts.
    pub fn begin(&mut self, prompts: &llmprof_workload::Prompts) {
        self.histories.clear();
        if self.sampling.no_repeat_ngram_size > 0 {
            self.histories.extend(prompts.ids.chunks(prompts.len().max(1)).map(<[u32]>::to_vec));
        }
    }

    /// The next token of each sequence, from their logits row after row.
    pub fn pick(&mut self, logits: &mut [f32], vocab: usize) -> Vec<u32> {
        let mut next = Vec::with_capacity(logits.len() / vocab);
        for (sequence, logits) in logits.chunks_exact_mut(vocab).enumerate() {
            if let Some(history) = self.histories.get(sequence) {
                for id in repeating(history, self.sampling.no_repeat_ngram_size) {
                    if let Some(logit) = logits.get_mut(id as usize) {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
            let id = if self.sampling.do_sample { self.draw(logits) } else { argmax(logits) };
            if let Some(history) = self.histories.get_mut(sequence) {
                history.push(id);
            }
            next.push(id);
        }
        next
    }

    fn draw(&mut self, logits: &[f32]) -> u32 {
        let Sampling { temperature, top_k, top_p, seed, .. } = self.sampling;
        let mut likely: Vec<u32> = (0..logits.len() as u32).collect();
        let by_logit = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        if let Some(k) = top_k.filter(|&k| k < likely.len()) {
            likely.select_nth_unstable_by(k, by_logit);
            likely.truncate(k);
        }
        likely.sort_unstable_by(by_logit);
        let best = f64::from(logits[likely[0] as usize]);
        let mut weights: Vec<f64> =
            likely.iter().map(|&id| ((f64::from(logits[id as usize]) - best) / temperature).exp()).collect();
        if top_p < 1.0 {
            let wanted = top_p * weights.iter().sum::<f64>();
            let mut sum = 0.0;
            let last = weights.iter().position(|weight| {
                sum += weight;
                sum >= wanted
            });
            weights.truncate(last.map_or(weights.len(), |last| last + 1));
        }
        self.draws += 1;
        let mut left = noise::unit(seed, self.draws) * weights.iter().sum::<f64>();
        let drawn = weights.iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        // Rounding may leave a remainder after the last weight.
        likely[drawn.unwrap_or(weights.len() - 1)]
    }
}

/// The first index of the maximum, as a device's argmax gives it.
fn argmax(logits: &[f32]) -> u32 {
    let best = (0..logits.len()).reduce(|best, i| if logits[i] > logits[best] { i } else { best });
    best.unwrap_or(0) as u32
}

/// Tokens that would repeat an earlier sequence of `n` tokens.
fn repeating(history: &[u32], n: usize) -> impl Iterator<Item = u32> {
    let start = history.len().saturating_sub(n.saturating_sub(1));
    let last = &history[start..];
    history
        .windows(n.max(1))
        .filter(move |window| window[..n.max(1) - 1] == *last)
        .map(|window| window[window.len() - 1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_workload::Prompts;

    fn sampled() -> Sampling {
        Sampling { do_sample: true, seed: 7, ..Sampling::greedy() }
    }

    /// How often each of four tokens with the odds 2 : 8 : 1 : 4 is drawn, in percent.
    fn shares(sampling: Sampling) -> [u32; 4] {
        let mut picker = Picker::new(sampling);
        let mut counts = [0u32; 4];
        for _ in 0..10_000 {
            let mut logits = [2f32.ln(), 8f32.ln(), 1f32.ln(), 4f32.ln()];
            counts[picker.pick(&mut logits, 4)[0] as usize] += 1;
        }
        counts.map(|n| (n + 50) / 100)
    }

    #[test]
    fn draws_follow_the_odds() {
        let k = |k| Sampling { top_k: Some(k), ..sampled() };
        let p = |top_p| Sampling { top_p, ..sampled() };
        let t = |temperature| Sampling { temperature, ..sampled() };
        let table = [
            (sampled(), [13, 53, 7, 27]),
            (k(2), [0, 67, 0, 33]),
            (k(9), [13, 53, 7, 27]),
            (p(0.5), [0, 100, 0, 0]),
            (p(0.6), [0, 67, 0, 33]),
            (t(0.5), [5, 75, 1, 19]),
            (t(1e-3), [0, 100, 0, 0]),
        ];
        for (sampling, expected) in table {
            let found = shares(sampling.clone());
            let near = found.iter().zip(&expected).all(|(a, b)| a.abs_diff(*b) <= 2);
            assert!(near, "{found:?}, not {expected:?}: {sampling:?}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_draws() {
        let draw = |seed| {
            let mut picker = Picker::new(Sampling { seed, ..sampled() });
            (0..40).flat_map(|_| picker.pick(&mut [0.0; 50], 25)).collect::<Vec<u32>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert_eq!(draw(1).len(), 80, "one token for each sequence");
    }

    #[test]
    fn greedy_takes_the_first_maximum() {
        let mut picker = Picker::new(Sampling::greedy());
        assert_eq!(picker.pick(&mut [1.0, 3.0, 3.0, -1.0, -2.0, -1.0], 3), [1, 0]);
        assert!(picker.sampling().is_argmax() && !sampled().is_argmax());
    }

    #[test]
    fn no_ngram_is_repeated() {
        let sampling = Sampling { no_repeat_ngram_size: 2, ..Sampling::greedy() };
        let mut picker = Picker::new(sampling);
        picker.begin(&Prompts { ids: vec![0, 1, 0, 2, 2, 2], batch: 2 });
        // The first sequence ends in 0 and had "0 1"; the second ends in 2 and had "2 2".
        let mut logits = [0.0, 9.0, 5.0, 0.0, 5.0, 9.0];
        assert_eq!(picker.pick(&mut logits, 3), [2, 1]);
        let once = Sampling { no_repeat_ngram_size: 1, ..Sampling::greedy() };
        let mut picker = Picker::new(once);
        picker.begin(&Prompts { ids: vec![2], batch: 1 });
        assert_eq!(picker.pick(&mut [1.0, 2.0, 9.0], 3), [1]);
        assert_eq!(picker.pick(&mut [1.0, 2.0, 9.0], 3), [0]);
    }
}
