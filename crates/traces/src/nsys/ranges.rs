//! NVTX ranges of threads, and which of them enclose a call.

use std::{collections::HashMap, sync::Arc};

use crate::{
    gpu::filled,
    show::KERNEL_TIME,
    tally::{Durations, MAX_ROWS},
};
use llmprof_event::kernels::{KernelRow, KernelTable, Kind, counters::Counter};

/// A nesting of ranges by name, numbered in order of appearance; its number is greater than that of the enclosing one.
pub type PathId = u32;
/// No range.
pub const OUTSIDE: PathId = 0;
/// Ranges nested deeper are not distinguished.
const MAX_DEPTH: u32 = 16;
/// Overlapping ranges that are examined for one call.
const MAX_STEPS: usize = 4096;
/// The name for further ranges when there are too many.
const OTHERS: &str = "(other ranges)";

/// Nestings of names, each once.
#[derive(Debug)]
pub struct Paths {
    known: HashMap<(PathId, Box<str>), PathId>,
    /// For each nesting: the enclosing one, its text, its depth.
    all: Vec<(PathId, String, u32)>,
}

impl Default for Paths {
    fn default() -> Self {
        Paths { known: HashMap::new(), all: vec![(OUTSIDE, String::new(), 0)] }
    }
}

impl Paths {
    /// The nesting of `name` in `outer`.
    pub fn within(&mut self, outer: PathId, name: &str) -> PathId {
        let depth = self.all[outer as usize].2 + 1;
        if depth > MAX_DEPTH {
            return outer;
        }
        let name = if self.all.len() < MAX_ROWS { name } else { OTHERS };
        let key = (outer, Box::from(name));
        if let Some(path) = self.known.get(&key) {
            return *path;
        }
        if self.all.len() >= 2 * MAX_ROWS {
            return outer;
        }
        let text = match outer {
            OUTSIDE => name.to_owned(),
            outer => format!("{}/{name}", self.all[outer as usize].1),
        };
        let path = self.all.len() as PathId;
        self.all.push((outer, text, depth));
        self.known.insert(key, path);
        path
    }

    /// Names separated by slashes, the outermost first; `None` outside all ranges.
    pub fn text(&self, path: PathId) -> Option<&str> {
        (path != OUTSIDE).then(|| self.all[path as usize].1.as_str())
    }

    /// The enclosing nesting.
    pub fn outer(&self, path: PathId) -> PathId {
        self.all[path as usize].0
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn is_empty(&self) -> bool {
        self.all.len() == 1
    }
}

/// A recorded range. A range without an end lasts forever.
#[derive(Debug, Clone, Copy)]
struct Range {
    start: i64,
    end: i64,
    /// The index of its name.
    name: u32,
    /// The range that was open when it began: its index in the thread plus one, or 0.
    below: u32,
    path: PathId,
    /// Whether all ranges below it end later.
    nested: bool,
}

/// The ranges of all threads.
#[derive(Debug, Default)]
pub struct Ranges {
    pub paths: Paths,
    names: Vec<Box<str>>,
    numbers: HashMap<Box<str>, u32>,
    threads: HashMap<i64, Vec<Range>>,
    /// The last result.
    last: Option<RangeInterval>,
}

/// All calls of a thread that begin and end in this interval have the same ranges.
#[derive(Debug, Clone, Copy)]
struct RangeInterval {
    thread: i64,
    since: i64,
    /// The time at which another range begins or the innermost one ends.
    until: i64,
    path: PathId,
}

impl Ranges {
    /// Adds a range. All ranges are added before [`resolve`](Ranges::resolve) is called.
    pub fn add(&mut self, thread: i64, start: i64, end: Option<i64>, name: &str) {
        let number = match self.numbers.get(name) {
            Some(number) => *number,
            None => {
                let number = self.names.len() as u32;
                self.names.push(name.into());
                self.numbers.insert(name.into(), number);
                number
            }
        };
        let end = end.unwrap_or(i64::MAX).max(start);
        let range = Range { start, end, name: number, below: 0, path: OUTSIDE, nested: true };
        self.threads.entry(thread).or_default().push(range);
    }

    pub fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    /// Resolves the nesting, and passes that of each range to `each`, with its duration if it has an end.
    pub fn resolve(&mut self, mut each: impl FnMut(PathId, Option<i64>)) {
        let Ranges { paths, names, threads, .. } = self;
        let mut order: Vec<i64> = threads.keys().copied().collect();
        order.sort_unstable();
        for thread in order {
            let Some(ranges) = threads.get_mut(&thread) else { continue };
            ranges.sort_by_key(|range| (range.start, std::cmp::Reverse(range.end)));
            let mut open: Vec<u32> = Vec::new();
            for at in 0..ranges.len() {
                let range = ranges[at];
                while open.last().is_some_and(|top| ranges[*top as usize].end <= range.start) {
                    open.pop();
                }
                let below = open.last().map(|top| ranges[*top as usize]);
                let nested = below.is_none_or(|below| below.nested && below.end >= range.end);
                let outer = below.map_or(OUTSIDE, |below| below.path);
                let path = paths.within(outer, &names[range.name as usize]);
                ranges[at].below = open.last().map_or(0, |top| top + 1);
                ranges[at].nested = nested;
                ranges[at].path = path;
                open.push(at as u32);
                each(path, (range.end != i64::MAX).then(|| range.end.saturating_sub(range.start)));
            }
        }
    }

    /// The ranges of a thread that enclose a call from `start` to `end`.
    pub fn enclosing(&mut self, thread: i64, start: i64, end: i64) -> PathId {
        // Calls are in about the order of time, most of them on one thread.
        let same =
            |found: &RangeInterval| found.thread == thread && found.since <= start && end < found.until;
        if let Some(found) = self.last.filter(same) {
            return found.path;
        }
        let Some(ranges) = self.threads.get(&thread) else { return OUTSIDE };
        let begun = ranges.partition_point(|range| range.start <= start);
        let next = ranges.get(begun).map_or(i64::MAX, |range| range.start);
        let mut at = begun as u32;
        let mut enclosing_names: Vec<u32> = Vec::new();
        for _ in 0..MAX_STEPS {
            if at == 0 {
                break;
            }
            let range = &ranges[at as usize - 1];
            if range.end >= end {
                if range.nested && enclosing_names.is_empty() {
                    if at as usize == begun {
                        let (since, until) = (range.start, range.end.min(next));
                        self.last = Some(RangeInterval { thread, since, until, path: range.path });
                    }
                    return range.path;
                }
                enclosing_names.push(range.name);
            }
            at = range.below;
        }
        enclosing_names
            .iter()
            .rev()
            .fold(OUTSIDE, |outer, name| self.paths.within(outer, &self.names[*name as usize]))
    }
}

/// The ranges by nesting: their time on the host, and the kernels launched in them.
pub fn range_table(
    source: &str,
    paths: &Paths,
    by_path: Vec<(Durations, u64)>,
    launched: &[(u64, f64)],
) -> Option<KernelTable> {
    // A launch in a range is also in all ranges that enclose it.
    let mut within = launched.to_vec();
    for path in (1..within.len()).rev() {
        let (calls, ns) = within[path];
        let outer = &mut within[paths.outer(path as PathId) as usize];
        outer.0 += calls;
        outer.1 += ns;
    }
    let (ns_unit, one): (Arc<str>, Arc<str>) = (Arc::from("ns"), Arc::from(""));
    let mut rows = Vec::new();
    for (path, (durations, count)) in by_path.into_iter().enumerate() {
        let Some(text) = paths.text(path as PathId).filter(|_| count > 0) else { continue };
        let mut row = KernelRow {
            name: text.to_owned(),
            family: text.rsplit('/').next().unwrap_or(text).to_owned(),
            calls: count,
            ..KernelRow::default()
        };
        durations.fill(&mut row);
        if let Some((calls, ns)) = within.get(path).filter(|(calls, _)| *calls > 0) {
            for (name, unit, value) in [(KERNEL_TIME, &ns_unit, *ns), ("kernels", &one, *calls as f64)] {
                let mut counter = Counter::NONE;
                counter.add(value, 1.0);
                row.counters.merge(&Arc::from(name), unit, &counter);
            }
        }
        rows.push(row);
    }
    filled(source, Kind::Ranges, rows, None)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ranges(list: &[(i64, i64, &str)]) -> Ranges {
        let mut all = Ranges::default();
        for (start, end, name) in list {
            all.add(1, *start, Some(*end), name);
        }
        all.resolve(|_, _| {});
        all
    }

    #[track_caller]
    fn assert_enclosing(ranges: &mut Ranges, at: i64, wanted: Option<&str>) {
        let path = ranges.enclosing(1, at, at + 1);
        assert_eq!(ranges.paths.text(path), wanted, "at {at}");
    }

    #[test]
    fn a_call_is_in_the_innermost_range_and_its_enclosing_ranges() {
        let mut ranges =
            ranges(&[(0, 100, "decode"), (10, 20, "step"), (30, 40, "step"), (200, 300, "prefill")]);
        assert_enclosing(&mut ranges, 12, Some("decode/step"));
        assert_enclosing(&mut ranges, 25, Some("decode"));
        assert_enclosing(&mut ranges, 35, Some("decode/step"));
        assert_enclosing(&mut ranges, 150, None);
        assert_enclosing(&mut ranges, 250, Some("prefill"));
        assert_enclosing(&mut ranges, -5, None);
        // A call that ends after a range is not in it.
        let path = ranges.enclosing(1, 19, 22);
        assert_eq!(ranges.paths.text(path), Some("decode"));
        assert_eq!(ranges.enclosing(2, 12, 13), OUTSIDE);
        assert_eq!(ranges.paths.len(), 4);
    }

    #[test]
    fn ranges_may_overlap_without_nesting() {
        let mut ranges = ranges(&[(0, 10, "a"), (5, 15, "b")]);
        assert_enclosing(&mut ranges, 7, Some("a/b"));
        assert_enclosing(&mut ranges, 12, Some("b"));
        let mut open = Ranges::default();
        open.add(1, 5, None, "forever");
        open.resolve(|_, lasted| assert_eq!(lasted, None));
        assert_enclosing(&mut open, 1_000_000, Some("forever"));
    }

    #[test]
    fn depth_and_number_of_names_are_bounded() {
        let mut ranges = Ranges::default();
        for at in 0..100_000 {
            ranges.add(1, at, Some(1_000_000 - at), &format!("range {at}"));
        }
        for at in 0..100_000 {
            ranges.add(2, 2 * at, Some(2 * at + 1), &format!("range {at}"));
        }
        ranges.resolve(|_, _| {});
        assert!(ranges.paths.len() <= 2 * MAX_ROWS);
        let deep = ranges.enclosing(1, 500_000, 500_000);
        assert_eq!(ranges.paths.text(deep).unwrap().matches('/').count(), MAX_DEPTH as usize - 1);
    }

    proptest! {
        #[test]
        fn a_call_is_in_exactly_the_ranges_that_enclose_it(
            spans in prop::collection::vec((0i64..40, 1i64..30), 0..12), at in 0i64..60, lasts in 0i64..5
        ) {
            let named: Vec<(i64, i64, String)> =
                spans.iter().enumerate().map(|(i, (start, long))| (*start, start + long, format!("r{i}"))).collect();
            let mut ranges = Ranges::default();
            named.iter().for_each(|(start, end, name)| ranges.add(1, *start, Some(*end), name));
            ranges.resolve(|_, _| {});
            let path = ranges.enclosing(1, at, at + lasts);
            let mut found: Vec<&str> =
                ranges.paths.text(path).map(|text| text.split('/').collect()).unwrap_or_default();
            // A range that ends where a call begins may count or not.
            let mut wanted: Vec<&str> = named
                .iter()
                .filter(|(start, end, _)| *start <= at && *end >= at + lasts && *end > at)
                .map(|(_, _, name)| name.as_str())
                .collect();
            let touching: Vec<&str> =
                named.iter().filter(|(_, end, _)| *end == at).map(|(_, _, name)| name.as_str()).collect();
            found.retain(|name| !touching.contains(name));
            wanted.sort_unstable();
            found.sort_unstable();
            prop_assert_eq!(found, wanted);
            // Earlier results do not change later ones.
            for other in 0..60 {
                ranges.enclosing(1, other, other + lasts);
                prop_assert_eq!(ranges.enclosing(1, at, at + lasts), path);
            }
        }
    }
}
