//! The intervals in which a limit was active: a few for a run of any length.

use super::WeightedMean;
use llmprof_event::Stamp;

/// Maximum number of intervals; beyond it, the nearest two become one.
const KEPT: usize = 32;
/// Intervals with a shorter gap between them are one, as a share of the run.
const JOINED: f64 = 0.02;
/// A limit with more intervals, or with a larger share of the run, is active throughout.
const MAX_NAMED: usize = 3;
const MOST_OF_THE_RUN: f64 = 0.5;
/// In a shorter run an interval shows nothing beyond the share of the time.
const MIN_SPAN_S: f64 = 60.0;

/// From the first sample that found the limit active to the last.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Episode {
    pub from: Stamp,
    pub to: Stamp,
    /// In which the limit was active.
    pub active_ns: f64,
    pub clock_mhz: WeightedMean,
}

impl Episode {
    pub fn length_s(&self) -> f64 {
        self.to.since(self.from).as_secs_f64()
    }

    /// The share of it in which the limit was active.
    pub fn active_share(&self) -> f64 {
        match self.length_s() {
            s if s > 0.0 => (self.active_ns / 1e9 / s).min(1.0),
            _ => 1.0,
        }
    }

    fn join(&mut self, later: &Episode) {
        self.to = self.to.max(later.to);
        self.active_ns += later.active_ns;
        self.clock_mhz.join(later.clock_mhz);
    }
}

/// The intervals in which a limit was active, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Episodes(Vec<Episode>);

impl Episodes {
    /// A sample at `t` that represents `ns` found the limit active.
    pub(super) fn add(&mut self, t: Stamp, clock_mhz: Option<f64>, ns: f64) {
        let mut new = Episode { from: t, to: t, active_ns: ns, clock_mhz: WeightedMean::default() };
        clock_mhz.into_iter().for_each(|mhz| new.clock_mhz.add(mhz, ns));
        match self.0.last_mut().filter(|last| t <= last.to) {
            // A sample represents time before it and after it.
            Some(last) => last.join(&new),
            None => self.0.push(new),
        }
        if self.0.len() > KEPT {
            let gap = |i: &usize| self.0[i + 1].from.since(self.0[*i].to);
            let nearest = (0..KEPT).min_by_key(gap).unwrap_or(0);
            let later = self.0.remove(nearest + 1);
            self.0[nearest].join(&later);
        }
    }

    /// The intervals, if there are few and they cover a small part of the run.
    pub fn named(&self, span_s: f64) -> Vec<Episode> {
        let mut joined: Vec<Episode> = Vec::new();
        for episode in &self.0 {
            match joined.last_mut() {
                Some(last) if episode.from.since(last.to).as_secs_f64() <= JOINED * span_s => {
                    last.join(episode)
                }
                _ => joined.push(*episode),
            }
        }
        let all_s: f64 = joined.iter().map(Episode::length_s).sum();
        let few = joined.len() <= MAX_NAMED && all_s <= MOST_OF_THE_RUN * span_s;
        if few && span_s >= MIN_SPAN_S { joined } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(secs: f64) -> Stamp {
        Stamp::from_secs_f64(secs)
    }

    /// Samples each second of a run of `span_s`, of which `hot` decides whether they found the limit.
    fn named(span_s: u32, hot: impl Fn(u32) -> bool) -> Vec<(f64, f64)> {
        let mut episodes = Episodes::default();
        for s in (0..span_s).filter(|s| hot(*s)) {
            episodes.add(at(f64::from(s)), Some(1410.0), 1e9);
        }
        episodes.named(f64::from(span_s)).iter().map(|e| (e.from.secs(), e.to.secs())).collect()
    }

    #[test]
    fn one_hot_hour_of_a_night_is_named_and_a_limit_of_every_prefill_is_not() {
        assert_eq!(named(36_000, |s| (10_800..14_400).contains(&s)), [(10_800.0, 14_399.0)]);
        let two = named(36_000, |s| (1000..2000).contains(&s) || (20_000..23_000).contains(&s));
        assert_eq!(two, [(1000.0, 1999.0), (20_000.0, 22_999.0)]);
        assert_eq!(named(36_000, |s| s % 10 < 3), [], "throughout");
        assert_eq!(named(36_000, |_| true), [], "all the time");
        assert_eq!(named(36_000, |s| s % 7200 < 1000), [], "in five intervals");
        assert_eq!(named(50, |s| (10..20).contains(&s)), [], "a short run");
    }

    proptest! {
        #[test]
        fn intervals_are_few_in_order_and_have_all_time(steps in prop::collection::vec((1u32..10_000, 0.0f64..1e9), 1..300)) {
            let (mut episodes, mut ms) = (Episodes::default(), 0);
            for (after, ns) in &steps {
                ms += after;
                episodes.add(at(f64::from(ms) / 1e3), None, *ns);
            }
            prop_assert!(episodes.0.len() <= KEPT);
            prop_assert!(episodes.0.windows(2).all(|pair| pair[0].to < pair[1].from));
            let all: f64 = episodes.0.iter().map(|e| e.active_ns).sum();
            prop_assert!((all - steps.iter().map(|(_, ns)| ns).sum::<f64>()).abs() < 1.0);
        }
    }
}
