//! How many times the one is the other, with a 95 % interval by resampling, the same for the same seed.
//!
//! Means and rates by the studentised bootstrap of both sides at once (by Student's t where there is too little to resample); percentiles by the percentile bootstrap over
//! blocks, made wider for few blocks as Student's t is. Values that resemble their neighbours are drawn together.

use super::blocks::{Blocks, Counts, MOST_BLOCKS, value_of};
use crate::{
    analysis::interval::{Interval, LEAST_RESAMPLED, student_t},
    base::noise,
};

/// Fewer values tell nothing of their own spread.
pub const LEAST_VALUES: usize = 5;
/// Fewer blocks tell nothing of a percentile.
pub const LEAST_BLOCKS: usize = 8;
/// So many values have to lie beyond a percentile on its thinner side.
pub const LEAST_BEYOND: f64 = 5.0;

const RESAMPLES: usize = 2000;
/// Percentiles take longer, and their ends are less sharp anyway.
const PERCENTILE_RESAMPLES: usize = 1000;
const TAIL: f64 = 0.025;
/// So many blocks are left at least, however alike neighbours are.
const BLOCKS_LEFT: usize = 8;
/// Of neighbours; nearer to 1 no block is long enough.
const MOST_ALIKE: f64 = 0.99;

/// How many values a percentile rests on.
pub fn values_needed(percentile: f64) -> usize {
    let thinner = (percentile / 100.0).min(1.0 - percentile / 100.0).max(1e-6);
    (LEAST_BEYOND / thinner - 1e-6).ceil() as usize
}

/// The ratio of two sums of shares: each value is a part of the numerator and of the denominator. `None` where there
/// are fewer than [`LEAST_VALUES`] on a side, or a sum is not above zero.
pub fn of_sums(a: &[(f64, f64)], b: &[(f64, f64)], seed: u64) -> Option<Interval> {
    if a.len().min(b.len()) < LEAST_VALUES {
        return None;
    }
    let ((a, wider_a), (b, wider_b)) = (in_blocks(a), in_blocks(b));
    let ((level_a, error_a), (level_b, error_b)) = (level(&a)?, level(&b)?);
    let (estimate, error) = (level_b - level_a, (wider_a * error_a).hypot(wider_b * error_b));
    if error < 1e-12 {
        return Some(Interval { estimate, low: estimate, high: estimate }.map(f64::exp));
    }
    let fewest = a.len().min(b.len());
    if fewest < LEAST_RESAMPLED {
        // As many degrees of freedom as the smaller side has: fewer than there are, for sure.
        let wide = student_t(fewest as f64 - 1.0) * error;
        return Some(Interval { estimate, low: estimate - wide, high: estimate + wide }.map(f64::exp));
    }
    let mut draws = Draws::new(seed);
    let (mut here_a, mut here_b) = (a.clone(), b.clone());
    let mut distances: Vec<f64> = (0..RESAMPLES)
        .filter_map(|_| {
            here_a.iter_mut().for_each(|value| *value = a[draws.below(a.len())]);
            here_b.iter_mut().for_each(|value| *value = b[draws.below(b.len())]);
            let ((level_a, error_a), (level_b, error_b)) = (level(&here_a)?, level(&here_b)?);
            let error = error_a.hypot(error_b);
            // One value drawn over and over has no spread to be held against.
            (error > 0.0).then(|| (level_b - level_a - estimate) / error)
        })
        .collect();
    distances.sort_by(f64::total_cmp);
    let (low, high) = (at(&distances, 1.0 - TAIL)?, at(&distances, TAIL)?);
    Some(Interval { estimate, low: estimate - low * error, high: estimate - high * error }.map(f64::exp))
}

/// The ratio of a percentile of `a` to that of `b`; `None` where there are too few blocks, or too few values beyond it.
pub fn of_percentile(a: &Blocks, b: &Blocks, percentile: f64, seed: u64) -> Option<Interval> {
    let fewest = a.blocks().len().min(b.blocks().len());
    let needed = values_needed(percentile) as u64;
    if fewest < LEAST_BLOCKS || a.n().min(b.n()) < needed {
        return None;
    }
    let share = percentile / 100.0;
    let estimate = percentile_of(b, percentile)? / percentile_of(a, percentile)?;
    let (from_a, from_b) = (resampled(a, share, seed), resampled(b, share, seed ^ 0x5EED));
    let mut ratios: Vec<f64> = from_a.iter().zip(&from_b).map(|(a, b)| b / a).collect();
    ratios.sort_by(f64::total_cmp);
    let tail = tail_for(fewest);
    Some(Interval {
        estimate,
        low: at(&ratios, tail)?.min(estimate),
        high: at(&ratios, 1.0 - tail)?.max(estimate),
    })
}

/// A percentile of all values; `None` where there are none.
pub fn percentile_of(blocks: &Blocks, percentile: f64) -> Option<f64> {
    let dense = Dense::of(blocks.blocks());
    let mut counts = vec![0u64; dense.values.len()];
    dense.blocks.iter().for_each(|block| add(&mut counts, block));
    dense.percentile(&counts, percentile / 100.0)
}

/// How much a value inherits of its neighbour's deviation; `None` where that may be chance, or there are too few to say.
fn likeness(values: &[f64]) -> Option<f64> {
    let n = values.len() as f64;
    if values.len() < 2 * BLOCKS_LEFT {
        return None;
    }
    let mean = values.iter().sum::<f64>() / n;
    let spread: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let together: f64 = values.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
    let alike = if spread > 0.0 { together / spread } else { 0.0 };
    (alike > 2.0 / n.sqrt()).then_some(alike.min(MOST_ALIKE))
}

/// Blocks of as many values as resemble their neighbours, and few enough to be drawn often.
pub fn block_length(values: &[f64]) -> usize {
    let n = values.len();
    let few = n.div_ceil(MOST_BLOCKS).max(1);
    let Some(alike) = likeness(values) else { return few };
    let length = (2.0 * alike / (1.0 - alike * alike)).powf(2.0 / 3.0) * (n as f64).cbrt();
    (length.ceil() as usize).clamp(few, n / BLOCKS_LEFT)
}

/// By how much the mean of such values varies more than blocks of `length` show: neighbouring blocks are alike too, at their
/// edges. The likeness that is measured in `n` values is too small on average, by (1 + 4 alike) / n.
fn more_than_blocks_show(alike: f64, n: usize, length: usize) -> f64 {
    let alike = (alike + (1.0 + 4.0 * alike) / n as f64).min(MOST_ALIKE);
    let whole = (1.0 + alike) / (1.0 - alike);
    let length = length as f64;
    let at_edges = 2.0 * alike * (1.0 - alike.powf(length)) / (length * (1.0 - alike).powi(2));
    (whole / (whole - at_edges)).sqrt()
}

/// Neighbours that are alike become one; and by how much more their mean varies than the blocks show.
fn in_blocks(values: &[(f64, f64)]) -> (Vec<(f64, f64)>, f64) {
    let each: Vec<f64> = values.iter().map(|(above, below)| above / below).collect();
    let length = block_length(&each);
    if length == 1 {
        return (values.to_vec(), 1.0);
    }
    let wider = likeness(&each).map_or(1.0, |alike| more_than_blocks_show(alike, each.len(), length));
    let sum = |block: &[(f64, f64)]| block.iter().fold((0.0, 0.0), |sum, v| (sum.0 + v.0, sum.1 + v.1));
    let mut blocks: Vec<(f64, f64)> = values.chunks(length).map(sum).collect();
    if !values.len().is_multiple_of(length)
        && let Some(rest) = blocks.pop()
        && let Some(last) = blocks.last_mut()
    {
        *last = (last.0 + rest.0, last.1 + rest.1);
    }
    (blocks, wider)
}

/// The logarithm of the ratio of sums, and its standard error; `None` where that is no number.
fn level(values: &[(f64, f64)]) -> Option<(f64, f64)> {
    let n = values.len() as f64;
    let (above, below) = values.iter().fold((0.0, 0.0), |sum, v| (sum.0 + v.0, sum.1 + v.1));
    let ratio = above / below;
    if !(ratio.is_finite() && ratio > 0.0 && below > 0.0) {
        return None;
    }
    let squares: f64 = values.iter().map(|(above, below)| (above - ratio * below).powi(2)).sum();
    let error = (squares / (n * (n - 1.0))).sqrt() / (below / n) / ratio;
    error.is_finite().then(|| (ratio.ln(), error))
}

/// Blocks with their buckets numbered without holes.
struct Dense {
    values: Vec<f64>,
    blocks: Vec<Vec<(usize, u64)>>,
}

impl Dense {
    fn of(blocks: &[Counts]) -> Dense {
        let mut buckets: Vec<u32> = blocks.iter().flatten().map(|(bucket, _)| *bucket).collect();
        buckets.sort_unstable();
        buckets.dedup();
        let place = |bucket: &u32| buckets.binary_search(bucket).unwrap_or_default();
        let dense = |block: &Counts| block.iter().map(|(bucket, n)| (place(bucket), u64::from(*n))).collect();
        Dense {
            blocks: blocks.iter().map(dense).collect(),
            values: buckets.iter().map(|bucket| value_of(*bucket)).collect(),
        }
    }

    fn percentile(&self, counts: &[u64], share: f64) -> Option<f64> {
        let n: u64 = counts.iter().sum();
        let rank = ((n as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let at = counts.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        self.values.get(at).copied()
    }
}

fn add(counts: &mut [u64], block: &[(usize, u64)]) {
    for (place, n) in block {
        counts[*place] += n;
    }
}

fn resampled(blocks: &Blocks, share: f64, seed: u64) -> Vec<f64> {
    let dense = Dense::of(blocks.blocks());
    let mut draws = Draws::new(seed);
    let mut counts = vec![0u64; dense.values.len()];
    (0..PERCENTILE_RESAMPLES)
        .filter_map(|_| {
            counts.fill(0);
            for _ in 0..dense.blocks.len() {
                add(&mut counts, &dense.blocks[draws.below(dense.blocks.len())]);
            }
            dense.percentile(&counts, share)
        })
        .collect()
}

/// Numbers drawn one after another.
struct Draws {
    seed: u64,
    n: u64,
}

impl Draws {
    fn new(seed: u64) -> Draws {
        Draws { seed, n: 0 }
    }

    fn below(&mut self, end: usize) -> usize {
        self.n += 1;
        ((u128::from(noise::bits(self.seed, self.n)) * end as u128) >> 64) as usize
    }
}

/// The value at a share of a sorted list.
fn at(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((last as f64 * share).round() as usize).copied()
}

/// The tail to cut off so that an interval over few blocks is as wide as it has to be: what Student's t has beyond the
/// normal distribution, and the spread that resampling `n` blocks is short of.
fn tail_for(blocks: usize) -> f64 {
    let n = blocks as f64;
    let wider = student_t(2.0 * (n - 1.0)) * (n / (n - 1.0)).sqrt();
    normal_tail(wider)
}

/// How much of a normal distribution lies above `z` (Abramowitz and Stegun 26.2.17).
fn normal_tail(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z);
    let polynomial = t
        * (0.319_381_530
            + t * (-0.356_563_782 + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * polynomial
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_means(a: &[f64], b: &[f64], seed: u64) -> Option<Interval> {
        let shares = |values: &[f64]| values.iter().map(|value| (*value, 1.0)).collect::<Vec<_>>();
        of_sums(&shares(a), &shares(b), seed)
    }

    fn noisy(trial: u64, stream: u64, n: u64, level: f64, noise_share: f64) -> Vec<f64> {
        let seed = noise::bits(stream, trial);
        (0..n).map(|i| level * (1.0 + noise_share * noise::bell(seed, i))).collect()
    }

    #[test]
    fn tails_are_those_of_the_tables() {
        assert!((normal_tail(1.96) - 0.025).abs() < 1e-4);
        assert_eq!((values_needed(50.0), values_needed(90.0), values_needed(99.0)), (10, 50, 500));
    }

    #[test]
    fn equal_numbers_have_no_spread() {
        let same = of_means(&[3.0; 9], &[6.0; 7], 1).unwrap();
        assert!((same.estimate - 2.0).abs() < 1e-12 && same.low == same.high, "{same:?}");
        let blocks = Blocks::of_chunks(&[3e6; 20], 1);
        let same = of_percentile(&blocks, &blocks, 50.0, 1).unwrap();
        assert_eq!((same.estimate, same.low, same.high), (1.0, 1.0, 1.0));
    }

    #[test]
    fn too_little_is_none() {
        assert_eq!(of_means(&[1.0; 4], &[1.0; 40], 0), None);
        assert_eq!(of_means(&[0.0; 8], &[1.0; 8], 0), None);
        assert_eq!(of_means(&[f64::NAN; 8], &[1.0; 8], 0), None);
        let few = Blocks::of_chunks(&[3e6; 9], 1);
        assert_eq!(of_percentile(&few, &few, 50.0, 0), None, "nine values are too few for a median");
        assert_eq!(percentile_of(&Blocks::default(), 50.0), None);
    }

    #[test]
    fn neighbours_that_are_alike_are_drawn_together() {
        let independent = noisy(1, 1, 200, 10.0, 0.01);
        assert_eq!(block_length(&independent), 1);
        let mut wandering = independent.clone();
        for i in 1..wandering.len() {
            wandering[i] = 10.0 + 0.9 * (wandering[i - 1] - 10.0) + 0.3 * (wandering[i] - 10.0);
        }
        let length = block_length(&wandering);
        assert!((5..=25).contains(&length), "{length}");
        assert!(block_length(&vec![1.0; 100_000]) >= 100_000 / MOST_BLOCKS);
    }

    #[test]
    fn blocks_show_less_than_there_is() {
        // As blocks become long, what is alike at their edges matters less.
        let wider = [1, 4, 16, 1000].map(|length| more_than_blocks_show(0.6, 1_000_000, length));
        assert!((wider[0] - 2.0).abs() < 1e-4, "single values show nothing of it: {wider:?}");
        assert!(wider.is_sorted_by(|a, b| a > b) && (wider[3] - 1.0).abs() < 1e-3, "{wider:?}");
    }

    #[test]
    fn the_seed_decides_all() {
        let (a, b) = (noisy(1, 1, 12, 5.0, 0.02), noisy(1, 2, 12, 5.0, 0.02));
        assert_eq!(of_means(&a, &b, 3), of_means(&a, &b, 3));
        assert_ne!(of_means(&a, &b, 3), of_means(&a, &b, 4));
    }
}
