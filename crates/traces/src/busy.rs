//! The time in which at least one of many intervals is active, in bounded memory.

use std::collections::VecDeque;

use llmprof_event::kernels::Busy;

/// Maximum separate intervals that are kept. Launches are nearly in order of time, so that much earlier ones are
/// complete.
const MAX_KEPT: usize = 1 << 14;

/// Intervals in any order, merged if they overlap.
#[derive(Debug, Clone, Default)]
pub struct BusyTime {
    /// Starts and ends, in order; none overlap.
    kept: VecDeque<(i64, i64)>,
    /// The time before `since`.
    before_ns: i64,
    since: Option<i64>,
    span: Option<(i64, i64)>,
}

impl BusyTime {
    /// Adds an interval. The part of it in the completed time does not count.
    pub fn add(&mut self, start: i64, end: i64) {
        let end = end.max(start);
        self.span = Some(self.span.map_or((start, end), |(first, last)| (first.min(start), last.max(end))));
        let start = self.since.map_or(start, |since| start.max(since));
        let end = end.max(start);
        match self.kept.back_mut() {
            // Most intervals follow the last one.
            Some((_, until)) if start > *until => self.kept.push_back((start, end)),
            Some((last, until)) if start >= *last => *until = end.max(*until),
            _ => self.insert(start, end),
        }
        if self.kept.len() > MAX_KEPT {
            self.complete_half();
        }
    }

    fn insert(&mut self, mut start: i64, mut end: i64) {
        let from = self.kept.partition_point(|(_, until)| *until < start);
        let to = self.kept.partition_point(|(other, _)| *other <= end);
        for (other, until) in self.kept.drain(from..to.max(from)) {
            (start, end) = (start.min(other), end.max(until));
        }
        self.kept.insert(from, (start, end));
    }

    fn complete_half(&mut self) {
        for (start, end) in self.kept.drain(..MAX_KEPT / 2) {
            self.before_ns = self.before_ns.saturating_add(end.saturating_sub(start));
            self.since = Some(end);
        }
    }

    /// `None` without intervals.
    pub fn total(&self) -> Option<Busy> {
        let (first, last) = self.span?;
        let length = |sum: i64, (start, end): &(i64, i64)| sum.saturating_add(end.saturating_sub(*start));
        let busy_ns = self.kept.iter().fold(self.before_ns, length) as f64;
        Some(Busy { busy_ns, span_ns: last.saturating_sub(first) as f64 })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn total(intervals: &[(i64, i64)]) -> Option<(f64, f64)> {
        let mut busy = BusyTime::default();
        intervals.iter().for_each(|(start, end)| busy.add(*start, *end));
        busy.total().map(|busy| (busy.busy_ns, busy.span_ns))
    }

    #[test]
    fn overlaps_count_once() {
        assert_eq!(total(&[]), None);
        assert_eq!(total(&[(10, 20), (15, 30), (50, 60)]), Some((30.0, 50.0)));
        assert_eq!(total(&[(50, 60), (0, 10), (5, 55)]), Some((60.0, 60.0)));
        assert_eq!(total(&[(5, 5), (9, 3)]), Some((0.0, 4.0)));
        assert_eq!(total(&[(i64::MIN, i64::MAX)]).map(|(busy, span)| busy == span), Some(true));
    }

    #[test]
    fn memory_is_bounded() {
        let mut busy = BusyTime::default();
        for at in 0..200_000 {
            // Every tenth is late.
            let at = if at % 10 == 0 { at + 1000 } else { at };
            busy.add(10 * at, 10 * at + 4);
        }
        assert!(busy.kept.len() <= MAX_KEPT);
        let busy = busy.total().unwrap();
        assert!((busy.share().unwrap() - 0.4).abs() < 0.05, "{busy:?}");
    }

    proptest! {
        #[test]
        fn it_is_the_length_of_the_union(intervals in prop::collection::vec((0i64..200, 0i64..30), 0..40)) {
            let intervals: Vec<(i64, i64)> = intervals.into_iter().map(|(start, long)| (start, start + long)).collect();
            let union = (0..230).filter(|at| intervals.iter().any(|(start, end)| start <= at && at < end)).count();
            prop_assert_eq!(total(&intervals).map_or(0.0, |(busy, _)| busy), union as f64);
        }
    }
}
