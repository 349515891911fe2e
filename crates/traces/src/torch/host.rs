//! Operators and annotations of threads: their nesting, and the time of an operator without those it calls.

use std::collections::HashMap;

use super::event::Scalar;
use crate::{
    nsys::ranges::{OUTSIDE, PathId},
    tally::MAX_ROWS,
};

/// More threads than a process has; events of further ones count for one thread.
const MAX_THREADS: usize = 1 << 14;

/// The index of an operator's name.
pub type NameId = u32;

/// Names, each once.
#[derive(Debug, Default)]
pub struct Names {
    numbers: HashMap<Box<str>, NameId>,
    all: Vec<Box<str>>,
}

/// The name for all beyond the limit.
const OTHERS: &str = "(other operators)";

impl Names {
    pub fn number(&mut self, name: &str) -> NameId {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let name = if self.all.len() < MAX_ROWS { name } else { OTHERS };
        let next = self.all.len() as NameId;
        let number = *self.numbers.entry(name.into()).or_insert(next);
        if number == next {
            self.all.push(name.into());
        }
        number
    }

    pub fn text(&self, number: NameId) -> &str {
        self.all.get(number as usize).map_or(OTHERS, |name| name)
    }
}

/// An operator or an annotation that has begun.
#[derive(Debug, Clone, Copy)]
struct Open {
    operator: Option<NameId>,
    path: PathId,
    start_ns: i64,
    end_ns: i64,
    ns: f64,
    /// The time of the operators that it calls.
    within_ns: f64,
}

#[derive(Debug, Default)]
struct Thread {
    open: Vec<Open>,
    last_start_ns: Option<i64>,
    /// Starts and durations of operators that may be within a later one.
    ended: Vec<(i64, f64)>,
    last_end_ns: Option<i64>,
}

/// The threads of all processes.
#[derive(Debug, Default)]
pub struct Threads {
    all: HashMap<[u64; 2], Thread>,
    not_by_start: bool,
    not_by_end: bool,
}

/// The order of a thread's events. It decides which of them enclose others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    ByStart,
    /// Versions of 2021 write an operator after it has ended.
    ByEnd,
    Unknown,
}

/// An operator or an annotation, with its position among the others of its thread.
#[derive(Debug)]
pub struct Begun {
    /// The annotations around it.
    pub path: PathId,
    /// Its own time, if events are ordered by their end.
    pub own_by_end_ns: Option<f64>,
}

/// Deeper nesting than any program's.
const MAX_DEPTH: usize = 4096;
/// An operator calls fewer than this.
const MAX_ENDED: usize = 1 << 16;
/// Times after this are since 1970; in µs with decimals they exceed the precision of a float.
const SINCE_1970_NS: i64 = 100_000_000_000_000_000;
/// The error of such times.
const SLACK_NS: i64 = 499;

impl Threads {
    /// Begins an operator, or an annotation if `operator` is `None`. `path` makes its annotations from the enclosing
    /// ones. Operators that have ended are passed to `ended` with their own time, if events are ordered by their start.
    pub fn begin(
        &mut self,
        thread: [&Scalar; 2],
        (start_ns, ns): (i64, f64),
        operator: Option<NameId>,
        path: impl FnOnce(PathId) -> PathId,
        ended: &mut impl FnMut(NameId, f64),
    ) -> Begun {
        let key = thread.map(Scalar::key);
        let full = self.all.len() >= MAX_THREADS && !self.all.contains_key(&key);
        let thread = self.all.entry(if full { [u64::MAX; 2] } else { key }).or_default();
        let latest_ns = start_ns.saturating_add(if start_ns > SINCE_1970_NS { SLACK_NS } else { 0 });
        let end_ns = start_ns.saturating_add(ns as i64);
        self.not_by_start |= thread.last_start_ns.is_some_and(|last| latest_ns < last);
        self.not_by_end |= thread
            .last_end_ns
            .is_some_and(|last| end_ns.saturating_add(latest_ns.saturating_sub(start_ns)) < last);
        (thread.last_start_ns, thread.last_end_ns) = (Some(start_ns), Some(end_ns));
        let encloses = |open: &Open| {
            let has_begun =
                open.start_ns <= latest_ns && (open.start_ns != start_ns || open.end_ns >= end_ns);
            has_begun && open.end_ns > latest_ns
        };
        while let Some(done) = thread.open.pop_if(|open| !encloses(open)) {
            done.end(ended);
        }
        let around = thread.open.last_mut();
        let path = path(around.as_ref().map_or(OUTSIDE, |around| around.path));
        if let Some(around) = around {
            around.within_ns += ns.min(around.end_ns.saturating_sub(start_ns).max(0) as f64);
        }
        if thread.open.len() < MAX_DEPTH {
            thread.open.push(Open { operator, path, start_ns, end_ns, ns, within_ns: 0.0 });
        }
        let own_by_end_ns = (!self.not_by_end).then(|| thread.own_by_end(start_ns, latest_ns, ns));
        Begun { path, own_by_end_ns }
    }

    /// Ends everything that is open.
    pub fn end(&mut self, ended: &mut impl FnMut(NameId, f64)) {
        for thread in self.all.values_mut() {
            thread.open.drain(..).for_each(|open| open.end(ended));
        }
    }

    pub fn order(&self) -> Order {
        match (self.not_by_start, self.not_by_end) {
            (false, _) => Order::ByStart,
            (true, false) => Order::ByEnd,
            (true, true) => Order::Unknown,
        }
    }
}

impl Thread {
    /// The own time of an operator that ends now, without those that began after its start.
    fn own_by_end(&mut self, start_ns: i64, latest_ns: i64, ns: f64) -> f64 {
        let mut own = ns;
        let earliest_ns = start_ns.saturating_sub(latest_ns.saturating_sub(start_ns));
        while let Some((_, within)) = self.ended.pop_if(|(start, _)| *start >= earliest_ns) {
            own -= within;
        }
        if self.ended.len() >= MAX_ENDED {
            self.ended.drain(..MAX_ENDED / 2);
        }
        self.ended.push((start_ns, ns));
        own.max(0.0)
    }
}

impl Open {
    fn end(self, ended: &mut impl FnMut(NameId, f64)) {
        if let Some(operator) = self.operator {
            ended(operator, (self.ns - self.within_ns).max(0.0));
        }
    }
}
