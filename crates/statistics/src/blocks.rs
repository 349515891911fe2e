//! Values counted in narrow buckets, block by block: the unit that is drawn when they are resampled. Memory is bounded.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The relative width of a bucket.
pub const BUCKET_WIDTH: f64 = 2.5e-4;
/// Values are counted in batches of this size: many at once are faster than one by one.
const MAX_UNCOUNTED: usize = 4096;

/// The number of a bucket, and how many values are in it.
pub type BlockCounts = Vec<(u32, u32)>;

/// Values above zero in blocks, in order of time. When there are too many blocks, neighbours are merged.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct BlockHistogram {
    /// Complete blocks.
    blocks: Vec<BlockCounts>,
    /// A block is complete after this many calls of [`close`](Self::close).
    #[serde(rename = "closings", default = "one")]
    closes_per_block: u32,
    #[serde(skip)]
    open: BTreeMap<u32, u32>,
    /// Buckets of values of the open block that are not counted yet.
    #[serde(skip)]
    uncounted: Vec<u32>,
    #[serde(skip)]
    closed: u32,
}

fn one() -> u32 {
    1
}

/// From this number of blocks on, neighbours are merged. Half as many are enough for an interval.
pub const MAX_BLOCKS: usize = 256;

/// The bucket of a value; values that are not above zero are in the first one.
fn bucket(value: f64) -> u32 {
    if value > 1.0 { (value.ln() / BUCKET_WIDTH) as u32 } else { 0 }
}

/// The value that represents a bucket.
pub fn bucket_value(bucket: u32) -> f64 {
    ((f64::from(bucket) + 0.5) * BUCKET_WIDTH).exp()
}

impl BlockHistogram {
    /// One block per chunk of `length` values; the remainder is part of the last one.
    pub fn of_chunks(values: &[f64], length: usize) -> BlockHistogram {
        let mut histogram = BlockHistogram { closes_per_block: 1, ..BlockHistogram::default() };
        let (length, n) = (length.max(1), values.len());
        for (i, value) in values.iter().enumerate() {
            histogram.record(*value);
            let rest = n - i - 1;
            if ((i + 1).is_multiple_of(length) && rest >= length) || rest == 0 {
                histogram.close();
            }
        }
        histogram
    }

    /// Adds a value to the open block. It should be above one, as nanoseconds are.
    pub fn record(&mut self, value: f64) {
        self.uncounted.push(bucket(value));
        if self.uncounted.len() == MAX_UNCOUNTED {
            self.count();
        }
    }

    fn count(&mut self) {
        self.uncounted.sort_unstable();
        for same in self.uncounted.chunk_by(|a, b| a == b) {
            *self.open.entry(same[0]).or_default() += same.len() as u32;
        }
        self.uncounted.clear();
    }

    /// Ends a unit of resampling: later values may be resampled separately from earlier ones.
    pub fn close(&mut self) {
        self.count();
        self.closed += 1;
        if self.closed < self.closes_per_block.max(1) || self.open.is_empty() {
            return;
        }
        self.closed = 0;
        self.blocks.push(std::mem::take(&mut self.open).into_iter().collect());
        if self.blocks.len() >= MAX_BLOCKS {
            self.blocks = merge_neighbours(&self.blocks);
            self.closes_per_block = self.closes_per_block.max(1) * 2;
        }
    }

    /// Discards the values of the open block.
    pub fn discard_open(&mut self) {
        if self.closes_per_block <= 1 {
            self.open.clear();
            self.uncounted.clear();
        }
    }

    /// The blocks of all `parts`, one after another.
    pub fn concat(parts: &[&BlockHistogram]) -> BlockHistogram {
        let mut blocks: Vec<BlockCounts> =
            parts.iter().flat_map(|part| part.blocks.iter().cloned()).collect();
        while blocks.len() >= MAX_BLOCKS {
            blocks = merge_neighbours(&blocks);
        }
        BlockHistogram { blocks, closes_per_block: 1, ..BlockHistogram::default() }
    }

    /// The same values, `length` neighbouring blocks as one; the remainder is part of the last one.
    pub fn in_blocks_of(&self, length: usize) -> BlockHistogram {
        let length = length.max(1);
        let whole = (self.blocks.len() / length).max(1);
        let (first, last) = self.blocks.split_at(self.blocks.len().min((whole - 1) * length));
        let blocks = first.chunks(length).chain([last]).map(merged).collect();
        BlockHistogram { blocks, closes_per_block: 1, ..BlockHistogram::default() }
    }

    /// The counts of all blocks together, in ascending order of the buckets.
    pub fn total(&self) -> BlockCounts {
        merged(&self.blocks)
    }

    pub fn blocks(&self) -> &[BlockCounts] {
        &self.blocks
    }

    /// The number of values in all complete blocks.
    pub fn n(&self) -> u64 {
        self.blocks.iter().flatten().map(|(_, n)| u64::from(*n)).sum()
    }
}

fn merge_neighbours(blocks: &[BlockCounts]) -> Vec<BlockCounts> {
    blocks.chunks(2).map(merged).collect()
}

fn merged(blocks: &[BlockCounts]) -> BlockCounts {
    let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
    for (bucket, n) in blocks.iter().flatten() {
        *counts.entry(*bucket).or_default() += n;
    }
    counts.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_represents_its_values() {
        for value in [2.0, 1e3, 3_784_123.0, 9e12] {
            assert!((bucket_value(bucket(value)) / value - 1.0).abs() <= BUCKET_WIDTH, "{value}");
        }
        assert_eq!((bucket(0.0), bucket(-1.0), bucket(f64::NAN)), (0, 0, 0));
    }

    #[test]
    fn memory_is_bounded_and_nothing_is_lost() {
        let mut blocks = BlockHistogram::default();
        for request in 0..5000u32 {
            for _ in 0..3 {
                blocks.record(1e6 + f64::from(request));
            }
            blocks.close();
        }
        let n = blocks.blocks().len();
        assert!((MAX_BLOCKS / 2..MAX_BLOCKS).contains(&n), "{n}");
        assert!(blocks.n() > 15_000 - 3 * 64, "{}", blocks.n());
    }

    #[test]
    fn longer_blocks_have_the_same_values() {
        let values: Vec<f64> = (0..100).map(|i| 100.0 + f64::from(i)).collect();
        let blocks = BlockHistogram::of_chunks(&values, 1);
        for (length, want) in [(1, 100), (3, 33), (40, 2), (100, 1), (500, 1)] {
            let longer = blocks.in_blocks_of(length);
            assert_eq!((longer.blocks().len(), longer.n()), (want, 100), "{length}");
        }
        assert_eq!(BlockHistogram::default().in_blocks_of(3).n(), 0);
    }

    #[test]
    fn the_remainder_is_part_of_the_last_chunk() {
        for (n, length, want) in [(10, 3, 3), (10, 1, 10), (2, 5, 1), (0, 1, 0)] {
            let values: Vec<f64> = (0..n).map(|i| 100.0 + f64::from(i)).collect();
            let blocks = BlockHistogram::of_chunks(&values, length);
            assert_eq!((blocks.blocks().len(), blocks.n()), (want, n as u64), "{n} by {length}");
        }
    }
}
