//! ITL by the length of the context, in bounded memory.

/// The number of buckets; beyond it, neighbours are merged.
const MAX_BUCKETS: usize = 64;
const FIRST_WIDTH: u64 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct ContextBucket {
    n: u64,
    sum_ns: u128,
    min_ns: u64,
    max_ns: u64,
}

impl ContextBucket {
    fn merge(&mut self, other: ContextBucket) {
        *self = match (self.n, other.n) {
            (_, 0) => *self,
            (0, _) => other,
            _ => ContextBucket {
                n: self.n + other.n,
                sum_ns: self.sum_ns + other.sum_ns,
                min_ns: self.min_ns.min(other.min_ns),
                max_ns: self.max_ns.max(other.max_ns),
            },
        };
    }
}

/// ITL by the number of positions in the cache, in buckets of equal width.
#[derive(Debug, Clone, PartialEq)]
pub struct ByContext {
    buckets: Vec<ContextBucket>,
    width: u64,
}

/// The tokens of one bucket.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AtContext {
    /// Positions `from..to`.
    pub from: u64,
    pub to: u64,
    pub n: u64,
    pub mean_ms: f64,
    pub min_ms: f64,
    pub max_ms: f64,
}

impl AtContext {
    pub fn middle(&self) -> f64 {
        (self.from + self.to - 1) as f64 / 2.0
    }
}

impl Default for ByContext {
    fn default() -> Self {
        ByContext { buckets: Vec::with_capacity(MAX_BUCKETS), width: FIRST_WIDTH }
    }
}

impl ByContext {
    pub(super) fn token(&mut self, context: u64, gap_ns: u64) {
        while context / self.width >= MAX_BUCKETS as u64 {
            self.halve();
        }
        let at = (context / self.width) as usize;
        if at >= self.buckets.len() {
            self.buckets.resize(at + 1, ContextBucket::default());
        }
        let one = ContextBucket { n: 1, sum_ns: u128::from(gap_ns), min_ns: gap_ns, max_ns: gap_ns };
        self.buckets[at].merge(one);
    }

    fn halve(&mut self) {
        for pair in 0..self.buckets.len().div_ceil(2) {
            let mut merged = self.buckets[2 * pair];
            merged.merge(self.buckets.get(2 * pair + 1).copied().unwrap_or_default());
            self.buckets[pair] = merged;
        }
        self.buckets.truncate(self.buckets.len().div_ceil(2));
        self.width *= 2;
    }

    /// The non-empty buckets in ascending order.
    pub fn all(&self) -> impl Iterator<Item = AtContext> {
        let ms = |ns: u64| ns as f64 / 1e6;
        self.buckets.iter().zip(0u64..).filter(|(bucket, _)| bucket.n > 0).map(move |(bucket, i)| AtContext {
            from: i * self.width,
            to: (i + 1) * self.width,
            n: bucket.n,
            mean_ms: bucket.sum_ns as f64 / bucket.n as f64 / 1e6,
            min_ms: ms(bucket.min_ns),
            max_ms: ms(bucket.max_ns),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_token_is_in_one_bucket(tokens in prop::collection::vec((0u64..4_000_000_000, 1u64..1_000_000_000), 1..200)) {
            let mut by = ByContext::default();
            tokens.iter().for_each(|(context, ns)| by.token(*context, *ns));
            let all: Vec<AtContext> = by.all().collect();
            prop_assert!(all.len() <= MAX_BUCKETS && by.buckets.capacity() <= MAX_BUCKETS);
            prop_assert_eq!(all.iter().map(|at| at.n).sum::<u64>(), tokens.len() as u64);
            for at in all {
                let within: Vec<f64> = tokens
                    .iter()
                    .filter(|(context, _)| (at.from..at.to).contains(context))
                    .map(|(_, ns)| *ns as f64 / 1e6)
                    .collect();
                prop_assert_eq!(within.len() as u64, at.n);
                prop_assert!(within.contains(&at.min_ms) && within.contains(&at.max_ms));
                let mean = within.iter().sum::<f64>() / at.n as f64;
                prop_assert!((mean - at.mean_ms).abs() <= 1e-9 * mean.abs());
            }
        }
    }
}
