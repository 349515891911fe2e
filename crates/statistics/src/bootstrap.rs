//! The bootstrap: a statistic of samples drawn with replacement. The same seed gives the same draws.

use crate::noise;

/// Draws with replacement.
pub struct Resampler {
    seed: u64,
    draws: u64,
}

impl Resampler {
    /// An index below `n`, each with the same probability.
    pub fn index(&mut self, n: usize) -> usize {
        self.draws += 1;
        ((u128::from(noise::bits(self.seed, self.draws)) * n as u128) >> 64) as usize
    }

    /// Replaces every element of `resample` by one of `values`.
    pub fn fill<T: Copy>(&mut self, resample: &mut [T], values: &[T]) {
        resample.iter_mut().for_each(|value| *value = values[self.index(values.len())]);
    }
}

/// The statistic of each of `resamples` resamples, in the order they were drawn. Resamples without one are left out.
pub fn bootstrap(
    seed: u64,
    resamples: usize,
    mut statistic: impl FnMut(&mut Resampler) -> Option<f64>,
) -> Vec<f64> {
    let mut resampler = Resampler { seed, draws: 0 };
    (0..resamples).filter_map(|_| statistic(&mut resampler)).collect()
}

/// A quantile of values in ascending order; `None` if there are none.
pub fn quantile(sorted: &[f64], probability: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((last as f64 * probability).round() as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_is_drawn_equally_often() {
        let mut counts = [0; 7];
        bootstrap(3, 7000, |resampler| {
            counts[resampler.index(7)] += 1;
            None
        });
        assert!(counts.iter().all(|count| (850..=1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn quantiles_are_values_of_the_list() {
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(
            [0.0, 0.5, 0.9, 1.0].map(|p| quantile(&[1.0, 2.0, 3.0], p).unwrap()),
            [1.0, 2.0, 3.0, 3.0]
        );
    }
}
