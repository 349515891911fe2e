//! Launches become rows: one for each kernel, grid and range, in memory that does not grow with the launches.

use std::{collections::HashMap, hash::Hash};

use crate::event::kernels::KernelRow;

/// Kernels of a program are some hundreds, with their grids some thousands. Beyond this, grids and ranges are no longer
/// told apart.
pub const MOST_SHAPES: usize = 8192;
/// Beyond this, what is new is counted together.
pub const MOST_ROWS: usize = 2 * MOST_SHAPES;
/// The name of what is counted together.
pub use crate::event::kernels::OTHER_KERNELS as OTHERS;
/// Durations kept of a row for its median.
const MOST_KEPT: usize = 1 << 16;

/// Where a key's launches are counted: rows by full key, then by name, then one for the rest.
#[derive(Debug)]
pub struct Places<K> {
    by_key: HashMap<K, usize>,
    by_name: HashMap<Box<[u8]>, usize>,
    others: Option<usize>,
    rows: usize,
}

/// Where to count, and whether that is a new row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Of this kernel, grid and range.
    Exact { at: usize, new: bool },
    /// Of this kernel, whatever the grid.
    Name { at: usize, new: bool },
    /// Of any kernel.
    Others { at: usize, new: bool },
}

impl Place {
    pub fn at(self) -> usize {
        match self {
            Place::Exact { at, .. } | Place::Name { at, .. } | Place::Others { at, .. } => at,
        }
    }
}

impl<K: Hash + Eq> Default for Places<K> {
    fn default() -> Self {
        Places { by_key: HashMap::new(), by_name: HashMap::new(), others: None, rows: 0 }
    }
}

impl<K: Hash + Eq> Places<K> {
    /// Where launches with this key belong, if they were seen before.
    #[inline]
    pub fn known<Q>(&self, key: &Q) -> Option<usize>
    where
        K: std::borrow::Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.by_key.get(key).copied()
    }

    /// Where launches with a key that is not [`known`](Places::known) belong.
    pub fn find(&mut self, key: K, name: &[u8]) -> Place {
        if self.by_key.len() < MOST_SHAPES {
            let at = self.next();
            self.by_key.insert(key, at);
            return Place::Exact { at, new: true };
        }
        if let Some(at) = self.by_name.get(name) {
            return Place::Name { at: *at, new: false };
        }
        if self.rows < MOST_ROWS {
            let at = self.next();
            self.by_name.insert(name.into(), at);
            return Place::Name { at, new: true };
        }
        match self.others {
            Some(at) => Place::Others { at, new: false },
            None => {
                let at = self.next();
                self.others = Some(at);
                Place::Others { at, new: true }
            }
        }
    }

    /// Whether some launches could not be told apart, in words.
    pub fn remark(&self) -> Option<String> {
        let folded = !self.by_name.is_empty() || self.others.is_some();
        folded.then(|| {
            format!(
                "there are more than {MOST_SHAPES} different launches: beyond that, grids and ranges are put together"
            )
        })
    }

    fn next(&mut self) -> usize {
        self.rows += 1;
        self.rows - 1
    }
}

/// The durations of a row's launches.
#[derive(Debug, Clone)]
pub struct Durations {
    n: u64,
    total: f64,
    min: f64,
    max: f64,
    /// Welford's running mean and sum of squares.
    mean: f64,
    squares: f64,
    /// Every `step`-th duration, for the median.
    kept: Vec<u32>,
    step: u64,
}

impl Default for Durations {
    fn default() -> Self {
        Durations {
            n: 0,
            total: 0.0,
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            mean: 0.0,
            squares: 0.0,
            kept: Vec::new(),
            step: 1,
        }
    }
}

impl Durations {
    #[inline]
    pub fn add(&mut self, ns: f64) {
        if self.n.is_multiple_of(self.step) {
            self.keep(ns);
        }
        self.n += 1;
        self.total += ns;
        self.min = self.min.min(ns);
        self.max = self.max.max(ns);
        let off = ns - self.mean;
        self.mean += off / self.n as f64;
        self.squares += off * (ns - self.mean);
    }

    /// Keeps a duration; of too many, every other one goes.
    fn keep(&mut self, ns: f64) {
        if self.kept.len() == MOST_KEPT {
            let mut index = 0;
            self.kept.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.step *= 2;
            if !self.n.is_multiple_of(self.step) {
                return;
            }
        }
        self.kept.push(ns as u32);
    }

    /// Writes them into the row. Durations that not all launches had leave the total unknown.
    pub fn fill(mut self, row: &mut KernelRow) {
        if self.n == 0 {
            return;
        }
        row.mean_ns = Some(self.mean);
        row.min_ns = Some(self.min);
        row.max_ns = Some(self.max);
        row.stddev_ns = (self.n > 1).then(|| (self.squares / (self.n - 1) as f64).sqrt());
        row.median_ns = self.median();
        if self.n == row.calls {
            row.total_ns = Some(self.total);
        }
    }

    fn median(&mut self) -> Option<f64> {
        let middle = self.kept.len() / 2;
        let even = self.kept.len().is_multiple_of(2);
        if self.kept.is_empty() {
            return None;
        }
        let (below, upper, _) = self.kept.select_nth_unstable(middle);
        let upper = f64::from(*upper);
        match below.iter().max().filter(|_| even) {
            Some(lower) => Some((f64::from(*lower) + upper) / 2.0),
            None => Some(upper),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(values: impl Iterator<Item = u32>) -> KernelRow {
        let mut durations = Durations::default();
        let mut row = KernelRow::default();
        for value in values {
            durations.add(f64::from(value));
            row.calls += 1;
        }
        durations.fill(&mut row);
        row
    }

    #[test]
    fn durations_of_a_few_and_of_many() {
        let row = filled([10, 20, 90, 40].into_iter());
        assert_eq!((row.total_ns, row.mean_ns, row.median_ns), (Some(160.0), Some(40.0), Some(30.0)));
        assert!((row.stddev_ns.unwrap() - 35.590).abs() < 0.001);
        assert_eq!(filled([7].into_iter()).stddev_ns, None);
        assert_eq!(filled(std::iter::empty()), KernelRow::default());
        let many = filled((0..400_001).rev());
        let median = many.median_ns.unwrap();
        assert!((median - 200_000.0).abs() < 10.0, "{median}");
        assert_eq!(many.max_ns, Some(400_000.0));
    }

    #[test]
    fn a_launch_without_a_duration_leaves_the_total_unknown() {
        let mut durations = Durations::default();
        durations.add(5.0);
        let mut row = KernelRow { calls: 2, ..KernelRow::default() };
        durations.fill(&mut row);
        assert_eq!((row.mean_ns, row.total_ns), (Some(5.0), None));
    }

    #[test]
    fn rows_are_bounded_whatever_comes() {
        let mut places: Places<u64> = Places::default();
        let mut most = 0;
        for key in 0..100_000u64 {
            let place = places.find(key, &key.to_le_bytes());
            most = most.max(place.at());
        }
        assert_eq!(most, MOST_ROWS);
        assert!(places.remark().unwrap().contains("8192"));
        assert_eq!(places.known(&3), Some(3));
    }
}
