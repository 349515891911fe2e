//! The account of time: a measured time divided among owners, so that each nanosecond has exactly one.

mod decode;
mod headline;
mod owner;
mod sample;
mod step;
#[cfg(test)]
mod tests;
mod whole;

pub use decode::{DecodeFacts, Interference, decode};
pub use headline::{Setup, headline, remedy};
pub use owner::{Evidence, Group, Owner};
pub use sample::{OwnerTime, OwnerTimes};
pub use step::{Bound, ClockLoss, Part, StepFacts};
pub use whole::{Load, PrefillFacts, TtftFacts, cold_start, program, throughput, ttft};

use std::fmt;

use serde::Serialize;

/// An owner with a smaller share is not shown on its own.
const CONSIDERABLE: f64 = 0.005;

/// Version of the account in `metrics.json`.
pub const SCHEMA: u32 = 1;

/// The divided time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// The mean time between tokens of a request.
    Tpot,
    /// The mean time between steps, if the tokens per step are not one or not known.
    Step,
    Ttft,
    /// The elapsed time per output token of all requests.
    Throughput,
    /// The recorded time of a program without known steps.
    Program,
    /// From the start of a server to its first answer.
    ColdStart,
}

impl Figure {
    pub fn name(self) -> &'static str {
        match self {
            Figure::Tpot => "TPOT",
            Figure::Step => "step",
            Figure::Ttft => "TTFT",
            Figure::Throughput => "time per output token",
            Figure::Program => "recorded time",
            Figure::ColdStart => "cold start",
        }
    }

    pub fn key(self) -> &'static str {
        match self {
            Figure::Tpot => "tpot",
            Figure::Step => "step",
            Figure::Ttft => "ttft",
            Figure::Throughput => "throughput",
            Figure::Program => "program",
            Figure::ColdStart => "cold_start",
        }
    }
}

/// How the time of an entry is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    Measured(&'static str),
    /// It is at most this.
    Bounded(&'static str),
    Estimated(&'static str),
    /// Nothing that was recorded explains it.
    Remainder,
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Basis::Measured(by) => write!(f, "measured: {by}"),
            Basis::Bounded(by) => write!(f, "bounded by {by}"),
            Basis::Estimated(by) => write!(f, "estimated: {by}"),
            Basis::Remainder => f.write_str("the remainder"),
        }
    }
}

/// The time of one owner.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Entry {
    pub owner: Owner,
    pub ns: f64,
    pub basis: Basis,
}

/// A measured time and its owners, which add up to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Account {
    pub figure: Figure,
    pub total_ns: f64,
    /// The number of measurements of which `total_ns` is the mean.
    pub n: u64,
    /// The bound first, then by time, and the unexplained time last.
    pub entries: Vec<Entry>,
}

impl Account {
    pub fn share(&self, ns: f64) -> f64 {
        if self.total_ns > 0.0 { ns / self.total_ns } else { 0.0 }
    }

    /// The time of an owner; 0 if it has none.
    pub fn ns(&self, owner: Owner) -> f64 {
        self.entries.iter().filter(|entry| entry.owner == owner).map(|entry| entry.ns).sum()
    }

    pub fn group_ns(&self, group: Group) -> f64 {
        self.entries.iter().filter(|entry| entry.owner.group() == group).map(|entry| entry.ns).sum()
    }

    /// The groups with time, in the order of the stack.
    pub fn groups(&self) -> Vec<(Group, f64)> {
        let all = Group::ALL.into_iter().map(|group| (group, self.group_ns(group)));
        all.filter(|(_, ns)| *ns > 0.0).collect()
    }

    /// The entry that costs most, apart from the bound, from operators without a bound, and from what has no owner.
    pub fn largest_loss(&self) -> Option<&Entry> {
        let losses = self
            .entries
            .iter()
            .filter(|entry| !matches!(entry.owner.group(), Group::Bound | Group::Unexplained))
            .filter(|entry| !self.lacks_bound(entry));
        losses.max_by(|a, b| a.ns.total_cmp(&b.ns))
    }

    /// The largest operator whose bound is not known although those of other operators are.
    pub fn without_bound(&self) -> Option<&Entry> {
        let all = self.entries.iter().filter(|entry| self.lacks_bound(entry));
        all.max_by(|a, b| a.ns.total_cmp(&b.ns))
    }

    /// Whether its time includes a bound that is not known: how much of it is a loss is not known either.
    fn lacks_bound(&self, entry: &Entry) -> bool {
        let is_whole = matches!(entry.owner, Owner::Operator(_)) && entry.basis == step::KERNELS;
        is_whole && self.group_ns(Group::Bound) > 0.0
    }

    /// The entries with a considerable time, and the number and sum of the others.
    pub fn considerable(&self) -> (Vec<&Entry>, usize, f64) {
        let (shown, small): (Vec<&Entry>, Vec<&Entry>) =
            self.entries.iter().partition(|entry| self.share(entry.ns) >= CONSIDERABLE);
        (shown, small.len(), small.iter().map(|entry| entry.ns).sum())
    }

    pub fn unexplained_share(&self) -> f64 {
        self.share(self.group_ns(Group::Unexplained))
    }
}

/// A time that is being divided. An owner gets at most what is left, so no time has two.
#[derive(Debug, Clone)]
pub struct Division {
    figure: Figure,
    total_ns: f64,
    left_ns: f64,
    n: u64,
    entries: Vec<Entry>,
}

impl Division {
    pub fn new(figure: Figure, total_ns: f64, n: u64) -> Division {
        let total_ns = if total_ns.is_finite() { total_ns.max(0.0) } else { 0.0 };
        Division { figure, total_ns, left_ns: total_ns, n, entries: Vec::new() }
    }

    pub fn left_ns(&self) -> f64 {
        self.left_ns
    }

    /// Gives up to `ns` of the remaining time to `owner`, and returns what it got.
    pub fn take(&mut self, owner: Owner, ns: f64, basis: Basis) -> f64 {
        let ns = if ns.is_finite() { ns.clamp(0.0, self.left_ns) } else { 0.0 };
        if ns <= 0.0 {
            return 0.0;
        }
        self.left_ns -= ns;
        match self.entries.iter_mut().find(|entry| entry.owner == owner) {
            Some(entry) => {
                // The larger part decides what the whole is called.
                if ns > entry.ns {
                    entry.basis = basis;
                }
                entry.ns += ns;
            }
            None => self.entries.push(Entry { owner, ns, basis }),
        }
        ns
    }

    /// Gives `all` the times that they ask for, or the same share of them if not enough is left.
    pub fn take_in_proportion(&mut self, all: impl IntoIterator<Item = (Owner, f64, Basis)>) {
        let all: Vec<_> = all.into_iter().filter(|(_, ns, _)| ns.is_finite() && *ns > 0.0).collect();
        let wanted: f64 = all.iter().map(|(_, ns, _)| ns).sum();
        let share = if wanted > self.left_ns { self.left_ns / wanted } else { 1.0 };
        for (owner, ns, basis) in all {
            self.take(owner, ns * share, basis);
        }
    }

    /// The rest has no owner.
    pub fn close(mut self) -> Account {
        // Less than a millionth is rounding.
        let least_ns = 1e-6 * self.total_ns;
        let dropped: f64 = self.entries.iter().map(|entry| entry.ns).filter(|ns| *ns < least_ns).sum();
        self.entries.retain(|entry| entry.ns >= least_ns);
        self.left_ns += dropped;
        if self.left_ns > least_ns {
            let ns = self.left_ns;
            self.take(Owner::Unexplained, ns, Basis::Remainder);
        }
        let place = |entry: &Entry| match entry.owner.group() {
            Group::Bound => 0,
            Group::Unexplained => 2,
            _ => 1,
        };
        self.entries.sort_by(|a, b| place(a).cmp(&place(b)).then_with(|| b.ns.total_cmp(&a.ns)));
        Account { figure: self.figure, total_ns: self.total_ns, n: self.n, entries: self.entries }
    }
}
