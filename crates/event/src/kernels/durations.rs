//! The distribution of the durations of a kernel's calls.

use serde::{Deserialize, Serialize};

/// Bins per octave: a bin is 2 % wide.
const PER_OCTAVE: f64 = 32.0;
/// A recording may claim any number of bins; no durations exist beyond this one.
const MAX_BINS: usize = 32 * 64 + 1;

/// Counts in bins whose width grows with the time, in ascending order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(u16, u64)>")]
pub struct Durations(Vec<(u16, u64)>);

/// A bin from `from_ns` to `to_ns`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bin {
    pub from_ns: f64,
    pub to_ns: f64,
    pub calls: u64,
}

impl From<Vec<(u16, u64)>> for Durations {
    fn from(recorded: Vec<(u16, u64)>) -> Durations {
        let mut durations = Durations::default();
        recorded.into_iter().for_each(|(bin, calls)| durations.count(bin, calls));
        durations
    }
}

impl Durations {
    pub fn add(&mut self, ns: u64) {
        self.count((PER_OCTAVE * (ns.max(1) as f64).log2()) as u16, 1);
    }

    pub fn absorb(&mut self, other: &Durations) {
        other.0.iter().for_each(|(bin, calls)| self.count(*bin, *calls));
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn count(&mut self, bin: u16, calls: u64) {
        match self.0.binary_search_by_key(&bin, |(bin, _)| *bin) {
            Ok(at) => self.0[at].1 = self.0[at].1.saturating_add(calls),
            Err(at) if self.0.len() < MAX_BINS => self.0.insert(at, (bin, calls)),
            Err(_) => {}
        }
    }

    /// All bins from the first to the last with a call, including empty ones; at most `most`, with neighbours merged.
    pub fn bins(&self, most: usize) -> Vec<Bin> {
        let (Some((first, _)), Some((last, _))) = (self.0.first(), self.0.last()) else { return Vec::new() };
        let (first, last) = (usize::from(*first), usize::from(*last));
        let joined = (last - first + 1).div_ceil(most.max(1));
        let at = |bin: usize| (bin as f64 / PER_OCTAVE).exp2();
        let mut bins: Vec<Bin> = (first..=last)
            .step_by(joined)
            .map(|bin| Bin { from_ns: at(bin), to_ns: at(bin + joined), calls: 0 })
            .collect();
        for (bin, calls) in &self.0 {
            let bin = &mut bins[(usize::from(*bin) - first) / joined];
            bin.calls = bin.calls.saturating_add(*calls);
        }
        bins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_in_the_bin_of_its_time() {
        let mut durations = Durations::default();
        let times = [0, 1, 2_000, 2_001, 2_900, 64_000, u64::MAX];
        times.iter().for_each(|ns| durations.add(*ns));
        let bins = durations.bins(usize::MAX);
        assert_eq!(bins.iter().map(|bin| bin.calls).sum::<u64>(), times.len() as u64);
        let of = |ns: f64| bins.iter().find(|bin| bin.from_ns <= ns && ns < bin.to_ns).unwrap().calls;
        assert_eq!((of(2_000.5), of(2_900.0), of(64_000.0), of(10_000.0)), (2, 1, 1, 0));
        let few = durations.bins(8);
        assert!(few.len() <= 8);
        assert_eq!(few.iter().map(|bin| bin.calls).sum::<u64>(), times.len() as u64);
    }

    #[test]
    fn windows_add_up() {
        let (mut a, mut b, mut all) = (Durations::default(), Durations::default(), Durations::default());
        for ns in 1..2_000_u64 {
            if ns % 3 == 0 {
                a.add(ns)
            } else {
                b.add(ns)
            }
            all.add(ns);
        }
        a.absorb(&b);
        assert_eq!(a, all);
    }

    #[test]
    fn a_hostile_recording_stays_small() {
        let hostile: Vec<(u16, u64)> = (0..u16::MAX).rev().map(|bin| (bin, u64::MAX)).collect();
        let mut durations = Durations::from(hostile.clone());
        durations.absorb(&Durations::from(hostile));
        assert_eq!(durations.0.len(), MAX_BINS);
        assert!(durations.bins(20).len() <= 20);
    }
}
