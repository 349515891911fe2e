//! A percentile of counted values, and the order statistics between which it lies.

use crate::{
    binomial::percentile_ranks,
    blocks::{BlockHistogram, bucket_value},
};

/// All values of a histogram in ascending order, and the number of independent values that they are worth.
#[derive(Debug, Clone, PartialEq)]
pub struct OrderStatistics {
    /// Each value with the number of values that are not larger.
    cumulative: Vec<(f64, u64)>,
    percentile: f64,
    effective: f64,
}

impl OrderStatistics {
    /// `None` for a histogram without values.
    pub fn new(histogram: &BlockHistogram, percentile: f64) -> Option<OrderStatistics> {
        let mut n = 0;
        let counts = histogram.total().into_iter().map(|(bucket, count)| {
            n += u64::from(count);
            (bucket_value(bucket), n)
        });
        let cumulative: Vec<(f64, u64)> = counts.collect();
        (!cumulative.is_empty()).then_some(OrderStatistics { cumulative, percentile, effective: n as f64 })
    }

    /// The same values, if they are worth `effective` independent ones.
    pub fn worth(self, effective: f64) -> OrderStatistics {
        OrderStatistics { effective, ..self }
    }

    pub fn effective(&self) -> f64 {
        self.effective
    }

    pub fn n(&self) -> u64 {
        self.cumulative.last().map_or(0, |(_, n)| *n)
    }

    /// The percentile.
    pub fn value(&self) -> f64 {
        self.at((self.n() as f64 * (self.percentile / 100.0)).ceil() as u64)
    }

    /// The interval of the percentile that misses the true one with probability `alpha` at most; `None` for too few values.
    pub fn range(&self, alpha: f64) -> Option<(f64, f64)> {
        let (low, high) = percentile_ranks(self.n(), self.effective, self.percentile, alpha)?;
        Some((self.at(low).min(self.value()), self.at(high).max(self.value())))
    }

    /// The value of a rank.
    fn at(&self, rank: u64) -> f64 {
        let index = self.cumulative.partition_point(|(_, n)| *n < rank.max(1));
        self.cumulative[index.min(self.cumulative.len() - 1)].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise;

    #[test]
    fn the_percentile_is_a_value_of_its_rank() {
        let values: Vec<f64> = (1..=100).map(|i| 1e6 * f64::from(i)).collect();
        let histogram = BlockHistogram::of_chunks(&values, 7);
        for (percentile, want) in [(50.0, 50e6), (90.0, 90e6), (99.0, 99e6), (1.0, 1e6)] {
            let value = OrderStatistics::new(&histogram, percentile).unwrap().value();
            assert!((value / want - 1.0).abs() < 3e-4, "p{percentile}: {value}");
        }
        assert_eq!(OrderStatistics::new(&BlockHistogram::default(), 50.0), None);
    }

    /// The values have two modes; the share of the slow one is smaller than that beyond the percentile.
    #[test]
    fn the_range_contains_the_true_percentile_as_often_as_stated() {
        for (n, percentile, slow) in [(30, 50.0, 0.05), (60, 90.0, 0.05), (600, 99.0, 0.003)] {
            // Uniform from 1 to 2, and from 5 to 6 for the slow ones.
            let below = percentile / 100.0 / (1.0 - slow);
            let truth = 1e6 * (1.0 + below);
            let trials = 400;
            let hits = (0..trials).filter(|trial| {
                let seed = noise::bits(11, *trial);
                let value = |i: u64| {
                    let mode = if noise::unit(seed ^ 1, i) < slow { 5.0 } else { 1.0 };
                    1e6 * (mode + noise::unit(seed, i))
                };
                let values: Vec<f64> = (0..n).map(value).collect();
                let histogram = BlockHistogram::of_chunks(&values, 1);
                let (low, high) = OrderStatistics::new(&histogram, percentile).unwrap().range(0.05).unwrap();
                low <= truth * 1.0003 && truth <= high * 1.0003
            });
            let share = hits.count() as f64 / trials as f64;
            assert!(share >= 0.93, "{share} of the intervals of p{percentile} over {n} values");
        }
    }
}
