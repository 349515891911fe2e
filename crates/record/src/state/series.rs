//! A value over time in bounded memory: the last samples individually, the run in buckets.

use std::collections::VecDeque;

use super::push_bounded;
use llmprof_event::Stamp;

/// The values within an interval of time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bucket {
    pub min: f32,
    pub max: f32,
    sum: f64,
    n: u32,
}

impl Bucket {
    fn new(value: f32) -> Self {
        Bucket { min: value, max: value, sum: f64::from(value), n: 1 }
    }

    fn merge(&mut self, other: Bucket) {
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.sum += other.sum;
        self.n += other.n;
    }

    pub fn mean(&self) -> f32 {
        (self.sum / f64::from(self.n)) as f32
    }

    /// The sum of its values.
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// Merges neighbours until each group has `min_n` values: the group's mean and extremes replace those of its
    /// buckets.
    pub fn pool(columns: &mut [Option<Bucket>], min_n: u32) {
        let mut groups: Vec<(Bucket, Vec<usize>)> = Vec::new();
        for (i, bucket) in columns.iter().enumerate().filter_map(|(i, bucket)| Some((i, (*bucket)?))) {
            match groups.last_mut().filter(|(pooled, _)| pooled.n < min_n) {
                Some((pooled, members)) => {
                    pooled.merge(bucket);
                    members.push(i);
                }
                None => groups.push((bucket, vec![i])),
            }
        }
        // The remainder at the end belongs to the previous group.
        if let [.., (before, members), (last, left)] = &mut groups[..]
            && last.n < min_n
        {
            before.merge(*last);
            members.append(left);
        }
        for (pooled, members) in groups {
            members.into_iter().for_each(|i| columns[i] = Some(pooled));
        }
    }
}

const RECENT: usize = 1024;
const BUCKETS: usize = 1024;
const FIRST_WIDTH_NS: u64 = 50_000_000;

/// Memory is allocated once, when the series is created. Minima and maxima survive downsampling.
#[derive(Debug, Clone)]
pub struct Series {
    recent: VecDeque<(Stamp, f32)>,
    buckets: Vec<Option<Bucket>>,
    width_ns: u64,
}

impl Default for Series {
    fn default() -> Self {
        Series {
            recent: VecDeque::with_capacity(RECENT),
            buckets: Vec::with_capacity(BUCKETS),
            width_ns: FIRST_WIDTH_NS,
        }
    }
}

impl Series {
    pub fn push(&mut self, t: Stamp, value: f32) {
        if !value.is_finite() {
            return;
        }
        push_bounded(&mut self.recent, RECENT, (t, value));
        while (t.0 / self.width_ns) as usize >= BUCKETS {
            self.halve();
        }
        let index = (t.0 / self.width_ns) as usize;
        if index >= self.buckets.len() {
            self.buckets.resize(index + 1, None);
        }
        match &mut self.buckets[index] {
            Some(bucket) => bucket.merge(Bucket::new(value)),
            empty => *empty = Some(Bucket::new(value)),
        }
    }

    fn halve(&mut self) {
        let mut kept = 0;
        for pair in 0..self.buckets.len().div_ceil(2) {
            let mut merged = self.buckets[2 * pair];
            if let Some(Some(second)) = self.buckets.get(2 * pair + 1) {
                match &mut merged {
                    Some(first) => first.merge(*second),
                    None => merged = Some(*second),
                }
            }
            self.buckets[pair] = merged;
            kept = pair + 1;
        }
        self.buckets.truncate(kept);
        self.width_ns *= 2;
    }

    pub fn last(&self) -> Option<(Stamp, f32)> {
        self.recent.back().copied()
    }

    pub fn is_empty(&self) -> bool {
        self.recent.is_empty()
    }

    /// Minimum and maximum of the run.
    pub fn range(&self) -> Option<(f32, f32)> {
        self.buckets.iter().flatten().fold(None, |range, b| {
            let (min, max) = range.unwrap_or((b.min, b.max));
            Some((min.min(b.min), max.max(b.max)))
        })
    }

    /// The interval `from..to` in `columns` equal parts; a part without a sample is `None`.
    pub fn columns(&self, from: Stamp, to: Stamp, columns: usize) -> Vec<Option<Bucket>> {
        let mut out: Vec<Option<Bucket>> = vec![None; columns];
        let span = to.0.saturating_sub(from.0);
        if columns == 0 || span == 0 {
            return out;
        }
        for (t, bucket) in self.within(from, to) {
            let column = ((u128::from(t.0 - from.0) * columns as u128) / u128::from(span)) as usize;
            match &mut out[column.min(columns - 1)] {
                Some(known) => known.merge(bucket),
                empty => *empty = Some(bucket),
            }
        }
        out
    }

    /// The interval `from..=to` at the kept resolution: sample by sample, or buckets at their centres.
    pub fn within(&self, from: Stamp, to: Stamp) -> impl Iterator<Item = (Stamp, Bucket)> {
        let fine = self.recent.len() < RECENT || self.recent.front().is_some_and(|(first, _)| *first <= from);
        let (first_sample, first_bucket) = match fine {
            true => (self.recent.partition_point(|(t, _)| *t < from), self.buckets.len()),
            false => (self.recent.len(), (from.0 / self.width_ns) as usize),
        };
        let samples = self.recent.range(first_sample..).map(|(t, value)| (*t, Bucket::new(*value)));
        let (width, centre) = (self.width_ns, self.width_ns / 2);
        let buckets = self.buckets.iter().enumerate().skip(first_bucket);
        let buckets =
            buckets.filter_map(move |(i, bucket)| Some((Stamp(i as u64 * width + centre), (*bucket)?)));
        samples.chain(buckets).filter(move |(t, _)| (from..=to).contains(t))
    }

    /// Like [`columns`](Self::columns), with the previous value in each empty part for up to `hold_ns`: the most likely
    /// value between two samples.
    pub fn held_columns(&self, from: Stamp, to: Stamp, columns: usize, hold_ns: u64) -> Vec<Option<Bucket>> {
        let mut out = self.columns(from, to, columns);
        let column_ns = to.0.saturating_sub(from.0) / columns.max(1) as u64;
        let hold = (hold_ns / column_ns.max(1)) as usize;
        let before = self.before(from).filter(|(t, _)| from.0 - t.0 <= hold_ns).map(|(_, v)| Bucket::new(v));
        let mut last = before.map(|b| (0, b));
        for (i, part) in out.iter_mut().enumerate() {
            match part {
                Some(bucket) => last = Some((i, *bucket)),
                None => *part = last.filter(|(at, _)| i - at <= hold).map(|(_, b)| Bucket::new(b.mean())),
            }
        }
        out
    }

    /// The value at `t`: the previous sample, if it is recent enough.
    pub fn at(&self, t: Stamp) -> Option<f32> {
        const MAX_AGE_NS: u64 = 2_500_000_000;
        match self.before(Stamp(t.0.saturating_add(1))) {
            Some((sampled, value)) => (t.0 - sampled.0 <= MAX_AGE_NS).then_some(value),
            // Older than the samples that are kept individually.
            None => self.buckets.get((t.0 / self.width_ns) as usize).copied().flatten().map(|b| b.mean()),
        }
    }

    fn before(&self, t: Stamp) -> Option<(Stamp, f32)> {
        let end = self.recent.partition_point(|(at, _)| *at < t);
        end.checked_sub(1).map(|i| self.recent[i])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(secs: f64) -> Stamp {
        Stamp::from_secs_f64(secs)
    }

    #[test]
    fn a_spike_survives_downsampling() {
        let mut s = Series::default();
        for i in 0..36_000 {
            s.push(at(f64::from(i) * 0.1), if i == 1234 { 99.0 } else { 1.0 });
        }
        assert_eq!(s.range(), Some((1.0, 99.0)));
        let columns = s.columns(at(0.0), at(3600.0), 200);
        assert_eq!(columns.iter().flatten().filter(|b| b.max == 99.0).count(), 1);
        assert!(s.buckets.capacity() <= BUCKETS && s.recent.capacity() <= RECENT + 1);
    }

    #[test]
    fn gaps_are_held_for_a_limited_time() {
        let mut s = Series::default();
        s.push(at(1.0), 5.0);
        s.push(at(9.0), 7.0);
        let plain = s.columns(at(0.0), at(10.0), 10);
        assert_eq!(plain.iter().filter(|b| b.is_some()).count(), 2);
        let held = s.held_columns(at(0.0), at(10.0), 10, 3_000_000_000);
        let filled: Vec<bool> = held.iter().map(Option::is_some).collect();
        assert_eq!(filled, [false, true, true, true, true, false, false, false, false, true]);
    }

    #[test]
    fn neighbours_are_pooled_until_there_are_enough_values() {
        let mut s = Series::default();
        // A late value, then an early one: 30 + 1.5 + 4 * 4 over six.
        for (i, value) in [30.0, 1.5, 4.0, 4.0, 4.0, 4.0, 4.0].into_iter().enumerate() {
            s.push(at(i as f64 + 0.5), value);
        }
        let mut columns = s.columns(at(0.0), at(10.0), 10);
        Bucket::pool(&mut columns, 4);
        let means: Vec<Option<f32>> = columns.iter().map(|bucket| bucket.map(|b| b.mean())).collect();
        let all = 51.5 / 7.0;
        assert_eq!(means[..7], [Some(all); 7], "the last three are too few for a group of their own");
        assert_eq!(means[7..], [None; 3]);
        assert_eq!(columns[0].map(|b| (b.min, b.max)), Some((1.5, 30.0)));
        let mut enough = s.columns(at(0.0), at(10.0), 10);
        Bucket::pool(&mut enough, 3);
        let mean = |i: usize| enough[i].unwrap().mean();
        assert_eq!((mean(0), mean(3), mean(6)), (35.5 / 3.0, 4.0, 4.0));
        Bucket::pool(&mut [], 4);
    }

    #[test]
    fn values_that_are_not_finite_are_ignored() {
        let mut s = Series::default();
        s.push(at(1.0), f32::NAN);
        assert!(s.is_empty());
    }

    proptest! {
        #[test]
        fn minimum_and_maximum_are_kept(values in prop::collection::vec((0u64..10_000_000_000_000, -1e6f32..1e6), 1..500)) {
            let mut values = values;
            values.sort_by_key(|v| v.0);
            let mut s = Series::default();
            for (t, v) in &values {
                s.push(Stamp(*t), *v);
            }
            let min = values.iter().map(|v| v.1).fold(f32::INFINITY, f32::min);
            let max = values.iter().map(|v| v.1).fold(f32::NEG_INFINITY, f32::max);
            prop_assert_eq!(s.range(), Some((min, max)));
        }

        #[test]
        fn any_interval_can_be_queried(from in 0u64..1_000_000_000_000, to in 0u64..1_000_000_000_000, columns in 0usize..300) {
            let mut s = Series::default();
            (0..2000u64).for_each(|i| s.push(Stamp(i * 77_000_000), i as f32));
            prop_assert_eq!(s.held_columns(Stamp(from), Stamp(to), columns, 2_000_000_000).len(), columns);
        }
    }
}
