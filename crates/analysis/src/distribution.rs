//! A distribution of durations in bounded memory.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Durations in nanoseconds. Count, sum, minimum and maximum are exact. Percentiles interpolate linearly between the two
/// nearest ranks. Up to [`MAX_EXACT`] durations they are exact, beyond that within 0.1 %.
#[derive(Debug, Clone, Default)]
pub struct Distribution {
    values: Values,
    /// Empty, for more than [`MAX_EXACT`] durations. Allocated with the first duration, so that memory does not grow
    /// hours into a run.
    spare: Option<Box<Histogram<u32>>>,
    n: u64,
    sum_ns: u128,
    min_ns: u64,
    max_ns: u64,
    last_ns: Option<u64>,
}

/// This many durations are kept individually.
pub const MAX_EXACT: usize = 1024;
/// Longer durations are not distinguished: ten hours.
const MAX_NS: u64 = 36_000_000_000_000;

#[derive(Debug, Clone)]
enum Values {
    /// In ascending order.
    Exact(Vec<u64>),
    Counted(Box<Histogram<u32>>),
}

impl Default for Values {
    fn default() -> Values {
        Values::Exact(Vec::new())
    }
}

/// With all its buckets: a growing histogram would allocate at the first slow token.
fn histogram() -> Box<Histogram<u32>> {
    Box::new(Histogram::new_with_bounds(1, MAX_NS, 3).expect("bounds are within the crate's limits"))
}

fn count(histogram: &mut Histogram<u32>, ns: u64) {
    // Cannot fail: the value is clamped to the bounds.
    let _ = histogram.record(ns.clamp(1, MAX_NS));
}

impl Distribution {
    pub fn record(&mut self, ns: u64) {
        match &mut self.values {
            Values::Exact(values) if values.len() < MAX_EXACT => {
                self.spare.get_or_insert_with(histogram);
                values.reserve_exact(MAX_EXACT - values.len());
                let at = values.partition_point(|known| *known <= ns);
                values.insert(at, ns);
            }
            Values::Exact(values) => {
                let mut counted = self.spare.take().unwrap_or_else(histogram);
                values.iter().for_each(|known| count(&mut counted, *known));
                count(&mut counted, ns);
                self.values = Values::Counted(counted);
            }
            Values::Counted(counted) => count(counted, ns),
        }
        self.min_ns = if self.n == 0 { ns } else { self.min_ns.min(ns) };
        self.max_ns = self.max_ns.max(ns);
        self.n += 1;
        self.sum_ns += u128::from(ns);
        self.last_ns = Some(ns);
    }

    /// Removes all values; the histogram's memory is kept.
    pub fn clear(&mut self) {
        let spare = match std::mem::take(self) {
            Distribution { values: Values::Counted(mut counted), .. } => {
                counted.reset();
                Some(counted)
            }
            Distribution { spare, .. } => spare,
        };
        self.spare = spare;
    }

    pub fn n(&self) -> u64 {
        self.n
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

    pub fn min_ms(&self) -> Option<f64> {
        (self.n() > 0).then(|| ms(self.min_ns))
    }

    /// The standard deviation of exactly these values; `None` without any.
    pub fn deviation_ms(&self) -> Option<f64> {
        let mean = self.mean_ms()?;
        let squares: f64 = self.counts().0.iter().map(|(ms, n)| (ms - mean).powi(2) * *n as f64).sum();
        Some((squares / self.n as f64).sqrt())
    }

    /// How many durations are in each of `bins` equal parts of `from..to` milliseconds; those outside are in the first and
    /// the last.
    pub fn bins_ms(&self, from: f64, to: f64, bins: usize) -> Vec<u64> {
        self.counts().bins_ms(from, to, bins)
    }

    pub fn max_ms(&self) -> Option<f64> {
        (self.n() > 0).then(|| ms(self.max_ns))
    }

    /// The value between the two durations that are nearest to `percentile` in rank, by linear interpolation; `None`
    /// when there are too few durations.
    pub fn percentile_ms(&self, percentile: f64) -> Option<f64> {
        (self.n >= samples_needed(percentile)).then(|| {
            let rank = percentile / 100.0 * (self.n - 1) as f64;
            let (below, above) = (self.nth_ms(rank.floor() as u64), self.nth_ms(rank.ceil() as u64));
            below + (above - below) * rank.fract()
        })
    }

    /// The duration with this rank, counted from 0. The rank must exist.
    fn nth_ms(&self, rank: u64) -> f64 {
        match &self.values {
            Values::Exact(values) => ms(values[rank as usize]),
            Values::Counted(counted) => {
                self.clamped_ms(counted.value_at_quantile((rank as f64 + 0.5) / self.n as f64))
            }
        }
    }

    /// Every distinct duration, and how often it occurs.
    pub fn counts(&self) -> Counts {
        Counts(match &self.values {
            Values::Exact(values) => {
                values.chunk_by(|a, b| a == b).map(|same| (ms(same[0]), same.len() as u64)).collect()
            }
            Values::Counted(counted) => {
                let steps = counted.iter_recorded();
                steps
                    .map(|step| {
                        (self.clamped_ms(step.value_iterated_to()), step.count_since_last_iteration())
                    })
                    .collect()
            }
        })
    }

    /// The number of durations in each of `bins` equal parts of `from_ms..to_ms`; others are not counted.
    pub fn bins(&self, from_ms: f64, to_ms: f64, bins: usize) -> Vec<u64> {
        let mut counts = vec![0; bins];
        let width = (to_ms - from_ms) / bins as f64;
        for (ms, n) in self.counts().0 {
            let bin = (ms - from_ms) / width;
            if bin >= 0.0
                && width > 0.0
                && let Some(count) = counts.get_mut(bin as usize)
            {
                *count += n;
            }
        }
        counts
    }

    /// The empirical distribution function: milliseconds in ascending order, and the share of durations up to each.
    pub fn ecdf(&self) -> Vec<(f64, f64)> {
        let mut seen = 0;
        self.counts()
            .0
            .into_iter()
            .map(|(ms, n)| {
                seen += n;
                (ms, seen as f64 / self.n as f64)
            })
            .collect()
    }

    /// A bucket of the histogram may extend beyond the values in it.
    fn clamped_ms(&self, ns: u64) -> f64 {
        // The histogram has no 0.
        let ns = if ns == 1 { 0 } else { ns };
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

/// Distinct durations in milliseconds, in ascending order, with their counts; beyond [`MAX_EXACT`] durations within 0.1
/// %.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Counts(Vec<(f64, u64)>);

impl Counts {
    pub fn n(&self) -> u64 {
        self.0.iter().map(|(_, n)| n).sum()
    }

    pub fn min_ms(&self) -> Option<f64> {
        self.0.first().map(|(ms, _)| *ms)
    }

    pub fn max_ms(&self) -> Option<f64> {
        self.0.last().map(|(ms, _)| *ms)
    }

    /// As [`Distribution::percentile_ms`].
    pub fn percentile_ms(&self, percentile: f64) -> Option<f64> {
        let n = self.n();
        let rank = percentile / 100.0 * n.saturating_sub(1) as f64;
        let (below, above) = (self.nth_ms(rank.floor() as u64)?, self.nth_ms(rank.ceil() as u64)?);
        (n >= samples_needed(percentile)).then(|| below + (above - below) * rank.fract())
    }

    fn nth_ms(&self, rank: u64) -> Option<f64> {
        let mut seen = 0;
        let reached = |(_, n): &&(f64, u64)| {
            seen += n;
            seen > rank
        };
        self.0.iter().find(reached).map(|(ms, _)| *ms)
    }

    /// As [`Distribution::bins_ms`].
    pub fn bins_ms(&self, from: f64, to: f64, bins: usize) -> Vec<u64> {
        let mut counts = vec![0; bins];
        for (ms, n) in &self.0 {
            let share = ((ms - from) / (to - from)).clamp(0.0, 1.0);
            if let Some(bin) = counts.get_mut(((share * bins as f64) as usize).min(bins.saturating_sub(1))) {
                *bin += n;
            }
        }
        counts
    }
}

/// The number of samples that a percentile needs: p50 two, p90 ten, p99 a hundred.
pub fn samples_needed(percentile: f64) -> u64 {
    (100.0 / (100.0 - percentile)).round() as u64
}

/// A distribution in milliseconds for reports and JSON. Unknown values are null.
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
    fn percentiles_need_enough_samples() {
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
    fn percentiles_of_few_values_are_interpolated() {
        // As numpy.percentile, whose default is linear.
        for (values, p50, p90) in [
            (&[10, 20][..], 15.0, None),
            (&[7, 1, 3], 3.0, None),
            (&[5, 1, 2, 4, 3, 10, 6, 7, 8, 9], 5.5, Some(9.1)),
            (&[100, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], 1.0, Some(1.0)),
        ] {
            let mut d = Distribution::default();
            values.iter().for_each(|ms| d.record(ms * 1_000_000));
            let s = d.summary();
            assert!((s.p50.unwrap() - p50).abs() < 1e-9, "{values:?}: {s:?}");
            assert_eq!(s.p90.map(|ms| (ms * 1e9).round() / 1e9), p90, "{values:?}: {s:?}");
        }
    }

    #[test]
    fn the_deviation_is_that_of_the_values() {
        let mut d = Distribution::default();
        assert_eq!(d.deviation_ms(), None);
        [2, 4, 4, 4, 5, 5, 7, 9].into_iter().for_each(|ms| d.record(ms * 1_000_000));
        assert!((d.deviation_ms().unwrap() - 2.0).abs() < 1e-9, "{:?}", d.deviation_ms());
    }

    #[test]
    fn percentiles_are_within_a_thousandth() {
        for n in [1000u64, 20_000] {
            let mut d = Distribution::default();
            (1..=n).rev().for_each(|i| d.record(i * 1_000_000));
            let s = d.summary();
            let n = n as f64;
            assert_eq!(s.mean, Some((n + 1.0) / 2.0));
            assert_eq!((s.n as f64, s.min, s.max), (n, Some(1.0), Some(n)));
            for (got, share) in [(s.p50, 0.5), (s.p90, 0.9), (s.p99, 0.99)] {
                let want = 1.0 + share * (n - 1.0);
                assert!((got.unwrap() - want).abs() / want < 1e-3, "{got:?} is not {want}");
            }
        }
    }

    #[test]
    fn one_value_beyond_the_limit_changes_little() {
        let mut d = Distribution::default();
        let next = |d: &mut Distribution| {
            let i = d.n();
            d.record(1_000_000 + (i * 7919) % 100_000);
        };
        while d.n() < MAX_EXACT as u64 {
            next(&mut d);
        }
        let exact = d.summary();
        next(&mut d);
        let counted = d.summary();
        assert_eq!(counted.n, MAX_EXACT as u64 + 1);
        for (exact, counted) in [(exact.p50, counted.p50), (exact.p99, counted.p99)] {
            assert!((exact.unwrap() / counted.unwrap() - 1.0).abs() < 1e-3, "{exact:?} {counted:?}");
        }
        let seen: u64 = d.bins(0.0, 10.0, 7).iter().sum();
        assert_eq!((seen, d.ecdf().last().map(|last| last.1)), (d.n(), Some(1.0)));
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
    fn counts_have_the_percentiles_of_their_distribution() {
        for n in [0u64, 1, 2, 99, 100, 1000, 5000] {
            let mut d = Distribution::default();
            (0..n).for_each(|i| d.record(3_000_000 + (i * 7919) % 100_000));
            let counts = d.counts();
            assert_eq!(counts.n(), n);
            for (of_counts, exact) in [(counts.min_ms(), d.min_ms()), (counts.max_ms(), d.max_ms())] {
                let both = of_counts.zip(exact);
                assert!(
                    both.is_none_or(|(a, b)| (a / b - 1.0).abs() < 1e-3) && of_counts.is_some() == (n > 0)
                );
            }
            for p in [50.0, 90.0, 99.0] {
                assert_eq!(counts.percentile_ms(p), d.percentile_ms(p), "p{p} of {n}");
            }
            assert_eq!(counts.bins_ms(3.0, 3.05, 10).iter().sum::<u64>(), n);
        }
    }

    #[test]
    fn a_cleared_distribution_is_empty() {
        let mut d = Distribution::default();
        for n in [1, 2 * MAX_EXACT as u64, 1] {
            (0..n).for_each(|i| d.record(5 + i));
            d.clear();
            assert_eq!(d.summary(), Summary::default());
            assert_eq!(d.last_ms(), None);
        }
        d.record(8_000_000);
        assert_eq!((d.n(), d.max_ms()), (1, Some(8.0)));
    }
}
