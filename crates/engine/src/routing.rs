//! Counts of the expert assignments of each layer.

use llmprof_event::{ExpertUse, HottestExpert};

/// The expert assignments of one layer.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Tokens assigned to each expert.
    pub tokens: Vec<u64>,
    /// Tokens that were routed.
    pub routed: u64,
    pub steps: u64,
    /// Experts with at least one token, summed over the steps.
    pub touched: u64,
}

impl Tally {
    /// Adds a step of `rows` tokens, with the tokens assigned to each expert.
    pub fn count(&mut self, rows: usize, tokens: impl ExactSizeIterator<Item = usize>) {
        self.tokens.resize(tokens.len(), 0);
        for (sum, tokens) in self.tokens.iter_mut().zip(tokens) {
            *sum += tokens as u64;
            self.touched += u64::from(tokens > 0);
        }
        self.routed += rows as u64;
        self.steps += 1;
    }
}

/// The expert assignments of all layers, by layer number.
pub fn expert_use(layers: &[(usize, Tally)]) -> Option<ExpertUse> {
    let (_, first) = layers.first()?;
    let count = first.tokens.len();
    let share = |tally: &Tally| {
        let (expert, tokens) = tally.tokens.iter().copied().enumerate().max_by_key(|(_, tokens)| *tokens)?;
        let all: u64 = tally.tokens.iter().sum();
        (all > 0).then(|| (expert, tokens as f64 * count as f64 / all as f64))
    };
    let shares: Vec<(usize, usize, f64)> = layers
        .iter()
        .filter_map(|(layer, tally)| share(tally).map(|(expert, times)| (*layer, expert, times)))
        .collect();
    let (layer, expert, times_mean) = shares.iter().copied().max_by(|a, b| a.2.total_cmp(&b.2))?;
    Some(ExpertUse {
        experts: count as u32,
        layers: layers.len() as u32,
        tokens: first.routed,
        steps: first.steps,
        touched: layers.iter().map(|(_, tally)| tally.touched).sum(),
        imbalance: shares.iter().map(|(_, _, times)| times).sum::<f64>() / shares.len() as f64,
        hottest: HottestExpert { layer: layer as u32, expert: expert as u32, times_mean },
        never: layers.iter().flat_map(|(_, tally)| &tally.tokens).filter(|tokens| **tokens == 0).count()
            as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expert_use_of_two_layers() {
        let mut layers = [(0, Tally::default()), (3, Tally::default())];
        // Four experts; each of two tokens is assigned to two of them.
        layers[0].1.count(2, [2, 1, 1, 0].into_iter());
        layers[1].1.count(2, [0, 0, 1, 3].into_iter());
        let found = expert_use(&layers).unwrap();
        assert_eq!((found.experts, found.layers, found.tokens, found.steps), (4, 2, 2, 1));
        assert_eq!((found.touched, found.never), (5, 3));
        assert_eq!(found.hottest, HottestExpert { layer: 3, expert: 3, times_mean: 3.0 });
        assert!((found.imbalance - 2.5).abs() < 1e-9);
        assert_eq!(expert_use(&[]), None);
        assert_eq!(expert_use(&[(0, Tally { tokens: vec![0; 4], ..Tally::default() })]), None);
    }
}
