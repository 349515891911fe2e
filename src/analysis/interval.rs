//! How sure a difference is: 95 % intervals by resampling what was measured, the same for the same seed; by Student's t
//! where there is too little to resample.

use serde::Serialize;

use crate::base::noise;

/// Fewer values than this tell nothing of their own spread.
pub const LEAST_VALUES: usize = 5;
/// Fewer values than this are not resampled: one that lies apart is missing from too many resamples, whose spread is
/// nothing then.
pub const LEAST_RESAMPLED: usize = 12;
const RESAMPLES: u64 = 4000;
const TAIL: f64 = 0.025;

/// An estimate and the 95 % interval around it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    pub estimate: f64,
    pub low: f64,
    pub high: f64,
}

impl Interval {
    pub fn contains(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }

    pub fn map(self, f: impl Fn(f64) -> f64) -> Interval {
        Interval { estimate: f(self.estimate), low: f(self.low), high: f(self.high) }
    }
}

/// The mean of `values` with its interval, by the studentised bootstrap, or by Student's t for fewer than
/// [`LEAST_RESAMPLED`]; `None` for fewer than [`LEAST_VALUES`], or where one is no number.
///
/// Resampled means alone give intervals that are too narrow for few values; each is held against the spread of its own
/// resample, which mends that without a word on how values are distributed.
pub fn of_mean(values: &[f64], seed: u64) -> Option<Interval> {
    if values.len() < LEAST_VALUES || values.iter().any(|value| !value.is_finite()) {
        return None;
    }
    let (mean, error) = mean_and_error(values);
    if error == 0.0 {
        return Some(Interval { estimate: mean, low: mean, high: mean });
    }
    if values.len() < LEAST_RESAMPLED {
        let wide = student_t(values.len() as f64 - 1.0) * error;
        return Some(Interval { estimate: mean, low: mean - wide, high: mean + wide });
    }
    let mut resample = vec![0.0; values.len()];
    let mut distances: Vec<f64> = (0..RESAMPLES)
        .filter_map(|round| {
            for (i, value) in resample.iter_mut().enumerate() {
                let draw = noise::bits(seed, round * values.len() as u64 + i as u64);
                *value = values[(draw % values.len() as u64) as usize];
            }
            let (mean_here, error_here) = mean_and_error(&resample);
            // One value drawn over and over has no spread to be held against.
            (error_here > 0.0).then(|| (mean_here - mean) / error_here)
        })
        .collect();
    distances.sort_by(f64::total_cmp);
    let at = |share: f64| distances[((distances.len() - 1) as f64 * share).round() as usize];
    Some(Interval { estimate: mean, low: mean - at(1.0 - TAIL) * error, high: mean - at(TAIL) * error })
}

/// By how much the first of each pair is greater than the second, in percent of the second; `None` for fewer than
/// [`LEAST_VALUES`] pairs, or where one has something that is not above zero.
///
/// A pair is what was measured close together: what slows both is in neither's favour. The estimate is the ratio of
/// the geometric means.
pub fn of_change_pct(pairs: &[(f64, f64)], seed: u64) -> Option<Interval> {
    let logarithms: Vec<f64> = pairs.iter().map(|(a, b)| a.ln() - b.ln()).collect();
    Some(of_mean(&logarithms, seed)?.map(|logarithm| logarithm.exp_m1() * 100.0))
}

/// The 97.5th percentile of Student's t with so many degrees of freedom, four or more, by its expansion around the normal
/// one.
pub fn student_t(freedom: f64) -> f64 {
    const Z: f64 = 1.959_963_984_540_054;
    let [z3, z5, z7] = [3, 5, 7].map(|power| Z.powi(power));
    Z + (z3 + Z) / (4.0 * freedom)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * Z) / (96.0 * freedom.powi(2))
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * Z) / (384.0 * freedom.powi(3))
}

/// The mean, and the standard error of it.
fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (n - 1.0) / n).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_true_mean_is_within_as_often_as_is_said() {
        for n in [5, 8, 12, 30] {
            let trials = 400;
            let hits = (0..trials).filter(|trial| {
                let values: Vec<f64> = (0..n).map(|i| 5.0 + noise::bell(*trial, i)).collect();
                of_mean(&values, 1).unwrap().contains(5.0)
            });
            let share = hits.count() as f64 / trials as f64;
            assert!((0.92..=0.985).contains(&share), "{share} of the intervals over {n} values");
        }
    }

    #[test]
    fn student_is_that_of_the_tables() {
        for (freedom, want) in [(4.0, 2.776), (8.0, 2.306), (14.0, 2.145), (38.0, 2.024), (1000.0, 1.962)] {
            assert!((student_t(freedom) - want).abs() < 0.01, "{freedom}: {}", student_t(freedom));
        }
    }

    /// As five pairs of one run with itself were: four nearly the same, one a little apart.
    #[test]
    fn one_that_lies_apart_does_not_blow_it_up() {
        let interval = of_mean(&[0.0, 1e-6, 0.0, -1e-6, 1e-3], 0).unwrap();
        assert!(interval.low > -2e-3 && interval.high < 2e-3, "{interval:?}");
    }

    #[test]
    fn a_difference_is_found_and_none_is_not() {
        let pairs = |slower: f64| -> Vec<(f64, f64)> {
            (0..20)
                .map(|i| (10.0 * slower + 0.1 * noise::bell(1, i), 10.0 + 0.1 * noise::bell(2, i)))
                .collect()
        };
        let found = of_change_pct(&pairs(1.05), 0).unwrap();
        assert!(found.contains(5.0) && !found.contains(0.0), "{found:?}");
        let none = of_change_pct(&pairs(1.0), 0).unwrap();
        assert!(none.contains(0.0) && none.high - none.low < 2.0, "{none:?}");
    }

    #[test]
    fn what_slows_both_of_a_pair_does_not_count() {
        let drifting: Vec<(f64, f64)> = (0..12).map(|i| (1.01 * (1 << i) as f64, (1 << i) as f64)).collect();
        let change = of_change_pct(&drifting, 3).unwrap();
        assert!((change.estimate - 1.0).abs() < 1e-9 && change.high - change.low < 1e-6, "{change:?}");
    }

    #[test]
    fn the_same_seed_gives_the_same_interval() {
        let values: Vec<f64> = (0..15).map(|i| noise::unit(4, i)).collect();
        assert_eq!(of_mean(&values, 7), of_mean(&values, 7));
        assert_ne!(of_mean(&values, 7), of_mean(&values, 8));
    }

    #[test]
    fn too_little_to_say_is_said_by_nothing() {
        assert_eq!(of_mean(&[1.0; 4], 0), None);
        assert_eq!(of_mean(&[1.0, 2.0, 3.0, 4.0, f64::NAN], 0), None);
        assert_eq!(of_change_pct(&[(1.0, 0.0); 8], 0), None, "no share of nothing");
        let same = of_mean(&[2.0; 6], 0).unwrap();
        assert_eq!((same.estimate, same.low, same.high), (2.0, 2.0, 2.0));
    }
}
