//! Exact intervals from the binomial distribution: of a share (Clopper-Pearson), and of a percentile by its order statistics.

use statrs::{
    distribution::{ContinuousCDF, Normal},
    function::beta::beta_reg,
};

/// For more values the normal approximation is used: the continued fraction of the beta function converges too slowly.
const MAX_EXACT: f64 = 10_000.0;
/// Each step halves the bracket.
const BISECTIONS: usize = 60;

/// The Clopper-Pearson interval of a share of `n` values, which misses the true share with a probability of at most
/// `alpha`; for more than 10,000 values the Wilson interval.
pub fn share_bounds(successes: f64, n: f64, alpha: f64) -> (f64, f64) {
    let tail = alpha / 2.0;
    if n > MAX_EXACT {
        return wilson_bounds(successes, n, tail);
    }
    let failures = n - successes;
    let low = || bisect(1.0, |share| beta_reg(successes, failures + 1.0, share) <= tail);
    let high = || bisect(1.0, |share| beta_reg(successes + 1.0, failures, share) <= 1.0 - tail);
    (if successes <= 0.0 { 0.0 } else { low() }, if failures <= 0.0 { 1.0 } else { high() })
}

/// The score interval of Wilson.
fn wilson_bounds(k: f64, n: f64, tail: f64) -> (f64, f64) {
    let z = Normal::standard().inverse_cdf(1.0 - tail);
    let (share, z2) = (k / n, z * z);
    let middle = (share + z2 / (2.0 * n)) / (1.0 + z2 / n);
    let half = z / (1.0 + z2 / n) * (share * (1.0 - share) / n + z2 / (4.0 * n * n)).sqrt();
    (if k == 0.0 { 0.0 } else { middle - half }, if k == n { 1.0 } else { middle + half })
}

/// The ranks, from 1, of the order statistics that enclose a percentile except with probability `alpha`. The `n` values
/// are worth `effective` independent ones. `None` if there are too few.
pub fn percentile_ranks(n: u64, effective: f64, percentile: f64, alpha: f64) -> Option<(u64, u64)> {
    let share = percentile / 100.0;
    let effective = effective.min(n as f64);
    let rank = |share: f64| {
        // A rank that rounding moved just below a whole number is rounded to it.
        let of_independent = lower_rank(effective, share, alpha / 2.0) + 1e-6;
        (of_independent >= 1.0).then(|| (of_independent * n as f64 / effective).floor() as u64)
    };
    Some((rank(share)?, n + 1 - rank(1.0 - share)?))
}

/// How many independent values the interval of a percentile needs.
pub fn independent_values_needed(percentile: f64, alpha: f64) -> u64 {
    let thicker = (percentile / 100.0).max(1.0 - percentile / 100.0);
    ((alpha / 2.0).ln() / thicker.ln() - 1e-9).ceil() as u64
}

/// The largest rank whose value exceeds the quantile of `share` with a probability of at most `tail`: at most rank − 1 of the
/// values are below the quantile.
fn lower_rank(n: f64, share: f64, tail: f64) -> f64 {
    if n > MAX_EXACT {
        let z = Normal::standard().inverse_cdf(1.0 - tail);
        return (n * share - z * (n * share * (1.0 - share)).sqrt()).max(0.0);
    }
    bisect(n, |rank| beta_reg(n - rank + 1.0, rank, 1.0 - share) <= tail)
}

/// The largest value up to `end` that passes; those that do are below those that do not.
fn bisect(end: f64, passes: impl Fn(f64) -> bool) -> f64 {
    let (mut low, mut high) = (0.0, end);
    for _ in 0..BISECTIONS {
        let middle = (low + high) / 2.0;
        match passes(middle) {
            true => low = middle,
            false => high = middle,
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The probability of at most `k` successes of `n`, by summation.
    fn at_most(k: u64, n: u64, share: f64) -> f64 {
        if share > 0.5 {
            return 1.0 - at_most(n - k - 1, n, 1.0 - share);
        }
        let (mut term, mut sum) = ((1.0 - share).powi(n as i32), 0.0);
        for i in 0..=k {
            sum += term;
            term *= (n - i) as f64 / (i + 1) as f64 * share / (1.0 - share);
        }
        sum
    }

    #[test]
    fn shares_have_the_intervals_of_the_tables() {
        for (k, n, low, high) in [
            (0, 10, 0.0, 0.3085),
            (5, 10, 0.1871, 0.8129),
            (10, 10, 0.6915, 1.0),
            (93, 100, 0.8611, 0.9714),
            (190, 200, 0.9100, 0.9758),
        ] {
            let bounds = share_bounds(f64::from(k), f64::from(n), 0.05);
            assert!(
                (bounds.0 - low).abs() < 1e-4 && (bounds.1 - high).abs() < 1e-4,
                "{k} of {n}: {bounds:?}"
            );
        }
    }

    #[test]
    fn ranks_are_those_of_the_sums() {
        for (n, percentile) in [(10, 50.0), (30, 50.0), (50, 90.0), (500, 99.0), (800, 99.0)] {
            let (low, high) = percentile_ranks(n, n as f64, percentile, 0.05).unwrap();
            let share = percentile / 100.0;
            let miss_below = |rank: u64| at_most(rank - 1, n, share);
            let miss_above = |rank: u64| 1.0 - at_most(rank - 1, n, share);
            assert!(miss_below(low) <= 0.025 && miss_below(low + 1) > 0.025, "{n}, {percentile}: {low}");
            assert!(miss_above(high) <= 0.025 && miss_above(high - 1) > 0.025, "{n}, {percentile}: {high}");
        }
    }

    #[test]
    fn a_percentile_needs_values_beyond_it() {
        for (percentile, needed) in [(50.0, 6), (90.0, 36), (99.0, 368), (1.0, 368)] {
            assert_eq!(independent_values_needed(percentile, 0.05), needed, "p{percentile}");
            assert!(percentile_ranks(needed, needed as f64, percentile, 0.05).is_some(), "p{percentile}");
            assert_eq!(percentile_ranks(needed - 1, (needed - 1) as f64, percentile, 0.05), None);
        }
        assert_eq!(percentile_ranks(10_000, 300.0, 99.0, 0.05), None, "worth 300 independent values");
    }

    #[test]
    fn correlated_values_have_wider_ranks() {
        let (low, high) = percentile_ranks(1000, 1000.0, 90.0, 0.05).unwrap();
        let (lower, higher) = percentile_ranks(1000, 250.0, 90.0, 0.05).unwrap();
        let widths = ((high - low) as f64, (higher - lower) as f64);
        assert!((widths.1 / widths.0 - 2.0).abs() < 0.2, "{widths:?}");
    }

    #[test]
    fn the_approximations_follow_the_exact_intervals() {
        for k in [5000.0, 9300.0, 9900.0] {
            let exact = share_bounds(k, 1e4, 0.05);
            let approximate = wilson_bounds(k, 1e4, 0.025);
            let width = exact.1 - exact.0;
            assert!((exact.0 - approximate.0).abs() < 0.05 * width, "{k}: {exact:?} and {approximate:?}");
            assert!((exact.1 - approximate.1).abs() < 0.05 * width, "{k}: {exact:?} and {approximate:?}");
        }
        for share in [0.5, 0.9, 0.99, 0.01] {
            let exact = lower_rank(MAX_EXACT, share, 0.025);
            let approximate = lower_rank(MAX_EXACT + 1e-6, share, 0.025);
            let error = (MAX_EXACT * share * (1.0 - share)).sqrt();
            assert!((exact - approximate).abs() < 0.15 * error, "{share}: {exact} and {approximate}");
        }
    }
}
