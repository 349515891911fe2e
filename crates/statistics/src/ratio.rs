//! The logarithm of the ratio of B to A with its sampling distribution. The same seed gives the same distribution.
//!
//! Means and rates use the studentised bootstrap of the log ratio, or Student's t where there are too few values to resample.
//! Percentiles use the percentile bootstrap over blocks, widened for few blocks as Student's t is. Autocorrelated values are
//! drawn in blocks.

use crate::{
    blocks::{BUCKET_WIDTH, BlockCounts, BlockHistogram, MAX_BLOCKS, bucket_value},
    bootstrap::bootstrap,
    interval::{ALPHA, ConfidenceInterval, Estimate, MIN_VALUES, SamplingDistribution},
};

/// A percentile needs at least so many blocks.
pub const MIN_BLOCKS: usize = 8;
/// A percentile needs at least so many values on its thinner side.
const MIN_TAIL_VALUES: f64 = 5.0;
const PERCENTILE_RESAMPLES: usize = 1000;
/// Closer to 1 no block is long enough.
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

/// The ratio of two rates, each a sum of numerators over a sum of denominators. `None` where a side has fewer than
/// [`MIN_VALUES`], or a sum is not above zero.
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

/// The ratio of a percentile of `b` to that of `a`; `None` where there are too few blocks, or too few values beyond it.
pub fn of_percentile(
    a: &BlockHistogram,
    b: &BlockHistogram,
    percentile: f64,
    seed: u64,
) -> Option<SamplingDistribution> {
    if a.blocks().len().min(b.blocks().len()) < MIN_BLOCKS
        || a.n().min(b.n()) < values_needed(percentile) as u64
    {
        return None;
    }
    let (value_a, value_b) = (percentile_of(a, percentile)?, percentile_of(b, percentile)?);
    let estimate = (value_b / value_a).ln();
    let (a, inflation_a) = in_longer_blocks(a, value_a);
    let (b, inflation_b) = in_longer_blocks(b, value_b);
    let blocks = a.blocks().len().min(b.blocks().len());
    let from_a = resampled_percentiles(&a, percentile, seed);
    let from_b = resampled_percentiles(&b, percentile, seed ^ 0x5EED);
    let widened = |resampled: f64, value: f64, inflation: f64| inflation * (resampled / value).ln();
    let log_ratios: Vec<f64> = from_a
        .iter()
        .zip(&from_b)
        .map(|(a, b)| estimate + widened(*b, value_b, inflation_b) - widened(*a, value_a, inflation_a))
        .collect();
    Some(match log_ratios.iter().all(|log_ratio| (*log_ratio - estimate).abs() < 1e-12) {
        true => of_buckets(estimate),
        false => SamplingDistribution::percentile(estimate, log_ratios, blocks),
    })
}

/// Blocks that follow one another may be alike: requests that a server runs together are slow together. Longer blocks then, and the
/// inflation of the standard error that these leave out. Blocks are alike by their shares of values above the percentile, or by
/// their means, which show it sooner.
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

/// A percentile of all values; `None` where there are none.
pub fn percentile_of(histogram: &BlockHistogram, percentile: f64) -> Option<f64> {
    let indexed = IndexedBlocks::of(histogram.blocks());
    let mut counts = vec![0; indexed.values.len()];
    indexed.blocks.iter().for_each(|block| add(&mut counts, block));
    indexed.percentile(&counts, percentile)
}

fn resampled_percentiles(histogram: &BlockHistogram, percentile: f64, seed: u64) -> Vec<f64> {
    let indexed = IndexedBlocks::of(histogram.blocks());
    let n = indexed.blocks.len();
    let mut counts = vec![0; indexed.values.len()];
    bootstrap(seed, PERCENTILE_RESAMPLES, |resampler| {
        counts.fill(0);
        for _ in 0..n {
            add(&mut counts, &indexed.blocks[resampler.index(n)]);
        }
        indexed.percentile(&counts, percentile)
    })
}

/// The lag-1 autocorrelation; `None` where it is not significant, or there are too few values.
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

/// The logarithm of a rate; `None` where it is not finite.
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

/// Blocks whose buckets are numbered without gaps.
struct IndexedBlocks {
    values: Vec<f64>,
    blocks: Vec<Vec<(usize, u64)>>,
}

impl IndexedBlocks {
    fn of(blocks: &[BlockCounts]) -> IndexedBlocks {
        let mut buckets: Vec<u32> = blocks.iter().flatten().map(|(bucket, _)| *bucket).collect();
        buckets.sort_unstable();
        buckets.dedup();
        let index = |bucket: &u32| buckets.binary_search(bucket).unwrap_or_default();
        let indexed =
            |block: &BlockCounts| block.iter().map(|(bucket, n)| (index(bucket), u64::from(*n))).collect();
        IndexedBlocks {
            blocks: blocks.iter().map(indexed).collect(),
            values: buckets.iter().map(|bucket| bucket_value(*bucket)).collect(),
        }
    }

    fn percentile(&self, counts: &[u64], percentile: f64) -> Option<f64> {
        let n: u64 = counts.iter().sum();
        let rank = ((n as f64 * (percentile / 100.0)).ceil() as u64).max(1);
        let mut seen = 0;
        let index = counts.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        self.values.get(index).copied()
    }
}

fn add(counts: &mut [u64], block: &[(usize, u64)]) {
    for (index, n) in block {
        counts[*index] += n;
    }
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
    fn equal_numbers_have_no_spread() {
        let same = of_means(&[3.0; 9], &[6.0; 7], 1).unwrap();
        assert!((same.estimate - 2.0).abs() < 1e-12 && same.low == same.high, "{same:?}");
        let histogram = BlockHistogram::of_chunks(&[3e6; 20], 1);
        let same = interval(&of_percentile(&histogram, &histogram, 50.0, 1).unwrap()).unwrap();
        assert_eq!(same, ConfidenceInterval::exact(1.0));
        // Rounding may hide a spread.
        let slower = BlockHistogram::of_chunks(&[6e6; 20], 1);
        let rounded = interval(&of_percentile(&histogram, &slower, 50.0, 1).unwrap()).unwrap();
        assert!((rounded.high / rounded.low - 1.0 - 2.0 * BUCKET_WIDTH).abs() < 1e-6, "{rounded:?}");
    }

    #[test]
    fn too_few_values_give_no_interval() {
        assert_eq!(of_means(&[1.0; 4], &[1.0; 40], 0), None);
        assert_eq!(of_means(&[0.0; 8], &[1.0; 8], 0), None);
        assert_eq!(of_means(&[f64::NAN; 8], &[1.0; 8], 0), None);
        let few = BlockHistogram::of_chunks(&[3e6; 9], 1);
        assert_eq!(of_percentile(&few, &few, 50.0, 0), None, "nine values are too few for a median");
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

    /// 60 requests of 20 gaps, where a request is as slow as the one before it, nearly: of 200 pairs without a difference, the share
    /// whose interval leaves out 1.
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
        let is_false = |trial: &u64| {
            let ratio = of_percentile(&side(*trial, 1), &side(*trial, 2), percentile, *trial).unwrap();
            !interval(&ratio).unwrap().contains(1.0)
        };
        (0..200).filter(is_false).count() as f64 / 200.0
    }

    #[test]
    fn correlated_requests_make_no_false_percentiles() {
        for percentile in [50.0, 90.0] {
            for (correlation, at_most) in [(0.0, 0.08), (0.6, 0.1), (0.85, 0.12)] {
                let share = false_rows(correlation, percentile);
                assert!(share <= at_most, "p{percentile} at {correlation}: {share}");
            }
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
        let (a, b) = (noisy(1, 1, 12, 5.0, 0.02), noisy(1, 2, 12, 5.0, 0.02));
        assert_eq!(of_means(&a, &b, 3), of_means(&a, &b, 3));
        assert_ne!(of_means(&a, &b, 3), of_means(&a, &b, 4));
    }
}
