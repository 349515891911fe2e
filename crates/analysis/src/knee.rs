//! Searches the highest rate that meets the SLOs: doubles or halves until one rate meets them and one does not, then
//! narrows the interval.

/// A rate that was tried.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tried {
    pub rate: f64,
    pub kept: bool,
}

#[derive(Debug, Clone)]
pub struct KneeSearch {
    first: f64,
    /// The search ends when the interval is no wider than this share of its lower end.
    precision: f64,
    tried: Vec<Tried>,
}

impl KneeSearch {
    pub fn new(first: f64, precision: f64) -> KneeSearch {
        KneeSearch { first, precision, tried: Vec::new() }
    }

    pub fn add(&mut self, rate: f64, kept: bool) {
        self.tried.push(Tried { rate, kept });
    }

    /// The highest rate that met the SLOs below all that did not, and the lowest that did not.
    pub fn interval(&self) -> (Option<f64>, Option<f64>) {
        let rates =
            |kept: bool| self.tried.iter().filter(move |tried| tried.kept == kept).map(|tried| tried.rate);
        let broken = rates(false).reduce(f64::min);
        let kept = rates(true).filter(|rate| broken.is_none_or(|broken| *rate < broken)).reduce(f64::max);
        (kept, broken)
    }

    /// The rate to try next; `None` at the end of the search.
    pub fn next_rate(&self) -> Option<f64> {
        match self.interval() {
            (None, None) => Some(self.first),
            (Some(kept), None) => Some(2.0 * kept),
            (None, Some(broken)) => Some(broken / 2.0),
            (Some(kept), Some(broken)) if broken / kept <= 1.0 + self.precision => None,
            (Some(kept), Some(broken)) => Some((kept * broken).sqrt()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_knee_is_found_from_anywhere(knee in 0.01f64..1e4, first in 0.01f64..1e4) {
            let mut search = KneeSearch::new(first, 0.05);
            let mut tries = 0;
            while let Some(rate) = search.next_rate() {
                search.add(rate, rate <= knee);
                tries += 1;
                prop_assert!(tries < 40);
            }
            let (kept, broken) = search.interval();
            prop_assert!(kept.unwrap() <= knee && knee < broken.unwrap());
            prop_assert!(broken.unwrap() / kept.unwrap() <= 1.0501);
        }
    }

    #[test]
    fn a_rate_that_passes_by_chance_above_a_failed_one_is_not_the_knee() {
        let mut search = KneeSearch::new(4.0, 0.1);
        for (rate, kept) in [(4.0, true), (8.0, false), (5.6, false), (6.0, true)] {
            search.add(rate, kept);
        }
        assert_eq!(search.interval(), (Some(4.0), Some(5.6)));
    }
}
