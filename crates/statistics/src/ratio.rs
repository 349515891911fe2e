//! The logarithm of the ratio of B to A with its sampling distribution. The same seed gives the same distribution.
//!
//! Means and rates use the studentised bootstrap of the log ratio, at least as wide as Student's t; autocorrelated values are drawn
//! in blocks. Percentiles use the exact binomial interval of each side, for as many independent values as its blocks are worth.

use crate::{
    binomial::{independent_values_needed, share_bounds},
    blocks::{BUCKET_WIDTH, BlockCounts, BlockHistogram, MAX_BLOCKS, bucket_value},
    interval::{
        ALPHA, ConfidenceInterval, Estimate, MIN_VALUES, SamplingDistribution, Share, student_t_quantile,
    },
    percentile::OrderStatistics,
};

/// A percentile needs at least this many blocks.
pub const MIN_BLOCKS: usize = 8;
/// A percentile needs at least this many values on its thinner side.
const MIN_TAIL_VALUES: f64 = 5.0;
/// With a higher autocorrelation no block is long enough.
const MAX_AUTOCORRELATION: f64 = 0.99;

/// How many values the interval of a percentile needs.
pub fn values_needed(percentile: f64) -> usize {
    let thinner = (percentile / 100.0).min(1.0 - percentile / 100.0).max(1e-6);
    (MIN_TAIL_VALUES / thinner - 1e-6).ceil() as usize
}

/// The 95 % interval of a ratio, from the distribution of its logarithm.
pub fn interval(log_ratio: &SamplingDistribution) -> Option<ConfidenceInterval> {
    Some(log_ratio.interval(ALPHA)?.map(f64::exp))
}

/// The ratio of two rates, each a sum of numerators over a sum of denominators. `None` if a side has fewer than
/// [`MIN_VALUES`], or if a sum is not above zero.
pub fn of_rates(a: &[(f64, f64)], b: &[(f64, f64)], seed: u64) -> Option<SamplingDistribution> {
    if a.len().min(b.len()) < MIN_VALUES {
        return None;
    }
    let ((a, inflation_a), (b, inflation_b)) = (block_sums(a), block_sums(b));
    let log_ratio = |a: &[(f64, f64)], b: &[(f64, f64)], inflation: (f64, f64)| {
        let (a, b) = (log_rate(a)?, log_rate(b)?);
        Some(Estimate {
            value: b.value - a.value,
            standard_error: (inflation.0 * a.standard_error).hypot(inflation.1 * b.standard_error),
        })
    };
    let estimate = log_ratio(&a, &b, (inflation_a, inflation_b))?;
    let (mut resample_a, mut resample_b) = (a.clone(), b.clone());
    // For Student's t, the degrees of freedom of the smaller side are a lower bound.
    Some(SamplingDistribution::studentised(estimate, a.len().min(b.len()), seed, |resampler| {
        resampler.fill(&mut resample_a, &a);
        resampler.fill(&mut resample_b, &b);
        log_ratio(&resample_a, &resample_b, (1.0, 1.0))
    }))
}

/// Why a ratio of percentiles has no interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooFew {
    /// Values, or blocks of them.
    Values,
    /// The values of a side are correlated, and worth fewer independent ones than needed.
    Independent { a: u64, b: u64, needed: u64 },
}

/// The ratio of a percentile of `b` to that of `a`, by the order statistics of each.
pub fn of_percentile(
    a: &BlockHistogram,
    b: &BlockHistogram,
    percentile: f64,
) -> Result<SamplingDistribution, TooFew> {
    if a.blocks().len().min(b.blocks().len()) < MIN_BLOCKS
        || a.n().min(b.n()) < values_needed(percentile) as u64
    {
        return Err(TooFew::Values);
    }
    let of = |histogram| order_statistics(histogram, percentile).ok_or(TooFew::Values);
    let (a, b) = (of(a)?, of(b)?);
    let (worth_a, worth_b) = (a.effective() as u64, b.effective() as u64);
    let log_ratio = SamplingDistribution::Percentiles(Box::new([a, b]));
    match log_ratio.interval(ALPHA) {
        None => {
            let needed = independent_values_needed(percentile, ALPHA);
            Err(TooFew::Independent { a: worth_a, b: worth_b, needed })
        }
        Some(interval) if interval.low == interval.high => Ok(of_buckets(interval.estimate)),
        Some(_) => Ok(log_ratio),
    }
}

/// The values of a histogram, worth as many independent ones as their blocks show: at the percentile and, if blocks have
/// several values, also at the ends of the interval, because farther out the values come from fewer blocks.
fn order_statistics(histogram: &BlockHistogram, percentile: f64) -> Option<OrderStatistics> {
    let values = OrderStatistics::new(histogram, percentile)?;
    let at_percentile = effective_size(histogram, values.value());
    let values = values.worth(at_percentile);
    let single = histogram.blocks().len() as u64 == values.n();
    let ends = values
        .range(ALPHA)
        .filter(|_| !single)
        .map(|(low, high)| [low, high].map(|end| effective_size(histogram, end)));
    let worth = ends.into_iter().flatten().fold(at_percentile, f64::min);
    Some(values.worth(worth))
}

/// The share of the values that are not above `limit`, for as many independent ones as their blocks are worth; `None` without any.
pub fn of_share(histogram: &BlockHistogram, limit: f64) -> Option<ConfidenceInterval> {
    let counts = histogram.total();
    let n: f64 = counts.iter().map(|(_, n)| f64::from(*n)).sum();
    let within = counts.iter().filter(|(bucket, _)| bucket_value(*bucket) <= limit);
    let share = within.map(|(_, n)| f64::from(*n)).sum::<f64>() / n;
    let worth = effective_size(histogram, limit).min(n);
    let (low, high) = (n > 0.0).then(|| share_bounds(share * worth, worth, ALPHA))?;
    Some(ConfidenceInterval { estimate: share, low, high })
}

/// The ratio of the share of values that are not above `limit` in `b` to that in `a`. `None` if a side has too few
/// values, or none that is not above.
pub fn of_shares(a: &BlockHistogram, b: &BlockHistogram, limit: f64) -> Option<SamplingDistribution> {
    let share = |histogram: &BlockHistogram| {
        let value = of_share(histogram, limit)?.estimate;
        let n = histogram.n() as f64;
        let worth = effective_size(histogram, limit).min(n);
        (value > 0.0 && n >= MIN_VALUES as f64).then_some(Share { value, worth })
    };
    Some(SamplingDistribution::Shares(Box::new([share(a)?, share(b)?])))
}

/// How many independent values have the standard error that the share of values above a percentile has between blocks. Few blocks
/// estimate it less precisely, for which Student's t accounts (Korn and Graubard 1998).
fn effective_size(histogram: &BlockHistogram, percentile: f64) -> f64 {
    let (blocks, inflation) = in_longer_blocks(histogram, percentile);
    let counts = blocks.blocks().iter().map(|block| {
        let of = |above: &dyn Fn(u32) -> bool| -> f64 {
            block.iter().filter(|(bucket, _)| above(*bucket)).map(|(_, n)| f64::from(*n)).sum()
        };
        (of(&|bucket| bucket_value(bucket) > percentile), of(&|_| true))
    });
    let counts: Vec<(f64, f64)> = counts.collect();
    let (above, n) = sums(&counts);
    let (share, k) = (above / n, counts.len() as f64);
    let squares: f64 = counts.iter().map(|(above, of)| (above - share * of).powi(2)).sum();
    let independent = n * share * (1.0 - share);
    if independent <= 0.0 || k < 2.0 {
        return n;
    }
    let design_effect = inflation.powi(2) * squares / independent * (k / (k - 1.0)) * ((n - 1.0) / n);
    let of_few_blocks = [n, k].map(|n| student_t_quantile(n - 1.0, ALPHA / 2.0));
    n / design_effect.max(1.0) * (of_few_blocks[0] / of_few_blocks[1]).powi(2)
}

/// Neighbouring blocks may be correlated: requests that a server runs together are slow together. In that case blocks
/// are merged into longer ones, and the inflation covers the standard error that these leave out. Correlation is tested
/// on the shares of values above the percentile and on the means, which show it earlier.
fn in_longer_blocks(histogram: &BlockHistogram, percentile: f64) -> (BlockHistogram, f64) {
    let mean = |block: &BlockCounts, of: &dyn Fn(f64) -> f64| {
        let n: f64 = block.iter().map(|(_, n)| f64::from(*n)).sum();
        block.iter().map(|(bucket, n)| of(bucket_value(*bucket)) * f64::from(*n)).sum::<f64>() / n.max(1.0)
    };
    let of_blocks = |of: &dyn Fn(f64) -> f64| -> Vec<f64> {
        histogram.blocks().iter().map(|block| mean(block, of)).collect()
    };
    let shares = of_blocks(&|value| f64::from(u8::from(value > percentile)));
    let means = of_blocks(&f64::ln);
    let by_likeness =
        [shares, means].into_iter().filter_map(|values| Some((lag1_autocorrelation(&values)?, values)));
    let Some((rho, values)) = by_likeness.max_by(|(a, _), (b, _)| a.total_cmp(b)) else {
        return (histogram.clone(), 1.0);
    };
    let length = block_length(&values);
    (histogram.in_blocks_of(length), standard_error_inflation(rho, values.len(), length))
}

/// The logarithm of a ratio of percentiles that are always in the same buckets.
pub fn of_buckets(log_ratio: f64) -> SamplingDistribution {
    match log_ratio == 0.0 {
        true => SamplingDistribution::Point(log_ratio),
        false => SamplingDistribution::Rounded { estimate: log_ratio, half_width: BUCKET_WIDTH },
    }
}

/// A percentile of all values; `None` if there are none.
pub fn percentile_of(histogram: &BlockHistogram, percentile: f64) -> Option<f64> {
    Some(OrderStatistics::new(histogram, percentile)?.value())
}

/// The lag-1 autocorrelation; `None` if it is not significant, or if there are too few values.
fn lag1_autocorrelation(values: &[f64]) -> Option<f64> {
    let n = values.len() as f64;
    if values.len() < 2 * MIN_BLOCKS {
        return None;
    }
    let mean = values.iter().sum::<f64>() / n;
    let variance: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let covariance: f64 = values.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
    let autocorrelation = if variance > 0.0 { covariance / variance } else { 0.0 };
    (autocorrelation > 2.0 / n.sqrt()).then_some(autocorrelation.min(MAX_AUTOCORRELATION))
}

/// The block length for a bootstrap of these values: it grows with their autocorrelation, and leaves [`MIN_BLOCKS`] to
/// [`MAX_BLOCKS`] blocks.
pub fn block_length(values: &[f64]) -> usize {
    let n = values.len();
    let shortest = n.div_ceil(MAX_BLOCKS).max(1);
    let Some(rho) = lag1_autocorrelation(values) else { return shortest };
    let length = (2.0 * rho / (1.0 - rho * rho)).powf(2.0 / 3.0) * (n as f64).cbrt();
    (length.ceil() as usize).clamp(shortest, n / MIN_BLOCKS)
}

/// The factor by which the standard error of a mean of `n` values exceeds the one that blocks of `length` show: neighbouring
/// blocks are correlated at their edges. The estimated autocorrelation is corrected for its bias of -(1 + 4 rho) / n.
fn standard_error_inflation(autocorrelation: f64, n: usize, length: usize) -> f64 {
    let rho = (autocorrelation + (1.0 + 4.0 * autocorrelation) / n as f64).min(MAX_AUTOCORRELATION);
    let variance = (1.0 + rho) / (1.0 - rho);
    let length = length as f64;
    let between_blocks = 2.0 * rho * (1.0 - rho.powf(length)) / (length * (1.0 - rho).powi(2));
    (variance / (variance - between_blocks)).sqrt()
}

/// The sums of blocks of autocorrelated values, and the inflation of their standard error.
fn block_sums(values: &[(f64, f64)]) -> (Vec<(f64, f64)>, f64) {
    let rates: Vec<f64> = values.iter().map(|(numerator, denominator)| numerator / denominator).collect();
    let length = block_length(&rates);
    if length == 1 {
        return (values.to_vec(), 1.0);
    }
    let inflation =
        lag1_autocorrelation(&rates).map_or(1.0, |rho| standard_error_inflation(rho, rates.len(), length));
    let mut blocks: Vec<(f64, f64)> = values.chunks(length).map(sums).collect();
    if !values.len().is_multiple_of(length)
        && let Some(rest) = blocks.pop()
        && let Some(last) = blocks.last_mut()
    {
        *last = (last.0 + rest.0, last.1 + rest.1);
    }
    (blocks, inflation)
}

/// The sum of the numerators and that of the denominators.
pub fn sums(values: &[(f64, f64)]) -> (f64, f64) {
    values.iter().fold((0.0, 0.0), |sum, value| (sum.0 + value.0, sum.1 + value.1))
}

/// The logarithm of a rate; `None` if it is not finite.
fn log_rate(values: &[(f64, f64)]) -> Option<Estimate> {
    let n = values.len() as f64;
    let (numerator, denominator) = sums(values);
    let rate = numerator / denominator;
    if !(rate.is_finite() && rate > 0.0 && denominator > 0.0) {
        return None;
    }
    let squares: f64 =
        values.iter().map(|(numerator, denominator)| (numerator - rate * denominator).powi(2)).sum();
    let standard_error = (squares / (n * (n - 1.0))).sqrt() / (denominator / n) / rate;
    standard_error.is_finite().then(|| Estimate { value: rate.ln(), standard_error })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise;

    fn of_means(a: &[f64], b: &[f64], seed: u64) -> Option<ConfidenceInterval> {
        let terms = |values: &[f64]| values.iter().map(|value| (*value, 1.0)).collect::<Vec<_>>();
        interval(&of_rates(&terms(a), &terms(b), seed)?)
    }

    fn noisy(trial: u64, stream: u64, n: u64, mean: f64, noise_share: f64) -> Vec<f64> {
        let seed = noise::bits(stream, trial);
        (0..n).map(|i| mean * (1.0 + noise_share * noise::bell(seed, i))).collect()
    }

    #[test]
    fn percentiles_need_values_beyond_them() {
        assert_eq!([50.0, 90.0, 99.0].map(values_needed), [10, 50, 500]);
    }

    #[test]
    fn the_ratio_of_shares_contains_the_true_one_as_often_as_stated() {
        let counts = |within: usize, n: usize| {
            let values: Vec<f64> = (0..n).map(|i| if i < within { 2.0 } else { 4.0 }).collect();
            BlockHistogram::of_chunks(&values, 1)
        };
        assert_eq!(of_shares(&counts(0, 50), &counts(40, 50), 3.0), None, "nothing to compare with");
        assert_eq!(of_shares(&counts(4, 4), &counts(40, 50), 3.0), None, "too few");
        for (share, n) in [(0.5, 60), (0.9, 60), (0.99, 200)] {
            let drawn = |trial: u64, stream: u64| {
                let seed = noise::bits(stream, trial);
                let values: Vec<f64> =
                    (0..n).map(|i| if noise::unit(seed, i) < share { 2.0 } else { 4.0 }).collect();
                BlockHistogram::of_chunks(&values, 1)
            };
            let trials = 400;
            let hits = (0..trials).filter(|trial| {
                let log_ratio = of_shares(&drawn(*trial, 1), &drawn(*trial, 2), 3.0).unwrap();
                interval(&log_ratio).unwrap().contains(1.0)
            });
            let hits = hits.count() as f64 / trials as f64;
            assert!(hits >= 0.95, "{hits} of the intervals at a share of {share}");
        }
    }

    #[test]
    fn equal_numbers_have_no_spread() {
        let same = of_means(&[3.0; 9], &[6.0; 7], 1).unwrap();
        assert!((same.estimate - 2.0).abs() < 1e-12 && same.low == same.high, "{same:?}");
        let histogram = BlockHistogram::of_chunks(&[3e6; 20], 1);
        let same = interval(&of_percentile(&histogram, &histogram, 50.0).unwrap()).unwrap();
        assert_eq!(same, ConfidenceInterval::exact(1.0));
        // Rounding may hide a spread.
        let slower = BlockHistogram::of_chunks(&[6e6; 20], 1);
        let rounded = interval(&of_percentile(&histogram, &slower, 50.0).unwrap()).unwrap();
        assert!((rounded.high / rounded.low - 1.0 - 2.0 * BUCKET_WIDTH).abs() < 1e-6, "{rounded:?}");
    }

    #[test]
    fn too_few_values_give_no_interval() {
        assert_eq!(of_means(&[1.0; 4], &[1.0; 40], 0), None);
        assert_eq!(of_means(&[0.0; 8], &[1.0; 8], 0), None);
        assert_eq!(of_means(&[f64::NAN; 8], &[1.0; 8], 0), None);
        let few = BlockHistogram::of_chunks(&[3e6; 9], 1);
        assert_eq!(
            of_percentile(&few, &few, 50.0),
            Err(TooFew::Values),
            "nine values are too few for a median"
        );
        assert_eq!(percentile_of(&BlockHistogram::default(), 50.0), None);
    }

    #[test]
    fn autocorrelated_values_are_drawn_in_blocks() {
        let independent = noisy(1, 1, 200, 10.0, 0.01);
        assert_eq!(block_length(&independent), 1);
        let mut wandering = independent.clone();
        for i in 1..wandering.len() {
            wandering[i] = 10.0 + 0.9 * (wandering[i - 1] - 10.0) + 0.3 * (wandering[i] - 10.0);
        }
        let length = block_length(&wandering);
        assert!((5..=25).contains(&length), "{length}");
        assert!(block_length(&vec![1.0; 100_000]) >= 100_000 / MAX_BLOCKS);
    }

    /// 60 requests of 20 gaps, in which each request is nearly as slow as the one before it: of 200 pairs without a
    /// difference, the share whose interval excludes 1.
    fn false_rows(correlation: f64, percentile: f64) -> f64 {
        let side = |trial: u64, stream: u64| {
            let seed = noise::bits(stream, trial);
            let (mut level, mut histogram) = (0.0, BlockHistogram::default());
            for request in 0..60 {
                let fresh = noise::bell(seed, request) * (1.0 - correlation * correlation).sqrt();
                level = if request == 0 { noise::bell(seed, request) } else { correlation * level + fresh };
                for gap in 0..20 {
                    let own = noise::bell(noise::bits(seed, 7), 20 * request + gap);
                    histogram.record(5e6 * (1.0 + 0.05 * level + 0.01 * own));
                }
                histogram.close();
            }
            histogram
        };
        let is_false = |trial: &u64| match of_percentile(&side(*trial, 1), &side(*trial, 2), percentile) {
            Ok(ratio) => !interval(&ratio).unwrap().contains(1.0),
            Err(_) => false,
        };
        (0..200).filter(is_false).count() as f64 / 200.0
    }

    #[test]
    fn correlated_requests_make_no_false_percentiles() {
        for percentile in [50.0, 90.0] {
            for correlation in [0.0, 0.6, 0.85] {
                let share = false_rows(correlation, percentile);
                // 5 % and two standard errors.
                assert!(share <= 0.08, "p{percentile} at {correlation}: {share}");
            }
        }
    }

    /// The coverage of the 95 % interval of a share whose failures come in groups of `in_a_row`: how often it contains
    /// the true share of 0.9.
    fn hits_of_share(in_a_row: u64) -> f64 {
        let hits = (0..400).filter(|trial| {
            let mut outcomes = BlockHistogram::default();
            for request in 0..200 {
                let good = noise::unit(noise::bits(5, *trial), request / in_a_row) < 0.9;
                outcomes.record(if good { 2.0 } else { 4.0 });
                outcomes.close();
            }
            of_share(&outcomes, 3.0).unwrap().contains(0.9)
        });
        hits.count() as f64 / 400.0
    }

    #[test]
    fn shares_of_correlated_requests_are_as_certain_as_stated() {
        for in_a_row in [1, 4] {
            let hits = hits_of_share(in_a_row);
            assert!(hits >= 0.93, "{in_a_row} in a row: {hits}");
        }
        assert_eq!(of_share(&BlockHistogram::default(), 3.0), None);
    }

    /// The share of `trials` whose interval of the ratio of the means excludes 1 although the two sides of `n` values
    /// do not differ: by the studentised bootstrap only, and by the interval in use. A share `slow` of the values takes
    /// `factor` times as long.
    fn false_means(trials: u64, (n, slow, factor): (u64, f64, f64)) -> [f64; 2] {
        let side = |trial: u64, stream: u64| -> Vec<f64> {
            let mut values = noisy(trial, stream, n, 10.0, 0.01);
            let seed = noise::bits(stream + 100, trial);
            for (i, value) in values.iter_mut().enumerate() {
                *value *= if noise::unit(seed, i as u64) < slow { factor } else { 1.0 };
            }
            values
        };
        let terms = |values: Vec<f64>| values.into_iter().map(|value| (value, 1.0)).collect::<Vec<_>>();
        let mut missed = [0.0; 2];
        for trial in 0..trials {
            let ratio = of_rates(&terms(side(trial, 1)), &terms(side(trial, 2)), trial).unwrap();
            let alone = match &ratio {
                SamplingDistribution::Wider(both) => &both[0],
                other => other,
            };
            for (missed, of) in missed.iter_mut().zip([alone, &ratio]) {
                *missed += f64::from(u8::from(!interval(of).unwrap().contains(1.0)));
            }
        }
        missed.map(|missed| missed / trials as f64)
    }

    #[test]
    #[ignore = "takes a minute; its output is in docs/compare.md"]
    fn figures_of_a_slow_mode() {
        for n in [12, 30, 60, 100] {
            for (slow, factor) in [(0.02, 1.5), (0.05, 1.5), (0.05, 3.0), (0.2, 1.5)] {
                let [bootstrap, now] = false_means(2000, (n, slow, factor));
                println!("{n} values, {slow} of them {factor} times as slow: {bootstrap} before, {now} now");
            }
        }
    }

    /// One side often has more of a rare slow mode than the other, or has none of it.
    #[test]
    fn a_rare_slow_mode_makes_no_false_means() {
        for (n, slow, factor) in [(12, 0.05, 1.1), (30, 0.05, 1.5), (60, 0.02, 3.0)] {
            let [bootstrap, now] = false_means(500, (n, slow, factor));
            assert!(now <= 0.06 && bootstrap > 0.07, "{n} values, {slow} × {factor}: {bootstrap}, {now}");
        }
    }

    #[test]
    fn longer_blocks_need_less_inflation() {
        let inflation = [1, 4, 16, 1000].map(|length| standard_error_inflation(0.6, 1_000_000, length));
        assert!((inflation[0] - 2.0).abs() < 1e-4, "single values show none of it: {inflation:?}");
        assert!(inflation.is_sorted_by(|a, b| a > b) && (inflation[3] - 1.0).abs() < 1e-3, "{inflation:?}");
    }

    #[test]
    fn the_same_seed_gives_the_same_interval() {
        // A tail on one side: for symmetric values the interval is that of Student's t.
        let (a, mut b) = (noisy(1, 1, 30, 5.0, 0.02), noisy(1, 2, 30, 5.0, 0.02));
        b.iter_mut().step_by(7).for_each(|value| *value *= 2.0);
        assert_eq!(of_means(&a, &b, 3), of_means(&a, &b, 3));
        assert_ne!(of_means(&a, &b, 3), of_means(&a, &b, 4));
    }
}
