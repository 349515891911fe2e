//! Values in blocks of what belongs together, in bounded memory: what is drawn as a whole when values are resampled.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A bucket is this much of its value wide.
const WIDTH: f64 = 2.5e-4;
const MOST_UNCOUNTED: usize = 4096;

/// The number of a bucket, and how many values are in it.
pub type Counts = Vec<(u32, u32)>;

/// Values above zero, counted in narrow buckets, block by block in the order of time. When there are too many blocks,
/// neighbours become one.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Blocks {
    /// Those that are complete.
    blocks: Vec<Counts>,
    /// So many closings make one block.
    #[serde(default = "one")]
    closings: u32,
    #[serde(skip)]
    open: BTreeMap<u32, u32>,
    /// Buckets of values of the open block that are not yet counted: many at once are quicker than one by one.
    #[serde(skip)]
    uncounted: Vec<u32>,
    #[serde(skip)]
    closed: u32,
}

fn one() -> u32 {
    1
}

/// From so many blocks on, neighbours become one. Half of it is enough for an interval.
pub const MOST_BLOCKS: usize = 256;

/// Where a value belongs; values that are not above zero belong to the least bucket.
fn bucket(value: f64) -> u32 {
    if value > 1.0 { (value.ln() / WIDTH) as u32 } else { 0 }
}

/// The value that stands for a bucket.
pub fn value_of(bucket: u32) -> f64 {
    ((f64::from(bucket) + 0.5) * WIDTH).exp()
}

impl Blocks {
    /// A block of each chunk of `length` values; what is left over belongs to the last one.
    pub fn of_chunks(values: &[f64], length: usize) -> Blocks {
        let mut blocks = Blocks { closings: 1, ..Blocks::default() };
        let (length, n) = (length.max(1), values.len());
        for (i, value) in values.iter().enumerate() {
            blocks.record(*value);
            let rest = n - i - 1;
            if ((i + 1).is_multiple_of(length) && rest >= length) || rest == 0 {
                blocks.close();
            }
        }
        blocks
    }

    /// Adds a value to the block under way. It should be above one: nanoseconds are.
    pub fn record(&mut self, value: f64) {
        self.uncounted.push(bucket(value));
        if self.uncounted.len() == MOST_UNCOUNTED {
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

    /// What belongs together ends here.
    pub fn close(&mut self) {
        self.count();
        self.closed += 1;
        if self.closed < self.closings.max(1) || self.open.is_empty() {
            return;
        }
        self.closed = 0;
        self.blocks.push(std::mem::take(&mut self.open).into_iter().collect());
        if self.blocks.len() >= MOST_BLOCKS {
            self.blocks = self.blocks.chunks(2).map(merged).collect();
            self.closings = self.closings.max(1) * 2;
        }
    }

    /// The block under way is not to count.
    pub fn drop_open(&mut self) {
        if self.closings <= 1 {
            self.open.clear();
            self.uncounted.clear();
        }
    }

    /// All blocks of all, one after another.
    pub fn joined(parts: &[&Blocks]) -> Blocks {
        let mut blocks: Vec<Counts> = parts.iter().flat_map(|part| part.blocks.iter().cloned()).collect();
        while blocks.len() >= MOST_BLOCKS {
            blocks = blocks.chunks(2).map(merged).collect();
        }
        Blocks { blocks, closings: 1, ..Blocks::default() }
    }

    pub fn blocks(&self) -> &[Counts] {
        &self.blocks
    }

    /// Values in all complete blocks.
    pub fn n(&self) -> u64 {
        self.blocks.iter().flatten().map(|(_, n)| u64::from(*n)).sum()
    }
}

fn merged(pair: &[Counts]) -> Counts {
    let mut all: BTreeMap<u32, u32> = BTreeMap::new();
    for (bucket, n) in pair.iter().flatten() {
        *all.entry(*bucket).or_default() += n;
    }
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_stands_for_its_values() {
        for value in [2.0, 1e3, 3_784_123.0, 9e12] {
            assert!((value_of(bucket(value)) / value - 1.0).abs() <= WIDTH, "{value}");
        }
        assert_eq!((bucket(0.0), bucket(-1.0), bucket(f64::NAN)), (0, 0, 0));
    }

    #[test]
    fn memory_is_bounded_and_nothing_is_lost() {
        let mut blocks = Blocks::default();
        for request in 0..5000u32 {
            for _ in 0..3 {
                blocks.record(1e6 + f64::from(request));
            }
            blocks.close();
        }
        let n = blocks.blocks().len();
        assert!((MOST_BLOCKS / 2..MOST_BLOCKS).contains(&n), "{n}");
        assert!(blocks.n() > 15_000 - 3 * 64, "{}", blocks.n());
    }

    #[test]
    fn chunks_keep_what_is_left_over() {
        for (n, length, want) in [(10, 3, 3), (10, 1, 10), (2, 5, 1), (0, 1, 0)] {
            let values: Vec<f64> = (0..n).map(|i| 100.0 + f64::from(i)).collect();
            let blocks = Blocks::of_chunks(&values, length);
            assert_eq!((blocks.blocks().len(), blocks.n()), (want, n as u64), "{n} by {length}");
        }
    }
}
