//! A distribution of durations in bounded memory.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Durations in nanoseconds. Count, sum, minimum and maximum are exact; percentiles are within 0.1 %.
#[derive(Debug, Clone)]
pub struct Distribution {
    histogram: Histogram<u32>,
    sum_ns: u128,
    min_ns: u64,
    max_ns: u64,
    last_ns: Option<u64>,
}

/// Longer durations are not distinguished: ten hours.
const MAX_NS: u64 = 36_000_000_000_000;

impl Default for Distribution {
    fn default() -> Self {
        // Allocated at once: a histogram that grows would do so at the first slow token, hours into a run.
        let histogram =
            Histogram::new_with_bounds(1, MAX_NS, 3).expect("bounds are within the crate's limits");
        Distribution { histogram, sum_ns: 0, min_ns: u64::MAX, max_ns: 0, last_ns: None }
    }
}

impl Distribution {
    pub fn record(&mut self, ns: u64) {
        // Cannot fail: the value is clamped to the bounds.
        let _ = self.histogram.record(ns.clamp(1, MAX_NS));
        self.sum_ns += u128::from(ns);
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
        self.last_ns = Some(ns);
    }

    /// Removes all values without freeing memory.
    pub fn clear(&mut self) {
        self.histogram.reset();
        (self.sum_ns, self.min_ns, self.max_ns, self.last_ns) = (0, u64::MAX, 0, None);
    }

    pub fn n(&self) -> u64 {
        self.histogram.len()
    }

    pub fn last_ms(&self) -> Option<f64> {
        self.last_ns.map(ms)
    }

    pub fn sum_secs(&self) -> f64 {
        self.sum_ns as f64 / 1e9
    }

    pub fn mean_ms(&self) -> Option<f64> {
        (self.n() > 0).then(|| self.sum_ns as f64 / self.n() as f64 / 1e6)
    }

    pub fn max_ms(&self) -> Option<f64> {
        (self.n() > 0).then(|| ms(self.max_ns))
    }

    /// The value that `percentile` percent of the durations do not exceed; `None` when there are too few.
    pub fn percentile_ms(&self, percentile: f64) -> Option<f64> {
        (self.n() >= samples_needed(percentile))
            .then(|| ms(self.histogram.value_at_percentile(percentile).clamp(self.min_ns, self.max_ns)))
    }

    /// The number of durations in each of `bins` equal parts of `from_ms..to_ms`; others are not counted.
    pub fn bins(&self, from_ms: f64, to_ms: f64, bins: usize) -> Vec<u64> {
        let mut counts = vec![0; bins];
        let width = (to_ms - from_ms) / bins as f64;
        for step in self.histogram.iter_recorded() {
            let bin = (self.clamped_ms(step.value_iterated_to()) - from_ms) / width;
            if bin >= 0.0
                && width > 0.0
                && let Some(count) = counts.get_mut(bin as usize)
            {
                *count += step.count_since_last_iteration();
            }
        }
        counts
    }

    /// The empirical distribution function: milliseconds in ascending order, and the share of durations up to each.
    pub fn ecdf(&self) -> Vec<(f64, f64)> {
        let n = self.n() as f64;
        let mut seen = 0;
        self.histogram
            .iter_recorded()
            .map(|step| {
                seen += step.count_since_last_iteration();
                (self.clamped_ms(step.value_iterated_to()), seen as f64 / n)
            })
            .collect()
    }

    /// A bucket of the histogram may extend beyond the values in it.
    fn clamped_ms(&self, ns: u64) -> f64 {
        ms(ns.clamp(self.min_ns, self.max_ns))
    }

    pub fn summary(&self) -> Summary {
        Summary {
            n: self.n(),
            mean: self.mean_ms(),
            p50: self.percentile_ms(50.0),
            p90: self.percentile_ms(90.0),
            p99: self.percentile_ms(99.0),
            min: (self.n() > 0).then(|| ms(self.min_ns)),
            max: self.max_ms(),
        }
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// The number of samples that a percentile needs: p50 two, p90 ten, p99 a hundred.
pub fn samples_needed(percentile: f64) -> u64 {
    (100.0 / (100.0 - percentile)).round() as u64
}

/// A distribution in milliseconds, as in reports and JSON. What is not known is null.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Summary {
    pub n: u64,
    pub mean: Option<f64>,
    pub p50: Option<f64>,
    pub p90: Option<f64>,
    pub p99: Option<f64>,
    pub min: Option<f64>,
    pub max: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_wait_for_their_samples() {
        let mut d = Distribution::default();
        assert_eq!(d.summary(), Summary::default());
        for (n, p50, p90, p99) in [
            (1, false, false, false),
            (2, true, false, false),
            (10, true, true, false),
            (100, true, true, true),
        ] {
            while d.n() < n {
                d.record(1_000_000 * (d.n() + 1));
            }
            let s = d.summary();
            assert_eq!((s.p50.is_some(), s.p90.is_some(), s.p99.is_some()), (p50, p90, p99), "n = {n}");
        }
    }

    #[test]
    fn percentiles_are_within_a_thousandth() {
        let mut d = Distribution::default();
        (1..=1000u64).for_each(|i| d.record(i * 1_000_000));
        let s = d.summary();
        assert_eq!(s.mean, Some(500.5));
        assert_eq!((s.min, s.max), (Some(1.0), Some(1000.0)));
        for (got, want) in [(s.p50, 500.0), (s.p90, 900.0), (s.p99, 990.0)] {
            assert!((got.unwrap() - want).abs() / want < 1e-3, "{got:?} is not {want}");
        }
    }

    #[test]
    fn bins_and_shares_count_everything_once() {
        let mut d = Distribution::default();
        assert!(d.ecdf().is_empty() && d.bins(0.0, 1.0, 4) == [0, 0, 0, 0]);
        (1..=100u64).for_each(|i| d.record(i * 1_000_000));
        assert_eq!(d.bins(0.0, 200.0, 4), [49, 50, 1, 0]);
        assert_eq!(d.bins(50.5, 60.5, 2), [5, 5]);
        assert_eq!(d.bins(5.0, 5.0, 3), [0, 0, 0]);
        let ecdf = d.ecdf();
        assert_eq!((ecdf.len(), ecdf[99].1), (100, 1.0));
        assert!(ecdf.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn a_cleared_distribution_is_empty() {
        let mut d = Distribution::default();
        d.record(5);
        d.clear();
        assert_eq!(d.summary(), Summary::default());
        assert_eq!(d.last_ms(), None);
    }
}
