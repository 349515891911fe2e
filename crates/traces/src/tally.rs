//! Turns launches into rows, one per kernel, grid and range, in memory that does not grow with the launches.

use std::{borrow::Borrow, collections::HashMap, hash::Hash};

use llmprof_event::kernels::{KernelRow, OTHERS};

/// A program has a few hundred kernels and a few thousand grids. Beyond this, grids and ranges are no longer
/// distinguished.
pub const MAX_SHAPES: usize = 8192;
/// Beyond this, further kernels are counted together.
pub const MAX_ROWS: usize = 2 * MAX_SHAPES;
/// Durations kept per row for its median.
const MAX_KEPT: usize = 1 << 16;

/// Rows by launch key, then by kernel name, then one for all others.
#[derive(Debug)]
pub struct Tally<K, T> {
    by_key: HashMap<K, usize>,
    by_name: HashMap<Box<[u8]>, usize>,
    others: Option<usize>,
    rows: Vec<T>,
}

/// The scope of a row: the properties that its launches share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Kernel, grid and range.
    Launch,
    /// The kernel.
    Kernel,
    /// Nothing.
    Others,
}

impl Scope {
    /// `row` without the properties that the launches of the scope do not share.
    pub fn limit(self, row: KernelRow) -> KernelRow {
        match self {
            Scope::Launch => row,
            Scope::Kernel => KernelRow::named(row.name),
            Scope::Others => KernelRow::named(OTHERS),
        }
    }
}

impl<K, T> Default for Tally<K, T> {
    fn default() -> Self {
        Tally { by_key: HashMap::new(), by_name: HashMap::new(), others: None, rows: Vec::new() }
    }
}

impl<K: Hash + Eq, T> Tally<K, T> {
    /// The row that counts launches with this key, of the kernel `name`. `new` creates a missing row.
    #[inline]
    pub fn row<Q>(&mut self, key: &Q, name: &[u8], new: impl FnOnce(Scope) -> T) -> &mut T
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let at = match self.by_key.get(key) {
            Some(at) => *at,
            None => self.find(key, name, new),
        };
        &mut self.rows[at]
    }

    /// The index of the row for a key that has none of its own yet.
    fn find<Q>(&mut self, key: &Q, name: &[u8], new: impl FnOnce(Scope) -> T) -> usize
    where
        Q: ToOwned<Owned = K> + ?Sized,
    {
        let next = self.rows.len();
        let scope = if self.by_key.len() < MAX_SHAPES {
            self.by_key.insert(key.to_owned(), next);
            Scope::Launch
        } else if let Some(at) = self.by_name.get(name) {
            return *at;
        } else if next < MAX_ROWS {
            self.by_name.insert(name.into(), next);
            Scope::Kernel
        } else if let Some(at) = self.others {
            return at;
        } else {
            self.others = Some(next);
            Scope::Others
        };
        self.rows.push(new(scope));
        next
    }

    /// Reports if some launches are not distinguished.
    pub fn note(&self) -> Option<String> {
        let merged = !self.by_name.is_empty() || self.others.is_some();
        merged.then(|| {
            format!(
                "more than {MAX_SHAPES} different launches: further grids and ranges are merged by kernel"
            )
        })
    }

    pub fn into_rows(self) -> Vec<T> {
        self.rows
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

    /// Keeps a duration; when there are too many, drops every other one.
    fn keep(&mut self, ns: f64) {
        if self.kept.len() == MAX_KEPT {
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

    /// `row` with these durations, one for each of its calls.
    pub fn into_row(self, row: KernelRow) -> KernelRow {
        let mut row = KernelRow { calls: self.n, ..row };
        self.fill(&mut row);
        row
    }

    /// Writes them into the row. The total stays unknown if some launches have no duration.
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
    fn the_number_of_rows_is_bounded() {
        let mut tally: Tally<u64, (Scope, u64)> = Tally::default();
        for key in (0..100_000u64).chain([3]) {
            tally.row(&key, &key.to_le_bytes(), |scope| (scope, 0)).1 += 1;
        }
        assert!(tally.note().unwrap().contains("8192"));
        let rows = tally.into_rows();
        assert_eq!(rows.len(), MAX_ROWS + 1);
        assert_eq!((rows[3], rows[MAX_SHAPES]), ((Scope::Launch, 2), (Scope::Kernel, 1)));
        assert_eq!(rows[MAX_ROWS], (Scope::Others, 100_000 - MAX_ROWS as u64));
    }
}
